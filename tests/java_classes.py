"""An archive of the classes that Spark loads: a Java that has it starts in half of the time.

    python -m tests.java_classes

makes it, in Python's environment, unless it is there. A Java that finds none, or another Java's,
starts as ever: after an update of Java remove it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java of a minute or two: optimising takes half of its time, and pays for nothing."""
ARCHIVE: Final = Path(sys.prefix, f"spark-{version('pyspark')}.jsa")
OPTIONS: Final = f'{SHORT_LIVED} -Xlog:disable "-XX:SharedArchiveFile={ARCHIVE}"'
"""It says nothing of an archive that does not suit it."""
_QUERY: Final = """
import pulsar_spark
spark = pulsar_spark.session("classes", "local[1]")
spark.range(10).selectExpr("sum(id)").collect()
spark.stop()
"""
"""What loads most of them; a broker and a consumer would add a tenth."""


def make() -> None:
    """Make the archive, or wait for whoever does."""
    with ARCHIVE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ARCHIVE.exists():
            return
        unfinished = ARCHIVE.with_suffix(".unfinished")
        options = f'{SHORT_LIVED} -Xlog:disable "-XX:ArchiveClassesAtExit={unfinished}"'
        subprocess.run(
            [sys.executable, "-c", _QUERY],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options},
            cwd=Path(__file__).parent.parent,
            capture_output=True,  # which ends with the Java, after its Python
            check=False,
        )
        unfinished.touch()  # a Java that can't make one is not asked again
        unfinished.rename(ARCHIVE)


if __name__ == "__main__":
    make()
