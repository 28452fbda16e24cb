"""A subscription that was deleted begins anew."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
client.create_producer(TOPIC).send(b"x")
consumer.receive()
consumer.unsubscribe()
consumer = client.subscribe(TOPIC, "s")
try:
    consumer.receive(timeout_millis=500)
except pulsar.Timeout:
    print("gone")
client.close()
