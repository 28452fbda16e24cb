"""The second of two failover consumers waits until the first is gone."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumers = [client.subscribe(TOPIC, "s", pulsar.ConsumerType.Failover) for _ in range(2)]
producer = client.create_producer(TOPIC)
for number in range(4):
    producer.send(str(number).encode())
received: list[list[bytes]] = [[], []]
while not any(received):
    for found, consumer in zip(received, consumers, strict=True):
        try:
            msg = consumer.receive(timeout_millis=500)
        except pulsar.Timeout:
            continue
        consumer.acknowledge(msg)
        found.append(msg.data())
print(sorted(received))
active, waiting = consumers if received[0] else reversed(consumers)
active.acknowledge(active.receive())
active.close()
for _ in range(2):
    msg = waiting.receive()
    waiting.acknowledge(msg)
    print("the second has", msg.data())
client.close()
