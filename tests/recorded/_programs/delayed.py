"""A delayed message is delivered after one that was sent later."""

import os
from datetime import timedelta

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
producer = client.create_producer(TOPIC)
producer.send(b"later", deliver_after=timedelta(seconds=2))
producer.send(b"now")
print(*(consumer.receive(timeout_millis=20_000).data() for _ in range(2)))
client.close()
