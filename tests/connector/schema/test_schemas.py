"""Schemas on real Spark: written with a type, registered, read as a type again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import pulsar_spark
from pulsar_spark.errors import IncompatibleSchemaError
from tests.connector.topics import files_below, ledger_of, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

VALUES: dict[str, tuple[str, Any]] = {  # the value column, and what of it is read
    "STRING": ("concat('grün ', id)", lambda n: f"grün {n}"),
    "INT8": ("cast(id as tinyint)", int),
    "INT16": ("cast(id as smallint)", int),
    "INT32": ("cast(id as int)", int),
    "INT64": ("id", int),
    "FLOAT": ("cast(id / 2 as float)", lambda n: n / 2),
    "DOUBLE": ("cast(id as double) / 2", lambda n: n / 2),
    "BOOLEAN": ("id % 2 = 1", lambda n: n % 2 == 1),
    "BYTES": ("encode(cast(id as string), 'utf-8')", lambda n: str(n).encode()),
    "JSON": ("struct(id, array(id) as ids, map('k', id) as m)", None),
    "AVRO": ("struct(id, array(id) as ids, map('k', id) as m)", None),
}


def write(frame: DataFrame, root: Path, **given: object) -> None:
    options = {"topic": "t", **{name: str(value) for name, value in given.items()}}
    frame.write.format("pulsarlite").mode("append").options(**options).save(str(root))


def read(spark: SparkSession, root: Path, **given: str) -> DataFrame:
    reader = spark.read.format("pulsarlite").option("topic", "t")
    return reader.options(**{"valueSchema": "auto", **given}).load(str(root))


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_each_type_is_read_as_it_was_written(
    spark: SparkSession, root: Path, name: str
) -> None:
    text, expected = VALUES[name]
    column = f"if(id = 3, null, {text})"
    rows = spark.sql(f"select cast(id as string) as key, {column} as value from range(5)")
    write(rows, root, schemaType=name)
    given = {"valueSchema": "auto"} if name != "BYTES" else {}
    frame = spark.read.format("pulsarlite").options(topic="t", **given).load(str(root))
    found = {int(row.key): row.value for row in frame.collect()}
    for number in range(5):
        if number == 3:
            assert found[number] is None
        elif expected is None:
            row = {"id": number, "ids": [number], "m": {"k": number}}
            assert found[number].asDict() == row
        else:
            assert found[number] == expected(number)
    versions = {row.schema_version for row in frame.collect()}
    assert versions == ({None} if name == "BYTES" else {0})


@pytest.mark.parametrize("name", ["JSON", "AVRO"])
def test_several_versions_are_read_in_one_micro_batch(
    spark: SparkSession, root: Path, tmp_path: Path, name: str
) -> None:
    write(spark.sql("select struct(1L as id) as value"), root, schemaType=name)
    newer = "select struct(2L as id, 'b' as note) as value"
    write(spark.sql(newer), root, schemaType=name)
    write(spark.sql("select struct(3L as id) as value"), root, schemaType=name)
    frame = (
        spark.readStream.format("pulsarlite")
        .options(topic="t", startingOffsets="earliest", valueSchema="auto")
        .load(str(root))
    )
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,note:string>"
    query = (
        frame.selectExpr("value.*", "schema_version")
        .writeStream.format("memory").queryName(f"several_{name.lower()}")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    rows = spark.table(f"several_{name.lower()}").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, None, 0), (2, "b", 1), (3, None, 0)]
    older = spark.read.format("pulsarlite").schema("value struct<id:bigint>")
    ids = older.options(topic="t", valueSchema="auto").load(str(root)).collect()
    assert sorted(row.value.id for row in ids) == [1, 2, 3]


@pytest.mark.parametrize("name", ["JSON", "AVRO"])
def test_a_typed_stream_goes_on_from_its_checkpoint_also_with_a_newer_schema(
    spark: SparkSession, root: Path, tmp_path: Path, name: str
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run(number: int, fields: str, **given: str) -> None:
        line = {"id": number, "note": f"n{number}", "tags": ["a", "b"]}
        (source / f"{number}.json").write_text(json.dumps(line), encoding="utf-8")
        frame = spark.readStream.schema("id long, note string, tags array<string>")
        rows = frame.json(str(source)).selectExpr(f"struct({fields}) as value", "note as key")
        writer = rows.writeStream.format("pulsarlite").options(topic="t", schemaType=name, **given)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        assert writer.start(str(root)).awaitTermination(120)

    run(0, "id, tags")
    run(1, "id, tags")
    # As if the process had been killed after the sink's commit and before Spark's own.
    for file in ("1", ".1.crc"):
        (checkpoint / "commits" / file).unlink()
    run(2, "id, tags, note")  # repeats micro-batch 1, which is there, by its older schema
    run(3, "id, tags, note")
    found = read(spark, root).orderBy("value.id").collect()
    assert [row.value.asDict() for row in found] == [
        {"id": number, "tags": ["a", "b"], "note": f"n{number}" if number > 1 else None}
        for number in range(4)
    ]
    assert [(row.key, row.schema_version) for row in found] == [
        ("n0", 0), ("n1", 0), ("n2", 1), ("n3", 1),
    ]  # fmt: skip
    with pytest.raises(
        PySparkException, match=r"INCOMPATIBLE_SCHEMA.*field id is long, not null or string"
    ):
        run(4, "cast(id as string) as id, tags, note")
    assert read(spark, root).count() == 4


def test_a_schema_that_does_not_fit_is_refused_and_nothing_is_stored(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    write(spark.sql("select struct(1L as id) as value"), root, schemaType="JSON")
    before = files_below(root)
    frames = {
        "exists schema type JSON, new schema type STRING": ("select 'a' as value", "STRING"),
        "field id is long, not null or boolean": ("select struct(true as id) as value", "JSON"),
        "exists schema type JSON, new schema type AVRO": (
            "select struct(1L as id) as value", "AVRO",
        ),
        "cast it": ("select 'a' as value", "INT64"),
        "takes a struct": ("select 'a' as value", "AVRO"),
    }  # fmt: skip
    for why, (text, name) in frames.items():
        with pytest.raises(PySparkException, match=why):
            write(spark.sql(text), root, schemaType=name)
    stream = spark.readStream.format("rate").load().selectExpr("'a' as value")
    with pytest.raises(PySparkException, match=r"INCOMPATIBLE_SCHEMA.*Nothing was published"):
        stream.writeStream.format("pulsarlite").options(
            topic="t", schemaType="STRING", checkpointLocation=str(tmp_path / "c")
        ).start(str(root)).awaitTermination(120)
    other = spark.sql("select 'a' as value, 't' as topic")
    with pytest.raises(PySparkException, match="exists schema type JSON, new schema type STRING"):
        write(other, root, schemaType="STRING", topic="u")  # seen only by the task
    after = files_below(root)
    assert {name: data for name, data in after.items() if name in before} == before
    assert not [name for name in after if name.endswith(".parquet") and name not in before]


def test_a_sink_without_a_schema_is_refused_where_validation_is_enforced(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    write(spark.sql("select struct(1L as id) as value"), root, schemaType="JSON")
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "schema_validation_enforced": True}
    )
    before = files_below(root)
    why = r"INCOMPATIBLE_SCHEMA.*takes no messages without one: give schemaType"
    rows = spark.sql("select 'a' as value, 't' as topic")
    with pytest.raises(PySparkException, match=why):
        write(rows.drop("topic"), root)
    with pytest.raises(PySparkException, match=why):
        write(rows, root, topic="u")  # seen only by the task
    stream = spark.readStream.format("rate").load().selectExpr("'a' as value")
    with pytest.raises(PySparkException, match=why):
        stream.writeStream.format("pulsarlite").options(
            topic="t", checkpointLocation=str(tmp_path / "c")
        ).start(str(root)).awaitTermination(120)
    with (
        pytest.raises(IncompatibleSchemaError, match="give schemaType"),
        pulsar_spark.transaction(service_url=str(root)) as txn,
    ):
        txn.write(rows.drop("topic"), topic="t")
    assert {k: v for k, v in files_below(root).items() if "/u/" not in k} == before
    write(spark.sql("select struct(2L as id) as value"), root, schemaType="JSON")
    assert read(spark, root).count() == 2


def test_a_value_that_does_not_fit_ends_the_query_or_is_null_with_its_reason(
    spark: SparkSession, root: Path
) -> None:
    write(spark.sql("select struct(1L as id) as value"), root, schemaType="JSON")
    send(root, "t", ['{"id":2}', '{"id":"x"}', None])
    with pytest.raises(PySparkException, match=r"Message 1:0:0:1 of \S*/t .*value\.id is 'x'"):
        read(spark, root).collect()
    frame = read(spark, root, onSchemaMismatch="null")
    rows = frame.orderBy("ledger_id", "batch_index").collect()
    assert [row.value and row.value.id for row in rows] == [1, 2, None, None]
    reasons = [row.schema_error for row in rows]
    assert reasons == [None, None, "value.id is 'x', and no whole number below 9223372036854775808",
                       None]  # fmt: skip
    assert frame.where("schema_error is not null").count() == 1
    only = spark.read.format("pulsarlite").schema("schema_error string, key string")
    options = {"topic": "t", "valueSchema": "auto", "onSchemaMismatch": "null"}
    found = only.options(**options).load(str(root)).collect()
    assert sorted(row.schema_error is not None for row in found) == [False, False, False, True]


def test_bad_wishes_of_a_source_are_refused_when_the_frame_is_made(
    spark: SparkSession, root: Path
) -> None:
    send(root, "t", ["a"])
    with pytest.raises(PySparkException, match="t has no schema"):
        read(spark, root)
    with pytest.raises(PySparkException, match="onSchemaMismatch needs valueSchema"):
        spark.read.format("pulsarlite").options(topic="t", onSchemaMismatch="null").load(str(root))
    with pytest.raises(PySparkException, match="needs a subscription with a dead letter topic"):
        read(spark, root, onSchemaMismatch="deadLetter")
    write(spark.sql("select 1L as value"), root, schemaType="INT64")
    with pytest.raises(PySparkException, match=r"value is string, and by the schemas .* bigint"):
        spark.read.format("pulsarlite").schema("value string").options(
            topic="t", valueSchema="auto"
        ).load(str(root)).collect()
    with pytest.raises(PySparkException, match="schema_error needs valueSchema"):
        spark.read.format("pulsarlite").schema("schema_error string").options(topic="t").load(
            str(root)
        ).collect()


def test_a_given_definition_is_registered_as_it_is(spark: SparkSession, root: Path) -> None:
    definition: dict[str, Any] = {
        "type": "record", "name": "Order", "namespace": "shop", "doc": "An order", "fields": [
            {"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
    }  # fmt: skip
    given = {"schemaType": "AVRO", "schema": json.dumps(definition)}
    write(spark.sql("select struct(1 as id) as value"), root, **given)
    assert read(spark, root).collect()[0].value.asDict() == {"id": 1, "note": "-"}
    assert ledger_of(root, "t").state.schemas.to_json_value() == [
        {"type": "AVRO", "schema": json.dumps(definition)}
    ]


def test_the_example_of_the_page_runs(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[3] / "docs" / "schemas.md"
    _, example = page.read_text(encoding="utf-8").split("```python\n")
    exec(example.partition("```")[0], {"spark": spark, "root": str(root)})
    shown = capsys.readouterr().out
    assert [line.split("|")[1:4] for line in shown.splitlines() if "." in line] == [
        ["  1", "  9.5", "             0"], ["  2", "  3.0", "             0"],
    ]  # fmt: skip
