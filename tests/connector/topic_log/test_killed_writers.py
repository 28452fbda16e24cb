"""Whoever is killed with SIGKILL loses nothing that was confirmed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*arguments: str, script: str = "topic_log.killed_writers") -> None:
    command = [sys.executable, "-m", f"tests.connector.{script}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_kill_at_any_change_of_the_disk_loses_nothing(tmp_path: Path) -> None:
    run("steps", str(tmp_path))


@pytest.mark.slow
def test_writers_killed_at_random_lose_nothing_and_leave_no_gap(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"again: python -m tests.connector.topic_log.killed_writers random FOLDER {seed} 4")
    run("random", str(tmp_path), str(seed), "4")


@pytest.mark.slow
def test_compactions_killed_at_random_keep_what_a_plain_fold_keeps(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"again: python -m tests.connector.housekeeping.killed_compactions FOLDER {seed} 4")
    run(str(tmp_path), str(seed), "4", script="housekeeping.killed_compactions")
