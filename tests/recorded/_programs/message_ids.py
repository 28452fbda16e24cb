"""Ids are stored as bytes, and a reader begins behind one, or at it."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC)
ids = [producer.send(str(number).encode()) for number in range(4)]
stored = ids[1].serialize()
begin = pulsar.MessageId.deserialize(stored)
print(ids[0] < ids[1] < ids[2])
for inclusive in (False, True):
    reader = client.create_reader(TOPIC, begin, start_message_id_inclusive=inclusive)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next().data())
    print(*found)
client.close()
