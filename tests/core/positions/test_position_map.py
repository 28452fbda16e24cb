"""PositionMap against a plain dict of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_map import PositionMap
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

places = st.tuples(st.integers(0, 2), st.integers(0, 5))
some = st.sets(places, max_size=8)
steps = st.lists(
    st.tuples(st.sampled_from(["put", "raised", "without"]), st.integers(1, 4), some), max_size=12
)


def plain(held: PositionMap) -> dict[Position, int]:
    return {position: n for n, part in held.items() for position, _ in part.entries()}


def after(what: list[tuple[str, int, set[tuple[int, int]]]]) -> PositionMap:
    held = PositionMap()
    for action, number, messages in what:
        chosen = PositionSet.of(messages)
        held = held.put(number, chosen) if action == "put" else getattr(held, action)(chosen)
        held.check()
    return held


@given(steps)
def test_each_message_has_the_number_that_it_was_given_last(
    what: list[tuple[str, int, set[tuple[int, int]]]],
) -> None:
    expected: dict[tuple[int, int], int] = {}
    for action, number, messages in what:
        for each in messages:
            if action == "put":
                expected[each] = number
            elif action == "raised":
                expected[each] = expected.get(each, 0) + 1
            else:
                expected.pop(each, None)
    assert plain(after(what)) == expected


@given(steps, some)
def test_parts_of_a_set_are_the_set_and_each_has_its_number(
    what: list[tuple[str, int, set[tuple[int, int]]]], messages: set[tuple[int, int]]
) -> None:
    held, asked = after(what), PositionSet.of(messages)
    parts = list(held.parts(asked, default=0))
    assert [number for number, _ in parts] == sorted(number for number, _ in parts)
    assert PositionSet.union_of(part for _, part in parts) == asked
    for number, part in parts:
        assert part == (held.of(asked)[number] if number else asked.difference(held.messages))


@given(steps, places)
def test_what_a_cursor_holds_or_lies_below_a_position_is_gone(
    what: list[tuple[str, int, set[tuple[int, int]]]], place: tuple[int, int]
) -> None:
    held, position = after(what), Position(*place)
    left = {each: n for each, n in plain(held).items() if each > position}
    assert plain(held.after(position)) == left
    assert plain(held.not_acknowledged(Cursor(position))) == left


@given(steps, st.integers(0, 5))
def test_at_least_is_all_from_that_number_on(
    what: list[tuple[str, int, set[tuple[int, int]]]], number: int
) -> None:
    held = after(what)
    assert held.at_least(number) == PositionSet.of(e for e, n in plain(held).items() if n >= number)


def test_it_compares_with_a_mapping_and_does_not_hash() -> None:
    held = PositionMap({2: PositionSet.of([(0, 1)]), 1: NOTHING})
    assert held == {2: PositionSet.of([(0, 1)])}
    assert list(held) == [2]
    assert "2: " in repr(held)
    with pytest.raises(TypeError):
        hash(held)


def test_check_refuses_a_message_with_two_numbers() -> None:
    twice = PositionMap({1: PositionSet.of([(0, 1)]), 2: PositionSet.of([(0, 1)])})
    with pytest.raises(AssertionError, match="two numbers"):
        twice.check()


@given(steps, st.integers(-1, 5))
def test_split_takes_out_all_up_to_that_number(
    what: list[tuple[str, int, set[tuple[int, int]]]], number: int
) -> None:
    held = after(what)
    taken, rest = held.split(number)
    rest.check()
    assert taken == PositionSet.of(e for e, n in plain(held).items() if n <= number)
    assert plain(rest) == {e: n for e, n in plain(held).items() if n > number}


def test_where_there_are_too_many_numbers_the_closest_two_become_the_higher_one() -> None:
    held = PositionMap({10 * number: PositionSet.of([(0, number)]) for number in range(100)})
    assert held.coarsened(100) is held
    fewer = held.put(503, PositionSet.of([(1, 0)])).coarsened(100)
    fewer.check()
    assert len(fewer) == 100
    assert 500 not in fewer
    assert fewer[503] == PositionSet.of([(0, 50), (1, 0)])


def test_putting_what_has_no_number_looks_at_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    held = PositionMap({number: PositionSet.of([(0, number)]) for number in range(1_000)})
    assert held.messages
    looks = []
    original = PositionSet.difference

    def difference(self: PositionSet, other: PositionSet) -> PositionSet:
        looks.append(self)
        return original(self, other)

    monkeypatch.setattr(PositionSet, "difference", difference)
    for number in range(1_000):
        held = held.put(2_000 + number, PositionSet.of([(1, number)]))
    assert not looks
    held = held.put(7, PositionSet.of([(1, 5)]))
    assert looks
    held.check()
