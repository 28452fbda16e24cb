"""Sequence ids that were seen before."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.core.partition import repeatable
from tests.vectors.message_deduplication import MessageDeduplication, MessageDupStatus

ids = st.lists(st.integers(0, 20), max_size=12)


@repeatable
@given(st.lists(ids, max_size=4))
def test_of_many_messages_each_id_is_taken_in_once(publications: Sequence[Sequence[int]]) -> None:
    state, highest = MessageDeduplication(), -1
    for sequence_ids in publications:
        state, taken = state.fresh("p", np.array(sequence_ids, np.int64))
        expected = [
            each > highest and each not in sequence_ids[:place]
            for place, each in enumerate(sequence_ids)
        ]
        assert taken.tolist() == expected
        highest = max([highest, *sequence_ids])
        assert state.last_sequence_id("p") == highest


def test_one_duplicate_in_a_batch_does_not_take_the_new_ones_with_it() -> None:
    """Pulsar drops the whole batch (#6273)."""
    state, _ = MessageDeduplication().is_duplicate("p", 5)
    _, status = state.is_duplicate("p", 5, 7)
    assert status is MessageDupStatus.UNKNOWN
    _, taken = state.fresh("p", np.array([5, 6, 7]))
    assert taken.tolist() == [False, True, True]


def test_what_was_taken_in_and_not_stored_is_unknown_until_storing_failed() -> None:
    state, first = MessageDeduplication().is_duplicate("p", 5)
    state, again = state.is_duplicate("p", 5)
    assert (first, again) == (MessageDupStatus.NOT_DUP, MessageDupStatus.UNKNOWN)
    assert state.reset_pushed().is_duplicate("p", 5)[1] is MessageDupStatus.NOT_DUP
    stored = state.record_persisted("p", 5)
    assert stored.is_duplicate("p", 5)[1] is MessageDupStatus.DUP
    assert stored.reset_pushed().is_duplicate("p", 5)[1] is MessageDupStatus.DUP


def test_only_the_last_chunk_of_a_message_counts() -> None:
    state = MessageDeduplication()
    for chunk_id in (0, 1):
        state, status = state.is_duplicate("p", 5, chunk_id=chunk_id, num_chunks=3)
        state = state.record_persisted("p", 5, chunk_id=chunk_id, num_chunks=3)
        assert status is MessageDupStatus.NOT_DUP
        assert state == MessageDeduplication()
    state, _ = state.is_duplicate("p", 5, chunk_id=2, num_chunks=3)
    assert state.last_sequence_id("p") == 5


def test_producers_that_left_long_ago_are_forgotten() -> None:
    state, _ = MessageDeduplication().is_duplicate("gone", 1)
    state, _ = state.is_duplicate("back", 1)
    state = state.producer_removed("gone", 1_000).producer_removed("back", 1_000)
    state = state.producer_added("back")
    assert state.purge_inactive(1_100, 100) == state
    kept = state.purge_inactive(1_101, 100)
    assert [kept.last_sequence_id(name) for name in ("gone", "back")] == [-1, 1]


def test_what_is_stored_survives_being_written_down_and_the_rest_does_not() -> None:
    state, _ = MessageDeduplication().is_duplicate("p", 1)
    state = state.record_persisted("p", 1).producer_removed("q", 9)
    state, _ = state.is_duplicate("p", 2)
    value = json.loads(json.dumps(state.to_json_value()))
    assert MessageDeduplication.from_json_value(value) == state.reset_pushed()
