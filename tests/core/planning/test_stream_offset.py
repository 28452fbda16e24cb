"""Stream offsets: canonical text, golden files, and a micro-batch as their difference."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.consumer import stream_offset
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.topic_name import TopicPartition
from tests.core.partition import (
    ENTRIES,
    LEDGERS,
    Message,
    listed,
    made,
    message_sets,
    positions,
    repeatable,
)

TOPIC = "persistent://public/default/orders"
Messages = frozenset[Message]

cursors = st.tuples(st.sampled_from([Position(-1, -1), *ENTRIES]), message_sets).map(
    lambda parts: Cursor(parts[0]).acknowledge(made(parts[1]))
)
offsets = st.builds(
    PartitionOffset,
    origin=cursors,
    attempts=st.dictionaries(st.integers(0, 12), cursors, min_size=1, max_size=3),
    epoch=st.integers(0, 12),
    floor=st.one_of(st.none(), positions),
)
counted_offsets = st.builds(
    replace,
    offsets,
    redelivery_counts=st.dictionaries(st.integers(1, 12), message_sets.map(made), max_size=2),
)
partitions = st.builds(TopicPartition, st.sampled_from([TOPIC, "b"]), st.integers(0, 12))
stream_offsets = st.one_of(
    st.dictionaries(partitions, offsets).map(StreamOffset),
    st.builds(
        StreamOffset,
        st.dictionaries(partitions, counted_offsets),
        subscription=st.sampled_from(["s", "ß"]),
        consumer=st.just("c"),
        incarnation=st.integers(0, 99),
    ),
)


def held(cursor: Cursor) -> Messages:
    """What a cursor holds of the small partition, as a plain set."""
    return frozenset(listed(cursor.difference(Cursor(), LEDGERS)))


def golden_offset() -> StreamOffset:
    """With all that an offset can have."""
    holes = Cursor(Position(7, 11)).acknowledge(made([(9, 1, 0), (9, 4, 0), (9, 4, 69)]))
    return StreamOffset(
        {
            TopicPartition(TOPIC, 0): PartitionOffset.beginning(Cursor(Position(3, -1))),
            TopicPartition(TOPIC, 2): PartitionOffset(
                Cursor(Position(1, 5)),
                {0: holes, 2: Cursor(), 10: Cursor(Position(2, 0))},
                epoch=3,
                floor=Position(2, 7),
            ),
            TopicPartition(TOPIC, 10): PartitionOffset.beginning(Cursor()),
            TopicPartition("persistent://public/default/ärger", 0): PartitionOffset.beginning(
                holes
            ),
        }
    )


def golden_consumer_offset() -> StreamOffset:
    """Of a consumer, with all that it has besides."""
    redelivered = made([(9, 1, 0), (9, 4, 0), (9, 4, 69)])
    offset = PartitionOffset(
        Cursor(Position(7, 10)),
        {1: Cursor(Position(7, 11)), 2: Cursor(Position(7, 10)).acknowledge(redelivered)},
        epoch=1,
        floor=Position(7, 10),
        redelivery_counts={1: made([(9, 1, 0)]), 16: made([(9, 4, 0), (9, 4, 69)])},
    )
    return StreamOffset(
        {TopicPartition(TOPIC, 0): offset}, "billing", "billing-1", 1_795_000_000, ack_mode="manual"
    )


def golden_made_again() -> StreamOffset:
    """Of a topic that is not the first of its name."""
    return replace(golden_consumer_offset(), incarnations={TOPIC: 17})


@repeatable
@given(stream_offsets)
def test_an_offset_survives_json_and_its_text_is_canonical(offset: StreamOffset) -> None:
    value = offset.to_json_value()
    text = json.dumps(value)
    assert text == json.dumps(value, sort_keys=True)
    again = StreamOffset.from_json_value(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json_value()) == text


@repeatable
@given(
    st.dictionaries(partitions, offsets),
    st.lists(st.dictionaries(partitions, offsets, max_size=2), max_size=3),
    st.sampled_from([0, 3, 1000]),
)
def test_offsets_that_share_are_as_those_that_do_not(
    whole: dict[TopicPartition, PartitionOffset],
    changes: list[dict[TopicPartition, PartitionOffset]],
    most: int,
) -> None:
    plain, sharing = [dict(whole)], [StreamOffset(dict(whole))]
    with patch.object(stream_offset, "MOST_CHANGES", most):
        for each in changes:
            plain.append(plain[-1] | each)
            sharing.append(sharing[-1].with_changes(each))
    for end, shared_end in zip(plain, sharing, strict=True):
        assert shared_end == shared_end.settled() == StreamOffset(end)
        assert len(shared_end.partitions or ()) == len(end)
        assert list(shared_end.items()) == sorted(end.items())
        assert shared_end.to_json_value() == StreamOffset(end).to_json_value()
        for start, shared_start in zip(plain, sharing, strict=True):
            expected = {
                topic_partition: new
                for topic_partition, new in end.items()
                if new != start.get(topic_partition)
            }
            for one in (shared_start, shared_start.settled()):
                assert shared_end.changed_since(one) == expected
                assert list(shared_end.changed_since(one)) == sorted(expected)


def test_equal_offsets_have_equal_text_whatever_the_order_they_were_made_in() -> None:
    one, other = (PartitionOffset.beginning(Cursor(p)) for p in (Position(1, 2), Position(3, 4)))
    a, b = TopicPartition("a", 2), TopicPartition("a", 10)
    texts = {
        json.dumps(StreamOffset(each).to_json_value())
        for each in ({a: one, b: other}, {b: other, a: one})
    }
    assert len(texts) == 1


def test_the_symbolic_offset_is_always_the_same_and_resolves_nothing() -> None:
    symbolic = StreamOffset(None)
    assert json.dumps(symbolic.to_json_value()) == '{"initial": true, "version": 1}'
    again = StreamOffset.from_json_value(symbolic.to_json_value())
    assert again.is_symbolic
    assert list(again.items()) == []
    assert not StreamOffset({}).is_symbolic


def test_a_future_version_is_refused_with_the_remedy() -> None:
    value = {"cursors": {}, "version": 2}
    with pytest.raises(FutureVersionError, match=r"version 2; .* knows up to 1. Update"):
        StreamOffset.from_json_value(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"version": "1"},
        {"version": True},
        {"version": 0},
        {"version": 1},
        {"version": 1, "topics": []},
        {"version": 1, "topics": {"a": {"x": {}}}},
        {"version": 1, "topics": {"a": {"0": {"attempts": {"0": "1:2"}, "epoch": 0}}}},
        {"version": 1, "topics": {"a": {"0": {"attempts": {}, "epoch": 0, "origin": "1-2"}}}},
        {"version": 1, "topics": {"a": {"0": {"attempts": 3, "epoch": 0, "origin": "1:2"}}}},
        {
            "version": 1,
            "topics": {"a": {"0": {"attempts": {"0": {}}, "epoch": 0, "origin": "1:2"}}},
        },
    ],
)
def test_what_is_no_offset_is_refused_with_the_remedy(value: Any) -> None:
    with pytest.raises(CorruptFileError, match="checkpoint"):
        StreamOffset.from_json_value(value)


@repeatable
@given(offsets, st.one_of(st.none(), offsets))
def test_a_batch_is_the_difference_of_its_offsets(
    end: PartitionOffset, start: PartitionOffset | None
) -> None:
    expected: set[Message] = set()
    for attempt, cursor in end.attempts.items():
        begin = end.origin
        if start is not None and start.epoch == end.epoch and attempt in start.attempts:
            begin = start.attempts[attempt]
        expected |= held(cursor) - held(begin)
    if end.floor is not None:
        expected = {message for message in expected if message[:2] > end.floor}
    assert listed(end.batch_since(start, LEDGERS)) == sorted(expected)


@repeatable
@given(st.lists(message_sets, min_size=1, max_size=5), cursors)
def test_the_batches_of_a_growing_offset_have_each_message_once(
    steps: list[Messages], origin: Cursor
) -> None:
    offset, previous = PartitionOffset.beginning(origin), None
    seen: list[Message] = []
    for messages in steps:
        offset = offset.planned(offset.cursor.acknowledge(made(messages)).advance(LEDGERS))
        seen += listed(offset.batch_since(previous, LEDGERS))
        previous = offset
    assert len(seen) == len(set(seen))
    assert set(seen) == frozenset[Message]().union(*steps) - held(origin)


def test_a_new_epoch_begins_at_its_origin() -> None:
    start = PartitionOffset.beginning(Cursor(Position(9, 6)), epoch=1)
    sought = PartitionOffset.beginning(Cursor(Position(5, 0)), epoch=2)
    end = sought.planned(Cursor(Position(5, 2)))
    assert listed(end.batch_since(start, LEDGERS)) == [(5, 1, 0), (5, 2, 0)]


def test_a_higher_attempt_delivers_again_what_a_lower_one_holds() -> None:
    origin = Cursor(Position(2, 5))
    start = PartitionOffset.beginning(origin).planned(Cursor(Position(5, 2)))
    again = origin.acknowledge(made([(5, 1, 0)]))
    end = PartitionOffset(origin, {**start.attempts, 1: again})
    assert listed(end.batch_since(start, LEDGERS)) == [(5, 1, 0)]
