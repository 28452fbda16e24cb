"""What the cursor cases run: a durable subscription in the broker's step.

`cursors` reads a recorded case, and compares; it knows a cursor by this class alone. An
acknowledgement that is refused raises `InvalidCursorPositionError`, and changes nothing.

Pulsar's ledgers grow while they are written to. Ours don't: what is added to one at a time is a
ledger of ours, a run, whose id says where it lies. So places are named as Pulsar names them on the
way out, and as the log names them on the way in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine import retention
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    CreateSubscription,
    InitialPosition,
    LedgerAdded,
    LedgersTrimmed,
    Report,
    Seek,
)
from pulsar_spark.broker.protocol.policies import INFINITE, TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.errors import InvalidCursorPositionError, ServerError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.vectors import ack_set
from tests.vectors.ranges import ranges_of, ranges_text

_RUNS: Final = 1_000_000
"""A run's id is its Pulsar ledger's, times this, and its first entry's."""
_NAME: Final = "s"
_PLACE: Final = re.compile(r"-?\d+:-?\d+")
_KEPT: Final = TopicPolicies(retention_time_ms=INFINITE, retention_size_bytes=INFINITE)
"""When Pulsar trims is its own affair: nothing is asked for, and what is gone is told."""
Sizes = Mapping[int, Sequence[int]]
"""Batch sizes of the entries of each of Pulsar's ledgers."""


class CursorSubject:
    """A durable subscription's cursor on one partition."""

    def __init__(self, sizes: Sizes, *, latest: bool, by_index: bool) -> None:
        policies = replace(_KEPT, batch_index_acknowledgment=by_index)
        self._state = BrokerState("persistent://public/default/vectors", policies=policies)
        self._next_entry: dict[int, int] = {}
        """Of each ledger that Pulsar has, or had: how many entries were added to it."""
        self.published(sizes)
        self._earliest = Position(min(sizes), -1)
        where = InitialPosition.LATEST if latest else InitialPosition.EARLIEST
        self._tell(CreateSubscription(_NAME, where, request_id=0))

    @property
    def mark_delete(self) -> Position:
        return max(self._pulsars(self._cursor.mark_delete_position), self._earliest)

    def published(self, sizes: Sizes) -> None:
        """Messages were published, or ledgers trimmed, of which the log keeps its newest."""
        self._sizes = sizes
        for ledger_id, held in sorted(sizes.items()):
            first = self._next_entry.get(ledger_id, 0)
            self._next_entry[ledger_id] = len(held)
            if len(held) > first:
                run = BatchSizes.of(held[first:])
                run_id = ledger_id * _RUNS + first
                self._tell(LedgerAdded(LedgerInfo(run_id, 0, "", 0, run, 0, 0, 0)))
        known = [ledger.ledger_id for ledger in self._state.ledgers]
        gone = tuple(each for each in known[:-1] if each // _RUNS not in sizes)
        if gone:
            self._tell(LedgersTrimmed(gone))

    def not_released(self, ledger_ids: Iterable[int]) -> list[int]:
        """Those that the step would not ask to be trimmed without retention; the newest it never
        does, since an empty one behind it is Pulsar's alone."""
        unkept = replace(self._state, policies=TopicPolicies())
        released = retention.ledgers_to_trim(unkept, unkept.now_ms)
        requested = [ledger.ledger_id for ledger in self._state.ledgers][:-1]
        left = {each // _RUNS for each in requested if each not in released}
        return sorted(left.intersection(ledger_ids))

    def reopen(self, sizes: Sizes) -> None:
        """After a restart, however it came about."""
        self._state = from_shards(to_shards(self._state))
        self.published(sizes)

    def acknowledge(self, positions: list[Position]) -> None:
        """Whole entries; before the first ledger, and before a ledger's first entry, is none."""
        there = [each for each in positions if each.entry_id >= 0 and each > self._earliest]
        self._report(Cursor().acknowledge(PositionSet.of(map(self._ours, there))))

    def acknowledge_batch(self, position: Position, words: list[int]) -> None:
        self._report(Cursor().acknowledge(self._part(position, words)))

    def acknowledge_cumulative(self, position: Position, words: list[int] | None = None) -> None:
        end = self._pulsars(self._state.last_position)
        named = self._ours(position)
        is_behind_all = position.entry_id < 0 and position > self.mark_delete >= end
        # Where it stands already, or before an empty ledger, which the log has not.
        if position == self.mark_delete or is_behind_all:
            named = self._cursor.mark_delete_position
        if words:
            cursor = Cursor(named.previous).acknowledge(self._part(position, words))
            self._report(cursor)
        elif named > EARLIEST:
            self._report(Cursor(named))

    def seek(self, position: Position, words: list[int] | None) -> None:
        """With `words`, an ack_set, some of that entry's messages stay acknowledged."""
        self._earliest = Position(min(self._sizes), -1)
        named = LATEST if position == LATEST else self._ours(max(position, self._earliest))
        self._tell(Seek(_NAME, named, request_id=0))
        if words is not None:
            self.acknowledge_batch(position, words)

    def is_deleted(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return self._cursor.contains(self._ours(position))

    def replay(self, positions: Iterable[Position]) -> tuple[list[Position], list[Position]]:
        """(those already acknowledged, those to be delivered again), each in order."""
        requested = sorted(set(positions))
        left = self._cursor.not_acknowledged(PositionSet.of(map(self._ours, requested)))
        return (
            [each for each in requested if not left.contains(self._ours(each))],
            [each for each in requested if left.contains(self._ours(each))],
        )

    def unread(self) -> list[Position]:
        """The entries of which something is not acknowledged."""
        left = (self._pulsars(p) for p, _ in self._cursor.unread(self._ledgers).entries())
        return [each for each in left if each.ledger_id in self._sizes]

    def check(self) -> None:
        """Its own invariants."""
        self._state.check()

    def state(self, read_position: Position) -> dict[str, Any]:
        """As the vectors record it, of what stands in the broker's state."""
        deleted = self._cursor.individually_deleted
        whole = PositionSet.of(self._pulsars(p) for p, part in deleted.entries() if part is None)
        ranges, unread = ranges_of(whole), self.unread()
        return {
            "mark_delete": [*self.mark_delete],
            "individually_deleted": ranges_text(ranges),
            "ranges_open_closed": [[*part.lower, *part.upper] for part in ranges],
            "non_contiguous_ranges": len(ranges),
            "backlog_precise": len(unread),
            "backlog_imprecise": len(unread),  # Pulsar's is a counter that may drift
            "entries_ahead_of_read": sum(each >= read_position for each in unread),
            "batch_ack_sets": {
                str(self._pulsars(p)): ack_set.to_words(part ^ (1 << part.bit_length()) - 1)
                for p, part in deleted.entries()
                if part is not None
            },
        }

    # -- inside ------------------------------------------------------------------------------

    @property
    def _cursor(self) -> Cursor:
        return self._state.subscriptions[_NAME].cursor

    @property
    def _ledgers(self) -> LedgerList:
        return self._state.ledgers

    def _part(self, position: Position, words: list[int]) -> PositionSet:
        """What an ack set no longer has of an entry, whether there is such an entry or not."""
        named, left = self._ours(position), ack_set.from_words(words)
        ledger = self._ledgers.get(named.ledger_id)
        size = left.bit_length() + 1
        if ledger is not None and 0 <= named.entry_id < ledger.entries:
            size = ledger.batch_sizes.size_of(named.entry_id)
        return PositionSet.of_batch(named, size, (1 << size) - 1 & ~left)

    def _report(self, acknowledged: Cursor) -> None:
        """As a sink does."""
        self._tell(Report(_NAME, epoch=None, acknowledged=acknowledged, request_id=0))

    def _tell(self, command: Command) -> None:
        self._state, ready = step(self._state, [command], 0)
        assert not ready.trim, "everything is kept"
        for reply in ready.replies:
            if reply.error is ServerError.INVALID_CURSOR_POSITION:
                raise InvalidCursorPositionError(_PLACE.sub(self._renamed, reply.message))
            assert reply.error is None, reply.message

    def _renamed(self, found: re.Match[str]) -> str:
        position = Position.parse(found[0])
        at_mark_delete = position == self._cursor.mark_delete_position
        return str(self.mark_delete if at_mark_delete else self._pulsars(position))

    def _ours(self, position: Position) -> Position:
        """The same place in the log; where there is none, one that the log has not either."""
        ledger_id, entry_id = position
        runs = self._ledgers.between(ledger_id * _RUNS, ledger_id * _RUNS + max(entry_id, 0))
        run_id = runs[-1].ledger_id if runs else ledger_id * _RUNS
        return Position(run_id, entry_id - run_id % _RUNS)

    def _pulsars(self, position: Position) -> Position:
        if position == EARLIEST:
            return EARLIEST
        ledger_id, first = divmod(position.ledger_id, _RUNS)
        return Position(ledger_id, first + position.entry_id)
