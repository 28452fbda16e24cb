"""A publication, and the commit that makes it on a given state of the topic.

Invariants: a publication is fixed when its files are written, and ledger ids are given here, so
that a writer that lost a race makes the next commit without writing data again; of messages with
the same producer and sequence id at most one is ever visible, whoever else publishes meanwhile.

Follows Pulsar's `MessageDeduplication`, but for each message where Pulsar drops whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.errors import FencedError, FileReclaimedError
from pulsar_spark.log.chunked_messages import ChunkRun
from pulsar_spark.log.ledger_commit import Application, Commit
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.log.producer_registry import ProducerClaim, ProducerRegistry
from pulsar_spark.log.sequence_ranges import SequenceRange
from pulsar_spark.log.transaction_attempt import Transaction
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, FileSeal, LedgerInfo
from pulsar_spark.model.positions.position_set import PositionSet

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NewLedger:
    """A ledger without an id. Without `sequences` its sequence ids are not known yet.

    `embedded` has the bytes of a file that is so small that its commit is to contain it.
    """

    partition: int
    file: str
    first_row: int
    batch_sizes: BatchSizes
    size_bytes: int
    min_publish_time_ms: int
    max_publish_time_ms: int
    max_deliver_at_ms: int | None = None
    sequences: Mapping[str, SequenceRange] | None = None
    chunks: tuple[ChunkRun, ...] = ()
    seal: FileSeal | None = None
    digest: int | None = None
    embedded: bytes | None = None

    def numbered(self, ledger_id: int, commit: int | None = None) -> LedgerInfo:
        """The ledger in the commit of that number."""
        embedded_in = None if self.embedded is None else commit
        return LedgerInfo(*(ledger_id, *_IN_BOTH(self), embedded_in))


_IN_BOTH: Final = attrgetter(*(each.name for each in fields(LedgerInfo)[1:-1]))


SequenceReader = Callable[[LedgerInfo], Mapping[str, tuple[Rows, Rows]]]
"""Reads, by producer, the rows of a ledger that have a sequence id, and those ids."""


Check = Callable[[TopicState], None]
"""Raises if nothing may be published on that state."""


def embedded_files(ledgers: Iterable[NewLedger]) -> dict[str, bytes]:
    """The files of these that their commit is to contain, by name."""
    return {each.file: each.embedded for each in ledgers if each.embedded is not None}


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """Nothing was published, as it had been before: the state `number` has it."""

    number: int
    application: Application | None


@dataclass(slots=True)
class Publication:
    """One publication, to be committed once, on the latest state of the topic."""

    ledgers: Sequence[NewLedger]
    application: Application | None = None
    term: int | None = None
    deduplicate: bool | None = None
    read_sequences: SequenceReader | None = None
    producer: ProducerClaim | None = None
    leaves: bool = False
    """True if the producer leaves the topic with this publication."""
    is_brokers: bool = False
    """True if it is the broker's own: no producer excludes it."""
    transaction: Transaction | None = None
    check: Check | None = None
    _read: dict[tuple[str, int], Mapping[str, tuple[Rows, Rows]]] = field(default_factory=dict)

    def commit_on(self, state: TopicState, new: Commit) -> Commit | AlreadyCommitted:
        """The `new` commit, empty as yet, that follows `state`; or AlreadyCommitted.

        FencedError if a higher term has committed; FileReclaimedError if a file was given up;
        ProducerFencedError or ProducerBusyError if the producer may not publish.
        """
        if self.term is not None and self.term < state.term:
            raise FencedError(
                f"Term {self.term} of topic {state.topic} is over: term {state.term} has "
                "committed. Another owner has taken over; stop this one."
            )
        if self._was_published(state):
            return AlreadyCommitted(state.number, self.application)
        if self.check is not None:
            self.check(state)
        if self.ledgers:
            state.check_takes_messages()
        producers = self._producers(state, new.timestamp_ms)
        deduplicate = self.deduplicate
        if deduplicate is None:
            deduplicate = bool(state.settings.get("deduplication", False))
        records = deduplicate or state.records_sequences
        duplicates = self._duplicates(state) if deduplicate else {}
        kept = [
            index
            for index, ledger in enumerate(self.ledgers)
            if len(duplicates.get(index, ())) < ledger.batch_sizes.messages
        ]
        numbered = dict(enumerate(kept, state.next_ledger_id))
        ledgers = tuple(self.ledgers[n].numbered(i, new.number) for i, n in numbered.items())
        higher_term = self.term is not None and self.term > state.term
        if not (ledgers or self.application or higher_term or producers):
            return AlreadyCommitted(state.number, None)
        hidden: dict[int, list[PositionSet]] = {}
        for ledger, index in zip(ledgers, kept, strict=True):
            if index in duplicates:
                repeated = PositionSet.of_messages(ledger, duplicates[index])
                hidden.setdefault(ledger.partition, []).append(repeated)
        return replace(
            new,
            term=self.term,
            application=self.application,
            ledgers=ledgers,
            hidden={
                partition: Cursor(individually_deleted=PositionSet.union_of(sets)).to_json_value()
                for partition, sets in hidden.items()
            },
            sequence_ids=self._new_highest(state) if records else {},
            sequence_ranges={
                i: ranges
                for i, n in numbered.items()
                if records and (ranges := self._ranges(n, duplicates.get(n)))
            },
            chunks={i: runs for i, n in numbered.items() if (runs := self.ledgers[n].chunks)},
            producers=producers,
            embedded=embedded_files(self.ledgers[index] for index in kept),
            transaction=self.transaction,
        )

    def _was_published(self, state: TopicState) -> bool:
        application = self.application
        if application and state.was_published(application.id, application.version):
            return True
        for ledger in self.ledgers:
            if ledger.file in state.files:
                return True
            grave = state.tombstones.get(ledger.file)
            if grave and not grave.reclaimed:
                return True
            if grave:
                raise FileReclaimedError(
                    f"File {ledger.file} of topic {state.topic} was given up as an orphan before "
                    "it was committed. Write the messages again, into a new file."
                )
        return False

    def _producers(self, state: TopicState, now_ms: int) -> dict[str, Any] | None:
        """The registry of the topic's producers behind this commit; None if it stays as it is."""
        if self.is_brokers or (state.producers is None and self.producer is None):
            return None
        known = ProducerRegistry.from_json_value(state.producers)
        registry = known.check(self.producer, now_ms)
        if self.leaves and self.producer is not None:
            registry = registry.leave(self.producer)
        return None if registry == known else registry.to_json_value()

    def _duplicates(self, state: TopicState) -> dict[int, Rows]:
        """Index in `ledgers` -> the ascending rows to hide."""
        groups: dict[tuple[int, str], list[int]] = {}
        for index, ledger in enumerate(self.ledgers):
            for producer in self._ranges(index):
                groups.setdefault((ledger.partition, producer), []).append(index)
        found: dict[int, list[Rows]] = {}
        for (partition, producer), indexes in groups.items():
            known = state.highest_sequence_id(partition, producer)
            if self._may_repeat(producer, indexes, known):
                for index, rows in self._repeated(state, partition, producer, indexes):
                    if len(rows):
                        found.setdefault(index, []).append(rows)
        return {index: np.sort(np.concatenate(rows)) for index, rows in found.items()}

    def _may_repeat(self, producer: str, indexes: list[int], known: int | None) -> bool:
        """True if the ranges leave it open that a sequence id was seen before."""
        found = (self._ranges(index)[producer] for index in indexes)
        ranges = sorted(found, key=attrgetter("lowest"))
        if known is not None and ranges[0].lowest <= known:
            return True
        overlap = any(a.highest >= b.lowest for a, b in pairwise(ranges))
        return overlap or not all(each.distinct for each in ranges)

    def _repeated(
        self, state: TopicState, partition: int, producer: str, indexes: list[int]
    ) -> Iterable[tuple[int, Rows]]:
        """Ledger -> rows with a sequence id that was published, or is in an earlier row."""
        read = [self._sequences(self.ledgers[index].numbered(0))[producer] for index in indexes]
        ids = np.concatenate([sequence_ids for _, sequence_ids in read])
        repeated = np.ones(len(ids), bool)
        repeated[np.unique(ids, return_index=True)[1]] = False
        known = state.highest_sequence_id(partition, producer)
        if known is not None and (late := ids <= known).any():
            ledgers = state.ledgers(partition)
            repeated[late] |= state.partition(partition).sequences.published(
                producer, ids[late], lambda ledger_id: self._sequences(ledgers.of_id(ledger_id))
            )
        first = 0
        for index, (rows, _) in zip(indexes, read, strict=True):
            yield index, rows[repeated[first : first + len(rows)]]
            first += len(rows)

    def _ranges(self, index: int, hidden: Rows | None = None) -> Mapping[str, SequenceRange]:
        """The sequence ids of a ledger, by producer; hidden rows came first elsewhere."""
        ledger = self.ledgers[index]
        if hidden is None and ledger.sequences is not None:
            return ledger.sequences
        left = {
            producer: ids if hidden is None else ids[~np.isin(rows, hidden)]
            for producer, (rows, ids) in self._sequences(ledger.numbered(0)).items()
        }
        return {producer: SequenceRange.of(ids) for producer, ids in left.items() if len(ids)}

    def _sequences(self, ledger: LedgerInfo) -> Mapping[str, tuple[Rows, Rows]]:
        """The ids in a ledger, by producer; read once, since a ledger does not change."""
        place = (ledger.file, ledger.first_row)
        if place not in self._read:
            if self.read_sequences is None:
                raise ValueError("duplicates can't be told without a reader of sequence ids")
            self._read[place] = self.read_sequences(ledger)
        return self._read[place]

    def _new_highest(self, state: TopicState) -> dict[int, dict[str, int]]:
        highest: dict[int, dict[str, int]] = {}
        for index, ledger in enumerate(self.ledgers):
            for producer, each in self._ranges(index).items():
                known = state.highest_sequence_id(ledger.partition, producer)
                if known is None or each.highest > known:
                    new = highest.setdefault(ledger.partition, {})
                    new[producer] = max(each.highest, new.get(producer, each.highest))
        return highest
