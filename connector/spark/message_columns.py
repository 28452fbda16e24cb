"""The columns of a message, read and written, declared once, by their Arrow types.

Invariants: a reader's columns are computed from the log, or stored; Spark's types follow from
Arrow's, so that batches pass unchanged; a user's schema may pick among them, in any order, and is
refused at once where it names another. Only what is called with Spark's types imports Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pulsar_spark.errors import InvalidMessageError, InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(_TEXT, _TEXT)


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column of a source. `stored` ones come from the data files, others from the log."""

    name: str
    type: pa.DataType
    nullable: bool
    stored: bool
    meaning: str

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, self.nullable)


READ_COLUMNS: Final = (
    ReadColumn("ledger_id", pa.int64(), False, False, "message id: the ledger"),
    ReadColumn("entry_id", pa.int64(), False, False, "message id: the entry in its ledger"),
    ReadColumn("partition", pa.int32(), False, False, "message id: the topic's partition"),
    ReadColumn("batch_index", pa.int32(), False, False, "message id: the place in its entry"),
    ReadColumn("topic", _TEXT, False, False, "full name, without partition"),
    ReadColumn("key", _TEXT, True, True, "partition key; null without one"),
    ReadColumn("ordering_key", pa.binary(), True, True, "key of order, where it is not `key`"),
    ReadColumn("value", pa.binary(), True, True, "payload; null is a tombstone"),
    ReadColumn("properties", _PROPERTIES, True, True, "only with includeProperties or by schema"),
    ReadColumn("producer_name", _TEXT, True, True, "who published it: as was said, or QUERY-TASK"),
    ReadColumn("sequence_id", pa.int64(), True, True, "the producer's number for it, which rises"),
    ReadColumn("publish_time", _TIME, False, True, "when it was published, by its clock"),
    ReadColumn("event_time", _TIME, True, True, "when it happened, if the user said"),
    ReadColumn("deliver_at", _TIME, True, True, "not to be delivered before"),
    ReadColumn("schema_version", pa.int64(), True, True, "version of the topic's schema"),
    ReadColumn("redelivery_count", pa.int32(), False, False, "0 for a Reader"),
    ReadColumn("attempt", pa.int32(), False, False, "which grant of it this is; consumers only"),
    ReadColumn("first_chunk_message_id", _TEXT, True, False,
               "only by schema: the id of a chunked message's first chunk, as text"),
    ReadColumn("schema_error", _TEXT, True, False,
               "with onSchemaMismatch null: why the message does not fit its schema"),
)  # fmt: skip
IDS: Final = ("ledger_id", "entry_id", "partition", "batch_index")
"""The columns by which a message is known, within its topic."""
_READ_BY_NAME: Final = {column.name: column for column in READ_COLUMNS}
_STORED: Final = {column.name for column in READ_COLUMNS if column.stored}

_TEXT_OR_BYTES: Final = (pa.binary(), _TEXT)
_INTEGERS: Final = (pa.int64(), pa.int32())

WRITE_COLUMNS: Final[dict[str, tuple[pa.DataType, ...]]] = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "ordering_key": _TEXT_OR_BYTES,
    "properties": (_PROPERTIES,),
    "event_time": (_TIME,),
    "deliver_at": (_TIME,),
    "deliver_after": (pa.duration("us"), pa.int64(), pa.int32()),
    "topic": (_TEXT,),
    "producer_name": (_TEXT,),
    "sequence_id": _INTEGERS,
}
"""Column of a sink -> the types that it may have."""


def read_columns(
    *, include_properties: bool, consumer: bool = False, schema_errors: bool = False
) -> pa.Schema:
    """The columns of a source to which the user gave no schema."""
    chosen = {
        "properties": include_properties,
        "attempt": consumer,
        "schema_error": schema_errors,
        "first_chunk_message_id": False,
    }
    return pa.schema([each.field for each in READ_COLUMNS if chosen.get(each.name, True)])


def read_schema(
    *,
    include_properties: bool,
    consumer: bool = False,
    value: DataType | None = None,
    schema_errors: bool = False,
) -> StructType:
    """The same for Spark; `value` is the type of its values."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema: StructType = from_arrow_schema(
        read_columns(
            include_properties=include_properties, consumer=consumer, schema_errors=schema_errors
        )
    )
    if value is not None:
        schema["value"].dataType = value
    return schema


def check_read_schema(
    schema: StructType, *, typed: bool = False, schema_errors: bool = False
) -> None:
    """InvalidOptionError if a user's schema names what a message does not have.

    `typed` values have the type of one of their topic's schemas.
    """
    from pyspark.sql.pandas.types import from_arrow_type

    if not schema.fields:
        raise InvalidOptionError("The schema is empty: name at least one column.")
    for field in schema.fields:
        column = _READ_BY_NAME.get(field.name)
        if column is None:
            known = ", ".join(_READ_BY_NAME)
            raise InvalidOptionError(
                f"The schema's column {field.name} is none of a message's."
                f"{_nearest(field.name, _READ_BY_NAME)} There are {known}."
            )
        if field.name == "schema_error" and not schema_errors:
            raise InvalidOptionError(
                "The schema's column schema_error needs valueSchema auto and onSchemaMismatch null."
            )
        kind = from_arrow_type(column.type)
        if field.dataType != kind and not (field.name == "value" and typed):
            raise InvalidOptionError(
                f"The schema's column {field.name} is {field.dataType.simpleString()}, and "
                f"Pulsarlite has it as {kind.simpleString()}: cast it after reading."
            )


def stored_columns(schema: pa.Schema) -> list[str]:
    """Those of its columns that files have; a planner may have given it others to compute."""
    return [name for name in schema.names if name in _STORED]


def check_write_schema(schema: StructType, *, typed: bool = False) -> None:
    """InvalidMessageError if rows of this schema can't become messages.

    `typed` values have a schema, which says what their column may be.
    """
    remedy = "rename the column, drop it, or put it into value (for instance with to_json)"
    known = write_types()
    if typed and "value" in schema.fieldNames():
        known["value"] = (schema["value"].dataType,)
    check_columns(schema, known, "a message", remedy)
    if "value" not in schema.fieldNames():
        raise InvalidMessageError(
            f"There is no column value, the payload. The rows have {schema.fieldNames()}; a "
            f"sink takes {', '.join(WRITE_COLUMNS)}."
        )


def write_types() -> dict[str, tuple[DataType, ...]]:
    """WRITE_COLUMNS by Spark's types."""
    from pyspark.sql.pandas.types import from_arrow_type

    return {name: tuple(map(from_arrow_type, types)) for name, types in WRITE_COLUMNS.items()}


def check_columns(
    schema: StructType, known: Mapping[str, tuple[DataType, ...]], what: str, remedy: str
) -> None:
    """InvalidMessageError if a column of what is written is unknown, or of another type."""
    for field in schema.fields:
        types = known.get(field.name)
        if types is None:
            raise InvalidMessageError(
                f"Column {field.name} is none of {what}'s.{_nearest(field.name, known)} "
                f"A sink takes {', '.join(known)}: {remedy}."
            )
        if not any(_same_type(field.dataType, allowed) for allowed in types):
            expected = " or ".join(allowed.simpleString() for allowed in types)
            raise InvalidMessageError(
                f"Column {field.name} is {field.dataType.simpleString()} and has to be "
                f"{expected}: cast it."
            )


def _same_type(one: DataType, other: DataType) -> bool:
    """Whether they hold the same values; a map may or may not allow nulls."""
    from pyspark.sql.types import DayTimeIntervalType, MapType

    if isinstance(one, DayTimeIntervalType) and isinstance(other, DayTimeIntervalType):
        return True  # in whatever units it is written, Arrow has microseconds
    if isinstance(one, MapType) and isinstance(other, MapType):
        return one.keyType == other.keyType and one.valueType == other.valueType
    return one == other


def _nearest(name: str, known: object) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)  # type: ignore[call-overload]
    return f" Did you mean {near[0]}?" if near else ""
