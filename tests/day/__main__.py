"""`make day`: a whole day's load, hour by hour; 1 if files or a micro-batch's work keep growing.

python -m tests.day --publications 10000 --hours 24 --folder /dev/shm/day
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

from tests.day.day import Day, Hour

HEADS = (
    "hour", "files", "of them the topic's", "MB", "micro-batches", "calls of the store in one",
    "ms in one", "the slowest", "s for the house",
)  # fmt: skip
CYCLE = 3
"""Hours after which the day's consumers do the same again; what is kept for a time is there."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.day", description=__doc__)
    parser.add_argument("--publications", type=int, default=10_000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="by default a temporary one")
    given = parser.parse_args()
    print(given, flush=True)
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}", flush=True)
    hours: list[Hour] = []
    with TemporaryDirectory(dir=given.folder) as folder:
        with Day(Path(folder) / "root", given.publications, given.hours, given.seed) as day:
            for hour in day.run():
                hours.append(hour)
                print(f"| {len(hours)} | {_row(hour)} |", flush=True)
        lost = {name: len(numbers) for name, numbers in day.lost().items() if numbers}
    early, late = hours[CYCLE : 2 * CYCLE] or hours, hours[-CYCLE:]
    files = _most(hours[2 * CYCLE :] or hours) / _most(hours[: 2 * CYCLE])
    calls = _mean(late, "batch_calls") / _mean(early, "batch_calls")
    times = _mean(late, "batch_s") / _mean(early, "batch_s")
    print(f"lost: {lost or 'nothing'}")
    print(f"files: {files:.2f} times as many as in the first {2 * CYCLE} hours, at the most")
    print(f"the last {CYCLE} hours to hours {CYCLE + 1} to {2 * CYCLE}, in a micro-batch:")
    print(f"calls of the store {calls:.2f}, processor time {times:.2f}")
    return int(bool(lost) or files > 1.2 or calls > 1.2)


def _most(hours: list[Hour]) -> int:
    return max(hour.files.total() for hour in hours)


def _mean(hours: list[Hour], name: str) -> float:
    return float(mean(chain.from_iterable(getattr(hour, name) for hour in hours)))


def _row(hour: Hour) -> str:
    topics = sum(count for name, count in hour.files.items() if name.startswith("orders"))
    reported = (
        f"{hour.files.total():,}", f"{topics:,}", f"{hour.bytes / 1e6:.1f}", f"{hour.batches:,}",
        f"{hour.calls:g}", f"{1000 * median(hour.batch_s):.1f}", f"{1000 * max(hour.batch_s):.0f}",
        f"{sum(hour.house_s):.1f}",
    )  # fmt: skip
    return " | ".join(reported)


if __name__ == "__main__":
    sys.exit(main())
