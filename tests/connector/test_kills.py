"""Publishers and readers killed with SIGKILL: each message arrives once, none is lost."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=900, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("who", ["killed_queries", "killed_consumer", "killed_client"])
def test_a_kill_at_a_change_of_the_disk_neither_loses_nor_doubles(tmp_path: Path, who: str) -> None:
    # Every change takes minutes; each run of this test takes others, all do so in the end.
    every = 8
    first = random.randrange(every)
    print(f"again: python -m tests.connector.{who} FOLDER {every} {first}")
    assert run(f"tests.connector.{who}", str(tmp_path), str(every), str(first))


@pytest.mark.slow
def test_queries_on_real_spark_killed_at_random_deliver_every_flight_once(tmp_path: Path) -> None:
    seed = str(random.randrange(2**32))
    arguments = ("--kills", "2", "--months", "1", "--files", "6", "--seed", seed)
    said = run("tests.soak", *arguments, "--folder", str(tmp_path / "soak"))
    assert "27,004 flights published, 27,004 read" in said
    assert "everything exactly once" in said


@pytest.mark.slow
def test_subscriptions_on_real_spark_killed_at_random_get_every_flight_once(tmp_path: Path) -> None:
    seed = str(random.randrange(2**32))
    arguments = ("--kills", "3", "--months", "1", "--files", "4", "--seed", seed)
    said = run("tests.soak.subscriptions", *arguments, "--folder", str(tmp_path / "soak"))
    assert "everything exactly once" in said


@pytest.mark.slow
def test_of_two_transactions_with_one_message_one_is_committed_wherever_the_other_stops(
    tmp_path: Path,
) -> None:
    every = 8
    first = random.randrange(every)
    print(f"again: python -m tests.connector.killed_conflicts FOLDER {every} {first}")
    assert run("tests.connector.killed_conflicts", str(tmp_path), str(every), str(first))
