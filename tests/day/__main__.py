"""`make day`: a whole day's load, hour by hour; 1 if files or a micro-batch's work keep growing.

python -m tests.day --publications 10000 --hours 24 --folder /dev/shm/day
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.day.day import Day, Hour

HEADS = (
    "hour", "files", "of them the topic's", "MB", "micro-batches", "calls of the store in one",
    "ms in one", "the slowest", "s for the house",
)  # fmt: skip
WARM = 3
"""Hours until all that is kept for a time is there."""


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
    first, last = hours[0], hours[-1]
    warm = max(hour.files.total() for hour in hours[: 2 * WARM])
    most = max(hour.files.total() for hour in hours[2 * WARM :] or hours)
    print(f"lost: {lost or 'nothing'}")
    print(f"files: {most / warm:.2f} times as many as in the first {2 * WARM} hours, at the most")
    print(
        f"calls of the store in a micro-batch, last hour to first: {last.calls / first.calls:.2f}"
    )
    print(f"ms in one: {median(last.batch_s) / median(first.batch_s):.2f}")
    return int(bool(lost) or most > 1.2 * warm or last.calls > 1.2 * first.calls)


def _row(hour: Hour) -> str:
    topics = sum(count for name, count in hour.files.items() if name.startswith("orders"))
    told = (
        f"{hour.files.total():,}", f"{topics:,}", f"{hour.bytes / 1e6:.1f}", f"{hour.batches:,}",
        f"{hour.calls:g}", f"{1000 * median(hour.batch_s):.1f}", f"{1000 * max(hour.batch_s):.0f}",
        f"{sum(hour.house_s):.1f}",
    )  # fmt: skip
    return " | ".join(told)


if __name__ == "__main__":
    sys.exit(main())
