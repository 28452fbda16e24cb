"""Messages of protobuf, by `ProtobufNativeSchema`."""

from __future__ import annotations

import json

import pytest
from google.protobuf import duration_pb2, timestamp_pb2

from pulsar_spark import pulsar
from pulsar_spark.pulsar.schema import JsonSchema, ProtobufNativeSchema, Record
from tests.connector.client.clients import received, subscribe

TIME = ProtobufNativeSchema(timestamp_pb2.Timestamp)


def test_a_message_of_protobuf_comes_as_it_was_sent(client: pulsar.Client) -> None:
    consumer = subscribe(client, schema=TIME)
    producer = client.create_producer("t", schema=ProtobufNativeSchema(timestamp_pb2.Timestamp))
    sent = timestamp_pb2.Timestamp(seconds=5)
    producer.send(sent)
    assert consumer.receive(1000).value() == sent
    assert received(client.create_reader("t", pulsar.MessageId.earliest)) == [b"\x08\x05"]
    with pytest.raises(TypeError, match=r"Invalid record obj of type .*Duration"):
        producer.send(duration_pb2.Duration(seconds=5))


def test_another_message_s_schema_is_refused(client: pulsar.Client) -> None:
    client.create_producer("t", schema=TIME).close()
    for other in (ProtobufNativeSchema(duration_pb2.Duration), JsonSchema(Record)):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer("t", schema=other)
        with pytest.raises(pulsar.IncompatibleSchema):
            subscribe(client, schema=other)


def test_its_definition_is_that_of_pulsar_s_clients() -> None:
    held = json.loads(TIME.schema_info().definition)
    assert held["rootMessageTypeName"] == "google.protobuf.Timestamp"
    assert held["rootFileDescriptorName"] == "google/protobuf/timestamp.proto"
    assert str(TIME) == "ProtobufNativeSchema(Timestamp)"
    with pytest.raises(TypeError, match="must be a protobuf Message subclass"):
        ProtobufNativeSchema(Record)
