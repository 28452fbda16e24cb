"""The broker of one root, as a Spark streaming query: the one place where connector and state meet.

Invariants: one broker a root (a second one is refused while the first lives, and one that was
taken over is fenced by its term); it can be killed anywhere and started again; a lost checkpoint
is rebuilt from `__dispatch`; what Spark lacks is said before anything is started. Stands for
Pulsar's `PulsarStandalone`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import socket
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pulsar_spark.broker_rows import INPUT_DDL, OUTPUT_DDL
from pulsar_spark.connector.broker_sink import BrokerStreamWriter, claim_term
from pulsar_spark.connector.broker_source import BrokerStreamReader
from pulsar_spark.connector.object_store import ObjectStore
from pulsar_spark.connector.topics import Root, options_of
from pulsar_spark.connector.worker_process import spare_the_garbage_collector
from pulsar_spark.errors import (
    BrokerBusyError,
    InvalidOptionError,
    PulsarliteError,
    SparkNotReadyError,
)
from pulsar_spark.options import Options
from pulsar_spark.state.broker_processor import BrokerProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "pulsarlite_broker"
SIGN_OF_LIFE: Final = "_broker/alive.json"
LONGEST_LAST_BATCH_S: Final = 15.0
"""How long `stop` waits for the micro-batch that runs, ..."""
LOOK_S: Final = 0.05
"""... and how often it looks."""
SIGN_EVERY_S: Final = 2.0
DEAD_AFTER_MS: Final = 10_000
"""A broker on another machine that has not signed for so long may be taken over."""
SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}

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

    def schema(self) -> str:
        return INPUT_DDL

    def streamReader(self, schema: StructType) -> BrokerStreamReader:  # noqa: ARG002, N802
        return BrokerStreamReader(self._root)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BrokerStreamWriter:  # noqa: ARG002, N802
        spare_the_garbage_collector()
        return BrokerStreamWriter(self._root, self._term)


class Broker:
    """A running broker. Also a context manager, which stops it at its end."""

    def __init__(self, query: StreamingQuery, root: Root, term: int, alive: _SignOfLife) -> None:
        self.query, self.root, self.term = query, root, term
        self._alive = alive

    def stop(self) -> None:
        """End it; consumers keep their open grants, and what they report waits for the next.

        A micro-batch that runs is not cut off, of which Spark would print much, unless it is long.
        """
        deadline_s = self.root.clock.monotonic_s() + LONGEST_LAST_BATCH_S
        try:
            while self._is_processing() and self.root.clock.monotonic_s() < deadline_s:
                self.root.clock.sleep(LOOK_S)
            self.query.stop()
        finally:
            self._alive.stop()

    def _is_processing(self) -> bool:
        return self.query.isActive and self.query.status["message"].startswith("Processing")

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until it ends, at most so long; whether it has. Raises what ended it."""
        if timeout_s is None:
            self.query.awaitTermination()
            return True
        return bool(self.query.awaitTermination(timeout_s))  # type: ignore[arg-type]

    def status(self) -> dict[str, Any]:
        """Whether it runs, its term, its micro-batches, its topics, and what ended it if it has."""
        progress = self.query.lastProgress
        sources = progress["sources"] if progress else []
        offset = sources[0]["endOffset"] if sources else None
        held = json.loads(offset) if isinstance(offset, str) else offset or {}
        error = self.query.exception()
        return {
            "is_active": self.query.isActive,
            "service_url": self.root.service_url,
            "term": self.term,
            "batch_id": _last_batch(progress),
            "now_ms": held.get("now_ms", 0),
            "topics": sorted(held.get("topics", {})),
            "error": None if error is None else str(error),
        }

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _last_batch(progress: Mapping[str, Any] | None) -> int:
    """The number of the last micro-batch; Spark reports of an idle query under the next one's."""
    if progress is None:
        return -1
    number: int = progress["batchId"]
    return number if progress["numInputRows"] else number - 1


def standalone(
    spark: SparkSession,
    service_url: str | None = None,
    *,
    checkpoint: str | None = None,
    state_partitions: int = 1,
    **options: object,
) -> Broker:
    """Start the broker of the topics below `service_url`, in this Spark application.

    `checkpoint` is a folder that Spark can write (on a cluster a Hadoop file system); by default
    one below a local root, else one in the home folder. `options` are `storage.*` options of an
    object store. BrokerBusyError if a broker serves that root and lives; SparkNotReadyError if
    Spark lacks something, with what to set.
    """
    given = {name: str(value) for name, value in options.items()}
    if service_url is not None:
        given["serviceUrl"] = str(service_url)
    root = Root.of(options_of(given))
    if state_partitions < 1:
        raise InvalidOptionError(f"state_partitions is {state_partitions}: it has to be 1 or more.")
    folder = checkpoint or default_checkpoint(root)
    check_spark(spark, folder)
    alive = _SignOfLife(root.store, root.service_url)
    alive.start()
    try:
        term = claim_term(root)
        query = _start(spark, root, term, folder, state_partitions)
    except BaseException:
        alive.stop()
        raise
    alive.follow(query)
    return Broker(query, root, term, alive)


def check_spark(spark: SparkSession, checkpoint: str) -> None:
    """SparkNotReadyError if Spark can't run a broker, with what to install or set."""
    if importlib.util.find_spec("google.protobuf") is None:
        raise SparkNotReadyError(
            "Spark's transformWithState needs the package protobuf, and it is not installed: "
            "pip install protobuf"
        )
    context = getattr(spark, "_sc", None)
    if context is not None and str(context.master).startswith("local"):
        workers = shutil.which(context.pythonExec) or context.pythonExec
        if not _same_python(workers):
            raise SparkNotReadyError(
                f"Spark's workers would run {workers}, and this program runs {sys.executable}: "
                f"set PYSPARK_PYTHON={sys.executable} before the session is made, or make it with "
                "pulsar_spark.session()."
            )
    if "://" not in checkpoint:
        path = Path(checkpoint)
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".writable-{uuid.uuid4().hex}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise SparkNotReadyError(
                f"The broker's checkpoint folder {path} can't be written ({error}): give another, "
                "as in standalone(spark, url, checkpoint=...)."
            ) from error


def default_checkpoint(root: Root) -> str:
    """Below a local root, else in the home folder; on a cluster say one that all can reach."""
    if not root.store.remote:
        return str(Path(root.store.root) / "_broker" / "checkpoint")
    name = hashlib.sha256(root.service_url.encode()).hexdigest()[:16]
    return str(Path.home() / ".pulsarlite" / "broker" / name)


def _start(
    spark: SparkSession, root: Root, term: int, checkpoint: str, state_partitions: int
) -> StreamingQuery:
    """A query takes its settings along when it starts; the session gets its own back."""
    _register(spark)
    options = {"serviceUrl": root.service_url, "term": str(term)}
    options |= {f"storage.{name}": value for name, value in root.storage.items()}
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(state_partitions)}
    with _settings(spark, settings):
        stepped = (
            spark.readStream.format(FORMAT)
            .options(**options)
            .load()
            .groupBy("topic", "partition")
            .transformWithState(
                BrokerProcessor(spare_the_garbage_collector), OUTPUT_DDL, "append", "none"
            )
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


def _register(spark: SparkSession) -> None:
    try:
        spark.dataSource.register(BrokerDataSource)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _same_python(path: str) -> bool:
    """Whether it is this program's interpreter, or one of the same environment."""
    mine = {os.path.realpath(sys.executable), sys.executable}
    return path in mine or os.path.realpath(path) in mine


class _SignOfLife:
    """A small file that a broker writes while it lives, so that a second one is refused."""

    def __init__(self, store: ObjectStore, service_url: str) -> None:
        self._store, self._service_url = store, service_url
        self._me = {"host": socket.gethostname(), "process": os.getpid(), "id": uuid.uuid4().hex}
        self._stopped = threading.Event()
        self._query: StreamingQuery | None = None
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)

    def start(self) -> None:
        """BrokerBusyError if another broker lives."""
        other = self._other()
        if other is not None:
            raise BrokerBusyError(
                f"A broker serves {self._service_url} already: process {other['process']} on "
                f"{other['host']}. Stop that one, or use it: consumers and sinks need no handle."
            )
        self._sign()
        self._thread.start()

    def follow(self, query: StreamingQuery) -> None:
        """Sign as long as it runs."""
        self._query = query

    def stop(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        self._remove()

    def _remove(self) -> None:
        """Unless a broker that has taken over has signed since."""
        value = self._signed()
        if value is not None and value["id"] == self._me["id"]:
            self._store.delete(SIGN_OF_LIFE)

    def _signed(self) -> dict[str, Any] | None:
        data = self._store.get(SIGN_OF_LIFE)
        try:
            value = json.loads(data) if data else None
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _other(self) -> dict[str, Any] | None:
        value = self._signed()
        if value is None or self._store.clock.wall_ms() - value["signed_ms"] > DEAD_AFTER_MS:
            return None
        if value["host"] == self._me["host"] and not _lives(value["process"]):
            return None
        return value

    def _sign(self) -> None:
        value = {**self._me, "signed_ms": self._store.clock.wall_ms()}
        self._store.touch(SIGN_OF_LIFE, json.dumps(value).encode())

    def _run(self) -> None:
        while not self._stopped.wait(SIGN_EVERY_S):
            if self._query is not None and not self._query.isActive:
                self._remove()
                return
            try:
                self._sign()
            except (PulsarliteError, OSError) as error:
                _log.warning("The broker could not sign that it lives: %s", error)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
