"""Latency of a message from its publisher's task to `foreachBatch`, and what it is made of.

    python -m benchmarks.latency [--rate 1000] [--seconds 60] [--runs 5] [--embedded]

Spark's rate source publishes so many messages a second; from the instant at which the publisher's
task makes a message until its Shared consumer has it in `foreachBatch`, as Arrow. The twin is two
queries that meet in Parquet files. Publisher, broker and consumer share one session of two cores;
both sides take turns. With `--embedded` the broker is a thread of the driver.

*What it is made of*: when each commit and each file of a checkpoint appeared, as the disk has it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

import pulsar_spark
from benchmarks.subscriptions import wait_for
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import DISPATCH, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import TopicName

MESSAGE = "key string, value binary"
PARTITIONS = 4
WARM_UP_S = 20
POLL_EVERY_S = 2.0
PARTS = (
    "made, to published: its file, Spark's task, the sink's commit",
    "to planned by the broker: the batch under way, its look, the offset's file",
    "to granted: the broker's batch up to its commit",
    "to planned by the consumer: the batch under way, its look and report, the offset's file",
    "to `foreachBatch`: the tasks planned, Python called",
    "to the rows: a task of Python's",
)
Numbers = np.ndarray[Any, Any]


@dataclass
class Taken:
    """What `foreachBatch` was given: when each message was made, the call, and the rows."""

    made_ms: Numbers
    called_ms: float
    had_ms: float


@dataclass
class Appeared:
    """When the files of some folders appeared, looked at before they are cleaned up."""

    folders: dict[str, Path]
    seen: dict[str, dict[str, float]] = field(default_factory=dict)

    def look(self) -> None:
        for name, folder in self.folders.items():
            known = self.seen.setdefault(name, {})
            for path in folder.iterdir() if folder.exists() else ():
                if path.name not in known and path.name.partition(".")[0].isdecimal():
                    known[path.name] = path.stat().st_ctime_ns / 1e6

    def times_ms(self, name: str) -> Numbers:
        return np.sort(np.array([*self.seen[name].values()]))


class Bench:
    """One session with one root."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.root = Root(str(folder / "root"), {})

    def ours(self, run: int, rate: int, seconds: int) -> tuple[Numbers, Numbers]:
        """(how long each message took, the parts of it for each publication), in ms."""
        topic, place = f"latency-{run}", self.folder / f"latency-{run}"
        name = TopicName.parse(topic)
        ledger = self.root.open_or_create(name, PARTITIONS)
        reader = self.spark.readStream.schema(MESSAGE).format("pulsarlite").options(
            topic=topic, subscriptionName="s", subscriptionType="Shared",
        )  # fmt: skip

        def is_ready() -> bool:
            found = subscriptions(self.root, str(name))
            return len(found) == PARTITIONS and all(each.consumers for each in found)

        root = Path(self.root.service_url)
        appeared = Appeared({
            "published": root / ledger.log_folder,
            "planned": root / "_broker/checkpoint/offsets",
            "granted": root / SystemTopic(self.root, DISPATCH).open().log_folder,
            "offset": place / "consumer/offsets",
        })  # fmt: skip
        options = {"topic": topic, "serviceUrl": self.root.service_url}
        stream = reader.load(self.root.service_url)
        taken, progress = self._run(
            stream, "pulsarlite", options, place, is_ready, rate, seconds, appeared
        )
        print_durations(run, progress)
        return waits_ms(taken), parts_ms(taken, appeared)

    def copied(self, run: int, rate: int, seconds: int) -> Numbers:
        """The same where a query writes Parquet and another reads what it wrote."""
        place = self.folder / f"latency-parquet-{run}"
        written = place / "written"
        written.mkdir(parents=True)
        stream = self.spark.readStream.schema(MESSAGE).parquet(str(written))
        options = {"path": str(written)}
        taken, progress = self._run(
            stream, "parquet", options, place, lambda: True, rate, seconds, Appeared({})
        )
        print_durations(run, progress)
        return waits_ms(taken)

    def _run(
        self,
        stream: DataFrame,
        sink: str,
        options: dict[str, str],
        place: Path,
        is_ready: Callable[[], bool],
        rate: int,
        seconds: int,
        appeared: Appeared,
    ) -> tuple[list[Taken], dict[str, list[Any]]]:
        """A message's value is the time at which its publisher's task made it: Java's, in ms."""
        taken: list[Taken] = []

        def keep(batch: DataFrame, _number: int) -> None:
            called_ms = time.time_ns() / 1e6
            made = batch.selectExpr("cast(cast(value as string) as bigint) as ms").toArrow()["ms"]
            taken.append(Taken(made.to_numpy(), called_ms, time.time_ns() / 1e6))

        writer = stream.writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(place / "consumer")).start()
        wait_for(is_ready, [query])
        made = "encode(java_method('java.lang.System', 'currentTimeMillis'), 'utf-8') as value"
        source = self.spark.readStream.format("rate").option("rowsPerSecond", rate).load()
        rows = source.selectExpr("cast(value as string) as key", made)
        sender = rows.writeStream.format(sink).options(**options)
        publisher = sender.option("checkpointLocation", str(place / "publisher")).start()
        time.sleep(WARM_UP_S)
        taken.clear()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(POLL_EVERY_S)
            appeared.look()
        measured = [each for each in taken if len(each.made_ms)]
        progress = {
            each.name or ("publisher" if each.id == publisher.id else "consumer"): [
                json.loads(one.json) for one in each.recentProgress
            ]
            for each in self.spark.streams.active
        }
        for each in (publisher, query):
            each.stop()
        return measured, progress


def waits_ms(taken: Sequence[Taken]) -> Numbers:
    return np.concatenate([each.had_ms - each.made_ms for each in taken])


def parts_ms(taken: Sequence[Taken], appeared: Appeared) -> Numbers:
    """A row for each publication, a column for each part. A thread's broker keeps no offsets."""
    published, planned, granted, offsets = map(
        appeared.times_ms, ("published", "planned", "granted", "offset")
    )
    rows = []
    for each in taken:
        made = each.made_ms.max()
        try:
            at = published[np.searchsorted(published, made)]
            by_broker = planned[np.searchsorted(planned, at)] if len(planned) else at
            said = granted[np.searchsorted(granted, by_broker)]
        except IndexError:  # the last
            continue
        by_consumer = offsets[np.searchsorted(offsets, each.called_ms) - 1]
        rows.append(np.diff([made, at, by_broker, said, by_consumer, each.called_ms, each.had_ms]))
    return np.array(rows)


def print_durations(run: int, progress: dict[str, list[Any]]) -> None:
    """Medians of what Spark says of each query's micro-batches."""
    for name, reported in progress.items():
        batches = [each["durationMs"] for each in reported if each["numInputRows"]]
        names = sorted({part for each in batches for part in each})
        print(f"run {run}, {name.partition(' of ')[0]}, {len(batches)} batches: ", end="")
        print(", ".join(
            f"{part} {statistics.median(each.get(part, 0) for each in batches):.0f}"
            for part in names
        ), flush=True)  # fmt: skip


def print_parts(parts: Numbers) -> None:
    print("\n| part | p50, ms | p90, ms | p99, ms |")
    print("| --- | --- | --- | --- |")
    for name, column in zip(PARTS, parts.T, strict=True):
        p50, p90, p99 = np.percentile(column, [50, 90, 99])
        print(f"| {name} | {p50:.0f} | {p90:.0f} | {p99:.0f} |", flush=True)


def print_latency(ours: Sequence[Numbers], theirs: Sequence[Numbers]) -> None:
    print("\n| | p50, ms | p99, ms | p99 to p50 | at most, ms |")
    print("| --- | --- | --- | --- | --- |")
    mine, copied = (
        np.array([[*np.percentile(each, [50, 99]), each.max()] for each in side])
        for side in (ours, theirs)
    )
    for name, side in (("broker and Shared consumer", mine), ("two hops of Spark's", copied)):
        tail = spread(side[:, 1] / side[:, 0], "{:.1f}")
        print(f"| {name} | {spread(side[:, 0])} | {spread(side[:, 1])} | {tail} | ", end="")
        print(f"{spread(side[:, 2])} |")
    ratios = mine / copied
    print(f"| ratio | {spread(ratios[:, 0], '{:.2f}')} | {spread(ratios[:, 1], '{:.2f}')} | | |")


def spread(values: Numbers, form: str = "{:.0f}") -> str:
    """The median, and the lowest to the highest."""
    return "{} ({} to {})".format(*(form.format(f(values)) for f in (np.median, np.min, np.max)))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=60, help="of each run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--embedded", action="store_true", help="the broker is a thread")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pulsarlite-benchmark-"))
    settings: dict[str, Any] = {"spark.python.unix.domain.socket.enabled": True}
    spark = pulsar_spark.session(master="local[2]", message_bytes=100, **settings)
    bench = Bench(spark, folder)
    with pulsar_spark.standalone(spark, bench.root.service_url, embedded=asked.embedded):
        ours, theirs, parts = [], [], []
        for run in range(asked.runs):
            waits, made_of = bench.ours(run, asked.rate, asked.seconds)
            ours.append(waits)
            parts.append(made_of)
            theirs.append(bench.copied(run, asked.rate, asked.seconds))
    print(f"\n{asked.rate:,} messages a second for {asked.seconds} s, medians of {asked.runs} runs")
    print_latency(ours, theirs)
    print_parts(np.concatenate(parts))
    spark.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
