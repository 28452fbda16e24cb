"""Whoever waits in vain gives up, and what is closed says so."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
try:
    consumer.receive(timeout_millis=200)
except pulsar.Timeout:
    print("no message")
producer = client.create_producer(TOPIC)
producer.close()
try:
    producer.send(b"x")
except pulsar.AlreadyClosed:
    print("closed")
client.close()
