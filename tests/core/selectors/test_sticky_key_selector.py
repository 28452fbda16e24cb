"""Key_Shared selectors against obvious ones: who owns a slot, and what a change moves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pulsar_spark.broker.selectors.sticky_key_selector import (
    NOBODY,
    AutoSplitSelector,
    ConsistentHashingSelector,
    HashRange,
    StickyKeySelector,
    StickyRangeSelector,
    check_sticky_ranges,
)
from pulsar_spark.errors import ConsumerAssignError, InvalidOptionError
from pulsar_spark.log.producing.hashing import murmur3_32_hash, sticky_key_slot
from tests.core.partition import repeatable
from tests.vectors.key_shared import impacted, ranges_of, ring_points, select

SLOTS = 65536

Change = tuple[bool, int]
"""Whether one joins, and the consumer's number."""
changes = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=14)
names = st.sampled_from(["c", "c1", "é", "日本", ""])
SELECTORS: list[StickyKeySelector] = [
    AutoSplitSelector(),
    ConsistentHashingSelector(),
    ConsistentHashingSelector(points=3),
]


def changed(selector: StickyKeySelector, change: Change) -> StickyKeySelector:
    """One joins, unless it is there; or one leaves, there or not. Names repeat."""
    joins, number = change
    if not joins:
        return selector.remove(f"id-{number}")
    if f"id-{number}" in selector.consumers:
        return selector
    return selector.add(f"id-{number}", f"name-{number % 3}")


def numbers(selector: StickyKeySelector, places: NDArray[np.int32]) -> NDArray[np.int64]:
    """The consumers' own numbers, in place of their places; -1 for nobody."""
    of_place = [int(consumer.removeprefix("id-")) for consumer in selector.consumers]
    return np.array([*of_place, NOBODY])[places]


@pytest.mark.parametrize("start", SELECTORS, ids=["auto split", "ring", "ring of few points"])
@repeatable
@given(changes)
def test_every_slot_has_one_owner_and_a_change_moves_only_what_it_must(
    start: StickyKeySelector, steps: Sequence[Change]
) -> None:
    selector = start
    for change in steps:
        before = selector
        selector = changed(before, change)
        owners = selector.owners
        assert len(owners) >= SLOTS
        assert (owners == NOBODY).all() if not selector.consumers else (owners != NOBODY).all()
        old, new = numbers(before, before.owners), numbers(selector, owners)
        joins, who = change
        assert ((new if joins else old)[old != new] == who).all()


@pytest.mark.parametrize("start", SELECTORS, ids=["auto split", "ring", "ring of few points"])
@repeatable
@given(changes)
def test_a_selector_that_is_read_back_is_the_same(
    start: StickyKeySelector, steps: Sequence[Change]
) -> None:
    selector = start
    for change in steps:
        selector = changed(selector, change)
    read = type(selector).from_json_value(json.loads(json.dumps(selector.to_json_value())))
    assert read == selector
    assert read.consumers == selector.consumers
    assert np.array_equal(read.owners, selector.owners)


@repeatable
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), names), max_size=25))
def test_the_ring_is_that_of_a_dictionary_of_queues(
    steps: Sequence[tuple[bool, int, str]],
) -> None:
    selector = ConsistentHashingSelector(points=20)
    ring: dict[int, list[str]] = {}
    points: dict[str, list[int]] = {}
    indexes: dict[str, tuple[str, int]] = {}
    for joins, number, name in steps:
        who = str(number)
        if joins and who not in points:
            taken = {index for held, index in indexes.values() if held == name}
            index = min(set(range(30)) - taken)
            indexes[who] = name, index
            texts = [f"{name}\0{index}\0{point}" for point in range(20)]
            points[who] = [sticky_key_slot(murmur3_32_hash(text)) for text in texts]
            for point in points[who]:
                ring.setdefault(point, []).append(who)
            selector = selector.add(who, name)
        elif not joins:
            selector = selector.remove(who)
            indexes.pop(who, None)
            for point in points.pop(who, []):
                ring[point].remove(who)
                if not ring[point]:
                    del ring[point]
        assert ring_points(selector) == sorted(ring)
        for slot in (1, 777, 30_000, 65_535):
            first = min((p for p in ring if p >= slot), default=min(ring, default=None))
            assert select(selector, slot) == (None if first is None else ring[first][0])


@repeatable
@given(changes)
def test_auto_split_is_that_of_a_dictionary_of_slots(steps: Sequence[Change]) -> None:
    selector = AutoSplitSelector(16)
    owner: dict[int, str] = {}
    for joins, number in steps:
        who = f"id-{number}"
        if joins and who not in owner.values():
            spans = {w: [s for s in sorted(owner) if owner[s] == w] for w in owner.values()}
            widest = max(map(len, spans.values()), default=0)
            span = next((s for s in sorted(spans.values()) if len(s) == widest), range(1, 17))
            for slot in span[: len(span) // 2 + len(span) % 2] if owner else span:
                owner[slot] = who
            selector = selector.add(who)
        elif not joins and who in owner.values():
            held = [slot for slot in owner if owner[slot] == who]
            heir = owner.get(max(held) + 1) or owner.get(min(held) - 1)
            for slot in held:
                if heir is None:
                    del owner[slot]
                else:
                    owner[slot] = heir
            selector = selector.remove(who)
        else:
            selector = changed(selector, (joins, number))  # type: ignore[assignment]
        assert [select(selector, slot) for slot in range(1, 17)] == [
            owner.get(slot) for slot in range(1, 17)
        ]


def test_auto_split_refuses_one_more_consumer_than_it_has_slots() -> None:
    selector = AutoSplitSelector(2).add("a").add("b")
    with pytest.raises(ConsumerAssignError, match="assigned consumers 2"):
        selector.add("c")


def test_slots_are_those_of_pulsar_s_example_key() -> None:
    hashes = np.array([murmur3_32_hash("Order-3459134"), 0, 65535, 65536])
    assert AutoSplitSelector().slots_of(hashes).tolist() == [6067, 1, 65535, 1]
    assert StickyRangeSelector().slots_of(hashes).tolist() == [6067, 1, 65535, 1]
    assert ConsistentHashingSelector().slots_of(hashes).tolist() == [20788, 1, 1, 2]


@pytest.mark.parametrize("selector", [*SELECTORS, StickyRangeSelector()])
def test_an_id_can_be_there_only_once(selector: StickyKeySelector) -> None:
    ranges = [HashRange(0, 9)]
    with pytest.raises(ValueError, match="ids must differ"):
        selector.add("c", "n", ranges).add("c", "other", [HashRange(20, 29)])


def test_selectors_of_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        ConsistentHashingSelector(points=0)
    with pytest.raises(ValueError, match="greater than 0"):
        StickyRangeSelector(0)
    for slots, problem in ((0, "greater than 2"), (6, "nth power with 2")):
        with pytest.raises(ValueError, match=problem):
            AutoSplitSelector(slots)


def test_sticky_slots_that_nobody_named_have_no_owner() -> None:
    selector = StickyRangeSelector().add("a", "n", [HashRange(10, 20), HashRange(21, 30)])
    assert ranges_of(selector) == {"a": [[10, 30]]}
    assert selector.owners[[9, 10, 30, 31]].tolist() == [NOBODY, 0, 0, NOBODY]
    assert selector.remove("unknown") == selector
    with pytest.raises(ConsumerAssignError, match="Must specify key shared meta"):
        selector.add("b")


@pytest.mark.parametrize("selector", [*SELECTORS, StickyRangeSelector()])
def test_selectors_of_different_kinds_are_never_equal(selector: StickyKeySelector) -> None:
    others = [*SELECTORS, StickyRangeSelector(), "something"]
    assert [other for other in others if other == selector] == [selector]


slot_ranges = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda p: HashRange(*p)), max_size=3
)


@repeatable
@given(st.lists(slot_ranges, max_size=6))
def test_sticky_ranges_are_taken_whole_or_refused_whole(
    requested: Sequence[list[HashRange]],
) -> None:
    selector, owner = StickyRangeSelector(), dict[int, str]()
    for number, ranges in enumerate(requested):
        who = f"id-{number}"
        slots = [slot for start, end in ranges for slot in range(start, end + 1)]
        fits = all(start <= end for start, end in ranges) and len(set(slots)) == len(slots)
        if ranges and fits and not owner.keys() & set(slots):
            selector = selector.add(who, ranges=ranges)
            owner |= dict.fromkeys(slots, who)
        else:
            with pytest.raises(ConsumerAssignError):
                selector.add(who, ranges=ranges)
        assert [select(selector, slot) for slot in range(32)] == [owner.get(s) for s in range(32)]
    read = StickyRangeSelector.from_json_value(json.loads(json.dumps(selector.to_json_value())))
    assert read == selector
    for number in range(len(requested)):
        selector = selector.remove(f"id-{number}")
    assert (selector.owners == NOBODY).all()


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([], "must not be empty"),
        ([HashRange(-1, 5)], "not within"),
        ([HashRange(0, 65536)], "not within"),
        ([HashRange(5, 3)], "ends before it starts"),
        ([HashRange(10, 20), HashRange(0, 10)], "overlap"),
    ],
)
def test_a_client_refuses_sticky_ranges_that_no_broker_would_take(
    ranges: list[HashRange], problem: str
) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        check_sticky_ranges(ranges)


def test_a_client_takes_ranges_that_touch() -> None:
    check_sticky_ranges([HashRange(11, 65535), HashRange(0, 10)])


@repeatable
@given(st.lists(slot_ranges, max_size=4), st.lists(slot_ranges, max_size=4))
def test_what_a_change_impacts_is_told_slot_by_slot(
    one: Sequence[list[HashRange]], other: Sequence[list[HashRange]]
) -> None:
    before, after = StickyRangeSelector(32), StickyRangeSelector(32)
    for number, ranges in enumerate(one):
        with suppress(ConsumerAssignError):
            before = before.add(f"id-{number}", ranges=ranges)
    for number, ranges in enumerate(other):
        with suppress(ConsumerAssignError):
            after = after.add(f"id-{len(other) - number}", ranges=ranges)
    was, now = ([select(each, slot) for slot in range(32)] for each in (before, after))
    removed, added = impacted(before, after)
    for held, owners, others in ((removed, was, now), (added, now, was)):
        found = {s: who for who, ranges in held.items() for a, b in ranges for s in range(a, b + 1)}
        assert found == {s: who for s, who in enumerate(owners) if who and others[s] != who}
        for spans in held.values():
            assert all(a[1] + 1 < b[0] for a, b in pairwise(spans))
