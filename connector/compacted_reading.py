"""What a Reader sees of a partition: all of it, or with `readCompacted` what compaction has left.

Invariants: up to the horizon only kept messages, from the compacted file, with the ids that they
always had, whether or not the ledgers that they came from are still there; behind it the partition
as it is. Without `readCompacted`, or of a topic that was never compacted, nothing differs.
Follows Pulsar's `CompactedTopicImpl.asyncReadEntriesOrWait`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.compacted_ledgers import CompactedLedgers
from pulsar_spark.connector.chunk_reading import TopicChunks
from pulsar_spark.connector.data_loss import check_present
from pulsar_spark.connector.managed_ledger import ManagedLedger
from pulsar_spark.connector.micro_batch import RowRange
from pulsar_spark.connector.start_positions import StartPosition
from pulsar_spark.cursor import Cursor
from pulsar_spark.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.options import Options
from pulsar_spark.position import Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.stream_offset import TopicPartition


class ReadView:
    """The partitions of one source, as its options want to see them."""

    def __init__(self, options: Options) -> None:
        self._read_compacted = bool(options["readCompacted"])
        self._fail = bool(options["failOnDataLoss"])
        self._chunks = TopicChunks(options)
        self._known: dict[TopicPartition, tuple[int, LedgerList]] = {}

    def ledgers(self, ledger: ManagedLedger, partition: int) -> LedgerList:
        """The ledgers that there are to read, by ascending id."""
        compacted = self._compacted(ledger, partition)
        ledgers = ledger.ledgers(partition)
        if compacted is None:
            return ledgers
        key, number = TopicPartition(ledger.topic, partition), ledger.state.number
        known = self._known.get(key)
        if known is None or known[0] != number:
            known = self._known[key] = (number, compacted.view(ledgers))
        return known[1]

    def trimmed(self, ledger: ManagedLedger, partition: int) -> Position:
        """Up to where reading finds nothing but what `ledgers` has."""
        compacted = self._compacted(ledger, partition)
        return compacted.horizon if compacted else ledger.state.trimmed_up_to(partition)

    def cursor(self, where: StartPosition, ledger: ManagedLedger, partition: int) -> Cursor:
        """Everything before that position."""
        ledgers, trimmed = self.ledgers(ledger, partition), self.trimmed(ledger, partition)
        return where.cursor(ledger, partition, ledgers, trimmed)

    def check_present(
        self, ledger: ManagedLedger, partition: TopicPartition, cursor: Cursor
    ) -> Cursor:
        """As `data_loss.check_present`; what is compacted, or to be compacted, is never lost."""
        if self._compacted(ledger, partition.partition) is not None:
            return cursor
        return check_present(ledger, partition, cursor, fail=self._fail)

    def uncounted(self, ledger: ManagedLedger, partition: int) -> PositionSet | None:
        """What is no message to be delivered, for admission."""
        chunks = self._chunks.uncounted(ledger, partition)
        compacted = self._compacted(ledger, partition)
        if compacted is None:
            return chunks
        if chunks is None:
            return compacted.removed
        return compacted.removed.union(chunks.after(compacted.horizon))

    def row_ranges(
        self, batch: PositionSet, ledger: ManagedLedger, partition: int
    ) -> Iterator[RowRange]:
        """The rows of those of the messages that there are to read, in order."""
        hidden = ledger.state.hidden(partition)
        compacted = self._compacted(ledger, partition)
        if compacted is not None:
            remaining = compacted.remaining(batch)
            yield from _kept_ranges(remaining.up_to(compacted.horizon), compacted)
            batch = remaining.after(compacted.horizon)
        else:
            batch = batch.after(ledger.state.trimmed_up_to(partition))
        batch = batch if hidden is None else batch.difference(hidden)
        if batch:
            yield from self._chunks.row_ranges(batch, ledger, partition)

    def _compacted(self, ledger: ManagedLedger, partition: int) -> CompactedLedgers | None:
        return ledger.state.compacted(partition) if self._read_compacted else None


def kept_rows(
    compacted: CompactedLedgers, ledger: LedgerInfo
) -> tuple[NDArray[np.int64], RowRange]:
    """Which messages of one compacted ledger are kept, counted from 0, and where their rows lie."""
    numbers = np.flatnonzero(compacted.kept.row_mask(ledger))
    there = replace(ledger, batch_sizes=BatchSizes(((1, len(numbers)),)))
    return numbers, RowRange(there, 0, len(numbers), compacted=True)


def _kept_ranges(messages: PositionSet, compacted: CompactedLedgers) -> Iterator[RowRange]:
    """The rows of kept messages, with entry id and batch index of each."""
    for ledger_id in messages.ledger_ids:
        ledger = compacted.ledgers.get(ledger_id)
        assert ledger is not None
        numbers, rows = kept_rows(compacted, ledger)
        wanted = messages.row_mask(ledger)[numbers]
        sizes = ledger.batch_sizes.array()
        entries = ledger.batch_sizes.entries_of(numbers)
        indexes = numbers - (np.cumsum(sizes) - sizes)[entries]
        ids = (
            ("entry_id", entries.astype(np.int32).tobytes()),
            ("batch_index", indexes.astype(np.int32).tobytes()),
        )
        mask = None if wanted.all() else np.packbits(wanted).tobytes()
        yield replace(rows, mask=mask, numbers=ids)
