"""Message ids read, sort and serialise as Pulsar's."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.model.positions.message_id import EARLIEST, LATEST, Client, MessageId
from pulsar_spark.model.positions.position import MAX_LONG, Position
from tests.core.partition import repeatable

longs, ints = st.integers(-1, MAX_LONG), st.integers(-1, 2**31 - 1)
plain = st.builds(MessageId, longs, longs, ints)
in_batches = st.builds(MessageId, longs, longs, ints, st.integers(0, 2**31 - 1), ints.map(abs))
chunked = st.builds(lambda last, first: replace(last, first_chunk=first), plain, plain)
ids = st.one_of(plain, in_batches, chunked)


@repeatable
@given(ids, st.sampled_from(["java", "cpp"]))
def test_bytes_bring_an_id_back(message_id: MessageId, client: Client) -> None:
    for reader in ("java", "cpp"):
        back = MessageId.from_bytes(message_id.to_bytes(client), reader)
        assert (back, str(back)) == (message_id, str(message_id))
        assert back.batch_size == message_id.batch_size


@repeatable
@given(ids)
def test_text_brings_an_id_back(message_id: MessageId) -> None:
    assert MessageId.parse(str(message_id)) == message_id
    assert str(MessageId.parse(str(message_id))) == str(message_id)
    if message_id.first_chunk is None:
        assert MessageId.parse(message_id.text("cpp")) == message_id


@repeatable
@given(st.binary(max_size=24))
def test_any_bytes_are_an_id_or_a_value_error(data: bytes) -> None:
    for client in ("java", "cpp"):
        with suppress(ValueError):
            MessageId.from_bytes(data, client)


@pytest.mark.parametrize(
    "text", ["", "1", "1:2", "1:2:3:4:5", "a:b:c", "1:2:3;", "1:2:3:0;1:2:3", "(1,2,3)", "1:2:٣"]
)
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="no message id"):
        MessageId.parse(text)


def test_ids_of_two_topics_are_unequal_and_refuse_to_be_ordered() -> None:
    one, other = (MessageId(1, 2, topic=topic) for topic in ("a", "b"))
    assert one != other
    assert one == MessageId(1, 2)
    with pytest.raises(TypeError, match="two topics"):
        sorted([one, other])
    with pytest.raises(TypeError):
        assert one <= other
    with pytest.raises(TypeError):
        assert one < 5  # type: ignore[operator]
    assert one != 5


def test_all_lies_between_earliest_and_latest() -> None:
    for message_id in (MessageId(0, 0), MessageId(5, 6, 3, 2)):
        assert EARLIEST < message_id < LATEST
    assert MessageId(1, 2) < MessageId(1, 2, batch_index=0), "a plain id comes before its batch"
    assert MessageId(1, 2).position == Position(1, 2)


def test_an_id_is_a_value_that_travels() -> None:
    message_id = MessageId(1, 2, 3, 4, 5, topic="t")
    assert pickle.loads(pickle.dumps(message_id)) == message_id
    assert len({message_id, MessageId(1, 2, 3, 4)}) == 1


def test_chunks_nest_no_deeper_than_one() -> None:
    nested = MessageId(1, 2, first_chunk=MessageId(1, 1, first_chunk=MessageId(1, 0)))
    back = MessageId.from_bytes(nested.to_bytes())
    assert back.first_chunk is not None
    assert back.first_chunk.first_chunk is None
