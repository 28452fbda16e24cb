"""Runs every case of the vectors files given by path: `python -m tests.vectors.check FILE...`.

A file's kind is told by the beginning of its name, else by the shape of its content. Prints a
line for each case that differs, also for those that differ on purpose (`differences`), and ends
with `N passed, N failed`; exit status 1 if any failed. A file that can't be read, or is of a kind
that is not known yet, is one failed case.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.vectors import (
    cursors,
    deduplication,
    dispatch,
    draining,
    key_shared,
    names,
    producing,
    ranges,
    values,
)
from tests.vectors.case import Case, run_all
from tests.vectors.differences import RULES

Document = dict[str, Any]
_PROSE = ("source", "note", "retry_dlq_note")
"""Sections that hold no case."""


def _only_cases(kind: str, check: Callable[[Case], None], document: Document) -> Iterator[Case]:
    return run_all(kind, document.get("cases", []), check)


KINDS: dict[str, tuple[tuple[str, ...], Callable[[Document], Iterator[Case]]]] = {
    "murmur3_java_hash": (("cases",), partial(_only_cases, "key", values.check_key_hash)),
    "partition_router_unkeyed": (("cases",), partial(_only_cases, "router", values.check_router)),
    "bitset_ackset": (("cases",), partial(_only_cases, "ack_set", values.check_ack_set)),
    "range_set": (("cases",), partial(_only_cases, "range_set", ranges.check_range_set)),
    "batching": (("cases",), partial(_only_cases, "batching", values.check_batching)),
    "cursor_acks": (("cases",), partial(_only_cases, "cursor", cursors.check_cursor)),
    "hash_range_auto_split": (
        ("cases",),
        partial(_only_cases, "auto_split", key_shared.check_auto_split),
    ),
    "consistent_hashing": (
        ("cases", "ring_points", "ring_occupancy"),
        key_shared.consistent_hashing_cases,
    ),
    "sticky_ranges": (("cases",), partial(_only_cases, "sticky", key_shared.check_sticky_ranges)),
    "draining_hashes": (
        ("cases",),
        partial(_only_cases, "draining", draining.check_draining_hashes),
    ),
    "failover_selection": (("cases", "exclusive"), dispatch.failover_cases),
    "shared_dispatch": (
        ("cases",),
        partial(_only_cases, "shared", dispatch.check_shared_dispatch),
    ),
    "delayed_delivery": (
        ("cases",),
        partial(_only_cases, "delayed", dispatch.check_delayed_delivery),
    ),
    "backoff": (("cases",), partial(_only_cases, "backoff", dispatch.check_backoff)),
    "chunking": (("cases",), partial(_only_cases, "chunking", producing.check_chunking)),
    "dedup": (("cases",), partial(_only_cases, "dedup", deduplication.check_deduplication)),
    "topic_names": (("cases", "namespaces", "retry_dlq_defaults"), names.topic_name_cases),
    "message_id": (
        (
            "cases",
            "java_ordering",
            "java_pair_compare",
            "java_parse",
            "python_cases",
            "python_named",
            "python_parse",
            "python_compare",
        ),
        names.message_id_cases,
    ),
}
"""Kind -> the sections that it has, and what runs them."""

_CASE_FIELDS: dict[str, tuple[frozenset[str], ...]] = {
    "murmur3_java_hash": (frozenset({"murmur3_masked31"}),),
    "partition_router_unkeyed": (frozenset({"router", "partitions"}),),
    "bitset_ackset": (frozenset({"and_left"}), frozenset({"batch_size", "ack_set", "remaining"})),
    "batching": (frozenset({"container"}),),
    "cursor_acks": (frozenset({"config", "steps"}),),
    "hash_range_auto_split": (frozenset({"range_size"}),),
    "consistent_hashing": (frozenset({"points", "steps"}),),
    "sticky_ranges": (frozenset({"steps", "select"}),),
    "failover_selection": (frozenset({"activeConsumerFailoverConsistentHashing"}),),
    "shared_dispatch": (
        frozenset({"consumers_in_subscribe_order"}),
        frozenset({"dispatcherMaxRoundRobinBatchSize"}),
    ),
    "delayed_delivery": (frozenset({"tick_ms", "steps"}),),
    "backoff": (frozenset({"min_ms", "multiplier"}), frozenset({"defaults", "next"})),
    "chunking": (frozenset({"chunk_max_message_size"}),),
    "topic_names": (frozenset({"input", "valid"}), frozenset({"consumer_topic"})),
    "message_id": (
        frozenset({"ledger", "entry", "serialized_hex"}),
        frozenset({"class", "java_hashCode"}),
    ),
}
_OPS = {
    "range_set": {"add_open_closed", "remove_at_most", "contains"},
    "draining_hashes": {"add_entry", "reduce_ref_count", "should_block"},
    "dedup": {"publish", "persisted", deduplication.PERSIST_FAILURE},
}
"""Of kinds whose cases are steps alone, the steps' ops."""


def kind_of(stem: str, document: Document) -> str | None:
    """The kind of a file, or None if it is none that is known."""
    for kind in sorted(KINDS, key=len, reverse=True):
        if stem.startswith(kind):
            return kind
    other = set(document) - {"cases", *_PROSE}
    for kind, (sections, _) in KINDS.items():
        if other and other <= set(sections):
            return kind
    cases = document.get("cases") or [{}]
    first = cases[0] if isinstance(cases[0], dict) else {}
    for kind, shapes in _CASE_FIELDS.items():
        if any(shape <= first.keys() for shape in shapes):
            return kind
    ops = {str(step.get("op")).partition(" ")[0] for step in first.get("steps", ())}
    return next((kind for kind, known in _OPS.items() if ops and ops <= known), None)


def check_document(stem: str, document: Any) -> Iterator[Case]:
    """All cases of a file, run."""
    if not isinstance(document, dict):
        yield Case("file", {}, ["is no vectors file: it holds no JSON object"])
        return
    kind = kind_of(stem, document)
    if kind is None:
        yield Case("file", {}, ["is of a kind that is not known yet"])
        return
    sections, cases_of = KINDS[kind]
    for section in sorted(set(document) - {*sections, *_PROSE}):
        yield Case(section, {}, [f"no section of {kind} that is known"])
    yield from cases_of(document)


def check_file(path: Path) -> Iterator[Case]:
    """All cases of a file, run; one failed case if it can't be read."""
    try:
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, EOFError, ValueError) as error:
        yield Case("file", {}, [f"can't be read: {error}"])
        return
    yield from check_document(path.name.partition(".")[0], document)


def main(paths: Sequence[str]) -> int:
    """Check the files; the exit status."""
    passed = failed = 0
    for path in map(Path, paths):
        for case in check_file(path):
            if case.problems:
                failed += 1
                print(f"{path.name}: {case.name}: {'; '.join(case.problems[:3])}")
            else:
                passed += 1
                for rule in sorted(case.on_purpose):
                    print(f"{path.name}: {case.name}: differs on purpose: {RULES[rule].reason}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
