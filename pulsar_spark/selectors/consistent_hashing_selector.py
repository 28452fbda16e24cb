"""Key_Shared slots by consistent hashing: a hundred points a consumer on a ring of 65,535 slots.

Invariants: a slot goes to the consumer of the next point at or above it, behind the last point to
that of the first; a point of several consumers belongs to the one that joined first, and to the
next when it leaves; a join takes slots only for the consumer that joins, a leave gives only those
of the one that leaves. Consumers of one name are numbered, each with the lowest free number, so
that they differ. Follows Pulsar 4's `ConsistentHashingStickyKeyConsumerSelector` and
`ConsumerNameIndexTracker`; it is the default of AUTO_SPLIT.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.producing.hashing import (
    CONSISTENT_HASHING_SLOTS,
    murmur3_32_hash,
    sticky_key_slot,
)
from pulsar_spark.selectors.hash_assignments import HashAssignments, HashRange
from pulsar_spark.selectors.sticky_key_selector import check_new, slots_from

DEFAULT_POINTS: Final = 100
"""Pulsar's `subscriptionKeySharedConsistentHashingReplicaPoints`."""


class NamedConsumer(NamedTuple):
    """A consumer, its name, and its number among those of that name."""

    consumer: str
    name: str
    name_index: int


class ConsistentHashingSelector:
    """Points on a ring; ValueError if there are none a consumer."""

    __slots__ = ("_assignments", "_members", "consumers", "points")

    slots: Final = CONSISTENT_HASHING_SLOTS + 1
    """Slots run from 1 to 65,535."""

    def __init__(self, points: int = DEFAULT_POINTS, members: Iterable[NamedConsumer] = ()) -> None:
        """`members` in order of joining."""
        if points < 1:
            raise ValueError("a consumer needs at least one point")
        self.points = points
        self._members = tuple(members)
        self.consumers: tuple[str, ...] = tuple(member.consumer for member in self._members)
        self._assignments: HashAssignments | None = None

    @property
    def assignments(self) -> HashAssignments:
        if self._assignments is None:
            self._assignments = self._assign()
        return self._assignments

    def add(
        self, consumer: str, name: str, ranges: Iterable[HashRange] | None = None
    ) -> ConsistentHashingSelector:
        del ranges
        check_new(self.consumers, consumer)
        taken = {member.name_index for member in self._members if member.name == name}
        name_index = next(index for index in count() if index not in taken)
        member = NamedConsumer(consumer, name, name_index)
        return ConsistentHashingSelector(self.points, (*self._members, member))

    def remove(self, consumer: str) -> ConsistentHashingSelector:
        left = tuple(member for member in self._members if member.consumer != consumer)
        if len(left) == len(self._members):
            return self
        return ConsistentHashingSelector(self.points, left)

    def slots_of(self, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        return slots_from(sticky_key_hashes, CONSISTENT_HASHING_SLOTS, 1)

    def select(self, slot: int) -> str | None:
        return self.assignments.select(_on_ring(slot))

    def select_many(self, slots: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        return self.assignments.select_many(np.where(slots >= self.slots, 1, np.maximum(slots, 1)))

    def owners(self) -> NDArray[np.int32]:
        found = self.assignments.owners(self.slots)
        found[0] = found[1]
        return found

    def ring_points(self) -> NDArray[np.int64]:
        """The taken points, ascending."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self._points()]))

    def to_json_value(self) -> dict[str, Any]:
        return {"points": self.points, "members": [list(member) for member in self._members]}

    @staticmethod
    def from_json_value(value: dict[str, Any]) -> ConsistentHashingSelector:
        members = (NamedConsumer(*member) for member in value["members"])
        return ConsistentHashingSelector(value["points"], members)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsistentHashingSelector):
            return NotImplemented
        return self.to_json_value() == other.to_json_value()

    __hash__ = None  # type: ignore[assignment]  # as its assignments

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.assignments.check()
        names = {(member.name, member.name_index) for member in self._members}
        assert len(names) == len(self._members), "two consumers of one name and number"

    def _points(self) -> list[NDArray[np.int64]]:
        return [_points_of(each.name, each.name_index, self.points) for each in self._members]

    def _assign(self) -> HashAssignments:
        if not self._members:
            return HashAssignments.of((), ())
        # Of equal points np.unique finds the first, that of the consumer who joined first.
        points, first = np.unique(np.concatenate(self._points()), return_index=True)
        owners = (first // self.points).astype(np.int32)
        starts, ends = np.concatenate(([1], points[:-1] + 1)), points
        if points[-1] < CONSISTENT_HASHING_SLOTS:
            starts = np.append(starts, points[-1] + 1)
            ends = np.append(ends, CONSISTENT_HASHING_SLOTS)
            owners = np.append(owners, owners[0])
        return HashAssignments(self.consumers, starts, ends, owners)


def _on_ring(slot: int) -> int:
    """The slot on the ring: one beyond it goes to the first point, as one below it does."""
    return 1 if slot > CONSISTENT_HASHING_SLOTS else max(slot, 1)


@lru_cache(maxsize=4096)
def _points_of(name: str, name_index: int, points: int) -> NDArray[np.int64]:
    """A consumer's points, in order of their number; some may be equal. Shape (points,)."""
    hashes = (murmur3_32_hash(f"{name}\0{name_index}\0{point}") for point in range(points))
    found = np.fromiter((sticky_key_slot(each) for each in hashes), np.int64, points)
    found.flags.writeable = False
    return found
