"""The package as an archive, for workers that have not installed it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from pulsar_spark.connector.spark import shipping
from pulsar_spark.connector.spark.shipping import ship, write_archive

NEEDED_BY_WORKERS = (
    "pulsar_spark.connector.spark.data_source",
    "pulsar_spark.connector.runtime.publishing.message_writer",
    "pulsar_spark.connector.spark.subscription_reader",
    "pulsar_spark.state.broker_query",
    "pulsar_spark.connector.spark.functions.processing",
    "pulsar_spark.state.broker_processor",
    "pulsar_spark.pulsar",
)


def test_what_workers_need_is_imported_from_the_archive_alone(tmp_path: Path) -> None:
    archive = tmp_path / "pulsarlite.zip"
    write_archive(archive)
    from_archive(
        archive,
        f"""
from importlib import import_module
for name in {NEEDED_BY_WORKERS!r}:
    file = import_module(name).__file__
    assert file.startswith({str(archive)!r}), file
""",
    )


@pytest.mark.parametrize("name", ["of_mine.zip", "pulsarlite-1.0-py3-none-any.whl"])
@pytest.mark.parametrize("is_added", [False, True])
def test_a_driver_that_has_it_from_an_archive_ships_that_once(
    tmp_path: Path, name: str, *, is_added: bool
) -> None:
    archive = tmp_path / name
    write_archive(archive)
    from_archive(
        archive,
        f"""
from pathlib import Path
from types import SimpleNamespace
from pulsar_spark.connector.spark import shipping
shipping.register = lambda _: None
added = []
context = SimpleNamespace(_python_includes={[name] * is_added!r}, addPyFile=added.append)
context.environment = {{"PYTHONPATH": "/of/the/user"}}
shipping.ship(SimpleNamespace(_sc=context))
where = added[0] if added else {str(archive.resolve())!r}
assert context.environment == {{"PYTHONPATH": where + ":/of/the/user"}}, "streams are planned here"
assert [Path(each).name for each in added] == {["pulsarlite.zip"] * (not is_added)!r}, added
for each in added:
    assert Path(each).read_bytes() == Path({str(archive)!r}).read_bytes()
""",
    )


def test_every_module_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.zip")
    names = set(ZipFile(tmp_path / "a.zip").namelist())
    assert {"pulsar_spark/__init__.pyc", "pulsar_spark/connector/spark/session.pyc"} <= names
    assert all(each.startswith("pulsar_spark/") and each.endswith(".pyc") for each in names)


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_session_has_it_before_the_format_is_registered(
    monkeypatch: pytest.MonkeyPatch, *, is_remote: bool
) -> None:
    done: list[str] = []

    def add(path: str, **options: bool) -> None:
        assert ZipFile(path).namelist()
        assert options == ({"pyfile": True} if is_remote else {})
        done.append("added")

    monkeypatch.setattr(shipping, "register", lambda _: done.append("registered"))
    context = SimpleNamespace(addPyFile=add, _python_includes=[], environment={})
    spark: Any = SimpleNamespace(addArtifacts=add, _sc=context)
    if is_remote:
        del spark._sc
    ship(spark)
    assert done == ["added", "registered"]


def from_archive(archive: Path, code: str) -> None:
    """Run it where Python has the package from nowhere else."""
    libraries = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    path = f"import sys; sys.path[:0] = {[str(archive), *libraries]!r}\n"
    # -S: what is installed in the form of a path to the repository is not seen.
    done = subprocess.run(
        [sys.executable, "-S", "-c", path + code],
        cwd=archive.parent, env={}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
