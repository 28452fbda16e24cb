"""Where a cluster's schedule runs: topics whose messages have no payload, and no files but leases.

The logs are folded as they are anywhere, and records are encoded and decoded; only Parquet is left
out, which takes nearly all of the time elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import groupby
from operator import itemgetter
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from pulsar_spark.broker.protocol.commands import Report
from pulsar_spark.connector.runtime.broker import broker_sink
from pulsar_spark.connector.runtime.publishing.message_writer import WrittenTopic
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    StoredRecord,
    SystemTopic,
)
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.errors import TopicNotFoundError
from pulsar_spark.log.ledger_commit import Application, Commit
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.torture.place import SharedClock

Message = tuple[TopicPartition, int, int, int]
"""Where, ledger, entry, index."""


class Topic:
    """A topic, and what was committed to it."""

    def __init__(self, name: str, partitions: int) -> None:
        self.state = TopicState(name)
        self.commits: list[Commit] = []
        self.hashes: dict[int, pa.Table] = {}
        """Ledger -> its sticky key hashes."""
        self.commit(partitions=partitions)

    def commit(self, **given: Any) -> None:
        number = len(self.commits)
        commit = Commit(number, str(number), given.pop("now_ms", 0), **given)
        self.state.apply(commit)
        self.commits.append(commit)

    def publish(
        self, partition: int, sizes: Sequence[int], keys: Sequence[int], now_ms: int
    ) -> int:
        """Entries of these sizes, as one ledger; its id."""
        ledger_id = self.state.next_ledger_id
        ledger = LedgerInfo(
            ledger_id, partition, f"data/{ledger_id}.parquet", 0, BatchSizes.of(sizes), sum(sizes),
            now_ms, now_ms,
        )  # fmt: skip
        self.hashes[ledger_id] = pa.table({"sticky_key_hash": np.array(keys, np.int32)})
        self.commit(ledgers=(ledger,), now_ms=now_ms)
        return ledger_id

    def trim(self, partition: int, before: int) -> None:
        ledgers = self.state.ledgers(partition)
        gone = tuple(each.ledger_id for each in ledgers if each.ledger_id < before)
        if gone:
            self.commit(trimmed={partition: gone})


class TopicLog:
    """Stands for a `ManagedLedger`: one process's view of a topic."""

    is_undecided = False

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._seen = len(topic.commits)
        self.state = topic.state
        self.topic = self.folder = topic.state.topic

    def refresh(self) -> bool:
        before, self._seen = self._seen, len(self._topic.commits)
        return self._seen > before

    def catch_up(self) -> bool:
        """Refresh; no topic is deleted here."""
        self.refresh()
        return True

    def ask(self) -> None:
        """It is on no object store."""

    forget = ask

    def check_incarnation(self, incarnation: int) -> None:
        assert incarnation == 0, "no topic is deleted here"

    def ledgers(self, partition: int) -> LedgerList:
        return self.state.ledgers(partition)

    def commits(self, first: int, last: int) -> list[Commit]:
        return self._topic.commits[first : last + 1]

    def reader(self, *, holds_small: bool = False) -> Any:
        return closing(_Columns(self._topic.hashes))


class _Columns:
    """Stands for a `LedgerFileReader`."""

    def __init__(self, hashes: Mapping[int, pa.Table]) -> None:
        self._hashes = hashes

    def read_table(self, ledger: LedgerInfo, names: Sequence[str]) -> pa.Table:
        assert tuple(names) == ("sticky_key_hash",)
        return self._hashes[ledger.ledger_id]

    def fetch(self, _ledgers: Iterable[LedgerInfo]) -> None:
        """They are here."""

    def close(self) -> None:
        """Nothing is open."""


class Letters:
    """Stands for the `ManagedLedger` of a dead letter topic, as one process has it."""

    def __init__(self, republications: list[Message], seen: set[tuple[str, int]]) -> None:
        self._dead_letters, self._seen = republications, seen

    def append(
        self, written: list[Message], *, application: tuple[str, int], is_brokers: bool
    ) -> None:
        """Once, however often the batch is repeated."""
        assert is_brokers
        if application not in self._seen:
            self._seen.add(application)
            self._dead_letters += written


class Trims:
    """Stands for a `LedgerStore`."""

    def __init__(self, log: TopicLog, **_options: Any) -> None:
        self._log = log

    def trim(self, before: Mapping[int, int]) -> None:
        for partition, ledger_id in before.items():
            self._log._topic.trim(partition, ledger_id)


class Records:
    """Stands for a `SystemTopic`, and for its log: commits of records, in memory."""

    def __init__(self, clock: SharedClock) -> None:
        self.clock = clock
        self.stored: list[list[StoredRecord]] = []
        self.term, self.number = 0, 0
        self.applications: dict[str, int] = {}
        self.settings: dict[str, Any] = {}

    @property
    def state(self) -> Records:
        return self

    @property
    def next_ledger_id(self) -> int:
        return len(self.stored)

    @property
    def trimmed_up_to(self) -> Any:
        return EARLIEST

    def open(self) -> Records:
        return self

    def partition(self, _number: int) -> Records:
        return self

    def exists(self) -> bool:
        return True

    def refresh(self, *, looks: bool = True) -> int:
        assert looks, "it is on no object store"
        return len(self.stored)

    def fetch(self, _first: int, _stop: int) -> None:
        """They are here."""

    @property
    def is_late(self) -> bool:
        return True

    def knows(self, _stop_ledger: int) -> bool:
        return False

    def first_ledger(self) -> int:
        return 0

    def ledgers(self, _partition: int) -> list[LedgerInfo]:
        return []

    def read(
        self, first: int, stop: int, keep: Callable[[TopicPartition, str], bool] | None = None
    ) -> Iterator[StoredRecord]:
        for ledger in self.stored[first:stop]:
            for each in ledger:
                if keep is None or keep(each.record.topic_partition, each.record.subscription):
                    yield each

    def write(self, records: Iterable[Record], quarantined: Iterable[Record] = ()) -> list[Record]:
        return [*records, *quarantined]

    def append(
        self,
        records: Iterable[Record],
        *,
        application: tuple[str, int] | None = None,
        term: int | None = None,
    ) -> Commit:
        new = list(records)
        if application is not None:
            if self.applications.get(application[0], -1) >= application[1]:
                return Commit(self.number, "", 0)
            self.applications[application[0]] = application[1]
        self.term = self.term if term is None else term
        self.number += 1
        if new:
            ledger_id, now_ms = len(self.stored), self.clock.wall_ms()
            self.stored.append(
                [StoredRecord(each, ledger_id, row, now_ms) for row, each in enumerate(new)]
            )
        return Commit(self.number, "", 0, application=application and Application(*application))


class Place:
    """Stands for a `Root`."""

    service_url = "memory://simulation"

    def __init__(self, clock: SharedClock) -> None:
        self.clock = clock
        self.store = MemoryStore(self.service_url, clock)
        self.topics: dict[str, Topic] = {}
        self.commands, self.dispatch = Records(clock), Records(clock)
        self.republications: list[Message] = []
        self._lettered: dict[str, set[tuple[str, int]]] = {}
        """By dead letter topic, the batches that have published there."""

    def open_found(self, topic: TopicName) -> TopicLog | None:
        found = self.topics.get(topic.partitioned_topic_name)
        return None if found is None else TopicLog(found)

    open_log = open_found  # no topic is deleted here

    def open(self, topic: TopicName) -> Any:
        if topic.local_name.endswith("-DLQ"):
            return Letters(self.republications, self._lettered.setdefault(str(topic), set()))
        found = self.open_found(topic)
        if found is None:
            raise TopicNotFoundError(f"{topic} is not there.")
        return found

    def known(self, _topic: TopicName) -> None:
        """It is on no object store."""

    def matching(self, _pattern: str) -> list[TopicName]:
        return [TopicName.parse(topic) for topic in sorted(self.topics)]

    def create(self, topic: str, partitions: int) -> None:
        self.topics[topic] = Topic(topic, partitions)

    def system_topic(self, _root: Any, name: TopicName) -> Records:
        return {COMMANDS: self.commands, DISPATCH: self.dispatch}[name]

    def write_republications(
        self, _root: Any, topic_partition: TopicPartition, republications: Iterable[Any]
    ) -> list[Any]:
        """Nobody sees them before they are published."""
        return [
            WrittenTopic(each.topic, [*self.messages(topic_partition, each.messages)])  # type: ignore[arg-type]
            for each in republications
        ]

    def messages(self, topic_partition: TopicPartition, held: Any) -> Iterator[Message]:
        """What is left of them in the log."""
        ledgers = self.topics[topic_partition.topic].state.ledgers(topic_partition.partition)
        for ledger_id in held.ledger_ids:
            ledger = ledgers.get(ledger_id)
            if ledger is not None:
                yield from in_rows(topic_partition, ledger, np.flatnonzero(held.row_mask(ledger)))

    def acknowledge(self, subscription: str, messages: Iterable[Message]) -> None:
        """As a sink does: of trimmed ledgers nothing."""
        records = []
        for topic_partition, mine in groupby(sorted(messages), key=itemgetter(0)):
            ledgers = self.topics[topic_partition.topic].state.ledgers(topic_partition.partition)
            done = PositionSet.union_of(
                PositionSet.of_batch((ledger_id, entry), ledger.batch_sizes.size_of(entry), 1 << n)
                for _, ledger_id, entry, n in mine
                if (ledger := ledgers.get(ledger_id)) is not None
            )
            report = Report(subscription, epoch=None, acknowledged=Cursor().acknowledge(done))
            records.append(Record.of(topic_partition, subscription, report))
        self.commands.append(records)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Meanwhile this is what the product's code finds."""
        with ExitStack() as stack:
            for module in who_names(SystemTopic):
                stack.enter_context(mock.patch.object(module, "SystemTopic", self.system_topic))
            for module, name, stands_in in (
                (broker_sink, "write_republications", self.write_republications),
                (broker_sink, "LedgerStore", Trims),
                (stream_reader, "LONGEST_WAIT_S", 0.0),
            ):
                stack.enter_context(mock.patch.object(module, name, stands_in))
            yield


def who_names(real: type) -> list[ModuleType]:
    """The product's modules that have imported it: none may meet the real one here."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("pulsar_spark.") and vars(module).get(real.__name__) is real
    ]


def in_rows(topic_partition: TopicPartition, ledger: LedgerInfo, rows: Any) -> Iterator[Message]:
    """The messages in these rows of a ledger."""
    entries, indexes = ledger.batch_sizes.places(np.asarray(rows))
    for entry_id, index in zip(entries.tolist(), indexes.tolist(), strict=True):
        yield topic_partition, ledger.ledger_id, entry_id, index
