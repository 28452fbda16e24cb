"""Run schedules, or replay one: python -m tests.torture [--schedules N] [--seed S]."""

from __future__ import annotations

import sys

from tests import schedules
from tests.torture.world import run_schedule

MANY, A_BLOCK = 20_000, 20


def main(arguments: list[str] | None = None) -> int:
    return schedules.run(arguments, run_schedule, module="tests.torture", many=MANY, block=A_BLOCK)


if __name__ == "__main__":
    sys.exit(main())
