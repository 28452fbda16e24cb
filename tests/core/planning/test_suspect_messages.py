"""Messages tried apart: the killer is found in a few restarts, the others are delivered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.consumer.suspect_messages import (
    SUSPECTS_FORMAT,
    Ledgers,
    Messages,
    SuspectGroup,
    SuspectMessages,
)
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from tests.core.partition import messages_of

ONE, TWO = TopicPartition("persistent://public/default/t", 0), TopicPartition("u", 1)


def ledgers(sizes: list[int]) -> Ledgers:
    def of(partition: int) -> LedgerList:
        sizes_ = BatchSizes.of(sizes)
        return LedgerList([LedgerInfo(4, partition, "f", 0, sizes_, 1, 1, 1)])

    return {ONE: of(0), TWO: of(1)}


def batch(sizes: list[int]) -> Messages:
    every = PositionSet.of((4, entry) for entry in range(len(sizes)))
    return {(TWO, 2): every, (ONE, 0): every}


def names(group: SuspectGroup, known: Ledgers) -> list[tuple[TopicPartition, int, int]]:
    return [
        (topic_partition, entry_id, index)
        for (topic_partition, _), part in sorted(group.messages.items())
        for _, entry_id, index in messages_of(part, known[topic_partition])
    ]


def lived_through(
    state: SuspectMessages, known: Ledgers, killers: set[tuple[TopicPartition, int, int]], most: int
) -> tuple[list[tuple[TopicPartition, int, int]], int, SuspectMessages]:
    """What was delivered, in order, and in how many restarts."""
    delivered, restarts = [], 0
    while state.groups:
        state = SuspectMessages.from_json(state.release().to_json())
        assert state.released is not None
        tried = names(state.released, known)
        if killers & set(tried):
            restarts += 1
            state = state.failed({}, 1, most, known)
        else:
            delivered += tried
            state = state.committed()
    return delivered, restarts, state


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=60),
    st.sets(st.integers(0, 119), max_size=3),
    st.integers(0, 4),
)
def test_all_but_the_killers_are_delivered_once_and_in_order(
    sizes: list[int], chosen: set[int], most: int
) -> None:
    known, messages = ledgers(sizes), batch(sizes)
    every = names(SuspectGroup(0, messages), known)
    killers = {every[number] for number in chosen if number < len(every)}
    state = SuspectMessages().failed(messages, 3, most, known)
    delivered, restarts, state = lived_through(state, known, killers, most)
    assert delivered == [each for each in every if each not in killers]
    dead_lettered = {
        (a, *m) for a, part in state.dead_lettered.items() for m in messages_of(part, known[a])
    }
    assert {(a, entry_id, index) for a, _, entry_id, index in dead_lettered} == killers
    assert restarts <= len(killers) * (3 + most + 1)
    for topic_partition in (ONE, TWO):
        assert state.not_done(topic_partition) == state.dead_lettered.get(
            topic_partition, PositionSet()
        )


def test_a_killer_among_two_hundred_thousand_is_found_in_a_few_restarts() -> None:
    sizes = [1000] * 100
    known = ledgers(sizes)
    state = SuspectMessages().failed(batch(sizes), 3, 3, known)
    delivered, restarts, state = lived_through(state, known, {(TWO, 77, 123)}, 3)
    assert (len(delivered), restarts) == (199_999, 6)
    assert state.failures == 4, "two by itself"


def test_a_message_by_itself_is_given_up_after_the_allowed_failures() -> None:
    known = ledgers([1])
    alone = {(ONE, 0): PositionSet.of([(4, 0)])}
    state = SuspectMessages().failed(alone, 3, 5, known)
    assert [group.failures for group in state.groups] == [3]
    delivered, restarts, state = lived_through(state, known, {(ONE, 0, 0)}, 5)
    assert (delivered, restarts, state.failures) == ([], 3, 6)


def test_what_was_trimmed_or_acknowledged_or_sought_away_is_tried_no_more() -> None:
    known = ledgers([1, 1])
    gone = {(ONE, 0): PositionSet.of([(1, 0)])}
    assert SuspectMessages().failed(gone, 1, 1, known).is_empty
    state = SuspectMessages().failed(batch([1, 1]), 1, 1, known)
    left = state.without({ONE: None, TWO: PositionSet.of([(4, 0)])})
    assert [names(group, known) for group in left.groups] == [[(TWO, 1, 0)]]
    dead_lettered = SuspectMessages(dead_lettered={ONE: PositionSet.of([(4, 0)])})
    assert dead_lettered.without({ONE: PositionSet.of([(4, 0)])}).is_empty
    assert dead_lettered.without({ONE: None}).is_empty


def test_what_is_not_a_state_is_refused() -> None:
    value = SUSPECTS_FORMAT.decode(SuspectMessages().to_json())
    with pytest.raises(FutureVersionError, match="withheld messages has format version 2"):
        SuspectMessages.from_json(replace(SUSPECTS_FORMAT, version=2).encode(value))
    for bad in (b"", b"{}", SUSPECTS_FORMAT.encode(value | {"groups": [1]})):
        with pytest.raises(CorruptFileError, match="withheld messages is damaged"):
            SuspectMessages.from_json(bad)
