"""Schemas as Spark's types, and Spark's types as schemas.

Invariants: a value has one Spark type, which follows from its schema alone; in a derived definition
all fields may be null, as in those that Pulsar's `AvroSchema` derives from a class, so it does not
change with what Spark knows about nulls; a type without a counterpart is refused by name.
Follows Spark's `SchemaConverters` and Pulsar's `SchemaDefinition`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_spark.errors import InvalidMessageError, InvalidSchemaDataError
from pulsar_spark.model.schema.avro_schema import PRIMITIVES, AvroType
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType

RECORD_NAME: Final = "topLevelRecord"
"""The name of a derived definition: that of Spark's own `to_avro`."""

SCALARS: Final[dict[SchemaType, DataType]] = {
    SchemaType.BYTES: BinaryType(),
    SchemaType.STRING: StringType(),
    SchemaType.BOOLEAN: BooleanType(),
    SchemaType.INT8: ByteType(),
    SchemaType.INT16: ShortType(),
    SchemaType.INT32: IntegerType(),
    SchemaType.INT64: LongType(),
    SchemaType.FLOAT: FloatType(),
    SchemaType.DOUBLE: DoubleType(),
    SchemaType.PROTOBUF_NATIVE: BinaryType(),
}
"""The Spark type of a value whose schema is not of a record."""

_SPARK: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}
"""Avro's kinds and logical types that Spark has; of another logical type the kind counts."""
_AVRO: Final[dict[DataType, Any]] = {
    **{kind: name for name, kind in _SPARK.items() if name in PRIMITIVES},
    ByteType(): "int",
    ShortType(): "int",
    DateType(): {"type": "int", "logicalType": "date"},
    TimestampType(): {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType(): {"type": "long", "logicalType": "local-timestamp-micros"},
}
_WIDER: Final[dict[DataType, tuple[DataType, ...]]] = {
    ByteType(): (IntegerType(), LongType()),
    ShortType(): (IntegerType(), LongType()),
    IntegerType(): (LongType(),),
    FloatType(): (DoubleType(),),
}
"""A column's type -> the wider types that a definition may have for it."""
_DECIMAL_DIGITS: Final = 38
"""The most digits of Spark's decimals."""


def spark_type(schema: SchemaInfo) -> DataType:
    """The type of a column of such values. InvalidSchemaDataError if Spark has none."""
    if schema.type.has_definition:
        return _spark(schema.avro(), "value", ())
    return SCALARS[schema.type]


def definition_of(struct: StructType) -> str:
    """The definition of a record like the struct. InvalidMessageError names a type without one."""
    return json.dumps(_record(struct, RECORD_NAME, "value"))


def check_fits(column: DataType, schema: SchemaInfo) -> None:
    """InvalidMessageError if a column of that type can't be written with the schema."""
    if schema.type.has_definition:
        as_struct(column, schema.type)
    if why := _misfit(column, spark_type(schema), "value"):
        raise InvalidMessageError(f"{why} by the schema of type {schema.type.value}: cast it.")


def as_struct(column: DataType, kind: SchemaType) -> StructType:
    """The type of a column of records. InvalidMessageError if it is another."""
    if isinstance(column, StructType):
        return column
    raise InvalidMessageError(
        f"Column value is {column.simpleString()}, and a schema of type {kind.value} takes a "
        "struct: make one with struct(...), or with from_json."
    )


def _spark(avro: AvroType, where: str, above: tuple[AvroType, ...]) -> DataType:
    if avro in above:
        raise _no_type(where, f"{avro.name}, which contains itself")
    within = (*above, avro)
    if avro.kind == "record":
        fields = [
            StructField(each.name, _spark(each.type, f"{where}.{each.name}", within))
            for each in avro.fields
        ]
        if not fields:
            raise _no_type(where, "a record without fields")
        return StructType(fields)
    if avro.kind == "array":
        return ArrayType(_spark(avro.inner, f"{where}[]", within))
    if avro.kind == "map":
        return MapType(StringType(), _spark(avro.inner, f"{where}[]", within))
    if avro.kind == "union":
        others = [branch for branch in avro.branches if branch.kind != "null"]
        if len(others) != 1:
            raise _no_type(where, "a union of more than one type and null")
        return _spark(others[0], where, above)
    return _spark_scalar(avro, where)


def _spark_scalar(avro: AvroType, where: str) -> DataType:
    if avro.kind == "fixed" and not avro.size:
        raise _no_type(where, "a fixed of no bytes")
    if avro.logical == "decimal" and avro.precision <= _DECIMAL_DIGITS:
        return DecimalType(avro.precision, avro.scale)
    known = _SPARK.get(avro.logical or "") or _SPARK.get(avro.kind)
    if known is None:
        raise _no_type(where, avro.kind)
    return known


def _no_type(where: str, what: str) -> InvalidSchemaDataError:
    return InvalidSchemaDataError(
        f"{where} is {what} in the schema's definition, for which Spark has no type. Read the "
        "values as they are, without valueSchema, or change the definition."
    )


def _record(struct: StructType, name: str, where: str) -> dict[str, Any]:
    if not struct.fields:
        raise InvalidMessageError(f"Column {where} is a struct without fields: give it some.")
    fields = []
    for each in struct.fields:
        if not each.name.isidentifier() or not each.name.isascii():
            raise InvalidMessageError(
                f"Field {each.name!r} of {where} can't be one of an Avro record, whose names have "
                "letters, digits and _ only: rename it."
            )
        kind = _avro(each.dataType, f"{name}.{each.name}", f"{where}.{each.name}")
        fields.append({"name": each.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _avro(kind: DataType, name: str, where: str) -> Any:
    if isinstance(kind, StructType):
        return _record(kind, name, where)
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": ["null", _avro(kind.elementType, name, f"{where}[]")]}
    if isinstance(kind, MapType) and kind.keyType == StringType():
        return {"type": "map", "values": ["null", _avro(kind.valueType, name, f"{where}[]")]}
    if isinstance(kind, DecimalType):
        decimal = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **decimal}
    if kind not in _AVRO:
        raise InvalidMessageError(
            f"{where} is {kind.simpleString()}, which an Avro definition can't say: cast it."
        )
    return _AVRO[kind]


def _misfit(column: DataType, requested: DataType, where: str) -> str | None:
    if isinstance(column, StructType) and isinstance(requested, StructType):
        fields = {each.name: each.dataType for each in requested.fields}
        for each in column.fields:
            if each.name not in fields:
                return f"{where} has a field {each.name}, which is none of its record"
            if why := _misfit(each.dataType, fields[each.name], f"{where}.{each.name}"):
                return why
        return None
    if isinstance(column, ArrayType) and isinstance(requested, ArrayType):
        return _misfit(column.elementType, requested.elementType, f"{where}[]")
    if isinstance(column, MapType) and isinstance(requested, MapType):
        keys = _misfit(column.keyType, requested.keyType, f"a key of {where}")
        return keys or _misfit(column.valueType, requested.valueType, f"{where}[]")
    if column == requested or requested in _WIDER.get(column, ()):
        return None
    return f"{where} is {column.simpleString()} and has to be {requested.simpleString()}"
