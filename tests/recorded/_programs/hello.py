"""The first example of the documentation: a producer and a consumer."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "my-subscription")
producer = client.create_producer(TOPIC)
for number in range(3):
    producer.send(f"Hello-{number}".encode())
for _ in range(3):
    message = consumer.receive()
    try:
        print(f"Received {message.data().decode()!r}")
        consumer.acknowledge(message)
    except UnicodeDecodeError:
        consumer.negative_acknowledge(message)
client.close()
