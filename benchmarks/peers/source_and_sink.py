"""Spark's Kafka source and sink against ours: same rows, same session, in turn.

    python -m benchmarks.peers kafka-source [--rounds 5] [--messages 2000000]

As `benchmarks/source_and_sink.py`, with Kafka in the place of Parquet: a run is one streaming query
with Trigger.AvailableNow over all rows, key and value of 100 bytes, in four partitions, and its
figure the sum of its micro-batches' `triggerExecution`. Ours is durable and published exactly once;
Kafka has one replica, leaves writing to the operating system, and Spark's sink may write twice.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import pulsar_spark
from benchmarks.peers import installed, servers
from benchmarks.source_and_sink import PARTITIONS, Bench

VALUE_BYTES = 100
WARM_UP = 3
COLUMNS = "key string, value binary"


class KafkaBench(Bench):
    """The same rows in a topic of Kafka's too."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, address: str) -> None:
        super().__init__(spark, folder, rows, VALUE_BYTES)
        self._kafka = {"kafka.bootstrap.servers": address}
        self._rows_to_write().write.format("kafka").options(**self._kafka, topic="source").save()

    def read_kafka(self) -> DataFrame:
        """A stream of Spark's Kafka source."""
        reader = self._spark.readStream.format("kafka").options(**self._kafka, subscribe="source")
        return reader.option("startingOffsets", "earliest").load()

    def sent_to_kafka(self) -> float:
        options = {**self._kafka, "topic": "sink"}
        return self._seconds(self._input().select("key", "value"), "kafka", options)

    def sent_to_us(self) -> float:
        options = {"topic": "messages", "serviceUrl": str(self._folder / "sink")}
        options["numPartitions"] = str(PARTITIONS)
        return self._seconds(self._input().select("key", "value"), "pulsarlite", options)

    def _rows_to_write(self) -> DataFrame:
        return self._spark.read.parquet(self._messages).select("key", "value")


def measure(rounds: int, messages: int) -> None:
    """Print the table."""
    settings: dict[str, Any] = {
        "spark.driver.memory": "4g",
        "spark.python.unix.domain.socket.enabled": True,
        "spark.jars": ",".join(installed.spark_kafka_jars()),
    }
    with tempfile.TemporaryDirectory(prefix="pulsarlite-") as name, servers.kafka() as address:
        spark = pulsar_spark.session(master="local[2]", message_bytes=VALUE_BYTES, **settings)
        bench = KafkaBench(spark, Path(name), messages, address)
        table: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            "source, all columns": (
                lambda: bench.to_nothing(bench.read()),
                lambda: bench.to_nothing(bench.read_kafka()),
            ),
            "source, key and value": (
                lambda: bench.to_nothing(bench.read(COLUMNS)),
                lambda: bench.to_nothing(bench.read_kafka().select("key", "value")),
            ),
            "sink": (bench.sent_to_us, bench.sent_to_kafka),
        }
        print(f"Spark {spark.version}; {messages:,} messages, medians of {rounds} rounds")
        print("| what | ours, seconds | Kafka's | Kafka's to ours |")
        print("| --- | --- | --- | --- |")
        for what, (ours, theirs) in table.items():
            pairs = [(ours(), theirs()) for _ in range(WARM_UP + rounds)][WARM_UP:]
            ratios = sorted(theirs / ours for ours, theirs in pairs)
            print(
                f"| {what} | {statistics.median(ours for ours, _ in pairs):.2f} "
                f"| {statistics.median(theirs for _, theirs in pairs):.2f} "
                f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
                flush=True,
            )
        spark.stop()
