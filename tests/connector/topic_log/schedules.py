"""Random schedules of all that is done to a topic's log, on a store that does what it can.

    python -m tests.connector.topic_log.schedules --seeds 0-1000

Writers that must publish once (as a query, a transaction over two topics, a producer whose
duplicates are dropped), snapshots, trims, merges, compactions, orphans given up, sweeps, decisions
forgotten, sleeps longer than every grace period; any call may fail, be killed, or have others work
while it waits. After each step somebody else looks, from the first file on, at what is there.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.housekeeping.transaction_cleanup import forget_decisions
from pulsar_spark.connector.runtime.reading.partition_view import kept_rows
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_commit import begin, commit_together
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.errors import (
    FileReclaimedError,
    InvalidTxnStatusError,
    StorageError,
    TopicExistsError,
)
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from tests.connector.topic_log.faulty_store import Disk, FaultyStore, KilledError
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import Clock, messages, write

ORDERS = "persistent/public/default/orders"
BILLS = "persistent/public/default/bills"
LOG_GRACE_MS = 1_000
FILE_GRACE_MS = 2_000
ORPHAN_AGE_MS = 5_000
TRANSACTION_MS = 500
STEPS = 60
MOST_MEANWHILE = 4
"""Steps of others while one call waits."""
MAY_HAPPEN = (StorageError, FileReclaimedError, InvalidTxnStatusError, TopicExistsError)
Row = tuple[str, str]


@dataclass(frozen=True)
class StoreRoot(Root):
    """A root on a store that is handed in."""

    handed: ObjectStore

    @property
    def store(self) -> ObjectStore:
        return self.handed


@dataclass
class TickingClock(Clock):
    """Whoever waits for a time to come sees it come."""

    def wall_ms(self) -> int:
        self.now_ms += 20
        return self.now_ms


@dataclass
class Writer:
    """A process that publishes; what it was not told of it says again."""

    name: str
    kind: str
    """query, transaction or producer."""
    version: int = 0
    pending: list[Row] = field(default_factory=list)
    confirmed: list[Row] = field(default_factory=list)
    ledgers: dict[str, ManagedLedger] = field(default_factory=dict)


@dataclass
class Seen:
    """What an onlooker knows of one topic."""

    rows: dict[tuple[int, int], list[Row]] = field(default_factory=dict)
    """By partition and ledger."""
    read: dict[tuple[int, int], LedgerInfo] = field(default_factory=dict)
    """As they lay when they were read."""
    compacted: dict[int, object] = field(default_factory=dict)
    trimmed_first: dict[int, set[int]] = field(default_factory=dict)
    """By partition, ledgers that were trimmed before it was ever compacted."""
    missed: bool = False
    """Whether a ledger came and went between two looks."""
    next_ledger_id: int = 0


class Schedule:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.die = random.Random(seed)
        self.clock = TickingClock()
        self.disk = Disk(self.clock)
        self.rate = self.die.choice([0.0, 0.03, 0.15])
        self.others = self.die.choice([0.0, 0.02, 0.1])
        self.faults = True
        self.depth = 0
        self.left = STEPS
        self.failed = 0
        self.seen = {ORDERS: Seen(), BILLS: Seen()}
        self.writers = [
            Writer("query", "query"), Writer("txn", "transaction"), Writer("seq", "producer"),
            Writer("other", "query"), Writer("txn2", "transaction"),
        ]  # fmt: skip
        self.busy: set[str] = set()

    def run(self) -> None:
        """AssertionError, or whatever it is that must not happen."""
        for folder in (ORDERS, BILLS):
            self.create(folder)
        while self.left > 0:
            self.step()
        self.faults = False
        for writer in self.writers:
            while writer.pending:
                self.clock.now_ms += TRANSACTION_MS
                self.publish(writer)
        self.look()
        self.check_once()

    def store(self) -> FaultyStore:
        if not self.faults:
            return FaultyStore(self.disk)
        return FaultyStore(self.disk, self.die, self.rate, self.meanwhile)

    def opened(self, folder: str) -> ManagedLedger:
        return ManagedLedger.open_anew(self.store(), folder, grace_ms=LOG_GRACE_MS)

    def create(self, folder: str) -> None:
        """With faults, and nobody else there yet."""
        store, done = FaultyStore(self.disk, self.die, self.rate), False
        while not done:
            with self.may_fail():
                with suppress(TopicExistsError):
                    ManagedLedger.create(store, folder, 2)
                done = True

    @contextmanager
    def may_fail(self) -> Iterator[None]:
        try:
            yield
        except (*MAY_HAPPEN, KilledError):
            self.failed += 1

    def meanwhile(self) -> None:
        """While a call waits: late requests arrive, others work, time passes."""
        if self.disk.late and self.die.random() < 0.3:
            self.disk.late.pop(0)()
        if self.depth < 3 and self.die.random() < self.others:
            for _ in range(min(self.left, self.die.randint(1, MOST_MEANWHILE))):
                self.step()

    def step(self) -> None:
        self.depth += 1
        self.left -= 1
        try:
            self.clock.now_ms += self.die.randint(1, 50)
            act: Callable[[], object] = self.die.choice(
                [self.somebody_publishes] * 8
                + [self.sleep, self.snapshot, self.trim, self.merge, self.compact, self.reclaim]
                + [self.sweep, self.forget, self.read, self.night, self.night]
            )
            with self.may_fail():
                act()
            self.look()
        finally:
            self.depth -= 1

    def somebody_publishes(self) -> None:
        writer = self.die.choice(self.writers)
        if writer.name in self.busy:
            return
        if not writer.pending:
            count = self.die.randint(1, 4)
            stem = f"{writer.name}-{writer.version}"
            writer.pending = [(f"k{self.die.randint(0, 5)}", f"{stem}-{n}") for n in range(count)]
        self.publish(writer)

    def publish(self, writer: Writer) -> None:
        self.busy.add(writer.name)
        try:
            self._publish(writer)
        except KilledError:
            writer.ledgers.clear()
            raise
        finally:
            self.busy.discard(writer.name)
        writer.confirmed += writer.pending
        writer.pending = []
        writer.version += 1

    def _publish(self, writer: Writer) -> None:
        if not self.faults:
            writer.ledgers.clear()
        folders = (ORDERS, BILLS) if writer.kind == "transaction" else (ORDERS,)
        application = (writer.name, writer.version)
        prepares = []
        for folder in folders:
            ledger = writer.ledgers.get(folder)
            if ledger is None:
                ledger = writer.ledgers[folder] = self.opened(folder)
            rows = writer.pending
            if writer.kind == "producer":
                table = messages([value for _, value in rows], writer.name, len(writer.confirmed))
            else:
                table = messages([value for _, value in rows])
            table = table.add_column(0, "key", pa.array([key for key, _ in rows]))
            new = write(ledger, {sum(map(ord, writer.name)) % 2: table}, batch=2)
            if writer.kind == "query":
                ledger.append(new, application=application)
            elif writer.kind == "producer":
                ledger.append(new, deduplicate=True)
            else:
                prepares.append(
                    lambda txn, ledger=ledger, new=new: ledger.append(
                        new, application=application, transaction=txn
                    )
                )
        if prepares:
            commit_together(
                self.store(), begin(self.store(), application, TRANSACTION_MS), prepares
            )

    def sleep(self) -> None:
        self.clock.now_ms += self.die.choice([LOG_GRACE_MS, FILE_GRACE_MS, 2 * ORPHAN_AGE_MS])

    def snapshot(self) -> None:
        self.opened(self.any_topic()).write_snapshot()

    def keeper(self) -> LedgerStore:
        return LedgerStore(self.opened(self.any_topic()), grace_ms=FILE_GRACE_MS)

    def any_topic(self) -> str:
        return self.die.choice([ORDERS, ORDERS, BILLS])

    def trim(self) -> None:
        keeper = self.keeper()
        last = keeper.ledger.state.next_ledger_id
        keeper.trim({self.die.randint(0, 1): self.die.randint(0, max(last - 3, 0))})

    def merge(self) -> None:
        self.keeper().merge_small_files()

    def compact(self) -> None:
        compact(self.opened(self.any_topic()))

    def reclaim(self) -> None:
        self.keeper().reclaim_orphans(older_than_ms=ORPHAN_AGE_MS)

    def sweep(self) -> None:
        self.keeper().sweep()

    def night(self) -> None:
        """Whoever sleeps through this finds his files given up, deleted and forgotten."""
        keeper = self.keeper()
        self.clock.now_ms += 2 * ORPHAN_AGE_MS
        keeper.reclaim_orphans(older_than_ms=ORPHAN_AGE_MS)
        self.clock.now_ms += 2 * FILE_GRACE_MS
        keeper.sweep()

    def forget(self) -> None:
        forget_decisions(StoreRoot("memory", {}, self.store()))

    def read(self) -> None:
        ledger = self.opened(self.any_topic())
        for partition in (0, 1):
            _rows(ledger, partition, list(ledger.ledgers(partition)))

    def look(self) -> None:
        """From the first file on, on a good day: nothing is lost, nothing changes."""
        for folder, seen in self.seen.items():
            store = FaultyStore(self.disk)
            ledger = ManagedLedger.open_anew(store, folder)
            check_state(ledger.state)
            assert ledger.state.next_ledger_id >= seen.next_ledger_id, "the log went back"
            there = set()
            for partition in range(ledger.state.partitions):
                ledgers = list(ledger.ledgers(partition))
                there |= {each.ledger_id for each in ledgers}
                self._check_partition(ledger, partition, seen, ledgers)
            for ledger_id in range(seen.next_ledger_id, ledger.state.next_ledger_id):
                seen.missed |= ledger_id not in there
            seen.next_ledger_id = ledger.state.next_ledger_id
        self._check_both()

    def _check_partition(
        self, ledger: ManagedLedger, partition: int, seen: Seen, ledgers: list[LedgerInfo]
    ) -> None:
        known = {number for part, number in seen.rows if part == partition}
        trimmed = ledger.state.partition(partition).trimmed_up_to.ledger_id
        gone = known - {each.ledger_id for each in ledgers}
        assert all(number <= trimmed for number in gone), "a ledger is gone that was not trimmed"
        for each in ledgers:
            assert f"{ledger.folder}/{each.file}" in self.disk.files, "a file is gone"
        new = [each for each in ledgers if seen.read.get((partition, each.ledger_id)) != each]
        for (_, number), rows in _rows(ledger, partition, new).items():
            assert seen.rows.setdefault((partition, number), rows) == rows, "a ledger changed"
        seen.read.update({(partition, each.ledger_id): each for each in new})
        compacted = ledger.state.partition(partition).compacted
        if compacted is None or seen.missed:
            return
        if seen.compacted.get(partition) == (value := compacted.to_json_value()):
            return
        seen.compacted[partition] = value
        maybe = seen.trimmed_first.setdefault(partition, gone)
        reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
        kept = []
        for each in compacted.ledgers:
            _, span = kept_rows(compacted, each)
            table = reader.read_table(span.ledger, ["key", "value"])
            kept += [(row["key"], row["value"].decode()) for row in table.to_pylist()]
        reader.close()
        # The first compaction may have begun before some of these were trimmed.
        rights = []
        for first in (0, *(number + 1 for number in sorted(maybe))):
            latest: dict[str, Row] = {}
            for (part, number), rows in sorted(seen.rows.items()):
                if part == partition and first <= number <= compacted.horizon.ledger_id:
                    latest.update({key: (key, value) for key, value in rows})
            rights.append(sorted(latest.values()))
        assert sorted(kept) in rights, "compaction kept something else"

    def _check_both(self) -> None:
        """What one transaction published is in both topics, or in neither."""
        if not any(seen.missed for seen in self.seen.values()):
            orders, bills = (
                {
                    value
                    for rows in self.seen[folder].rows.values()
                    for _, value in rows
                    if value.startswith("txn")
                }
                for folder in (ORDERS, BILLS)
            )
            assert orders == bills, "a transaction is seen in part"

    def check_once(self) -> None:
        """All that a writer was told of is there once, in its order."""
        for writer in self.writers:
            folders = (ORDERS, BILLS) if writer.kind == "transaction" else (ORDERS,)
            for folder in folders:
                seen = self.seen[folder]
                stem = f"{writer.name}-"
                found = [
                    row
                    for _, rows in sorted(seen.rows.items(), key=lambda item: item[0][1])
                    for row in rows
                    if row[1].startswith(stem)
                ]
                assert len(set(found)) == len(found), "published twice"
                if not seen.missed:
                    assert found == writer.confirmed, "lost, or out of order"


def _rows(
    ledger: ManagedLedger, partition: int, ledgers: list[LedgerInfo]
) -> dict[tuple[int, int], list[Row]]:
    """By ledger, what a reader gets of it."""
    reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
    hidden = ledger.state.partition(partition).hidden.of(each.ledger_id for each in ledgers)
    found: dict[tuple[int, int], list[Row]] = {}
    for each in ledgers:
        rows = found.setdefault((partition, each.ledger_id), [])
        for number, row in enumerate(reader.read_table(each, ["key", "value"]).to_pylist()):
            entry_id, batch_index = each.batch_sizes.locate(number)
            if not hidden.contains((each.ledger_id, entry_id), batch_index):
                rows.append((row["key"], row["value"].decode()))
    reader.close()
    return found


@contextmanager
def quick() -> Iterator[None]:
    """Snapshots often, waits that end at once, and no look at a clock that is not handed in."""
    names = {
        "SNAPSHOT_EVERY": 4,
        "pause_s": lambda *_, **__: 0.0,
        "IDLE_POINTER_POLL_S": float("inf"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setattr(managed_ledger, name, value)
        yield


def run(seed: int) -> None:
    """AssertionError, with what to type, if a rule is broken."""
    with quick():
        try:
            Schedule(seed).run()
        except BaseException as error:
            again = f"python -m tests.connector.topic_log.schedules --seeds {seed}-{seed}"
            raise AssertionError(f"seed {seed}: {error!r}. Again: {again}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-100", metavar="FIRST-LAST")
    first, _, last = parser.parse_args().seeds.partition("-")
    for seed in range(int(first), int(last) + 1):
        run(seed)
    print(f"seeds {first} to {last}: no rule was broken")


if __name__ == "__main__":
    main()
