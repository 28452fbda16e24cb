"""Values that no schema allows: each is a mismatch of one message, and its neighbours are read."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructType

from pulsar_spark.connector.runtime.broker.republishing import ANY_SCHEMA
from pulsar_spark.connector.runtime.publishing.message_writer import write_messages
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.schema.schema_codec import encoder
from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, register
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.schema_types import spark_type
from pulsar_spark.errors import InvalidMessageError, InvalidSchemaDataError, SchemaMismatchError
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Scope
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import Run, messages
from tests.connector.schema.test_schema_codec import record
from tests.connector.topics import files_below, options_of, send

pytestmark = pytest.mark.usefixtures("impatient")


def varint(number: int) -> bytes:
    """Avro's form of a whole number, of however many bits."""
    rest, out = (number << 1 if number >= 0 else ~(number << 1)), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
JSON_FIELDS: dict[str, tuple[Any, list[str]]] = {
    "text": ("string", ['"\\ud800"', '"a\\udc00b"', "1", "[]"]),
    "data": ("bytes", ['"\\ud800"', '"?"', '"grün"', "5"]),
    "enum": ({"type": "enum", "name": "e", "symbols": ["A"]}, ['"\\ud800"', '"B"', '["A"]', "{}"]),
    "two": ({"type": "fixed", "name": "f", "size": 2}, ['"YQ=="', '"\\ud800"']),
    "int": ("int", [str(1 << 31), "1.0", "true", "9" * 5_000]),
    "long": ("long", [str(1 << 63), "9" * 400, "1e3"]),
    "float": ("float", ["1e39", "9" * 400, "1e999", "NaN", '"nan"']),
    "double": ("double", ["9" * 400, "-" + "9" * 400, "1e999", "-1e999", "Infinity", '"1"']),
    "price": (DECIMAL, [
        '"1e999999"', "1e999999", '"1e9999999999999999999"', '"1e-999999"', '"NaN"', '"sNaN"',
        '"Infinity"', f'"1.{"0" * 200}1"', f"1.{'0' * 200}1", "9" * 39, "true", '"\\ud800"',
        '"0.12345678901"', "0.12345678901",
    ]),
    "day": ({"type": "int", "logicalType": "date"}, [str(1 << 31), '"2026-01-01"']),
    "millis": ({"type": "long", "logicalType": "timestamp-millis"}, [str(1 << 62), str(1 << 63)]),
    "micros": ({"type": "long", "logicalType": "timestamp-micros"}, [str(1 << 63), '"now"']),
    "list": ({"type": "array", "items": "string"}, ['["a","\\ud800"]', "[null]", "{}"]),
    "map": ({"type": "map", "values": "long"}, ['{"\\ud800":1}', '{"a":null}', "[]"]),
    "inner": ({"type": "record", "name": "i", "fields": [{"name": "x", "type": "string"}]},
              ['{"x":"\\ud800"}', "{}", '{"x":{"x":1}}', '{"x":"a","x":1}']),
}  # fmt: skip
"""Field -> its type, and JSON that is none of its values."""
ROW = SchemaInfo(
    SchemaType.JSON, record(*((n, ["null", kind], None) for n, (kind, _) in JSON_FIELDS.items()))
)
NO_RECORDS = [
    b"", b"{", b"\xff", b"null", b"[]", b"1", b"\x00", b'{"int":1}}', b'{"int":1',
    b"\xef\xbb\xbf{}", '{"int":1}'.encode("utf-16"), b"[" * 100_000, b'{"text":' * 100_000,
    b'{"text":"\xed\xa0\x80"}',
    b'{"int":' + b"[" * 900 + b"]" * 900 + b"}",
]  # fmt: skip


def avro(kind: Any) -> SchemaInfo:
    return SchemaInfo(SchemaType.AVRO, record(("x", kind)))


MISMATCH = r"Message 0:(0:0:1|1:0:0) of .*/t .*does not fit"
"""The second message; one that is large is an entry of its own."""
BOMB = varint(1 << 62)
TEXT = varint(1) + b"a"
MOMENT = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
CASES: dict[str, tuple[SchemaInfo, bytes, Any, list[bytes]]] = {
    "JSON": (ROW, b'{"int":7}', {**dict.fromkeys(JSON_FIELDS), "int": 7}, [
        *NO_RECORDS,
        *(f'{{"{n}":{text}}}'.encode() for n, (_, texts) in JSON_FIELDS.items() for text in texts),
    ]),
    "STRING": (SchemaInfo(SchemaType.STRING), b"a", "a", [b"\xff", b"\xed\xa0\x80", b"a\xc3"]),
    "INT32": (SchemaInfo(SchemaType.INT32), b"\0\0\0\1", 1, [b"", b"\0", b"\0" * 8]),
    "DOUBLE": (SchemaInfo(SchemaType.DOUBLE), b"\0" * 8, 0.0, [b"", b"\0" * 4, b"\0" * 9]),
    "BOOLEAN": (SchemaInfo(SchemaType.BOOLEAN), b"\1", True, [b"", b"\0\0"]),
    "AVRO int": (avro("int"), varint(5), {"x": 5}, [
        b"", b"\x80", varint(1 << 31), varint(-(1 << 31) - 1), varint(5) + b"\0"]),
    "AVRO string": (avro("string"), TEXT, {"x": "a"}, [
        b"", varint(2) + b"a", BOMB + b"a", varint(1) + b"\xff", varint(3) + b"\xed\xa0\x80"]),
    "AVRO bytes": (avro("bytes"), TEXT, {"x": b"a"}, [varint(2) + b"a", BOMB]),
    "AVRO fixed": (avro(JSON_FIELDS["two"][0]), b"ab", {"x": b"ab"}, [b"", b"a", b"abc"]),
    "AVRO double": (avro("double"), b"\0" * 8, {"x": 0.0}, [b"", b"\0" * 7, b"\0" * 9]),
    "AVRO enum": (avro(JSON_FIELDS["enum"][0]), varint(0), {"x": "A"}, [
        varint(1), varint(1 << 40)]),
    "AVRO decimal": (avro(DECIMAL), varint(1) + b"\x05", {"x": Decimal("5E-10")}, [
        varint(17) + b"\x7f" * 17, varint(1_000) + b"\x7f" * 1_000, BOMB]),
    "AVRO date": (avro({"type": "int", "logicalType": "date"}), varint(0), {"x": MOMENT.date()}, [
        varint(1 << 31), varint(1 << 40)]),
    "AVRO millis": (avro(JSON_FIELDS["millis"][0]), varint(0), {"x": MOMENT}, [
        varint(1 << 62), varint(-(1 << 63))]),
    "AVRO union": (avro(["null", "string"]), varint(1) + TEXT, {"x": "a"}, [
        varint(2) + TEXT, varint(1 << 40), varint(1)]),
    "AVRO array": (avro({"type": "array", "items": "boolean"}), varint(1) + b"\1\0",
                   {"x": [True]}, [
        BOMB, BOMB + b"\1" * 50, varint(-(1 << 62)) + varint(3), varint(2) + b"\1\0", b"\x02"]),
    "AVRO map": (avro({"type": "map", "values": "int"}), varint(1) + TEXT + varint(3) + b"\0",
                 {"x": {"a": 3}}, [
        BOMB, varint(1) + varint(1) + b"\xff" + varint(3) + b"\0",
        varint(1) + TEXT + varint(1 << 31) + b"\0"]),
}  # fmt: skip
"""Name -> schema, a value's bytes, the value, and bytes that are none."""


def topic_of(root: Path | str, schema: SchemaInfo, values: Sequence[bytes]) -> None:
    place = Root.of(options_of(root))
    name = TopicName.parse("t")
    register(place.open_or_create(name, 1), name, SinkSchema(schema))
    send(root, "t", values)


def read(root: Path | str, schema: SchemaInfo, mismatch: str) -> list[dict[str, Any]]:
    """What a Reader has of each message: value and schema_error."""
    columns = read_schema(
        include_properties=False, value=spark_type(schema), schema_errors=mismatch == "null"
    )
    run = Run(root, topic="t", startingOffsets="earliest", schema=columns, valueSchema="auto",
              onSchemaMismatch=mismatch)  # fmt: skip
    return [message for batch in run.all() for message in batch.messages]


def plain(value: Any) -> Any:
    """With maps as dicts, which Arrow gives as lists of pairs."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key: plain(each) for key, each in value}
    return value


@pytest.mark.parametrize("name", CASES)
def test_poison_is_null_with_its_reason_and_its_neighbours_are_read(root: Path, name: str) -> None:
    schema, good, value, poisons = CASES[name]
    values = [good, *(each for poison in poisons for each in (poison, good))]
    topic_of(root, schema, values)
    found = read(root, schema, "null")
    requested = [value, *([None, value] * len(poisons))]
    for stored, message, expected in zip(values, found, requested, strict=True):
        assert plain(message["value"]) == expected, stored[:100]
        assert bool(message["schema_error"]) == (expected is None), stored[:100]
        assert len(message["schema_error"] or "") <= 1_000


@pytest.mark.parametrize("name", CASES)
def test_poison_ends_a_source_by_an_error_that_names_the_message(root: Path, name: str) -> None:
    schema, good, _, poisons = CASES[name]
    for place, poison in enumerate(poisons):
        folder = root / str(place)
        topic_of(folder, schema, [good, poison, good])
        with pytest.raises(SchemaMismatchError, match=MISMATCH):
            read(folder, schema, "fail")


@pytest.mark.parametrize("name", CASES)
def test_poison_goes_to_the_dead_letters_and_nothing_else_does(root: Path, name: str) -> None:
    schema, good, value, poisons = CASES[name]
    topic_of(root, schema, [good, *(each for poison in poisons for each in (poison, good))])
    broker = PlainBroker(root, "_broker/c")
    columns = read_schema(include_properties=False, consumer=True, value=spark_type(schema))
    consumer = Run(
        root, topic="t", subscriptionName="s", subscriptionInitialPosition="Earliest",
        subscriptionType="Shared", maxRedeliverCount=3, schema=columns, valueSchema="auto",
        onSchemaMismatch="deadLetter",
    )  # fmt: skip
    found: list[Any] = []
    for _ in range(4):
        batch = consumer.next()
        found += [plain(each["value"]) for each in batch.messages] if batch else []
        broker.until_quiet()
    assert found == [value] * (len(poisons) + 1)
    dead_letters = [letter["value"] for letter in messages(root, "t-s-DLQ")]
    assert sorted(dead_letters) == sorted(poisons)  # By reason, not by place.


def test_a_time_that_python_does_not_have_is_a_value(root: Path) -> None:
    schema, good, value, _ = CASES["AVRO millis"]
    topic_of(root, schema, [good, varint(255_100_000_000_000), good])  # in the year 10053
    first, strange, last = read(root, schema, "null")
    assert first["value"] == last["value"] == value
    assert strange["value"]
    assert strange["schema_error"] is None


def mutated(data: bytes, draw: st.DrawFn) -> bytes:
    place = draw(st.integers(0, len(data)))
    kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
    if kind == "flip" and place < len(data):
        return (
            data[:place] + bytes([data[place] ^ 1 << draw(st.integers(0, 7))]) + data[place + 1 :]
        )
    if kind == "insert":
        return data[:place] + draw(st.binary(max_size=12)) + data[place:]
    return data[:place] if kind == "cut" else data[:place] + data[:place] + data[place:]


@st.composite
def hostile(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A case, and values made of its own by some mutations."""
    name = draw(st.sampled_from(sorted(CASES)))
    _, good, _, poisons = CASES[name]
    values = []
    for _ in range(draw(st.integers(1, 8))):
        value = draw(st.sampled_from([good, *(each for each in poisons if len(each) < 500)]))
        for _ in range(draw(st.integers(0, 3))):
            value = mutated(value, draw)
        values.append(value)
    return name, values


@settings(max_examples=60, deadline=None)
@given(drawn=hostile())
def test_whatever_the_bytes_are_a_source_goes_on(drawn: tuple[str, list[bytes]]) -> None:
    name, values = drawn
    schema, good, value, _ = CASES[name]
    with tempfile.TemporaryDirectory() as root:
        topic_of(root, schema, [good, *(each for hostile in values for each in (hostile, good))])
        found = read(root, schema, "null")
    assert [plain(each["value"]) for each in found[::2]] == [value] * (len(values) + 1)
    for message in found[1::2]:
        assert (message["value"] is None) == bool(message["schema_error"])


def test_a_decimal_that_is_a_number_of_json_keeps_its_digits(root: Path) -> None:
    topic_of(root, ROW, [b'{"price":1234567890123456789.0123456789,"double":0.1}'])
    ((message),) = read(root, ROW, "fail")
    assert message["value"]["price"] == Decimal("1234567890123456789.0123456789")
    assert message["value"]["double"] == 0.1


NO_TYPE: dict[str, Any] = {
    "contains itself": ["null", "r"],
    "a list of nothing": {"type": "array", "items": {"type": "fixed", "name": "n", "size": 0}},
    "several types": ["int", "string"],
}


@pytest.mark.parametrize("kind", [SchemaType.JSON, SchemaType.AVRO])
@pytest.mark.parametrize("odd", NO_TYPE)
def test_a_value_by_a_schema_without_a_spark_type_does_not_fit(
    root: Path, kind: SchemaType, odd: str
) -> None:
    schema = SchemaInfo(kind, record(("x", "int", 0)))
    writer = SchemaInfo(kind, record(("x", "int", 0), ("odd", NO_TYPE[odd])))
    place, name = Root.of(options_of(root)), TopicName.parse("t")
    ledger = place.open_or_create(name, 1)
    register(ledger, name, SinkSchema(writer))
    bombs = [b"\x02" * 100_000, varint(0) + varint(1 << 40), b'{"x":1}']
    options = options_of(root, Scope.WRITE, {"topic": "t"})
    batch = pa.record_batch({"value": pa.array(bombs, pa.binary())})
    encoded = SinkSchema(writer, encoded=True)
    publish(place, write_messages([batch], options, place, encoded), None)
    register(ledger, name, SinkSchema(schema, ANY_SCHEMA))
    found = read(root, schema, "null")
    assert [each["value"] for each in found] == [None] * 3
    assert all("for which Spark has no type" in each["schema_error"] for each in found)


@pytest.mark.parametrize("deep", [200, 20_000])
def test_a_definition_that_is_nested_too_deeply_is_refused(deep: int) -> None:
    definition = '{"type":"array","items":' * deep + '"int"' + "}" * deep
    with pytest.raises(InvalidSchemaDataError, match=r"types within types|nested too deeply"):
        SchemaInfo(SchemaType.AVRO, definition).avro()


# -- sinks -----------------------------------------------------------------------------------------


def no_texts(values: Sequence[bytes]) -> pa.Array:
    """A column of Spark's strings, which may be any bytes."""
    return pa.array(values, pa.binary()).view(pa.string())


ODD: dict[str, pa.Array] = {
    "key": no_texts([b"a", b"\xff"]),
    "producer_name": no_texts([b"a", b"\xed\xa0\x80"]),
    "topic": no_texts([b"t", b"\xff"]),
    "properties": pa.MapArray.from_arrays(
        [0, 1, 2], no_texts([b"a"] * 2), no_texts([b"a", b"\xff"])
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_a_sink_refuses_a_text_that_is_no_utf_8_by_row_and_column(root: Path, name: str) -> None:
    with pytest.raises(InvalidMessageError, match=f"Column {name} in row 1 .*utf-8"):
        send(root, "t", ["a", "b"], columns={name: ODD[name]})
    assert not files_below(root)


STRUCT = StructType().add("x", StringType())


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (SchemaInfo(SchemaType.STRING), no_texts([b"a", b"\xff"])),
        *(
            (SchemaInfo(kind, record(("x", "string"))),
             pa.StructArray.from_arrays([no_texts([b"a", b"\xff"])], ["x"]))
            for kind in (SchemaType.JSON, SchemaType.AVRO)
        ),
        *(
            (SchemaInfo(kind, record(("x", {"type": "map", "values": "int"}))),
             pa.array([{"x": [("a", 1)]}, {"x": [("a", 1), ("a", 2)]}],
                      pa.struct({"x": pa.map_(pa.string(), pa.int32())})))
            for kind in (SchemaType.JSON, SchemaType.AVRO)
        ),
        (
            SchemaInfo(SchemaType.AVRO, record(
                ("x", {"type": "fixed", "name": "f", "size": 1, "logicalType": "decimal",
                       "precision": 4, "scale": 0}))),
            pa.array([{"x": Decimal(1)}, {"x": Decimal(4000)}], pa.struct({"x": pa.decimal128(4)})),
        ),
    ],
)  # fmt: skip
def test_a_sink_names_the_row_whose_value_cannot_be_written(
    schema: SchemaInfo, column: pa.Array
) -> None:
    with pytest.raises(InvalidMessageError, match="Column value in row 1 of an Arrow batch"):
        encoder(schema)(column)
