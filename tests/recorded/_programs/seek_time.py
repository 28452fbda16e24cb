"""A consumer and a reader go back to a time."""

import os
import time

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "my-subscription")
reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
producer = client.create_producer(TOPIC)
for number in range(4):
    producer.send(str(number).encode())
    time.sleep(0.02)  # no two have the same time
messages = [consumer.receive() for _ in range(4)]
consumer.seek(messages[2].publish_timestamp())
print(*(consumer.receive().data() for _ in range(2)))
reader.seek(messages[1].publish_timestamp())
print(*(reader.read_next().data() for _ in range(3)))
reader.seek(messages[3].message_id())
print(reader.has_message_available())
client.close()
