"""The broker of one root, as a Spark streaming query: the one place where connector and state meet.

Invariants: one broker a root (a second one is refused while the first lives, and one that was
replaced is fenced by its term); it can be killed anywhere and started again; a lost checkpoint
is rebuilt from `__dispatch`; what Spark lacks is said before anything is started. Stands for
Pulsar's `PulsarStandalone`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pulsar_spark.broker.hosting.broker_rows import OUTPUT_DDL, OutputRow
from pulsar_spark.connector.runtime.broker.broker_heartbeat import BrokerHeartbeat
from pulsar_spark.connector.runtime.broker.broker_input import INPUT_SCHEMA
from pulsar_spark.connector.runtime.broker.broker_sink import (
    SteppedTask,
    claim_term,
    commit_batch,
    write_rows,
)
from pulsar_spark.connector.runtime.broker.broker_source import BrokerSource
from pulsar_spark.connector.runtime.broker.broker_thread import BrokerThread
from pulsar_spark.connector.runtime.broker.embedded_broker import CHECKPOINT
from pulsar_spark.connector.runtime.housekeeping.housekeeper import Housekeeper
from pulsar_spark.connector.runtime.system_topics.broker_offset import BrokerOffset
from pulsar_spark.connector.runtime.system_topics.hosted_topics import FollowedTopics
from pulsar_spark.connector.runtime.system_topics.system_topics import DISPATCH, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.process.worker_process import (
    leave_if_hung_up,
    spare_the_garbage_collector,
)
from pulsar_spark.connector.spark.stream_writer import QUERY_ID_PROPERTY
from pulsar_spark.connector.storage.folder_watch import FolderWatch
from pulsar_spark.errors import (
    BrokerFencedError,
    CorruptFileError,
    FutureVersionError,
    InvalidOptionError,
    PulsarliteError,
    SparkNotReadyError,
    StaleCheckpointError,
)
from pulsar_spark.model.described import Described
from pulsar_spark.options.options import Options
from pulsar_spark.state.broker_processor import BrokerProcessor
from pulsar_spark.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "pulsarlite_broker"
LONGEST_WAIT_S: Final = 5.0
"""Seconds for which `latestOffset` waits for activity; stopping the query ends the wait."""
LONGEST_LAST_BATCH_S: Final = 15.0
"""Seconds for which `stop` waits for the running micro-batch."""
CHECK_S: Final = 0.25
"""Seconds between two checks of a broker whether its query runs."""
FIRST_RESTART_S: Final = 1.0
"""Seconds between a failure and the query's restart; each pause is twice as long as the last."""
LONGEST_RESTART_S: Final = 60.0
"""The longest pause in seconds before a restart."""
STEADY_S: Final = 300.0
"""Seconds of running after which the next pause is the first again."""
LASTING: Final = (
    BrokerFencedError, StaleCheckpointError, CorruptFileError, FutureVersionError,
    InvalidOptionError,
)  # fmt: skip
"""Errors that end a broker: they can't pass by themselves."""
NOT_INSTALLED: Final = "No module named 'pulsar_spark'"
"""Python's message when Spark plans a stream in a process to which nothing was shipped."""
SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
EMPTY_CHECKPOINT: Final = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
"""True if a query that was killed while it wrote its first offset may never begin again."""

_setting = threading.Lock()
_log = logging.getLogger(__name__)


class BrokerDataSource(DataSource):
    """`format("pulsarlite_broker")`: not for users; `standalone` makes the query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        self._term = int(given.pop("term"))
        self._root = Root.of(Options.parse(given))
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(INPUT_SCHEMA)

    def streamReader(self, schema: StructType) -> BrokerStreamReader:  # noqa: ARG002, N802
        return BrokerStreamReader(self._root)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BrokerStreamWriter:  # noqa: ARG002, N802
        spare_the_garbage_collector()
        return BrokerStreamWriter(self._root, self._term)


class BrokerStreamReader(DataSourceStreamReader):
    """Spark's shell around `BrokerSource`."""

    def __init__(self, root: Root) -> None:
        self._source, self._clock = BrokerSource(root), root.clock
        self._store = root.store
        self._poll_s = 0.0
        """When to look again, if there is no news before."""

    @cached_property
    def _watch(self) -> FolderWatch:
        """The watch of the planning process: it doesn't pickle."""
        return FolderWatch(self._store)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return BrokerOffset().to_json_value()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The end of the next batch; `start` itself while there is nothing to do."""
        begun = BrokerOffset.from_json_value(start)
        clock = self._clock
        deadline = clock.monotonic_s() + LONGEST_WAIT_S
        while True:
            if clock.monotonic_s() >= self._poll_s:  # a pause may be longer than a call
                if (end := self._source.look(begun)) is not None:
                    return end.to_json_value()
                self._poll_s = clock.monotonic_s() + self._source.pause_s()
            left = deadline - clock.monotonic_s()
            if left <= 0:
                return start
            self._wait(min(max(self._poll_s - clock.monotonic_s(), 0.0), left))

    def _wait(self, seconds: float) -> None:
        """Wait so long; on a local disk news ends it."""
        if self._store.remote:
            self._clock.sleep(seconds)
            return
        self._clock.pause(self._source.quiet_s, seconds, remote=False, wait=self._await_activity)
        if any(each.has_activity() for each in self._source.watched):
            self._poll_s = 0.0

    def _await_activity(self, seconds: float) -> None:
        self._watch.rest(self._source.watched, seconds)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002 - Spark's signature
        return [InputPartition(self._source.input_of(BrokerOffset.from_json_value(end)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from partition.value.batches()

    def stop(self) -> None:
        """End the process if Spark has hung up on it: the reader holds nothing."""
        leave_if_hung_up()


@dataclass
class _Stepped(WriterCommitMessage):
    """The output of one task, as Spark hands it to the driver."""

    task: SteppedTask


class BrokerStreamWriter(DataSourceStreamArrowWriter):
    """Spark's shell around the broker's sink."""

    def __init__(self, root: Root, term: int) -> None:
        self._root, self._term = root, term

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Stepped:
        rows = [OutputRow(*each.values()) for batch in iterator for each in batch.to_pylist()]
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context else None
        return _Stepped(write_rows(self._root, rows, query_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        tasks = [each.task for each in messages if isinstance(each, _Stepped)]
        query_id = next((each.query_id for each in tasks if each.query_id), None)
        if query_id is not None:
            commit_batch(self._root, tasks, (query_id, batchId), self._term)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the files to the clean-up of orphans: the commit may have taken effect."""


class Broker(AbstractContextManager["Broker"], Described):
    """A running broker. Also a context manager, which stops it at its end.

    A failed query is started again, each time later, unless its error can't pass. With `discard`,
    which deletes a checkpoint that turns out to be an old one, it begins from `__dispatch` then.
    Without Spark a thread has the query's place.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        root: Root,
        term: int,
        heartbeat: BrokerHeartbeat,
        begin: Callable[[], StreamingQuery | BrokerThread],
        *,
        discard: Callable[[], None] | None = None,
        check_s: float = CHECK_S,
        first_restart_s: float = FIRST_RESTART_S,
    ) -> None:
        self.root, self.term = root, term
        self._spark, self._heartbeat, self._begin = spark, heartbeat, begin
        self._discard = discard
        self._housekeeper = Housekeeper(root)
        self._check_s, self._first_restart_s = check_s, first_restart_s
        self.query = begin()
        """The running query, or the last one."""
        self.restarts = 0
        """The number of restarts of a failed query."""
        self.restart_error: str | None = None
        """The error of the last query that failed."""
        self._error: Exception | None = None
        self._progress: Mapping[str, Any] | None = None
        self._hosted = FollowedTopics(root)
        self._looking = threading.Lock()
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._beginning = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="broker", daemon=True)
        self._thread.start()
        self._housekeeper.begin()

    def stop(self) -> None:
        """End the query. Consumers keep their open grants; their reports wait for the next broker.

        A micro-batch that runs is cut off only if it is long: Spark prints much about it.
        """
        self._stopped.set()
        clock = self.root.clock
        deadline_s = clock.monotonic_s() + LONGEST_LAST_BATCH_S
        try:
            with self._beginning:
                while self.query.isActive and clock.monotonic_s() < deadline_s:
                    if not self.query.status["message"].startswith("Processing"):
                        break
                    clock.sleep(0.05)
                self.query.stop()
        finally:
            self._thread.join()
            self._housekeeper.end()
            self._heartbeat.remove()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the broker ends, at most `timeout_s`; whether it has. Raises what ended it."""
        if not self._ended.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def status(self) -> dict[str, Any]:
        """True if it serves, its term, its micro-batches, its topics, and what went wrong.

        `error` is what ended it, `restart_error` what the last restart is due to; `quarantine`
        gives the reason for each topic partition that it can't serve for now.
        """
        progress = self._progress = self.query.lastProgress or self._progress
        with self._looking:
            self._hosted.follow()
            now_ms, topics = self._hosted.batch.now_ms, sorted(self._hosted.topics)
            quarantined = sorted(self._hosted.quarantined.items())
        batch_id = progress["batchId"] if progress else -1
        if progress and not progress["numInputRows"]:
            batch_id -= 1  # of an idle query Spark reports under the next one's number
        return {
            "is_active": not self._ended.is_set(),
            "service_url": self.root.service_url,
            "term": self.term,
            "batch_id": batch_id,
            "now_ms": now_ms,
            "topics": topics,
            "quarantined": {
                str(topic_partition): each.error for topic_partition, each in quarantined
            },
            "restarts": self.restarts,
            "restart_error": self.restart_error,
            "error": None if self._error is None else str(self._error),
        }

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _facts(self) -> dict[str, object]:
        status = self.status()
        names = ("service_url", "is_active", "term", "batch_id", "topics", "restarts", "error")
        return {name: status[name] for name in names}

    def _serve(self) -> None:
        try:
            self._error = self._await_end()
        except Exception as error:  # noqa: BLE001 - whoever waits for the end raises it
            self._error = error
        finally:
            if not self._stopped.is_set():
                self._heartbeat.remove()
                self._housekeeper.end()
            self._ended.set()

    def _await_end(self) -> Exception | None:
        """The error that ended the broker; None if it was stopped. Others restart the query."""
        clock = self.root.clock
        failures, begun_s = 0, clock.monotonic_s()
        while not self._stopped.wait(self._check_s):
            if self.query.isActive:
                continue
            error: Exception | None = self.query.exception()
            if error is None:
                return None
            if clock.monotonic_s() - begun_s > STEADY_S:
                failures = 0
            while error is not None:
                if self._discard is not None and _names(error, StaleCheckpointError):
                    self._discard()
                    self._discard = None
                    error = self._begin_again()
                    continue
                if NOT_INSTALLED in str(error):
                    return _lacks_the_package()
                if not self._may_pass(error):
                    return error
                wait_s = min(self._first_restart_s * 2 ** min(failures, 10), LONGEST_RESTART_S)
                failures += 1
                self.restart_error = str(error)
                _log.error("The broker's query failed, and begins again in %g s: %s", wait_s, error)
                if self._stopped.wait(wait_s):
                    return None
                error = self._begin_again()
            begun_s = clock.monotonic_s()
        return None

    def _begin_again(self) -> Exception | None:
        """The error that prevents a restart; None if the query runs, or is to stop."""
        with self._beginning:
            if self._stopped.is_set():
                return None
            try:
                self.query = self._begin()
            except Exception as error:  # noqa: BLE001 - tried again, unless it can't pass
                return error
            self.restarts += 1
            return None

    def _may_pass(self, error: Exception) -> bool:
        """Not if the application is over, which of a session without a context the server says."""
        if any(_names(error, each) for each in LASTING):
            return False
        context = getattr(self._spark, "_sc", None)
        gateway = getattr(context, "_jsc", None)
        return context is None or (gateway is not None and not gateway.sc().isStopped())


def _names(error: Exception, kind: type[PulsarliteError]) -> bool:
    """True if it is such an error, perhaps told by Spark."""
    return f"[{kind.condition}]" in str(error)


def _lacks_the_package() -> SparkNotReadyError:
    return SparkNotReadyError(
        "The Python in which Spark's driver plans streams has no Pulsarlite. Call "
        "pulsar_spark.ship(spark) first. Spark Connect ships nothing there: install it where its "
        "server runs, in the Python that PYSPARK_PYTHON names there, of this version: "
        f"{__version__}."
    )


def standalone(
    spark: SparkSession | None,
    service_url: str | None = None,
    *,
    storage: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
    state_partitions: int = 1,
    embedded: bool = False,
    standby: bool | Callable[[], bool] = False,
    is_over: Callable[[], bool] = lambda: False,
) -> Broker:
    """Start the broker of the topics below `service_url`, in this Spark application.

    `embedded` makes it a thread of this process, which needs no Spark (None will do): each message
    comes sooner, and the machine has less to do, but it is one core's work at most.
    `checkpoint` is a folder that Spark can write (on a cluster a Hadoop file system); by default
    one below a local root, else one in the home folder. `storage` are options of the object store.
    BrokerBusyError if a broker serves that root and lives, unless this one is on
    `standby`: then it waits until that one is gone, or has not shown life for ten seconds; where
    that is a function, as long as it says so. A wait for another that may be gone ends soon after
    it `is_over`, with BrokerBusyError. Who was on standby deletes a local checkpoint of its
    own from which others did not go on, once it serves. SparkNotReadyError if Spark lacks
    something, with what to set.
    """
    root = Root.at(service_url, storage)
    if state_partitions < 1:
        raise InvalidOptionError(f"state_partitions is {state_partitions}: it has to be 1 or more.")
    folder = ""
    if embedded and (checkpoint is not None or state_partitions > 1):
        raise InvalidOptionError(
            "A broker that is embedded has its checkpoint below the root, and no tasks of Spark's: "
            "leave checkpoint and state_partitions out."
        )
    if not embedded:
        if spark is None:
            raise InvalidOptionError(
                "Where does the broker run? Give a session, as in standalone(spark, url), or "
                "embedded=True: standalone(None, url, embedded=True) needs no Spark."
            )
        folder = checkpoint or default_checkpoint(root, spark)
        check_spark(spark, folder)
    heartbeat = BrokerHeartbeat(root)
    heartbeat.begin(standby if callable(standby) else lambda: standby, is_over)
    heartbeat.keep()
    try:
        term = claim_term(root)
        if spark is None or embedded:
            discard = partial(_discard, root, term, CHECKPOINT)
            return Broker(
                spark, root, term, heartbeat, partial(BrokerThread, root, term), discard=discard
            )
        begin = partial(_start, spark, root, term, folder, state_partitions)
        if not standby or "://" in folder:
            return Broker(spark, root, term, heartbeat, begin)
        discard = partial(_discard, root, term, folder)
        return Broker(spark, root, term, heartbeat, begin, discard=discard)
    except BaseException:
        heartbeat.remove()
        raise


def check_spark(spark: SparkSession, checkpoint: str) -> None:
    """SparkNotReadyError if Spark can't run a broker, with what to install or set."""
    if importlib.util.find_spec("google.protobuf") is None:
        raise SparkNotReadyError(
            "Spark's transformWithState needs the package protobuf, and it is not installed: "
            "pip install protobuf"
        )
    if runs_here(spark):
        context = spark.sparkContext
        workers = shutil.which(context.pythonExec) or context.pythonExec
        mine = {sys.executable, os.path.realpath(sys.executable)}
        if mine.isdisjoint({workers, os.path.realpath(workers)}):
            raise SparkNotReadyError(
                f"Spark's workers would run {workers}, and this program runs {sys.executable}: "
                f"set PYSPARK_PYTHON={sys.executable} before the session is made, or make it with "
                "pulsar_spark.session()."
            )
    if "://" not in checkpoint and getattr(spark, "_sc", None) is not None:
        try:
            Path(checkpoint).mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=checkpoint):
                pass
        except OSError as error:
            raise SparkNotReadyError(
                f"The broker's checkpoint folder {checkpoint} can't be written ({error}): give "
                "another, as in standalone(spark, url, checkpoint=...)."
            ) from error


def runs_here(spark: SparkSession) -> bool:
    """True if driver and workers are processes of this machine; a remote session's may be not."""
    if getattr(spark, "_sc", None) is None:
        return False
    return str(spark.conf.get("spark.master", "local")).startswith("local")


def default_checkpoint(root: Root, spark: SparkSession) -> str:
    """Below a local root, else in the home folder; SparkNotReadyError if others must reach it."""
    if not root.store.remote:
        return str(Path(root.store.root) / "_broker" / "checkpoint")
    if not runs_here(spark):
        raise SparkNotReadyError(
            "Where do all machines of this cluster reach the broker's checkpoint? Say "
            "standalone(spark, url, checkpoint='s3a://bucket/folder') or, on the command line, "
            "--checkpoint: a folder of a file system that Spark can write from each of them."
        )
    name = hashlib.sha256(root.service_url.encode()).hexdigest()[:16]
    return str(Path.home() / ".pulsarlite" / "broker" / name)


def _discard(root: Root, term: int, checkpoint: str) -> None:
    """Delete a checkpoint from which others did not go on. BrokerFencedError if one serves.

    It is a folder of Spark's, or below the root CHECKPOINT. Whoever has the term may: another that
    begins with it first takes the term.
    """
    log = SystemTopic(root, DISPATCH).open()
    log.refresh()
    if log.state.term != term:
        raise BrokerFencedError(
            f"Another broker has taken over {root.service_url}: this one stops, and leaves the "
            f"checkpoint {checkpoint} as it is."
        )
    _log.warning(
        "Another has served since from another checkpoint: %s is deleted, and made anew from what "
        "the last broker said.", checkpoint,
    )  # fmt: skip
    if checkpoint == CHECKPOINT:
        root.store.delete(checkpoint)
    else:
        shutil.rmtree(checkpoint)


def _start(
    spark: SparkSession, root: Root, term: int, checkpoint: str, state_partitions: int
) -> StreamingQuery:
    spark.dataSource.register(BrokerDataSource)
    spark.createDataFrame([], "nothing int")  # makes it this thread's session, which `start` asks
    options = {**root.options, "term": str(term)}
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(state_partitions)}
    spark.conf.set(EMPTY_CHECKPOINT, "false")  # stays: the query asks its session when it runs
    processor = BrokerProcessor(spare_the_garbage_collector)
    with _settings(spark, settings):
        stepped = (
            spark.readStream.format(FORMAT)
            .options(**options)
            .load()
            .groupBy("topic", "partition")
            .transformWithState(processor, OUTPUT_DDL, "append", "none")
        )
        return (
            stepped.writeStream.format(FORMAT)
            .options(**options)
            .option("checkpointLocation", checkpoint)
            .queryName(f"pulsarlite broker of {root.service_url}")
            .start()
        )


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    with _setting:
        before = {name: spark.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, held in before.items():
                if held is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, held)
