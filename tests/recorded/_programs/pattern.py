"""A consumer of all topics that a regular expression matches, as the documentation has it."""

import os
import re

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
for name in ("one", "two"):
    client.create_producer(f"persistent://public/default/{TOPIC}-{name}").close()
client.create_producer(f"persistent://public/default/other-{TOPIC}").send(b"not for us")
consumer = client.subscribe(
    re.compile(f"persistent://public/default/{TOPIC}-.*"),
    "my-subscription",
    initial_position=pulsar.InitialPosition.Earliest,
)
for name in ("one", "two"):
    client.create_producer(f"{TOPIC}-{name}").send(name.encode())
messages = [consumer.receive(timeout_millis=20_000) for _ in range(2)]
print(sorted((msg.topic_name().replace(TOPIC, "TOPIC"), msg.data()) for msg in messages))
client.close()
