"""The races that the log has to survive, each forced at the instant where it would hurt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.runtime.topics import ledger_store
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.log_pointer import (
    LOG_GRACE_MS,
    POINTER_FILE,
    PointerFile,
)
from pulsar_spark.connector.runtime.topics.log_snapshot import snapshot_file
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import (
    CorruptFileError,
    FencedError,
    FileReclaimedError,
    FutureVersionError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_spark.log.ledger_commit import Commit, log_file
from pulsar_spark.log.publication import AlreadyCommitted
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import (
    FOLDER,
    Clock,
    HookedStore,
    messages,
    publish,
    snapshot,
    values_of,
    with_clock,
    write,
)
from tests.waiting import eventually

GRACE_MS = LOG_GRACE_MS


class World:
    """One topic, seen by as many processes as a test needs, each with a store of its own."""

    def __init__(self, new_store: Callable[[], ObjectStore]) -> None:
        self._new_store = new_store
        self.clock = Clock()
        self.first = self.create()

    def create(self, folder: str = FOLDER) -> ManagedLedger:
        return ManagedLedger.create(self._store(), folder, 2)

    def open(self) -> ManagedLedger:
        return ManagedLedger.open_anew(self._store(), FOLDER)

    def _store(self) -> ObjectStore:
        return with_clock(HookedStore(self._new_store()), self.clock)

    def clean_up_past(self, number: int) -> None:
        """Others commit, and take snapshots, until the log is gone up to `number`."""
        other = self.open()
        while PointerFile(other.store, FOLDER).read().removed < number:
            snapshot(other, times=1, clock=self.clock, step_ms=GRACE_MS)
        assert other.store.get(f"{FOLDER}/{log_file(number)}") is None


def hooks(ledger: ManagedLedger) -> HookedStore:
    assert isinstance(ledger.store, HookedStore)
    return ledger.store


def published(ledger: ManagedLedger) -> list[str]:
    return [value for value in values_of(ledger) if not value.startswith("snapshot-")]


@pytest.fixture(params=["local", "s3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "local":
        yield World(lambda: open_store(str(tmp_path)))
    else:
        s3 = request.getfixturevalue("s3_root")
        yield World(lambda: open_store(s3.root, s3.options))


def test_a_topic_is_created_once(world: World) -> None:
    with pytest.raises(TopicExistsError, match="orders exists already"):
        world.create()


def test_a_topic_whose_first_commit_was_cleaned_up_is_not_created_again(world: World) -> None:
    world.clean_up_past(0)
    with pytest.raises(TopicExistsError):
        world.create()


def test_a_topic_that_is_cleaned_up_while_it_is_created_again_stays_one(world: World) -> None:
    store = HookedStore(world.first.store)
    store.before("put_if_absent", log_file(0), lambda: world.clean_up_past(0))
    with pytest.raises(TopicExistsError):
        ManagedLedger.create(store, FOLDER, 2)
    assert store.get(f"{FOLDER}/{log_file(0)}") is None


def test_a_missing_topic_says_so(world: World) -> None:
    with pytest.raises(TopicNotFoundError, match="nowhere does not exist"):
        ManagedLedger.open(world.first.store, "persistent/public/default/nowhere")


def test_ledger_ids_are_gapless_whoever_commits(world: World) -> None:
    ledgers = [world.first, world.open(), world.open()]
    for run_once in range(9):
        publish(ledgers[run_once % 3], str(run_once), partition=run_once % 2)
    reader = world.open()
    ids = [each.ledger_id for part in (0, 1) for each in reader.ledgers(part)]
    assert sorted(ids) == list(range(9))
    assert values_of(reader, 0) + values_of(reader, 1) == list("024681357")
    check_state(reader.state)


def test_a_lost_race_takes_the_next_ids_and_writes_no_data_again(world: World) -> None:
    mine, other = world.first, world.open()
    new = write(mine, {0: messages(["mine"])})
    hooks(mine).before("put_if_absent", ".json", lambda: publish(other, "theirs"))
    commit = mine.append(new)
    assert isinstance(commit, Commit)
    assert (commit.number, commit.ledgers[0].ledger_id) == (2, 1)
    assert sum(call == "open_output" for call, _ in hooks(mine).calls) == 1
    assert values_of(mine) == ["theirs", "mine"]


def test_an_application_version_is_published_once(world: World) -> None:
    other = world.open()
    publish(world.first, "a", application=("query", 0))
    again = publish(other, "a", application=("query", 0))
    assert isinstance(again, AlreadyCommitted)
    publish(other, "b", application=("query", 1))
    assert values_of(world.open()) == ["a", "b"]


def test_an_application_version_that_wins_the_race_meanwhile_is_seen(world: World) -> None:
    mine, other = world.first, world.open()
    hooks(mine).before(
        "put_if_absent", ".json", lambda: publish(other, "a", application=("query", 7))
    )
    assert isinstance(publish(mine, "a", application=("query", 7)), AlreadyCommitted)
    assert values_of(world.open()) == ["a"]


def test_already_exists_that_was_our_own_commit_is_a_success(world: World) -> None:
    """A request that timed out had taken effect; the retry within the client met its own file."""
    mine = world.first
    inner = hooks(mine).inner

    class Retrying(HookedStore):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            created = inner.put_if_absent(path, data)
            return inner.put_if_absent(path, data) if created else False

    mine.store = Retrying(inner)
    commit = publish(mine, "once")
    assert isinstance(commit, Commit)
    assert values_of(world.open()) == ["once"]


def test_a_writer_that_slept_through_a_clean_up_does_its_commit_again(world: World) -> None:
    stalled = world.open()
    new = write(stalled, {0: messages(["late"])})
    hooks(stalled).before("put_if_absent", log_file(1), lambda: world.clean_up_past(1))
    commit = stalled.append(new)
    assert isinstance(commit, Commit)
    assert commit.number > 2
    assert stalled.store.get(f"{FOLDER}/{log_file(1)}") is None, "the void commit is removed"
    for reader in (stalled, world.open()):
        assert published(reader) == ["late"]
        check_state(reader.state)


def test_a_writer_that_sleeps_after_its_commit_does_not_publish_it_twice(world: World) -> None:
    """Its own commit was cleaned up before it looked at the pointer: not void, but long past."""
    stalled = world.open()
    new = write(stalled, {0: messages(["once"])})
    hooks(stalled).after("put_if_absent", log_file(1), lambda: world.clean_up_past(1))
    assert isinstance(stalled.append(new), AlreadyCommitted)
    assert published(world.open()) == ["once"]


def test_a_snapshot_past_a_fresh_commit_does_not_make_it_void(world: World) -> None:
    mine, other = world.open(), world.open()

    def overtake() -> None:
        snapshot(other, times=3, clock=world.clock, step_ms=0)

    hooks(mine).after("put_if_absent", log_file(1), overtake)
    commit = publish(mine, "once")
    assert isinstance(commit, Commit)
    assert commit.number == 1
    assert published(world.open()) == ["once"]


def test_a_reader_never_applies_a_void_commit(world: World) -> None:
    """A stalled writer died after creating its file in a place that was emptied."""
    reader, writer = world.open(), world.open()
    new = write(writer, {0: messages(["void"])})

    def die() -> None:
        raise KeyboardInterrupt

    hooks(writer).before("put_if_absent", log_file(1), lambda: world.clean_up_past(1))
    hooks(writer).after("put_if_absent", log_file(1), die)
    with pytest.raises(KeyboardInterrupt):
        writer.append(new)
    assert reader.store.get(f"{FOLDER}/{log_file(1)}") is not None
    assert reader.refresh()
    assert published(reader) == []
    assert published(world.open()) == []
    assert publish(reader, "next").number == reader.state.number


def test_a_reader_behind_the_clean_up_meets_the_place_while_it_is_void(world: World) -> None:
    reader = world.open()
    hooks(reader).before("get", log_file(1), lambda: world.clean_up_past(1))
    assert publish(world.first, "seen").number == 1
    reader.refresh()
    reader.refresh()
    assert reader._pointer_polled_s > 0
    reader._pointer_polled_s = -10.0
    reader.refresh()
    assert published(reader) == ["seen"]


def test_an_idle_reader_looks_at_the_pointer_and_catches_up(world: World) -> None:
    reader = world.open()
    world.clean_up_past(5)
    reader._pointer_polled_s = -10.0
    assert reader.refresh()
    assert reader.state.number == world.open().state.number


def test_an_older_void_file_does_not_win_against_a_new_writer(world: World) -> None:
    stale = world.open()
    world.clean_up_past(3)
    stale.store.put_if_absent(f"{FOLDER}/{log_file(1)}", b"left by a writer that died")
    publish(stale, "after")
    assert published(world.open()) == ["after"]


def test_a_late_commit_of_a_reclaimed_file_is_refused(world: World) -> None:
    late, keeper = world.open(), LedgerStore(world.open(), grace_ms=GRACE_MS)
    new = write(late, {0: messages(["late"])})
    commit = keeper.reclaim_orphans(older_than_ms=-(10**13))
    assert commit is not None
    assert commit.reclaimed == (new[0].file,)
    with pytest.raises(FileReclaimedError, match="Write the messages again"):
        late.append(new)
    assert keeper.sweep() == []
    world.clock.now_ms += GRACE_MS
    assert keeper.sweep() == [new[0].file]
    assert world.open().state.tombstones == {}
    with pytest.raises(FileReclaimedError, match="given up, or never written"):
        world.open().append(new)


def test_a_file_that_is_reclaimed_during_the_race_is_refused(world: World) -> None:
    late, keeper = world.open(), LedgerStore(world.open())
    new = write(late, {0: messages(["late"])})
    hooks(late).before(
        "put_if_absent",
        ".json",
        lambda: keeper.reclaim_orphans(older_than_ms=-(10**13)),
    )
    with pytest.raises(FileReclaimedError):
        late.append(new)


def test_an_orphan_that_is_committed_meanwhile_is_not_given_up(world: World) -> None:
    writer, keeper = world.open(), LedgerStore(world.open())
    new = write(writer, {0: messages(["just in time"])})
    hooks(keeper.ledger).before("put_if_absent", ".json", lambda: writer.append(new))
    assert keeper.reclaim_orphans(older_than_ms=-(10**13)) is None
    assert values_of(world.open()) == ["just in time"]


def test_two_that_snapshot_at_once_leave_the_newer_pointer(world: World) -> None:
    slow, fast = world.open(), world.open()
    publish(slow, "a")

    def overtake() -> None:
        publish(fast, "b")
        fast.write_snapshot()

    hooks(slow).before("compare_and_swap", POINTER_FILE, overtake)
    slow.write_snapshot()
    pointer = PointerFile(slow.store, FOLDER).read()
    assert pointer.snapshot == fast.state.number == 2
    assert published(world.open()) == ["a", "b"]


def test_a_snapshot_by_a_clock_that_is_ahead_does_not_stop_the_clean_up(world: World) -> None:
    ahead, other = world.open(), world.open()
    ahead.clock = Clock(world.clock.now_ms + 10**12).wall_ms
    publish(ahead, "a")
    ahead.write_snapshot()
    snapshot(other, times=3, clock=world.clock, step_ms=GRACE_MS)
    assert PointerFile(other.store, FOLDER).read().removed >= ahead.state.number
    assert published(world.open()) == ["a"]


def test_a_failing_snapshot_does_not_fail_the_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pulsar_spark.connector.runtime.topics.managed_ledger.SNAPSHOT_EVERY", 1)

    def full() -> None:
        raise StorageError("no space left")

    hooks(world.first).before("put_if_absent", "parquet", full)
    with caplog.at_level(logging.WARNING):
        assert isinstance(publish(world.first, "a"), Commit)
        eventually(lambda: "no space left" in caplog.text)
    assert isinstance(publish(world.first, "b"), Commit)
    assert PointerFile(world.first.store, FOLDER).read().snapshot == 2


def test_a_snapshot_that_vanishes_while_it_is_read_is_read_anew(world: World) -> None:
    snapshot(world.first, times=1, clock=world.clock, step_ms=0)
    store = HookedStore(world.first.store)
    first = world.first.state.number
    store.before("get", snapshot_file(first), lambda: world.clean_up_past(first))
    opened = ManagedLedger.open_anew(store, FOLDER)
    assert opened.state.number == world.open().state.number > first


def test_a_snapshot_and_the_tail_make_the_state_that_the_commits_make(world: World) -> None:
    publish(world.first, "a", application=("query", 3), term=4)
    publish(world.first, "b", "c", partition=1)
    LedgerStore(world.first).trim({0: 1})
    world.first.grow(3)
    world.first.write_snapshot()
    publish(world.first, "d", partition=2)
    opened = world.open()
    assert opened.state.to_snapshot() == world.first.state.to_snapshot()
    assert [values_of(opened, part) for part in range(3)] == [[], ["b", "c"], ["d"]]
    check_state(opened.state)


def test_a_lower_term_is_fenced(world: World) -> None:
    old, new = world.open(), world.open()
    publish(old, "a", term=1)
    publish(new, "b", term=2)
    with pytest.raises(FencedError, match="term 2 has committed"):
        publish(old, "c", term=1)
    publish(old, "d")
    assert published(world.open()) == ["a", "b", "d"]


def test_a_higher_term_alone_is_a_commit(world: World) -> None:
    old, new = world.open(), world.open()
    publish(old, "a", term=1)
    assert isinstance(new.append([], term=2), Commit)
    with pytest.raises(FencedError):
        publish(old, "b", term=1)


def test_partitions_grow_and_never_shrink(world: World) -> None:
    other = world.open()
    assert world.first.grow(4) is not None
    assert other.grow(3) is None
    assert other.state.partitions == 4


def test_settings_are_merged(world: World) -> None:
    world.first.change_settings(lambda known: {**known, "deduplication": True})
    other = world.open()
    other.change_settings(lambda known: {**known, "compaction": False})
    assert other.change_settings(lambda known: {**known, "compaction": False}) is None
    assert world.open().state.settings == {"compaction": False, "deduplication": True}


@pytest.mark.parametrize("torn", [b"", b'{"version":1,"num', b"\0\0\0\0", b"[]"])
def test_a_torn_last_log_file_is_refused_and_never_skipped(world: World, torn: bytes) -> None:
    publish(world.first, "a")
    world.first.store.put_if_absent(f"{FOLDER}/{log_file(2)}", torn)
    with pytest.raises(CorruptFileError, match=r"00002\.json is damaged"):
        world.open()
    with pytest.raises(CorruptFileError, match=r"00002\.json is damaged"):
        publish(world.first, "b")
    assert world.first.store.get(f"{FOLDER}/{log_file(2)}") == torn, "nothing stored is harmed"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_log_with_a_gap_is_refused_and_nobody_takes_the_number(world: World, lost: int) -> None:
    store = world.first.store
    for value in ("a", "b", "c"):
        publish(world.first, value)
    path = f"{FOLDER}/{log_file(lost)}"
    data = store.get(path)
    assert data is not None
    store.delete(path)
    if not store.remote:  # there it would be a request more
        with pytest.raises(CorruptFileError, match=f"{lost}.json is missing, and later ones"):
            world.open()
    store.put_if_absent(path, data)
    assert values_of(world.open()) == ["a", "b", "c"]


def test_a_commit_of_a_future_version_stops_readers_and_writers(world: World) -> None:
    world.first.store.put_if_absent(f"{FOLDER}/{log_file(1)}", b'{"version":3}')
    with pytest.raises(FutureVersionError, match="Update Pulsarlite"):
        world.open()
    with pytest.raises(FutureVersionError):
        publish(world.first, "b")


def test_the_cache_gives_the_same_object_and_knows_a_topic_made_anew(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    made = ManagedLedger.create(store, FOLDER, 1)
    opened = ManagedLedger.open(store, FOLDER)
    publish(made, "a")
    assert ManagedLedger.open(store, FOLDER) is opened
    assert values_of(opened) == ["a"]
    for item in list(store.files(f"{FOLDER}/_log")):
        store.delete(item.path)
    ManagedLedger.create(store, FOLDER, 3)
    again: Any = ManagedLedger.open(store, FOLDER)
    assert again is not opened
    assert again.state.partitions == 3


def test_trimmed_files_stay_for_the_grace_period(world: World) -> None:
    first = world.first
    files = [publish(first, str(number)).ledgers[0].file for number in range(3)]
    keeper = LedgerStore(first, grace_ms=GRACE_MS)
    commit = keeper.trim({0: 2, 1: 99})
    assert commit is not None
    assert commit.trimmed[0] == (0, 1)
    assert keeper.trim({0: 2}) is None
    assert keeper.sweep() == []
    world.clock.now_ms += GRACE_MS
    assert sorted(keeper.sweep()) == sorted(files[:2])
    assert values_of(world.open()) == ["2"]
    assert first.state.partition(0).trimmed_up_to.ledger_id == 1


def test_a_file_is_kept_while_one_of_its_partitions_needs_it(world: World) -> None:
    first = world.first
    first.append(write(first, {0: messages(["a"]), 1: messages(["b"])}))
    keeper = LedgerStore(first, grace_ms=0)
    keeper.trim({0: 99})
    assert keeper.sweep() == []
    assert values_of(world.open(), 1) == ["b"]
    keeper.trim({1: 99})
    assert len(keeper.sweep()) == 1


def test_merging_changes_no_id_and_no_message(world: World) -> None:
    for number in range(6):
        publish(world.first, f"{number}a", f"{number}b", partition=number % 2)
    reader = world.open()
    before = [[e.ledger_id for e in reader.ledgers(part)] for part in (0, 1)]
    values = [values_of(reader, part) for part in (0, 1)]
    older = [reader.ledgers(part) for part in (0, 1)]
    keeper = LedgerStore(world.first, grace_ms=GRACE_MS)
    commits = keeper.merge_small_files()
    assert len(commits) == 1
    assert {each.file for part in older for each in part} == set(world.first.state.tombstones)
    assert values == [values_of(reader, part) for part in (0, 1)], "the older view still reads"
    world.clock.now_ms += GRACE_MS
    assert len(keeper.sweep()) == 6
    with pytest.raises(FileNotFoundError, match="not there"):
        values_of(reader)
    reader.refresh()
    assert values == [values_of(reader, part) for part in (0, 1)]
    assert before == [[e.ledger_id for e in reader.ledgers(part)] for part in (0, 1)]
    assert len(reader.state.files) == 1
    assert keeper.merge_small_files() == []
    check_state(reader.state)


def test_small_files_beyond_a_merged_files_size_go_into_several(tmp_path: Path) -> None:
    ledger = ManagedLedger.create(open_store(str(tmp_path)), FOLDER, 1)
    for number in range(5):
        publish(ledger, f"{number}")
    (size,) = {each.stat().st_size for each in (tmp_path / FOLDER / "data").iterdir()}
    commits = LedgerStore(ledger).merge_small_files(up_to_bytes=3 * size - 1)
    merged = [[moved.ledger_id for moved in commit.moved] for commit in commits]
    assert merged == [[0, 1], [2, 3]], "one alone is not merged"
    assert values_of(ledger) == ["0", "1", "2", "3", "4"]
    assert len(ledger.state.files) == 3
    check_state(ledger.state)


def test_a_merge_takes_so_many_ledgers_at_most_that_memory_stays_level(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_store, "SMALL_FILE_LEDGERS", 3)
    for number in range(7):
        publish(world.first, f"{number}")
    keeper = LedgerStore(world.first)
    merged = [[moved.ledger_id for moved in each.moved] for each in keeper.merge_small_files()]
    assert merged == [[0, 1, 2], [3, 4, 5]], "the last one waits for others"
    assert keeper.merge_small_files() == [], "a merged file is not merged again"
    assert values_of(world.open()) == [f"{number}" for number in range(7)]


def test_a_ledger_that_is_trimmed_during_a_merge_stays_trimmed(world: World) -> None:
    for value in "abc":
        publish(world.first, value)
    keeper, other = LedgerStore(world.first), LedgerStore(world.open())
    hooks(world.first).before("put_if_absent", ".json", lambda: other.trim({0: 2}))
    (commit,) = keeper.merge_small_files()
    assert [moved.ledger_id for moved in commit.moved] == [2]
    assert values_of(world.open()) == ["c"]


def test_a_merge_of_what_is_all_trimmed_commits_nothing(world: World) -> None:
    for value in "abc":
        publish(world.first, value)
    keeper, other = LedgerStore(world.first), LedgerStore(world.open())
    hooks(world.first).before("put_if_absent", ".json", lambda: other.trim({0: 9}))
    assert keeper.merge_small_files() == []
    check_state(world.open().state)
