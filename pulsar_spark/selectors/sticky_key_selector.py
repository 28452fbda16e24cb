"""The consumer of a key's slot in a Key_Shared subscription: the contract of all selectors.

Invariants: immutable, `add` and `remove` give a new selector; each slot goes to one consumer or
to none; removing a consumer that is not there changes nothing; the same joins and leaves in the
same order give the same selector, and its JSON gives it back. Follows Pulsar's
`StickyKeyConsumerSelector`, of which there are three: `auto_split_selector`,
`consistent_hashing_selector`, `sticky_range_selector`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.selectors.hash_assignments import HashAssignments, HashRange


class StickyKeySelector(Protocol):
    """Assigns slots to consumers. Ids are unique; names need not be."""

    @property
    def slots(self) -> int:
        """Slots are below this number; 65,536 unless told otherwise."""

    @property
    def consumers(self) -> tuple[str, ...]:
        """The ids of the consumers, in the order in which they were added."""

    @property
    def assignments(self) -> HashAssignments:
        """The ranges of each consumer."""

    def add(
        self, consumer: str, name: str, ranges: Iterable[HashRange] | None = None
    ) -> StickyKeySelector:
        """The selector with one consumer more. ConsumerAssignError if it can't get slots.

        `ranges` are for STICKY alone, which asks for them. ValueError if the id is there already.
        """

    def remove(self, consumer: str) -> StickyKeySelector:
        """The selector without a consumer; the same if it is not there."""

    def slots_of(self, sticky_key_hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each key from its Murmur3_32Hash (31 bits); never 0. Shape (n,)."""

    def select(self, slot: int) -> str | None:
        """The consumer of a slot; None if nobody has it."""

    def select_many(self, slots: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """The consumer of each slot, as an index into `consumers`; -1 for nobody. Shape (n,)."""

    def owners(self) -> NDArray[np.int32]:
        """The consumer of every slot, as in `select_many`; shape (slots,)."""

    def to_json_value(self) -> dict[str, Any]:
        """The state in plain values."""


def check_new(consumers: Iterable[str], consumer: str) -> None:
    """ValueError if a consumer has that id already."""
    if consumer in consumers:
        raise ValueError(f"consumer {consumer!r} is there already: ids must differ, names need not")


def slots_from(hashes: NDArray[np.int64], count: int, first: int) -> NDArray[np.int64]:
    """Slots first ... first + count - 1 from hashes; 1 in place of 0, which means no key."""
    slots = hashes % count + first
    slots[slots == 0] = 1
    return slots
