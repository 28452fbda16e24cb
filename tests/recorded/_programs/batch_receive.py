"""Messages are taken by the handful."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
policy = pulsar.ConsumerBatchReceivePolicy(2, -1, 500)
consumer = client.subscribe(TOPIC, "s", batch_receive_policy=policy)
producer = client.create_producer(TOPIC)
for _ in range(5):
    producer.send(b"x")
print(*(len(consumer.batch_receive()) for _ in range(3)))
client.close()
