"""A topic refuses a schema that does not follow from the one that it has."""

import os

import pulsar
from pulsar.schema import AvroSchema, Integer, Record, String

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]


class First(Record):  # type: ignore[misc]
    _avro_namespace = "example"
    name = String()


class Wider(Record):  # type: ignore[misc]
    _avro_namespace = "example"
    name = String()
    number = Integer(required_default=True)


class Strict(Record):  # type: ignore[misc]
    _avro_namespace = "example"
    name = String()
    number = Integer()
    more = Integer()


class Other(Record):  # type: ignore[misc]
    _avro_namespace = "example"
    name = Integer(required=True)


Wider.__name__ = Strict.__name__ = Other.__name__ = (
    "First"  # the same record, as it is changed over time
)
client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "my-subscription", schema=AvroSchema(First))
client.create_producer(TOPIC, schema=AvroSchema(First)).send(First(name="one"))
client.create_producer(TOPIC, schema=AvroSchema(Wider)).send(Wider(name="two", number=2))
for _ in range(2):
    msg = consumer.receive()
    print(msg.value().name, repr(msg.schema_version()))


def attempt(record: type[Record]) -> None:
    try:
        client.create_producer(TOPIC, schema=AvroSchema(record))
    except pulsar.IncompatibleSchema:
        print("refused")


attempt(Strict)
attempt(Other)
client.close()
