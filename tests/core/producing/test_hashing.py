"""Keys hash as Java's and Murmur's do, one by one and many at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.log.producing import hashing
from tests.core.partition import repeatable

texts = st.lists(st.one_of(st.none(), st.text(max_size=8), st.text("ab", max_size=90)))


@repeatable
@given(texts, st.integers(0, 3))
def test_many_keys_hash_as_one_by_one(keys: list[str | None], offset: int) -> None:
    for kind in (pa.string(), pa.large_string()):
        array = pa.array(keys, kind)[offset:]
        java = [0 if key is None else hashing.java_string_hash(key) for key in keys[offset:]]
        murmur = [0 if key is None else hashing.murmur3_32_hash(key) for key in keys[offset:]]
        for form in (array, array.dictionary_encode(), pa.chunked_array([array[:2], array[2:]])):
            assert hashing.java_string_hash_many(form).tolist() == java
            assert hashing.murmur3_32_hash_many(form).tolist() == murmur


def test_keys_under_a_null_are_not_looked_at() -> None:
    keys = pa.array(["long enough", "é", "b"])
    masked = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x04"), *keys.buffers()[1:]])
    assert masked.to_pylist() == [None, None, "b"]
    assert hashing.java_string_hash_many(masked).tolist() == [0, 0, ord("b")]


def test_no_keys_at_all_are_hashed_too() -> None:
    for array in (pa.nulls(3), pa.array([None] * 3, pa.string()), pa.array([""] * 3)):
        assert hashing.java_string_hash_many(array).tolist() == [0, 0, 0]
    assert hashing.java_string_hash_many(pa.chunked_array([], pa.string())).tolist() == []
    assert (
        hashing.java_string_hash_many(pa.array([None], pa.dictionary(pa.int8(), pa.string())))[0]
        == 0
    )


def test_a_batch_of_distinct_keys_is_hashed_in_its_buffers() -> None:
    keys = [f"N{number}" for number in range(20_000)]
    found = hashing.java_string_hash_many(pa.array(keys))
    assert np.array_equal(found, [hashing.java_string_hash(key) for key in keys])


def test_slots_never_are_zero() -> None:
    assert hashing.sticky_key_slot(0) == 1
    assert hashing.sticky_key_slot(65534) == 65535
    assert hashing.sticky_key_slot(65535) == 1
    assert hashing.sticky_key_slot(65536, consistent_hashing=False) == 1
    assert hashing.sticky_key_slot(65535, consistent_hashing=False) == 65535


def test_a_lone_surrogate_hashes_as_java_hashes_it() -> None:
    assert hashing.java_string_hash("\ud800") == 0xD800
    assert hashing.java_string_hash("😀") == 0xD83D * 31 + 0xDE00
    assert hashing.murmur3_32_hash("\ud800") == hashing.murmur3_32_hash("?")
