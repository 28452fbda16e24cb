"""A slice of the schedules; `make torture` runs them for hours."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.client_torture.mutants import MUTANTS
from tests.client_torture.points import BY_NAME, POINTS, Point
from tests.client_torture.world import run_schedule
from tests.torture.oracle import ViolationError

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEDULES = 6
MOST_SEEDS = 20
"""The seeds at which a mutant is tried at most."""


def test_programs_are_handed_what_was_promised() -> None:
    """In a process whose sets have one order, so that its seeds replay."""
    command = [sys.executable, "-m", "tests.client_torture", "--schedules", str(SCHEDULES)]
    ran = subprocess.run(
        [*command, "--seed", "0", "--processes", "1"], cwd=REPOSITORY, capture_output=True,
        text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_schedule_is_the_same_each_time() -> None:
    first, second = run_schedule(28), run_schedule(28)
    assert first.history == second.history
    assert first.turns.switches == second.turns.switches


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_the_schedules_of_a_point_hold(point: Point) -> None:
    for seed in point.shows_at:
        point.run(seed)


def test_each_point_has_a_mutant() -> None:
    assert MUTANTS.keys() == BY_NAME.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_each_point_is_noticed(name: str) -> None:
    """Sets have another order in each process, so the seed at which it shows may differ."""
    point = BY_NAME[name]
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        for seed in (*point.shows_at, *range(MOST_SEEDS)):
            with suppress(ViolationError):
                point.run(seed)
                continue
            return
    pytest.fail(f"nobody noticed it at {MOST_SEEDS} seeds")
