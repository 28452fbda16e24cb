"""Subscriptions: throughput against a Parquet file stream, acknowledging, standing still.

    python -m benchmarks.subscriptions [--only throughput|acknowledging|topics|idle] [--embedded]

*Throughput*: one query publishes files of messages, a file a micro-batch, while three consumers of
one subscription take them; from its start until the broker has every message acknowledged. The
twin publishes the same files with Spark's Parquet sink, and one query reads what is written with
Spark's file source; until it has all. Both sides have all queries (and ours the broker) in one
session of two cores, are warm, and take turns. Each run of ours leaves a gigabyte on the disk until
the end.

*Acknowledging*: a consumer has taken a million messages in entries of 1,000; then their ids are
acknowledged by hand in random order. *Topics*: `df.write` publishes ten messages to each of 10 and
of 1,000 topics; from before the call until a Shared consumer of the pattern had all, in its
micro-batches. *Idle*: a broker, and a consumer, of `--topics` topics that nobody sends anything to.
With `--embedded` the broker is a thread, or `standalone --embedded`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_spark
from pulsar_spark.broker.protocol.ready import Stepped
from pulsar_spark.connector.runtime.system_topics.hosted_topics import last_shards
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import DISPATCH, SystemTopic
from pulsar_spark.connector.runtime.topics.activity import BUSY_S, KEPT_S
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import TopicName, TopicPartition

SUBSCRIPTION = "s"
PARTITIONS = 4
CONSUMERS = 3
FILES = 8
MESSAGE = "key string, value binary"
"""What is published, and what both sides read."""
KEYS = 100_000
THROWN_AWAY = 10
DEADLINE_S = 300.0
POLL_S = 0.1
WARM_UP_S = 20
ACKNOWLEDGED = 1_000_000
PARTS = 10
TOPICS = (10, 1_000)
MESSAGES_A_TOPIC = 10
WARM_UPS = 2
IDLE_S = 60
REPORTS_KEPT = 10_000
"""Of a query's micro-batches; Spark keeps 100 where nothing else is said."""


class Dispatched:
    """What the broker says of one topic's subscription, heard as it comes."""

    def __init__(self, root: Root, topic: str) -> None:
        self.topic = str(TopicName.parse(topic))
        self._log = SystemTopic(root, DISPATCH)
        self._root = root
        self._ledger = root.open(TopicName.parse(topic))
        self._observed = self._log.refresh()
        self._steps: dict[TopicPartition, Stepped] = {}

    def is_connected(self, consumers: int) -> bool:
        """Whether so many consumers are on each partition."""
        found = subscriptions(self._root, self.topic)
        return len(found) == PARTITIONS and all(len(e.consumers) == consumers for e in found)

    def is_done(self) -> bool:
        """Whether all that the log has is acknowledged."""
        stop = self._log.refresh()
        mine = (self.topic, "")
        for stored in self._log.read(self._observed, stop, keep=lambda a, s: (a.topic, s) == mine):
            item = stored.record.item()
            if isinstance(item, Stepped):
                self._steps[stored.record.topic_partition] = item
        self._observed = stop
        ledger = self._ledger
        ledger.refresh()
        for partition in range(PARTITIONS):
            step = self._steps.get(TopicPartition(self.topic, partition))
            last = ledger.ledgers(partition)[-1].last
            if step is None or step.last_position < last or dict(step.backlogs)[SUBSCRIPTION]:
                return False
        return True


class Bench:
    """One session with one broker, and files of messages."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, value_bytes: int) -> None:
        self.spark, self.rows, self.folder = spark, rows, folder
        self.root = Root(str(folder / "root"), {})
        self._runs = 0
        self._files = [folder / f"{number}.parquet" for number in range(FILES + 1)]
        draw = np.random.default_rng(7)
        counts = [1_000, *[rows // FILES] * FILES]  # the first is for warming up
        for file, count in zip(self._files, counts, strict=True):
            size = pa.scalar(value_bytes, pa.int32())
            data = pa.py_buffer(draw.bytes(count * value_bytes))
            values = pa.Array.from_buffers(pa.binary(size.as_py()), count, [None, data])
            keys = pa.array([f"N{key:05}" for key in draw.integers(0, KEYS, count)])
            pq.write_table(pa.table({"key": keys, "value": values.cast(pa.binary())}), file)

    def consumed(self, kind: str) -> float:
        """Seconds until three consumers of that type have acknowledged all rows."""
        self._runs += 1
        topic, place = f"t-{self._runs}", self.folder / f"run-{self._runs}"
        self.root.open_or_create(TopicName.parse(topic), PARTITIONS)
        observed = Dispatched(self.root, topic)
        queries = [
            self.consumer(place / f"consumer-{number}", topic=topic, subscriptionType=kind)
            for number in range(CONSUMERS)
        ]
        wait_for(lambda: observed.is_connected(CONSUMERS), queries)
        options = {"topic": topic, "serviceUrl": self.root.service_url}
        self._publish(place, self._files[:1], "pulsarlite", options)
        wait_for(observed.is_done, queries)
        begun_s = time.monotonic()
        self._publish(place, self._files[1:], "pulsarlite", options)
        wait_for(observed.is_done, queries)
        took_s = time.monotonic() - begun_s
        taken = sum(map(rows_of, queries))
        stop(queries)
        if taken != self.rows + 1_000:
            sys.exit(f"the consumers had {taken} rows of {self.rows + 1_000}")
        return took_s

    def read_from_parquet(self) -> float:
        """Seconds until one query has read all rows that another writes with Parquet's sink."""
        self._runs += 1
        place = self.folder / f"run-{self._runs}"
        written = str(place / "written")
        self._publish(place, self._files[:1], "parquet", {"path": written})
        stream = self.spark.readStream.schema(MESSAGE).parquet(written)
        query = self._nowhere(stream, place / "consumer")
        wait_for(lambda: rows_of(query) == 1_000, [query])
        begun_s = time.monotonic()
        self._publish(place, self._files[1:], "parquet", {"path": written})
        wait_for(lambda: rows_of(query) == self.rows + 1_000, [query])
        took_s = time.monotonic() - begun_s
        stop([query])
        shutil.rmtree(place)
        return took_s

    def consumer(self, checkpoint: Path, **options: str) -> StreamingQuery:
        """A query that takes what it is granted, and does nothing with it."""
        reader = self.spark.readStream.schema(MESSAGE).format("pulsarlite")
        reader = reader.options(
            subscriptionName=SUBSCRIPTION, subscriptionInitialPosition="Earliest", **options
        )
        return self._nowhere(reader.load(self.root.service_url), checkpoint)

    def _nowhere(self, stream: DataFrame, checkpoint: Path) -> StreamingQuery:
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        return writer.start()

    def _publish(self, place: Path, files: list[Path], sink: str, options: dict[str, str]) -> None:
        """By a streaming query, a file a micro-batch."""
        source = place / "source"
        source.mkdir(parents=True, exist_ok=True)
        for file in files:
            os.link(file, source / file.name)
        stream = self.spark.readStream.schema(MESSAGE)
        writer = stream.option("maxFilesPerTrigger", 1).parquet(str(source)).writeStream
        writer = writer.format(sink).options(**options)
        writer = writer.option("checkpointLocation", str(place / "publisher"))
        writer.trigger(availableNow=True).start().awaitTermination()


def throughput(bench: Bench, runs: int) -> None:
    """Print the table."""
    print(f"\n{bench.rows:,} messages of 100 bytes, {CONSUMERS} consumers, medians of {runs} runs")
    print("| subscription | messages a second | Parquet's | ratio (lowest to highest) |")
    print("| --- | --- | --- | --- |")
    for kind in ("Shared", "Key_Shared"):
        pairs = [
            (bench.consumed(kind), bench.read_from_parquet()) for _ in range(THROWN_AWAY + runs)
        ][THROWN_AWAY:]
        ours = bench.rows / statistics.median(mine for mine, _ in pairs)
        theirs = bench.rows / statistics.median(copied for _, copied in pairs)
        ratios = sorted(copied / mine for mine, copied in pairs)
        print(
            f"| {kind} | {ours:,.0f} | {theirs:,.0f} | {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
            flush=True,
        )


def acknowledging(bench: Bench) -> None:
    """Print time and state size."""
    topic, place = "acknowledged", bench.folder / "acknowledged"
    root = bench.root.service_url
    bench.root.open_or_create(TopicName.parse(topic), PARTITIONS)
    values = bench.spark.range(ACKNOWLEDGED).selectExpr(
        "encode(cast(id as string), 'utf-8') as value"
    )
    values.write.format("pulsarlite").options(topic=topic).mode("append").save(root)
    observed = Dispatched(bench.root, topic)
    query = bench.consumer(
        place / "consumer", topic=topic, subscriptionType="Shared", ackMode="manual"
    )
    wait_for(lambda: rows_of(query) == ACKNOWLEDGED, [query])
    read = bench.spark.read.format("pulsarlite").options(topic=topic).load(root)
    ids = read.select("topic", "partition", "ledger_id", "entry_id", "batch_index").toArrow()
    order = list(range(ACKNOWLEDGED))
    random.Random(7).shuffle(order)
    ids = ids.take(pa.array(order))
    print(f"\n{ACKNOWLEDGED:,} messages in entries of 1,000, acknowledged one by one at random:")
    print("| acknowledged | seconds until the broker has it | state, bytes |")
    print("| --- | --- | --- |")
    part = ACKNOWLEDGED // PARTS
    begun_s = time.monotonic()
    for number in range(PARTS):
        rows = bench.spark.createDataFrame(ids.slice(number * part, part))
        pulsar_spark.acknowledge(rows, SUBSCRIPTION, service_url=root)
        done = part * (number + 1)

        def is_known(left: int = ACKNOWLEDGED - done) -> bool:
            return backlog(bench.root, observed.topic) == left

        wait_for(is_known, [query])
        took_s = time.monotonic() - begun_s
        held = state_bytes(bench.root, observed.topic)
        print(f"| {done:,} | {took_s:.1f} | {held:,} |", flush=True)
    stop([query])


def many_topics(bench: Bench, runs: int) -> None:
    """Print how long messages to each of many topics take."""
    print(f"\n{MESSAGES_A_TOPIC} messages to each topic, medians of {runs} rounds")
    print("| topics | seconds from publishing to consumed (lowest to highest) |")
    print("| --- | --- |")
    for topics in TOPICS:
        for number in range(topics):
            bench.root.open_or_create(TopicName.parse(f"of-{topics}-{number}"), 1)
        query = bench.consumer(
            bench.folder / f"of-{topics}", topicsPattern=f"of-{topics}-.*",
            subscriptionType="Shared",
        )  # fmt: skip
        rows = bench.spark.range(topics * MESSAGES_A_TOPIC).selectExpr(
            f"concat('of-{topics}-', id % {topics}) as topic", "encode('hello', 'utf-8') as value"
        )
        took = [seconds_of_round(bench, query, rows) for _ in range(WARM_UPS + runs)][WARM_UPS:]
        stop([query])
        middle = statistics.median(took)
        print(f"| {topics:,} | {middle:.2f} ({min(took):.2f} to {max(took):.2f}) |", flush=True)


def seconds_of_round(bench: Bench, query: StreamingQuery, rows: DataFrame) -> float:
    """From before the rows are published until the consumer had them."""
    requested = rows_of(query) + rows.count()
    begun_s = time.monotonic()
    rows.write.format("pulsarlite").mode("append").save(bench.root.service_url)
    wait_for(lambda: rows_of(query) >= requested, [query])
    return time.monotonic() - begun_s


def idle(folder: Path, topics: int, host: list[str]) -> None:
    """Print micro-batches and CPU of one minute."""
    place = folder / "idle"
    root = Root(str(place / "root"), {})
    for number in range(topics):
        root.open_or_create(TopicName.parse(f"t{number}"), PARTITIONS if topics == 1 else 1)
    checkpoints = {
        "broker": place / "root" / "_broker" / "checkpoint", "consumer": place / "consumer"
    }  # fmt: skip
    commands = {
        "broker": ["-m", "pulsar_spark", "standalone", "--service-url", root.service_url, *host],
        "consumer": ["-m", "benchmarks.subscriptions", "--consume", str(place)],
    }
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            processes[name] = subprocess.Popen([sys.executable, *command])
        wait_for(lambda: connected_topics(root) == topics, [], poll_s=1.0)
        time.sleep(WARM_UP_S if topics == 1 else KEPT_S + BUSY_S)  # new topics are looked at
        before = {name: last_batch(each) for name, each in checkpoints.items()}
        cpu = {name: cpu_seconds(each.pid) for name, each in processes.items()}
        time.sleep(IDLE_S)
        print(f"\nNobody publishes to {topics:,} topics for {IDLE_S} seconds:")
        print("| | micro-batches | CPU, seconds | of a core |")
        print("| --- | --- | --- | --- |")
        for name, process in processes.items():
            now = cpu_seconds(process.pid)
            used = sum(seconds - cpu[name].get(pid, 0.0) for pid, seconds in now.items())
            batches = last_batch(checkpoints[name]) - before[name]
            print(f"| {name} | {batches} | {used:.2f} | {used / IDLE_S:.1%} |", flush=True)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait()


def consume(place: Path) -> None:
    """A consumer's own process, for `idle`."""
    spark = pulsar_spark.session(master="local[2]")
    reader = spark.readStream.format("pulsarlite").option("subscriptionName", SUBSCRIPTION)
    stream = reader.option("topicsPattern", "t.*").load(str(place / "root"))
    writer = stream.writeStream.format("noop")
    writer.option("checkpointLocation", str(place / "consumer")).start().awaitTermination()


def connected_topics(root: Root) -> int:
    """How many topics have a consumer."""
    found = subscriptions(root)
    return len({each.topic_partition.topic for each in found if each.consumers})


def rows_of(query: StreamingQuery) -> int:
    """How many rows it has had in all: of so many micro-batches its session keeps the reports."""
    progress: list[Any] = [json.loads(each.json) for each in query.recentProgress]
    assert len(progress) < REPORTS_KEPT
    return sum(each["numInputRows"] for each in progress)


def backlog(root: Root, topic: str) -> int:
    return sum(each.backlog for each in subscriptions(root, topic))


def state_bytes(root: Root, topic: str) -> int:
    """Of all partitions, as the state store and `__dispatch` hold it."""
    dispatch = SystemTopic(root, DISPATCH)
    held = last_shards(dispatch, dispatch.refresh())[1]
    return sum(
        len(data)
        for topic_partition, shards in held.items()
        if topic_partition.topic == topic
        for data in shards.values()
    )


def last_batch(checkpoint: Path) -> int:
    names = [path.name for path in (checkpoint / "commits").glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def cpu_seconds(pid: int) -> dict[int, float]:
    """User and system time so far of a process and of all below it, by process.

    Of one that ends nothing is left to read: Spark ends Python processes that stood still a minute.
    """
    found: dict[int, float] = {}
    pids = [pid]
    while pids:
        here = pids.pop()
        try:
            fields = Path(f"/proc/{here}/stat").read_text().rpartition(")")[2].split()
            for task in Path(f"/proc/{here}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[here] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def stop(queries: list[StreamingQuery]) -> None:
    for query in queries:
        query.stop()


def wait_for(
    condition: Callable[[], object], queries: Sequence[StreamingQuery], poll_s: float = POLL_S
) -> None:
    """Until the condition holds; the error of a query that ended, or TimeoutError."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        for query in queries:
            if not query.isActive:
                sys.exit(f"a query ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise TimeoutError("the queries do not get there")
        time.sleep(poll_s)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--runs", type=int, default=5)
    names = ("throughput", "acknowledging", "topics", "idle")
    parser.add_argument("--only", choices=names, action="append")
    parser.add_argument("--topics", type=int, default=1, help="that stand idle")
    parser.add_argument("--embedded", action="store_true", help="a broker without Spark")
    parser.add_argument("--consume", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.consume is not None:
        consume(asked.consume)
        return
    chosen = asked.only or names
    folder = Path(tempfile.mkdtemp(prefix="pulsarlite-benchmark-"))
    if set(chosen) - {"idle"}:
        settings: dict[str, Any] = {
            "spark.driver.memory": "4g",
            "spark.python.unix.domain.socket.enabled": True,
            "spark.sql.streaming.numRecentProgressUpdates": REPORTS_KEPT,
        }
        spark = pulsar_spark.session(master="local[2]", message_bytes=100, **settings)
        bench = Bench(spark, folder, asked.rows, 100)
        with pulsar_spark.standalone(spark, bench.root.service_url, embedded=asked.embedded):
            if "throughput" in chosen:
                throughput(bench, asked.runs)
            if "acknowledging" in chosen:
                acknowledging(bench)
            if "topics" in chosen:
                many_topics(bench, asked.runs)
        spark.stop()
    if "idle" in chosen:
        idle(folder, asked.topics, ["--embedded"] if asked.embedded else [])
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
