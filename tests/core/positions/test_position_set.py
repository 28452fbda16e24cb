"""A position set is a set: its laws, against plain Python sets."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.partition import (
    ENTRIES,
    LEDGERS,
    MESSAGES,
    SIZES,
    Message,
    listed,
    made,
    message_sets,
    positions,
    repeatable,
    size_of,
)

Messages = frozenset[Message]


@repeatable
@given(message_sets)
def test_a_set_holds_the_messages_it_was_made_of_in_order(messages: Messages) -> None:
    held = made(messages)
    held.check()
    assert listed(held) == sorted(messages)
    assert held.count(LEDGERS) == len(messages)
    assert bool(held) == bool(messages)


@repeatable
@given(st.lists(message_sets, max_size=5))
def test_the_union_of_many_is_that_of_plain_sets(sets: list[Messages]) -> None:
    held = PositionSet.union_of(made(each) for each in sets)
    held.check()
    assert held == made(frozenset().union(*sets))


@repeatable
@given(message_sets, message_sets)
def test_union_intersection_and_difference_are_those_of_plain_sets(
    one: Messages, other: Messages
) -> None:
    for found, requested in (
        (made(one) | made(other), one | other),
        (made(one) & made(other), one & other),
        (made(one) - made(other), one - other),
    ):
        found.check()
        assert listed(found) == sorted(requested)
        assert found == made(requested), "equal sets are structurally equal"


@repeatable
@given(message_sets, message_sets, message_sets)
def test_the_algebra_has_the_laws_of_sets(one: Messages, other: Messages, third: Messages) -> None:
    a, b, c = made(one), made(other), made(third)
    assert a | b == b | a
    assert (a | b) | c == a | (b | c)
    assert a | a == a == a & a
    assert a - b == a - (a & b)
    assert (a - b) | (a & b) == a
    assert (a | b) & c == (a & c) | (b & c)


@repeatable
@given(message_sets)
def test_contains_is_membership(messages: Messages) -> None:
    held = made(messages)
    for message in MESSAGES:
        assert held.contains(message[:2], message[2]) == (message in messages)
    for entry in ENTRIES:
        whole = all((*entry, index) in messages for index in range(size_of(entry)))
        assert held.contains(entry) == whole


@repeatable
@given(message_sets, st.integers(0, len(MESSAGES) + 2))
def test_a_prefix_is_the_first_messages_and_may_end_inside_an_entry(
    messages: Messages, count: int
) -> None:
    prefix = made(messages).prefix(count, LEDGERS)
    prefix.check()
    assert listed(prefix) == sorted(messages)[:count]


@repeatable
@given(message_sets, positions)
def test_after_and_up_to_split_a_set_at_a_position(messages: Messages, position: Position) -> None:
    held = made(messages)
    assert listed(held.after(position)) == sorted(m for m in messages if m[:2] > position)
    assert listed(held.up_to(position)) == sorted(m for m in messages if m[:2] <= position)
    assert held.after(position) | held.up_to(position) == held


@repeatable
@given(message_sets)
def test_a_row_mask_marks_the_messages_of_a_ledger(messages: Messages) -> None:
    for ledger in LEDGERS:
        rows = [m for m in MESSAGES if m[0] == ledger.ledger_id]
        mask = made(messages).row_mask(ledger)
        assert mask.tolist() == [row in messages for row in rows]


@repeatable
@given(positions, positions)
def test_between_holds_the_entries_after_one_position_up_to_another(
    one: Position, other: Position
) -> None:
    found = PositionSet.between(LEDGERS, one, other)
    assert listed(found) == [m for m in MESSAGES if one < m[:2] <= other]


@repeatable
@given(st.permutations(MESSAGES))
def test_the_order_of_rows_does_not_matter(messages: list[Message]) -> None:
    assert made(messages) == made(MESSAGES)
    assert all(part is None for _, part in made(messages).entries())


def test_a_row_that_comes_twice_counts_once() -> None:
    assert made([(2, 4, 1)] * 2 + [(5, 1, 0)] * 2) == made([(2, 4, 1), (5, 1, 0)])


def test_rows_without_batch_index_are_whole_entries() -> None:
    ledgers, entries = np.array([2, 9, 2]), np.array([1, 4, 4])
    requested = PositionSet.of([(2, 1), (2, 4), (9, 4)])
    assert PositionSet.from_arrays(ledgers, entries) == requested
    below = np.array([-1, -1, -1])
    assert PositionSet.from_arrays(ledgers, entries, below, np.array([3, 70, 5])) == requested


def test_a_set_of_counts_far_more_than_bits_in_a_word() -> None:
    even = made((9, 4, index) for index in range(0, 70, 2))
    odd = made((9, 4, index) for index in range(1, 70, 2))
    assert even.partial_entries(9) == {4: 1 << 70 | sum(1 << i for i in range(0, 70, 2))}
    assert even | odd == PositionSet.of([(9, 4)])
    assert PositionSet.of([(9, 4)]) - even == odd


@pytest.mark.parametrize(
    ("column", "value"), [("entry", -1), ("entry", 2**32), ("index", 5), ("size", 7)]
)
def test_numbers_that_make_no_message_are_refused(column: str, value: int) -> None:
    rows = {"ledger": [2, 2], "entry": [4, 4], "index": [0, 1], "size": [5, 5]}
    rows[column][1] = value
    with pytest.raises(ValueError, match=r"entry|batch"):
        PositionSet.from_arrays(*(np.array(values) for values in rows.values()))


def test_two_batch_sizes_of_one_entry_are_refused() -> None:
    one, other = (PositionSet.of_batch((2, 4), size, 1) for size in (5, 6))
    for operation in (one.union, one.intersection, one.difference):
        with pytest.raises(ValueError, match="two batch sizes, 5 and 6"):
            operation(other)


def test_a_ledger_that_the_list_lacks_is_named() -> None:
    with pytest.raises(KeyError, match="no ledger 77"):
        PositionSet.of([(77, 0)]).count(LEDGERS)


def test_counting_takes_any_mix_of_batch_sizes() -> None:
    held = PositionSet.of(ENTRIES)
    assert held.count(LEDGERS) == sum(sum(sizes) for sizes in SIZES.values())


def test_a_set_survives_pickling_and_reads_well() -> None:
    held = made([(2, 0, 0), (2, 2, 0), (2, 4, 0), (2, 4, 1), (9, 0, 0), (9, 1, 0)])
    assert pickle.loads(pickle.dumps(held)) == held
    assert str(held) == "2:0,2 2:4/5[0-1] 9:0-1"
    assert repr(PositionSet()) == "PositionSet(nothing)"
    assert held != "something else"


@repeatable
@given(st.integers(2, 130), st.data())
def test_a_batch_of_any_size_is_the_same_by_rows_as_by_bits(size: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    rows = [*chosen, *list(chosen)[:1]]  # one of them twice
    columns = (
        np.full(len(rows), 3),
        np.full(len(rows), 7),
        np.array(rows),
        np.full(len(rows), size),
    )
    found = PositionSet.from_arrays(*columns)
    found.check()
    assert found == PositionSet.of_batch((3, 7), size, sum(1 << each for each in chosen))
