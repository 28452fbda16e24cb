"""The columns of a message as Spark sees them, read and written, declared once.

Invariants: a reader's columns are computed from the log, or stored; both have the Arrow type that
Spark expects of the Spark type, so that batches pass unchanged; a user's schema may pick among
them, in any order, and is refused at once where it names another.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_spark.errors import InvalidMessageError, InvalidOptionError

_PROPERTIES: Final = MapType(StringType(), StringType())


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column of a source. `stored` ones come from the data files, others from the log."""

    name: str
    type: DataType
    nullable: bool
    stored: bool
    meaning: str

    @property
    def field(self) -> StructField:
        return StructField(self.name, self.type, self.nullable)


READ_COLUMNS: Final = (
    ReadColumn("ledger_id", LongType(), False, False, "message id: the ledger"),
    ReadColumn("entry_id", LongType(), False, False, "message id: the entry in its ledger"),
    ReadColumn("partition", IntegerType(), False, False, "message id: the topic's partition"),
    ReadColumn("batch_index", IntegerType(), False, False, "message id: the place in its entry"),
    ReadColumn("topic", StringType(), False, False, "full name, without partition"),
    ReadColumn("key", StringType(), True, True, "partition key; null without one"),
    ReadColumn("ordering_key", BinaryType(), True, True, "key of order, where it is not `key`"),
    ReadColumn("value", BinaryType(), True, True, "payload; null is a tombstone"),
    ReadColumn("properties", _PROPERTIES, True, True, "only with includeProperties or by schema"),
    ReadColumn("producer_name", StringType(), True, True, "who published it, if it was said"),
    ReadColumn("sequence_id", LongType(), True, True, "the producer's number for it, if given"),
    ReadColumn("publish_time", TimestampType(), False, True, "when it was published, by its clock"),
    ReadColumn("event_time", TimestampType(), True, True, "when it happened, if the user said"),
    ReadColumn("deliver_at", TimestampType(), True, True, "not to be delivered before"),
    ReadColumn("schema_version", LongType(), True, True, "version of the topic's schema"),
    ReadColumn("redelivery_count", IntegerType(), False, False, "0 for a Reader"),
    ReadColumn("attempt", IntegerType(), False, False, "which grant of it this is; consumers only"),
    ReadColumn("first_chunk_message_id", StringType(), True, False,
               "only by schema: the id of a chunked message's first chunk, as text"),
    ReadColumn("schema_error", StringType(), True, False,
               "with onSchemaMismatch null: why the message does not fit its schema"),
)  # fmt: skip
IDS: Final = ("ledger_id", "entry_id", "partition", "batch_index")
"""The columns by which a message is known, within its topic."""
_READ_BY_NAME: Final = {column.name: column for column in READ_COLUMNS}

_TEXT_OR_BYTES: Final = (BinaryType(), StringType())
_INTEGERS: Final = (LongType(), IntegerType())

WRITE_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "ordering_key": _TEXT_OR_BYTES,
    "properties": (_PROPERTIES,),
    "event_time": (TimestampType(),),
    "deliver_at": (TimestampType(),),
    "deliver_after": (DayTimeIntervalType(), LongType(), IntegerType()),
    "topic": (StringType(),),
    "producer_name": (StringType(),),
    "sequence_id": _INTEGERS,
}
"""Column of a sink -> the types that it may have."""


def read_schema(
    *,
    include_properties: bool,
    consumer: bool = False,
    value: DataType | None = None,
    schema_errors: bool = False,
) -> StructType:
    """The schema of a source to which the user gave none; `value` is the type of its values."""
    chosen = {
        "properties": include_properties,
        "attempt": consumer,
        "schema_error": schema_errors,
        "first_chunk_message_id": False,
    }
    schema = StructType([each.field for each in READ_COLUMNS if chosen.get(each.name, True)])
    if value is not None:
        schema["value"].dataType = value
    return schema


def check_read_schema(
    schema: StructType, *, typed: bool = False, schema_errors: bool = False
) -> None:
    """InvalidOptionError if a user's schema names what a message does not have.

    `typed` values have the type of one of their topic's schemas.
    """
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
        if field.dataType != column.type and not (field.name == "value" and typed):
            raise InvalidOptionError(
                f"The schema's column {field.name} is {field.dataType.simpleString()}, and "
                f"Pulsarlite has it as {column.type.simpleString()}: cast it after reading."
            )


def stored_columns(schema: StructType) -> list[str]:
    return [name for name in schema.fieldNames() if _READ_BY_NAME[name].stored]


def check_write_schema(schema: StructType, *, typed: bool = False) -> None:
    """InvalidMessageError if rows of this schema can't become messages.

    `typed` values have a schema, which says what their column may be.
    """
    remedy = "rename the column, drop it, or put it into value (for instance with to_json)"
    known = dict(WRITE_COLUMNS)
    if typed and "value" in schema.fieldNames():
        known["value"] = (schema["value"].dataType,)
    check_columns(schema, known, "a message", remedy)
    if "value" not in schema.fieldNames():
        raise InvalidMessageError(
            f"There is no column value, the payload. The rows have {schema.fieldNames()}; a "
            f"sink takes {', '.join(WRITE_COLUMNS)}."
        )


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
    if isinstance(one, DayTimeIntervalType) and isinstance(other, DayTimeIntervalType):
        return True  # in whatever units it is written, Arrow has microseconds
    if isinstance(one, MapType) and isinstance(other, MapType):
        return one.keyType == other.keyType and one.valueType == other.valueType
    return one == other


def _nearest(name: str, known: object) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)  # type: ignore[call-overload]
    return f" Did you mean {near[0]}?" if near else ""
