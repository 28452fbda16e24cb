"""Messages that wait for the time that their producers gave them.

Invariants: immutable; nothing is due before its time, and nothing a tick later is not; a message
waits in one group of 70 minutes, never one that is later than its time, so what is due lies in the
groups up to now; MAX_GROUPS are later at most, the last of which has whatever is later still. A
hundred thousand messages over a day are some twenty groups of arrays. Follows Pulsar's
`BucketDelayedDeliveryTracker` (PIP-195), which rounds times down, and so may be early.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

GROUP_BITS: Final = 22
"""A group is 2**22 milliseconds, 70 minutes."""
MAX_GROUPS: Final = 64

COLUMNS: Final = 5
LEDGER, ENTRY, BATCH_INDEX, BATCH_SIZE, DELIVER_AT = range(COLUMNS)
Rows = NDArray[np.int64]
"""Messages; shape (COLUMNS, n). Where the batch size is 1, the whole entry."""


class DelayedGroup:
    """Messages of one group, one at least. Never changes."""

    __slots__ = ("first_ms", "packed", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.first_ms = int(rows[DELIVER_AT].min())
        self.packed: bytes | None = None
        """The rows as they are stored, so that they are packed once."""


@dataclass(frozen=True, slots=True, eq=False)
class DelayedMessages:
    """The delayed messages of a topic partition.

    Whoever looks says how coarsely: with a `tick_ms`, whose greatest power of two is what times are
    rounded up to.
    """

    groups: Mapping[int, DelayedGroup] = field(default_factory=dict)
    """The groups by time >> GROUP_BITS."""
    messages: PositionSet = field(default_factory=PositionSet)
    """All that waits."""

    @staticmethod
    def of(groups: Mapping[int, DelayedGroup]) -> DelayedMessages:
        """With these groups, of which none is empty."""
        messages = PositionSet.union_of(_messages(group.rows) for group in groups.values())
        return DelayedMessages(groups, messages)

    def add_ledger(
        self, ledger: LedgerInfo, deliver_at_ms: NDArray[np.int64], now_ms: int
    ) -> DelayedMessages:
        """With a ledger's messages, by their times, but for those whose time has come."""
        sizes = ledger.batch_sizes.array()
        late = np.flatnonzero(deliver_at_ms > now_ms)
        entries = np.repeat(np.arange(len(sizes)), sizes)[late]
        indexes = late - (np.cumsum(sizes) - sizes)[entries]
        ids = np.full(len(late), ledger.ledger_id)
        return self.add(
            np.stack((ids, entries, indexes, sizes[entries], deliver_at_ms[late])), now_ms
        )

    def add(self, rows: Rows, now_ms: int) -> DelayedMessages:
        """With these messages, of which none waits yet."""
        if not rows.size:
            return self
        groups = dict(self.groups)
        _place(groups, rows, now_ms)
        return DelayedMessages(groups, self.messages.union(_messages(rows)))

    def next_delivery_time_ms(self, tick_ms: int) -> int | None:
        """When the first comes due; None if nothing waits."""
        if not self.groups:
            return None
        first_ms = min(group.first_ms for group in self.groups.values())
        return -_rounded_down(-first_ms, tick_ms)

    def scheduled_messages(self, now_ms: int, tick_ms: int) -> tuple[DelayedMessages, PositionSet]:
        """Take out what has come due: (what still waits, those)."""
        up_to_ms = _rounded_down(now_ms, tick_ms)
        groups = {key: each for key, each in self.groups.items() if each.first_ms > up_to_ms}
        come = [each.rows for each in self.groups.values() if each.first_ms <= up_to_ms]
        if not come:
            return self, NOTHING
        rows = np.concatenate(come, axis=1)
        is_due = rows[DELIVER_AT] <= up_to_ms
        _place(groups, rows[:, ~is_due], now_ms)
        due = _messages(rows[:, is_due])
        return DelayedMessages(groups, self.messages.difference(due)), due

    def without(self, ledger_ids: Collection[int]) -> DelayedMessages:
        """Once these ledgers are trimmed."""
        if not set(self.messages.ledger_ids).intersection(ledger_ids):
            return self
        gone = np.array(sorted(ledger_ids))
        groups = {}
        for key, group in self.groups.items():
            stays = ~np.isin(group.rows[LEDGER], gone)
            if stays.any():
                groups[key] = group if stays.all() else DelayedGroup(group.rows[:, stays])
        return DelayedMessages.of(groups)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        seen = NOTHING
        for key, group in self.groups.items():
            assert (group.rows[DELIVER_AT] >> GROUP_BITS >= key).all(), "in too late a group"
            messages = _messages(group.rows)
            assert not seen.intersection(messages), "a message waits twice"
            seen = seen.union(messages)
        assert seen == self.messages, "what waits is not what is in the groups"


def _messages(rows: Rows) -> PositionSet:
    return PositionSet.from_arrays(rows[LEDGER], rows[ENTRY], rows[BATCH_INDEX], rows[BATCH_SIZE])


def _rounded_down(time_ms: int, tick_ms: int) -> int:
    bits = max(tick_ms.bit_length() - 1, 0)
    return time_ms >> bits << bits


def _place(groups: dict[int, DelayedGroup], rows: Rows, now_ms: int) -> None:
    """Add these to the groups of their times; what is later than all groups, to the last."""
    last = (now_ms >> GROUP_BITS) + MAX_GROUPS
    keys = np.minimum(rows[DELIVER_AT] >> GROUP_BITS, last)
    for key in np.unique(keys).tolist():
        held = [groups[key].rows] if key in groups else []
        groups[key] = DelayedGroup(np.concatenate([*held, rows[:, keys == key]], axis=1))
