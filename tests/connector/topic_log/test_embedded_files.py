"""Small data files inside their commit: where they lie, who reads them, how long the log stays."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.runtime.housekeeping.housekeeper import EMBEDDED_AGE_MS, Housekeeper
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.ledger_store import FILE_GRACE_MS, LedgerStore
from pulsar_spark.connector.runtime.topics.log_pointer import LOG_GRACE_MS
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files import ledger_file
from pulsar_spark.connector.storage.data_files.commit_files import MOST_EMBEDDED_BYTES
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.log.ledger_commit import log_file
from pulsar_spark.testing import Place
from tests.connector import topics
from tests.connector.reading import messages
from tests.connector.topic_log.stores import rewrite
from tests.connector.topics import ledger_of, numbers, options_of, written

T = "persistent/public/default/t"


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has read no file and opened no topic before."""
    monkeypatch.setattr(ledger_file, "_small_files", {})
    monkeypatch.setattr(managed_ledger, "_cache", {})


def send(root: Path | str, *given: Any, **options: Any) -> None:
    topics.send(root, "t", *given, **{"embeddedBytes": "32k", **options})


def values(root: Path | str) -> list[bytes]:
    return [bytes(each["value"]) for each in messages(root, "t")]


def data_files(root: Path) -> list[str]:
    return sorted(each.name for each in (root / T).glob("data/*.parquet"))


def test_a_small_file_is_in_its_commit_and_a_large_one_is_not(tmp_path: Path) -> None:
    send(tmp_path, ["a"])
    assert data_files(tmp_path) == []
    send(tmp_path, ["b" * 40_000], compressionType="NONE")
    send(tmp_path, ["c"], embeddedBytes=0)
    assert len(data_files(tmp_path)) == 2
    ledger_file._small_files.clear()
    assert values(tmp_path) == [b"a", b"b" * 40_000, b"c"]


def test_many_tasks_with_small_files_do_not_make_a_large_commit(tmp_path: Path) -> None:
    send(tmp_path)
    options = options_of(
        tmp_path, given={"topic": "t", "compressionType": "NONE", "embeddedBytes": "32k"}
    )
    tasks = MOST_EMBEDDED_BYTES // 30_000 + 1
    new = [
        each
        for number in range(tasks)
        for topic in written(options, [f"{number:02}" + "x" * 30_000])
        for each in topic.ledgers
    ]
    ledger = ledger_of(tmp_path, "t")
    ledger.append(new)
    assert len(data_files(tmp_path)) == tasks
    assert [each[:2] for each in values(tmp_path)] == [b"%02d" % n for n in range(tasks)]


def test_duplicates_are_found_before_and_after_the_commit(tmp_path: Path) -> None:
    columns = {"producer_name": ["p", "p", "p"], "sequence_id": [1, 1, 2]}
    for _ in range(2):
        send(tmp_path, ["a", "a", "b"], columns=columns, enableDeduplication=True)
    assert values(tmp_path) == [b"a", b"b"]


def test_the_log_stays_until_its_files_are_copied_and_nobody_reads_them_there(
    pulsarlite: Place,
) -> None:
    root, store = pulsarlite.service_url, pulsarlite.root.store
    send(root, ["first"])
    housekeeper = Housekeeper(pulsarlite.root)

    def first_commits() -> list[bool]:
        return [store.get(f"{T}/{log_file(number)}") is not None for number in (0, 1)]

    def snapshot() -> ManagedLedger:
        ledger = ledger_of(root, "t")
        ledger.change_settings(lambda settings: {**settings, "x": ledger.clock()})
        ledger.write_snapshot()
        return ledger

    for _ in range(4):
        snapshot()
        pulsarlite.clock.advance(seconds=LOG_GRACE_MS / 1000)
    assert first_commits() == [False, True], "number 1 contains a file"
    ledger_file._small_files.clear()
    assert values(root) == [b"first"]
    pulsarlite.clock.advance(seconds=EMBEDDED_AGE_MS / 1000)
    housekeeper.run_once()
    state = ledger_of(root, "t").state
    assert [each.embedded_in for each in state.ledgers(0)] == [None]
    snapshot()
    assert first_commits() == [False, True], "who planned before may still read it there"
    pulsarlite.clock.advance(seconds=FILE_GRACE_MS / 1000)
    LedgerStore(ledger_of(root, "t")).sweep()
    for _ in range(2):
        snapshot()
        pulsarlite.clock.advance(seconds=LOG_GRACE_MS / 1000)
    snapshot()
    assert first_commits() == [False, False]
    assert values(root) == [b"first"]


def test_a_snapshot_knows_them(tmp_path: Path) -> None:
    for number in numbers(0, 5):
        send(tmp_path, [number])
    ledger_of(tmp_path, "t").write_snapshot()
    managed_ledger._cache.clear()
    ledger_file._small_files.clear()
    assert values(tmp_path) == [each.encode() for each in numbers(0, 5)]


@pytest.mark.parametrize("wrong", ["no base64!", base64.b64encode(b"PAR1").decode(), None])
def test_a_commit_that_contains_something_else_is_refused(
    tmp_path: Path, wrong: str | None
) -> None:
    send(tmp_path, ["a"])
    file = ledger_of(tmp_path, "t").state.ledgers(0)[0].file
    content = {"data/other.parquet": "AAAA"} if wrong is None else {file: wrong}
    rewrite(tmp_path / T / log_file(1), embedded=content)
    managed_ledger._cache.clear()
    with pytest.raises(CorruptFileError, match=r"00001\.json"):
        values(tmp_path)


def test_a_topic_that_was_deleted_leaves_nothing_of_them(pulsarlite: Place) -> None:
    root, store = pulsarlite.service_url, pulsarlite.root.store
    send(root, ["a"])
    ledger_of(root, "t").delete()
    pulsarlite.clock.advance(seconds=FILE_GRACE_MS / 1000)
    Housekeeper(pulsarlite.root).run_once()
    assert not ManagedLedger.open_log(store, T).state.tombstones
    assert store.get(f"{T}/{log_file(1)}") is None
