"""Key_Shared consumers that say which hashes are theirs."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumers = [
    client.subscribe(
        TOPIC,
        "s",
        pulsar.ConsumerType.KeyShared,
        key_shared_policy=pulsar.ConsumerKeySharedPolicy(
            pulsar.KeySharedMode.Sticky, sticky_ranges=[hashes]
        ),
    )
    for hashes in ((0, 32_767), (32_768, 65_535))
]
try:
    client.subscribe(
        TOPIC,
        "s",
        pulsar.ConsumerType.KeyShared,
        key_shared_policy=pulsar.ConsumerKeySharedPolicy(
            pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 10)]
        ),
    )
except pulsar.PulsarException as error:
    print(type(error).__name__)
producer = client.create_producer(TOPIC)
for number in range(20):
    producer.send(str(number).encode(), partition_key=f"key-{number}")
found: list[list[int]] = [[], []]
while sum(map(len, found)) < 20:
    for mine, consumer in zip(found, consumers, strict=True):
        try:
            msg = consumer.receive(timeout_millis=300)
        except pulsar.Timeout:
            continue
        consumer.acknowledge(msg)
        mine.append(int(msg.data()))
print(found)
client.close()
