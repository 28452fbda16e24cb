"""Wheel, sdist, editable install and a checkout without links, each used outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.packaging.distribution import build, checkout_to, contents, environment_with, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="paths of a POSIX virtual environment"),
]

LOOK = """
import importlib.util, json, pkgutil, sys
import pulsar_spark, pulsar_spark.connector, pulsar_spark.state
import pyspark_pulsarlite
top = [m.name for m in pkgutil.iter_modules()]
print(json.dumps({
    "files": [m.__file__ for m in (pulsar_spark, pulsar_spark.connector, pulsar_spark.state)],
    "spark_finds": [name for name in top if name.startswith("pyspark_")],
    "top_level": [n for n in ("connector", "state", "tests") if importlib.util.find_spec(n)],
    "version": pulsar_spark.__version__,
}))
"""

DASHBOARD = """
from pulsar_spark.connector.tools.dashboard.web_app import make_app
from pulsar_spark.connector.runtime.topics.topics import Root
browser = make_app(Root("nowhere", {}), allow_changes=False, key="key").test_client()
with browser.get("/static/dashboard.css") as sheet:
    assert sheet.status_code == 200
print(browser.get("/?key=key", follow_redirects=True).text)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as a clone has it, links included."""
    return checkout_to(tmp_path_factory.mktemp("packaging") / "checkout")


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    return build(checkout, "--wheel")


def look(python: Path, outside: Path) -> dict[str, list[str]]:
    """What an environment sees of Pulsarlite, from a folder outside the repository."""
    found: dict[str, list[str]] = json.loads(run(python, "-c", LOOK, cwd=outside))
    return found


def test_the_wheel_holds_every_module_once_and_nothing_else(checkout: Path, wheel: Path) -> None:
    expected = {
        "pyspark_pulsarlite.py",
        "pulsar_spark/py.typed",
        "pulsar_spark/connector/spark/log4j2.properties",
    }
    for folder, package in (
        ("pulsar_spark", "pulsar_spark"),
        ("connector", "pulsar_spark/connector"),
        ("state", "pulsar_spark/state"),
    ):
        modules = (checkout / folder).rglob("*.py")
        expected |= {f"{package}/{path.relative_to(checkout / folder)}" for path in modules}
    alias = "pulsar_spark/pulsarlite/__init__.py"
    expected = expected - {alias} | {"pulsarlite/__init__.py", "pulsarlite/py.typed"}
    pages = checkout / "connector" / "tools" / "dashboard"
    shown = [*pages.glob("templates/*"), *pages.glob("static/*")]
    assert len(shown) > 5
    home = "pulsar_spark/connector/tools/dashboard"
    expected |= {f"{home}/{path.relative_to(pages)}" for path in shown}
    assert contents(wheel) == expected


def test_an_installed_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    python = environment_with(wheel, tmp_path / "env")
    found = look(python, tmp_path)
    assert all(Path(file).is_relative_to(tmp_path / "env") for file in found["files"])
    assert found["spark_finds"] == ["pyspark_pulsarlite"]
    assert found["top_level"] == []
    assert (tmp_path / "env" / "bin" / "pulsarlite").exists()
    assert ">Topics</h1>" in run(python, "-c", DASHBOARD, cwd=tmp_path)
    assert "Usage" in run(python, "-m", "pulsarlite", "--help", cwd=tmp_path).capitalize()
    test = "def test_users(pulsarlite):\n    assert pulsarlite.messages('t') == []\n"
    (tmp_path / "test_users.py").write_text(test)
    assert "1 passed" in run(python, "-m", "pytest", "-q", "test_users.py", cwd=tmp_path)


USERS = """
import pulsar_spark
import pulsarlite
from pulsarlite import errors, pulsar

reveal_type(pulsarlite.session)
reveal_type(pulsar_spark.Admin().topics)
reveal_type(pulsar.Client("memory://t"))
reveal_type(errors.PulsarliteError.condition)
pulsarlite.sesion()
pulsar_spark.sesion()
"""


def test_a_type_checker_knows_both_names_and_finds_a_misspelt_one(
    wheel: Path, tmp_path: Path
) -> None:
    python = environment_with(wheel, tmp_path / "env")
    (tmp_path / "users.py").write_text(USERS)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    command.append("users.py")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    notes = [line.partition("Revealed type is ")[2] for line in lines if "Revealed" in line]
    assert [notes[0].startswith('"def ('), *notes[1:]] == [
        True,
        '"pulsar_spark.connector.tools.admin.topics.Topics"',
        '"pulsar_spark.connector.client.client.Client"',
        '"str"',
    ], done.stdout
    found = [line.partition("error: ")[2] for line in lines if " error: " in line]
    assert len(found) == 2, done.stdout
    assert all('has no attribute "sesion"' in each for each in found)


def test_the_sdist_builds_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    expected = contents(wheel)
    sdist = build(checkout_to(tmp_path / "checkout"), "--sdist")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path)
    assert not [name for name in names if "/tests/" in name or "/pulsar_spark/connector" in name]
    assert contents(build(tmp_path / names[0].split("/")[0], "--wheel")) == expected


def test_a_checkout_without_links_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    expected = contents(wheel)
    folder = checkout_to(tmp_path / "checkout")
    for name in ("connector", "state"):
        (folder / "pulsar_spark" / name).unlink()
        (folder / "pulsar_spark" / name).write_text(f"../{name}")
    assert contents(build(folder, "--wheel")) == expected


@pytest.mark.parametrize("links", [True, False], ids=["with-links", "without-links"])
def test_an_editable_install_sees_the_folders(tmp_path: Path, *, links: bool) -> None:
    folder = checkout_to(tmp_path / "checkout")
    if not links:
        for name in ("connector", "state"):
            (folder / "pulsar_spark" / name).unlink()
            (folder / "pulsar_spark" / name).write_text(f"../{name}")
    python = environment_with(folder, tmp_path / "env", "--editable")
    found = look(python, tmp_path)
    assert {Path(file).resolve().parent for file in found["files"]} == {
        folder / name for name in ("pulsar_spark", "connector", "state")
    }
    (folder / "connector" / "newly_made.py").write_text("ANSWER = 42\n")
    code = "from pulsar_spark.connector.newly_made import ANSWER; print(ANSWER)"
    assert run(python, "-c", code, cwd=tmp_path) == "42\n"
