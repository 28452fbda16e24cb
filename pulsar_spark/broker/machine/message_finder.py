"""The place of a message, or of an instant: subscriptions begin there, and seeks go there.

Invariants: nothing here changes the state; a cursor that is made here has acknowledged the messages
that the log hides. Follows Pulsar's `PersistentMessageFinder`.
"""

from __future__ import annotations

import numpy as np

from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import previous_position
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet


def cursor_before(
    state: BrokerState, position: Position, batch_index: int = -1, *, compacted: bool = False
) -> Cursor:
    """A cursor that holds all before a message, and the duplicates that the log hides.

    If not `compacted`, it holds the kept messages of trimmed ledgers too.
    """
    ledgers = state.ledgers_that_stay(compacted=compacted)
    passed = NOTHING if compacted else state.only_compacted
    if not len(ledgers):
        return Cursor(EARLIEST).acknowledge(passed).advance(state.ledgers)
    ledger = ledgers.get(position.ledger_id)
    entry_id = 0 if ledger is None else min(position.entry_id, ledger.entries)
    before = previous_position(ledgers, Position(position.ledger_id, entry_id))
    cursor = Cursor(max(before, Position(ledgers[0].ledger_id, -1)))
    if batch_index > 0 and ledger is not None and 0 <= position.entry_id < ledger.entries:
        size = ledger.batch_sizes.size_of(position.entry_id)
        earlier = (1 << min(batch_index, size)) - 1
        cursor = cursor.acknowledge(PositionSet.of_batch(position, size, earlier))
    return cursor.acknowledge(state.hidden.union(passed)).advance(state.ledgers)


def position_at_time(state: BrokerState, timestamp_ms: int) -> Position:
    """The entry after the newest one that was published before that time."""
    ledgers = state.ledgers
    for ledger in reversed(ledgers):
        if ledger.min_publish_time_ms >= timestamp_ms:
            continue
        if ledger.max_publish_time_ms < timestamp_ms:
            return entry_after(state, ledger.last)
        times = state.columns[ledger.ledger_id].publish_times_ms
        if times is None:  # times are unknown: better some messages again than one lost
            return Position(ledger.ledger_id, 0)
        # A batch is as new as its newest message, so that none is passed over.
        starts = np.cumsum(sizes := ledger.batch_sizes.array()) - sizes
        earlier = np.flatnonzero(np.maximum.reduceat(np.asarray(times), starts) < timestamp_ms)
        if len(earlier):
            return entry_after(state, Position(ledger.ledger_id, int(earlier[-1])))
    return EARLIEST


def entry_after(state: BrokerState, position: Position) -> Position:
    """The entry behind it; LATEST if there is none."""
    ledger = state.ledgers.get(position.ledger_id)
    if ledger is not None and position.entry_id + 1 < ledger.entries:
        return position.next
    following = state.ledgers.first_after(position.ledger_id)
    return LATEST if following is None else Position(following.ledger_id, 0)


def message_after(state: BrokerState, position: Position, batch_index: int) -> tuple[Position, int]:
    """The message behind it, in the same batch if that has one; -1 is an entry's first."""
    ledger = state.ledgers.get(position.ledger_id)
    if batch_index >= 0 and ledger is not None and 0 <= position.entry_id < ledger.entries:
        size = ledger.batch_sizes.size_of(position.entry_id)
        if batch_index + 1 < size:
            return position, batch_index + 1
    return entry_after(state, position), -1
