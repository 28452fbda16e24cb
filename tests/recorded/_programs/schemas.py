"""Records as JSON and as Avro, and texts."""

import os

import pulsar
from pulsar.schema import AvroSchema, Boolean, Integer, JsonSchema, Record, String, StringSchema

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]


class Example(Record):  # type: ignore[misc]
    name = String()
    number = Integer()
    flag = Boolean()


client = pulsar.Client(URL)
for place, schema in enumerate((JsonSchema(Example), AvroSchema(Example))):
    topic = f"{TOPIC}-{place}"
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    producer.send(Example(name="Example", number=7, flag=True))
    value = consumer.receive().value()
    print(value.name, value.number, value.flag)
consumer = client.subscribe(TOPIC, "s", schema=StringSchema())
client.create_producer(TOPIC, schema=StringSchema()).send("text")
print(consumer.receive().value())
client.close()
