"""The consumer of each Key_Shared slot at one moment, and the slots that a change moves.

Invariants: immutable; ranges are sorted, inclusive and never overlap, so a slot has at most one
consumer; consumers are told apart by their id, never by their name. Follows Pulsar's
`ConsumerHashAssignmentsSnapshot` and `ImpactedConsumersResult`, but is exact where ranges have
gaps: there Pulsar's comparison leaves out parts that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MANY: Final = 4096
NOBODY: Final = -1
"""The index of no consumer, for slots without one."""


class HashRange(NamedTuple):
    """Slots from `start` to `end`, both included."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start},{self.end}]"


Ranges = Mapping[str, Sequence[HashRange]]
"""Consumer -> its ranges: ascending, those that touch merged."""


@dataclass(frozen=True, slots=True)
class ImpactedConsumers:
    """The ranges that a change took from consumers, and those it gave them."""

    removed: Ranges
    added: Ranges


class HashAssignments:
    """Ranges of slots and their consumers, as arrays."""

    __slots__ = ("_ends", "_owners", "_starts", "consumers")

    def __init__(
        self,
        consumers: Sequence[str],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        owners: NDArray[np.int32],
    ) -> None:
        """`owners` are indexes into `consumers`; the arrays have shape (ranges,), ascending."""
        self.consumers: tuple[str, ...] = tuple(consumers)
        self._starts, self._ends, self._owners = starts, ends, owners

    @staticmethod
    def of(consumers: Sequence[str], ranges: Iterable[tuple[int, int, int]]) -> HashAssignments:
        """From (start, end, index into `consumers`), in any order. ValueError if two overlap."""
        ordered = sorted(ranges)
        starts, ends = (np.array([r[i] for r in ordered], np.int64) for i in (0, 1))
        if np.any(starts[1:] <= ends[:-1]):
            raise ValueError("ranges of slots overlap")
        return HashAssignments(consumers, starts, ends, np.array([r[2] for r in ordered], np.int32))

    def select(self, slot: int) -> str | None:
        """The consumer of a slot; None if it has none."""
        place = int(np.searchsorted(self._starts, slot, "right")) - 1
        if place < 0 or slot > self._ends[place]:
            return None
        return self.consumers[int(self._owners[place])]

    def select_many(self, slots: NDArray[np.integer]) -> NDArray[np.int32]:
        """The consumer of each slot, as an index into `consumers` or NOBODY; shape of `slots`."""
        if not len(self._starts):
            return np.full(len(slots), NOBODY, np.int32)
        if len(slots) > _MANY and slots.min() >= 0 and slots.max() < 1 << 17:
            return np.asarray(self.owners(int(slots.max()) + 1)[slots])
        places = np.searchsorted(self._starts, slots, "right") - 1
        found = self._owners[places]
        found[(places < 0) | (slots > self._ends[places])] = NOBODY
        return np.asarray(found)

    def owners(self, slots: int) -> NDArray[np.int32]:
        """The consumer of slot 0, 1, ... `slots` - 1, as in `select_many`; shape (slots,)."""
        starts, stops = np.clip(self._starts, 0, slots), np.clip(self._ends + 1, 0, slots)
        edges = np.concatenate(([0], np.stack((starts, stops), 1).ravel(), [slots]))
        owners = np.full(len(edges) - 1, NOBODY, np.int32)
        owners[1::2] = self._owners
        return np.repeat(owners, np.diff(edges))

    def ranges(self) -> dict[str, list[HashRange]]:
        """Consumer -> its ranges, if it has any."""
        return _merged((r.start, r.end, who) for r, who in self)

    def impacted_by(self, after: HashAssignments) -> ImpactedConsumers:
        """The changes from this to `after`."""
        edges = np.unique(np.concatenate((self._edges(), after._edges())))
        starts, ends = edges[:-1], edges[1:] - 1
        before, now = self.select_many(starts), after.select_many(starts)
        # Places in `consumers` differ between the two, ids do not.
        place_of = {who: place for place, who in enumerate(after.consumers)}
        moved_to = np.array([place_of.get(who, -2) for who in self.consumers] + [NOBODY])
        changed = moved_to[before] != now
        rows = list(zip(starts[changed].tolist(), ends[changed].tolist(), strict=True))
        return ImpactedConsumers(
            _merged(_named(rows, before[changed].tolist(), self.consumers)),
            _merged(_named(rows, now[changed].tolist(), after.consumers)),
        )

    def __iter__(self) -> Iterator[tuple[HashRange, str]]:
        return ((HashRange(a, b), self.consumers[c]) for a, b, c in self._rows())

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HashAssignments):
            return NotImplemented
        return self.ranges() == other.ranges()

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    def __repr__(self) -> str:
        texts = (f"{r}={who}" for r, who in self)
        return f"HashAssignments({' '.join(texts)})"

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert np.all(self._starts <= self._ends), "a range that is empty"
        assert np.all(self._starts[1:] > self._ends[:-1]), "ranges out of order, or overlapping"
        assert len(set(self.consumers)) == len(self.consumers), "a consumer twice"

    def _edges(self) -> NDArray[np.int64]:
        return np.concatenate((self._starts, self._ends + 1))

    def _rows(self) -> list[tuple[int, int, int]]:
        columns = (self._starts.tolist(), self._ends.tolist(), self._owners.tolist())
        return list(zip(*columns, strict=True))


def _named(
    rows: Iterable[tuple[int, int]], owners: Iterable[int], consumers: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """(start, end, consumer) of the rows that have a consumer."""
    for (start, end), owner in zip(rows, owners, strict=True):
        if owner != NOBODY:
            yield start, end, consumers[owner]


def _merged(parts: Iterable[tuple[int, int, str]]) -> dict[str, list[HashRange]]:
    """Consumer -> ranges, from ascending parts; those that touch become one."""
    found: dict[str, list[HashRange]] = {}
    for start, end, who in parts:
        ranges = found.setdefault(who, [])
        if ranges and ranges[-1].end + 1 == start:
            ranges[-1] = HashRange(ranges[-1].start, end)
        else:
            ranges.append(HashRange(start, end))
    return found
