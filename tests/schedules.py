"""The command of a net of random schedules: run many side by side, or replay one by its seed."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator

RunSchedule = Callable[[int], object]
Block = tuple[int, list[tuple[int, str]]]
"""How many schedules it had, and the seeds that failed, with their errors."""


def run(
    arguments: list[str] | None, run_schedule: RunSchedule, *, module: str, many: int, block: int
) -> int:
    """What `python -m MODULE [--schedules N] [--seed S]` does; 1 if a schedule failed.

    A process takes `block` schedules at a time. Each minute it is told how to go on if it is
    stopped.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--schedules", type=int, help=f"how many; {many}, or one with --seed")
    parser.add_argument("--seed", type=int, help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="side by side")
    options = parser.parse_args(arguments)
    if options.schedules is None:
        options.schedules = many if options.seed is None else 1
    first = options.seed or 0
    end = first + options.schedules
    blocks = [range(each, min(each + block, end)) for each in range(first, end, block)]
    started = shown = time.monotonic()
    done, failed = 0, 0
    for count, failures in _results(run_schedule, blocks, min(options.processes, len(blocks))):
        done += count
        failed += len(failures)
        for seed, text in failures:
            print(f"schedule {seed}: {text}")
            print(f"  replay it with: python -m {module} --seed {seed}", flush=True)
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            left = f"--seed {first + done} --schedules {options.schedules - done}"
            print(f"{done} schedules, {shown - started:.0f} s; the rest: {left}", flush=True)
    took = time.monotonic() - started
    print(f"{done} schedules from seed {first}, {failed} failures, {took:.0f} s, "
          f"{took / done * 1000:.2f} ms each")  # fmt: skip
    return 1 if failed else 0


def _results(run_schedule: RunSchedule, blocks: Iterable[range], processes: int) -> Iterator[Block]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # what goes wrong is what a schedule wants
    try:
        if processes == 1:
            _begin(run_schedule)
            yield from map(_run_block, blocks)
            return
        forked = multiprocessing.get_context("fork")
        with forked.Pool(processes, _begin, (run_schedule,)) as pool:
            yield from pool.imap(_run_block, blocks)
    finally:
        logging.disable(before)


_running: list[RunSchedule] = []


def _begin(run_schedule: RunSchedule) -> None:
    """In the process that runs blocks. What was imported is no garbage."""
    _running[:] = [run_schedule]
    gc.freeze()


def _run_block(seeds: range) -> Block:
    failures = []
    for seed in seeds:
        try:
            _running[0](seed)
        except Exception:  # noqa: BLE001, PERF203 - the seed is what counts, whatever it is
            failures.append((seed, traceback.format_exc()))
    return len(seeds), failures
