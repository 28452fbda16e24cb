"""A message that is larger than a broker takes comes as a whole."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
producer = client.create_producer(TOPIC, chunking_enabled=True)
producer.send(b"x" * 11_000_000)
print(len(consumer.receive().data()))
client.close()
