"""Run schedules, or replay one: python -m tests.client_torture [--schedules N] [--seed S]."""

from __future__ import annotations

import os
import sys

from tests import schedules
from tests.client_torture.world import run_schedule

MANY, A_BLOCK = 5_000, 10


def with_one_order_of_sets() -> None:
    """Begin again where the order of sets is always the same: a seed is to say it all."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.client_torture", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})


def main(arguments: list[str] | None = None) -> int:
    return schedules.run(
        arguments, run_schedule, module="tests.client_torture", many=MANY, block=A_BLOCK
    )


if __name__ == "__main__":
    with_one_order_of_sets()
    sys.exit(main())
