"""How big and how fast a cursor of a million holes is: `python -m benchmarks.cursor`.

Prints a table; times are medians of RUNS runs, in milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.records.stored_data import parse_json
from pulsar_spark.model.records.stored_record import canonical_json

RUNS = 7
Columns = tuple[np.ndarray[Any, Any], ...]


def every_second_entry() -> tuple[Columns, LedgerList]:
    """Of 2 million entries in one ledger, a million."""
    entries = np.arange(1, 2_000_000, 2)
    return (np.zeros(len(entries), np.int64), entries), ledgers_of([2_000_000], 1)


def every_second_entry_of_many_ledgers() -> tuple[Columns, LedgerList]:
    """The same, over 100 ledgers."""
    (_, entries), _ = every_second_entry()
    return (entries // 20_000, entries % 20_000), ledgers_of([20_000] * 100, 1)


def every_second_batch_index() -> tuple[Columns, LedgerList]:
    """Of 2,000 entries of 1,000 messages, every second message."""
    entries = np.repeat(np.arange(2_000), 500)
    indexes = np.tile(np.arange(0, 1_000, 2), 2_000)
    sizes = np.full(len(entries), 1_000)
    return (np.zeros(len(entries), np.int64), entries, indexes, sizes), ledgers_of([2_000], 1_000)


def random_half_of_the_entries() -> tuple[Columns, LedgerList]:
    """Of 2 million entries, each with chance one half: 250 kB of information."""
    entries = np.flatnonzero(np.random.default_rng(7).random(2_000_000) < 0.5)
    return (np.zeros(len(entries), np.int64), entries), ledgers_of([2_000_000], 1)


def ledgers_of(entries: list[int], batch_size: int) -> LedgerList:
    sizes = [BatchSizes(((batch_size, count),)) for count in entries]
    return LedgerList(LedgerInfo(i, 0, "", 0, size, 0, 0, 0) for i, size in enumerate(sizes))


def milliseconds(action: Callable[[], object], runs: int = RUNS) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times) * 1000


def measure(columns: Columns, ledgers: LedgerList) -> dict[str, float]:
    """Sizes in kB, times in milliseconds."""
    empty = Cursor(Position(0, -1))
    cursor = empty.acknowledge(PositionSet.from_arrays(*columns))
    earlier = empty.acknowledge(
        PositionSet.from_arrays(*(column[: len(column) // 2] for column in columns))
    )
    data, text = cursor.to_bytes(), canonical_json(cursor.to_json_value())
    return {
        "bytes kB": len(data) / 1000,
        "JSON kB": len(text) / 1000,
        "build": milliseconds(lambda: empty.acknowledge(PositionSet.from_arrays(*columns))),
        "union": milliseconds(lambda: cursor.union(earlier)),
        "difference": milliseconds(lambda: cursor.difference(earlier, ledgers)),
        "count": milliseconds(lambda: cursor.backlog(ledgers)),
        "to_bytes": milliseconds(cursor.to_bytes),
        "from_bytes": milliseconds(lambda: Cursor.from_bytes(data)),
        "to_json": milliseconds(lambda: canonical_json(cursor.to_json_value())),
        "from_json": milliseconds(lambda: Cursor.from_json_value(parse_json(text))),
    }


CASES = (
    every_second_entry,
    every_second_entry_of_many_ledgers,
    every_second_batch_index,
    random_half_of_the_entries,
)


def main() -> None:
    rows = {case.__name__: measure(*case()) for case in CASES}
    names = list(next(iter(rows.values())))
    width = max(map(len, rows))
    print(" " * width, *(f"{name:>10}" for name in names))
    for name, row in rows.items():
        print(f"{name.replace('_', ' '):{width}}", *(f"{row[key]:10.1f}" for key in names))


if __name__ == "__main__":
    main()
