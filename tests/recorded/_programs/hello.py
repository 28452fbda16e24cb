"""The first examples of the documentation: a producer of ten messages, and their consumer."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "my-subscription")
producer = client.create_producer(TOPIC)

for i in range(10):
    producer.send(f"Hello-{i}".encode())

for _ in range(10):
    msg = consumer.receive()
    try:
        print(f"Received message {msg.data().decode()!r}")
        consumer.acknowledge(msg)
    except UnicodeDecodeError:
        consumer.negative_acknowledge(msg)

client.close()
