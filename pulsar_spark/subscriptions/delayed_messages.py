"""All delayed messages of a topic partition: those of the next hours by bucket, the rest in bulk.

Invariants: immutable; a message is near, or in exactly one group of those that are far; nothing is
due before its time, whichever it is in; there are at most MAX_GROUPS groups, the last of which
holds whatever is later still. So a hundred thousand messages over a day are some twenty groups of
arrays, and a look at what is due touches the near ones only. Follows Pulsar's
`BucketDelayedDeliveryTracker` (PIP-195).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.positions.ledger_info import LedgerInfo
from pulsar_spark.positions.position_set import NOTHING, PositionSet
from pulsar_spark.subscriptions.delayed_delivery import DelayedDeliveryTracker

GROUP_BITS: Final = 22
"""A group is 2**22 milliseconds, 70 minutes."""
MAX_GROUPS: Final = 64


class FarMessages(NamedTuple):
    """Whole entries, one value each: ledger, entry id, when it is to be delivered."""

    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]
    times_ms: NDArray[np.int64]

    def where(self, mask: NDArray[np.bool_]) -> FarMessages:
        return FarMessages(*(column[mask] for column in self))

    def by_time(self) -> Iterator[tuple[int, PositionSet]]:
        """(time, its entries), ascending."""
        order = np.argsort(self.times_ms, kind="stable")
        times, first = np.unique(self.times_ms[order], return_index=True)
        edges = [*first.tolist(), len(order)]
        for time, (start, stop) in zip(times.tolist(), pairwise(edges), strict=True):
            places = order[start:stop]
            yield time, PositionSet.from_arrays(self.ledger_ids[places], self.entry_ids[places])

    def as_set(self) -> PositionSet:
        return PositionSet.from_arrays(self.ledger_ids, self.entry_ids)


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """What waits for its producers' time. `near` has the next two groups, and parts of batches."""

    near: DelayedDeliveryTracker = field(default_factory=DelayedDeliveryTracker)
    far: Mapping[int, FarMessages] = field(default_factory=dict)
    """By time >> GROUP_BITS."""
    _messages: PositionSet = field(default_factory=PositionSet)

    def __bool__(self) -> bool:
        return not self._messages.is_empty

    def messages(self) -> PositionSet:
        """All that waits."""
        return self._messages

    @staticmethod
    def of(near: DelayedDeliveryTracker, far: Mapping[int, FarMessages]) -> DelayedMessages:
        """As it was read."""
        messages = near.messages()
        for group in far.values():
            messages = messages.union(group.as_set())
        return DelayedMessages(near, far, messages)

    def with_tick(self, tick_ms: int) -> DelayedMessages:
        """Whose buckets are that wide from now on."""
        return self if tick_ms == self.near.tick_ms else replace(
            self, near=replace(self.near, tick_ms=tick_ms)
        )  # fmt: skip

    def add_messages(
        self, messages: PositionSet, deliver_at_ms: int, now_ms: int
    ) -> DelayedMessages:
        """Parts of batches, that all have one time, unless it has come."""
        near, waits = self.near.add_messages(messages, deliver_at_ms, now_ms)
        added = messages if waits else NOTHING
        return DelayedMessages(near, self.far, self._messages.union(added))

    def add_many(
        self,
        ledger_id: int,
        entry_ids: NDArray[np.integer[Any]],
        deliver_at_ms: NDArray[np.int64],
        now_ms: int,
    ) -> DelayedMessages:
        """Entries of one ledger, both of shape (n,), but for those whose time has come."""
        mask = deliver_at_ms > now_ms
        if not mask.any():
            return self
        entries = entry_ids[mask].astype(np.int64)
        ids = np.full(len(entries), ledger_id, np.int64)
        added = FarMessages(ids, entries, deliver_at_ms[mask].astype(np.int64))
        near, far = _placed(self.near, dict(self.far), added, now_ms)
        return DelayedMessages(near, far, self._messages.union(added.as_set()))

    def add_ledger(
        self, ledger: LedgerInfo, deliver_at_ms: NDArray[np.int64], now_ms: int
    ) -> DelayedMessages:
        """The messages of a ledger, by their rows' times, but for those whose time has come."""
        delayed = self
        sizes = ledger.batch_sizes.array()
        first = np.cumsum(sizes) - sizes
        single = np.flatnonzero(sizes == 1)
        if len(single):
            delayed = delayed.add_many(
                ledger.ledger_id, single, deliver_at_ms[first[single]], now_ms
            )
        for entry_id in np.flatnonzero(sizes > 1).tolist():
            times = deliver_at_ms[first[entry_id] : first[entry_id] + sizes[entry_id]]
            for time in np.unique(times[times > now_ms]).tolist():
                bits = sum(1 << index for index in np.flatnonzero(times == time).tolist())
                part = PositionSet.of_batch((ledger.ledger_id, entry_id), len(times), bits)
                delayed = delayed.add_messages(part, time, now_ms)
        return delayed

    @property
    def next_delivery_time_ms(self) -> int | None:
        """When the first comes due; None if nothing waits."""
        times = [self.near.next_delivery_time_ms]
        if self.far:
            first = np.array([held.times_ms.min() for held in self.far.values()])
            times.append(int(self.near.delivery_times_ms(first).min()))
        return min((time for time in times if time is not None), default=None)

    def has_message_available(self, now_ms: int) -> bool:
        """Whether something has come due."""
        due_ms = self.next_delivery_time_ms
        return due_ms is not None and due_ms <= now_ms

    def scheduled_messages(self, now_ms: int) -> tuple[DelayedMessages, PositionSet]:
        """Take out what has come due: (what still waits, those)."""
        near, far = self.near, dict(self.far)
        near, due = near.scheduled_messages(now_ms)
        for group in [group for group in sorted(far) if group <= now_ms >> GROUP_BITS]:
            held = far.pop(group)
            waits = near.delivery_times_ms(held.times_ms) > now_ms
            due = due.union(held.where(~waits).as_set())
            near, far = _placed(near, far, held.where(waits), now_ms)
        return DelayedMessages(near, far, self._messages.difference(due)), due

    def without(self, messages: PositionSet) -> DelayedMessages:
        """Once they are trimmed."""
        if not self._messages.intersection(messages):
            return self
        far = {group: _without(held, messages) for group, held in self.far.items()}
        far = {group: held for group, held in far.items() if len(held.times_ms)}
        near = self.near.without(messages)
        return DelayedMessages(near, far, self._messages.difference(messages))

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.near.check()
        seen = self.near.messages()
        assert len(self.far) <= MAX_GROUPS + 2, "too many groups"
        for group, held in self.far.items():
            assert len(held.times_ms), "an empty group"
            assert (held.times_ms >> GROUP_BITS >= group).all(), "far, and in too late a group"
            messages = held.as_set()
            assert not seen.intersection(messages), "a message waits twice"
            seen = seen.union(messages)
        assert seen == self._messages, "what waits is not what is in the groups"


def _placed(
    near: DelayedDeliveryTracker, far: dict[int, FarMessages], added: FarMessages, now_ms: int
) -> tuple[DelayedDeliveryTracker, dict[int, FarMessages]]:
    """Near, or in the group of its time; those that are later than all groups, in the last."""
    first = (now_ms >> GROUP_BITS) + 2
    groups = np.minimum(added.times_ms >> GROUP_BITS, first + MAX_GROUPS - 1)
    soon = added.where(groups < first)
    buckets = dict(soon._replace(times_ms=near.delivery_times_ms(soon.times_ms)).by_time())
    near = near.add_buckets(buckets, int(soon.times_ms.max(initial=0)))
    for group in np.unique(groups[groups >= first]).tolist():
        rows, held = added.where(groups == group), far.get(group)
        if held is not None:
            rows = FarMessages(*(np.concatenate(pair) for pair in zip(held, rows, strict=True)))
        far[group] = rows
    return near, far


def _without(held: FarMessages, messages: PositionSet) -> FarMessages:
    keep = np.ones(len(held.times_ms), np.bool_)
    for ledger_id in set(messages.ledger_ids) & set(held.ledger_ids.tolist()):
        gone = np.array(messages.whole_entries(ledger_id).to_array(), np.int64)
        keep &= (held.ledger_ids != ledger_id) | ~np.isin(held.entry_ids, gone)
    return held.where(keep)
