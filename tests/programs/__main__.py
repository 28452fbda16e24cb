"""Compares programs here with what was recorded: `python -m tests.programs [--prune] [NAME]`."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.programs import differences, here


def main() -> int:
    """The number of differences that no reason explains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prune", action="store_true", help="drop the reasons of what is alike")
    parser.add_argument("--verbose", action="store_true", help="print what has a reason too")
    parser.add_argument("names", nargs="*", help="the beginnings of programs' names; all")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    table = differences.listed()
    unexplained = 0
    for name, program in differences.PROGRAMS.items():
        if asked.names and not any(name.startswith(each) for each in asked.names):
            continue
        begun_s = time.monotonic()
        found = differences.compared(program, here.run(name, program["steps"]))
        if asked.verbose:
            print(f"{name}: {time.monotonic() - begun_s:.1f} s", flush=True)
        reasons = differences.expected(name)
        for each in found:
            known = reasons.get(each.step, [])
            is_explained = differences.is_explained(each, known)
            unexplained += not is_explained
            if asked.verbose or not is_explained:
                print(each, "\n  ", *known or ["no reason"], flush=True)
        alike = reasons.keys() - {each.step for each in found}
        for step in sorted(alike):
            print(f"{name} {step} is alike now: {', '.join(reasons[step])}", flush=True)
        if asked.prune:
            _prune(table, name, alike)
    if asked.prune:
        differences.write(table)
    print(f"{unexplained} differences without a reason")
    return min(unexplained, 1)


def _prune(table: differences.Table, name: str, alike: set[int]) -> None:
    for programs in table.values():
        if name in programs:
            programs[name] = [step for step in programs[name] if step not in alike]
            if not programs[name]:
                del programs[name]


if __name__ == "__main__":
    sys.exit(main())
