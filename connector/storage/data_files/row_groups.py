"""Reading a data file: some rows of its row groups, as record batches of the columns asked for.

Invariants: every byte is verified once, by its `CheckedInput`, or in files without checksums of
blocks by the page's checksum; only the row groups and columns needed are read; a missing column
reads as nulls. Values stay in their pages if they can (`value_pages`); Arrow decodes all others.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_spark.connector.storage.data_files.block_checksums import CheckedInput, DamagedError
from pulsar_spark.connector.storage.data_files.value_pages import value_pages

ROW_GROUP_BYTES = 64 << 20
"""The size of payloads above which a row group is cut into several."""
CUT_ROW_GROUP_BYTES = 16 << 20
"""The size of each part of a cut row group, or one message that has more."""
BATCH_BYTES = 1 << 20
"""The usual size of a decoded batch."""
MOST_BATCH_BYTES = 16 << 20
"""The size of a decoded batch when FEW_ROWS need it; a single message may have more."""
FEW_ROWS = 1_024
"""A file of no more rows is written in the trimmed-down form."""

_FEW_VALUES = "producer_name"
_VALUE = "value"


class RowGroups:
    """One open file. Not for several threads at once."""

    def __init__(self, checked: CheckedInput, footer: pq.FileMetaData, *, remote: bool) -> None:
        names = [footer.schema.column(number).path for number in range(footer.num_columns)]
        self._parquet = pq.ParquetFile(
            checked.opened(),
            metadata=footer,
            read_dictionary=[_FEW_VALUES] if _FEW_VALUES in names else None,
            page_checksum_verification=not checked.verifies,
            pre_buffer=remote,
        )
        self._names = [name.partition(".")[0] for name in names]
        # Of a remote file Arrow asks for several pages at a time.
        self._paged = not remote and _VALUE in names
        self._source = checked
        self._place: _Place | None = None
        """The row at which the last read ended: the next read of a merged file goes on there."""
        self.num_rows: int = footer.num_rows

    def rows(
        self, schema: pa.Schema, start: int, count: int, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows start to start + count, in order; a decoded batch has up to `batch_rows`."""
        stored = [name for name in schema.names if name in self._names]
        if not stored:
            for at in range(0, count, batch_rows):
                yield _nulls(min(batch_rows, count - at), schema)
            return
        first = 0
        for number in range(self._parquet.num_row_groups):
            rows = self._parquet.metadata.row_group(number).num_rows
            begin, end = max(start - first, 0), min(start + count - first, rows)
            if begin < end and not self._source.verifies:
                # Metadata that Arrow's reader refuses, its getters end the process with.
                next(self._parquet.iter_batches(1, row_groups=[number], columns=stored), None)
            if begin < end and self._paged and _VALUE in stored and 2 * (end - begin) > rows:
                begin = yield from self._by_page(number, stored, schema, begin, end)
            if begin < end:
                for batch in self._decoded(number, stored, begin, end, batch_rows):
                    yield _shaped(batch, schema)
            first += rows

    def close(self) -> None:
        self._place = None
        self._parquet.close(force=True)
        self._source.close()

    def _decoded(
        self, number: int, stored: Sequence[str], begin: int, end: int, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows begin to end of a row group, by Arrow: behind the last read, if they are."""
        place, self._place = self._place, None  # no other read may move it
        asked = number, tuple(stored)
        if place is None or place.asked != asked or place.first > begin:
            batches = self._parquet.iter_batches(
                min(batch_rows, self._rows_in_cache(number, stored)),
                row_groups=[number],
                columns=stored,
                use_threads=False,
            )
            place = _Place(asked, batches)
        yield from place.rows(begin, end)
        self._place = place

    def _by_page(
        self, number: int, stored: Sequence[str], schema: pa.Schema, begin: int, end: int
    ) -> Generator[pa.RecordBatch, None, int]:
        """The rows begin to end of a row group, a page of values each; returns where it ended."""
        chunk = self._parquet.metadata.row_group(number).column(self._names.index(_VALUE))
        place = schema.get_field_index(_VALUE)
        others: pa.RecordBatch | None = None
        for at, values in _between(value_pages(self._source, chunk), begin, end):
            if len(schema) == 1:
                yield pa.RecordBatch.from_arrays([values], schema=schema)
            else:
                if others is None:
                    others = self._without_values(number, stored, schema.remove(place))
                rest = others.slice(at, len(values))
                yield rest.add_column(place, schema.field(place), values)
            begin = at + len(values)
        return begin

    def _without_values(
        self, number: int, stored: Sequence[str], schema: pa.Schema
    ) -> pa.RecordBatch:
        """The other columns of a row group, in one piece."""
        names = [name for name in stored if name != _VALUE]
        rows = self._parquet.metadata.row_group(number).num_rows
        if not names:
            return _nulls(rows, schema)
        table = self._parquet.read_row_group(number, columns=names, use_threads=False)
        if len(table) != rows:
            raise DamagedError(f"row group {number} has {len(table)} of {rows} rows")
        return _shaped(table.combine_chunks().to_batches()[0], schema)

    def _rows_in_cache(self, number: int, stored: Sequence[str]) -> int:
        """The number of rows that make about BATCH_BYTES, or MOST_BATCH_BYTES if they are few."""
        group = self._parquet.metadata.row_group(number)
        size_bytes = sum(
            int(group.column(place).total_uncompressed_size)
            for place, name in enumerate(self._names)
            if name in stored
        )
        rows, size_bytes = int(group.num_rows), max(1, size_bytes)
        few = min(FEW_ROWS, MOST_BATCH_BYTES * rows // size_bytes)
        return max(1, few, BATCH_BYTES * rows // size_bytes)


class _Place:
    """A row group that is being decoded, and the batch at which it is."""

    def __init__(
        self, asked: tuple[int, tuple[str, ...]], batches: Iterator[pa.RecordBatch]
    ) -> None:
        self.asked, self._batches = asked, batches
        self._batch: pa.RecordBatch | None = None
        self.first = 0
        """The row of the batch's first."""

    def rows(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows from begin to end, or as far as there are any; begin is not before `first`."""
        while begin < end:
            batch = self._batch
            if batch is None or begin >= self.first + len(batch):
                self.first += 0 if batch is None else len(batch)
                self._batch = next(self._batches, None)
                if self._batch is None:
                    return
                continue
            stop = min(end - self.first, len(batch))
            yield batch.slice(begin - self.first, stop - (begin - self.first))
            begin = self.first + stop


def _between(parts: Iterable[Any], begin: int, end: int) -> Iterator[tuple[int, Any]]:
    """The parts of consecutive arrays or batches between begin and end, each with its first row."""
    first = 0
    for part in parts:
        at, stop = max(begin, first), min(end, first + len(part))
        if at < stop:
            yield at, part.slice(at - first, stop - at)
        first += len(part)
        if first >= end:
            return


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the schema's columns, in its order."""
    if batch.schema.equals(schema):
        return batch
    held = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = [
        _plain(held[field.name], field.type)
        if field.name in held
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(array: pa.Array, requested: pa.DataType) -> pa.Array:
    """The array as that type; a dictionary of one value, as most files have, in no time."""
    if array.type == requested:
        return array
    if pa.types.is_dictionary(array.type) and len(array.dictionary) == 1 and not array.null_count:
        rows = len(array)
        return _repeated(array.dictionary[0].as_py(), rows // 1024 + 1).slice(0, rows)
    return array.cast(requested)


@lru_cache(maxsize=32)
def _repeated(text: str, blocks: int) -> pa.Array:
    return pa.repeat(text, blocks * 1024)


def _nulls(rows: int, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(rows, kind) for kind in schema.types], schema=schema
    )
