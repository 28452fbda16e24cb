"""A rejected message comes again."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(
    TOPIC, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=200
)
client.create_producer(TOPIC).send(b"x")
message = consumer.receive()
print(message.data(), message.redelivery_count())
consumer.negative_acknowledge(message)
message = consumer.receive()
print(message.data(), message.redelivery_count())
client.close()
