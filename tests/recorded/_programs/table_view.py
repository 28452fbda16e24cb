"""The latest value of each key."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC)
for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
    producer.send(value, partition_key=key)
view = client.create_table_view(TOPIC)
print(len(view), view.get("a"), view.get("c"))
keys: list[str] = []
view.for_each(lambda key, _: keys.append(key))
print(sorted(keys))
view.close()
client.close()
