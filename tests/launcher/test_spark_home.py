"""Spark's Python processes load what is installed, and what they need is loaded once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from pulsar_spark.connector.spark.process import worker_daemon
from pulsar_spark.connector.spark.process.spark_home import SPARK_HOME, compiled_pyspark
from pulsar_spark.connector.spark.session import LOCAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(os.name != "posix", reason="it is a folder of links")

LOADED_BY_PLANNERS = (*worker_daemon.LOADED[1:], "pulsar_spark.state.broker_query")


@pytest.fixture(autouse=True)
def _as_in_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SPARK_HOME, raising=False)


def test_a_java_gets_all_of_the_installed_spark_but_the_archive() -> None:
    homes = []
    for _ in range(2):
        with compiled_pyspark():
            homes.append(Path(os.environ[SPARK_HOME]))
        assert SPARK_HOME not in os.environ
    home, again = homes
    assert home == again
    assert (home / "bin" / "spark-submit").exists()
    assert (home / "jars").is_dir()
    installed = Path(pyspark.__file__).parent
    assert {each.name for each in home.iterdir()} == {
        each.name for each in installed.iterdir() if each.name != "python"
    }


def test_who_chose_a_spark_or_another_python_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another-python")
    with compiled_pyspark():
        assert SPARK_HOME not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv(SPARK_HOME, "/opt/spark")
    with compiled_pyspark():
        assert os.environ[SPARK_HOME] == "/opt/spark"


def test_where_no_folder_can_be_made_spark_has_its_own_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = Path(pyspark.__file__).parent
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / installed.name))
    with compiled_pyspark():
        assert SPARK_HOME not in os.environ, "a pyspark that workers may not find"


@pytest.mark.parametrize("module", LOADED_BY_PLANNERS)
def test_what_spark_plans_with_loads_no_pandas(module: str) -> None:
    """It is half of what such a process costs: pyarrow loads it for any array made of values."""
    code = f"import sys, {module}; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_workers_load_the_installed_pyspark_and_are_forked_with_all_they_need(
    spark: SparkSession,
) -> None:
    def loaded(_: int) -> tuple[str, list[str]]:
        import pyspark

        return pyspark.__file__, [name for name in worker_daemon.LOADED if name in sys.modules]

    assert spark.conf.get("spark.python.daemon.module") == worker_daemon.__name__
    assert LOCAL["spark.python.daemon.module"] == worker_daemon.__name__
    ((place, names),) = spark.sparkContext.parallelize([0], 1).map(loaded).collect()
    assert place == pyspark.__file__
    assert names == list(worker_daemon.LOADED)
