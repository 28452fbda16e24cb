"""What all tests share: one Spark session (if any test asks), topic roots, hypothesis profiles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from pulsar_spark.connector.testing.pytest_plugin import pulsarlite, pulsarlite_clock
from tests import java_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.workermanage import WorkerController

__all__ = ["pulsarlite", "pulsarlite_clock"]

os.environ.setdefault("SPARK_SUBMIT_OPTS", java_classes.OPTIONS)

REPOSITORY = Path(__file__).resolve().parent.parent

settings.register_profile("dev", print_blob=True, deadline=None)
settings.register_profile(
    "ci",
    parent=settings.get_profile("dev"),
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],  # CI's machine is shared
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


LENGTHS = {"slow": 100.0, "spark": 5.0}
"""About how long a test with that mark takes, beside others."""
FROM_THE_LONGEST = 2
"""So many processes take the longest files first, which mostly wait for Spark."""


def pytest_configure(config: pytest.Config) -> None:
    """Side by side many a Java is started: what makes their starts short is made meanwhile."""
    if config.getoption("dist", "no") != "no" and "PYTEST_XDIST_WORKER" not in os.environ:
        maker = subprocess.Popen([sys.executable, "-m", "tests.java_classes"], cwd=REPOSITORY)

        def end() -> None:
            maker.wait()

        config.add_cleanup(end)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than take the longest: what computes fills the time in which those wait."""
    return min(os.cpu_count() or 1, FROM_THE_LONGEST) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FromBothEnds | None:
    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Two processes take the longest files first, which start Spark, and a third the shortest.

    A test of Spark waits for half of its time, so two processes leave half of two cores idle; with
    three that all begin with the longest, Spark's Python workers miss their ten seconds to connect.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node not in self.nodes[:FROM_THE_LONGEST]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that asks for a Spark session is marked `spark`, so that rings can be told apart.

    Side by side the longest files come first: none is begun when the others are through.
    """
    lengths: dict[Path, float] = defaultdict(float)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        marks = (LENGTHS.get(mark.name, 0.0) for mark in item.iter_markers())
        lengths[item.path] += max(marks, default=0.0) or 0.1
    if config.getoption("dist", "no") != "no":
        items.sort(key=lambda item: -lengths[item.path])


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests: two cores, two shuffle partitions, RocksDB, no UI, no log."""
    # Workers find the tests' own modules, wherever pytest was started.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", _with_repository(os.environ.get("PYTHONPATH")))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        import pulsar_spark

        folder = tmp_path_factory.mktemp("spark")
        settings: dict[str, Any] = {
            "spark.local.dir": folder / "local",
            "spark.sql.warehouse.dir": folder / "warehouse",
            "spark.sql.session.timeZone": "UTC",
        }
        session = pulsar_spark.session("pulsarlite-tests", "local[2]", **settings)
        yield session
        session.stop()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An empty folder to be a `serviceUrl`, gone when the test ends."""
    folder = tmp_path / "root"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _with_repository(path: str | None) -> str:
    return os.pathsep.join([str(REPOSITORY), *([path] if path else [])])
