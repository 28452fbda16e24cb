"""A message that is rejected too often becomes a dead letter."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
dead = client.subscribe(TOPIC + "-dead", "undertaker")
policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=TOPIC + "-dead")
consumer = client.subscribe(
    TOPIC,
    "s",
    pulsar.ConsumerType.Shared,
    negative_ack_redelivery_delay_ms=200,
    dead_letter_policy=policy,
)
client.create_producer(TOPIC).send(b"x")
deliveries = 0
while True:
    try:
        consumer.negative_acknowledge(consumer.receive(timeout_millis=3_000))
    except pulsar.Timeout:
        break
    deliveries += 1
print(deliveries, "deliveries")
print(dead.receive(timeout_millis=10_000).data())
client.close()
