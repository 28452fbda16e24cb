"""A consumer of a list of topics."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe([TOPIC + "-1", TOPIC + "-2"], "s")
client.create_producer(TOPIC + "-1").send(b"one")
client.create_producer(TOPIC + "-2").send(b"two")
messages = [consumer.receive() for _ in range(2)]
for message in messages:
    consumer.acknowledge(message)
print(sorted(message.data() for message in messages))
client.close()
