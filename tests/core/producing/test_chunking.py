"""Payloads cut and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import InvalidMessageError
from pulsar_spark.producing.chunking import Chunks
from tests.core.partition import repeatable


@repeatable
@given(st.binary(max_size=400), st.integers(1, 60), st.integers(-1, 80))
def test_the_chunks_put_together_are_the_payload(payload: bytes, room: int, limit: int) -> None:
    chunks = Chunks.of(len(payload), 20, 20 + room, limit)
    parts = [payload[chunks.slice(number)] for number in range(chunks.count)]
    assert b"".join(parts) == payload
    assert [len(part) for part in parts] == chunks.sizes
    assert all(len(part) == chunks.payload_chunk_size for part in parts[:-1])
    assert chunks.payload_chunk_size <= room
    assert (chunks.uuid("p", 3) == "p-3") == (chunks.count > 1)
    assert chunks.count > 1 or chunks.uuid("p", 3) is None


@pytest.mark.parametrize("number", [-1, 2])
def test_there_is_no_chunk_beside_those_that_there_are(number: int) -> None:
    with pytest.raises(IndexError, match="no chunk"):
        Chunks.of(15, 0, 10).slice(number)


@pytest.mark.parametrize("metadata_bytes", [10, 11])
def test_metadata_that_leaves_no_room_is_refused(metadata_bytes: int) -> None:
    with pytest.raises(InvalidMessageError, match="metadata exceeds max message size"):
        Chunks.of(1, metadata_bytes, 10)
