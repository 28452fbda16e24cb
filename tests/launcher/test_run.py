"""`./run` with a fake Python: what it calls, what it says when it can't, what it leaves alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the launcher is a POSIX shell script")

SHELL = shutil.which("dash") or "sh"

# Makes a "venv" whose python is itself, and writes down what it was asked to do.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
"-c "*) exit {too_old} ;;
"--version") echo 'Python 3.x (fake)' ;;
"-m venv --without-pip "*) exit 1 ;;
"-m venv "*)
    [ {venv_works} = yes ] || exit 1
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m virtualenv "*) exit 1 ;;
"-m pip --version") ;;
*)
    for argument in "$@"; do printf '<%s>' "$argument"; done >>"$LOG"
    echo " in $PWD" >>"$LOG"
    case "$*" in
    *"pip install"*"[demo]"*) [ ! -e "$LOG.pip_fails" ] || exit 1 ;;
    *"spark.process.java_home"*) [ ! -e "$LOG.no_java" ] || {{ rm "$LOG.no_java"; exit 1; }} ;;
    esac ;;
esac
"""


class Checkout:
    """A folder with `run` and `setup.cfg` in it, and a PATH that holds one fake Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "check out"
        self.bin = folder / "bin"
        self.log = folder / "log"
        for made in (self.folder, self.bin):
            made.mkdir()
        for name in ("run", "setup.cfg"):
            shutil.copy(REPOSITORY / name, self.folder)
        for tool in ("dirname", "cat", "cksum", "tr", "mkdir", "cp", "rm"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def python(self, name: str, *, too_old: bool = False, venv_works: bool = True) -> None:
        text = FAKE_PYTHON.format(too_old=int(too_old), venv_works="yes" if venv_works else "no")
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which(SHELL) or SHELL, self.folder / "run", *arguments],
            cwd=self.folder.parent,
            env={"PATH": str(self.bin), "LOG": str(self.log), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """What the Pythons were asked to do since the last time."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_alone_it_says_what_there_is(checkout: Checkout) -> None:
    found = checkout.run()
    assert found.returncode == 0
    for command in ("demo", "test", "lint", "python"):
        assert f"\n  {command} " in found.stdout


def test_an_unknown_command_fails_and_says_what_there_is(checkout: Checkout) -> None:
    found = checkout.run("dmeo")
    assert found.returncode == 1
    assert "no such command: dmeo" in found.stderr
    assert "Usage" in found.stderr


def test_the_demo_installs_once_and_leaves_arguments_and_folder_alone(checkout: Checkout) -> None:
    checkout.python("python3")
    for attempt in ("first", "second"):
        found = checkout.run("demo", "--to", "a b", "")
        assert found.returncode == 0, found.stderr
        *before, last = checkout.calls()
        assert last == f"<-m><pulsar_spark><demo><--to><a b><> in {checkout.folder.parent}"
        assert [("[demo]" in line) for line in before] == (
            [True, False] if attempt == "first" else []
        )
        assert (found.stderr == "") == (attempt == "second")


def test_the_tests_run_in_the_repository(checkout: Checkout) -> None:
    checkout.python("python3")
    assert checkout.run("test", "-k", "one").returncode == 0
    assert checkout.calls()[-1] == f"<-m><pytest><-k><one> in {checkout.folder}"
    assert checkout.run("test").returncode == 0
    assert "<-m><pytest><--numprocesses>" in checkout.calls()[-1]


def test_without_java_it_installs_the_one_from_pypi(checkout: Checkout) -> None:
    checkout.python("python3")
    Path(f"{checkout.log}.no_java").touch()
    found = checkout.run("demo")
    assert found.returncode == 0, found.stderr
    assert any("[demo,java]" in call for call in checkout.calls())


def test_an_interrupted_set_up_is_taken_up_again(checkout: Checkout) -> None:
    checkout.python("python3")
    fails = Path(f"{checkout.log}.pip_fails")
    fails.touch()
    found = checkout.run("demo")
    assert found.returncode == 1
    assert "run the same command again" in found.stderr
    fails.unlink()
    assert checkout.run("demo").returncode == 0
    assert "<demo>" in checkout.calls()[-1]


def test_a_changed_setup_cfg_installs_again(checkout: Checkout) -> None:
    checkout.python("python3")
    checkout.run("demo")
    checkout.calls()
    with (checkout.folder / "setup.cfg").open("a") as setup:
        setup.write("# changed\n")
    checkout.run("demo")
    assert len(checkout.calls()) == 3


def test_a_newer_python_is_found_behind_an_old_one(checkout: Checkout) -> None:
    checkout.python("python3", too_old=True)
    checkout.python("python3.12")
    assert checkout.run("demo").returncode == 0


def test_without_a_python_that_is_new_enough_it_says_so(checkout: Checkout) -> None:
    checkout.python("python3", too_old=True)
    found = checkout.run("demo")
    assert found.returncode == 1
    assert "no Python 3.10 or newer on PATH" in found.stderr
    assert not (checkout.folder / ".venv").exists()


def test_a_python_that_is_named_is_the_only_one_tried(checkout: Checkout) -> None:
    checkout.python("python3")
    checkout.python("python3.8", too_old=True)
    found = checkout.run("demo", PYTHON=str(checkout.bin / "python3.8"))
    assert found.returncode == 1
    assert "is older than Python 3.10" in found.stderr


def test_without_venv_or_ensurepip_it_says_what_to_install(checkout: Checkout) -> None:
    checkout.python("python3", venv_works=False)
    found = checkout.run("demo")
    assert found.returncode == 1
    assert "apt install python3-venv" in found.stderr


def test_the_environment_can_lie_elsewhere(checkout: Checkout, tmp_path: Path) -> None:
    checkout.python("python3")
    found = checkout.run("demo", PULSARLITE_VENV=str(tmp_path / "else where"))
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "else where" / "bin" / "python").exists()
    assert not (checkout.folder / ".venv").exists()
