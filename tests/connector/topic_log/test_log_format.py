"""The stored forms: what was written once is read for ever, what is newer or damaged is refused."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pulsar_spark.connector.runtime.topics.log_snapshot import decode_snapshot, encode_snapshot
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import (
    CorruptFileError,
    FileReclaimedError,
    FutureVersionError,
    ObjectNotFoundError,
)
from pulsar_spark.log.ledger_commit import COMMIT_FORMAT, Application, Commit, MovedLedger
from pulsar_spark.log.ledger_log import Tombstone, TopicState
from pulsar_spark.log.partition_state import HiddenMessages
from pulsar_spark.log.publication import NewLedger
from pulsar_spark.log.sequence_ranges import SequenceRange
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, FileSeal, LedgerInfo
from pulsar_spark.model.positions.position_set import PositionSet
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import (
    FOLDER,
    rewrite,
)
from tests.golden import ROOT


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy of the golden root, to be opened and written to."""
    return shutil.copytree(ROOT, tmp_path / "golden")


def log_of(root: Path) -> Path:
    return root / FOLDER / "_log"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"transaction": {"coordinator": 1}},
        {"invented": 1},
    ],
    ids=["version", "transaction", "unknown field"],
)
def test_a_commit_of_the_future_is_refused(golden: Path, change: dict[str, Any]) -> None:
    last = sorted(log_of(golden).glob("*.json"))[-2]
    rewrite(last, **change)
    before = sorted(log_of(golden).iterdir())
    with pytest.raises(FutureVersionError, match=r"Update Pulsarlite") as caught:
        ManagedLedger.open_anew(open_store(str(golden)), FOLDER)
    assert last.name in str(caught.value)
    assert sorted(log_of(golden).iterdir()) == before


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_truncated_snapshot_is_named(golden: Path, kept: int) -> None:
    (snapshot,) = log_of(golden).glob("*.snapshot.parquet")
    snapshot.write_bytes(snapshot.read_bytes()[:kept])
    with pytest.raises(CorruptFileError, match=snapshot.name):
        ManagedLedger.open_anew(open_store(str(golden)), FOLDER)


def test_a_missing_snapshot_is_named(golden: Path) -> None:
    (snapshot,) = log_of(golden).glob("*.snapshot.parquet")
    snapshot.unlink()
    with pytest.raises(CorruptFileError, match=f"{snapshot.name} of topic .* is missing"):
        ManagedLedger.open_anew(open_store(str(golden)), FOLDER)


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"version":"1"}', b'{"version":1}'])
def test_a_damaged_pointer_is_named(golden: Path, damage: bytes) -> None:
    (log_of(golden) / "pointer.json").write_bytes(damage)
    with pytest.raises(CorruptFileError, match=r"pointer\.json is damaged"):
        ManagedLedger.open_anew(open_store(str(golden)), FOLDER)


def test_every_field_of_a_commit_comes_back() -> None:
    commit = Commit(
        7, "id", 123, term=4, application=Application("a", 5), partitions=3,
        settings={"deduplication": True}, ledgers=(ledger(9, 2, max_deliver_at_ms=77),),
        trimmed={0: (1, 2)}, moved=(MovedLedger(1, 3, "data/m.parquet", 40, FileSeal(9, 8)),),
        hidden={2: {"version": 1, "mark_delete_position": "-1:-1"}},
        sequence_ids={2: {"producer": 12}}, reclaimed=("data/r.parquet",),
        forgotten=("data/f.parquet",),
    )  # fmt: skip
    assert Commit.from_json(commit.to_json(), "x", 7) == commit


@pytest.mark.parametrize(
    "change",
    [
        {"number": 8},
        {"number": "7"},
        {"commit_id": None},
        {"timestamp_ms": 1.5},
        {"application": {"id": "a"}},
        {"ledgers": [{}]},
        {"ledgers": 5},
        {"trimmed": {"x": [1]}},
        {"moved": [[1, 2, "data/x.parquet"]]},
        {"reclaimed": ["../../other"]},
        {"reclaimed": ["data/../../other"]},
        {"forgotten": ["/etc/passwd"]},
    ],
)
def test_a_malformed_commit_is_damaged(change: dict[str, Any]) -> None:
    record = {**COMMIT_FORMAT.decode(Commit(7, "id", 1).to_json()), **change}
    with pytest.raises(CorruptFileError, match=r"7\.json is damaged"):
        Commit.from_json(COMMIT_FORMAT.encode(record), "7.json", 7)


@pytest.mark.parametrize(
    "sizes",
    [[], [[0, 1]], [[1, 0]], [[-1, 2]], [[1]], "11", [[1e30, 1]], [[1, 10**30]], [[1, 1 << 31]]],
)
def test_a_ledger_without_messages_is_damaged(sizes: Any) -> None:
    record = COMMIT_FORMAT.decode(Commit(7, "id", 1, ledgers=(ledger(0),)).to_json())
    record["ledgers"][0]["batch_sizes"] = sizes
    with pytest.raises(CorruptFileError, match=r"7\.json is damaged"):
        Commit.from_json(COMMIT_FORMAT.encode(record), "7.json", 7)


def ledger(
    ledger_id: int, partition: int = 0, file: str = "", max_deliver_at_ms: int | None = None
) -> LedgerInfo:
    return LedgerInfo(
        ledger_id, partition, file or f"data/{ledger_id}.parquet", 0, BatchSizes.of([2, 2, 1]),
        50, 1, 2, max_deliver_at_ms, FileSeal(700 + ledger_id, 77), 99,
    )  # fmt: skip


def topic_of(ledgers: int) -> TopicState:
    state = TopicState("t")
    state.apply(Commit(0, "c", 1, partitions=2, term=3))
    for number in range(ledgers):
        state.apply(Commit(number + 1, "c", 1, ledgers=(ledger(number, number % 2),)))
    return state


def hiding(messages: PositionSet) -> Commit:
    hidden = {0: Cursor(individually_deleted=messages).to_json_value()}
    return Commit(5, "c", 1, ledgers=(ledger(4),), hidden=hidden)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (Commit(6, "c", 1), "follows number 4"),
        (Commit(5, "c", 1, term=2), "term 2 is below term 3"),
        (Commit(5, "c", 1, partitions=1), "leaves 1 of 2"),
        (Commit(5, "c", 1, ledgers=(ledger(5),)), "ledger 5 should be 4"),
        (Commit(5, "c", 1, ledgers=(ledger(4, 2),)), "no partition 2"),
        (Commit(5, "c", 1, ledgers=(ledger(4, 0, "data/0.parquet"),)), "published before"),
        (Commit(5, "c", 1, trimmed={0: (1,)}), "partition 0 has no ledger 1"),
        (Commit(5, "c", 1, trimmed={0: (0, 0)}), "trimmed twice"),
        (Commit(5, "c", 1, trimmed={7: (0,)}), "partition 7 has no ledger 0"),
        (Commit(5, "c", 1, moved=(MovedLedger(1, 0, "data/m", 0),)), "partition 1 has no ledger 0"),
        (Commit(5, "c", 1, moved=(MovedLedger(0, 0, "data/1.parquet", 0),)), "published before"),
        (
            Commit(5, "c", 1, moved=(MovedLedger(0, 0, "data/m", 0),), trimmed={0: (0,)}),
            "moved and trimmed",
        ),
        (Commit(5, "c", 1, reclaimed=("data/0.parquet",)), "it is known"),
        (Commit(5, "c", 1, forgotten=("data/0.parquet",)), "not given up"),
        (Commit(5, "c", 1, hidden={4: {}}), "a partition that is not there"),
        (hiding(PositionSet.of([(9, 0)])), "ledgers that it does not add"),
        (hiding(PositionSet.of([(4, 3)])), "it hides what ledger 4 does not have"),
        (hiding(PositionSet.of_batch((4, 3), 2, 1)), "it hides what ledger 4 does not have"),
        (hiding(PositionSet.of_batch((4, 0), 5, 3)), "it hides what ledger 4 does not have"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_commit_that_breaks_an_invariant_changes_nothing(refused: Commit, why: str) -> None:
    state = topic_of(4)
    before = state.to_snapshot()
    with pytest.raises(CorruptFileError, match=why):
        state.apply(refused)
    assert state.to_snapshot() == before


def test_a_commit_that_names_a_reclaimed_file_is_refused() -> None:
    state = topic_of(2)
    state.apply(Commit(3, "c", 5, reclaimed=("data/late.parquet",)))
    with pytest.raises(FileReclaimedError):
        state.apply(Commit(4, "c", 6, ledgers=(ledger(2, 0, "data/late.parquet"),)))
    assert state.tombstones == {"data/late.parquet": Tombstone(5, reclaimed=True)}


def test_a_first_commit_makes_partitions() -> None:
    with pytest.raises(CorruptFileError, match="how many partitions"):
        TopicState("t").apply(Commit(0, "c", 1))


def test_lists_of_ledgers_stay_as_they_were() -> None:
    state = topic_of(6)
    before = state.ledgers(0)
    state.apply(Commit(7, "c", 1, ledgers=(ledger(6),)))
    state.apply(Commit(8, "c", 2, trimmed={0: (0,)}))
    state.apply(Commit(9, "c", 3, trimmed={0: (4,)}))
    state.apply(Commit(10, "c", 4, moved=(MovedLedger(0, 2, "data/m.parquet", 9),)))
    assert [each.ledger_id for each in before] == [0, 2, 4]
    assert [each.file for each in before][1] == "data/2.parquet"
    after = state.ledgers(0)
    assert [each.ledger_id for each in after] == [2, 6]
    assert (after[0].file, after[0].first_row) == ("data/m.parquet", 9)
    assert after.get(4) is None
    assert state.partition(0).messages == 10
    check_state(state)


def test_a_commit_may_trim_and_move_and_add() -> None:
    state = topic_of(6)
    moved = (MovedLedger(0, 4, "data/m.parquet", 0), MovedLedger(1, 1, "data/m.parquet", 5))
    state.apply(Commit(7, "c", 9, ledgers=(ledger(6),), trimmed={0: (0, 2)}, moved=moved))
    assert [each.ledger_id for each in state.ledgers(0)] == [4, 6]
    assert state.files["data/m.parquet"] == 2
    assert {*state.tombstones} == {f"data/{number}.parquet" for number in (0, 1, 2, 4)}
    check_state(state)


def test_a_long_trimmed_topic_keeps_little() -> None:
    state = topic_of(1_000)
    for number in range(998):
        state.apply(Commit(1_001 + number, "c", 1, trimmed={number % 2: (number,)}))
    assert [each.ledger_id for part in (0, 1) for each in state.ledgers(part)] == [998, 999]
    assert all(len(part.column.ids) < 200 for part in state._partitions)
    check_state(state)


def test_a_snapshot_is_the_state() -> None:
    state = topic_of(5)
    state.apply(Commit(6, "c", 1, ledgers=(ledger(5, 1, max_deliver_at_ms=99),), trimmed={0: (0,)}))
    again = decode_snapshot(encode_snapshot(state), "t", "name", 6)
    assert again.to_snapshot() == state.to_snapshot()
    assert again.ledgers(1)[-1] == state.ledgers(1)[-1]
    again.apply(Commit(7, "c", 1, ledgers=(ledger(6),)))
    check_state(again)
    with pytest.raises(CorruptFileError, match="number 6"):
        decode_snapshot(encode_snapshot(state), "t", "name", 8)


class Watched(HiddenMessages):
    """Calls `look` whenever something is hidden, or trimmed for good."""

    look: Callable[[], None]

    def add(self, messages: PositionSet) -> None:
        self.look()
        super().add(messages)
        self.look()

    def without_others(self, ledger_ids: Iterable[int]) -> HiddenMessages:
        self.look()
        return super().without_others(ledger_ids)


def test_other_threads_see_a_commits_ledgers_last_and_all_at_once() -> None:
    state = topic_of(200)
    seen: list[list[int]] = []
    watched = state.partition(0).hidden = Watched()
    watched.look = lambda: seen.append([each.ledger_id for each in state.ledgers(0)])
    before = [*range(0, 200, 2)]
    hidden = {0: Cursor(individually_deleted=PositionSet.of([(200, 0)])).to_json_value()}
    added = Commit(201, "c", 1, ledgers=(ledger(200), ledger(201)), hidden=hidden)
    state.apply(added)
    assert seen == [before, before]
    assert [each.ledger_id for each in state.ledgers(0)] == [*before, 200, 201]
    seen.clear()
    state.apply(Commit(202, "c", 1, trimmed={0: tuple(before[:70])}))
    assert seen == [[*before, 200, 201]], "while column and start are changed"
    assert [each.ledger_id for each in state.ledgers(0)] == [*before[70:], 200, 201]
    check_state(state)


def test_a_snapshot_whose_parts_do_not_agree_is_damaged() -> None:
    state = topic_of(3)
    ledgers, rest = state.to_snapshot()
    with patch.object(TopicState, "to_snapshot", lambda _: (ledgers[1:], rest)):
        data = encode_snapshot(state)
    with pytest.raises(CorruptFileError, match="2 ledgers for partitions of 3"):
        decode_snapshot(data, "t", "name", 3)


def test_what_a_task_sends_to_the_driver_pickles() -> None:
    new = NewLedger(0, "data/x", 0, BatchSizes.of([1]), 1, 2, 3, None, {"p": SequenceRange(1, 2)})
    lost = ObjectNotFoundError("File x is not there.")
    state = topic_of(4)
    again = pickle.loads(pickle.dumps((new, lost, state.ledgers(0))))
    assert again[0] == new
    assert str(again[1]) == str(lost) == "[OBJECT_NOT_FOUND] File x is not there."
    assert list(again[2]) == list(state.ledgers(0))
