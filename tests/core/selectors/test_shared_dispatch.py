"""Turns, levels and permits of a Shared subscription."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.broker.selectors.shared_dispatch import SharedDispatch, max_entries_in_this_batch
from tests.core.partition import repeatable


def joined(levels: Sequence[int]) -> SharedDispatch:
    dispatch = SharedDispatch()
    for number, level in enumerate(levels):
        dispatch = dispatch.add(f"c{number}", level)
    return dispatch


def following(
    dispatch: SharedDispatch, available: Iterable[str]
) -> tuple[SharedDispatch, str | None]:
    """(the dispatch after it, who gets the next entry)."""
    dispatch, picks = dispatch.dispatch(np.array([1]), dict.fromkeys(available, 1))
    return dispatch, picks[0].consumer if picks else None


def test_pulsar_s_own_example_of_levels_and_permits_holds() -> None:
    permits = {"c0": 2, "c1": 1, "c2": 1, "c3": 2, "c4": 1}
    dispatch = joined([0, 0, 0, 1, 1])
    order = []
    while True:
        dispatch, who = following(dispatch, [who for who, left in permits.items() if left])
        if who is None:
            break
        permits[who] -= 1
        order.append(who)
    assert order == ["c0", "c1", "c2", "c0", "c3", "c4", "c3"]


@repeatable
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.lists(st.sets(st.integers(0, 5)), max_size=20),
)
def test_nobody_is_served_while_one_of_a_better_level_can_take(
    levels: Sequence[int], rounds: Sequence[set[int]]
) -> None:
    dispatch = joined(levels)
    for numbers in rounds:
        available = {f"c{number}" for number in numbers if number < len(levels)}
        dispatch.check()
        dispatch, who = following(dispatch, available)
        if available:
            assert who in available
            best = min(levels[int(each[1:])] for each in available)
            assert levels[int(who[1:])] == best
        else:
            assert who is None


@repeatable
@given(st.integers(1, 6), st.integers(0, 40))
def test_of_one_level_all_take_turns(consumers: int, turns: int) -> None:
    dispatch = joined([0] * consumers)
    order = []
    for _ in range(turns):
        dispatch, who = following(dispatch, [f"c{number}" for number in range(consumers)])
        order.append(who)
    assert order == [f"c{turn % consumers}" for turn in range(turns)]


@repeatable
@given(
    st.lists(st.integers(1, 30), max_size=60),
    st.lists(st.integers(-2, 50), min_size=1, max_size=4),
)
def test_entries_are_dealt_in_order_once_each_as_long_as_somebody_can_take(
    sizes: Sequence[int], held: Sequence[int]
) -> None:
    before = {f"c{number}": permits for number, permits in enumerate(held)}
    permits = dict(before)
    start = joined([0] * len(held)).add("gone", 0)
    dispatch, picks = start.dispatch(np.array(sizes, np.int64), permits)
    assert [p.first for p in picks] == [0, *(p.stop for p in picks[:-1])][: len(picks)]
    stop = picks[-1].stop if picks else 0
    if stop < len(sizes):
        assert not any(left > 0 for left in permits.values())
    dealt = dict.fromkeys(before, 0)
    state = start
    for pick in picks:
        state, who = following(state, [each for each in before if before[each] > dealt[each]])
        assert who == pick.consumer
        dealt[pick.consumer] += sum(sizes[pick.first : pick.stop])
    assert {who: before[who] - left for who, left in permits.items()} == dealt
    assert dispatch.turn == state.turn


def test_a_consumer_gets_at_least_one_entry_though_its_permits_go_below_0() -> None:
    assert max_entries_in_this_batch(100, 10, 1) == 1
    permits = {"a": 1}
    _, picks = SharedDispatch().add("a").dispatch(np.array([10, 10]), permits)
    assert [tuple(pick) for pick in picks] == [("a", 0, 1)]
    assert permits == {"a": -9}


def test_nobody_or_nothing_gives_no_picks() -> None:
    assert SharedDispatch().dispatch(np.array([1]), {}) == (SharedDispatch(), [])
    assert SharedDispatch().add("a").dispatch(np.array([], np.int64), {"a": 1})[1] == []


def test_the_turn_begins_again_when_those_at_the_end_have_left() -> None:
    dispatch = joined([0, 0])
    dispatch, _ = following(dispatch, ["c0", "c1"])
    dispatch, _ = following(dispatch, ["c0", "c1"])
    dispatch = dispatch.remove("c1")
    assert dispatch.remove("unknown") == dispatch
    dispatch, who = following(dispatch, ["c0", "c1"])
    assert who == "c0"
    with pytest.raises(ValueError, match="ids must differ"):
        dispatch.add("c0", 3)


def test_consumers_and_turn_survive_being_written_down() -> None:
    dispatch, _ = following(joined([1, 0]), ["c0", "c1"])
    value = json.loads(json.dumps(dispatch.to_json_value()))
    assert SharedDispatch.from_json_value(value) == dispatch
