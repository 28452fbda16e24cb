"""Where Pulsar forgets acknowledgements, this cursor keeps them."""

from __future__ import annotations

import pytest

from pulsar_spark.errors import InvalidCursorPositionError
from pulsar_spark.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.positions.position import LATEST, Position
from pulsar_spark.subscriptions.managed_cursor import ManagedCursor
from tests.core.partition import LEDGERS


def ledgers_of(*entries: int, batch_size: int = 1) -> LedgerList:
    """Ledgers 3, 4, ... of so many entries each."""
    return LedgerList(
        LedgerInfo(3 + i, 0, "", 0, BatchSizes(((batch_size, n),) if n else ()), 0, 0, 0)
        for i, n in enumerate(entries)
    )


def test_any_number_of_holes_survives_a_reopening() -> None:
    ledgers = ledgers_of(50_000)
    odd = [Position(3, entry) for entry in range(1, 50_000, 2)]
    cursor = ManagedCursor.open(ledgers).acknowledge(odd)
    assert len(cursor.reopen(ledgers).individually_deleted) == 25_000
    assert cursor.reopen(ledgers).backlog == 25_000


def test_acknowledged_batch_indexes_survive_a_reopening() -> None:
    ledgers = ledgers_of(2, batch_size=10)
    cursor = ManagedCursor.open(ledgers).acknowledge_batch(Position(3, 1), [0b1111101110])
    assert cursor.reopen(ledgers).batch_ack_sets == {Position(3, 1): [0b1111101110]}


def test_a_confirmed_acknowledgement_is_in_the_very_next_value() -> None:
    cursor = ManagedCursor.open(ledgers_of(3)).acknowledge([Position(3, 0)])
    assert cursor.persistent_mark_delete_position == cursor.cursor.mark_delete_position


def test_a_cumulative_ack_inside_a_batch_keeps_earlier_individual_ones() -> None:
    ledgers = ledgers_of(1, batch_size=6)
    cursor = ManagedCursor.open(ledgers).acknowledge_batch(Position(3, 0), [0b001111])
    cursor = cursor.acknowledge_cumulative(Position(3, 0), [0b111100])
    assert cursor.batch_ack_sets == {Position(3, 0): [0b001100]}


def test_a_refused_acknowledgement_changes_nothing_and_says_why() -> None:
    cursor = ManagedCursor.open(ledgers_of(5)).acknowledge_cumulative(Position(3, 2))
    with pytest.raises(InvalidCursorPositionError, match="Current mark-delete: 3:2"):
        cursor.acknowledge_cumulative(Position(3, 1))
    for beyond in (Position(3, 5), Position(4, 0)):
        with pytest.raises(InvalidCursorPositionError, match="beyond the last entry, 3:4"):
            cursor.acknowledge([Position(3, 3), beyond])
        with pytest.raises(InvalidCursorPositionError, match="beyond the last entry"):
            cursor.acknowledge_cumulative(beyond)
        with pytest.raises(InvalidCursorPositionError, match="beyond the last entry"):
            cursor.acknowledge_batch(beyond, [1])


def test_a_place_before_an_empty_ledger_is_acknowledged_once_all_is_consumed() -> None:
    cursor = ManagedCursor.open(ledgers_of(2, 0)).acknowledge([Position(3, 0)])
    with pytest.raises(InvalidCursorPositionError, match="beyond the last entry"):
        cursor.acknowledge_cumulative(Position(4, -1))
    done = cursor.acknowledge([Position(3, 1)])
    assert done.acknowledge_cumulative(Position(4, -1)).cursor == done.cursor


def test_acknowledging_what_was_trimmed_changes_nothing() -> None:
    trimmed = LedgerList(list(ledgers_of(3, 3))[1:])
    cursor = ManagedCursor.open(trimmed)
    assert cursor.acknowledge([Position(3, 1), Position(4, -1)]).cursor == cursor.cursor
    assert cursor.acknowledge_batch(Position(3, 1), [1]).cursor == cursor.cursor


def test_latest_begins_behind_the_last_entry() -> None:
    cursor = ManagedCursor.open(LEDGERS, latest=True)
    assert cursor.read(10) == (cursor, [])
    assert not cursor.has_more_entries
    assert cursor.backlog == 0
    assert ManagedCursor.open(LEDGERS).seek(LATEST).backlog == 0


def test_skipping_counts_deleted_entries_or_does_not() -> None:
    cursor = ManagedCursor.open(ledgers_of(3, 3)).acknowledge([Position(3, 1), Position(4, 1)])
    assert cursor.skip(2).cursor.mark_delete_position == Position(3, 1)
    excluding = cursor.skip(3, include_deleted=False)
    assert excluding.cursor.mark_delete_position == Position(4, 1)


def test_a_partition_without_messages_can_be_subscribed_to() -> None:
    cursor = ManagedCursor.open(ledgers_of(0))
    assert cursor.read_position == Position(3, 0)
    assert not cursor.has_more_entries
    assert cursor.with_ledgers(ledgers_of(2)).read(9)[1] == [Position(3, 0), Position(3, 1)]
