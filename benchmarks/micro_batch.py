"""What a micro-batch costs as a topic grows from 10 to 10,000 ledgers.

    python -m benchmarks.micro_batch [--batches 15]

For each size a topic is made with so many ledgers of ten messages each. A streaming query then
reads its tail, message by message as they come, and another publishes to it. The figures are the
medians of `triggerExecution` over the micro-batches; the sizes take turns, twice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_spark
from benchmarks.subscriptions import wait_for
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import SYSTEM_CLOCK
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileWriter
from pulsar_spark.log.publication import NewLedger
from pulsar_spark.model.positions.ledger_info import BatchSizes
from pulsar_spark.model.topic_name import TopicName

SIZES = (10, 100, 1_000, 10_000)
LEDGERS_PER_COMMIT = 100
MESSAGES_PER_LEDGER = 10
TURNS = 2
POLL_S = 0.005


def publish(root: Root, ledgers: int) -> None:
    """Add so many ledgers to the topic, by commits of at most a hundred."""
    topic = TopicName.parse("grown")
    managed = root.open_or_create(topic, 1)
    for first in range(0, ledgers, LEDGERS_PER_COMMIT):
        count = min(LEDGERS_PER_COMMIT, ledgers - first)
        now_ms = SYSTEM_CLOCK.wall_ms()
        rows = MESSAGES_PER_LEDGER * count
        times = pa.array([now_ms * 1000] * rows, pa.timestamp("us", "UTC"))
        table = pa.table({"value": pa.array([b"x" * 100] * rows), "publish_time": times})
        with LedgerFileWriter(root.store, managed.folder) as file:
            file.write(table)
            file.close()
        sizes = BatchSizes(((MESSAGES_PER_LEDGER, 1),))
        managed.append(
            [
                NewLedger(0, file.path, n * MESSAGES_PER_LEDGER, sizes, 1000, now_ms, now_ms)
                for n in range(count)
            ]
        )


def batch_ms(query: StreamingQuery, from_batch: int) -> list[int]:
    """`triggerExecution` of the micro-batches with rows from that one on."""
    progress: list[Any] = [json.loads(each.json) for each in query.recentProgress]
    return [
        each["durationMs"]["triggerExecution"]
        for each in progress
        if each["numInputRows"] and each["batchId"] >= from_batch
    ]


def reading(spark: SparkSession, root: Root, checkpoint: Path, batches: int) -> list[int]:
    """Publish one ledger at a time under a query that reads the tail."""
    stream = spark.readStream.format("pulsarlite").option("serviceUrl", root.service_url)
    running = (
        stream.option("topic", "grown")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    wait_for(lambda: running.recentProgress, [running], POLL_S)
    for done in range(batches + 3):

        def has_another(before: int = done) -> bool:
            return len(batch_ms(running, 0)) > before

        publish(root, 1)
        wait_for(has_another, [running], POLL_S)
    measured = batch_ms(running, 0)[3:]
    running.stop()
    return measured


def writing(spark: SparkSession, root: Root, checkpoint: Path, batches: int) -> list[int]:
    """Publish by a query, ten messages a micro-batch."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", MESSAGES_PER_LEDGER)
    running = (
        rate.load()
        .selectExpr("cast(value as string) as value")
        .writeStream.format("pulsarlite")
        .option("serviceUrl", root.service_url)
        .option("topic", "grown")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    wait_for(lambda: len(batch_ms(running, 3)) >= batches, [running], POLL_S)
    running.stop()
    return batch_ms(running, 3)[:batches]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=15)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pulsarlite-benchmark-"))
    settings: dict[str, Any] = {"spark.default.parallelism": 1}
    spark = pulsar_spark.session(master="local[2]", **settings)
    roots = {size: Root(str(folder / str(size)), {}) for size in SIZES}
    read_ms: dict[int, list[int]] = {size: [] for size in SIZES}
    write_ms: dict[int, list[int]] = {size: [] for size in SIZES}
    for size, root in roots.items():
        publish(root, size)
    for run_once in range(TURNS + 1):
        for size, root in roots.items():
            read = reading(spark, root, folder / f"r-{size}-{run_once}", asked.batches)
            written = writing(spark, root, folder / f"w-{size}-{run_once}", asked.batches)
            if run_once:  # the first round warms the JVM up
                read_ms[size] += read
                write_ms[size] += written
    print("| ledgers | reading, ms | against 10 | publishing, ms | against 10 |")
    print("| --- | --- | --- | --- | --- |")
    for size in SIZES:
        read_median = statistics.median(read_ms[size])
        write_median = statistics.median(write_ms[size])
        print(
            f"| {size:,} | {read_median:.0f} "
            f"| {read_median / statistics.median(read_ms[SIZES[0]]):.2f} | {write_median:.0f} "
            f"| {write_median / statistics.median(write_ms[SIZES[0]]):.2f} |"
        )
    spark.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
