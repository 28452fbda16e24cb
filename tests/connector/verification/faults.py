"""Losses, doublings and swaps, injected into real files, with all checksums made right again.

A fault is a function that changes a root's files, or says that this root has no place for it. Those
in QUICK have to be found without reading a data file, those in SLOW with `--deep`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.inspect.verification.log_check import StoredRows, stored_rows
from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    OFFSET_RECORD,
    SHARD_PREFIX,
    BrokerOffset,
)
from pulsar_spark.connector.runtime.system_topics.hosted_topics import last_shards
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.log_pointer import PointerFile, log_numbers
from pulsar_spark.connector.runtime.topics.log_snapshot import (
    decode_snapshot,
    encode_snapshot,
    snapshot_file,
)
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import (
    MESSAGE_SCHEMA,
    LedgerFileReader,
    LedgerFileWriter,
)
from pulsar_spark.log.ledger_commit import (
    Commit,
    MovedLedger,
    ledger_from_json,
    ledger_to_json,
    log_file,
)
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import (
    BatchSizes,
    FileSeal,
    LedgerColumn,
    LedgerInfo,
    LedgerList,
)
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.simulation.lots import Lots

Ledgers = list[LedgerInfo]


class NoPlaceError(Exception):
    """This root has nothing that could be changed so."""


class Scene:
    """One topic of a root, in which something is changed."""

    def __init__(self, folder: Path, lots: Lots, topic: str) -> None:
        self.folder, self.lots = folder, lots
        self.root = Root(str(folder), {})
        self.name = TopicName.parse(topic)
        self.ledger = ManagedLedger.open_anew(
            self.root.store, self.name.storage_path, str(self.name)
        )
        self.store = self.ledger.store
        self.pointer = PointerFile(self.store, self.ledger.folder).read()
        self.state = self.ledger.state

    def path(self, file: str) -> Path:
        return self.folder / self.ledger.folder / file

    def draw(self, choices: Sequence[Any]) -> Any:
        """NoPlaceError if there are none."""
        if not choices:
            raise NoPlaceError
        return self.lots.draw_from(choices)

    def ledgers(self) -> Ledgers:
        return [each for p in range(self.state.partitions) for each in self.state.ledgers(p)]

    def new_commits(self) -> list[int]:
        """Those that no snapshot stands for."""
        return [*range(self.pointer.snapshot + 1, self.state.number + 1)]

    # -- the log -------------------------------------------------------------------------------

    def commit(self, number: int) -> Commit:
        return Commit.from_json(self.path(log_file(number)).read_bytes(), "", number)

    def write_commit(self, commit: Commit) -> None:
        self.path(log_file(commit.number)).write_bytes(commit.to_json())

    def publishing(self) -> list[Commit]:
        """The commits that no snapshot stands for, and that have ledgers."""
        return [each for each in map(self.commit, self.new_commits()) if each.ledgers]

    def snapshot(self, number: int | None = None) -> TopicState:
        place = self.pointer.snapshot if number is None else number
        if place < 0:
            raise NoPlaceError
        data = self.path(snapshot_file(place)).read_bytes()
        return decode_snapshot(data, str(self.name), "", place)

    def write_snapshot(self, state: TopicState) -> None:
        self.path(snapshot_file(state.number)).write_bytes(encode_snapshot(state))

    def change_snapshot(self, change: Callable[[int, Ledgers], Ledgers]) -> None:
        """Give each partition of the newest snapshot other ledgers, and count them right."""
        state = self.snapshot()
        for number in range(state.partitions):
            part = state.partition(number)
            before = [*part.ledgers]
            ledgers = change(number, [*before])
            part.column = LedgerColumn((each.ledger_id for each in ledgers), ledgers)
            part.start = 0
            part.show()
            part.messages = sum(each.messages for each in ledgers)
            part.size_bytes = sum(each.size_bytes for each in ledgers)
        self.write_snapshot(state)

    def in_snapshot(self) -> Ledgers:
        state = self.snapshot()
        return [each for p in range(state.partitions) for each in state.ledgers(p)]

    def change_everywhere(self, change: Callable[[LedgerInfo], LedgerInfo]) -> None:
        """What the log says of ledgers, in each commit and snapshot that has them."""
        commits, snapshots = log_numbers(self.store, self.ledger.folder)
        for commit in map(self.commit, sorted(commits)):
            compacted = {
                partition: value
                | {
                    "ledgers": [
                        ledger_to_json(change(ledger_from_json(e))) for e in value["ledgers"]
                    ]
                }
                for partition, value in commit.compacted.items()
            }
            moved = tuple(replace(each, seal=_seal_of(each, change)) for each in commit.moved)
            added = tuple(map(change, commit.ledgers))
            self.write_commit(replace(commit, ledgers=added, moved=moved, compacted=compacted))
        for number in sorted(snapshots):
            state = self.snapshot(number)
            for p in range(state.partitions):
                part = state.partition(p)
                ledgers = [change(each) for each in part.ledgers]
                part.column = LedgerColumn((each.ledger_id for each in ledgers), ledgers)
                part.start = 0
                part.show()
                if part.compacted is not None:
                    kept_ledgers = LedgerList(map(change, part.compacted.ledgers))
                    part.compacted = replace(part.compacted, ledgers=kept_ledgers)
            self.write_snapshot(state)

    # -- the broker ----------------------------------------------------------------------------

    def broker(self, partition: int) -> BrokerState:
        """What it knows of a partition."""
        dispatch = SystemTopic(self.root, DISPATCH)
        shards = last_shards(dispatch, dispatch.refresh())[1]
        held = shards.get(TopicPartition(str(self.name), partition))
        if not held:
            raise NoPlaceError
        return from_shards(held)

    def write_broker(self, states: Mapping[int, BrokerState]) -> None:
        """A batch of the broker in which partitions come to these states."""
        dispatch = SystemTopic(self.root, DISPATCH)
        stop = dispatch.refresh()
        hosted, known = last_shards(dispatch, stop)
        records = []
        for partition, state in states.items():
            topic_partition = TopicPartition(str(self.name), partition)
            shards = to_shards(state)
            gone = known[topic_partition].keys() - shards.keys()
            for key, data in {**shards, **dict.fromkeys(gone, b"")}.items():
                records.append(Record(topic_partition, SHARD_PREFIX + key, data))
        reported = BrokerOffset(
            (hosted.batch.commands[1],) * 2, now_ms=hosted.batch.now_ms, dispatched=stop
        ).to_json()
        records.append(Record(TopicPartition(str(DISPATCH), 0), OFFSET_RECORD, reported))
        dispatch.append(records)

    def subscribed(self) -> tuple[int, BrokerState, Subscription]:
        partition = self.lots.draw(0, self.state.partitions - 1)
        state = self.broker(partition)
        name = self.draw(sorted(state.subscriptions))
        return partition, state, state.subscriptions[name]


def _seal_of(moved: MovedLedger, change: Callable[[LedgerInfo], LedgerInfo]) -> FileSeal | None:
    """What becomes of the seal of a ledger that lies in that file."""
    there = LedgerInfo(
        -1, moved.partition, moved.file, moved.first_row, BatchSizes.of([1]), 0, 0, 0,
        seal=moved.seal,
    )  # fmt: skip
    return change(there).seal


# -- the log ---------------------------------------------------------------------------------------


def lose_a_commit(scene: Scene) -> None:
    number = scene.draw(range(scene.pointer.removed + 1, scene.state.number))
    scene.path(log_file(number)).unlink()


def lose_the_last_commits(scene: Scene) -> None:
    """The broker has heard of all of them; of its own last batches nobody has."""
    if scene.name == DISPATCH:
        raise NoPlaceError
    for number in scene.new_commits()[-scene.lots.draw(1, 3) :] or scene.draw(()):
        scene.path(log_file(number)).unlink()


def lose_the_snapshot(scene: Scene) -> None:
    scene.snapshot()
    scene.path(snapshot_file(scene.pointer.snapshot)).unlink()


def lose_a_ledger_of_a_commit(scene: Scene) -> None:
    commit = scene.draw(scene.publishing())
    lost = scene.draw(commit.ledgers)
    scene.write_commit(replace(
        commit, ledgers=tuple(each for each in commit.ledgers if each is not lost), chunks={},
    ))  # fmt: skip


def double_a_ledger_of_a_commit(scene: Scene) -> None:
    commit = scene.draw(scene.publishing())
    twice = replace(commit.ledgers[-1], ledger_id=commit.ledgers[-1].ledger_id + 1)
    scene.write_commit(replace(commit, ledgers=(*commit.ledgers, twice)))


def swap_two_commits(scene: Scene) -> None:
    commits = scene.publishing()
    if len(commits) < 2:
        raise NoPlaceError
    one, other = scene.lots.random.sample(commits, 2)
    scene.write_commit(replace(one, number=other.number))
    scene.write_commit(replace(other, number=one.number))


def lose_a_ledger_of_the_snapshot(scene: Scene) -> None:
    lost = scene.draw(scene.in_snapshot()).ledger_id
    scene.change_snapshot(lambda _, held: [each for each in held if each.ledger_id != lost])


def double_a_ledger_of_the_snapshot(scene: Scene) -> None:
    twice = scene.draw(scene.in_snapshot()).ledger_id
    scene.change_snapshot(
        lambda _, held: [e for each in held for e in [each] * (1 + (each.ledger_id == twice))]
    )


def swap_digests_in_the_snapshot(scene: Scene) -> None:
    _swap_in_snapshot(scene, "digest")


def move_a_ledger_to_another_partition(scene: Scene) -> None:
    if scene.state.partitions < 2:
        raise NoPlaceError
    moved = scene.draw(scene.in_snapshot())
    to = scene.draw([p for p in range(scene.state.partitions) if p != moved.partition])

    def change(number: int, held: Ledgers) -> Ledgers:
        rest = [each for each in held if each.ledger_id != moved.ledger_id]
        if number == to:
            rest.append(replace(moved, partition=to))
        return sorted(rest, key=lambda each: each.ledger_id)

    scene.change_snapshot(change)


def cut_entries_otherwise_in_the_snapshot(scene: Scene) -> None:
    """As many messages, in other entries."""
    several = [each for each in scene.in_snapshot() if each.messages > 1]
    chosen = scene.draw(several)
    sizes = [1] * chosen.messages if chosen.entries == 1 else [chosen.messages]
    if BatchSizes.of(sizes) == chosen.batch_sizes:
        raise NoPlaceError
    cut = replace(chosen, batch_sizes=BatchSizes.of(sizes))
    scene.change_snapshot(
        lambda _, held: [cut if each.ledger_id == cut.ledger_id else each for each in held]
    )


def change_a_sum_in_the_snapshot(scene: Scene) -> None:
    state = scene.snapshot()
    part = state.partition(scene.lots.draw(0, state.partitions - 1))
    assert part.published is not None
    part.published = replace(part.published, messages=part.published.messages + 1)
    scene.write_snapshot(state)


def _swap_in_snapshot(scene: Scene, *names: str) -> None:
    """Of ledgers that no later commit has moved or trimmed."""
    now = {each.ledger_id: each for each in scene.ledgers()}
    held = [each for each in scene.in_snapshot() if now.get(each.ledger_id) == each]
    if len(held) < 2:
        raise NoPlaceError
    one, other = scene.lots.random.sample(held, 2)
    if one.digest == other.digest or (one.messages != other.messages and names != ("digest",)):
        raise NoPlaceError
    exchanged = {
        one.ledger_id: replace(one, **{name: getattr(other, name) for name in names}),
        other.ledger_id: replace(other, **{name: getattr(one, name) for name in names}),
    }
    scene.change_snapshot(lambda _, each: [exchanged.get(e.ledger_id, e) for e in each])


# -- files -----------------------------------------------------------------------------------------


def stored(scene: Scene) -> list[StoredRows]:
    return [*stored_rows(scene.state, range(scene.state.partitions))]


def lose_a_file(scene: Scene) -> None:
    scene.path(scene.draw(stored(scene)).ledger.file).unlink()


def cut_a_file(scene: Scene) -> None:
    path = scene.path(scene.draw(stored(scene)).ledger.file)
    data = path.read_bytes()
    path.write_bytes(data[: scene.lots.draw(0, len(data) - 1)])


def flip_a_bit(scene: Scene) -> None:
    path = scene.path(scene.draw(stored(scene)).ledger.file)
    data = bytearray(path.read_bytes())
    data[scene.lots.draw(0, len(data) - 1)] ^= 1 << scene.lots.draw(0, 7)
    path.write_bytes(data)


def put_another_file_in_its_place(scene: Scene) -> None:
    one, other = _two_files(scene)
    one.write_bytes(other.read_bytes())


def swap_two_files(scene: Scene) -> None:
    one, other = _two_files(scene)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _two_files(scene: Scene) -> tuple[Path, Path]:
    files = sorted({each.ledger.file for each in stored(scene)})
    if len(files) < 2:
        raise NoPlaceError
    one, other = map(scene.path, scene.lots.random.sample(files, 2))
    return one, other


def swap_digests_everywhere(scene: Scene) -> None:
    """As if they had been published so: only their rows tell."""
    by_id = {each.ledger_id: each for each in scene.ledgers()}
    if len(by_id) < 2:
        raise NoPlaceError
    one, other = scene.lots.random.sample(sorted(by_id), 2)
    digests = {one: by_id[other].digest, other: by_id[one].digest}
    if digests[one] == digests[other]:
        raise NoPlaceError
    _keep_sums(scene)
    scene.change_everywhere(
        lambda each: replace(each, digest=digests.get(each.ledger_id, each.digest))
    )


def _keep_sums(scene: Scene) -> None:
    """Only where no snapshot has a sum of them."""
    if log_numbers(scene.store, scene.ledger.folder)[1]:
        raise NoPlaceError


def swap_the_places_of_two_ledgers(scene: Scene) -> None:
    _swap_in_snapshot(scene, "file", "first_row", "seal")


def lose_a_row(scene: Scene) -> None:
    _rewrite_rows(scene, lambda rows, at: [*rows[:at], *rows[at + 1 :]], least=2)


def double_a_row(scene: Scene) -> None:
    _rewrite_rows(scene, lambda rows, at: [*rows[:at], rows[at], *rows[at:]])


def double_a_row_in_the_place_of_the_next(scene: Scene) -> None:
    _rewrite_rows(scene, lambda rows, at: [*rows[: at + 1], rows[at], *rows[at + 2 :]], least=2)


def swap_two_rows(scene: Scene) -> None:
    _rewrite_rows(
        scene, lambda rows, at: [*rows[:at], rows[at + 1], rows[at], *rows[at + 2 :]], least=2
    )


def alter_a_key(scene: Scene) -> None:
    _rewrite_rows(scene, lambda rows, at: _with_row(rows, at, key=(rows[at]["key"] or "") + "x"))


def lose_a_key(scene: Scene) -> None:
    _rewrite_rows(scene, lambda rows, at: _with_row(rows, at, key=None))


def alter_a_value(scene: Scene) -> None:
    _rewrite_rows(
        scene, lambda rows, at: _with_row(rows, at, value=b"x" + (rows[at]["value"] or b"")[1:])
    )


def empty_a_value(scene: Scene) -> None:
    _rewrite_rows(scene, lambda rows, at: _with_row(rows, at, value=b""))


def move_a_byte_from_a_value_to_the_next(scene: Scene) -> None:
    def moved(rows: list[Any], at: int) -> list[Any]:
        value, following = rows[at]["value"] or b"", rows[at + 1]["value"] or b""
        there = _with_row(rows, at, value=value[:-1])
        return _with_row(there, at + 1, value=value[-1:] + following)

    _rewrite_rows(scene, moved, least=2)


def _with_row(rows: list[Any], at: int, **changes: Any) -> list[Any]:
    return [*rows[:at], rows[at] | changes, *rows[at + 1 :]]


def _rewrite_rows(
    scene: Scene, change: Callable[[list[Any], int], list[Any]], least: int = 1
) -> None:
    """Rows of one ledger's file changed; the file's checksums and its seal in the log are right."""
    chosen = scene.draw([each for each in stored(scene) if each.rows >= least])
    file, first = chosen.ledger.file, chosen.ledger.first_row
    every = [each for each in stored(scene) if each.ledger.file == file]
    total = max(each.ledger.first_row + each.rows for each in every)
    whole = replace(chosen.ledger, first_row=0, batch_sizes=BatchSizes(((1, total),)))
    reader = LedgerFileReader(scene.store, scene.ledger.folder, str(scene.name))
    rows = reader.read_table(whole, MESSAGE_SCHEMA.names).to_pylist()
    reader.close()
    mine = rows[first : first + chosen.rows]
    changed = change(mine, scene.lots.draw(0, chosen.rows - least))
    after = [*rows[:first], *changed, *rows[first + chosen.rows :]]

    def contents(held: list[Any]) -> list[list[tuple[Any, Any]]]:
        """What each ledger has in them: a row behind the last of them nobody reads."""
        places = [(each.ledger.first_row, each.rows) for each in every]
        return [[(e["key"], e["value"]) for e in held[at : at + n]] for at, n in places]

    if contents(after) == contents(rows):
        raise NoPlaceError
    table = pa.Table.from_pylist(after, MESSAGE_SCHEMA)
    with LedgerFileWriter(scene.store, scene.ledger.folder) as writer:
        writer.write(table)
        seal = writer.close()
    scene.path(writer.path).replace(scene.path(file))
    scene.change_everywhere(lambda each: replace(each, seal=seal) if each.file == file else each)


# -- what the broker knows -------------------------------------------------------------------------


def lose_a_ledger_of_the_broker(scene: Scene) -> None:
    partition = scene.lots.draw(0, scene.state.partitions - 1)
    state = scene.broker(partition)
    lost = scene.draw([each.ledger_id for each in state.ledgers])
    state.ledgers = LedgerList(each for each in state.ledgers if each.ledger_id != lost)
    del state.columns[lost]
    scene.write_broker({partition: state})


def give_the_broker_a_ledger_that_is_none(scene: Scene) -> None:
    partition = scene.lots.draw(0, scene.state.partitions - 1)
    state = scene.broker(partition)
    if not state.ledgers:
        raise NoPlaceError
    last = state.ledgers[-1]
    made = replace(last, ledger_id=scene.state.next_ledger_id + scene.lots.draw(0, 3))
    state.ledgers = LedgerList([*state.ledgers, made])
    state.columns[made.ledger_id] = replace(state.columns[last.ledger_id], packed={})
    scene.write_broker({partition: state})


def acknowledge_in_no_ledger(scene: Scene) -> None:
    partition, state, held = scene.subscribed()
    entry = (scene.state.next_ledger_id + scene.lots.draw(0, 3), scene.lots.draw(0, 2))
    held.cursor = held.cursor.acknowledge(PositionSet.of([entry]))
    scene.write_broker({partition: state})


def acknowledge_behind_the_last_entry(scene: Scene) -> None:
    partition, state, held = scene.subscribed()
    after = [e for e in state.ledgers if e.last > held.cursor.mark_delete_position]
    ledger = scene.draw(after)
    entry = (ledger.ledger_id, ledger.entries + scene.lots.draw(0, 2))
    held.cursor = held.cursor.acknowledge(PositionSet.of([entry]))
    scene.write_broker({partition: state})


def acknowledge_an_index_behind_the_batch(scene: Scene) -> None:
    partition, state, held = scene.subscribed()
    cursor = held.cursor
    free = [
        (each, entry)
        for each in state.ledgers
        for entry in range(each.entries)
        if Position(each.ledger_id, entry) > cursor.mark_delete_position
        and not cursor.individually_deleted.contains((each.ledger_id, entry))
        and entry not in cursor.individually_deleted.partial_entries(each.ledger_id)
    ]
    ledger, entry = scene.draw(free)
    size = ledger.batch_sizes.size_of(entry) + scene.lots.draw(1, 3)
    part = PositionSet.of_batch((ledger.ledger_id, entry), size, 1 << size - 1)
    held.cursor = cursor.acknowledge(part)
    scene.write_broker({partition: state})


def mark_deleted_in_no_ledger(scene: Scene) -> None:
    partition, state, held = scene.subscribed()
    held.cursor = Cursor(Position(scene.state.next_ledger_id, scene.lots.draw(0, 4)))
    scene.write_broker({partition: state})


def mark_deleted_behind_the_last_entry(scene: Scene) -> None:
    partition, state, held = scene.subscribed()
    ledger = scene.draw([*state.ledgers])
    held.cursor = Cursor(Position(ledger.ledger_id, ledger.entries + scene.lots.draw(0, 2)))
    scene.write_broker({partition: state})


def swap_the_cursors_of_two_partitions(scene: Scene) -> None:
    if scene.state.partitions < 2:
        raise NoPlaceError
    one, other = scene.lots.random.sample(range(scene.state.partitions), 2)
    first, second = scene.broker(one), scene.broker(other)
    name = scene.draw(sorted(first.subscriptions.keys() & second.subscriptions.keys()))
    a, b = first.subscriptions[name], second.subscriptions[name]
    if not {a.cursor.mark_delete_position, b.cursor.mark_delete_position} - {EARLIEST} or (
        a.cursor == b.cursor
    ):
        raise NoPlaceError
    a.cursor, b.cursor = b.cursor, a.cursor
    scene.write_broker({one: first, other: second})


def acknowledge_what_a_consumer_holds(scene: Scene) -> None:
    partition, state, held = scene.subscribed()
    messages = held.held
    if not messages:
        raise NoPlaceError
    held.cursor = held.cursor.acknowledge(messages.prefix(1, state.ledgers))
    scene.write_broker({partition: state})


def forget_an_acknowledgement(scene: Scene) -> None:
    partition, state, held = scene.subscribed()
    cursor = held.cursor
    known = [each for each in cursor.individually_deleted.entries()
             if state.ledgers.get(each[0].ledger_id) is not None]  # fmt: skip
    position = cursor.mark_delete_position
    if known and scene.lots.one_in(2):
        (ledger_id, entry_id), part = scene.draw(known)
        whole = PositionSet.of([(ledger_id, entry_id)])
        if part is not None:
            whole = cursor.individually_deleted.intersection(whole)
        held.cursor = Cursor(position, cursor.individually_deleted.difference(whole))
    elif state.ledgers.get(position.ledger_id) is not None and position.entry_id >= 0:
        before = Position(position.ledger_id, position.entry_id - 1)
        held.cursor = Cursor(before, cursor.individually_deleted)
    else:
        raise NoPlaceError
    if held.cursor == cursor:
        raise NoPlaceError
    scene.write_broker({partition: state})


def lose_a_hold(scene: Scene) -> None:
    """Neither acknowledged nor held: nobody would ever get it again."""
    partition, state, held = scene.subscribed()
    if not held.subscription_type.is_shared or not held.replay:
        raise NoPlaceError
    held.replay = held.replay.difference(held.replay.prefix(1, state.ledgers))
    scene.write_broker({partition: state})


Fault = Callable[[Scene], None]
QUICK: Final[tuple[Fault, ...]] = (
    lose_a_commit, lose_the_last_commits, lose_the_snapshot, lose_a_ledger_of_a_commit,
    double_a_ledger_of_a_commit, swap_two_commits, lose_a_ledger_of_the_snapshot,
    double_a_ledger_of_the_snapshot, swap_digests_in_the_snapshot,
    move_a_ledger_to_another_partition, cut_entries_otherwise_in_the_snapshot,
    change_a_sum_in_the_snapshot, lose_a_file, cut_a_file, lose_a_ledger_of_the_broker,
    give_the_broker_a_ledger_that_is_none, acknowledge_in_no_ledger,
    acknowledge_behind_the_last_entry, acknowledge_an_index_behind_the_batch,
    mark_deleted_in_no_ledger, mark_deleted_behind_the_last_entry,
    acknowledge_what_a_consumer_holds, lose_a_hold,
)  # fmt: skip
SLOW: Final[tuple[Fault, ...]] = (
    flip_a_bit, put_another_file_in_its_place, swap_two_files, swap_digests_everywhere,
    swap_the_places_of_two_ledgers, lose_a_row, double_a_row,
    double_a_row_in_the_place_of_the_next, swap_two_rows, alter_a_key, lose_a_key, alter_a_value,
    empty_a_value, move_a_byte_from_a_value_to_the_next, swap_the_cursors_of_two_partitions,
    forget_an_acknowledgement,
)  # fmt: skip
OF_THE_LOG: Final = frozenset({*QUICK[:14], *SLOW[:14]})
"""Those that may be of a system topic as well."""
SYSTEM: Final = (str(COMMANDS), str(DISPATCH))
