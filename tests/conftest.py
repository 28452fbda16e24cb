"""What all tests share: one Spark session (if any test asks), topic roots, hypothesis profiles."""

from __future__ import annotations

import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from pulsar_spark.connector.testing.pytest_plugin import pulsarlite, pulsarlite_clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["pulsarlite", "pulsarlite_clock"]

# A test's Java lives for a minute or two: optimising takes half of its time, and pays for nothing.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

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
