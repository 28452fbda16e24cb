"""A producer of the same name goes on behind the last sequence id."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC, producer_name="p")
print(producer.last_sequence_id())
for _ in range(5):
    producer.send(b"x")
last = producer.last_sequence_id()
producer.send(b"y", sequence_id=10)
print(last, producer.last_sequence_id())
client.close()
