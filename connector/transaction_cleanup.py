"""Deletes decisions to which no log refers any more.

    _transactions/<application>/closed.json

Invariants: only a version with a committed try is closed, so that nothing can be decided on it any
more; no valid log file names it by then; it is in `closed.json` before its decisions are deleted.
So what a log names that is closed, in a place that was not emptied, was written by a sink that
slept through all this, and counts as aborted. May be stopped anywhere and run again.
"""

from __future__ import annotations

from collections.abc import Iterator

from pulsar_spark.connector.log_pointer import PointerFile
from pulsar_spark.connector.object_store import ObjectStore, join
from pulsar_spark.connector.topics import Root
from pulsar_spark.connector.transaction_decisions import (
    TRANSACTIONS_FOLDER,
    ClosedVersions,
    TransactionDecisions,
)
from pulsar_spark.ledger_commit import LOG_FOLDER, Commit


def forget_decisions(root: Root) -> int:
    """How many transactions' decisions were deleted."""
    store = root.store
    decisions = _decisions(store)
    closed = {each for each in decisions if TransactionDecisions(store, each).committed()}
    if not closed:
        return 0
    # Only now, when nothing can be decided on these any more: who is not named will never be.
    unnamed = sorted(closed - set(_named(root)))
    by_application: dict[str, list[int]] = {}
    for each in unnamed:
        application, _, version = each.partition("/")
        by_application.setdefault(application, []).append(int(version))
    for application, versions in by_application.items():
        ClosedVersions(store, application).add(versions)
    for each in unnamed:
        for path in sorted(decisions[each]):  # without the first the others say nothing
            store.delete(path)
    return len(unnamed)


def _decisions(store: ObjectStore) -> dict[str, list[str]]:
    """By transaction id, the paths of its decisions."""
    found: dict[str, list[str]] = {}
    for application in store.folders(TRANSACTIONS_FOLDER):
        for item in store.files(join(TRANSACTIONS_FOLDER, application)):
            version = item.path.rsplit("/", 1)[-1].partition(".")[0]
            if version.isdecimal():
                found.setdefault(f"{application}/{version}", []).append(item.path)
    return found


def _named(root: Root) -> Iterator[str]:
    """The transactions that logs name, in places that were not emptied."""
    store = root.store
    for topic in root.find():
        folder = topic.storage_path
        removed = PointerFile(store, folder).read().removed
        for item in store.files(join(folder, LOG_FOLDER)):
            name, _, kind = item.path.rsplit("/", 1)[-1].partition(".")
            if kind != "json" or not name.isdecimal() or int(name) <= removed:
                continue
            data = store.get(item.path)
            if data is not None and (named := Commit.from_json(data, item.path).transaction):
                yield named.id
