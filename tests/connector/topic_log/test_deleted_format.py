"""A topic that was deleted, and one that was made again, as they were stored once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.errors import CorruptFileError, TopicDeletedError
from pulsar_spark.topic_log.ledger_commit import Commit
from pulsar_spark.topic_log.ledger_log import TopicState
from tests.connector.topic_log.make_golden_deleted import GONE
from tests.connector.topic_log.stores import FOLDER

GOLDEN = Path(__file__).parents[2] / "golden" / "deleted-v5"


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_a_topic_that_was_made_again_is_read(tmp_path: Path, from_snapshot: bool) -> None:
    golden = shutil.copytree(GOLDEN, tmp_path / "golden")
    if not from_snapshot:
        (golden / FOLDER / "_log" / "pointer.json").unlink()
    state = ManagedLedger.open_anew(open_store(str(golden)), FOLDER).state
    assert (state.incarnation, state.is_deleted, state.partitions) == (3, False, 1)
    assert [each.ledger_id for each in state.ledgers(0)] == [1, 2]
    assert (state.settings, state.applications) == ({}, {"query": 0})
    assert len(state.tombstones) == 1


def test_a_deleted_topic_is_known_as_such(tmp_path: Path) -> None:
    golden = shutil.copytree(GOLDEN, tmp_path / "golden")
    store = open_store(str(golden))
    with pytest.raises(TopicDeletedError):
        ManagedLedger.open_anew(store, GONE)
    log = ManagedLedger.open_log(store, GONE)
    assert log.state.is_deleted
    assert not log.state.tombstones
    assert log.state.next_ledger_id == 1


@pytest.mark.parametrize(
    ("commit", "why"),
    [
        (Commit(1, "c", 0, deleted=True, partitions=2), "says something else"),
        (Commit(1, "c", 0, deleted=True, settings={}), "says something else"),
    ],
)
def test_a_deletion_says_nothing_else(commit: Commit, why: str) -> None:
    state = TopicState("t")
    state.apply(Commit(0, "c", 0, partitions=1))
    with pytest.raises(CorruptFileError, match=why):
        state.apply(commit)
    state.apply(Commit(1, "c", 0, deleted=True))
    with pytest.raises(CorruptFileError, match="deleted before"):
        state.apply(Commit(2, "c", 0, deleted=True))
    with pytest.raises(CorruptFileError, match="not true"):
        Commit.from_json(Commit(1, "c", 0, deleted=1).to_json(), "f")  # type: ignore[arg-type]
