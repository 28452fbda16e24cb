"""Who subscribes, or reads, by a schema that can't read what there is hears of it at once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.topics.policies import change_policies
from pulsar_spark.model.topic_name import NamespaceName, TopicName
from pulsar_spark.pulsar.schema import (
    Array,
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    Schema,
    String,
    StringSchema,
)
from tests.connector.client.clients import all_of, received, subscribe


class Flight(Record):
    carrier = String()


class Later(Record):
    carrier = String()
    delay = Integer(required_default=True)


class Other(Record):
    carrier = Integer(required=True)


class Needs(Record):
    carrier = String(required=True)


Later.__name__ = Other.__name__ = "Flight"  # one record, as it is changed over time


@pytest.mark.parametrize("wrong", [AvroSchema(Other), JsonSchema(Flight), StringSchema()])
def test_a_schema_that_can_t_read_the_newest_is_refused(
    client: pulsar.Client, wrong: Schema
) -> None:
    client.create_producer("t", schema=AvroSchema(Flight)).send(Flight(carrier="AA"))
    with pytest.raises(pulsar.IncompatibleSchema, match="read by one that can read the newest"):
        subscribe(client, schema=wrong)
    with pytest.raises(pulsar.IncompatibleSchema, match="topics schemas"):
        client.create_reader("t", pulsar.MessageId.earliest, schema=wrong)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_table_view("t", schema=wrong)
    with pytest.raises(pulsar.IncompatibleSchema):
        subscribe(client, re.compile("t.*"), schema=wrong)
    assert client.topic_stats("t").subscriptions == ()


class Leg(Record):
    city = String()


class Stop(Record):
    city = String()
    nights = Integer(required_default=True)


class Trip(Record):
    first = Leg()
    legs = Array(Leg())


class Journey(Record):
    first = Stop()
    legs = Array(Stop())


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_schemas_are_compared_by_their_fields_whatever_their_records_are_called(
    client: pulsar.Client, kind: Any
) -> None:
    producer = client.create_producer("t", schema=kind(Trip))
    consumer = subscribe(client, schema=kind(Journey))
    producer.send(Trip(first=Leg(city="Rome"), legs=[Leg(city="Pisa")]))
    client.create_producer("t", schema=kind(Journey)).send(
        Journey(first=Stop(city="Bonn"), legs=[Stop(city="Ulm", nights=2)])
    )
    first, second = (consumer.receive(1000).value() for _ in range(2))
    assert [(each.city, each.nights) for each in (first.first, *first.legs)] == [
        ("Rome", None), ("Pisa", None),
    ]  # fmt: skip
    assert [(each.city, each.nights) for each in second.legs] == [("Ulm", 2)]
    reader = client.create_reader("t", pulsar.MessageId.earliest, kind(Trip))
    assert [message.value().legs[0].city for message in all_of(reader)] == ["Pisa", "Ulm"]
    with pytest.raises(pulsar.IncompatibleSchema, match="carrier has no default"):
        subscribe(client, schema=kind(Needs), name="other")


def test_one_that_can_read_it_is_not_registered_and_bytes_read_all(client: pulsar.Client) -> None:
    producer = client.create_producer("t", schema=AvroSchema(Flight))
    consumer = subscribe(client, schema=AvroSchema(Later), name="later")
    raw = subscribe(client, schema=BytesSchema(), name="raw")
    producer.send(Flight(carrier="AA"))
    value = consumer.receive(1000).value()
    assert (value.carrier, value.delay) == ("AA", None)
    assert len(received(raw)) == 1
    assert len(client.root.open(TopicName.parse("t")).state.schemas.schemas) == 1


def test_the_schema_of_who_comes_first_is_the_topic_s(client: pulsar.Client) -> None:
    subscribe(client, schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema, match="exists schema type STRING"):
        client.create_producer("t", schema=AvroSchema(Flight))
    client.create_producer("t", schema=StringSchema()).send("a")


def test_messages_without_a_schema_are_read_as_bytes(client: pulsar.Client) -> None:
    client.create_producer("t").send(b"a")
    with pytest.raises(pulsar.IncompatibleSchema, match="has messages without a schema: read them"):
        subscribe(client, schema=StringSchema())
    assert received(subscribe(client)) == [b"a"]


@pytest.mark.parametrize("strategy", ["ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE", "FORWARD"])
def test_the_topic_s_strategy_says_what_a_consumer_s_schema_has_to_read(
    client: pulsar.Client, strategy: str
) -> None:
    client.create_producer("t", schema=AvroSchema(Flight)).close()
    namespace = NamespaceName.parse("public/default")
    change_policies(client.root.store, namespace, schema_compatibility_strategy=strategy)
    wrong = StringSchema() if strategy != "ALWAYS_INCOMPATIBLE" else AvroSchema(Later)
    if strategy == "ALWAYS_COMPATIBLE":
        subscribe(client, schema=wrong).close()
        return
    with pytest.raises(pulsar.IncompatibleSchema):
        subscribe(client, schema=wrong)
    subscribe(client, schema=AvroSchema(Flight)).close()
