"""A dead letter says where it is from, and has a topic and a subscription by default."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
policy = pulsar.ConsumerDeadLetterPolicy(
    max_redeliver_count=1, initial_subscription_name="undertaker"
)
consumer = client.subscribe(
    TOPIC,
    "my-sub",
    pulsar.ConsumerType.Shared,
    negative_ack_redelivery_delay_ms=100,
    dead_letter_policy=policy,
)
producer = client.create_producer(TOPIC)
producer.send(
    b"x", properties={"mine": "1"}, partition_key="key", ordering_key="order", event_timestamp=5
)
for _ in range(2):
    msg = consumer.receive(timeout_millis=20_000)
    print("delivery", msg.redelivery_count())
    consumer.negative_acknowledge(msg)
try:
    consumer.receive(timeout_millis=3_000)
except pulsar.Timeout:
    print("no more")
dead = client.subscribe(f"{TOPIC}-my-sub-DLQ", "undertaker")
letter = dead.receive(timeout_millis=20_000)
said = letter.properties()
print(said["mine"], said["REAL_TOPIC"].replace(TOPIC, "TOPIC"))
print("ORIGIN_MESSAGE_ID" in said)
print(letter.data(), letter.partition_key(), letter.redelivery_count())
client.close()
