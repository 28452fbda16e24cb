"""A slice of the schedules; `make torture` runs them for hours."""

from __future__ import annotations

import pytest

from tests.torture import __main__ as command
from tests.torture.oracle import ViolationError
from tests.torture.world import run_schedule

SCHEDULES = 24
A_BLOCK = 4


@pytest.mark.parametrize("first", range(0, SCHEDULES, A_BLOCK))
def test_every_promise_is_kept_by_what_really_runs(first: int) -> None:
    for seed in range(first, first + A_BLOCK):
        try:
            run_schedule(seed)
        except Exception as error:  # noqa: BLE001, PERF203 - the seed is what counts, whatever it is
            pytest.fail(f"{error!r}; replay it with: python -m tests.torture --seed {seed}")


@pytest.mark.parametrize("seed", [3, 5])
def test_a_schedule_is_the_same_each_time(seed: int) -> None:
    """Of the second the store is one over a network."""
    assert run_schedule(seed).history == run_schedule(seed).history


def test_a_failure_prints_its_seed_and_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(seed: int) -> None:
        if seed == 5:
            raise ViolationError("lost: everything")

    monkeypatch.setattr(command, "run_schedule", broken)
    assert command.main(["--schedules", "10", "--processes", "1"]) == 1
    printed = capsys.readouterr().out
    assert "ViolationError: lost: everything" in printed
    assert "python -m tests.torture --seed 5" in printed
