"""A cumulative acknowledgement takes in all before it."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
producer = client.create_producer(TOPIC)
for number in range(5):
    producer.send(str(number).encode())
messages = [consumer.receive() for _ in range(5)]
consumer.acknowledge_cumulative(messages[2])
consumer.close()
again = client.subscribe(TOPIC, "s")
print(*(again.receive().data() for _ in range(2)))
client.close()
