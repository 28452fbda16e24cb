"""Run schedules, or replay one: python -m tests.simulation [--schedules N] [--seed S]."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback

from tests.simulation.world import run_schedule

BLOCK = 250
A_MILLION = 1_000_000


def _block(seeds: range) -> tuple[int, list[tuple[int, str]]]:
    failures = []
    for seed in seeds:
        try:
            run_schedule(seed)
        except Exception as error:  # noqa: BLE001, PERF203 - the seed is what counts, whatever it is
            failures.append((seed, f"{type(error).__name__}: {error}"))
    return len(seeds), failures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, help="how many; a million, or one with --seed")
    parser.add_argument("--seed", type=int, help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="side by side")
    options = parser.parse_args(arguments)
    if options.schedules is None:
        options.schedules = A_MILLION if options.seed is None else 1
    options.seed = options.seed or 0
    if options.schedules == 1:
        try:
            run_schedule(options.seed)
        except Exception:  # noqa: BLE001 - as above
            traceback.print_exc()
            return 1
        print(f"schedule {options.seed}: every promise kept")
        return 0
    return _many(options)


def _many(options: argparse.Namespace) -> int:
    started = time.monotonic()
    done, failed = 0, 0
    end = options.seed + options.schedules
    blocks = [range(each, min(each + BLOCK, end)) for each in range(options.seed, end, BLOCK)]
    with multiprocessing.Pool(options.processes) as pool:
        for count, failures in pool.imap_unordered(_block, blocks):
            done += count
            failed += len(failures)
            for seed, text in failures:
                print(f"schedule {seed}: {text}")
                print(f"  replay it with: python -m tests.simulation --seed {seed}")
            if sys.stdout.isatty() or done % 50_000 == 0:
                print(f"{done} schedules, {time.monotonic() - started:.0f} s", flush=True)
    took = time.monotonic() - started
    print(f"{done} schedules from seed {options.seed}, {failed} failures, {took:.0f} s, "
          f"{took / done * 1000:.2f} ms each")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
