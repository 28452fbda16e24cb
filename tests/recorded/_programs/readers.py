"""Readers at the end, behind an id of one that is gone on, with a listener, and of what comes."""

import os
import threading

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC)
producer.send(b"0")
late = client.create_reader(TOPIC, pulsar.MessageId.latest)
print(late.topic().endswith(TOPIC), late.has_message_available(), late.is_connected())
try:
    late.read_next(timeout_millis=200)
except pulsar.Timeout:
    print("nothing yet")
inclusive = client.create_reader(TOPIC, pulsar.MessageId.latest, start_message_id_inclusive=True)
print(inclusive.has_message_available(), inclusive.read_next().data())
found: list[bytes] = []
done = threading.Event()


def listen(_: pulsar.Reader, msg: pulsar.Message) -> None:
    found.append(msg.data())
    if len(found) == 2:
        done.set()


client.create_reader(TOPIC, pulsar.MessageId.earliest, reader_listener=listen)
producer.send(b"1")
done.wait(30)
print(found, late.read_next().data())
late.close()
client.close()
