"""Unacknowledged messages are delivered again on demand."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
producer = client.create_producer(TOPIC)
for number in range(3):
    producer.send(str(number).encode())
messages = [consumer.receive() for _ in range(3)]
consumer.acknowledge(messages[0])
consumer.redeliver_unacknowledged_messages()
print(*(consumer.receive().data() for _ in range(2)))
client.close()
