"""Run schedules, or replay one: python -m tests.torture [--schedules N] [--seed S]."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from tests.torture.world import run_schedule

MANY = 20_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--schedules", type=int, help=f"how many; {MANY}, or one with --seed")
    parser.add_argument("--seed", type=int, help="the first one")
    options = parser.parse_args(arguments)
    if options.schedules is None:
        options.schedules = MANY if options.seed is None else 1
    first = options.seed or 0
    logging.disable(logging.CRITICAL)  # what goes wrong is what the schedule wants
    started, failed = time.monotonic(), 0
    for done, seed in enumerate(range(first, first + options.schedules), 1):
        try:
            run_schedule(seed)
        except Exception:  # noqa: BLE001 - the seed is what counts, whatever it is
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"replay it with: python -m tests.torture --seed {seed}", flush=True)
        if done % 100 == 0:
            print(f"{done} schedules, {time.monotonic() - started:.0f} s", flush=True)
    logging.disable(logging.NOTSET)
    took = time.monotonic() - started
    print(f"{options.schedules} schedules from seed {first}, {failed} failures, {took:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
