"""A source's chunked messages: which there are, and the rows of which each consists.

Invariants: their rows in a micro-batch follow from its positions and the log; no chunk is held
between two micro-batches, since the message's last chunk names the others; a task holds the message
that it hands over, one chunk of it and one row group, and nothing else.
Follows Pulsar's `ConsumerImpl.processMessageChunk`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from pulsar_spark.connector.runtime.reading.input_partition import RowRange, lose, row_ranges
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.content_digest import payload
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.log.chunked_messages import (
    CHUNKS_KEPT_MS,
    ChunkedMessage,
    ChunkedMessages,
    ChunkLimits,
)
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.options.options import Options

_log = logging.getLogger(__name__)


class PartitionChunks:
    """The chunked messages of one partition, as one source sees them, kept up with the log."""

    def __init__(
        self, ledger: ManagedLedger, partition: int, options: Options | None = None
    ) -> None:
        """Without options: all complete messages; those that were trimmed since are left out."""
        self._ledger, self._partition = ledger, partition
        self._limits, self._fail = ChunkLimits(expire_ms=0), False
        if options is not None:
            self._limits = ChunkLimits(
                options["maxPendingChunkedMessage"],
                options["autoAckOldestChunkedMessageOnQueueFull"],
                options["expireTimeOfIncompleteChunkedMessage"],
            )
            self._fail = bool(options["failOnDataLoss"])
        self._known: ChunkedMessages | None = None
        self._abandoned: tuple[tuple[int, int], PositionSet] = ((-1, -1), PositionSet())

    def known(self) -> ChunkedMessages | None:
        """The chunked messages as of the ledger's state; None if there never were any."""
        ledgers = self._ledger.ledgers(self._partition)  # first: chunks come before their ledger
        reported = list(self._ledger.state.partition(self._partition).chunks.items())
        if not reported:
            return self._known
        known = self._known = self._known or ChunkedMessages(self._limits)
        given_up = known.given_up
        if reported[-1][0] > known.last_ledger_id:
            for ledger_id, runs in reported:
                if ledger_id > known.last_ledger_id and (ledger := ledgers.get(ledger_id)):
                    known.add(ledger_id, runs, ledger.min_publish_time_ms)
        if known.given_up > given_up:
            _log.warning(
                "%s chunked messages of %s, partition %s, were never completed, and are left out",
                known.given_up - given_up,
                self._ledger.topic,
                self._partition,
            )
        return known

    def abandoned(self, now_ms: int) -> PositionSet:
        """Chunks of messages that were given up, or had no new chunk for an hour."""
        if (known := self.known()) is None:
            return PositionSet()
        when = (known.last_ledger_id, now_ms // 60_000)
        if self._abandoned[0] != when:
            self._abandoned = (when, known.abandoned(now_ms - CHUNKS_KEPT_MS))
        return self._abandoned[1]

    def row_ranges(self, messages: PositionSet) -> Iterator[RowRange]:
        """The rows of these messages, in order; a chunked one is a range with its chunks.

        DataLossError if chunks of one were trimmed; without failOnDataLoss it is left out.
        """
        ledgers, known = self._ledger.ledgers(self._partition), self.known()
        if known is None:
            yield from row_ranges(messages, ledgers)
            return
        plain = messages.difference(known.chunks)
        after = EARLIEST
        for message in known.messages_in(messages):
            yield from row_ranges(plain.after(after).up_to(message.position), ledgers)
            if (whole := self._with_chunks(message, ledgers)) is not None:
                yield whole
            after = message.position
        yield from row_ranges(plain.after(after), ledgers)

    def _with_chunks(self, message: ChunkedMessage, ledgers: LedgerList) -> RowRange | None:
        ranges = []
        for part in message.parts:
            if (info := ledgers.get(part.ledger_id)) is None:
                lose(
                    f"Chunks of the message at {message.position} of {self._ledger.topic} were "
                    "trimmed away before its last one was read",
                    fail=self._fail,
                )
                return None
            first = info.batch_sizes.first_message(part.entry_id)
            ranges.append(RowRange(info, first, part.count))
        last = ranges[-1]
        return replace(last, first_row=last.first_row + last.rows - 1, rows=1, chunks=tuple(ranges))


def put_together(reader: LedgerFileReader, chunks: tuple[RowRange, ...]) -> pa.Array:
    """The value of a chunked message, as a column of one row."""
    total = None
    at = 0
    buffer = pa.allocate_buffer(0)
    view = memoryview(buffer)
    for part in chunks:
        columns = ("value", "total_chunk_msg_size")
        for batch in reader.read(part.ledger, columns, part.first_row, part.rows):
            if total is None:
                total = batch.column(1)[0].as_py() or 0
                buffer = pa.allocate_buffer(total)
                view = memoryview(buffer).cast("B")
            data = payload(batch.column(0))
            if at + len(data) > total:
                raise _damaged(reader.topic, chunks, f"more than {total}")
            view[at : at + len(data)] = data
            at += len(data)
    if at != total:
        raise _damaged(reader.topic, chunks, f"{at}")
    offsets = pa.array([0, at], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, buffer])


def _damaged(topic: str, chunks: tuple[RowRange, ...], found: str) -> CorruptFileError:
    files = ", ".join(dict.fromkeys(part.ledger.file for part in chunks))
    return CorruptFileError(
        f"The chunks of a message of topic {topic} have {found} bytes together, which is not its "
        f"size. They lie in {files}: restore those files from a copy."
    )
