"""Two consumers share a subscription: each message goes to one of them."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumers = [
    client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, receiver_queue_size=1)
    for _ in range(2)
]
producer = client.create_producer(TOPIC)
for number in range(10):
    producer.send(str(number).encode())
found: list[int] = []
both = [0, 0]
while len(found) < 10:
    for place, consumer in enumerate(consumers):
        try:
            message = consumer.receive(timeout_millis=300)
        except pulsar.Timeout:
            continue
        consumer.acknowledge(message)
        found.append(int(message.data()))
        both[place] += 1
print(sorted(found))
print(min(both) > 0)
client.close()
