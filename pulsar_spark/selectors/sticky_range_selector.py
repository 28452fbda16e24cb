"""Key_Shared slots by ranges that each consumer names itself (STICKY).

Invariants: ranges of different consumers never overlap; a slot outside all ranges has no consumer,
and its messages wait. Follows Pulsar's `HashRangeExclusiveStickyKeyConsumerSelector` (the
broker's checks) and `KeySharedPolicySticky.validate` (the client's).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.errors import ConsumerAssignError, InvalidOptionError
from pulsar_spark.producing.hashing import AUTO_SPLIT_SLOTS
from pulsar_spark.selectors.hash_assignments import HashAssignments, HashRange
from pulsar_spark.selectors.sticky_key_selector import check_new, slots_from


class StickyRangeSelector:
    """Ranges as the consumers asked for them."""

    __slots__ = ("_assignments", "_ranges", "consumers", "slots")

    def __init__(
        self,
        slots: int = AUTO_SPLIT_SLOTS,
        ranges: Mapping[str, Sequence[HashRange]] | None = None,
    ) -> None:
        """`ranges` by consumer, in order of joining. ValueError if there are no slots."""
        if slots < 1:
            raise ValueError("range size must greater than 0")
        self.slots = slots
        self._ranges = dict(ranges or {})
        self.consumers: tuple[str, ...] = tuple(self._ranges)
        self._assignments = HashAssignments.of(
            self.consumers,
            [
                (start, end, place)
                for place, named in enumerate(self._ranges.values())
                for start, end in named
            ],
        )

    @property
    def assignments(self) -> HashAssignments:
        return self._assignments

    def add(
        self, consumer: str, name: str = "", ranges: Iterable[HashRange] | None = None
    ) -> StickyRangeSelector:
        """Give the consumer the ranges that it names. ConsumerAssignError in Pulsar's words."""
        del name
        check_new(self.consumers, consumer)
        if ranges is None:
            raise ConsumerAssignError("Must specify key shared meta for consumer.")
        named = [HashRange(*each) for each in ranges]
        _check_own(named)
        holder = self._holder_of_any(named)
        if holder is not None:
            raise ConsumerAssignError(f"Range conflict with consumer {holder}")
        return StickyRangeSelector(self.slots, {**self._ranges, consumer: tuple(sorted(named))})

    def remove(self, consumer: str) -> StickyRangeSelector:
        if consumer not in self._ranges:
            return self
        left = {who: named for who, named in self._ranges.items() if who != consumer}
        return StickyRangeSelector(self.slots, left)

    def slots_of(self, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        return slots_from(sticky_key_hashes, self.slots, 0)

    def select(self, slot: int) -> str | None:
        return self._assignments.select(slot)

    def select_many(self, slots: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        return self._assignments.select_many(slots)

    def owners(self) -> NDArray[np.int32]:
        return self._assignments.owners(self.slots)

    @property
    def ranges(self) -> Mapping[str, Sequence[HashRange]]:
        """Consumer -> the ranges that it named, ascending; those that touch are not merged."""
        return self._ranges

    def to_json_value(self) -> dict[str, Any]:
        named = [[who, [list(each) for each in ranges]] for who, ranges in self._ranges.items()]
        return {"slots": self.slots, "ranges": named}

    @staticmethod
    def from_json_value(value: dict[str, Any]) -> StickyRangeSelector:
        ranges = {who: tuple(HashRange(*r) for r in named) for who, named in value["ranges"]}
        return StickyRangeSelector(value["slots"], ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StickyRangeSelector):
            return NotImplemented
        return self.to_json_value() == other.to_json_value()

    __hash__ = None  # type: ignore[assignment]  # as its assignments

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self._assignments.check()
        assert all(self._ranges.values()), "a consumer without ranges"

    def _holder_of_any(self, named: Sequence[HashRange]) -> str | None:
        """The holder of the lowest taken slots in the first range that is not free."""
        held = [(each, who) for who, ranges in self._ranges.items() for each in ranges]
        for start, end in named:
            conflicts = [
                (each, who) for each, who in held if each.start <= end and start <= each.end
            ]
            if conflicts:
                return min(conflicts)[1]
        return None


def check_sticky_ranges(ranges: Sequence[HashRange]) -> None:
    """The client's checks. InvalidOptionError if a range leaves 0..65535 or overlaps another."""
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


def _check_own(named: Sequence[HashRange]) -> None:
    if not named:
        raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
    ordered = sorted(named, key=lambda each: each.start)
    for each, following in zip(ordered, [*ordered[1:], None], strict=True):
        if each.start > each.end:
            raise ConsumerAssignError(f"Fixed hash range start > end for range: {each}")
        if following and max(each.start, following.start) <= min(each.end, following.end):
            raise ConsumerAssignError(
                f"Consumer's own ranges conflict: {each} overlaps with {following}"
            )
