"""Slots that wait for their old consumer, one at a time and many at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.partition import repeatable
from tests.vectors.draining import DrainingHash, DrainingHashes

CONSUMERS = ("a", "b", "c")
slots = st.integers(1, 6)
counts = st.dictionaries(slots, st.integers(0, 3), max_size=6)


def arrays(held: dict[int, int]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    return np.array(list(held), np.int64), np.array(list(held.values()), np.int64)


@repeatable
@given(counts, counts, counts, st.booleans())
def test_many_slots_at_once_are_the_same_as_one_after_the_other(
    first: dict[int, int], second: dict[int, int], done: dict[int, int], closing: bool
) -> None:
    second = {slot: count for slot, count in second.items() if slot not in first}
    many = DrainingHashes().add_many("a", *arrays(first)).add_many("b", *arrays(second))
    one = DrainingHashes()
    for consumer, held in (("a", first), ("b", second)):
        for slot, count in held.items():
            if count:
                one = one.add(consumer, slot, count)
    many.check()
    assert many == one

    asked = list(range(7)) * 2
    owners = [1] * 7 + [2] * 7
    many, mask = many.blocked_many(np.array(asked), np.array(owners), CONSUMERS)
    expected = []
    for slot, owner in zip(asked, owners, strict=True):
        one, blocked = one.should_block(CONSUMERS[owner], slot)
        expected.append(blocked)
    # Of messages of one read a slot has one owner: the first that is met counts here.
    assert mask[:7].tolist() == expected[:7]

    held_by_a = {slot: count for slot, count in done.items() if slot in first}
    left, unblocked = many.reduce_many("a", *arrays(held_by_a), closing=closing)
    told = []
    for slot, count in held_by_a.items():
        drains = many.entries.get(slot)
        if drains and count:
            many, free = many.reduce("a", slot, min(count, drains.ref_count), closing=closing)
            told += [slot] if free else []
    assert left == many
    assert unblocked == told
    assert not (closing and unblocked)


@repeatable
@given(st.lists(st.tuples(slots, st.sampled_from(CONSUMERS)), max_size=20))
def test_a_slot_is_free_once_all_that_was_counted_is_done(
    added: Sequence[tuple[int, str]],
) -> None:
    draining, owner, held = DrainingHashes(), dict[int, str](), Counter[int]()
    for slot, consumer in added:
        if owner.setdefault(slot, consumer) == consumer:
            draining = draining.add(consumer, slot)
            held[slot] += 1
        else:
            with pytest.raises(RuntimeError, match="already draining"):
                draining.add(consumer, slot)
    for slot, count in held.items():
        draining, blocked = draining.should_block("somebody else", slot)
        assert blocked
        for number in range(count):
            draining, unblocked = draining.reduce(owner[slot], slot)
            assert unblocked == (number == count - 1)
    assert not draining.entries


def test_a_slot_that_returns_to_its_consumer_waits_no_more() -> None:
    draining = DrainingHashes().add("a", 5, 3)
    draining, blocked = draining.should_block("a", 5)
    assert not blocked
    assert draining == DrainingHashes()
    unasked = DrainingHashes().add("a", 5)
    assert unasked.blocked_many(np.array([6]), np.array([1]), CONSUMERS)[0] == unasked
    draining, mask = (
        DrainingHashes()
        .add("a", 5, 3)
        .blocked_many(np.array([5, 5, 9]), np.array([0, 0, -1]), CONSUMERS)
    )
    assert not mask.any()
    assert draining == DrainingHashes()


def test_slot_0_means_no_key_and_never_drains() -> None:
    with pytest.raises(ValueError, match="cannot be 0"):
        DrainingHashes().add("a", 0)
    with pytest.raises(ValueError, match="cannot be 0"):
        DrainingHashes().add_many("a", np.array([0]), np.array([1]))
    assert DrainingHashes().should_block("a", 0) == (DrainingHashes(), False)
    assert DrainingHashes().reduce("a", 0) == (DrainingHashes(), False)


def test_what_a_consumer_drains_ends_when_it_has_left() -> None:
    draining = DrainingHashes().add("a", 1).add("b", 2).add("a", 3)
    draining = draining.add_many("a", np.array([3, 4]), np.array([2, 1]))
    assert draining.entries[3].ref_count == 3
    assert draining.without_consumer("a") == DrainingHashes().add("b", 2)
    assert draining.without_consumer("c") == draining


def test_acknowledging_messages_of_another_consumer_s_slot_takes_nothing_off_in_bulk() -> None:
    draining = DrainingHashes().add("a", 1)
    assert draining.reduce_many("b", np.array([1, 2]), np.array([1, 1])) == (draining, [])
    assert DrainingHashes().reduce_many("b", np.array([1]), np.array([1]))[1] == []
    with pytest.raises(RuntimeError, match="already draining"):
        draining.reduce("b", 1)


def test_draining_hashes_survive_being_written_down() -> None:
    draining = DrainingHashes({7: DrainingHash("a", 2, 1), 3: DrainingHash("b", 1)})
    value = json.loads(json.dumps(draining.to_json_value()))
    assert value == [[3, "b", 1, 0], [7, "a", 2, 1]]
    assert DrainingHashes.from_json_value(value) == draining
