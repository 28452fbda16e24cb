"""Which Key_Shared slots wait until their old consumer is done with what it holds of them.

Invariants: immutable; a slot drains from one consumer at a time; it is blocked for all others
until every message that was counted is acknowledged or given back; if it goes back to the one it
drains from, nothing waits any more; slot 0 (no key) never drains. Follows Pulsar's
`DrainingHashesTracker` (PIP-379). The forms that take arrays do for many slots at once what the
plain ones do one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DrainingHash:
    """One slot that drains: from whom, how many messages it holds, how often others waited."""

    consumer: str
    ref_count: int
    blocked_count: int = 0


@dataclass(frozen=True, slots=True)
class DrainingHashes:
    """All slots that drain, by slot."""

    entries: Mapping[int, DrainingHash] = field(default_factory=dict)

    def add(self, consumer: str, slot: int, messages: int = 1) -> DrainingHashes:
        """Count messages that `consumer`, who loses the slot, still holds of it.

        ValueError for slot 0; RuntimeError if the slot drains from another consumer.
        """
        if slot == 0:
            raise ValueError("Sticky hash cannot be 0")
        held = self.entries.get(slot)
        if held is None:
            return self._with({slot: DrainingHash(consumer, messages)})
        self._check_same(held, consumer, slot)
        return self._with({slot: replace(held, ref_count=held.ref_count + messages)})

    def add_many(
        self, consumer: str, slots: NDArray[np.integer[Any]], messages: NDArray[np.integer[Any]]
    ) -> DrainingHashes:
        """`add` for each of `slots`, none twice, that holds any; both of shape (n,)."""
        changed: dict[int, DrainingHash] = {}
        for slot, count in zip(slots.tolist(), messages.tolist(), strict=True):
            if count and slot == 0:
                raise ValueError("Sticky hash cannot be 0")
            held = self.entries.get(slot)
            if held is None:
                changed[slot] = DrainingHash(consumer, count)
            else:
                self._check_same(held, consumer, slot)
                changed[slot] = replace(held, ref_count=held.ref_count + count)
        return self._with({slot: held for slot, held in changed.items() if held.ref_count})

    def reduce(
        self, consumer: str, slot: int, messages: int = 1, *, closing: bool = False
    ) -> tuple[DrainingHashes, bool]:
        """Take off messages that are acknowledged or given back: (what is left, unblocked).

        `unblocked`: somebody waited for the slot and may go on now; never so while the consumer
        closes, since what it gives back is dispatched then anyway. RuntimeError if the slot
        drains from another consumer; a slot that does not drain changes nothing.
        """
        held = self.entries.get(slot)
        if slot == 0 or held is None:
            return self, False
        self._check_same(held, consumer, slot)
        if held.ref_count != messages:
            left = replace(held, ref_count=held.ref_count - messages)
            return self._with({slot: left}), False
        return self._with({}, (slot,)), bool(held.blocked_count) and not closing

    def reduce_many(
        self,
        consumer: str,
        slots: NDArray[np.integer[Any]],
        messages: NDArray[np.integer[Any]],
        *,
        closing: bool = False,
    ) -> tuple[DrainingHashes, list[int]]:
        """`reduce` for each of `slots`, none twice: (what is left, the slots unblocked).

        Slots that drain from another consumer are passed over: what `consumer` acknowledges of
        them was given to it before, or is another's message.
        """
        changed: dict[int, DrainingHash] = {}
        done, unblocked = [], []
        if not self.entries:
            return self, []
        wanted = np.isin(slots, np.fromiter(self.entries, np.int64, len(self.entries)))
        for slot, count in zip(slots[wanted].tolist(), messages[wanted].tolist(), strict=True):
            held = self.entries[slot]
            if held.consumer != consumer or not count:
                continue
            if held.ref_count > count:
                changed[slot] = replace(held, ref_count=held.ref_count - count)
            else:
                done.append(slot)
                if held.blocked_count and not closing:
                    unblocked.append(slot)
        return self._with(changed, done), unblocked

    def should_block(self, consumer: str, slot: int) -> tuple[DrainingHashes, bool]:
        """Whether `consumer`, who has the slot now, must wait: (what is known then, blocked)."""
        held = self.entries.get(slot)
        if slot == 0 or held is None:
            return self, False
        if held.consumer == consumer:
            return self._with({}, (slot,)), False
        return self._with({slot: replace(held, blocked_count=held.blocked_count + 1)}), True

    def blocked_many(
        self,
        slots: NDArray[np.integer[Any]],
        owners: NDArray[np.integer[Any]],
        consumers: Sequence[str],
    ) -> tuple[DrainingHashes, NDArray[np.bool_]]:
        """`should_block` for messages of `slots`, shape (n,), slots may repeat.

        `owners`: who has each slot now, as an index into `consumers`; nobody, below 0, is blocked
        by nothing. The mask says which messages wait; each slot counts as blocked once.
        """
        mask = np.zeros(len(slots), np.bool_)
        if not self.entries:
            return self, mask
        wanted = np.fromiter(self.entries, np.int64, len(self.entries))
        rows = np.flatnonzero(np.isin(slots, wanted) & (owners >= 0))
        if not len(rows):
            return self, mask
        distinct, first = np.unique(slots[rows], return_index=True)
        blocked: dict[int, DrainingHash] = {}
        returned = []
        for slot, owner in zip(distinct.tolist(), owners[rows][first].tolist(), strict=True):
            held = self.entries[slot]
            if held.consumer == consumers[owner]:
                returned.append(slot)
            else:
                blocked[slot] = replace(held, blocked_count=held.blocked_count + 1)
        mask[rows] = np.isin(slots[rows], np.fromiter(blocked, np.int64, len(blocked)))
        return self._with(blocked, returned), mask

    def without_consumer(self, consumer: str) -> DrainingHashes:
        """Once a consumer has left, and all it held was given back."""
        return self._with({}, [s for s, held in self.entries.items() if held.consumer == consumer])

    def to_json_value(self) -> list[list[Any]]:
        """[slot, consumer, messages, times blocked] of each slot, ascending."""
        return [
            [slot, held.consumer, held.ref_count, held.blocked_count]
            for slot, held in sorted(self.entries.items())
        ]

    @staticmethod
    def from_json_value(value: Iterable[Sequence[Any]]) -> DrainingHashes:
        return DrainingHashes({slot: DrainingHash(*rest) for slot, *rest in value})

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert 0 not in self.entries, "slot 0 drains"

    def _with(
        self, changed: Mapping[int, DrainingHash], gone: Iterable[int] = ()
    ) -> DrainingHashes:
        entries = {**self.entries, **changed}
        for slot in gone:
            del entries[slot]
        return DrainingHashes(entries)

    @staticmethod
    def _check_same(held: DrainingHash, consumer: str, slot: int) -> None:
        if held.consumer != consumer:
            raise RuntimeError(
                f"Consumer {held.consumer} is already draining hash {slot}. "
                f"Same hash being used for consumer {consumer}."
            )
