"""What a source sees of a partition: all of it, or with `readCompacted` the compacted part.

Invariants: up to the horizon only kept messages, from the compacted file, with the ids that they
always had, whether or not the ledgers that they came from still exist; behind it the partition as
it is. Without `readCompacted`, or of a topic that was never compacted, nothing differs. A
consumer's micro-batch is fixed when it is planned: a message that a later compaction removed is
read from where it was published. Follows Pulsar's `CompactedTopicImpl.asyncReadEntriesOrWait`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.connector.source.chunk_reading import TopicChunks
from pulsar_spark.connector.source.data_loss import check_present
from pulsar_spark.connector.source.micro_batch import RowRange
from pulsar_spark.connector.source.start_positions import StartPosition
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.errors import DataLossError
from pulsar_spark.options.options import Options
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.positions.position import EARLIEST, Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.topic_log.compacted_ledgers import CompactedLedgers
from pulsar_spark.topic_name import TopicPartition

_log = logging.getLogger(__name__)


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
            known = self._known[key] = (number, self._view(compacted, ledgers))
        return known[1]

    def trimmed(self, ledger: ManagedLedger, partition: int) -> Position:
        """The position up to which there is nothing to read but in `ledgers`."""
        compacted = self._compacted(ledger, partition)
        return compacted.horizon if compacted else ledger.state.trimmed_up_to(partition)

    def cursor(self, where: StartPosition, ledger: ManagedLedger, partition: int) -> Cursor:
        """A cursor that holds everything before that position."""
        ledgers, trimmed = self.ledgers(ledger, partition), self.trimmed(ledger, partition)
        return where.cursor(ledger, partition, ledgers, trimmed)

    def check_present(
        self, ledger: ManagedLedger, partition: TopicPartition, cursor: Cursor
    ) -> Cursor:
        """As `data_loss.check_present`; a topic that was ever compacted loses nothing."""
        if self._compacted(ledger, partition.partition) is not None:
            return cursor
        return check_present(ledger, partition, cursor, fail=self._fail)

    def uncounted(self, ledger: ManagedLedger, partition: int) -> PositionSet | None:
        """Positions that are no messages to be delivered, for admission."""
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
        """The rows of these messages, in order, without those that are not there to read."""
        compacted = self._compacted(ledger, partition)
        if compacted is not None:
            remaining = compacted.remaining(batch)
            yield from _kept_ranges(remaining.up_to(compacted.horizon), compacted)
            batch = remaining.after(compacted.horizon)
        else:
            batch = batch.after(ledger.state.trimmed_up_to(partition))
        batch = batch.difference(ledger.state.hidden(partition).of(batch.ledger_ids))
        if batch:
            yield from self._chunks.row_ranges(batch, ledger, partition)

    def _compacted(self, ledger: ManagedLedger, partition: int) -> CompactedLedgers | None:
        return ledger.state.compacted(partition) if self._read_compacted else None

    def _view(self, compacted: CompactedLedgers, ledgers: LedgerList) -> LedgerList:
        return compacted.view(ledgers)


class ConsumerView(ReadView):
    """The same for a consumer, which acknowledges what it finds removed.

    So its `ledgers` are all that exist, those included of which compaction has left nothing.
    """

    retry_topic: str | None = None
    """The subscription's retry letter topic, which is read whole, as by a Shared consumer."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._removed: dict[TopicPartition, tuple[int, PositionSet]] = {}

    def removed(self, ledger: ManagedLedger, partition: int) -> PositionSet:
        """The messages of `ledgers` that compaction has removed."""
        compacted = self._compacted(ledger, partition)
        if compacted is None:
            return PositionSet()
        key, number = TopicPartition(ledger.topic, partition), ledger.state.number
        known = self._removed.get(key)
        if known is None or known[0] != number:
            removed = compacted.removed_from(self.ledgers(ledger, partition))
            known = self._removed[key] = (number, removed)
        return known[1]

    def abandoned(self, ledger: ManagedLedger, partition: int, now_ms: int) -> PositionSet:
        """Chunks of messages that will never be complete."""
        return self._chunks.abandoned(ledger, partition, now_ms)

    def lost_up_to(self, ledger: ManagedLedger, partition: int) -> Position:
        """The position up to which nothing can be read any more."""
        is_kept = self._compacted(ledger, partition) is not None
        return EARLIEST if is_kept else ledger.state.trimmed_up_to(partition)

    def numbered_ranges(
        self,
        batch: PositionSet,
        ledger: ManagedLedger,
        partition: int,
        numbers: Mapping[str, Mapping[int, PositionSet]],
    ) -> Iterator[RowRange]:
        """The rows of a micro-batch, in order. Each column is given as number -> its messages."""
        batch = batch.difference(ledger.state.hidden(partition).of(batch.ledger_ids))
        compacted = self._compacted(ledger, partition)
        if compacted is None:
            batch = batch.after(ledger.state.trimmed_up_to(partition))
            yield from self._log_ranges(batch, ledger, partition, numbers)
            return
        for ledger_id in batch.up_to(compacted.horizon).ledger_ids:
            part = _of_ledgers(batch, {ledger_id})
            kept = part.intersection(compacted.kept)
            if part == kept or self._is_lost(part.difference(kept), ledger, partition):
                yield from _kept_ranges(kept, compacted, numbers)
            else:
                yield from self._log_ranges(part, ledger, partition, numbers)
        rest = batch.after(compacted.horizon)
        yield from self._log_ranges(rest, ledger, partition, numbers)

    def _log_ranges(
        self,
        batch: PositionSet,
        ledger: ManagedLedger,
        partition: int,
        numbers: Mapping[str, Mapping[int, PositionSet]],
    ) -> Iterator[RowRange]:
        for rows in self._chunks.row_ranges(batch, ledger, partition):
            inside = slice(rows.first_row, rows.first_row + rows.rows)
            selected = rows.selected()
            columns = tuple(
                (name, _numbers(sets, rows.ledger, inside, selected))
                for name, sets in numbers.items()
            )
            yield replace(rows, numbers=columns)

    def _is_lost(self, messages: PositionSet, ledger: ManagedLedger, partition: int) -> bool:
        """Whether messages of a ledger, removed since they were planned, can't be read any more."""
        (ledger_id,) = messages.ledger_ids
        if ledger.ledgers(partition).get(ledger_id) is not None:
            return False
        lost = (
            f"Messages of ledger {ledger_id} of {ledger.topic}, partition {partition}, that belong "
            "to a micro-batch which is repeated were removed by a compaction since, and what they "
            "were made of had been trimmed before"
        )
        if self._fail:
            raise DataLossError(
                f"{lost}. Each has a newer message of its key: set failOnDataLoss to false to "
                "go on without them."
            )
        _log.warning("%s; failOnDataLoss is false, so they are left out", lost)
        return True

    def _compacted(self, ledger: ManagedLedger, partition: int) -> CompactedLedgers | None:
        if ledger.topic == self.retry_topic:
            return None
        return super()._compacted(ledger, partition)

    def _view(self, compacted: CompactedLedgers, ledgers: LedgerList) -> LedgerList:
        return compacted.with_log(ledgers)


def rows_left(messages: PositionSet, ledger: ManagedLedger, partition: int) -> Iterator[RowRange]:
    """The rows of messages, for any reader: from the log, or from the compacted file.

    Messages that neither has are left out.
    """
    ledgers, compacted = ledger.ledgers(partition), ledger.state.compacted(partition)
    there = frozenset(each.ledger_id for each in ledgers)
    if compacted is not None:
        trimmed = messages.intersection(compacted.kept)
        yield from _kept_ranges(_of_ledgers(trimmed, set(trimmed.ledger_ids) - there), compacted)
    yield from TopicChunks().row_ranges(_of_ledgers(messages, there), ledger, partition)


def _of_ledgers(messages: PositionSet, ledger_ids: Collection[int]) -> PositionSet:
    chosen = [each for each in messages.ledger_ids if each in ledger_ids]
    return PositionSet(
        {each: messages.whole_entries(each) for each in chosen},
        {each: messages.partial_entries(each) for each in chosen},
    )


def kept_rows(
    compacted: CompactedLedgers, ledger: LedgerInfo
) -> tuple[NDArray[np.int64], RowRange]:
    """(the kept messages of one compacted ledger, counted from 0, their rows)."""
    numbers = np.flatnonzero(compacted.kept.row_mask(ledger))
    there = replace(ledger, batch_sizes=BatchSizes(((1, len(numbers)),)))
    return numbers, RowRange(there, 0, len(numbers), compacted=True)


def _kept_ranges(
    messages: PositionSet,
    compacted: CompactedLedgers,
    columns: Mapping[str, Mapping[int, PositionSet]] | None = None,
) -> Iterator[RowRange]:
    """The rows of kept messages, with entry id and batch index of each, and these columns."""
    for ledger_id in messages.ledger_ids:
        ledger = compacted.ledgers.get(ledger_id)
        assert ledger is not None
        numbers, rows = kept_rows(compacted, ledger)
        wanted = messages.row_mask(ledger)[numbers]
        others = tuple(
            (name, _numbers(sets, ledger, numbers, wanted))
            for name, sets in (columns or {}).items()
        )
        sizes = ledger.batch_sizes.array()
        entries = ledger.batch_sizes.entries_of(numbers)
        indexes = numbers - (np.cumsum(sizes) - sizes)[entries]
        ids = (
            ("entry_id", entries.astype(np.int32).tobytes()),
            ("batch_index", indexes.astype(np.int32).tobytes()),
        )
        mask = None if wanted.all() else np.packbits(wanted).tobytes()
        yield replace(rows, mask=mask, numbers=(*ids, *others))


def _numbers(
    sets: Mapping[int, PositionSet],
    ledger: LedgerInfo,
    messages: NDArray[np.int64] | slice,
    selected: NDArray[np.bool_] | None,
) -> int | bytes:
    """Each message's number (the highest whose set has it, else 0); one, if all have the same.

    `messages` are counted from the ledger's first, and `selected` says which of them matter.
    """
    values: NDArray[np.int32] | None = None
    for number, held in sorted(sets.items()):
        if ledger.ledger_id in held.ledger_ids:
            mask = held.row_mask(ledger)[messages]
            if values is None:
                values = np.zeros(len(mask), np.int32)
            values[mask] = number
    if values is None:
        return 0
    chosen = values if selected is None else values[selected]
    if (chosen == chosen[0]).all():
        return int(chosen[0])
    return bytes(values.tobytes())
