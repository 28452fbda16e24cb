"""Run schedules, or replay one: python -m tests.simulation [--schedules N] [--seed S]."""

from __future__ import annotations

import sys

from tests import schedules
from tests.simulation.schedule import run_schedule

A_MILLION, A_BLOCK = 1_000_000, 250


def main(arguments: list[str] | None = None) -> int:
    return schedules.run(
        arguments, run_schedule, module="tests.simulation", many=A_MILLION, block=A_BLOCK
    )


if __name__ == "__main__":
    sys.exit(main())
