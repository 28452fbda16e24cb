"""Key_Shared slots by splitting: a consumer that joins gets half of the biggest range.

Invariants: each consumer has one range; all ranges together cover every slot; a join takes slots
of one consumer only, a leave gives slots to one only. Follows Pulsar's
`HashRangeAutoSplitStickyKeyConsumerSelector`, which is used where consistent hashing is off. As
there, the top range is reported to end at `slots`, one more than the highest slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.errors import ConsumerAssignError
from pulsar_spark.producing.hashing import AUTO_SPLIT_SLOTS
from pulsar_spark.selectors.hash_assignments import HashAssignments, HashRange
from pulsar_spark.selectors.sticky_key_selector import check_new, slots_from


class AutoSplitSelector:
    """Ranges that are cut in half as consumers come; ValueError if `slots` is no power of two."""

    __slots__ = ("_assignments", "_highest", "consumers", "slots")

    def __init__(
        self, slots: int = AUTO_SPLIT_SLOTS, highest: Iterable[tuple[str, int]] = ()
    ) -> None:
        """`highest`: each consumer and the highest slot of its range, in order of joining."""
        if slots < 2:
            raise ValueError("range size must greater than 2")
        if slots & slots - 1:
            raise ValueError("range size must be nth power with 2")
        self.slots = slots
        self._highest = dict(highest)
        self.consumers: tuple[str, ...] = tuple(self._highest)
        ends = sorted((end, place) for place, end in enumerate(self._highest.values()))
        starts = [0, *(end + 1 for end, _ in ends)]
        self._assignments = HashAssignments.of(
            self.consumers,
            [(start, end, place) for start, (end, place) in zip(starts, ends, strict=False)],
        )

    @property
    def assignments(self) -> HashAssignments:
        return self._assignments

    def add(
        self, consumer: str, name: str = "", ranges: Iterable[HashRange] | None = None
    ) -> AutoSplitSelector:
        """Give the consumer the lower half of the biggest range, of several the lowest."""
        del name, ranges
        check_new(self.consumers, consumer)
        if not self._highest:
            return AutoSplitSelector(self.slots, [(consumer, self.slots)])
        ends = sorted(self._highest.values())
        # The lowest range begins above 0 here, as in Pulsar: slot 0 is never used.
        size, end = max(
            ((end - low, end) for low, end in zip([0, *ends], ends, strict=False)),
            key=lambda each: (each[0], -each[1]),
        )
        if size <= 1:
            raise ConsumerAssignError(
                "No more range can assigned to new consumer, assigned consumers "
                f"{len(self.consumers)}"
            )
        return AutoSplitSelector(
            self.slots, [*self._highest.items(), (consumer, end - (size >> 1))]
        )

    def remove(self, consumer: str) -> AutoSplitSelector:
        """Give the consumer's range to the next higher one; the top one's to the next lower."""
        if consumer not in self._highest:
            return self
        left = {who: end for who, end in self._highest.items() if who != consumer}
        if left and self._highest[consumer] == self.slots:
            left[max(left, key=left.__getitem__)] = self.slots
        return AutoSplitSelector(self.slots, left.items())

    def slots_of(self, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        return slots_from(sticky_key_hashes, self.slots, 0)

    def select(self, slot: int) -> str | None:
        return self._assignments.select(slot)

    def select_many(self, slots: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        return self._assignments.select_many(slots)

    def owners(self) -> NDArray[np.int32]:
        return self._assignments.owners(self.slots)

    def to_json_value(self) -> dict[str, Any]:
        return {"slots": self.slots, "highest": [[who, end] for who, end in self._highest.items()]}

    @staticmethod
    def from_json_value(value: dict[str, Any]) -> AutoSplitSelector:
        return AutoSplitSelector(value["slots"], [(who, end) for who, end in value["highest"]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AutoSplitSelector):
            return NotImplemented
        return self.to_json_value() == other.to_json_value()

    __hash__ = None  # type: ignore[assignment]  # as its assignments

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self._assignments.check()
        assert len(set(self._highest.values())) == len(self._highest), "a range of two consumers"
        assert not self._highest or max(self._highest.values()) == self.slots, "slots of nobody"
