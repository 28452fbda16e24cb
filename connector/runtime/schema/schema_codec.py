"""A column of values as messages' bytes, and back, by schema.

Invariants: null stays null both ways, as a tombstone; numbers and texts are converted whole columns
at a time; a value that does not fit is found, with the reason, and the others are read all the
same, whatever its bytes are; a value that can't be written is named by its row.
Follows Pulsar's `Schema` implementations: STRING is UTF-8, numbers are big-endian, BOOLEAN is one
byte, JSON and AVRO are records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.schema.schema_records import record_decoder, record_encoder
from pulsar_spark.connector.storage.data_files.content_digest import payload
from pulsar_spark.errors import InvalidMessageError, InvalidSchemaDataError
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType

Reasons = Mapping[int, str]
"""Row -> why its value does not fit."""
REASON_CHARACTERS: Final = 1_000
"""The longest reason; it may quote a value, and is cut."""
_MISFITS: Final = (pa.ArrowException, ValueError, OverflowError)

_NUMBERS: Final[dict[SchemaType, np.dtype[Any]]] = {
    SchemaType.BOOLEAN: np.dtype(">i1"),
    SchemaType.INT8: np.dtype(">i1"),
    SchemaType.INT16: np.dtype(">i2"),
    SchemaType.INT32: np.dtype(">i4"),
    SchemaType.INT64: np.dtype(">i8"),
    SchemaType.FLOAT: np.dtype(">f4"),
    SchemaType.DOUBLE: np.dtype(">f8"),
}


def encoder(schema: SchemaInfo) -> Callable[[pa.Array], pa.Array]:
    """A function from a column to one of bytes; InvalidMessageError if that can't be written."""
    if schema.type in _NUMBERS:
        return partial(_numbers_to_bytes, width=_NUMBERS[schema.type])
    if schema.type.has_definition:
        encode = record_encoder(schema)
        return partial(_records_to_bytes, encode=encode)
    if schema.type is SchemaType.STRING:
        return _texts_to_bytes
    return lambda column: column.cast(pa.binary())


def decoder(
    reader: SchemaInfo, writer: SchemaInfo, kind: pa.DataType
) -> Callable[[pa.Array], tuple[pa.Array, Reasons]]:
    """A function from bytes to (a column of `kind`, reasons of rows that are null for a misfit)."""
    if reader.type is not writer.type:
        why = f"it was published as {writer.type.value}, and is read as {reader.type.value}"
        return partial(nothing_fits, kind, why)
    if reader.type in _NUMBERS:
        return partial(_bytes_to_numbers, width=_NUMBERS[reader.type], kind=kind)
    if reader.type is SchemaType.STRING:
        return partial(_bytes_to_texts, kind=kind)
    if reader.type in (SchemaType.BYTES, SchemaType.PROTOBUF_NATIVE):
        return lambda column: (column, {})
    try:
        decode = record_decoder(reader, writer)
    except InvalidSchemaDataError as error:
        return partial(nothing_fits, kind, str(error))
    return partial(_row_by_row, decode=decode, kind=kind)


def nothing_fits(kind: pa.DataType, why: str, column: pa.Array) -> tuple[pa.Array, Reasons]:
    """Nulls of that type, and one reason for every value."""
    rows = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
    return pa.nulls(len(column), kind), {int(row): why for row in rows}


def check_texts(column: pa.Array, name: str) -> None:
    """InvalidMessageError names the first row with a text that is no UTF-8, which Spark allows."""
    if pa.types.is_string(column.type) and bytes(payload(column)).isascii():
        return
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for row, value in enumerate(column):
            try:
                value.as_py()
            except UnicodeDecodeError as error:  # noqa: PERF203 - each value fits or not
                raise _unwritable(name, row, error) from error
        raise


def _unwritable(name: str, row: int, error: Exception) -> InvalidMessageError:
    return InvalidMessageError(
        f"Column {name} in row {row} of an Arrow batch can't be published: {_text(error)}. Nothing "
        "of this write was published: change the row, or leave it out."
    )


def _text(error: Exception) -> str:
    text = str(error) if isinstance(error, ValueError) else repr(error)
    return text[:REASON_CHARACTERS].encode(errors="backslashreplace").decode()


def _numbers_to_bytes(column: pa.Array, width: np.dtype[Any]) -> pa.Array:
    mask = None
    if column.null_count:
        mask = pc.is_null(column)
        column = pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0)
    numbers = column.to_numpy(zero_copy_only=False).astype(width)
    size = width.itemsize
    offsets = np.arange(0, (len(numbers) + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(numbers.tobytes())]
    made = pa.Array.from_buffers(pa.binary(), len(numbers), buffers)
    return made if mask is None else pc.if_else(mask, pa.scalar(None, pa.binary()), made)


def _bytes_to_numbers(
    column: pa.Array, width: np.dtype[Any], kind: pa.DataType
) -> tuple[pa.Array, Reasons]:
    lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy()
    fits = lengths == width.itemsize
    reasons = {
        int(row): f"it has {lengths[row]} bytes, and has to have {width.itemsize}"
        for row in np.flatnonzero(~fits & (lengths >= 0))
    }
    held = b"".join(column.filter(pa.array(fits)).to_pylist())
    numbers: NDArray[Any] = np.zeros(len(column), width.newbyteorder("="))
    numbers[fits] = np.frombuffer(held, width)
    values = numbers != 0 if pa.types.is_boolean(kind) else numbers
    return pa.array(values, kind, mask=~fits), reasons


def _texts_to_bytes(column: pa.Array) -> pa.Array:
    check_texts(column, "value")
    return column.cast(pa.binary())


def _bytes_to_texts(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Reasons]:
    try:
        return column.cast(kind), {}
    except pa.ArrowInvalid:
        return _row_by_row(column, lambda value: value.decode(), kind)


def _records_to_bytes(column: pa.Array, encode: Callable[[Any], bytes]) -> pa.Array:
    encoded: list[bytes | None] = []
    for row, value in enumerate(column.cast(_plain(column.type))):
        try:
            record = value.as_py(maps_as_pydicts="strict")
            encoded.append(None if record is None else encode(record))
        except MemoryError:  # noqa: PERF203 - each value fits or not
            raise
        except Exception as error:
            raise _unwritable("value", row, error) from error
    return pa.array(encoded, pa.binary())


def _row_by_row(
    column: pa.Array, decode: Callable[[bytes], Any], kind: pa.DataType
) -> tuple[pa.Array, Reasons]:
    values: list[Any] = []
    reasons: dict[int, str] = {}
    for row, value in enumerate(column.to_pylist()):
        try:
            values.append(None if value is None else decode(value))
        except MemoryError:  # noqa: PERF203 - each value fits or not
            raise
        except Exception as error:  # noqa: BLE001 - whatever its bytes lead to is this value's
            values.append(None)
            reasons[row] = _text(error)
    return _as_arrow(values, kind, reasons), dict(sorted(reasons.items()))


def _as_arrow(values: list[Any], kind: pa.DataType, reasons: dict[int, str]) -> pa.Array:
    """The values as a column; misfits are null, with the reason."""
    try:
        return pa.array(values, kind)
    except _MISFITS:
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except _MISFITS as error:  # noqa: PERF203 - each value fits or not
                reasons[row] = _text(error)
        return pa.array([None if row in reasons else each for row, each in enumerate(values)], kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type with times and dates as numbers of microseconds and days, at any depth."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else kind
