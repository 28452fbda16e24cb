"""What is stored of compaction and of transactions is read for ever, as it was written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.transaction_decisions import (
    CLOSED_FORMAT,
    ClosedVersions,
    TransactionDecisions,
)
from pulsar_spark.errors import FutureVersionError
from pulsar_spark.positions.position import Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.topic_log.transaction_attempt import Transaction, TxnStatus
from tests.connector.topic_log.make_golden_transactions import FOLDERS, NOW_MS, OPEN, TIMEOUT_MS
from tests.connector.topic_log.stores import (
    Clock,
    assert_is_rewritten_as_it_was,
    values_of,
    with_clock,
)

GOLDEN = Path(__file__).parents[2] / "golden"
VERSIONS = ["transactions-v1", "transactions-v2"]
COMMITS = sorted(GOLDEN.glob("transactions-v*/persistent/*/*/*/_log/0*[0-9].json"))


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / request.param, tmp_path / "golden")


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_what_was_decided_and_compacted_is_read(golden: Path, from_snapshot: bool) -> None:
    if not from_snapshot:
        (golden / FOLDERS[0] / "_log" / "pointer.json").unlink()
    store = with_clock(open_store(str(golden)), Clock(NOW_MS))
    a, b = (ManagedLedger.open_anew(store, folder) for folder in FOLDERS)
    assert values_of(a) == ["A", "B", "A", "C", "A", "committed", "last"]
    assert values_of(b) == ["committed", "last"]
    compacted = a.state.partition(0).compacted
    assert compacted is not None
    assert compacted.horizon == Position(1, 0)
    assert compacted.kept == PositionSet.of_batch((0, 0), 3, 0b010).union(PositionSet.of([(1, 0)]))


def test_decisions_are_read(golden: Path) -> None:
    store = open_store(str(golden))
    statuses = []
    for version, attempt in enumerate(("committed", "aborted", "open")):
        transaction = Transaction.of(("sink", version), attempt, TIMEOUT_MS)
        statuses.append(TransactionDecisions(store, transaction.id).status(attempt))
    assert statuses == [TxnStatus.COMMITTED, TxnStatus.ABORTED, TxnStatus.OPEN]
    closed = ClosedVersions(store, OPEN.id.partition("/")[0])
    assert [version for version in range(10) if closed.has(version)] == [7, 8]


def test_closed_versions_of_a_future_version_are_refused(golden: Path) -> None:
    (file,) = golden.glob("_transactions/*/closed.json")
    file.write_bytes(replace(CLOSED_FORMAT, version=99).encode({"closed": [[7, 8]]}))
    closed = ClosedVersions(open_store(str(golden)), OPEN.id.partition("/")[0])
    with pytest.raises(FutureVersionError):
        closed.has(7)


@pytest.mark.parametrize(
    "path", COMMITS, ids=lambda path: f"{path.parts[-7]}-{path.parts[-3]}-{path.stem[-1]}"
)
def test_a_commit_is_written_as_it_was(path: Path) -> None:
    assert_is_rewritten_as_it_was(path)
