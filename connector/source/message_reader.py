"""The task's side of a source: rows of the data files become Arrow batches for Spark.

Invariants: a batch has exactly the schema that Spark asked for; only its columns are read; ids are
computed from the log's batch sizes; constants are made once and sliced; a file that was merged into
another is looked up in the log again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pulsar_spark.connector.ledger_files.ledger_file import BATCH_ROWS, LedgerFileReader
from pulsar_spark.connector.source.chunk_reading import put_together
from pulsar_spark.connector.source.input_partition import MessageInputPartition, RowRange, TopicRows
from pulsar_spark.connector.spark.message_columns import stored_columns
from pulsar_spark.connector.spark.worker_process import spare_the_garbage_collector
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import DataLossError, ObjectNotFoundError
from pulsar_spark.positions.ledger_info import LedgerInfo
from pulsar_spark.topic_name import is_persistent

MERGED_AWAY_RETRIES = 3

_log = logging.getLogger(__name__)


def read_messages(partition: MessageInputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The messages of one task, in order, as batches of that schema.

    CorruptFileError names a damaged file; DataLossError a ledger that was trimmed meanwhile.
    """
    columns = _Columns(schema)
    for topic in partition.topics:
        reader = LedgerFileReader(partition.root.store, topic.folder, topic.topic)
        try:
            for rows in topic.ranges:
                yield from _read_range(
                    partition.root, topic, rows, reader, columns, partition.fail_on_data_loss
                )
        finally:
            reader.close()
    spare_the_garbage_collector()


def _read_range(
    root: Root,
    topic: TopicRows,
    rows: RowRange,
    reader: LedgerFileReader,
    columns: _Columns,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    ledger: LedgerInfo | None = rows.ledger
    done = attempt = 0
    while ledger is not None and done < rows.rows:
        try:
            for batch in columns.read(reader, topic.topic, ledger, rows, done):
                done += batch.rows
                yield batch.messages
        except ObjectNotFoundError:  # noqa: PERF203 - once a ledger, not once a row
            attempt += 1
            if attempt > MERGED_AWAY_RETRIES:
                raise
            if rows.compacted:
                raise DataLossError(
                    f"Topic {topic.topic} was compacted again while it was being read, longer ago "
                    "than its files are kept. Start the query again: it reads what is left now."
                ) from None
            ledger = _found_again(root, topic, ledger, fail_on_data_loss)
            if rows.chunks and ledger is not None:
                found = [
                    _found_again(root, topic, part.ledger, fail_on_data_loss)
                    for part in rows.chunks
                ]
                if None in found:
                    return
                rows = replace(
                    rows,
                    chunks=tuple(
                        replace(part, ledger=each)
                        for part, each in zip(rows.chunks, found, strict=True)
                        if each is not None
                    ),
                )


def _found_again(
    root: Root, topic: TopicRows, ledger: LedgerInfo, fail_on_data_loss: bool
) -> LedgerInfo | None:
    """Where the ledger lies now; None if its loss is no error, else DataLossError."""
    managed = ManagedLedger.open(root.store, topic.folder, topic=topic.topic)
    found = managed.ledgers(ledger.partition).get(ledger.ledger_id)
    if found is None and is_persistent(topic.topic):
        lost = (
            f"Ledger {ledger.ledger_id} of {topic.topic}, partition {ledger.partition}, was "
            "trimmed while it was being read"
        )
        if fail_on_data_loss:
            raise DataLossError(
                f"{lost}. Keep messages longer, or set failOnDataLoss to false to go on."
            )
        _log.warning("%s; failOnDataLoss is false, so its messages are left out", lost)
    return found


class _Batch:
    """A record batch, and the number of file rows that it came from."""

    __slots__ = ("messages", "rows")

    def __init__(self, messages: pa.RecordBatch, rows: int) -> None:
        self.messages, self.rows = messages, rows


class _Columns:
    """The columns of one schema: how each is made for some rows of a ledger."""

    def __init__(self, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._fields = [(field.name, field.type) for field in self._schema]
        self._stored = stored_columns(schema)
        self._constants: dict[tuple[str, Any], pa.Array] = {}

    def read(
        self, reader: LedgerFileReader, topic: str, ledger: LedgerInfo, rows: RowRange, done: int
    ) -> Iterator[_Batch]:
        """Batches of the range, without its first `done` rows."""
        first, count = rows.first_row + done, rows.rows - done
        mask = rows.selected()
        ids = _Ids(ledger, first, count)
        made: dict[str, Callable[[int, int], pa.Array]] = {
            "entry_id": ids.entry_ids,
            "batch_index": ids.batch_indexes,
        }
        constants: dict[str, Any] = {
            "ledger_id": ledger.ledger_id,
            "partition": ledger.partition,
            "topic": topic,
            "redelivery_count": 0,
            "attempt": 0,
            "first_chunk_message_id": _first_chunk(rows),
        }
        for name, value in rows.numbers:
            if isinstance(value, int):
                constants[name] = value
            else:
                made[name] = _numbers(np.frombuffer(value, np.int32)[done:])
        at = 0
        for batch in self._stored_batches(reader, ledger, first, count):
            size = batch if isinstance(batch, int) else batch.num_rows
            stored = (
                {}
                if isinstance(batch, int)
                else dict(zip(self._stored, batch.columns, strict=True))
            )
            arrays = []
            for name, kind in self._fields:
                if name == "value" and rows.chunks:
                    array = put_together(reader, topic, rows.chunks)
                elif name in stored:
                    array = stored[name]
                elif name in made:
                    array = made[name](at, size).cast(kind)
                else:
                    array = self._constant(name, kind, constants[name], size)
                arrays.append(array)
            messages = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            if mask is not None:
                start = done + at
                messages = messages.filter(pa.array(mask[start : start + size]))
            at += size
            yield _Batch(messages, size)

    def _stored_batches(
        self, reader: LedgerFileReader, ledger: LedgerInfo, first: int, count: int
    ) -> Iterator[pa.RecordBatch | int]:
        if self._stored:
            yield from reader.read(ledger, self._stored, first, count)
        else:
            for at in range(0, count, BATCH_ROWS):
                yield min(BATCH_ROWS, count - at)

    def _constant(self, name: str, kind: pa.DataType, value: Any, size: int) -> pa.Array:
        """The value `size` times; made once for the longest batch, and sliced."""
        known = self._constants.get((name, value))
        if known is None or len(known) < size:
            known = pa.repeat(pa.scalar(value, kind), max(size, BATCH_ROWS))
            self._constants[name, value] = known
        return known.slice(0, size)


def _numbers(values: NDArray[np.int32]) -> Callable[[int, int], pa.Array]:
    return lambda at, size: pa.array(values[at : at + size])


def _first_chunk(rows: RowRange) -> str | None:
    """The id of a chunked message's first chunk; None for a message in one piece."""
    if not rows.chunks:
        return None
    first = rows.chunks[0]
    entry_id, _ = first.ledger.batch_sizes.locate(first.first_row)
    return f"{first.ledger.ledger_id}:{entry_id}:{first.ledger.partition}"


class _Ids:
    """Entry ids and batch indexes of consecutive messages of a ledger."""

    def __init__(self, ledger: LedgerInfo, first: int, count: int) -> None:
        self._first, self._count = first, count
        self._runs = _runs_within(ledger.batch_sizes.runs, first, count)
        self._entry_ids: NDArray[np.int64] | None = None
        self._batch_indexes: NDArray[np.int32] | None = None

    def entry_ids(self, at: int, size: int) -> pa.Array:
        if self._entry_ids is None:
            self._entry_ids = np.concatenate([run.entry_ids() for run in self._runs])
        return pa.array(self._entry_ids[at : at + size])

    def batch_indexes(self, at: int, size: int) -> pa.Array:
        if self._batch_indexes is None:
            self._batch_indexes = np.concatenate([run.batch_indexes() for run in self._runs])
        return pa.array(self._batch_indexes[at : at + size])


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows start to stop of consecutive entries of one size; the first entry has id `entry`."""

    entry: int
    size: int
    start: int
    stop: int

    def entry_ids(self) -> NDArray[np.int64]:
        first, last = self._entries()
        ids = np.arange(self.entry + first, self.entry + last, dtype=np.int64)
        return np.repeat(ids, self.size)[self._rows()]

    def batch_indexes(self) -> NDArray[np.int32]:
        first, last = self._entries()
        return np.tile(np.arange(self.size, dtype=np.int32), last - first)[self._rows()]

    def _entries(self) -> tuple[int, int]:
        return self.start // self.size, -(-self.stop // self.size)

    def _rows(self) -> slice:
        before = self.start // self.size * self.size
        return slice(self.start - before, self.stop - before)


def _runs_within(runs: Sequence[tuple[int, int]], first: int, count: int) -> list[_Run]:
    """The runs that hold `count` rows of a ledger from row `first` on."""
    found = []
    entry = row = 0
    for size, entries in runs:
        rows = size * entries
        start, stop = max(first - row, 0), min(first + count - row, rows)
        if start < stop:
            found.append(_Run(entry, size, start, stop))
        entry += entries
        row += rows
    return found
