"""Sets of entries as Pulsar writes them: ranges that are open below and closed above.

A range never spans two ledgers. Entries that are held in part are in none.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from pulsar_spark.model.positions.position import MAX_LONG, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.vectors.case import Case


class Range(NamedTuple):
    """(lower, upper]: after the one, up to and including the other."""

    lower: Position
    upper: Position

    def __str__(self) -> str:
        return f"({self.lower}..{self.upper}]"


def ranges_of(positions: PositionSet) -> list[Range]:
    """Ascending."""
    ranges = []
    for ledger_id in positions.ledger_ids:
        numbered = enumerate(positions.whole_entries(ledger_id))
        for _, run in groupby(numbered, lambda each: each[1] - each[0]):
            entries = [entry_id for _, entry_id in run]
            lower = Position(ledger_id, entries[0] - 1)
            ranges.append(Range(lower, Position(ledger_id, entries[-1])))
    return ranges


def ranges_text(ranges: Iterable[Range]) -> str:
    return f"[{','.join(map(str, ranges))}]"


def check_range_set(case: Case) -> None:
    """A position set, to which ranges are added and of which the beginning is taken off."""
    held = PositionSet()
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number}", record)
        op = step.take("op")
        if op == "add_open_closed":
            a, b, c, d = step.take("range")
            held = held.union(_between(held, Position(a, b), Position(c, d)))
        elif op == "remove_at_most":
            held = held.after(Position(*step.take("position")))
        elif op == "contains":
            step.expect("result", held.contains(step.take("position")))
        else:
            step.problems.append(f"op {op} is not known")
        held.check()
        ranges = ranges_of(held)
        step.expect("str", ranges_text(ranges))
        step.expect("size", len(ranges))
        step.expect("empty", not held)
        step.expect("ranges", [[*part.lower, *part.upper] for part in ranges])
        step.expect("first", str(ranges[0]) if ranges else "null")
        step.expect("last", str(ranges[-1]) if ranges else "null")
        span = Range(ranges[0].lower, ranges[-1].upper) if ranges else "null"
        step.expect("span", str(span))
        case.problems += [f"{step.name} {op}: {text}" for text in step.close().problems]


def _between(held: PositionSet, lower: Position, upper: Position) -> PositionSet:
    """What (lower, upper] adds to a set.

    Where the two lie in different ledgers, Pulsar adds the upper one's entries from 0 on, and of
    the lower one's only those before entries that it has already. An end at -1 or at the greatest
    number of its half adds nothing.
    """
    if lower.ledger_id == upper.ledger_id:
        return PositionSet.of_range(lower.ledger_id, lower.entry_id + 1, upper.entry_id)
    added = PositionSet()
    if _is_valid(lower.next):
        entries = held.whole_entries(lower.ledger_id)
        last = entries.max() if entries else -1
        added = PositionSet.of_range(lower.ledger_id, lower.entry_id + 1, last)
    if _is_valid(upper):
        added = added.union(PositionSet.of_range(upper.ledger_id, 0, upper.entry_id))
    return added


def _is_valid(position: Position) -> bool:
    return not {-1, MAX_LONG}.intersection(position)
