"""The ranges of entries in a position set, as Pulsar counts and writes them.

Invariants: immutable; ranges are open below and closed above, `(3:-1..3:2]`, ascending, and never
span two ledgers; entries held in part are in none. Follows Pulsar's `OpenLongPairRangeSet`, which
backs `individualDeletedMessages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pulsar_spark.positions.position import MAX_LONG, Position
from pulsar_spark.positions.position_set import PositionSet


class Range(NamedTuple):
    """(lower, upper]: the entries after the one, up to and including the other."""

    lower: Position
    upper: Position

    def __str__(self) -> str:
        return f"({self.lower}..{self.upper}]"


@dataclass(frozen=True, slots=True)
class RangeSet:
    """A view of the whole entries of a set as ranges."""

    positions: PositionSet = field(default_factory=PositionSet)

    def __iter__(self) -> Iterator[Range]:
        for ledger_id in self.positions.ledger_ids:
            entries = np.array(self.positions.whole_entries(ledger_id).to_array(), np.int64)
            if not len(entries):
                continue
            breaks = np.flatnonzero(np.diff(entries) != 1)
            firsts = entries[np.concatenate(([0], breaks + 1))].tolist()
            lasts = entries[np.concatenate((breaks, [len(entries) - 1]))].tolist()
            for first, last in zip(firsts, lasts, strict=True):
                yield Range(Position(ledger_id, first - 1), Position(ledger_id, last))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __str__(self) -> str:
        return "[" + ",".join(str(part) for part in self) + "]"

    @property
    def first(self) -> Range | None:
        return next(iter(self), None)

    @property
    def last(self) -> Range | None:
        return max(self, default=None)

    @property
    def span(self) -> Range | None:
        """The range from before the first entry to the last; None if there is none."""
        first, last = self.first, self.last
        return Range(first.lower, last.upper) if first and last else None

    def contains(self, position: tuple[int, int]) -> bool:
        return self.positions.contains(position)

    def add_open_closed(self, lower: Position, upper: Position) -> RangeSet:
        """The set with (lower, upper].

        If the two lie in different ledgers, the upper one's entries from 0 on are added, and of the
        lower one's only those before entries that it has already: its length is not known here. An
        end at -1 or at the greatest number of its half adds nothing.
        """
        if lower.ledger_id == upper.ledger_id:
            return _with(self, lower.ledger_id, lower.entry_id + 1, upper.entry_id)
        result = self
        if _is_valid(lower.ledger_id, lower.entry_id + 1):
            held = self.positions.whole_entries(lower.ledger_id)
            last = held.max() if held else -1
            if last > lower.entry_id:
                result = _with(result, lower.ledger_id, lower.entry_id + 1, last)
        if _is_valid(*upper):
            result = _with(result, upper.ledger_id, 0, upper.entry_id)
        return result

    def remove_at_most(self, position: Position) -> RangeSet:
        """The set without anything up to and including that position."""
        return RangeSet(self.positions.after(position))


def _with(ranges: RangeSet, ledger_id: int, first_entry_id: int, last_entry_id: int) -> RangeSet:
    added = PositionSet.of_range(ledger_id, first_entry_id, last_entry_id)
    return RangeSet(ranges.positions.union(added))


def _is_valid(ledger_id: int, entry_id: int) -> bool:
    return not {-1, MAX_LONG} & {ledger_id, entry_id}
