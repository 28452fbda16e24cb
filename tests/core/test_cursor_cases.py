"""Cases of a cursor that no file of Pulsar's records holds, written from what Pulsar's source says.

They have the form of those files, so that they hold the checker as well as the cursor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from tests.vectors.case import Case
from tests.vectors.check import check_document

BEYOND = "ManagedLedgerException: Invalid mark deleted position"
Step = dict[str, Any]


def case_of(*steps: Step, size: int = 100, **config: Any) -> dict[str, Any]:
    settings = {
        "max_entries_per_ledger": size,
        "deletion_at_batch_index_level": True,
        "initial_position": "Earliest",
    }
    return {"name": "by reasoning", "config": settings | config, "steps": list(steps)}


def checked(case: dict[str, Any]) -> Case:
    (result,) = check_document("cursor_acks", {"cases": [case]})
    return result


def add(*places: list[int], **rest: Any) -> Step:
    return {"op": "add", "positions": list(places), **rest}


def entries(ledger_id: int, count: int, first: int = 0) -> list[list[int]]:
    return [[ledger_id, entry_id] for entry_id in range(first, first + count)]


def state(
    mark_delete: list[int], read: list[int], ledgers: dict[int, int], last: list[int],
    *, left: int, ahead: int, holes: Iterable[list[int]] = (), persisted: bool = True,
    ack_sets: dict[str, list[int]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    ranges = [list(hole) for hole in holes]
    return {
        "mark_delete": mark_delete,
        "persistent_mark_delete": mark_delete if persisted else None,
        "read_position": read,
        "individually_deleted": f"[{','.join(f'({a}:{b}..{c}:{d}]' for a, b, c, d in ranges)}]",
        "ranges_open_closed": ranges,
        "non_contiguous_ranges": len(ranges),
        "backlog_precise": left,
        "backlog_imprecise": left,
        "entries_ahead_of_read": ahead,
        "has_more": read <= last,
        "batch_ack_sets": ack_sets or {},
        "ledgers": {str(ledger_id): count for ledger_id, count in ledgers.items()},
        "last_confirmed": last,
    }


def below(current: str, attempted: str) -> str:
    return (
        "ManagedLedgerException: org.apache.bookkeeper.mledger.impl.ManagedCursorImpl"
        "$MarkDeletingMarkedPosition: Mark deleting an already mark-deleted position. "
        f"Current mark-delete: {current} -- attempted mark delete: {attempted}"
    )


ONE = {3: 0}
LATEST = case_of(
    add(*entries(3, 3)),
    add(*entries(3, 2, 3)),
    {"op": "subscribe",
     "state": state([3, 4], [3, 5], ONE, [3, 4], left=0, ahead=0, persisted=False)},
    {"op": "ack_pos", "position": [3, 1],
     "state": state([3, 4], [3, 5], ONE, [3, 4], left=0, ahead=0, persisted=False)},
    {"op": "cumulative", "position": [3, 1], "error": below("3:4", "3:1"),
     "state": state([3, 4], [3, 5], ONE, [3, 4], left=0, ahead=0, persisted=False)},
    add(*entries(3, 2, 5),
        state=state([3, 4], [3, 5], ONE, [3, 6], left=2, ahead=2, persisted=False)),
    {"op": "read", "max": 9, "entries": [[3, 5], [3, 6]],
     "state": state([3, 4], [3, 7], ONE, [3, 6], left=2, ahead=0, persisted=False)},
    {"op": "ack_pos", "position": [3, 6],
     "state": state([3, 4], [3, 7], ONE, [3, 6], left=1, ahead=0, holes=[[3, 5, 3, 6]])},
    initial_position="Latest",
)  # fmt: skip
LATEST_BEFORE_ALL = case_of(
    {"op": "subscribe",
     "state": state([3, -1], [3, 0], ONE, [3, -1], left=0, ahead=0, persisted=False)},
    {"op": "reopen_crash",
     "state": state([4, -1], [4, 0], {4: 0}, [4, -1], left=0, ahead=0)},
    add([4, 0], state=state([4, -1], [4, 0], {4: 0}, [4, 0], left=1, ahead=1)),
    initial_position="Latest",
)  # fmt: skip
BY_POSITION = case_of(
    add(*entries(3, 3)),
    {"op": "ack_pos", "position": [3, 3], "error": BEYOND,
     "state": state([3, -1], [3, 0], ONE, [3, 2], left=3, ahead=3, persisted=False)},
    {"op": "ack_pos", "position": [2, 7],
     "state": state([3, -1], [3, 0], ONE, [3, 2], left=3, ahead=3, persisted=False)},
    {"op": "ack_batch", "position": [3, 3], "ack_set": [1], "error": BEYOND,
     "state": state([3, -1], [3, 0], ONE, [3, 2], left=3, ahead=3, persisted=False)},
    {"op": "cumulative", "position": [3, 3], "error": BEYOND,
     "state": state([3, -1], [3, 0], ONE, [3, 2], left=3, ahead=3, persisted=False)},
    {"op": "ack_pos", "positions": [[3, 2], [3, 0]],
     "state": state([3, 0], [3, 1], ONE, [3, 2], left=1, ahead=1, holes=[[3, 1, 3, 2]])},
)  # fmt: skip
CLEARED = case_of(
    add(*entries(3, 3), *entries(4, 2)),
    {"op": "ack_batch", "position": [4, 0], "ack_set": [2],
     "state": state([3, -1], [3, 0], {3: 3, 4: 0}, [4, 1], left=5, ahead=5, persisted=False,
                    ack_sets={"4:0": [2]})},
    {"op": "ack", "positions": [[3, 1]],
     "state": state([3, -1], [3, 0], {3: 3, 4: 0}, [4, 1], left=4, ahead=4,
                    holes=[[3, 0, 3, 1]], ack_sets={"4:0": [2]})},
    {"op": "clear_backlog",
     "state": state([4, 1], [4, 2], {3: 3, 4: 0}, [4, 1], left=0, ahead=0)},
    {"op": "clear_backlog",
     "state": state([4, 1], [4, 2], {3: 3, 4: 0}, [4, 1], left=0, ahead=0)},
    {"op": "cumulative_batch", "position": [4, 1], "ack_set": [4], "error": below("4:1", "4:0"),
     "state": state([4, 1], [4, 2], {3: 3, 4: 0}, [4, 1], left=0, ahead=0,
                    ack_sets={"4:1": [4]})},
    {"op": "reset_pos", "position": [3, 2],
     "state": state([3, 1], [3, 2], {3: 3, 4: 0}, [4, 1], left=3, ahead=3, persisted=False)},
    {"op": "clear_backlog",
     "state": state([4, 1], [4, 2], {3: 3, 4: 0}, [4, 1], left=0, ahead=0)},
    size=3,
)  # fmt: skip
WHOLE_ENTRIES = case_of(
    add(*entries(3, 4)),
    {"op": "ack_batch", "position": [3, 0], "ack_set": [6],
     "state": state([3, -1], [3, 0], ONE, [3, 3], left=4, ahead=4, persisted=False)},
    {"op": "ack_batch", "position": [3, 0], "ack_set": [],
     "state": state([3, 0], [3, 1], ONE, [3, 3], left=3, ahead=3)},
    {"op": "cumulative_batch", "position": [3, 2], "ack_set": [4],
     "state": state([3, 1], [3, 2], ONE, [3, 3], left=2, ahead=2)},
    {"op": "cumulative_batch", "position": [3, 1], "ack_set": [4], "error": below("3:1", "3:0"),
     "state": state([3, 1], [3, 2], ONE, [3, 3], left=2, ahead=2)},
    {"op": "ack_batch", "position": [3, 4], "ack_set": [2], "error": BEYOND,
     "state": state([3, 1], [3, 2], ONE, [3, 3], left=2, ahead=2)},
    {"op": "reset_batch", "position": [3, 1], "ack_set": [4],
     "state": state([3, 0], [3, 1], ONE, [3, 3], left=3, ahead=3, persisted=False)},
    deletion_at_batch_index_level=False,
)  # fmt: skip
GATHERED = case_of(
    add(*entries(3, 2)),
    {"op": "ack_batch", "position": [3, 0], "ack_set": [2],
     "state": state([3, -1], [3, 0], ONE, [3, 1], left=2, ahead=2, persisted=False)},
    {"op": "reopen_clean", "state": state([3, -1], [3, 0], {3: 2, 4: 0}, [3, 1], left=2, ahead=2)},
    {"op": "ack_batch", "position": [3, 0], "ack_set": [1],
     "state": state([3, -1], [3, 0], {3: 2, 4: 0}, [3, 1], left=2, ahead=2)},
    deletion_at_batch_index_level=False,
)  # fmt: skip
TRIMMED = case_of(
    {"op": "subscribe",
     "state": state([3, -1], [3, 0], ONE, [3, -1], left=0, ahead=0, persisted=False)},
    add(*entries(3, 2), *entries(4, 2), [5, 0],
        state=state([3, -1], [3, 0], {3: 2, 4: 2, 5: 0}, [5, 0], left=5, ahead=5,
                    persisted=False)),
    {"op": "ack_pos", "positions": [[4, 0], [3, 0], [3, 1]],
     "state": state([4, 0], [4, 1], {4: 2, 5: 0}, [5, 0], left=2, ahead=2)},
    {"op": "ack_pos", "position": [4, 1],  # in the same ledger, so nobody looks what to trim
     "state": state([4, 1], [5, 0], {4: 2, 5: 0}, [5, 0], left=1, ahead=1)},
    {"op": "trim", "state": state([4, 1], [5, 0], {5: 0}, [5, 0], left=1, ahead=1)},
    {"op": "ack_pos", "position": [3, 0],
     "state": state([4, 1], [5, 0], {5: 0}, [5, 0], left=1, ahead=1)},
    {"op": "reset_pos", "position": [3, 1],
     "state": state([5, -1], [5, 0], {5: 0}, [5, 0], left=1, ahead=1, persisted=False)},
    size=2, retention0="true",
)  # fmt: skip
NOBODY_SUBSCRIBED = case_of(
    add(*entries(3, 2), [4, 0]),
    {"op": "subscribe",
     "state": state([4, -1], [4, 0], {4: 0}, [4, 0], left=1, ahead=1, persisted=False)},
    size=2, retention0="true",
)  # fmt: skip
FORGOTTEN = case_of(
    add(*entries(3, 2)),
    {"op": "ack_batch", "position": [3, 0], "ack_set": [2],
     "state": state([3, -1], [3, 0], ONE, [3, 1], left=2, ahead=2, persisted=False,
                    ack_sets={"3:0": [2]})},
    {"op": "reopen_clean", "state": state([3, -1], [3, 0], {3: 2, 4: 0}, [3, 1], left=2, ahead=2)},
    {"op": "ack_batch", "position": [3, 0], "ack_set": [1],
     "state": state([3, -1], [3, 0], {3: 2, 4: 0}, [3, 1], left=2, ahead=2,
                    ack_sets={"3:0": [1]})},
    {"op": "cumulative_batch", "position": [3, 0], "ack_set": [2],
     "state": state([3, -1], [3, 0], {3: 2, 4: 0}, [3, 1], left=2, ahead=2,
                    ack_sets={"3:0": [2]})},
    {"op": "cumulative", "position": [3, 9], "error": BEYOND,
     "state": state([3, -1], [3, 0], {3: 2, 4: 0}, [3, 1], left=2, ahead=2,
                    ack_sets={"3:0": [2]})},
)  # fmt: skip
REFUSED_IN_PART = case_of(
    add(*entries(3, 3)),
    {"op": "ack", "positions": [[3, 1], [3, 7], [3, 0]], "error": BEYOND,
     "state": state([3, -1], [3, 0], ONE, [3, 2], left=2, ahead=2, holes=[[3, 0, 3, 1]],
                    persisted=False)},
)  # fmt: skip
PAST_A_CLOSED_LEDGER = case_of(
    add(*entries(3, 3), [4, 0]),
    {"op": "ack_pos", "position": [3, 3],
     "state": state([3, -1], [3, 0], {3: 3, 4: 0}, [4, 0], left=3, ahead=3,
                    holes=[[3, 2, 3, 3]])},
    {"op": "ack_batch", "position": [3, 4], "ack_set": [],
     "state": state([3, -1], [3, 0], {3: 3, 4: 0}, [4, 0], left=2, ahead=2,
                    holes=[[3, 2, 3, 4]])},
    {"op": "ack_pos", "position": [4, 1], "error": BEYOND,
     "state": state([3, -1], [3, 0], {3: 3, 4: 0}, [4, 0], left=2, ahead=2,
                    holes=[[3, 2, 3, 4]])},
    {"op": "cumulative", "position": [3, 5],
     "state": state([3, 5], [4, 0], {3: 3, 4: 0}, [4, 0], left=1, ahead=1)},
    {"op": "cumulative", "position": [3, 4], "error": below("3:5", "3:4"),
     "state": state([3, 5], [4, 0], {3: 3, 4: 0}, [4, 0], left=1, ahead=1)},
    {"op": "ack_pos", "position": [4, 0],
     "state": state([4, 0], [4, 1], {3: 3, 4: 0}, [4, 0], left=0, ahead=0)},
    size=3,
)  # fmt: skip
ONE_ENTRY_TOO_FAR = case_of(
    add(*entries(3, 2)),
    {"op": "cumulative_batch", "position": [3, 3], "ack_set": [2], "error": BEYOND,
     "state": state([3, -1], [3, 0], ONE, [3, 1], left=2, ahead=2, persisted=False,
                    ack_sets={"3:3": [2]})},
    {"op": "cumulative_batch", "position": [3, 2], "ack_set": [2],
     "state": state([3, 1], [3, 2], ONE, [3, 1], left=0, ahead=0, ack_sets={"3:2": [2]})},
    add([3, 2], state=state([3, 1], [3, 2], ONE, [3, 2], left=1, ahead=1,
                            ack_sets={"3:2": [2]})),
    {"op": "ack_pos", "position": [3, 2],
     "state": state([3, 2], [3, 3], ONE, [3, 2], left=0, ahead=0)},
)  # fmt: skip
NOTHING_PUBLISHED = case_of(
    {"op": "subscribe",
     "state": state([3, -1], [3, 0], ONE, [3, -1], left=0, ahead=0, persisted=False)},
    {"op": "ack_pos", "position": [3, 0], "error": BEYOND,
     "state": state([3, -1], [3, 0], ONE, [3, -1], left=0, ahead=0, persisted=False)},
    {"op": "ack_pos", "positions": [[2, 7], [3, -1]],
     "state": state([3, -1], [3, 0], ONE, [3, -1], left=0, ahead=0, persisted=False)},
    {"op": "cumulative", "position": [3, 0], "error": BEYOND,
     "state": state([3, -1], [3, 0], ONE, [3, -1], left=0, ahead=0, persisted=False)},
)  # fmt: skip

CASES = {
    "LATEST": LATEST,
    "LATEST_BEFORE_ALL": LATEST_BEFORE_ALL,
    "BY_POSITION": BY_POSITION,
    "CLEARED": CLEARED,
    "WHOLE_ENTRIES": WHOLE_ENTRIES,
    "GATHERED": GATHERED,
    "TRIMMED": TRIMMED,
    "NOBODY_SUBSCRIBED": NOBODY_SUBSCRIBED,
    "FORGOTTEN": FORGOTTEN,
    "REFUSED_IN_PART": REFUSED_IN_PART,
    "PAST_A_CLOSED_LEDGER": PAST_A_CLOSED_LEDGER,
    "ONE_ENTRY_TOO_FAR": ONE_ENTRY_TOO_FAR,
    "NOTHING_PUBLISHED": NOTHING_PUBLISHED,
}
ON_PURPOSE = {
    "LATEST_BEFORE_ALL": {"rollover"},
    "CLEARED": {"stale_ack_set"},
    "FORGOTTEN": {"batch_indexes_forgotten"},
    "GATHERED": {"gathered_in_batch"},
    "REFUSED_IN_PART": {"refused_in_part"},
    "PAST_A_CLOSED_LEDGER": {"never_published"},
    "ONE_ENTRY_TOO_FAR": {"never_published"},
}


@pytest.mark.parametrize("name", CASES)
def test_a_reasoned_case_holds(name: str) -> None:
    case = checked(CASES[name])
    assert case.problems == []
    assert case.on_purpose == ON_PURPOSE.get(name, set())


@pytest.mark.parametrize("name", CASES)
def test_an_error_that_is_missing_or_another_fails_wherever_it_is(name: str) -> None:
    for number, step in enumerate(CASES[name]["steps"]):
        wrong = copy.deepcopy(CASES[name])
        if "error" in step:
            del wrong["steps"][number]["error"]
            assert checked(wrong).problems, f"step {number} without its error"
        wrong["steps"][number]["error"] = "ManagedLedgerException: something else"
        assert checked(wrong).problems, f"step {number} with another error"


@pytest.mark.parametrize("name", sorted(CASES.keys() - ON_PURPOSE.keys()))
def test_every_field_of_every_state_counts(name: str) -> None:
    for number, step in enumerate(CASES[name]["steps"]):
        for field, value in step.get("state", {}).items():
            wrong = copy.deepcopy(CASES[name])
            wrong["steps"][number]["state"][field] = _other(value)
            assert checked(wrong).problems, f"step {number}: {field}"


def _other(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return f"{value}0"
    if isinstance(value, dict):
        return {**value, "9": 7}
    return [*value, [9, 1, 9, 2]] if not value or isinstance(value[0], list) else [9, 9]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a setting that nobody knows", "true"),
        ("aNumberThatNobodyKnows", "3"),
        ("initial_position", "Somewhere"),
        ("deletion_at_batch_index_level", "perhaps"),
        ("retention0", "sometimes"),
        ("maxUnackedRangesToPersist", "many"),
    ],
)
def test_a_configuration_that_is_not_known_fails(name: str, value: str) -> None:
    wrong = copy.deepcopy(LATEST)
    wrong["config"][name] = value
    assert f"configuration: {name}" in " ".join(checked(wrong).problems)


def test_a_ledger_is_trimmed_only_once_consumed_and_only_without_retention() -> None:
    wrong = copy.deepcopy(TRIMMED)
    del wrong["config"]["retention0"]
    assert "trimmed too early" in " ".join(checked(wrong).problems)
    early = copy.deepcopy(TRIMMED)
    early["steps"][2]["state"]["ledgers"] = {"5": 0}
    assert "trimmed too early" in " ".join(checked(early).problems)
    late = copy.deepcopy(TRIMMED)
    late["steps"][4]["state"] = copy.deepcopy(late["steps"][3]["state"])
    assert "not trimmed" in " ".join(checked(late).problems)


def test_what_is_no_operation_fails() -> None:
    wrong = copy.deepcopy(LATEST)
    wrong["steps"][2]["op"] = "compare"
    assert "this op is not known" in " ".join(checked(wrong).problems)
