"""The published sequence ids of a partition's producers: ranges by ledger, and a floor.

Invariants: an id in no range and above the floor was never published; an id at or below the floor
counts as published, as by Pulsar's rule of the highest id. Ranges go into the floor when their
ledger is trimmed. A look costs the ledgers whose ranges overlap at the ids, not all ledgers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SequenceIds = NDArray[np.int64]
TRIMMED_KEPT: Final = 64
"""A producer's ranges are rebuilt when they exceed twice the ledgers plus this number."""


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """The sequence ids of one producer in one ledger.

    `distinct` if none occurs twice; `dense` if every id from lowest to highest occurs.
    """

    lowest: int
    highest: int
    distinct: bool = True
    dense: bool = False

    @staticmethod
    def of(sequence_ids: SequenceIds) -> SequenceRange:
        """The range of these ids, in any order, at least one."""
        lowest, highest = int(sequence_ids.min()), int(sequence_ids.max())
        different = len(np.unique(sequence_ids))
        return SequenceRange(
            lowest, highest, different == len(sequence_ids), different == highest - lowest + 1
        )

    def to_json(self) -> list[int]:
        """The JSON in commits and snapshots: whether ids were distinct does not matter later."""
        return [self.lowest, self.highest, int(self.dense)]

    @staticmethod
    def from_json(value: Sequence[Any]) -> SequenceRange:
        """Read `to_json`. TypeError or ValueError if it is no range."""
        lowest, highest, dense = value
        if any(type(number) is not int for number in (lowest, highest, dense)):
            raise TypeError(f"{value!r} is no range of sequence ids")
        if lowest > highest or dense not in (0, 1):
            raise ValueError(f"{value!r} is no range of sequence ids")
        return SequenceRange(lowest, highest, dense=bool(dense))


@dataclass(slots=True)
class _ProducersRanges:
    """One producer's ranges by their lowest id; overlapping ones stand side by side.

    Those of trimmed ledgers stay for a while: ids above the floor are in none of them.
    """

    lowest: list[int] = field(default_factory=list)
    highest_so_far: list[int] = field(default_factory=list)
    """For each range, the highest id of it and of all before it."""
    ranges: list[tuple[int, SequenceRange]] = field(default_factory=list)
    """(ledger id, range)"""

    def add(self, ledger_id: int, added: SequenceRange) -> None:
        place = bisect_right(self.lowest, added.lowest)
        self.lowest.insert(place, added.lowest)
        self.ranges.insert(place, (ledger_id, added))
        self.highest_so_far.insert(place, added.highest)
        highest = self.highest_so_far[place - 1] if place else added.highest
        for at in range(place, len(self.ranges)):
            highest = max(highest, self.ranges[at][1].highest)
            if at > place and self.highest_so_far[at] == highest:
                return
            self.highest_so_far[at] = highest

    def near(self, ascending: SequenceIds) -> Iterator[tuple[int, SequenceRange]]:
        """The ranges that may have one of these ids, and others that overlap with them."""
        left = len(ascending)
        while left:
            stop = bisect_right(self.lowest, int(ascending[left - 1]))
            if not stop:
                return
            if self.highest_so_far[stop - 1] < ascending[left - 1]:  # it is between two ranges
                left = int(np.searchsorted(ascending, self.highest_so_far[stop - 1], "right"))
                continue
            first = stop - 1
            while first and self.highest_so_far[first - 1] >= self.lowest[first]:
                first -= 1
            yield from self.ranges[first:stop]
            left = int(np.searchsorted(ascending, self.lowest[first]))


@dataclass(slots=True)
class PublishedSequences:
    """The sequence ids of one partition. Mutable, as a topic's state is."""

    ranges: dict[int, Mapping[str, SequenceRange]] = field(default_factory=dict)
    """Ledger id -> producer -> range."""
    floors: dict[str, int] = field(default_factory=dict)
    _of: dict[str, _ProducersRanges] = field(default_factory=dict)
    """The ranges of producers that were asked for."""

    @property
    def producers(self) -> set[str]:
        """Producers with an id in one of the ledgers."""
        return {producer for by_producer in self.ranges.values() for producer in by_producer}

    def add(self, ledger_id: int, by_producer: Mapping[str, SequenceRange]) -> None:
        self.ranges[ledger_id] = by_producer
        for producer in by_producer.keys() & self._of.keys():
            self._of[producer].add(ledger_id, by_producer[producer])

    def raise_floor(self, producer: str, sequence_id: int) -> None:
        """Let all ids up to that one count as published."""
        self.floors[producer] = max(sequence_id, self.floors.get(producer, sequence_id))

    def trim(self, ledger_id: int) -> None:
        for producer, each in self.ranges.pop(ledger_id, {}).items():
            self.raise_floor(producer, each.highest)

    def published(
        self,
        producer: str,
        sequence_ids: SequenceIds,
        stored: Callable[[int], Mapping[str, tuple[Any, SequenceIds]]],
    ) -> NDArray[np.bool_]:
        """The ids of these that the producer has published; shape as given.

        `stored` reads a ledger's ids, by producer; it is called only for ledgers whose range has
        holes and one of the ids.

        `stored` reads a ledger's ids, by producer; it is asked only for ledgers whose range has
        holes and one of the ids.
        """
        found = np.zeros(len(sequence_ids), np.bool_)
        if producer in self.floors:
            found |= sequence_ids <= self.floors[producer]
        for ledger_id, each in self._ranges(producer).near(np.unique(sequence_ids[~found])):
            inside = ~found & (sequence_ids >= each.lowest) & (sequence_ids <= each.highest)
            if not inside.any():
                continue
            if each.dense:
                found |= inside
            else:
                found[inside] = np.isin(sequence_ids[inside], stored(ledger_id)[producer][1])
        return found

    def to_json_value(self) -> dict[str, Any]:
        """The ranges and floors as JSON; empty if there are none."""
        found = {"sequence_ranges": ranges_to_json(self.ranges), "sequence_floors": self.floors}
        return {name: dict(value) for name, value in found.items() if value}

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> PublishedSequences:
        return PublishedSequences(
            ranges_from_json(value.get("sequence_ranges", {})),
            dict(value.get("sequence_floors", {})),
        )

    def _ranges(self, producer: str) -> _ProducersRanges:
        known = self._of.get(producer)
        if known is None or len(known.ranges) > 2 * len(self.ranges) + TRIMMED_KEPT:
            known = self._of[producer] = _ProducersRanges()
            for ledger_id, by_producer in self.ranges.items():
                if producer in by_producer:
                    known.add(ledger_id, by_producer[producer])
        return known


def ranges_to_json(ranges: Mapping[int, Mapping[str, SequenceRange]]) -> dict[str, Any] | None:
    """The JSON in commits and snapshots, by ledger id and producer; None if there are none."""
    return {
        str(ledger_id): {producer: each.to_json() for producer, each in by_producer.items()}
        for ledger_id, by_producer in ranges.items()
    } or None


def ranges_from_json(value: Mapping[str, Any]) -> dict[int, Mapping[str, SequenceRange]]:
    """Read `ranges_to_json`. TypeError or ValueError if the value is wrong."""
    return {
        int(ledger_id): {name: SequenceRange.from_json(each) for name, each in by_producer.items()}
        for ledger_id, by_producer in value.items()
    }
