"""Rows of a Parquet file as record batches of one schema, in bounded memory.

Invariants: only the row groups and columns asked for are read; a batch has exactly the schema's
columns, and nulls where the file lacks one; what is held is one row group, or several small ones,
and one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 64 << 20
"""A row group whose payloads have more bytes is cut into several, ..."""
CUT_ROW_GROUP_BYTES = 16 << 20
"""... of about so many bytes, or of one message that has more."""
BATCH_BYTES = 1 << 20
"""A record batch has about so many bytes, ..."""
MOST_BATCH_BYTES = 16 << 20
"""... or up to so many where FEW_ROWS need them; a single message may have more."""
FEW_ROWS = 1_024
"""A file of no more rows is written in the trimmed-down form."""


def rows_of(
    file: pq.ParquetFile, schema: pa.Schema, start: int, count: int, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows start to start + count of the file, in batches that stay in a processor's cache."""
    stored = [name for name in schema.names if name in file.schema_arrow.names]
    if not stored:
        for place in range(0, count, batch_rows):
            yield _nulls(min(batch_rows, count - place), schema)
        return
    groups, skipped, row = [], 0, 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if row < start + count and start < row + rows:
            groups.append(group)
        elif row + rows <= start:
            skipped += rows
        row += rows
    before, left = start - skipped, count
    for some in _read_together(file, groups, stored):
        rows_at_once = min(batch_rows, _rows_in_cache(file, some, stored))
        for batch in file.iter_batches(
            rows_at_once, row_groups=some, columns=stored, use_threads=False
        ):
            wanted = batch.slice(before, left)
            before = max(0, before - batch.num_rows)
            if wanted.num_rows:
                left -= wanted.num_rows
                yield _shaped(wanted, schema)
            if not left:
                return


def _read_together(
    file: pq.ParquetFile, groups: Sequence[int], stored: Sequence[str]
) -> Iterator[list[int]]:
    """Row groups of so few bytes together, or a single one: Arrow holds what it reads ahead."""
    together: list[int] = []
    size_bytes = 0
    for group in groups:
        size_bytes += _group_bytes(file, group, stored)
        if together and size_bytes > CUT_ROW_GROUP_BYTES:
            yield together
            together, size_bytes = [], _group_bytes(file, group, stored)
        together.append(group)
    if together:
        yield together


def _rows_in_cache(file: pq.ParquetFile, groups: Sequence[int], stored: Sequence[str]) -> int:
    """How many rows of these columns make about BATCH_BYTES, or MOST_BATCH_BYTES if they are few.

    By the first of these row groups.
    """
    rows, size_bytes = file.metadata.row_group(groups[0]).num_rows, 1
    size_bytes = max(size_bytes, _group_bytes(file, groups[0], stored))
    few = min(FEW_ROWS, MOST_BATCH_BYTES * int(rows) // size_bytes)
    return max(1, few, BATCH_BYTES * int(rows) // size_bytes)


def _group_bytes(file: pq.ParquetFile, group: int, stored: Sequence[str]) -> int:
    """Uncompressed bytes of these columns."""
    metadata = file.metadata.row_group(group)
    chunks = (metadata.column(number) for number in range(metadata.num_columns))
    names = set(stored)
    return sum(
        int(chunk.total_uncompressed_size)
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in names
    )


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the schema's columns, in its order."""
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            array = batch.column(index)
            arrays.append(array if array.type == field.type else _plain(array, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The array as that type; a dictionary of one value, as most files have, in no time."""
    rows = len(array)
    if (
        isinstance(array, pa.DictionaryArray)
        and len(array.dictionary) == 1
        and not array.null_count
    ):
        return _repeated(array.dictionary[0].as_py(), rows // 1024 + 1).slice(0, rows)
    return array.cast(wanted)


@lru_cache(maxsize=32)
def _repeated(text: str, blocks: int) -> pa.Array:
    return pa.repeat(text, blocks * 1024)


def _nulls(rows: int, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, f.type) for f in schema], schema=schema)
