"""A listener that is paused gets nothing until it is resumed."""

import os
import queue

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

found: queue.Queue[bytes] = queue.Queue()


def listen(consumer: pulsar.Consumer, msg: pulsar.Message) -> None:
    consumer.acknowledge(msg)
    found.put(msg.data())


client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s", message_listener=listen)
producer = client.create_producer(TOPIC)
producer.send(b"0")
print(found.get(timeout=30))
consumer.pause_message_listener()
producer.send(b"1")
try:
    found.get(timeout=0.5)
except queue.Empty:
    print("paused")
consumer.resume_message_listener()
print(found.get(timeout=30))
try:
    consumer.receive(timeout_millis=100)
except pulsar.PulsarException as error:
    print(type(error).__name__)
client.close()
