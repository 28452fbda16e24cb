"""Messages of a key go to one consumer, in order."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumers = [client.subscribe(TOPIC, "s", pulsar.ConsumerType.KeyShared) for _ in range(2)]
producer = client.create_producer(TOPIC)
for number in range(12):
    producer.send(str(number).encode(), partition_key=str(number % 3))
by_key: dict[int, list[int]] = {}
owners: dict[int, set[int]] = {}
left = 12
while left:
    for place, consumer in enumerate(consumers):
        try:
            message = consumer.receive(timeout_millis=300)
        except pulsar.Timeout:
            continue
        consumer.acknowledge(message)
        key = int(message.partition_key())
        by_key.setdefault(key, []).append(int(message.data()))
        owners.setdefault(key, set()).add(place)
        left -= 1
print(all(len(each) == 1 for each in owners.values()))
print(sorted(by_key.items()))
client.close()
