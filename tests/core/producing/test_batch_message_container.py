"""When batches close."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.log.producing.batch_message_container import BatchLimits, key_based_order
from pulsar_spark.log.producing.message_router import RoundRobinByBatch
from tests.core.partition import repeatable
from tests.vectors.values import _cut_plainly


@repeatable
@given(
    st.lists(st.integers(0, 30), max_size=60),
    st.integers(-1, 6),
    st.integers(-1, 40),
    st.integers(1, 50),
)
def test_cutting_at_once_is_cutting_message_by_message(
    sizes: list[int], max_messages: int, max_bytes: int, max_message_size: int
) -> None:
    limits = BatchLimits(max_messages, max_bytes, max_message_size)
    closed, left_open = _cut_plainly(sizes, limits)
    requested = [len(batch) for batch in [*closed, left_open] if batch]
    assert limits.cut(np.array(sizes, np.int64)).tolist() == requested


def test_a_message_larger_than_the_limit_goes_alone() -> None:
    assert BatchLimits(10, 100).cut(np.array([50, 500, 50, 50])).tolist() == [1, 1, 2]


def test_a_million_messages_are_cut_in_the_time_of_a_thousand_batches() -> None:
    sizes = np.full(1_000_000, 100)
    start = time.perf_counter()
    assert BatchLimits().cut(sizes).tolist() == [1000] * 1000
    assert time.perf_counter() - start < 1.0


def one_container(codes: list[int], sequence_ids: list[int]) -> list[list[int]]:
    """Its batches, a key at a time: the places of their messages, by highest sequence id."""
    groups: dict[int, list[int]] = {}
    for place, code in enumerate(codes):
        groups.setdefault(code, []).append(place)
    return sorted(groups.values(), key=lambda places: max(sequence_ids[i] for i in places))


@repeatable
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=40), st.integers(1, 9))
def test_many_key_based_containers_at_once_are_each_of_them_alone(
    messages: list[tuple[int, int]], most: int
) -> None:
    codes = np.array([code for code, _ in messages], np.int64)
    ids = np.array([sequence_id for _, sequence_id in messages], np.int64)
    containers = BatchLimits(most, 10**9).cut(np.ones(len(messages), np.int64))
    order, sizes = key_based_order(codes, ids, containers)
    expected: list[list[int]] = []
    first = 0
    for count in containers.tolist():
        part = slice(first, first + count)
        batches = one_container(codes[part].tolist(), ids[part].tolist())
        expected += [[first + place for place in places] for places in batches]
        first += count
    found = np.split(order, np.cumsum(sizes)[:-1]) if len(sizes) else []
    assert [part.tolist() for part in found] == expected


@repeatable
@given(
    st.lists(st.lists(st.integers(1, 30), max_size=12), max_size=6),
    st.integers(1, 6),
    st.integers(1, 40),
)
def test_round_robin_goes_on_with_each_full_batch_however_messages_come(
    parts: list[list[int]], max_messages: int, max_bytes: int
) -> None:
    limits = BatchLimits(max_messages, max_bytes)
    router = RoundRobinByBatch(0, limits)
    turns = [
        turn
        for part in parts
        for turn in router.choose_partitions(10**6, np.array(part, np.int64)).tolist()
    ]
    whole = np.array([size for part in parts for size in part], np.int64)
    batches = limits.cut(whole)
    assert np.unique(turns, return_counts=True)[1].tolist() == batches.tolist()
