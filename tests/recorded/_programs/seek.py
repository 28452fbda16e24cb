"""A consumer goes back to the beginning, and to a message."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
producer = client.create_producer(TOPIC)
ids = [producer.send(str(number).encode()) for number in range(4)]
print(*(consumer.receive().data() for _ in range(4)))
consumer.seek(pulsar.MessageId.earliest)
print(*(consumer.receive().data() for _ in range(4)))
consumer.seek(ids[1])
print(*(consumer.receive().data() for _ in range(2)))
client.close()
