"""Deletes decisions to which no log refers any more.

    _transactions/<application>/closed.json

Invariants: a version is closed when a try of it is committed, so that nothing can be decided on it
any more, or without an application when it is a day old, as nobody tries it again; no valid log
file names it by then; it is in `closed.json` before its decisions are deleted. So what a log names
that is closed, in a place that was not emptied, was written by a sink that slept through all this,
and counts as aborted. May be stopped anywhere and run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, pairwise

from pulsar_spark.connector.runtime.topics.ledger_store import ORPHAN_AGE_MS
from pulsar_spark.connector.runtime.topics.log_pointer import PointerFile
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_decisions import (
    TRANSACTIONS_FOLDER,
    ClosedVersions,
    TransactionDecisions,
)
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.log.ledger_commit import LOG_FOLDER, Commit
from pulsar_spark.log.transaction_attempt import ANONYMOUS, first_version
from pulsar_spark.model.topic_name import NON_PERSISTENT


def forget_decisions(root: Root) -> int:
    """The number of transactions whose decisions were deleted."""
    store = root.store
    began_before = first_version(root.clock.wall_ms() - ORPHAN_AGE_MS)
    decisions = _decisions(store)
    closed = {each for each in decisions if _is_over(store, each, began_before)}
    if not closed:
        return 0
    # Only now, when nothing can be decided on these any more: who is not named will never be.
    named = set(_named(root))
    unnamed = sorted(closed - named)
    ranges: dict[str, list[tuple[int, int]]] = {}
    for application, version in map(_parts, unnamed):
        ranges.setdefault(application, []).append((version, version))
    if ANONYMOUS in ranges:
        kept = sorted(version for name, version in map(_parts, named) if name == ANONYMOUS)
        ranges[ANONYMOUS] = _all_but(kept, began_before)
    for application, each in ranges.items():
        ClosedVersions(store, application).add(each)
    for transaction in unnamed:
        for path in sorted(decisions[transaction]):  # without the first the others say nothing
            store.delete(path)
    return len(unnamed)


def _is_over(store: ObjectStore, transaction: str, began_before: int) -> bool:
    application, version = _parts(transaction)
    if application == ANONYMOUS:
        return version < began_before
    return TransactionDecisions(store, transaction).committed()


def _parts(transaction: str) -> tuple[str, int]:
    application, _, version = transaction.partition("/")
    return application, int(version)


def _all_but(kept: Iterable[int], stop: int) -> list[tuple[int, int]]:
    """The ranges of versions from 0 to before `stop`, without those that are kept."""
    edges = pairwise([-1, *(version for version in kept if version < stop), stop])
    return [(before + 1, after - 1) for before, after in edges if after - before > 1]


def _decisions(store: ObjectStore) -> dict[str, list[str]]:
    """The paths of the decisions by transaction id."""
    found: dict[str, list[str]] = {}
    for application in store.folders(TRANSACTIONS_FOLDER):
        for item in store.files(join(TRANSACTIONS_FOLDER, application)):
            version, _, _ = item.name.partition(".")
            if version.isdecimal():
                found.setdefault(f"{application}/{version}", []).append(item.path)
    return found


def _named(root: Root) -> Iterator[str]:
    """The transactions that logs name, in places that were not emptied."""
    store = root.store
    for topic in chain(root.find(), root.find(domain=NON_PERSISTENT)):
        folder = topic.storage_path
        removed = PointerFile(store, folder).read().removed
        for item in store.files(join(folder, LOG_FOLDER)):
            name, _, kind = item.name.partition(".")
            if kind != "json" or not name.isdecimal() or int(name) <= removed:
                continue
            data = store.get(item.path)
            with suppress(*(() if topic.is_persistent else (CorruptFileError,))):
                if data is not None and (named := Commit.from_json(data, item.path).transaction):
                    yield named.id
