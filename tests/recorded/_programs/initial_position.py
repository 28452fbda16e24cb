"""A new subscription begins at the end, or at the beginning; an old one where it was."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC)
keeper = client.subscribe(TOPIC, "keeper")  # so that nothing is deleted
producer.send(b"before")
latest = client.subscribe(TOPIC, "latest", initial_position=pulsar.InitialPosition.Latest)
earliest = client.subscribe(TOPIC, "earliest", initial_position=pulsar.InitialPosition.Earliest)
producer.send(b"after")
print("latest", latest.receive().data())
print("earliest", earliest.receive().data(), earliest.receive().data())
earliest.close()
again = client.subscribe(TOPIC, "earliest", initial_position=pulsar.InitialPosition.Latest)
print("again", again.receive().data(), again.receive().data())
client.close()
