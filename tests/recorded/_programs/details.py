"""Everything that a message can say of itself."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
producer = client.create_producer(TOPIC, producer_name="producer-1")
producer.send(
    b"content",
    properties={"a": "1", "b": "2"},
    partition_key="key",
    ordering_key="order",
    event_timestamp=1234,
)
message = consumer.receive()
print(
    message.data(),
    dict(sorted(message.properties().items())),
    message.partition_key(),
    message.ordering_key(),
    message.event_timestamp(),
    message.producer_name(),
)
print(
    message.topic_name().endswith(TOPIC),
    message.publish_timestamp() > 1_600_000_000_000,
    message.redelivery_count(),
)
client.close()
