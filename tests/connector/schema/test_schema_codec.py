"""Values as bytes and back: each type, what it is on the wire, and what does not fit."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
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
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_spark.connector.runtime.schema.schema_codec import decoder, encoder
from pulsar_spark.connector.spark.schema_types import check_fits, definition_of, spark_type
from pulsar_spark.errors import InvalidMessageError, InvalidSchemaDataError
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType

RECORDS = [SchemaType.JSON, SchemaType.AVRO]


def arrow(kind: DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone="UTC")


def written(schema: SchemaInfo, values: list[Any], kind: DataType | None = None) -> list[Any]:
    """The bytes of each value, of a column of that type."""
    column = pa.array(values, arrow(kind or spark_type(schema)))
    found: list[Any] = encoder(schema)(column).to_pylist()
    return found


def read(
    reader: SchemaInfo, values: list[bytes | None], writer: SchemaInfo | None = None
) -> tuple[list[Any], Mapping[int, str]]:
    kind = arrow(spark_type(reader))
    column, reasons = decoder(reader, writer or reader, kind)(pa.array(values, pa.binary()))
    assert column.type == kind
    return column.to_pylist(maps_as_pydicts="strict"), reasons


WIRE: list[tuple[str, Any, bytes]] = [  # as Pulsar's schemas encode them
    ("STRING", "grün", "grün".encode()),
    ("STRING", "", b""),
    ("INT8", -2, b"\xfe"),
    ("INT16", 258, b"\x01\x02"),
    ("INT32", -1, b"\xff\xff\xff\xff"),
    ("INT64", 1 << 40, b"\0\0\x01\0\0\0\0\0"),
    ("FLOAT", 1.5, b"\x3f\xc0\0\0"),
    ("DOUBLE", -2.0, b"\xc0\0\0\0\0\0\0\0"),
    ("BOOLEAN", True, b"\x01"),
    ("BOOLEAN", False, b"\x00"),
    ("BYTES", b"\xff", b"\xff"),
]


@pytest.mark.parametrize(("name", "value", "wire"), WIRE)
def test_a_value_is_on_the_wire_as_pulsar_has_it(name: str, value: Any, wire: bytes) -> None:
    schema = SchemaInfo(SchemaType(name))
    assert written(schema, [value, None, value]) == [wire, None, wire]
    assert read(schema, [wire, None, wire]) == ([value, None, value], {})
    assert read(schema, []) == ([], {})
    assert written(schema, []) == []


@pytest.mark.parametrize("name", ["INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "BOOLEAN"])
def test_a_number_of_another_length_does_not_fit(name: str) -> None:
    schema = SchemaInfo(SchemaType(name))
    (wire,) = written(schema, [True if name == "BOOLEAN" else 1])
    values, reasons = read(schema, [wire, b"123", None, b"", wire])
    assert values == [1, None, None, None, 1]
    assert reasons == {
        1: f"it has 3 bytes, and has to have {len(wire)}",
        3: f"it has 0 bytes, and has to have {len(wire)}",
    }


def test_a_text_that_is_no_utf_8_does_not_fit() -> None:
    values, reasons = read(SchemaInfo(SchemaType.STRING), [b"a", b"\xff", None])
    assert values == ["a", None, None]
    assert list(reasons) == [1]
    assert "utf-8" in reasons[1]


def test_a_column_that_begins_inside_its_buffers_is_read_from_there() -> None:
    schema = SchemaInfo(SchemaType.INT16)
    column = pa.array([None, b"12345", *written(schema, [1, 2])], pa.binary()).slice(2)
    assert decoder(schema, schema, pa.int16())(column)[0].to_pylist() == [1, 2]
    assert encoder(schema)(pa.array([9, None, 3], pa.int16()).slice(1)).to_pylist() == [
        None, b"\0\3",
    ]  # fmt: skip


ALL = (
    StructType()
    .add("flag", BooleanType()).add("tiny", ByteType()).add("small", ShortType())
    .add("int", IntegerType()).add("long", LongType()).add("single", FloatType())
    .add("real", DoubleType()).add("text", StringType()).add("data", BinaryType())
    .add("day", DateType()).add("moment", TimestampType()).add("local", TimestampNTZType())
    .add("price", DecimalType(10, 2)).add("list", ArrayType(TimestampType()))
    .add("map", MapType(StringType(), StructType().add("n", DecimalType(38, 0))))
)  # fmt: skip
MOMENT = dt.datetime(2026, 1, 31, 12, 0, 0, 123456, dt.timezone.utc)
FULL: dict[str, Any] = {
    "flag": True, "tiny": -128, "small": 32767, "int": -(1 << 31), "long": (1 << 63) - 1,
    "single": 1.5, "real": 1e300, "text": "grün\n", "data": b"\0\xff", "day": dt.date(1969, 1, 1),
    "moment": MOMENT, "local": MOMENT.replace(tzinfo=None), "price": Decimal("-12.34"),
    "list": [MOMENT, None], "map": {"k": {"n": Decimal(10**37)}, "none": None},
}  # fmt: skip


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_is_read_as_it_was_written(kind: SchemaType) -> None:
    schema = SchemaInfo(kind, definition_of(ALL))
    empty = dict.fromkeys(FULL)
    values = written(schema, [FULL, None, empty], ALL)
    assert values[1] is None
    assert read(schema, values) == ([FULL, None, empty], {})


def test_json_is_what_a_pulsar_client_writes() -> None:
    schema = SchemaInfo(SchemaType.JSON, definition_of(ALL))
    some = {**dict.fromkeys(FULL), "text": "grün", "data": b"\0\xff", "moment": MOMENT, "int": 5}
    (value,) = written(schema, [some], ALL)
    micros = 1_769_860_800_123_456
    assert json.loads(value) == {"int": 5, "text": "grün", "data": "AP8=", "moment": micros}


def test_avro_is_read_by_any_avro_library() -> None:
    schema = SchemaInfo(SchemaType.AVRO, definition_of(ALL))
    (value,) = written(schema, [FULL], ALL)
    parsed = fastavro.parse_schema(json.loads(schema.definition))
    found: Any = fastavro.schemaless_reader(io.BytesIO(value), parsed, None)
    assert found == FULL
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, FULL)
    assert out.getvalue() == value


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("kind", RECORDS)
def test_a_float_may_be_no_finite_number(kind: SchemaType, number: float) -> None:
    row = StructType().add("x", DoubleType()).add("y", FloatType())
    schema = SchemaInfo(kind, definition_of(row))
    values, reasons = read(schema, written(schema, [{"x": number, "y": number}]))
    assert not reasons
    assert all(str(each) == str(number) for each in values[0].values())


def record(*fields: tuple[Any, ...]) -> str:
    listed = [
        {"name": each[0], "type": each[1]} | ({"default": each[2]} if len(each) > 2 else {})
        for each in fields
    ]
    return json.dumps({"type": "record", "name": "r", "fields": listed})


COLOURS = {"type": "enum", "name": "c", "symbols": ["RED", "BLUE"], "default": "RED"}
DECIMAL = {"type": "bytes", "logicalType": "decimal"}
EVOLVED: list[tuple[tuple[Any, ...], tuple[Any, ...], Any, Any]] = [
    # the writer's field, the reader's, the value written, the value read
    (("x", "int"), ("x", "long"), 5, 5),
    (("x", "int"), ("x", "double"), 5, 5.0),
    (("x", "float"), ("x", "double"), 1.5, 1.5),
    (("x", "string"), ("x", "bytes"), "a", b"a"),
    (("x", "bytes"), ("x", "string"), b"a", "a"),
    (("x", "int"), ("x", ["null", "long"], None), 5, 5),
    (("x", ["null", "int"]), ("x", "int"), 5, 5),
    (("gone", "int"), ("x", "string", "new"), 5, "new"),
    (("gone", "int"), ("x", ["null", "string"], None), 5, None),
    (("gone", "int"), ("x", "bytes", "\u00ff"), 5, b"\xff"),
    (("gone", "int"), ("x", {"type": "array", "items": "bytes"}, ["\u00ff"]), 5, [b"\xff"]),
    (("gone", "int"), ("x", {"type": "map", "values": "long"}, {"a": 1}), 5, {"a": 1}),
    (("gone", "int"), ("x", {**DECIMAL, "precision": 4, "scale": 1}, "\u0001"), 5, Decimal("0.1")),
    (("x", ["null", "string"]), ("x", ["null", "string"], None), None, None),
    (("x", {**COLOURS, "symbols": ["RED", "GREEN"]}), ("x", COLOURS), "GREEN", "RED"),
    (("x", {"type": "array", "items": "int"}), ("x", {"type": "array", "items": "long"}),
     [1], [1]),
    (("x", {"type": "map", "values": "int"}), ("x", {"type": "map", "values": "long"}),
     {"a": 1}, {"a": 1}),
    (("x", {"type": "fixed", "name": "f", "size": 2}),
     ("x", {"type": "fixed", "name": "f", "size": 2}), b"ab", b"ab"),
    (("x", {"type": "long", "logicalType": "timestamp-millis"}),
     ("x", {"type": "long", "logicalType": "timestamp-millis"}),
     MOMENT, MOMENT.replace(microsecond=123000)),
]  # fmt: skip


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize(("old", "new", "value", "found"), EVOLVED)
def test_a_message_is_resolved_from_its_own_version_into_the_reader_s(
    kind: SchemaType, old: Any, new: Any, value: Any, found: Any
) -> None:
    writer, reader = SchemaInfo(kind, record(old)), SchemaInfo(kind, record(new))
    values = written(writer, [{old[0]: value}])
    assert read(reader, values, writer) == ([{"x": found}], {})


@pytest.mark.parametrize("kind", RECORDS)
def test_what_cannot_be_resolved_is_said(kind: SchemaType) -> None:
    writer = SchemaInfo(kind, record(("x", ["null", "string"])))
    reader = SchemaInfo(kind, record(("x", "int")))
    values, reasons = read(reader, [*written(writer, [{"x": "a"}]), None], writer)
    assert values == [None, None]
    assert list(reasons) == [0]


ROW = record(
    ("n", "int"), ("b", ["null", "bytes"], None), ("f", "float", 1), ("l", "boolean", False),
    ("a", {"type": "array", "items": "string"}, []), ("e", COLOURS, "RED"),
    ("d", {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, "\u0001"),
    ("m", {"type": "map", "values": "int"}, {}),
    ("t", {"type": "long", "logicalType": "timestamp-millis"}, 0),
    ("r", ["null", {"type": "record", "name": "in", "fields": [{"name": "z", "type": "int"}]}],
     None),
)  # fmt: skip
GOOD: dict[str, Any] = {
    "n": 1, "f": 1, "l": True, "a": [], "e": "BLUE", "d": "1", "m": {}, "t": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"n": "1"}, "value.n is '1'"),
        ({"n": 1 << 31}, "value.n"),
        ({"n": True}, "value.n"),
        ({"n": 1.0}, "value.n"),
        ({"n": None}, "value.n"),
        ({"b": "?"}, "value.b is no base64"),
        ({"b": 5}, "value.b"),
        ({"f": "x"}, "value.f"),
        ({"f": 1e39}, "value.f"),
        ({"l": 1}, "value.l"),
        ({"a": [1]}, r"value.a\[\]"),
        ({"a": {}}, "value.a"),
        ({"e": "GREEN"}, "none of RED, BLUE"),
        ({"d": "1.25"}, "no decimal"),
        ({"d": "100"}, "no decimal"),
        ({"d": "x"}, "no decimal"),
        ({"d": "NaN"}, "no decimal"),
        ({"m": {"k": "1"}}, r"value.m\[\]"),
        ({"t": (1 << 63) - 1}, "beyond all times"),
        ({"r": {}}, "value.r.z is"),
        ({"r": 1}, "value.r"),
    ],
)
def test_json_that_does_not_fit_says_where(change: dict[str, Any], why: str) -> None:
    schema = SchemaInfo(SchemaType.JSON, ROW)
    good = json.dumps(GOOD).encode()
    values, reasons = read(schema, [good, json.dumps(GOOD | change).encode(), None, good])
    assert values[0] == values[3] is not None
    assert values[1:3] == [None, None]
    assert list(reasons) == [1]
    with pytest.raises(ValueError, match=why):
        raise ValueError(reasons[1])


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"[1]", b"null", b'{"n":NaN}', b"[" * 100_000]
)
def test_what_is_no_json_object_does_not_fit(text: bytes) -> None:
    values, reasons = read(SchemaInfo(SchemaType.JSON, ROW), [text])
    assert values == [None]
    assert list(reasons) == [0]


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\x05a", b"\x02\x06gr\xff", b"\x02\x02ab"])
def test_what_is_no_such_avro_record_does_not_fit(data: bytes) -> None:
    schema = SchemaInfo(SchemaType.AVRO, record(("x", ["null", "string"])))
    values, reasons = read(schema, [data, b"\x02\x02a"])
    assert values == [None, {"x": "a"}]
    assert list(reasons) == [0]


@pytest.mark.parametrize("index", [-1, -2, 2])
def test_an_index_that_an_enum_does_not_have_is_no_symbol(index: int) -> None:
    writer = SchemaInfo(SchemaType.AVRO, record(("x", COLOURS), ("y", ["null", COLOURS["name"]])))
    newer = SchemaInfo(SchemaType.AVRO, record(("y", ["null", COLOURS]), ("x", "c")))
    number = io.BytesIO()
    fastavro.schemaless_writer(number, "int", index)
    values: list[bytes | None] = [number.getvalue() + b"\0", b"\2\2\2"]
    for reader in (writer, newer):
        found, reasons = read(reader, values, writer)
        assert found == [None, {"x": "BLUE", "y": "BLUE"}]
        assert list(reasons) == [0]


@pytest.mark.parametrize("index", [-1, -2, 2])
def test_an_index_that_a_union_does_not_have_is_no_branch(index: int) -> None:
    writer = SchemaInfo(SchemaType.AVRO, record(("x", ["null", "string"]), ("y", "string")))
    newer = SchemaInfo(SchemaType.AVRO, record(("y", "string"), ("x", ["null", "string"])))
    number = io.BytesIO()
    fastavro.schemaless_writer(number, "int", index)
    values: list[bytes | None] = [number.getvalue() + b"\2a\2b", b"\2\2a\2b"]
    for reader in (writer, newer):
        found, reasons = read(reader, values, writer)
        assert found == [None, {"x": "a", "y": "b"}]
        assert list(reasons) == [0]


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        (("x", "string"), None, "value.x is null"),
        (("x", COLOURS), "GREEN", "none of RED, BLUE"),
        (("x", {"type": "fixed", "name": "f", "size": 2}), b"abc", "3 bytes"),
    ],
)
def test_a_row_that_does_not_fit_its_definition_is_refused(
    kind: SchemaType, field: Any, value: Any, why: str
) -> None:
    with pytest.raises(InvalidMessageError, match=why):
        written(SchemaInfo(kind, record(field)), [{"x": value}])


@pytest.mark.parametrize("kind", RECORDS)
def test_a_field_that_no_column_gives_has_its_default(kind: SchemaType) -> None:
    schema = SchemaInfo(kind, record(("x", "int"), ("y", "string", "why"), ("z", "int")))
    narrow = StructType().add("x", IntegerType()).add("z", ByteType())
    assert read(schema, written(schema, [{"x": 1, "z": 2}], narrow)) == (
        [{"x": 1, "y": "why", "z": 2}], {},
    )  # fmt: skip
    with pytest.raises(InvalidMessageError, match=r"value\.z has no default"):
        written(schema, [{"x": 1}], StructType().add("x", IntegerType()))


@pytest.mark.parametrize(
    ("column", "schema", "why"),
    [
        (StringType(), SchemaInfo(SchemaType.INT32), "is string and has to be int"),
        (BinaryType(), SchemaInfo(SchemaType.STRING), "is binary and has to be string"),
        (StringType(), SchemaInfo(SchemaType.JSON, ROW), "takes a struct"),
        (StructType().add("q", LongType()), SchemaInfo(SchemaType.JSON, ROW), "field q"),
        (StructType().add("n", LongType()), SchemaInfo(SchemaType.AVRO, ROW), "value.n is bigint"),
        (
            StructType().add("a", ArrayType(LongType())),
            SchemaInfo(SchemaType.AVRO, ROW),
            r"value.a\[\] is bigint",
        ),
    ],
)
def test_a_column_of_another_type_is_refused(
    column: DataType, schema: SchemaInfo, why: str
) -> None:
    with pytest.raises(InvalidMessageError, match=why):
        check_fits(column, schema)


@pytest.mark.parametrize(
    ("struct", "why"),
    [
        (StructType(), "without fields"),
        (StructType().add("a b", LongType()), "'a b'"),
        (StructType().add("x", NullType()), "value.x is void"),
        (StructType().add("x", MapType(LongType(), LongType())), "value.x is map"),
    ],
)
def test_a_struct_that_no_definition_can_say_is_refused(struct: StructType, why: str) -> None:
    with pytest.raises(InvalidMessageError, match=why):
        definition_of(struct)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (("x", ["int", "string"]), "more than one type"),
        (("x", ["null", "r"]), "contains itself"),
        (("x", "null"), "value.x is null"),
        (("x", {"type": "record", "name": "q", "fields": []}), "without fields"),
    ],
)
def test_a_definition_for_which_spark_has_no_type_is_refused(field: Any, why: str) -> None:
    with pytest.raises(InvalidSchemaDataError, match=why):
        spark_type(SchemaInfo(SchemaType.AVRO, record(field)))
