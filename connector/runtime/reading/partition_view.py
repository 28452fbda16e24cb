"""One partition as a source wants to see it: its log, or with `readCompacted` the compacted part.

Invariants: up to the horizon only kept messages, from the compacted file, with the ids that they
always had, whether or not the ledgers that they came from still exist; behind it the partition as
it is. Without `readCompacted`, or of a topic that was never compacted, nothing differs. A
consumer's micro-batch is fixed when it is planned: a message that a later compaction removed is
read from where it was published. A ledger that was read to its end before it was trimmed is no
loss; a non-persistent topic has none. Follows Pulsar's `CompactedTopicImpl.asyncReadEntriesOrWait`,
and the `failOnDataLoss` of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.reading.chunk_reading import PartitionChunks
from pulsar_spark.connector.runtime.reading.input_partition import RowRange, lose, packed
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.log.compacted_ledgers import CompactedLedgers
from pulsar_spark.log.partition_state import HiddenMessages
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet
from pulsar_spark.model.topic_name import TopicPartition, is_persistent
from pulsar_spark.options.options import Options

Numbers = Mapping[str, Mapping[int, PositionSet]]
"""Column -> number -> the messages that have it; others have 0."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The number of messages that somebody has still to read, and when the first was published."""

    messages: int
    first_ms: int | None
    """The first unread publish time by its ledger; None if nothing follows."""

    @staticmethod
    def behind(cursor: Cursor, view: PartitionView) -> Lag:
        """All that the cursor does not have."""
        ledgers = view.ledgers
        messages = cursor.unread(ledgers)
        messages = messages.difference(view.hidden.of(messages.ledger_ids))
        return Lag(messages.count(ledgers), view.published_after(cursor.mark_delete_position))


class PartitionView:
    """A consumer acknowledges what it finds removed, so its `ledgers` are all that exist.

    A Reader's are those of which compaction has left something, and those behind the horizon.
    """

    def __init__(
        self, ledger: ManagedLedger, partition: int, options: Options, *, compacted: bool = False
    ) -> None:
        """`compacted`: of a compacted partition only the kept messages."""
        self.topic_partition = TopicPartition(ledger.topic, partition)
        self.ledger = ledger
        self.chunks = PartitionChunks(ledger, partition, options)
        self._reads_compacted = compacted
        self._is_consumers = options.has("subscriptionName")
        self._fail = bool(options["failOnDataLoss"])
        self._seen: tuple[LedgerList, CompactedLedgers, tuple[LedgerList, PositionSet]] | None
        self._seen = None

    @property
    def ledgers(self) -> LedgerList:
        """The ledgers that there are to read, by ascending id."""
        return self._see()[0]

    @property
    def removed(self) -> PositionSet:
        """The messages of `ledgers` that compaction has removed."""
        return self._see()[1]

    @property
    def uncounted(self) -> PositionSet:
        """Positions that are no messages of a Reader: removed ones, and chunks before the last."""
        known, compacted = self.chunks.known(), self._compacted
        chunks = NOTHING if known is None else known.uncounted
        if compacted is None:
            return chunks
        return self.removed.union(chunks.after(compacted.horizon))

    @property
    def hidden(self) -> HiddenMessages:
        """Messages that nobody reads: duplicates."""
        return self.ledger.state.partition(self.topic_partition.partition).hidden

    @property
    def lost_up_to(self) -> Position:
        """The position up to which nothing can be read any more."""
        if self._compacted is not None:
            return EARLIEST
        return self.ledger.state.partition(self.topic_partition.partition).trimmed_up_to

    @property
    def first_position(self) -> Position:
        """The mark-delete position of a new cursor at the earliest message."""
        ledgers = self.ledgers
        return Position(ledgers[0].ledger_id, -1) if len(ledgers) else self.trimmed

    @property
    def last_position(self) -> Position:
        """The last entry that exists; `trimmed` if none does."""
        ledgers = self.ledgers
        return ledgers[-1].last if len(ledgers) else self.trimmed

    def published_after(self, position: Position) -> int | None:
        """The first publish time of the ledger in which the next message is; None without one."""
        found = self.ledgers.first_at_or_after(position.ledger_id)
        if found is not None and found.last <= position:
            found = self.ledgers.first_after(position.ledger_id)
        return None if found is None else found.min_publish_time_ms

    @property
    def trimmed(self) -> Position:
        """The position up to which there is nothing to read but in `ledgers`."""
        compacted = self._compacted
        return self.lost_up_to if compacted is None else compacted.horizon

    def check_present(self, cursor: Cursor) -> Cursor:
        """The cursor, moved behind what was trimmed unread; DataLossError if that is to fail."""
        trimmed, done = self.lost_up_to, cursor.mark_delete_position
        if done >= trimmed:
            return cursor
        if is_persistent(self.topic_partition.topic):  # else nothing was promised
            lose(
                f"Messages after {done} up to {trimmed} of {self.topic_partition} were trimmed "
                "away before "
                "they were read: the query was stopped for longer than the topic keeps messages, "
                "or its checkpoint, or the message id to start from, is old",
                fail=self._fail,
                onward=f"from {self.first_position}",
                remedy=", or start with a new checkpoint; to keep messages longer, trim later",
            )
        return cursor.union(Cursor(trimmed))

    def row_ranges(self, messages: PositionSet, numbers: Numbers) -> Iterator[RowRange]:
        """The rows of a micro-batch, in order, without those that are not there to read."""
        messages = messages.difference(self.hidden.of(messages.ledger_ids))
        compacted = self._compacted
        if compacted is None:
            yield from self._log_ranges(messages.after(self.lost_up_to), numbers)
            return
        if not self._is_consumers:
            messages = compacted.remaining(messages)
        for ledger_id in messages.up_to(compacted.horizon).ledger_ids:
            part = messages.of_ledgers([ledger_id])
            kept = part.intersection(compacted.kept)
            if part == kept or self._is_lost(ledger_id):
                yield from _kept_ranges(kept, compacted, numbers)
            else:
                yield from self._log_ranges(part, numbers)
        yield from self._log_ranges(messages.after(compacted.horizon), numbers)

    def _log_ranges(self, messages: PositionSet, numbers: Numbers) -> Iterator[RowRange]:
        return numbered(self.chunks.row_ranges(messages), numbers)

    def _is_lost(self, ledger_id: int) -> bool:
        """True if messages of a ledger, removed since they were planned, can't be read any more."""
        if self.ledger.ledgers(self.topic_partition.partition).get(ledger_id) is not None:
            return False
        lose(
            f"Messages of ledger {ledger_id} of {self.topic_partition.topic}, partition "
            f"{self.topic_partition.partition}, that belong to a micro-batch which is repeated "
            "were removed "
            "by a compaction since, and what they were made of had been trimmed before",
            fail=self._fail,
            onward="without them: each has a newer message of its key",
            remedy="",
        )
        return True

    @property
    def _compacted(self) -> CompactedLedgers | None:
        if not self._reads_compacted:
            return None
        return self.ledger.state.partition(self.topic_partition.partition).compacted

    def _see(self) -> tuple[LedgerList, PositionSet]:
        """(`ledgers`, `removed`); those of a compacted partition once for each change of it."""
        ledgers, compacted = self.ledger.ledgers(self.topic_partition.partition), self._compacted
        if compacted is None:
            return ledgers, NOTHING
        seen = self._seen
        if seen is None or seen[0] is not ledgers or seen[1] is not compacted:
            if self._is_consumers:
                whole = compacted.with_log(ledgers)
                found = whole, compacted.removed_from(whole)
            else:
                found = compacted.view(ledgers), compacted.removed
            seen = self._seen = ledgers, compacted, found
        return seen[2]


def rows_left(
    messages: PositionSet,
    ledger: ManagedLedger,
    partition: int,
    numbers: Numbers = MappingProxyType({}),
) -> Iterator[RowRange]:
    """The rows of the messages that the log or the compacted file has still, for any reader."""
    ledgers, compacted = ledger.ledgers(partition), ledger.state.partition(partition).compacted
    there = messages.of_ledgers(each for each in messages.ledger_ids if ledgers.get(each))
    if compacted is not None:
        trimmed = messages.difference(there).intersection(compacted.kept)
        yield from _kept_ranges(trimmed, compacted, numbers)
    yield from numbered(PartitionChunks(ledger, partition).row_ranges(there), numbers)


def numbered(ranges: Iterable[RowRange], numbers: Numbers) -> Iterator[RowRange]:
    """Ranges of rows of the log, with these columns."""
    for rows in ranges:
        inside = slice(rows.first_row, rows.first_row + rows.rows)
        columns = _columns(numbers, rows.ledger, inside, rows.selected())
        yield replace(rows, numbers=tuple(columns))


def kept_rows(
    compacted: CompactedLedgers, ledger: LedgerInfo
) -> tuple[NDArray[np.int64], RowRange]:
    """(the kept messages of one compacted ledger, counted from 0, their rows)."""
    numbers = np.flatnonzero(compacted.kept.row_mask(ledger))
    there = replace(ledger, batch_sizes=BatchSizes(((1, len(numbers)),)))
    return numbers, RowRange(there, 0, len(numbers), compacted=True)


def _kept_ranges(
    messages: PositionSet, compacted: CompactedLedgers, numbers: Numbers
) -> Iterator[RowRange]:
    """The rows of kept messages, with entry id and batch index of each, and these columns."""
    for ledger_id in messages.ledger_ids:
        ledger = compacted.ledgers.of_id(ledger_id)
        kept, rows = kept_rows(compacted, ledger)
        requested = messages.row_mask(ledger)[kept]
        entries, indexes = ledger.batch_sizes.places(kept)
        ids = (
            ("entry_id", entries.astype(np.int32).tobytes()),
            ("batch_index", indexes.astype(np.int32).tobytes()),
        )
        columns = _columns(numbers, ledger, kept, requested)
        yield replace(rows, mask=packed(requested), numbers=(*ids, *columns))


def _columns(
    numbers: Numbers,
    ledger: LedgerInfo,
    messages: NDArray[np.int64] | slice,
    selected: NDArray[np.bool_] | None,
) -> Iterator[tuple[str, int | bytes]]:
    """Each column by its name: one number if all rows have the same, else an int32 a row.

    `messages` are counted from the ledger's first, and `selected` says which of them matter. Of
    several numbers a message has the highest.
    """
    for name, sets in numbers.items():
        values: NDArray[np.int32] | None = None
        for number, held in sorted(sets.items()):
            if number and _has_some_of(held, ledger.ledger_id):
                mask = held.row_mask(ledger)[messages]
                values = np.zeros(len(mask), np.int32) if values is None else values
                values[mask] = number
        if values is None:
            yield name, 0
            continue
        chosen = values if selected is None else values[selected]
        same = bool((chosen == chosen[0]).all())
        yield name, int(chosen[0]) if same else values.tobytes()


def _has_some_of(messages: PositionSet, ledger_id: int) -> bool:
    return bool(messages.whole_entries(ledger_id) or messages.partial_entries(ledger_id))
