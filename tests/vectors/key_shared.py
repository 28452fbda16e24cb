"""Checks of the Key_Shared selectors, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pulsar_spark.errors import ConsumerAssignError
from pulsar_spark.producing.hashing import murmur3_32_hash
from pulsar_spark.selectors.auto_split_selector import AutoSplitSelector
from pulsar_spark.selectors.consistent_hashing_selector import ConsistentHashingSelector
from pulsar_spark.selectors.hash_assignments import HashRange
from pulsar_spark.selectors.sticky_key_selector import StickyKeySelector
from pulsar_spark.selectors.sticky_range_selector import StickyRangeSelector
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
    _walk(case, selector, range(slots))


def consistent_hashing_cases(document: Document) -> Iterator[Case]:
    yield from run_all("ring", document.get("cases", []), _check_consistent_hashing)
    yield from run_all("ring_points", document.get("ring_points", []), _check_ring_points)
    yield from run_all("ring_occupancy", document.get("ring_occupancy", []), _check_occupancy)


def _check_consistent_hashing(case: Case) -> None:
    selector = ConsistentHashingSelector(case.take("points"))
    _walk(case, selector, range(1, ConsistentHashingSelector.slots))


def _check_ring_points(case: Case) -> None:
    selector = ConsistentHashingSelector(case.take("points")).add("x", case.take("consumer_name"))
    case.expect("ring_points_sorted", selector.ring_points().tolist())
    case.expect("distinct_points", len(selector.ring_points()))


def _check_occupancy(case: Case) -> None:
    selector = ConsistentHashingSelector(case.take("points_each"))
    for number in range(case.take("consumers")):
        selector = selector.add(str(number), f"consumer-{number}")
    case.expect("distinct_ring_points", len(selector.ring_points()))


def _walk(case: Case, start: StickyKeySelector, slots: Iterable[int]) -> None:
    selector = start
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number}", record)
        before = selector
        selector = _changed(step, before)
        impacted = before.assignments.impacted_by(selector.assignments)
        step.expect(
            "impacted", {"removed": _lists(impacted.removed), "added": _lists(impacted.added)}
        )
        after = Case(f"step {number} after", step.take("after", {}))
        after.expect("ranges", _lists(selector.assignments.ranges()))
        _compare_hashes(after, selector)
        _compare_keys(after, selector)
        _compare_with_itself(after, selector, slots)
        for each in (step.close(), after.close()):
            case.problems += [f"{each.name}: {text}" for text in each.problems]


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
    found = [{"hash": r["hash"], "consumer": selector.select(r["hash"])} for r in recorded]
    after.compare("select_hash", recorded, found)
    many = selector.select_many(np.array([r["hash"] for r in recorded], np.int64))
    ours = [None if i < 0 else selector.consumers[i] for i in many.tolist()]
    after.compare("select_hash of many", [r["consumer"] for r in recorded], ours)


def _compare_keys(after: Case, selector: StickyKeySelector) -> None:
    recorded = after.take("select_key", [])
    hashes = np.array([murmur3_32_hash(record["key"]) for record in recorded], np.int64)
    found = [
        {"key": record["key"], "slot": slot, "consumer": selector.select(slot)}
        for record, slot in zip(recorded, selector.slots_of(hashes).tolist(), strict=True)
    ]
    after.compare("select_key", recorded, found)


def _compare_with_itself(after: Case, selector: StickyKeySelector, slots: Iterable[int]) -> None:
    """All slots at once, and the state written and read back, say the same."""
    owners = selector.owners()
    wanted = np.fromiter(slots, np.int64)
    after.compare("owners", owners[wanted].tolist(), selector.select_many(wanted).tolist())
    read = type(selector).from_json_value(selector.to_json_value())  # type: ignore[attr-defined]
    after.compare("read back", True, bool(np.array_equal(owners, read.owners())))


def _lists(ranges: Mapping[str, Sequence[HashRange]]) -> dict[str, list[list[int]]]:
    return {who: [list(each) for each in held] for who, held in ranges.items()}


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
        step.expect("ranges_after", _lists(selector.ranges))
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]
    after = Case("select", {"select_hash": case.take("select", [])})
    _compare_hashes(after, selector)
    _compare_with_itself(after, selector, range(selector.slots))
    case.problems += after.problems
    removed = [name for name in case.record if name.startswith("ranges_after_removing_")]
    for name in removed:
        consumer = name.removeprefix("ranges_after_removing_")
        case.expect(name, _lists(selector.remove(consumer).ranges))


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
