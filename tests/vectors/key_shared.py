"""Checks of the Key_Shared selectors, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.broker.selectors.sticky_key_selector import (
    NOBODY,
    AutoSplitSelector,
    ConsistentHashingSelector,
    HashRange,
    StickyKeySelector,
    StickyRangeSelector,
    points_of,
)
from pulsar_spark.errors import ConsumerAssignError
from pulsar_spark.log.producing.hashing import murmur3_32_hash
from tests.vectors.case import Case, run_all

Document = dict[str, Any]


def check_auto_split(case: Case) -> None:
    case.take("note", None)
    slots = case.take("range_size")
    try:
        selector = AutoSplitSelector(slots)
    except ValueError as error:
        case.compare("constructor_error", case.take("constructor_error", None), str(error))
        return
    case.expect("constructor_error", None)
    _walk(case, selector, first=0)


def consistent_hashing_cases(document: Document) -> Iterator[Case]:
    yield from run_all("ring", document.get("cases", []), _check_consistent_hashing)
    yield from run_all("ring_points", document.get("ring_points", []), _check_ring_points)
    yield from run_all("ring_occupancy", document.get("ring_occupancy", []), _check_occupancy)


def _check_consistent_hashing(case: Case) -> None:
    selector = ConsistentHashingSelector(case.take("points"))
    _walk(case, selector, first=1)


def _check_ring_points(case: Case) -> None:
    selector = ConsistentHashingSelector(case.take("points")).add("x", case.take("consumer_name"))
    points = ring_points(selector)
    case.expect("ring_points_sorted", points)
    case.expect("distinct_points", len(points))


def _check_occupancy(case: Case) -> None:
    selector = ConsistentHashingSelector(case.take("points_each"))
    for number in range(case.take("consumers")):
        selector = selector.add(str(number), f"consumer-{number}")
    case.expect("distinct_ring_points", len(ring_points(selector)))


def ring_points(selector: ConsistentHashingSelector) -> list[int]:
    """The taken points, ascending."""
    named = (points_of(name, number, selector.points) for _, name, number in selector.members)
    return sorted({point for points in named for point in points.tolist()})


def _walk(case: Case, start: StickyKeySelector, first: int) -> None:
    """`first`: the lowest slot that Pulsar tells of."""
    selector = start
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number}", record)
        before = selector
        selector = _changed(step, before)
        removed, added = impacted(before, selector, first)
        step.expect("impacted", {"removed": removed, "added": added})
        after = Case(f"step {number} after", step.take("after", {}))
        after.expect("ranges", ranges_of(selector, first))
        _compare_hashes(after, selector)
        _compare_keys(after, selector)
        _compare_read_back(after, selector)
        for each in (step.close(), after.close()):
            case.problems += [f"{each.name}: {text}" for text in each.problems]


Lists = dict[str, list[list[int]]]
"""Consumer -> its ranges, both ends included; those that touch are one."""


def ranges_of(selector: StickyKeySelector, first: int = 0) -> Lists:
    """All of each consumer's."""
    return _ranges(selector.owners, list(selector.consumers), first)


def impacted(
    before: StickyKeySelector, after: StickyKeySelector, first: int = 0
) -> tuple[Lists, Lists]:
    """(the ranges that a change took from consumers, those that it gave them)."""
    names = list(dict.fromkeys((*before.consumers, *after.consumers)))
    places = [np.array([*map(names.index, each.consumers), NOBODY]) for each in (before, after)]
    was, now = places[0][before.owners], places[1][after.owners]
    return (
        _ranges(np.where(was == now, NOBODY, was), names, first),
        _ranges(np.where(was == now, NOBODY, now), names, first),
    )


def _ranges(owners: NDArray[Any], names: Sequence[str], first: int) -> Lists:
    found: Lists = {}
    edges = [first, *(first + 1 + np.flatnonzero(np.diff(owners[first:]))).tolist(), len(owners)]
    for start, stop in pairwise(edges):
        if owners[start] != NOBODY:
            found.setdefault(names[owners[start]], []).append([start, stop - 1])
    return found


def _changed(step: Case, selector: StickyKeySelector) -> StickyKeySelector:
    op, consumer, name = step.take("op"), step.take("consumer"), step.take("consumer_name")
    if op == "remove":
        return selector.remove(consumer)
    step.compare("op", op, "add")
    try:
        added = selector.add(consumer, name)
    except ConsumerAssignError as error:
        step.compare("error", step.take("error", None), f"ConsumerAssignException: {error.message}")
        return selector
    step.expect("error", None)
    return added


def _compare_hashes(after: Case, selector: StickyKeySelector) -> None:
    recorded = after.take("select_hash", [])
    found = [{"hash": r["hash"], "consumer": select(selector, r["hash"])} for r in recorded]
    after.compare("select_hash", recorded, found)


def _compare_keys(after: Case, selector: StickyKeySelector) -> None:
    recorded = after.take("select_key", [])
    hashes = np.array([murmur3_32_hash(record["key"]) for record in recorded], np.int64)
    found = [
        {"key": record["key"], "slot": slot, "consumer": select(selector, slot)}
        for record, slot in zip(recorded, selector.slots_of(hashes).tolist(), strict=True)
    ]
    after.compare("select_key", recorded, found)


def select(selector: StickyKeySelector, slot: int) -> str | None:
    """The consumer of a slot."""
    owner = selector.owners[slot]
    return None if owner == NOBODY else selector.consumers[owner]


def _compare_read_back(after: Case, selector: StickyKeySelector) -> None:
    """The state written and read back says the same."""
    read = type(selector).from_json_value(selector.to_json_value())
    after.compare("read back", True, bool(np.array_equal(selector.owners, read.owners)))


def _named(selector: StickyRangeSelector) -> Lists:
    return {who: [list(each) for each in held] for who, held in selector.ranges}


def check_sticky_ranges(case: Case) -> None:
    selector = StickyRangeSelector()
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number}", record)
        op, consumer = step.take("op"), step.take("consumer")
        if op == "remove":
            selector = selector.remove(consumer)
        else:
            step.compare("op", op, "add")
            selector = _with_ranges(step, selector, consumer)
        step.expect("ranges_after", _named(selector))
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]
    after = Case("select", {"select_hash": case.take("select", [])})
    _compare_hashes(after, selector)
    _compare_read_back(after, selector)
    case.problems += after.problems
    removed = [name for name in case.record if name.startswith("ranges_after_removing_")]
    for name in removed:
        consumer = name.removeprefix("ranges_after_removing_")
        case.expect(name, _named(selector.remove(consumer)))


def _with_ranges(step: Case, selector: StickyRangeSelector, consumer: str) -> StickyRangeSelector:
    ranges, error = step.take("ranges"), None
    named = None if ranges is None else [HashRange(*each) for each in ranges]
    try:
        selector = selector.add(consumer, ranges=named)
    except ConsumerAssignError as refusal:
        error = f"ConsumerAssignException: {refusal.message}"
    step.expect("accepted", error is None)
    step.compare("error", step.take("error", None), error)
    return selector
