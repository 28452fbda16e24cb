"""How much of what is there goes into the next micro-batch.

Invariants: no more messages than allowed, shared over the partitions so that none starves; a
limit may end inside an entry; at least one message passes, or a large one would block its
partition; each look costs what it admits, not what waits. Spark's `ReadLimit` has no composite
that a Python source can use, so the limits are here. Follows `KafkaMicroBatchStream.rateLimit`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pyroaring import BitMap

from pulsar_spark.cursor import Cursor
from pulsar_spark.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.position import Position
from pulsar_spark.position_set import PositionSet

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One partition's side: how far it is, its ledgers, and where to stop (None: at the end)."""

    cursor: Cursor
    ledgers: LedgerList
    up_to: Position | None = None

    def take(self, messages: int | None) -> PositionSet:
        """The next messages, at most so many (None: all); costs the ledgers it takes from."""
        whole: dict[int, BitMap] = {}
        parts: dict[int, Mapping[int, int]] = {}
        ledger = self.ledgers.first_at_or_after(self.cursor.mark_delete_position.ledger_id)
        left = messages
        while ledger is not None and (left is None or left > 0):
            rest = self.rest_of(ledger)
            if left is not None and rest:
                one = LedgerList([ledger])
                rest = rest.prefix(left, one)
                left -= rest.count(one)
            whole[ledger.ledger_id] = rest.whole_entries(ledger.ledger_id)
            parts[ledger.ledger_id] = rest.partial_entries(ledger.ledger_id)
            ledger = self._next(ledger)
        return PositionSet(whole, parts)

    def count(self, most: int | None = None) -> int:
        """How many messages wait; stops counting at `most`."""
        waiting = 0
        ledger = self.ledgers.first_at_or_after(self.cursor.mark_delete_position.ledger_id)
        while ledger is not None and (most is None or waiting < most):
            waiting += self.rest_of(ledger).count(LedgerList([ledger]))
            ledger = self._next(ledger)
        return waiting if most is None else min(waiting, most)

    def within_bytes(self, size_bytes: int) -> int:
        """How many of the next messages have about so many payload bytes, at least one."""
        messages = 0
        ledger = self.ledgers.first_at_or_after(self.cursor.mark_delete_position.ledger_id)
        while ledger is not None and size_bytes > 0:
            rest = self.rest_of(ledger).count(LedgerList([ledger]))
            each = max(1.0, ledger.size_bytes / max(1, ledger.messages))
            fitting = min(rest, int(size_bytes / each))
            messages += fitting
            if fitting < rest:
                break
            size_bytes -= int(rest * each)
            ledger = self._next(ledger)
        return max(1, messages)

    def rest_of(self, ledger: LedgerInfo) -> PositionSet:
        """What the cursor has not of one ledger, as far as it may go."""
        done = self.cursor.mark_delete_position
        first = done.entry_id + 1 if done.ledger_id == ledger.ledger_id else 0
        last = ledger.entries - 1
        if self.up_to is not None and ledger.ledger_id >= self.up_to.ledger_id:
            last = min(last, self.up_to.entry_id) if ledger.ledger_id == self.up_to.ledger_id else -1
        rest = PositionSet.of_range(ledger.ledger_id, first, last)
        return rest.difference(self.cursor.individually_deleted) if rest else rest

    def _next(self, ledger: LedgerInfo) -> LedgerInfo | None:
        following = self.ledgers.first_after(ledger.ledger_id)
        if following is not None and self.up_to is not None:
            return following if following.ledger_id <= self.up_to.ledger_id else None
        return following


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of one source; None means no limit."""

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_delay_ms: int = 15 * 60_000

    def admit(
        self, waiting: Mapping[Key, Waiting], *, waited_ms: int | None = None, turn: int = 0
    ) -> dict[Key, PositionSet]:
        """What of each partition goes into the next micro-batch; partitions without are left out.

        `waited_ms` is the time since the last micro-batch; None takes what is there, however
        little. `turn` says which partition is served first when there is not one message each.
        """
        if self.min_messages is not None and waited_ms is not None:
            enough = waited_ms >= self.max_delay_ms or self._reaches_minimum(waiting)
            if not enough:
                return {}
        shares: Mapping[Key, int | None] = dict.fromkeys(waiting)
        if self.max_messages is not None or self.max_bytes is not None:
            shares = self._shares(waiting, turn)
        taken = {key: each.take(shares[key]) for key, each in waiting.items()}
        return {key: messages for key, messages in taken.items() if messages}

    def _reaches_minimum(self, waiting: Mapping[Key, Waiting]) -> bool:
        missing = self.min_messages or 0
        for each in waiting.values():
            missing -= each.count(missing)
            if missing <= 0:
                return True
        return False

    def _shares(self, waiting: Mapping[Key, Waiting], turn: int) -> dict[Key, int]:
        present = {key: each.count(self.max_messages) for key, each in waiting.items()}
        present = {key: count for key, count in present.items() if count}
        shares: dict[Key, int] = dict.fromkeys(waiting, 0)
        if self.max_bytes is not None and present:
            each_bytes = max(1, self.max_bytes // len(present))
            present = {
                key: min(count, waiting[key].within_bytes(each_bytes))
                for key, count in present.items()
            }
        if self.max_messages is None:
            return shares | present
        return shares | fair_shares(present, self.max_messages, turn)


def fair_shares(present: Mapping[Key, int], most: int, turn: int = 0) -> dict[Key, int]:
    """Split `most` so that nobody who wants more gets less than another does.

    >>> fair_shares({"a": 2, "b": 100, "c": 100}, 12)
    {'a': 2, 'b': 5, 'c': 5}
    """
    keys = list(present)
    keys = keys[turn % len(keys) :] + keys[: turn % len(keys)] if keys else keys
    order = sorted(keys, key=lambda key: present[key])
    shares = dict.fromkeys(present, 0)
    left = most
    for place, key in enumerate(order):
        shares[key] = min(present[key], -(-left // (len(order) - place)))
        left -= shares[key]
    return shares
