"""What Pulsar recorded holds here, and the checker sees whatever differs."""

from __future__ import annotations

import copy
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import java
from tests.vectors.check import KINDS, check_document, check_file, kind_of, main
from tests.vectors.differences import RULES

VECTORS = Path(__file__).parent.parent / "vectors"


def document_of(kind: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        gzip.decompress((VECTORS / f"{kind}.json.gz").read_bytes())
    )
    return document


def failures(stem: str, document: Any) -> list[str]:
    return [case.name for case in check_document(stem, document) if case.problems]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_case_that_pulsar_recorded_holds(kind: str) -> None:
    cases = list(check_file(VECTORS / f"{kind}.json.gz"))
    assert cases
    assert [(case.name, case.problems) for case in cases if case.problems] == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_file_is_recognised_by_its_content_alone(kind: str) -> None:
    document = document_of(kind)
    assert kind_of("hidden", document) == kind
    assert kind_of(f"{kind}-hidden", {}) == kind
    only_cases = {"cases": document["cases"]}
    assert kind_of("hidden", only_cases) == kind


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_wrong_case_fails_whichever_field_is_wrong(kind: str) -> None:
    document = document_of(kind)
    for section, records in document.items():
        if not isinstance(records, list) or not records:
            continue
        shapes = {tuple(sorted(record)): record for record in records}
        for record in shapes.values():
            for wrong, what in _spoilt(record):
                spoilt = {section: [wrong]}
                assert failures(kind, spoilt), f"{kind}.{section}: {what} is not looked at"


def _spoilt(record: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The record with one thing more, and with one recorded answer changed."""
    yield {**record, "a field that nobody knows": 1}, "an unknown field"
    inputs = {"a", "b", "key", "key_repeat_of", "kind", "name", "config", "rule", "acked", "named"}
    inputs |= {"input", "hex", "consumer_topic", "subscription", "message_sizes", "messages"}
    inputs |= {"container", "cumulative_up_to", "max_message_size", "max_bytes", "batch_size"}
    inputs |= {"batching_max_messages", "batching_max_bytes", "start_index", "partitions"}
    inputs |= {"router", "batching", "partition_switch_ms", "and_left", "and_right", "unsorted"}
    inputs |= {"range_size", "note", "points", "points_each", "topic", "partition_index", "case"}
    inputs |= {"activeConsumerFailoverConsistentHashing", "consumers_in_subscribe_order"}
    inputs |= {"remaining_messages", "max_unacked_per_consumer", "unacked", "avg_batch_size"}
    inputs |= {"available_permits", "dispatcherMaxRoundRobinBatchSize", "tick_ms", "consumers"}
    inputs |= {"deliver_at_time_strict", "fixed_delay_lookahead", "min_ms", "max_ms", "defaults"}
    inputs |= {"multiplier", "chunk_max_message_size", "payload_bytes", "metadata_bytes"}
    for name in record.keys() - inputs:
        wrong = copy.deepcopy(record)
        if name == "steps":
            step = wrong["steps"][-1]
            for field in step.keys() & {"str", "size", "ranges", "state"}:
                spoilt = copy.deepcopy(wrong)
                spoilt["steps"][-1][field] = _other(step[field])
                yield spoilt, f"{name}.{field}"
            continue
        wrong[name] = _other(wrong[name])
        yield wrong, name


STEP_KINDS = (
    "hash_range_auto_split",
    "consistent_hashing",
    "sticky_ranges",
    "draining_hashes",
    "failover_selection",
    "shared_dispatch",
    "delayed_delivery",
    "dedup",
)


@pytest.mark.parametrize("kind", STEP_KINDS)
def test_every_field_of_every_shape_of_step_counts(kind: str) -> None:
    inputs = {"op", "consumer", "consumer_name", "hash", "closing", "name", "priority", "now"}
    inputs |= {"ledger", "entry", "deliver_at", "max", "producer", "sequence_id", "chunk_id"}
    inputs |= {"highest_sequence_id", "num_chunks", "which_inflight", "ranges"}
    seen = set()
    for case in document_of(kind)["cases"]:
        for number, step in enumerate(case.get("steps", ())):
            shape = (step["op"], *sorted(step), *sorted(step.get("after", ())))
            if shape in seen:
                continue
            seen.add(shape)
            for field, where in _places(step, inputs):
                wrong = copy.deepcopy(case)
                target = wrong["steps"][number]
                target = target["after"] if where == "after" else target
                target[field] = _other(target[field])
                assert failures(kind, {"cases": [wrong]}), f"{step['op']}: {field} is not looked at"
            extra = copy.deepcopy(case)
            extra["steps"][number]["a field that nobody knows"] = 1
            assert failures(kind, {"cases": [extra]})
    assert seen


def _places(step: dict[str, Any], inputs: set[str]) -> Iterator[tuple[str, str]]:
    for field in step.keys() - inputs - {"after"}:
        yield field, "step"
    for field in step.get("after", {}):
        yield field, "after"


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return f"{value}0"
    if isinstance(value, list):
        return [*value, 77]
    if isinstance(value, dict):
        return {name: _other(part) for name, part in value.items()} or {"x": 1}
    return "something"


def test_every_field_of_a_cursors_state_counts() -> None:
    document = document_of("cursor_acks")
    case = next(case for case in document["cases"] if case["name"] == "holes then fill")
    for field in case["steps"][-1]["state"]:
        wrong = copy.deepcopy(case)
        state = wrong["steps"][-1]["state"]
        state[field] = _other(state[field])
        assert failures("cursor_acks", {"cases": [wrong]}), f"{field} is not looked at"


def test_each_case_that_differs_on_purpose_is_in_the_table_and_no_other() -> None:
    found = defaultdict(list)
    for kind in KINDS:
        for case in check_file(VECTORS / f"{kind}.json.gz"):
            for rule in case.on_purpose:
                found[rule].append(case.name)
    assert {rule: sorted(names) for rule, names in found.items()} == {
        name: sorted(rule.cases) for name, rule in RULES.items() if rule.cases
    }


def test_pulsar_must_not_lose_anything_for_no_reason() -> None:
    document = document_of("cursor_acks")
    case = next(case for case in document["cases"] if case["name"] == "holes then fill")
    state = case["steps"][1]["state"]
    state["individually_deleted"] = "[(3:0..3:1]]"
    state["ranges_open_closed"], state["non_contiguous_ranges"] = [[3, 0, 3, 1]], 1
    (checked,) = check_document("cursor_acks", {"cases": [case]})
    assert "for no reason in the table" in " ".join(checked.problems)


def test_a_kind_that_is_not_known_yet_is_reported_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dreams.json.gz").write_bytes(gzip.compress(b'{"cases": [{"x": 1}]}'))
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b"{}" * 99)[:20])
    (tmp_path / "list.json.gz").write_bytes(gzip.compress(b"[]"))
    paths = [str(tmp_path / f"{name}.json.gz") for name in ("dreams", "torn", "list", "absent")]
    good = str(VECTORS / "partition_router_unkeyed.json.gz")
    assert main([*paths, good]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "dreams.json.gz: file: is of a kind that is not known yet" in lines
    assert lines[-1] == "76 passed, 4 failed"


def test_all_passed_gives_exit_status_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(VECTORS / "partition_router_unkeyed.json.gz")]) == 0
    assert capsys.readouterr().out == "76 passed, 0 failed\n"


MUTANTS: dict[str, tuple[str, str, Any]] = {
    "cursor_acks": (
        "pulsar_spark.broker.machine.acknowledgment",
        "previous_position",
        lambda _, position: position,
    ),
    "range_set": (
        "pulsar_spark.model.positions.position_set.PositionSet",
        "after",
        lambda messages, _: messages,
    ),
    "dedup": (
        "pulsar_spark.log.sequence_ranges.PublishedSequences",
        "published",
        lambda _, _producer, ids, _stored: ids < 0,
    ),
    "draining_hashes": (
        "pulsar_spark.broker.dispatchers.dispatcher_sticky_key",
        "selector_changed",
        lambda *_: None,
    ),
}
"""By kind, a function that users run, and one that breaks what the kind's cases hold."""


@pytest.mark.parametrize("kind", MUTANTS)
def test_cases_fail_when_what_users_run_is_broken(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, name, broken = MUTANTS[kind]
    monkeypatch.setattr(f"{home}.{name}", broken)
    assert failures(kind, document_of(kind))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"ok\xc3\xa9", "oké"),
        (b"\x80\x80", "\ufffd\ufffd"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82x", "\ufffdx"),
        (b"\xe2x", "\ufffdx"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf0\x9f\x98x", "\ufffdx"),
        (b"\xf0\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xf5\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_malformed_utf_8_is_read_as_java_reads_it(data: bytes, text: str) -> None:
    assert java.decode_utf8(data) == text
