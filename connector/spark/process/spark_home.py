"""A SPARK_HOME whose Python processes load pyspark as it is installed, compiled.

Spark puts `python/lib/pyspark.zip` before what is installed. Nothing in it is compiled, so each of
its Python processes, some fifteen for a first query, compiles pyspark for itself: half a second of
a core (docs/decisions/0034).

Invariants: only where the workers run the driver's own Python, which has this very pyspark; what
the user has set stays; the folder has links only, and is used again.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pulsar_spark.connector.spark.process.java_home import cache_folder

SPARK_HOME = "SPARK_HOME"
_WITHOUT = "python"
"""The folder of the installed Spark in which the archive is."""


@contextmanager
def compiled_pyspark() -> Iterator[None]:
    """While a Java is started that shall have such a SPARK_HOME."""
    home = None if SPARK_HOME in os.environ else _home()
    if home is None:
        yield
        return
    os.environ[SPARK_HOME] = str(home)
    try:
        yield
    finally:
        del os.environ[SPARK_HOME]


def _home() -> Path | None:
    """The folder; None where Spark's own way is the safe one."""
    import pyspark

    installed = Path(pyspark.__file__).resolve().parent
    places = (*site.getsitepackages(), site.getusersitepackages())
    if installed.parent not in {Path(each).resolve() for each in places}:
        return None
    if os.environ.get("PYSPARK_PYTHON") != sys.executable or os.name != "posix":
        return None
    if not (installed / _WITHOUT / "lib/pyspark.zip").exists():
        return None
    topic_partition = hashlib.sha256(f"{installed} {pyspark.__version__}".encode()).hexdigest()
    try:
        return _linked(cache_folder(os.environ) / f"spark-{topic_partition[:16]}", installed)
    except OSError:
        return None


def _linked(home: Path, installed: Path) -> Path:
    """The folder, with links to all that is installed but the archive."""
    home.mkdir(exist_ok=True)
    for each in installed.iterdir():
        if each.name != _WITHOUT:
            with suppress(FileExistsError):  # made by an earlier run, or just now by another
                (home / each.name).symlink_to(each)
    return home
