"""Typed values of consumers: what does not fit becomes a dead letter, and is told once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType

from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.publishing.message_writer import write_messages
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, register
from pulsar_spark.connector.runtime.topics.policies import change_policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.functions.processing import Message, Processor
from pulsar_spark.connector.spark.schema_types import definition_of
from pulsar_spark.errors import SchemaMismatchError
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.topic_name import NamespaceName, TopicName
from tests.connector.ack_sink.test_acknowledging import write
from tests.connector.functions.test_batch_transaction import backlog
from tests.connector.reading import Batch, Run, messages
from tests.connector.topics import ledger_of, options_of, send

ORDER = StructType().add("id", LongType())
INFO = SchemaInfo(SchemaType.JSON, definition_of(ORDER))
GIVEN: dict[str, Any] = {
    "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
    "subscriptionType": "Shared", "valueSchema": "auto", "maxRedeliverCount": 3,
}  # fmt: skip


@pytest.fixture
def loop(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedBroker:
    place = Root.of(options_of(root))
    ledger = place.open_or_create(TopicName.parse("t"), 1)
    register(ledger, TopicName.parse("t"), SinkSchema(INFO))
    send(root, "t", ['{"id":1}', '{"id":"x"}', None, '{"id":4}', "{"])
    return EmbeddedBroker(place, "_broker/c")


def run(root: Path, mismatch: str, **more: Any) -> Run:
    schema = read_schema(include_properties=False, consumer=True, value=ORDER)
    return Run(root, schema=schema, onSchemaMismatch=mismatch, **GIVEN, **more)


def granted(consumer: Run, loop: EmbeddedBroker) -> Batch:
    """The first micro-batch that has messages."""
    for _ in range(10):
        planned = consumer.planned()
        if planned is not None:
            if consumer.reader.partitions(planned.start, planned.end):
                return planned
            consumer.commit(planned)
        loop.until_quiet()
    raise AssertionError("nothing was granted")


def ids(found: list[dict[str, Any]]) -> list[int | None]:
    return [each["value"] and each["value"]["id"] for each in found]


def test_what_does_not_fit_is_buried_with_its_reason_and_not_delivered(
    root: Path, loop: EmbeddedBroker
) -> None:
    consumer = run(root, "deadLetter")
    planned = granted(consumer, loop)
    for _ in range(2):  # the task is repeated, and tells it again
        assert ids(consumer.read(planned)) == [1, None, 4]
    loop.until_quiet()
    consumer.commit(planned)
    consumer.planned()
    loop.until_quiet()
    dead_letters = messages(root, "t-s-DLQ")
    assert [letter["value"] for letter in dead_letters] == [b'{"id":"x"}', b"{"]
    reasons = [dict(letter["properties"])["ERROR"] for letter in dead_letters]
    assert "value.id is 'x'" in reasons[0]
    assert "no JSON" in reasons[1]


def test_a_function_is_not_called_for_what_does_not_fit(root: Path, loop: EmbeddedBroker) -> None:
    consumer = run(root, "deadLetter", ackMode="manual")
    planned = granted(consumer, loop)
    schema = to_arrow_schema(consumer.schema, timezone="UTC")
    batch = pa.RecordBatch.from_pylist(consumer.read(planned), schema)

    def handle(message: Message) -> Any:
        return message.value and message.value["id"]

    (rows,) = Processor(handle, result=pa.int64())(iter([batch]))
    assert [row["result"] for row in rows.to_pylist()] == [1, None, 4]
    rows = rows.drop_columns(["result"])
    write(loop.root, dict(zip(rows.schema.names, rows.columns, strict=True)))
    loop.until_quiet()
    assert [letter["value"] for letter in messages(root, "t-s-DLQ")] == [b'{"id":"x"}', b"{"]
    assert backlog(root) == 0


def test_a_letter_keeps_its_schema_and_needs_none(root: Path, loop: EmbeddedBroker) -> None:
    ledger_of(root, "t").change_settings(
        lambda known: {**known, "schema_compatibility_strategy": "ALWAYS_COMPATIBLE"}
    )
    number = SinkSchema(SchemaInfo(SchemaType.INT64))
    register(ledger_of(root, "t"), TopicName.parse("t"), number)
    options = options_of(root, given={"topic": "t"})
    batch = pa.record_batch({"value": pa.array([7, 8], pa.int64())})
    place = Root.of(options)
    publish(place, write_messages([batch], options, place, number), None)
    send(root, "t", ["["])
    change_policies(
        place.store, NamespaceName("public", "default"), schema_validation_enforced=True
    )
    consumer = run(root, "deadLetter")
    planned = granted(consumer, loop)
    assert ids(consumer.read(planned)) == [1, None, 4]
    loop.until_quiet()
    dead_letters = messages(root, "t-s-DLQ")
    assert [letter["schema_version"] for letter in dead_letters] == [None, None, 0, 0, None]
    assert ledger_of(root, "t-s-DLQ").state.schemas.schemas == (number.info,)
    assert "was published as INT64" in dict(dead_letters[2]["properties"])["ERROR"]


def test_a_consumer_ends_at_what_does_not_fit_unless_it_says_otherwise(
    root: Path, loop: EmbeddedBroker
) -> None:
    consumer = run(root, "fail")
    planned = granted(consumer, loop)
    with pytest.raises(SchemaMismatchError, match=r"Message 0:0:0:1 of persistent://.*/t"):
        consumer.read(planned)
