"""The package on a cluster: what is imported here goes to workers that have not installed it.

Invariants: what goes is this very version, compiled, as one archive that Python imports from; what
it needs (pyarrow, mmh3, pyroaring, ...) can't go that way, as Python loads compiled libraries from
no archive, and has to be installed on every machine. Stands for `spark-submit --py-files`.
"""

from __future__ import annotations

import atexit
import marshal
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile
from zipimport import zipimporter

import pulsar_spark
from pulsar_spark.connector.spark.data_source import register

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

ARCHIVE: Final = "pulsarlite.zip"


def ship(spark: SparkSession) -> None:
    """Give the package to Spark's workers, and register the format with it.

    `session(master=...)` does so by itself. For a session that was made otherwise, a remote one of
    Spark Connect too, on a cluster on whose machines Pulsarlite is not installed. What Pulsarlite
    needs has to be installed there, for the driver's version of Python.
    """
    context = getattr(spark, "_sc", None)
    held = _imported_from()
    if context is None:
        spark.addArtifacts(str(_archive_from(held)), pyfile=True)
    else:
        if held is None or held.name not in context._python_includes:  # noqa: SLF001 - --py-files
            held = _archive_from(held)
            context.addPyFile(str(held))
        _let_plan(context, held)
    register(spark)  # anew: a format has the files that were added before it was registered


def write_archive(path: Path | str) -> None:
    """The package as it is imported here, in a file from which Python imports."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, source in _modules():
            module = name.replace("/", ".")
            code = SourceFileLoader(module, str(source)).get_code(module)
            archive.writestr(f"{name}.pyc", MAGIC_NUMBER + bytes(12) + marshal.dumps(code))


def _imported_from() -> Path | None:
    """The archive, or wheel, that this program itself has it from."""
    loader = getattr(pulsar_spark, "__loader__", None)
    return Path(loader.archive) if isinstance(loader, zipimporter) else None


def _archive_from(held: Path | None) -> Path:
    """One with a name of which Spark knows that Python imports from it."""
    folder = tempfile.mkdtemp(prefix="pulsarlite-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # workers may ask for it until then
    archive = Path(folder, ARCHIVE)
    if held is None:
        write_archive(archive)
    else:
        shutil.copyfile(held, archive)
    return archive


def _let_plan(context: SparkContext, archive: Path) -> None:
    """Add the archive to the Python that plans a stream: Spark announces no added file to it."""
    paths = [str(archive.resolve()), context.environment.get("PYTHONPATH")]
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _modules() -> Iterator[tuple[str, Path]]:
    """(name in the archive, source) of each module."""
    pending = [Path(each) for each in pulsar_spark.__path__[:1]]
    root = pending[0].parent
    while pending:
        folder = pending.pop()
        for each in sorted(folder.iterdir()):
            if each.is_dir() and (each / "__init__.py").exists():
                pending.append(each)  # also where it is a link, as in the repository
            elif each.suffix == ".py":
                yield each.relative_to(root).with_suffix("").as_posix(), each
