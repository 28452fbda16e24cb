"""A reader begins at the earliest message, and knows when it has read all."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC)
for number in range(3):
    producer.send(str(number).encode())
reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
found = []
while reader.has_message_available():
    found.append(reader.read_next().data())
print(*found)
print(reader.has_message_available())
producer.send(b"3")
print(reader.has_message_available())
print(reader.read_next().data())
client.close()
