"""One process of the soak: `python -m tests.soak.query publisher|reader FOLDER ROUND`.

Publisher and reader take up their checkpoints whenever they are begun again, and end by
themselves when all flights are through. They tell by a file when they are past their first batch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import pulsar_spark
from pulsar_spark.connector.tools.command_line.demo_command import as_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
MESSAGES_PER_TRIGGER = 3000


class Place:
    """Where the files of one round lie."""

    def __init__(self, folder: Path, number: int) -> None:
        self.flights = folder / "flights"
        self.client_flights = folder / "client-flights"
        self.expected = folder / "expected.parquet"
        self.root = folder / "root"
        self.topic = f"flights-{number}"
        self.round = folder / f"round-{number}"
        self.seen = self.round / "seen"
        self.published = self.round / "published"
        self.sent_by_client = folder / "sent-by-client.parquet"
        self.sent = self.round / "sent"

    def checkpoint(self, role: str) -> Path:
        return self.round / f"{role}-checkpoint"

    def mark(self, role: str, log: str) -> Path:
        """A log of the checkpoint of a process without Spark, which is there."""
        folder = self.checkpoint(role) / log
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def ready(self, role: str) -> Path:
        return self.round / f"{role}-ready"


def publisher(spark: SparkSession, place: Place) -> None:
    schema = spark.read.parquet(str(place.flights)).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    frame = as_messages(files.parquet(str(place.flights)))
    writer = frame.writeStream.format("pulsarlite").options(
        topic=place.topic,
        numPartitions=str(PARTITIONS),
        checkpointLocation=str(place.checkpoint("publisher")),
    )
    query = writer.trigger(availableNow=True).start(str(place.root))
    while query.isActive and query.lastProgress is None:
        time.sleep(0.05)
    place.ready("publisher").touch()
    query.awaitTermination()
    place.published.touch()


def reader(spark: SparkSession, place: Place) -> None:
    while True:
        last = place.published.exists()
        source = spark.readStream.format("pulsarlite").options(
            topicsPattern=place.topic,
            startingOffsets="earliest",
            maxMessagesPerTrigger=str(MESSAGES_PER_TRIGGER),
            topicDiscoveryInterval="1s",
        )

        def keep(batch: DataFrame, number: int) -> None:
            """An idempotent sink: one file a micro-batch, replaced whole."""
            temporary = place.seen / f".{number}"
            pq.write_table(batch.select("value").toArrow(), temporary)
            temporary.replace(place.seen / f"{number}.parquet")
            place.ready("reader").touch()

        writer = source.load(str(place.root)).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(place.checkpoint("reader")))
        if last:
            writer.trigger(availableNow=True).start().awaitTermination()
            return
        query = writer.trigger(processingTime="0 seconds").start()
        while query.isActive and not place.published.exists():
            query.awaitTermination(1)
        query.stop()


def note_expected(spark: SparkSession, place: Place) -> None:
    """What has to arrive, value by value; and what a process without Spark sends of it."""
    published = as_messages(spark.read.parquet(str(place.flights)))
    parts = [published.select("key", "value").toArrow()]
    if place.client_flights.exists():
        sent = as_messages(spark.read.parquet(str(place.client_flights)))
        parts.append(sent.select("key", "value").toArrow())
        pq.write_table(parts[-1], place.sent_by_client)
    temporary = place.expected.with_suffix(".unfinished")
    pq.write_table(pa.concat_tables(parts).select(["value"]), temporary)
    temporary.replace(place.expected)


def end_with(parent: int) -> None:
    """A soak that was itself killed leaves no query behind, which another would meet."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    role, folder, number = sys.argv[1:]
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    place = Place(Path(folder), int(number))
    settings: dict[str, Any] = {
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(Path(folder) / "local"),
    }
    spark = pulsar_spark.session(app_name=f"soak-{role}", master="local[2]", **settings)
    {"publisher": publisher, "reader": reader, "expected": note_expected}[role](spark, place)
    spark.stop()


if __name__ == "__main__":
    main()
