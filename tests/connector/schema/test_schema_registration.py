"""Schemas come into a topic's log once, whoever registers at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from pulsar_spark.connector.runtime.schema.schema_registration import (
    SinkSchema,
    look_ahead,
    register,
)
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import change_policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.schema_types import definition_of
from pulsar_spark.connector.spark.stream_writer import sink_schema
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import CorruptFileError, IncompatibleSchemaError
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.topic_name import NamespaceName, TopicName
from tests.connector.topics import files_below, ledger_of, options_of, send

TOPIC = TopicName.parse("t")
DEFAULT = NamespaceName("public", "default")


def json_schema(*fields: str) -> SinkSchema:
    row = StructType()
    for field in fields:
        row = row.add(field, LongType())
    return SinkSchema(SchemaInfo(SchemaType.JSON, definition_of(row)))


def topic(root: Path) -> ManagedLedger:
    """As another process sees it."""
    managed_ledger._cache.clear()
    return Root.of(options_of(root)).open_or_create(TOPIC, 1)


def test_a_schema_is_registered_once_and_known_again(root: Path) -> None:
    assert register(topic(root), TOPIC, json_schema("a")) == 0
    number = topic(root).state.number
    assert register(topic(root), TOPIC, json_schema("a")) == 0
    assert topic(root).state.number == number
    assert register(topic(root), TOPIC, json_schema("a", "b")) == 1
    assert [info.to_json_value() for info in topic(root).state.schemas.schemas] == [
        json_schema("a").info.to_json_value(), json_schema("a", "b").info.to_json_value(),
    ]  # fmt: skip


def test_who_loses_the_race_is_checked_against_who_won(root: Path) -> None:
    first, second, third = topic(root), topic(root), topic(root)
    assert register(first, TOPIC, json_schema("a")) == 0
    assert register(second, TOPIC, json_schema("a")) == 0
    other = SinkSchema(SchemaInfo(SchemaType.STRING))
    with pytest.raises(IncompatibleSchemaError, match="exists schema type JSON, new schema type"):
        register(third, TOPIC, other)
    assert len(topic(root).state.schemas.schemas) == 1


def _register(root: Path, field: str) -> None:
    register(topic(root), TOPIC, json_schema("a", field))


def test_many_processes_that_register_at_once_get_a_version_each(root: Path) -> None:
    topic(root)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_register, args=(root, f"f{n % 3}")) for n in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    fields = [info.avro().fields[1].name for info in topic(root).state.schemas.schemas]
    assert sorted(fields) == ["f0", "f1", "f2"]


def _register_and_die(root: Path) -> None:
    ledger = topic(root)
    put = ledger.store.put_if_absent

    def put_and_die(path: str, data: bytes) -> bool:
        put(path, data)
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    object.__setattr__(ledger.store, "put_if_absent", put_and_die)
    register(ledger, TOPIC, json_schema("a"))


def test_who_is_killed_after_the_commit_has_registered(root: Path) -> None:
    topic(root)
    process = multiprocessing.get_context("spawn").Process(target=_register_and_die, args=(root,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert register(topic(root), TOPIC, json_schema("a")) == 0


def test_looking_ahead_changes_nothing(root: Path) -> None:
    here = Root.of(options_of(root))
    look_ahead(here, TOPIC, json_schema("a"))
    assert not files_below(root)
    register(topic(root), TOPIC, json_schema("a"))
    before = files_below(root)
    look_ahead(here, TOPIC, json_schema("a", "b"))
    with pytest.raises(IncompatibleSchemaError, match="Nothing was published"):
        look_ahead(here, TOPIC, SinkSchema(SchemaInfo(SchemaType.INT8)))
    assert files_below(root) == before


def test_the_topic_s_strategy_comes_before_its_namespace_s(root: Path) -> None:
    store = open_store(str(root))
    string = SinkSchema(SchemaInfo(SchemaType.STRING))
    register(topic(root), TOPIC, json_schema("a"))
    change_policies(store, DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "schema_compatibility_strategy": "FULL"}
    )
    with pytest.raises(IncompatibleSchemaError, match="STRING"):
        register(topic(root), TOPIC, string)
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "schema_compatibility_strategy": None}
    )
    assert register(topic(root), TOPIC, string) == 1
    change_policies(store, DEFAULT, is_allow_auto_update_schema=False)
    with pytest.raises(IncompatibleSchemaError, match="auto update is disabled"):
        register(topic(root), TOPIC, json_schema("b"))
    assert register(topic(root), TOPIC, json_schema("a")) == 0
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "is_allow_auto_update_schema": True}
    )
    assert register(topic(root), TOPIC, json_schema("b")) == 2


def test_who_has_no_schema_is_refused_where_a_topic_with_one_enforces_it(root: Path) -> None:
    store = open_store(str(root))
    change_policies(store, DEFAULT, schema_validation_enforced=True)
    send(root, "t", ["without a schema there is none to enforce"])
    register(topic(root), TOPIC, json_schema("a"))
    before = files_below(root)
    with pytest.raises(IncompatibleSchemaError, match=r"type JSON.* give schemaType\. Nothing was"):
        send(root, "t", ["a"])
    with pytest.raises(IncompatibleSchemaError, match="type JSON"):
        look_ahead(Root.of(options_of(root)), TOPIC, None)
    assert files_below(root) == before
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "schema_validation_enforced": False}
    )
    send(root, "t", ["the topic comes before its namespace"])
    change_policies(store, DEFAULT, schema_validation_enforced=None)
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "schema_validation_enforced": True}
    )
    with pytest.raises(IncompatibleSchemaError, match="type JSON"):
        send(root, "t", ["a"])
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "schema_validation_enforced": None}
    )
    send(root, "t", ["and nobody says it"])


def test_schemas_outlive_a_snapshot(root: Path) -> None:
    register(topic(root), TOPIC, json_schema("a"))
    topic(root).write_snapshot()
    register(topic(root), TOPIC, json_schema("a", "b"))
    assert len(topic(root).state.schemas.schemas) == 2
    assert register(topic(root), TOPIC, json_schema("a", "b")) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"schemas":{"1":{"type":"STRING"}}',
        '"schemas":{"0":{"type":"TEXT"}}',
        '"schemas":{"0":{"type":"JSON"}}',
        '"schemas":{"0":{"type":"STRING","x":1}}',
        '"schemas":{"0":5}',
    ],
)
def test_a_commit_with_schemas_that_are_none_is_refused(root: Path, text: str) -> None:
    register(topic(root), TOPIC, SinkSchema(SchemaInfo(SchemaType.STRING)))
    (path,) = (each for each in root.rglob("*.json") if "schemas" in each.read_text())
    path.write_text(path.read_text().replace('"schemas":{"0":{"type":"STRING"}}', text))
    with pytest.raises(CorruptFileError, match=path.name):
        topic(root)


def test_a_column_and_its_schema_go_together(root: Path) -> None:
    given = {"schemaType": "JSON", "schema": definition_of(StructType().add("a", LongType()))}
    row = StructType().add("value", StructType().add("a", IntegerType()))
    found = sink_schema(options_of(root, given=given), row)
    assert found == json_schema("a")
    plain = StructType().add("value", StringType())
    assert sink_schema(options_of(root), plain) is None
