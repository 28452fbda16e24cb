"""The task's side of a source: rows of the data files become Arrow batches.

Invariants: a batch has exactly the schema that was asked for; only its columns are read; ids are
computed from the log's batch sizes; constants are made once and sliced; a file that was merged into
another is looked up in the log again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.reading.chunk_reading import put_together
from pulsar_spark.connector.runtime.reading.input_partition import (
    MessageInputPartition,
    RowRange,
    TopicRows,
    lose,
)
from pulsar_spark.connector.runtime.reading.partition_view import rows_left
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.message_columns import stored_columns
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import BATCH_ROWS, LedgerFileReader
from pulsar_spark.errors import DataLossError, ObjectNotFoundError
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import is_persistent

MERGED_AWAY_RETRIES = 3
FETCHED = 16
"""Ranges whose files are asked for together, over a network, if they are small."""


def read_messages(partition: MessageInputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of one task, in order, as batches of that schema.

    CorruptFileError names a damaged file; DataLossError a ledger that was trimmed meanwhile.
    """
    columns = _Columns(schema)
    for topic in partition.topics:
        with closing(LedgerFileReader(partition.root.store, topic.folder, topic.topic)) as reader:
            for number, rows in enumerate(topic.ranges):
                if number % FETCHED == 0:
                    reader.fetch(each.ledger for each in topic.ranges[number : number + FETCHED])
                yield from _read_range(partition, topic, rows, reader, columns)


def read_positions(
    root: Root, log: ManagedLedger, partition: int, messages: PositionSet, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """These messages of one partition, as far as log or compacted file have them; as by a task."""
    rows = TopicRows(log.topic, log.folder, tuple(rows_left(messages, log, partition)))
    return read_messages(MessageInputPartition(root, (rows,)), schema)


def _read_range(
    partition: MessageInputPartition,
    topic: TopicRows,
    rows: RowRange,
    reader: LedgerFileReader,
    columns: _Columns,
) -> Iterator[pa.RecordBatch]:
    there: RowRange | None = rows
    done = attempt = 0
    while there is not None and done < rows.rows:
        try:
            for batch, size in columns.read(reader, there, done):
                done += size
                yield batch
        except ObjectNotFoundError:  # noqa: PERF203 - once a ledger, not once a row
            attempt += 1
            if attempt > MERGED_AWAY_RETRIES:
                raise
            if rows.compacted:
                raise DataLossError(
                    f"Topic {topic.topic} was compacted again while it was being read, longer ago "
                    "than its files are kept. Start the query again: it reads what is left now."
                ) from None
            there = _found_again(partition, topic, rows)


def _found_again(
    partition: MessageInputPartition, topic: TopicRows, rows: RowRange
) -> RowRange | None:
    """The rows where their files lie now; None if their loss is no error, else DataLossError."""
    managed = ManagedLedger.open(partition.root.store, topic.folder, topic=topic.topic)
    found = []
    for part in (rows, *rows.chunks):
        number, ledger_id = part.ledger.partition, part.ledger.ledger_id
        there = number < managed.state.partitions  # else another topic has the name now
        if there and (ledger := managed.ledgers(number).get(ledger_id)) is not None:
            found.append(replace(part, ledger=ledger))
            continue
        if is_persistent(topic.topic):  # else nothing was promised
            lose(
                f"Ledger {ledger_id} of {topic.topic}, partition {number}, was trimmed while it "
                "was being read",
                fail=partition.fail_on_data_loss,
            )
        return None
    return replace(found[0], chunks=tuple(found[1:]))


class _Columns:
    """The columns of one schema: how each is made for some rows of a ledger."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._fields = [(field.name, field.type) for field in self._schema]
        self._stored = stored_columns(schema)
        self._with_ids = not {"entry_id", "batch_index"}.isdisjoint(self._schema.names)
        self._constants: dict[tuple[str, Any], pa.Array] = {}

    def read(
        self, reader: LedgerFileReader, rows: RowRange, done: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """(batch, the number of its file's rows), without the range's first `done` rows."""
        ledger, first, count = rows.ledger, rows.first_row + done, rows.rows - done
        mask = rows.selected()
        made: dict[str, NDArray[Any]] = {}
        if self._with_ids and not rows.compacted:
            made["entry_id"], made["batch_index"] = _ids(ledger.batch_sizes, first, count)
        constants: dict[str, Any] = {
            "ledger_id": ledger.ledger_id,
            "partition": ledger.partition,
            "topic": reader.topic,
            "redelivery_count": 0,
            "attempt": 0,
            "first_chunk_message_id": _first_chunk(rows),
        }
        for name, value in rows.numbers:
            if isinstance(value, int):
                constants[name] = value
            else:
                made[name] = np.frombuffer(value, np.int32)[done:]
        at = 0
        for size, stored in self._stored_batches(reader, ledger, first, count):
            arrays = []
            for name, kind in self._fields:
                if name == "value" and rows.chunks:
                    arrays.append(put_together(reader, rows.chunks))
                elif name in stored:
                    arrays.append(stored[name])
                elif name in made:
                    arrays.append(pa.array(made[name][at : at + size]).cast(kind))
                else:
                    arrays.append(self._constant(name, kind, constants[name], size))
            messages = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            if mask is not None:
                start = done + at
                messages = messages.filter(pa.array(mask[start : start + size]))
            at += size
            yield messages, size

    def _stored_batches(
        self, reader: LedgerFileReader, ledger: LedgerInfo, first: int, count: int
    ) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """(rows, the columns that files have), batch by batch."""
        if self._stored:
            for batch in reader.read(ledger, self._stored, first, count):
                yield batch.num_rows, dict(zip(self._stored, batch.columns, strict=True))
        else:
            for at in range(0, count, BATCH_ROWS):
                yield min(BATCH_ROWS, count - at), {}

    def _constant(self, name: str, kind: pa.DataType, value: Any, size: int) -> pa.Array:
        """The value `size` times; made once for the longest batch, and sliced."""
        known = self._constants.get((name, value))
        if known is None or len(known) < size:
            known = pa.repeat(pa.scalar(value, kind), size)
            self._constants[name, value] = known
        return known.slice(0, size)


def _first_chunk(rows: RowRange) -> str | None:
    """The id of a chunked message's first chunk; None for a message in one piece."""
    if not rows.chunks:
        return None
    first = rows.chunks[0]
    entry_id, _ = first.ledger.batch_sizes.locate(first.first_row)
    return f"{first.ledger.ledger_id}:{entry_id}:{first.ledger.partition}"


def _ids(sizes: BatchSizes, first: int, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(entry id, batch index) of `count` messages from the ledger's `first`-th on."""
    entries, indexes = [], []
    entry = row = 0
    for size, run in sizes.runs:
        start, stop = max(first - row, 0), min(first + count - row, size * run)
        if start < stop:
            begin, end = start // size, -(-stop // size)
            inside = slice(start - begin * size, stop - begin * size)
            entries.append(np.repeat(np.arange(entry + begin, entry + end), size)[inside])
            indexes.append(np.tile(np.arange(size, dtype=np.int32), end - begin)[inside])
        entry += run
        row += size * run
    if len(entries) == 1:
        return entries[0], indexes[0]
    return np.concatenate(entries), np.concatenate(indexes)
