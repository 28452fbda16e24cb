"""What digests cost the sink: it publishes the same rows with and without them, in turn.

    python -m benchmarks.digests [--runs 15]

As in `benchmarks.source_and_sink` a run is one streaming query over all rows, and its figure the
time of its micro-batches. The twin is the same sink, whose tasks leave out the digest of a ledger.
A pair of runs begins now with one and now with the other; the first pairs are thrown away. The last
ratio is the median of those pair by pair, with over without: 1.03 is 3 % of the time. The last
column is the share of a task's CPU time that the digest takes, which other work blurs less.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

import pulsar_spark
from benchmarks.source_and_sink import Bench
from pulsar_spark.connector.runtime.publishing import message_writer
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.spark.data_source import PulsarliteDataSource
from pulsar_spark.connector.spark.stream_writer import MessageSink, PulsarliteStreamWriter
from pulsar_spark.connector.storage.data_files.content_digest import content_digest

SIZES = ((2_000_000, 100), (500_000, 1_000))
THROWN_AWAY = 5
WITHOUT = "pulsarlite_without_digests"
TASK_ROWS = 500_000


class Undigested(MessageSink):
    """A sink whose tasks compute no digest."""

    def write(self, *given: Any, **named: Any) -> Any:
        with mock.patch.object(message_writer, "content_digest", return_value=0):
            return super().write(*given, **named)


class WithoutDigests(PulsarliteDataSource):
    @classmethod
    def name(cls) -> str:
        return WITHOUT

    def streamWriter(self, schema: StructType, overwrite: bool) -> PulsarliteStreamWriter:  # noqa: ARG002, N802
        return PulsarliteStreamWriter(Undigested(self.parsed, self.root, schema))


def pairs(bench: Bench, runs: int) -> list[tuple[float, float]]:
    """(seconds with, seconds without) of each pair."""
    found = []
    for number in range(THROWN_AWAY + runs):
        if number % 2:
            with_digests = bench.to_topic()
            found.append((with_digests, bench.to_topic(WITHOUT)))
        else:
            without = bench.to_topic(WITHOUT)
            found.append((bench.to_topic(), without))
    return found[THROWN_AWAY:]


def share_of_a_task(folder: Path, value_bytes: int, runs: int) -> float:
    """The median share of a task's CPU time that the digest takes, without Spark."""
    options = options_of({"serviceUrl": str(folder / "task"), "topic": "t", "numPartitions": "4"})
    data = np.random.default_rng(1).bytes(value_bytes * TASK_ROWS)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(value_bytes), TASK_ROWS, [None, pa.py_buffer(data)]
    )
    value = fixed.cast(pa.binary())
    key = pa.array([f"N{number % 100_000:05}" for number in range(TASK_ROWS)])
    batch = pa.record_batch({"key": key, "value": value})
    shares = []
    for _ in range(runs):
        spent = [0.0]

        def timed(rows: Any, spent: list[float] = spent) -> int:
            begun = time.process_time()
            found = content_digest(rows)
            spent[0] += time.process_time() - begun
            return found

        with mock.patch.object(message_writer, "content_digest", timed):
            begun = time.process_time()
            message_writer.write_messages([batch], options, Root.of(options))
            shares.append(spent[0] / (time.process_time() - begun))
    return statistics.median(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--share", type=int, default=1, help="of the rows, one in so many")
    asked = parser.parse_args()
    runs = asked.runs
    folder = Path(tempfile.mkdtemp(prefix="pulsarlite-benchmark-"))
    settings: dict[str, Any] = {
        "spark.driver.memory": "4g", "spark.python.unix.domain.socket.enabled": True,
    }  # fmt: skip
    print("| messages | seconds with | without | ratio (lowest to highest) | of a task's CPU |")
    print("| --- | --- | --- | --- | --- |")
    for rows, value_bytes in SIZES:
        spark = pulsar_spark.session(master="local[2]", message_bytes=value_bytes, **settings)
        spark.dataSource.register(WithoutDigests)
        found = pairs(Bench(spark, folder, rows // asked.share, value_bytes), runs)
        spark.stop()
        ratios = sorted(mine / copied for mine, copied in found)
        share = share_of_a_task(folder, value_bytes, runs)
        print(
            f"| {rows // asked.share:,} of {value_bytes:,} bytes "
            f"| {statistics.median(mine for mine, _ in found):.2f} "
            f"| {statistics.median(copied for _, copied in found):.2f} "
            f"| {statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
            f"| {share:.1%} |",
            flush=True,
        )
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
