"""The consumer of a key's slot in a Key_Shared subscription: three selectors, and their contract.

Invariants: immutable, `add` and `remove` give a new selector; each slot goes to one consumer or
to none; consumers are told apart by their id, names may repeat; the same joins and leaves in the
same order give the same selector, and its JSON gives it back. Follows Pulsar's
`StickyKeyConsumerSelector`, and its three classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.errors import ConsumerAssignError, InvalidOptionError
from pulsar_spark.log.producing.hashing import (
    AUTO_SPLIT_SLOTS,
    CONSISTENT_HASHING_SLOTS,
    murmur3_32_hash,
    sticky_key_slot,
)

if TYPE_CHECKING:
    from typing_extensions import Self

NOBODY: Final = -1
"""The place of no consumer, for slots without one."""
DEFAULT_POINTS: Final = 100
"""Pulsar's `subscriptionKeySharedConsistentHashingReplicaPoints`."""


class HashRange(NamedTuple):
    """Slots from `start` to `end`, both included."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start},{self.end}]"


Ranges = Mapping[str, Sequence[HashRange]]
"""Consumer -> its ranges."""


@dataclass(frozen=True)
class StickyKeySelector(ABC):
    """Assigns slots to consumers."""

    @property
    @abstractmethod
    def consumers(self) -> tuple[str, ...]:
        """The ids of the consumers, in the order in which they were added."""

    @abstractmethod
    def add(
        self, consumer: str, name: str = "", ranges: Iterable[HashRange] | None = None
    ) -> StickyKeySelector:
        """The selector with one consumer more. ConsumerAssignError if it can't get slots.

        `ranges` are for STICKY alone, which asks for them. ValueError if the id is there already.
        """

    @abstractmethod
    def remove(self, consumer: str) -> StickyKeySelector:
        """The selector without a consumer; the same if it is not there."""

    @cached_property
    @abstractmethod
    def owners(self) -> NDArray[np.int32]:
        """The consumer of slot 0, 1, ... as a place in `consumers`, or NOBODY. Read only."""

    def ranges_of_all(self) -> dict[str, tuple[HashRange, ...]]:
        """Each consumer's slots."""
        edges = np.flatnonzero(np.diff(self.owners)) + 1
        firsts, ends = [0, *edges.tolist()], [*edges.tolist(), len(self.owners)]
        found: dict[str, list[HashRange]] = {each: [] for each in self.consumers}
        for first, end in zip(firsts, ends, strict=True):
            if first < end and (place := int(self.owners[first])) != NOBODY:
                found[self.consumers[place]].append(HashRange(first, end - 1))
        return {name: tuple(ranges) for name, ranges in found.items()}

    @abstractmethod
    def slots_of(self, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each key from its Murmur3_32Hash (31 bits); never 0. Shape (n,)."""

    def to_json_value(self) -> dict[str, Any]:
        """The state in values that are plain, or become so in JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json_value(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{name: _tuples(each) for name, each in value.items()})

    def _check_new(self, consumer: str) -> None:
        if consumer in self.consumers:
            raise ValueError(f"consumer {consumer!r} is there already: ids must differ, not names")


@dataclass(frozen=True)
class AutoSplitSelector(StickyKeySelector):
    """A consumer that joins gets half of the biggest range; it is for consistent hashing off.

    A join takes slots of one consumer only, a leave gives slots to one only. As in Pulsar's
    `HashRangeAutoSplitStickyKeyConsumerSelector`, the top range ends at `slots`, one more than the
    highest slot. ValueError if `slots` is no power of two.
    """

    slots: int = AUTO_SPLIT_SLOTS
    highest: tuple[tuple[str, int], ...] = ()
    """Each consumer and the highest slot of its range, in order of joining."""

    def __post_init__(self) -> None:
        if self.slots < 2:
            raise ValueError("range size must greater than 2")
        if self.slots & self.slots - 1:
            raise ValueError("range size must be nth power with 2")

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(consumer for consumer, _ in self.highest)

    def add(
        self, consumer: str, name: str = "", ranges: Iterable[HashRange] | None = None
    ) -> AutoSplitSelector:
        """Give the consumer the lower half of the biggest range, of several the lowest."""
        del name, ranges
        self._check_new(consumer)
        if not self.highest:
            return replace(self, highest=((consumer, self.slots),))
        # The lowest range begins above 0 here, as in Pulsar: slot 0 is never used.
        ends = [0, *sorted(end for _, end in self.highest)]
        size, end = max(
            ((high - low, high) for low, high in pairwise(ends)),
            key=lambda each: (each[0], -each[1]),
        )
        if size <= 1:
            raise ConsumerAssignError(
                "No more range can assigned to new consumer, assigned consumers "
                f"{len(self.highest)}"
            )
        return replace(self, highest=(*self.highest, (consumer, end - (size >> 1))))

    def remove(self, consumer: str) -> AutoSplitSelector:
        """Give the consumer's range to the next higher one; the top one's to the next lower."""
        left = {who: end for who, end in self.highest if who != consumer}
        if left and max(left.values()) < self.slots:
            left[max(left, key=left.__getitem__)] = self.slots
        return replace(self, highest=tuple(left.items()))

    @cached_property
    def owners(self) -> NDArray[np.int32]:
        if not self.highest:
            return np.full(self.slots + 1, NOBODY, np.int32)
        ends = np.array([end for _, end in self.highest])
        order = np.argsort(ends).astype(np.int32)
        return np.repeat(order, np.diff(ends[order], prepend=-1))

    def slots_of(self, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        return _slots_below(self.slots, sticky_key_hashes)


@dataclass(frozen=True)
class ConsistentHashingSelector(StickyKeySelector):
    """A hundred points a consumer on a ring of slots from 1 to 65,535; the default of AUTO_SPLIT.

    A slot goes to the consumer of the next point at or above it, behind the last point to that of
    the first; a point of several consumers belongs to the one that joined first. A join takes slots
    only for the consumer that joins, a leave gives only those of the one that leaves. Consumers of
    one name are numbered, each with the lowest free number. Follows Pulsar 4's
    `ConsistentHashingStickyKeyConsumerSelector`. ValueError if a consumer has no points.
    """

    points: int = DEFAULT_POINTS
    members: tuple[tuple[str, str, int], ...] = ()
    """Each consumer, its name, and its number among those of that name, in order of joining."""

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ValueError("a consumer needs at least one point")

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(consumer for consumer, _, _ in self.members)

    def add(
        self, consumer: str, name: str = "", ranges: Iterable[HashRange] | None = None
    ) -> ConsistentHashingSelector:
        del ranges
        self._check_new(consumer)
        taken = {number for _, other, number in self.members if other == name}
        number = next(each for each in count() if each not in taken)
        return replace(self, members=(*self.members, (consumer, name, number)))

    def remove(self, consumer: str) -> ConsistentHashingSelector:
        return replace(self, members=tuple(each for each in self.members if each[0] != consumer))

    @cached_property
    def owners(self) -> NDArray[np.int32]:
        if not self.members:
            return np.full(CONSISTENT_HASHING_SLOTS + 1, NOBODY, np.int32)
        hashes = [points_of(name, number, self.points) for _, name, number in self.members]
        # Of equal points np.unique finds the first, that of the consumer who joined first.
        points, first = np.unique(np.concatenate(hashes), return_index=True)
        owners = np.append(first, first[0]) // self.points
        widths = np.diff(points, prepend=-1, append=CONSISTENT_HASHING_SLOTS)
        return np.repeat(owners.astype(np.int32), widths)

    def slots_of(self, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        return sticky_key_hashes % CONSISTENT_HASHING_SLOTS + 1


@dataclass(frozen=True)
class StickyRangeSelector(StickyKeySelector):
    """Ranges as the consumers ask for them (STICKY); in a slot outside of all, messages wait.

    Follows Pulsar's `HashRangeExclusiveStickyKeyConsumerSelector`. ValueError without slots.
    """

    slots: int = AUTO_SPLIT_SLOTS
    ranges: tuple[tuple[str, tuple[HashRange, ...]], ...] = ()
    """The ranges by consumer, in order of joining; ascending, and not merged where they touch."""

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError("range size must greater than 0")

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(consumer for consumer, _ in self.ranges)

    def add(
        self, consumer: str, name: str = "", ranges: Iterable[HashRange] | None = None
    ) -> StickyRangeSelector:
        """Give the consumer the ranges that it names. ConsumerAssignError in Pulsar's words."""
        del name
        self._check_new(consumer)
        if ranges is None:
            raise ConsumerAssignError("Must specify key shared meta for consumer.")
        named = [HashRange(*each) for each in ranges]
        _check_own(sorted(named))
        for low, high in named:
            held = self.owners[low : high + 1]
            for place in held[held != NOBODY][:1]:
                raise ConsumerAssignError(f"Range conflict with consumer {self.consumers[place]}")
        return replace(self, ranges=(*self.ranges, (consumer, tuple(sorted(named)))))

    def remove(self, consumer: str) -> StickyRangeSelector:
        return replace(self, ranges=tuple(each for each in self.ranges if each[0] != consumer))

    @cached_property
    def owners(self) -> NDArray[np.int32]:
        owners = np.full(self.slots, NOBODY, np.int32)
        for place, (_, ranges) in enumerate(self.ranges):
            for low, high in ranges:
                owners[low : high + 1] = place
        return owners

    def slots_of(self, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        return _slots_below(self.slots, sticky_key_hashes)


def check_sticky_ranges(ranges: Sequence[HashRange]) -> None:
    """The client's checks, as Pulsar's `KeySharedPolicySticky.validate`.

    InvalidOptionError if a range leaves 0..65535 or overlaps another.
    """
    if not ranges:
        raise InvalidOptionError(
            "Ranges for KeyShared policy must not be empty. Name at least one, as in 0-32767."
        )
    for each in ranges:
        if not 0 <= each.start <= each.end < AUTO_SPLIT_SLOTS:
            raise InvalidOptionError(
                f"The range {each} is not within [0,{AUTO_SPLIT_SLOTS - 1}], or ends before it "
                "starts. Name ranges of slots from low to high, as in 0-32767."
            )
    for one, other in pairwise(sorted(ranges)):
        if other.start <= one.end:
            raise InvalidOptionError(
                f"The ranges {one} and {other} overlap. Let each begin after the one before ends."
            )


def _check_own(ordered: Sequence[HashRange]) -> None:
    if not ordered:
        raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
    for each, following in zip(ordered, [*ordered[1:], None], strict=True):
        if each.start > each.end:
            raise ConsumerAssignError(f"Fixed hash range start > end for range: {each}")
        if following and max(each.start, following.start) <= min(each.end, following.end):
            raise ConsumerAssignError(
                f"Consumer's own ranges conflict: {each} overlaps with {following}"
            )


def _slots_below(slots: int, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The hashes modulo `slots`; 1 in place of 0, which means no key."""
    found = sticky_key_hashes % slots
    found[found == 0] = 1
    return found


@lru_cache(maxsize=4096)
def points_of(name: str, number: int, points: int) -> NDArray[np.int64]:
    """A consumer's points, in order of their number; some may be equal. Shape (points,)."""
    hashes = (murmur3_32_hash(f"{name}\0{number}\0{point}") for point in range(points))
    found = np.fromiter((sticky_key_slot(each) for each in hashes), np.int64, points)
    found.flags.writeable = False
    return found


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list | tuple) else value
