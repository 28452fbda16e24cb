"""A listener gets the messages in a thread of its own."""

import os
import threading

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

found: list[bytes] = []
done = threading.Event()


def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    found.append(message.data())
    consumer.acknowledge(message)
    if len(found) == 3:
        done.set()


client = pulsar.Client(URL)
client.subscribe(TOPIC, "s", message_listener=listen)
producer = client.create_producer(TOPIC)
for number in range(3):
    producer.send(str(number).encode())
done.wait(30)
print(found)
client.close()
