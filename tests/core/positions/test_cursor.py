"""A cursor is a set of messages that grows, whatever way it is told."""

from __future__ import annotations

import json
import pickle
import struct
import zlib
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import CorruptFileError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.partition import (
    ENTRIES,
    LEDGERS,
    MESSAGES,
    Message,
    listed,
    made,
    message_sets,
    positions,
    repeatable,
    size_of,
)

Messages = frozenset[Message]

cursors = st.builds(Cursor, positions, message_sets.map(made))
some_cursor = Cursor(Position(3, 5)).acknowledge(
    PositionSet.of([(3, 7), (3, 8), (3, 9), (4, 0), (12, 4_000_000_000)])
    | PositionSet.of_batch((4, 3), 10, 0b1101)
    | PositionSet.of_batch((4, 4), 2000, sum(1 << i for i in range(0, 2000, 3)))
    | PositionSet.of((5, e) for e in range(0, 3000, 3))
)
"""The cursor of the golden files has readable entries, packed ones, parts of both kinds."""


def held(cursor: Cursor) -> Messages:
    return frozenset(m for m in MESSAGES if cursor.contains(Position(*m[:2]), m[2]))


@repeatable
@given(cursors, message_sets)
def test_acknowledging_is_a_union(cursor: Cursor, messages: Messages) -> None:
    after = cursor.acknowledge(made(messages))
    after.check()
    assert held(after) == held(cursor) | messages


@repeatable
@given(cursors, message_sets)
def test_one_by_one_or_at_once_is_the_same(cursor: Cursor, messages: Messages) -> None:
    singly = reduce(
        lambda c, m: c.acknowledge(PositionSet.of_batch(m[:2], size_of(m[:2]), 1 << m[2])),
        sorted(messages),
        cursor,
    )
    assert singly == cursor.acknowledge(made(messages))


@repeatable
@given(cursors, st.sampled_from(MESSAGES))
def test_a_cumulative_acknowledgement_adds_all_before_and_keeps_what_is_after(
    cursor: Cursor, message: Message
) -> None:
    position = Position(*message[:2])
    after = cursor.acknowledge_cumulative(position, message[2], size_of(position))
    after.check()
    assert held(after) == held(cursor) | {m for m in MESSAGES if m <= message}


@repeatable
@given(cursors, cursors)
def test_a_union_holds_what_either_holds(one: Cursor, other: Cursor) -> None:
    both = one.union(other)
    both.check()
    assert held(both) == held(one) | held(other)
    assert both == other.union(one)
    assert one.union(one) == one


@repeatable
@given(cursors, cursors)
def test_a_difference_holds_what_one_has_and_the_other_has_not(one: Cursor, other: Cursor) -> None:
    found = one.difference(other, LEDGERS)
    found.check()
    assert frozenset(listed(found)) == held(one) - held(other)


@repeatable
@given(cursors, message_sets, message_sets)
def test_micro_batches_add_up_whatever_their_offsets(
    start: Cursor, one: Messages, other: Messages
) -> None:
    middle = start.acknowledge(made(one))
    end = middle.acknowledge(made(other)).advance(LEDGERS)
    first, second = middle.difference(start, LEDGERS), end.difference(middle, LEDGERS)
    assert not first & second
    assert first | second == end.difference(start, LEDGERS)


@repeatable
@given(cursors)
def test_advancing_moves_the_mark_delete_and_no_message(cursor: Cursor) -> None:
    after = cursor.advance(LEDGERS)
    after.check()
    assert held(after) == held(cursor)
    assert after.advance(LEDGERS) == after
    rest = [m for m in MESSAGES if m not in held(cursor)]
    following = [p for p in ENTRIES if p > after.mark_delete_position]
    assert not rest or following[0] == rest[0][:2], "it stands right before what is missing"


@repeatable
@given(cursors)
def test_the_backlog_is_what_is_not_held(cursor: Cursor) -> None:
    assert cursor.backlog(LEDGERS) == len(MESSAGES) - len(held(cursor))
    assert frozenset(listed(cursor.unread(LEDGERS))) == frozenset(MESSAGES) - held(cursor)


@repeatable
@given(cursors)
def test_bytes_and_json_bring_a_cursor_back(cursor: Cursor) -> None:
    comes_back(cursor)
    assert pickle.loads(pickle.dumps(cursor)) == cursor


def test_mark_delete_stays_at_a_ledgers_end_until_the_next_one_is_consumed() -> None:
    cursor = Cursor(Position(2, 5))
    assert cursor.advance(LEDGERS).mark_delete_position == Position(2, 5)
    cursor = cursor.acknowledge(PositionSet.of([(5, 0)])).advance(LEDGERS)
    assert cursor.mark_delete_position == Position(5, 0)


def test_mark_delete_steps_over_consumed_ledgers_and_ids_of_other_partitions() -> None:
    whole = PositionSet.of(p for p in ENTRIES if p.ledger_id in (5, 6)) | PositionSet.of([(9, 0)])
    cursor = Cursor(Position(2, 5)).acknowledge(whole).advance(LEDGERS)
    assert cursor == Cursor(Position(9, 0))


def test_a_trimmed_ledger_above_the_mark_delete_is_not_taken_as_consumed() -> None:
    without_2 = LedgerList(ledger for ledger in LEDGERS if ledger.ledger_id != 2)
    cursor = Cursor(Position(2, 1)).acknowledge(PositionSet.of([(2, 3)]))
    assert cursor.advance(without_2) == cursor


def test_a_position_before_a_ledger_is_the_end_of_the_one_before() -> None:
    assert Cursor(Position(9, -1)).advance(LEDGERS) == Cursor(Position(6, 0))
    assert Cursor(Position(2, -1)).advance(LEDGERS) == Cursor(Position(2, -1))


def test_a_cumulative_ack_below_the_mark_delete_changes_nothing() -> None:
    cursor = Cursor(Position(5, 1))
    assert cursor.acknowledge_cumulative(Position(2, 4), 2, 5) is not None
    assert cursor.acknowledge_cumulative(Position(2, 4), 2, 5) == cursor
    assert cursor.floor(Position(5, 0)) == cursor


def test_a_cumulative_ack_inside_a_batch_keeps_individual_ones_of_that_batch() -> None:
    cursor = Cursor(Position(2, 3)).acknowledge(PositionSet.of_batch((2, 4), 5, 1 << 3))
    cursor = cursor.acknowledge_cumulative(Position(2, 4), 1, 5)
    assert cursor.individually_deleted == PositionSet.of_batch((2, 4), 5, 0b01011)


def test_a_new_cursor_holds_nothing() -> None:
    assert Cursor() == Cursor(EARLIEST, PositionSet())
    assert Cursor().backlog(LEDGERS) == len(MESSAGES)
    assert Cursor().backlog(LedgerList()) == 0
    assert str(Cursor()) == "-1:-1 and nothing"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"version":0}',
        '{"version":1}',
        '{"version":"1","mark_delete_position":"1:2"}',
        '{"version":1,"mark_delete_position":"1"}',
        '{"version":1,"mark_delete_position":7}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":[]}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"x":"1"}}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"3":5}}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"3":"5-2"}}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"3":"1/0[0]"}}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"3":"1/4[4]"}}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"3":"9999999999"}}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"3":"-5/4[0]"}}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"3":"~~~"}}',
        '{"version":1,"mark_delete_position":"1:2","individually_deleted":{"3":"~abcde"}}',
    ],
)
def test_damaged_json_is_refused(text: str) -> None:
    with pytest.raises(CorruptFileError):
        Cursor.from_json_value(json.loads(text))


def test_damaged_bytes_are_refused_wherever_they_are_cut_or_changed() -> None:
    data = some_cursor.to_bytes()
    for damaged in (b"", b"PLCU", data + b"\0", b"PLCX" + data[4:], b"PLCU\0\0" + data[6:]):
        with pytest.raises(CorruptFileError):
            Cursor.from_bytes(damaged)
    for place in range(0, len(data), 7):
        with pytest.raises(CorruptFileError):
            Cursor.from_bytes(data[:place])
    for place in range(6, len(data), 7):
        changed = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        with pytest.raises(CorruptFileError):
            Cursor.from_bytes(changed)


def test_damage_under_a_good_compression_is_refused() -> None:
    body = bytearray(zlib.decompress(some_cursor.to_bytes()[6:]))
    body[len(body) // 2] ^= 1
    with pytest.raises(CorruptFileError, match="checksum"):
        Cursor.from_bytes(struct.pack("<4sH", b"PLCU", 1) + zlib.compress(bytes(body)))


def test_a_million_holes_take_less_than_300_kb() -> None:
    entries = np.arange(1, 2_000_000, 2)
    by_entry = Cursor(Position(0, -1)).acknowledge(
        PositionSet.from_arrays(np.zeros(1_000_000, np.int64), entries)
    )
    batches, indexes = np.repeat(np.arange(2_000), 500), np.tile(np.arange(0, 1_000, 2), 2_000)
    by_index = Cursor(Position(0, -1)).acknowledge(
        PositionSet.from_arrays(
            np.zeros(1_000_000, np.int64), batches, indexes, np.full(1_000_000, 1_000)
        )
    )
    for cursor, ledgers in (
        (by_entry, _one_ledger(2_000_000, 1)),
        (by_index, _one_ledger(2_000, 1_000)),
    ):
        assert cursor.backlog(ledgers) == 1_000_000
        assert len(cursor.to_bytes()) < 300_000
        assert len(json.dumps(cursor.to_json_value())) < 300_000
        assert (
            Cursor.from_json_value(cursor.to_json_value())
            == Cursor.from_bytes(cursor.to_bytes())
            == cursor
        )


@pytest.mark.parametrize("share", [0.02, 0.25, 1 / 3, 0.5, 0.9])
def test_random_shares_of_batches_come_back_and_take_no_more_than_their_bits(share: float) -> None:
    rows = np.flatnonzero(np.random.default_rng(7).random(500_000) < share)
    cursor = Cursor().acknowledge(
        PositionSet.from_arrays(
            np.zeros(len(rows), np.int64), rows // 1_000, rows % 1_000, np.full(len(rows), 1_000)
        )
    )
    assert (
        Cursor.from_bytes(cursor.to_bytes())
        == Cursor.from_json_value(cursor.to_json_value())
        == cursor
    )
    assert len(cursor.to_bytes()) < 500 * 126 + 5_000
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    assert len(cursor.to_bytes()) < 500_000 / 8 * entropy * 1.25 + 5_000


def test_any_number_of_holes_survives_a_reopening() -> None:
    odd = PositionSet.of((3, entry) for entry in range(1, 50_000, 2))
    cursor = Cursor(Position(3, -1)).acknowledge(odd)
    comes_back(cursor)
    again = Cursor.from_bytes(cursor.to_bytes())
    assert again.individually_deleted == odd
    assert len(again.individually_deleted.whole_entries(3)) == 25_000


def test_acknowledged_batch_indexes_survive_a_reopening() -> None:
    some = PositionSet.of_batch((3, 1), 10, 0b0000010001)
    cursor = Cursor(Position(3, -1)).acknowledge(some)
    comes_back(cursor)
    again = Cursor.from_bytes(cursor.to_bytes())
    assert [index for index in range(10) if again.contains(Position(3, 1), index)] == [0, 4]


def test_a_cursor_over_thousands_of_ledgers_is_read_back() -> None:
    ledgers = np.repeat(np.arange(5_000), 2)
    cursor = Cursor().acknowledge(
        PositionSet.from_arrays(ledgers, np.tile(np.array([1, 3]), 5_000))
    )
    assert (
        Cursor.from_bytes(cursor.to_bytes())
        == Cursor.from_json_value(cursor.to_json_value())
        == cursor
    )


def comes_back(cursor: Cursor) -> None:
    assert Cursor.from_bytes(cursor.to_bytes()) == cursor
    assert Cursor.from_json_value(json.loads(json.dumps(cursor.to_json_value()))) == cursor


def _one_ledger(entries: int, batch_size: int) -> LedgerList:
    sizes = BatchSizes(((batch_size, entries),))
    return LedgerList([LedgerInfo(0, 0, "", 0, sizes, 0, 0, 0)])
