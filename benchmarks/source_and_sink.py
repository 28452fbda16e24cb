"""Source and sink against Spark's own Parquet source and sink: same rows, same session, in turn.

    python -m benchmarks.source_and_sink [--rows 2000000] [--bytes 100] [--runs 5] [--own-session]

Each run is one streaming query with Trigger.AvailableNow over all rows. Its figure is the time of
its micro-batches as Spark reports it (`triggerExecution`: planning, reading, writing, both logs).
The twins take turns, the first runs are thrown away, until the JVM has compiled both sides, and the
table gives medians and the median of the ratios run by run (above 1: Pulsarlite is faster). Values
are random bytes, which no compression makes smaller; a message has key (of 100,000), producer name,
sequence id, event time and two properties, too. The Parquet twin of the source was written by Spark
from the very rows that the source yields. "All columns" are the 15 that a source has by default,
or, against `value` alone, those and `properties`; a sink gets all of the message but the
properties. With `--own-session` Spark's own builder made the session, with nothing set: no
`message_bytes`, nor what `pulsar_spark.session()` sets.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as PySpark's own documentation has it

import pulsar_spark
from pulsar_spark.connector.spark.data_source import register
from pulsar_spark.connector.spark.process.java_home import ensure_java

PARTITIONS = 4
KEYS = 100_000
THROWN_AWAY = 10


class Bench:
    """One session, one folder, rows of one size."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, value_bytes: int) -> None:
        self._spark, self._rows = spark, rows
        self._folder = folder / f"{rows}-{value_bytes}"
        self._messages = str(self._folder / "messages")
        self._source = str(self._folder / "source")
        self._twin = str(self._folder / "twin")
        self._run = 0
        self._make(value_bytes)

    def read(self, columns: str | None = None, *, properties: bool = False) -> DataFrame:
        """A stream of our source."""
        reader = self._spark.readStream.format("pulsarlite").option("topic", "messages")
        reader = reader.option("serviceUrl", self._source).option("startingOffsets", "earliest")
        reader = reader.option("includeProperties", properties)
        return (reader.schema(columns) if columns else reader).load()

    def read_twin(self, columns: str | None = None) -> DataFrame:
        """A stream of Spark's Parquet source, of the same rows."""
        schema = self._spark.read.parquet(self._twin).schema
        return self._spark.readStream.schema(columns or schema).parquet(self._twin)

    def to_nothing(self, stream: DataFrame) -> float:
        """Seconds of the micro-batches that read all rows and do nothing with them."""
        return self._seconds(stream, "noop", {})

    def to_topic(self, sink: str = "pulsarlite") -> float:
        """Seconds of the micro-batches that publish all rows."""
        options = {"topic": "messages", "serviceUrl": str(self._folder / "sink")}
        options["numPartitions"] = str(PARTITIONS)
        return self._seconds(self._input(), sink, options)

    def to_parquet(self) -> float:
        """Seconds of the micro-batches that write all rows with Spark's Parquet sink."""
        return self._seconds(self._input(), "parquet", {"path": str(self._folder / "sink")})

    def _input(self) -> DataFrame:
        schema = self._spark.read.parquet(self._messages).schema
        return self._spark.readStream.schema(schema).parquet(self._messages).drop("properties")

    def _seconds(self, stream: DataFrame, sink: str, options: dict[str, str]) -> float:
        self._run += 1
        checkpoint = self._folder / f"checkpoint-{self._run}"
        writer = stream.writeStream.format(sink).options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        progress: list[Any] = [json.loads(each.json) for each in running.recentProgress]
        rows = sum(each["numInputRows"] for each in progress)
        if rows != self._rows:
            sys.exit(f"{sink} saw {rows} rows of {self._rows}")
        shutil.rmtree(checkpoint)
        shutil.rmtree(self._folder / "sink", ignore_errors=True)
        return float(sum(each["durationMs"]["triggerExecution"] for each in progress)) / 1000

    def _make(self, value_bytes: int) -> None:
        if (self._folder / "made").exists():
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        ids = self._spark.range(0, self._rows, 1, PARTITIONS)
        pieces = [
            F.md5(F.concat(F.col("id"), F.lit(f"-{n}"))) for n in range(-(-value_bytes // 16))
        ]
        value = F.substring(F.unhex(F.concat(*pieces)), 1, value_bytes)
        ids.select(
            F.format_string("N%05d", F.abs(F.hash("id")) % F.lit(KEYS)).alias("key"),
            value.alias("value"),
            F.lit("benchmark").alias("producer_name"),
            F.col("id").alias("sequence_id"),
            F.timestamp_millis(F.lit(1_700_000_000_000) + F.col("id")).alias("event_time"),
            F.create_map(
                F.lit("number"), F.col("id").cast("string"), F.lit("kind"), F.lit("benchmark")
            ).alias("properties"),
        ).write.parquet(self._messages)
        written = self._spark.read.parquet(self._messages).write.format("pulsarlite")
        written = written.option("topic", "messages").option("serviceUrl", self._source)
        written.option("numPartitions", PARTITIONS).mode("append").save()
        read = self._spark.read.format("pulsarlite").option("topic", "messages")
        read.option("serviceUrl", self._source).load().write.parquet(self._twin)
        (self._folder / "made").touch()


def main() -> None:
    """Print the table for one size of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=("source", "value", "sink"), action="append")
    parser.add_argument("--folder", type=Path, help="keep the rows here (else a temporary one)")
    parser.add_argument("--own-session", action="store_true", help="one that Spark's builder made")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="pulsarlite-benchmark-"))
    settings: dict[str, Any] = {
        "spark.driver.memory": "4g",
        "spark.python.unix.domain.socket.enabled": True,
    }
    if asked.own_session:
        ensure_java()
        own = SparkSession.builder.master("local[2]").config("spark.driver.memory", "4g")
        spark = own.getOrCreate()
        register(spark)
    else:
        spark = pulsar_spark.session(master="local[2]", message_bytes=asked.bytes, **settings)
    bench = Bench(spark, folder, asked.rows, asked.bytes)
    table: dict[str, tuple[str, Callable[[], float], Callable[[], float]]] = {
        "source": (
            "source, all columns, against Parquet's",
            lambda: bench.to_nothing(bench.read()),
            lambda: bench.to_nothing(bench.read_twin()),
        ),
        "value": (
            "source, `value` alone, against all columns",
            lambda: bench.to_nothing(bench.read("value binary")),
            lambda: bench.to_nothing(bench.read(properties=True)),
        ),
        "sink": ("sink, against Parquet's", bench.to_topic, bench.to_parquet),
    }
    print(f"{asked.rows:,} messages of {asked.bytes} bytes, medians of {asked.runs} runs")
    print("| what | seconds | compared to | ratio (lowest to highest) |")
    print("| --- | --- | --- | --- |")
    for name in asked.only or table:
        what, ours, theirs = table[name]
        pairs = [(ours(), theirs()) for _ in range(THROWN_AWAY + asked.runs)][THROWN_AWAY:]
        ratios = sorted(copied / mine for mine, copied in pairs)
        print(
            f"| {what} | {statistics.median(mine for mine, _ in pairs):.2f} "
            f"| {statistics.median(copied for _, copied in pairs):.2f} "
            f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
            flush=True,
        )
    spark.stop()
    if asked.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
