"""The columns of a message as Spark's types, and the check of a schema that a user gives.

Invariants: Spark's types follow from Arrow's, so batches pass unchanged; a user's schema may pick
among the columns, in any order, and is refused when it names another.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import DataType, DayTimeIntervalType, MapType, StructType

from pulsar_spark.connector.runtime.topics.message_columns import (
    READ_BY_NAME,
    WRITE_COLUMNS,
    read_columns,
)
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError


def read_schema(
    *,
    include_properties: bool,
    consumer: bool = False,
    value: DataType | None = None,
    schema_errors: bool = False,
) -> StructType:
    """The same for Spark; `value` is the type of its values."""
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
    if not schema.fields:
        raise InvalidOptionError("The schema is empty: name at least one column.")
    for field in schema.fields:
        column = READ_BY_NAME.get(field.name)
        if column is None:
            known = ", ".join(READ_BY_NAME)
            raise InvalidOptionError(
                f"The schema's column {field.name} is none of a message's."
                f"{_nearest(field.name, READ_BY_NAME)} There are {known}."
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
    """True if they hold the same values; a map may or may not allow nulls."""
    if isinstance(one, DayTimeIntervalType) and isinstance(other, DayTimeIntervalType):
        return True  # in whatever units it is written, Arrow has microseconds
    if isinstance(one, MapType) and isinstance(other, MapType):
        return one.keyType == other.keyType and one.valueType == other.valueType
    return one == other


def _nearest(name: str, known: object) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)  # type: ignore[call-overload]
    return f" Did you mean {near[0]}?" if near else ""
