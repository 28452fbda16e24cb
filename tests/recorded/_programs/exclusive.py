"""A second exclusive consumer is refused."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
try:
    client.subscribe(TOPIC, "s")
except pulsar.ConsumerBusy:
    print("refused")
client.close()
