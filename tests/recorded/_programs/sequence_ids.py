"""Sequence ids count up from where the producer begins, or are set."""

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
producer.close()
again = client.create_producer(TOPIC, producer_name="p", initial_sequence_id=99)
again.send(b"x")
print(again.last_sequence_id())
client.close()
