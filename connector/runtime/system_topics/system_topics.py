"""The two topics by which consumers and the broker talk: `__commands` and `__dispatch`.

Invariants: they are topics like any other, one partition each, one pair a root; a record is
about one topic partition, and a commit's records keep their order; a reader's place is the id of
the next ledger, which a commit without records does not change.
Takes the place of Pulsar's connections between client and broker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.content_digest import ContentDigest
from pulsar_spark.connector.storage.data_files.ledger_file import (
    MESSAGE_SCHEMA,
    LedgerFileReader,
    LedgerFileWriter,
)
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.publication import AlreadyCommitted, NewLedger
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.model.topic_name import TopicName, TopicPartition

COMMANDS: Final = TopicName.parse("persistent://pulsar/system/__commands")
DISPATCH: Final = TopicName.parse("persistent://pulsar/system/__dispatch")

RECORDS_AN_ENTRY: Final = 1000
AT_ONCE: Final = 16
"""Ledgers whose files are asked for together, over a network."""
APART_BYTES: Final = 64 << 10
"""From this size on, data are not read for the sake of a few records beside them."""
MOST_WRITTEN: Final = 64
"""The number of small files of its own that a process remembers: it often reads them itself."""
_NAMES: Final = ("key", "ordering_key")
_DATA: Final = ("value", "publish_time")
RecordPredicate = Callable[[TopicPartition, str], bool]
_TIME: Final = MESSAGE_SCHEMA.field("publish_time").type


@dataclass(frozen=True, slots=True)
class Record:
    """One message of a system topic: about a topic partition and, mostly, one subscription."""

    topic_partition: TopicPartition
    subscription: str
    data: bytes

    @staticmethod
    def of(topic_partition: TopicPartition, subscription: str, item: Any) -> Record:
        """A record of this command or item of `Ready`."""
        return Record(topic_partition, subscription, wire_format.encode(item))

    def item(self) -> Any:
        """Decode the data. CorruptFileError, or FutureVersionError, if they can't be read."""
        return wire_format.decode(self.data)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record, where it lies, and when it was written, by the writer's clock."""

    record: Record
    ledger_id: int
    row: int
    publish_time_ms: int


class SystemTopic:
    """One of the two, of one root. Made when it is first written to."""

    def __init__(self, root: Root, name: TopicName) -> None:
        """Opens nothing."""
        self.root, self.name = root, name
        self._ledger: ManagedLedger | None = None

    def open(self) -> ManagedLedger:
        """The topic's log, made if it does not exist; not refreshed."""
        if self._ledger is None:
            self._ledger = self.root.known(self.name) or self.root.open_or_create(self.name, 1)
        return self._ledger

    def exists(self) -> bool:
        if self._ledger is None:
            self._ledger = self.root.known(self.name) or self.root.open_found(self.name)
        return self._ledger is not None

    def refresh(self, *, looks: bool = True) -> int:
        """Look for news; the id of the next ledger, 0 if there is no such topic.

        Not if it `looks` nowhere, as there can be none.

        A transaction that only lacks its decision is finished: nobody stops here for another.
        """
        if not self.exists():
            return 0
        ledger = self.open()
        if looks:
            ledger.settle()
        return ledger.state.next_ledger_id

    def ask(self) -> bool:
        """Look for the next commit, for the `refresh` that follows; whether there is one."""
        return self.exists() and self.open().ask()

    def prefetch_more(self) -> None:
        """The same for what comes behind it, with the files that are read then."""
        if self._ledger is not None:
            self._ledger.prefetch_more(self._unknown, again=False)

    @property
    def is_late(self) -> bool:
        """True if there is more than `ask` found."""
        return self._ledger is not None and self._ledger.is_late

    def forget(self) -> None:
        """No `refresh` has followed."""
        if self._ledger is not None:
            self._ledger.forget()

    def knows(self, stop_ledger: int) -> bool:
        """True if it has seen all up to before that ledger, where a look costs a request."""
        log = self.root.known(self.name)
        return log is not None and log.state.next_ledger_id >= stop_ledger

    def watched(self, next_ledger: int) -> list[Watched]:
        """The folder in which a ledger of at least that id appears."""
        if (log := self._ledger) is None:
            return []

        def has_activity() -> bool:
            return log.state.next_ledger_id > next_ledger or log.is_behind(log.state.number)

        return [Watched(log.log_folder, has_activity)]

    def append(
        self, records: Iterable[Record], *, application: tuple[str, int] | None = None
    ) -> Commit | AlreadyCommitted:
        """Write these and commit them; once for each application (id, version)."""
        return self.open().append(self.write(records), application=application)

    def write(
        self, records: Iterable[Record], quarantined: Iterable[Record] = ()
    ) -> list[NewLedger]:
        """Write them to a file that nobody sees before `ManagedLedger.append`; no records, no file.

        Records `quarantined` come last, as few look for them, and apart if they are large.
        """
        first, last = list(records), list(quarantined)
        held = first + last
        if not held:
            return []
        ledger = self.open()
        now_ms = ledger.store.clock.wall_ms()
        apart = first and sum(len(each.data) for each in last) >= APART_BYTES
        digest = ContentDigest()
        with LedgerFileWriter(ledger.store, ledger.folder) as file:
            for part in (first, last) if apart else (held,):
                rows = _table(part, now_ms)
                digest.add(rows)
                file.write(rows)
                if part is first:
                    file.end_row_group()
            seal = file.close()
        size_bytes = sum(len(each.data) for each in held)
        if size_bytes < APART_BYTES:
            self._remember(file.path, _Written(held, now_ms))
        firsts = range(0, len(held), RECORDS_AN_ENTRY)
        sizes = (min(RECORDS_AN_ENTRY, len(held) - first) for first in firsts)
        return [
            NewLedger(
                partition=0,
                file=file.path,
                first_row=0,
                batch_sizes=BatchSizes.of(sizes),
                size_bytes=size_bytes,
                min_publish_time_ms=now_ms,
                max_publish_time_ms=now_ms,
                seal=seal,
                digest=digest.value,
            )
        ]

    def read(
        self,
        first_ledger: int,
        stop_ledger: int | None = None,
        *,
        keep: RecordPredicate | None = None,
    ) -> Iterator[StoredRecord]:
        """The records of the ledgers from one id up to before another, as far as they exist.

        `keep(topic_partition, subscription)` chooses among them before their data are read.
        """
        ledger = self.open()
        last = ledger.state.next_ledger_id if stop_ledger is None else stop_ledger
        with _reader(ledger) as reader:
            there = list(ledger.ledgers(0).between(first_ledger, last - 1))
            for number, each in enumerate(there):
                if number % AT_ONCE == 0:
                    reader.fetch(self._unknown(there[number : number + AT_ONCE]))
                if (written := self._written(each)) is not None:
                    yield from written.of(each, keep)
                else:
                    yield from _records(reader, each, keep)

    def fetch(self, first_ledger: int, stop_ledger: int) -> None:
        """Ask for the first files of these ledgers, for `read`: beside other requests."""
        ledger = self.open()
        with _reader(ledger) as reader:
            there = list(ledger.ledgers(0).between(first_ledger, stop_ledger - 1))
            reader.fetch(self._unknown(there[:AT_ONCE]))

    def first_ledger(self) -> int:
        """The id of the oldest ledger that still exists; the next one's if none does."""
        ledger = self.open()
        ledgers = ledger.ledgers(0)
        return int(ledgers[0].ledger_id) if len(ledgers) else ledger.state.next_ledger_id

    # -- inside --------------------------------------------------------------------------------

    def _remember(self, file: str, written: _Written) -> None:
        _remembered[self._key(file)] = written
        for oldest in list(_remembered)[: max(0, len(_remembered) - MOST_WRITTEN)]:
            _remembered.pop(oldest, None)

    def _written(self, held: LedgerInfo) -> _Written | None:
        """The records that this process wrote there; None if it did not, or long ago."""
        return _remembered.get(self._key(held.file))

    def _key(self, file: str) -> tuple[int, ObjectStore, str]:
        ledger = self.open()
        return os.getpid(), ledger.store, join(ledger.folder, file)

    def _unknown(self, ledgers: Iterable[LedgerInfo]) -> list[LedgerInfo]:
        """The ledgers whose files have to be read."""
        return [each for each in ledgers if self._written(each) is None]


class _Written(NamedTuple):
    """The records of a file, and when they were written."""

    records: Sequence[Record]
    now_ms: int

    def of(self, ledger: LedgerInfo, keep: RecordPredicate | None) -> Iterator[StoredRecord]:
        for row, each in enumerate(self.records):
            if keep is None or keep(each.topic_partition, each.subscription):
                yield StoredRecord(each, ledger.ledger_id, row, self.now_ms)


_remembered: dict[tuple[int, ObjectStore, str], _Written] = {}
"""The last files that this process wrote: a file never changes."""


def _reader(ledger: ManagedLedger) -> closing[LedgerFileReader]:
    """A reader of files that a broker reads when it plans, and again when it steps."""
    return ledger.reader(holds_small=True)


def _table(records: Sequence[Record], now_ms: int) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([str(each.topic_partition) for each in records], pa.string()),
            "ordering_key": pa.array([each.subscription.encode() for each in records]),
            "value": pa.array([each.data for each in records], pa.binary()),
            "publish_time": pa.repeat(pa.scalar(now_ms * 1000, _TIME), len(records)),
        }
    )


def _records(
    reader: LedgerFileReader, ledger: LedgerInfo, keep: RecordPredicate | None
) -> Iterator[StoredRecord]:
    apart = keep is not None and ledger.size_bytes >= APART_BYTES
    table = reader.read_table(ledger, _NAMES if apart else (*_NAMES, *_DATA))
    kept = [
        (row, *place)
        for row, place in enumerate(_places(table, ledger))
        if keep is None or keep(*place)
    ]
    if not kept:
        return
    first = 0
    if apart:  # the stretch in which they lie, no more
        first, last = kept[0][0], kept[-1][0]
        table = reader.read_table(ledger, _DATA, first, last + 1 - first)
    values = table["value"]
    times = pc.cast(table["publish_time"], pa.int64()).to_pylist()
    for row, topic_partition, subscription in kept:
        record = Record(topic_partition, subscription, values[row - first].as_py())
        yield StoredRecord(record, ledger.ledger_id, row, times[row - first] // 1000)


def _places(table: pa.Table, ledger: LedgerInfo) -> list[tuple[TopicPartition, str]]:
    """The topic partition and name of each record. CorruptFileError if its keys are malformed."""
    names: Sequence[str] = table["key"].to_pylist()
    subscriptions: Sequence[bytes] = table["ordering_key"].to_pylist()
    try:
        topics = {name: TopicName.parse(name) for name in set(names)}
        partitions = {
            name: TopicPartition(each.partitioned_topic_name, each.partition_index)
            for name, each in topics.items()
        }
        return [
            (partitions[name], each.decode())
            for name, each in zip(names, subscriptions, strict=True)
        ]
    except (TypeError, AttributeError, ValueError) as error:
        raise CorruptFileError(
            f"Data file {ledger.file} of a system topic has right checksums, and keys that name no "
            f"topic partition or subscription ({error}): another program wrote it. Restore the "
            "file from a copy."
        ) from error
