"""A table view tells of what it has and of what comes; a key without a value is gone."""

import os
import queue

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC)
producer.send(b"1", partition_key="a")
producer.send(b"2", partition_key="b")
producer.send(b"no key")
reported: queue.Queue[tuple[str, bytes]] = queue.Queue()
view = client.create_table_view(TOPIC)
view.for_each_and_listen(lambda key, value: reported.put((key, value or b"")))
print(sorted(reported.get(timeout=30) for _ in range(len(view))))
producer.send(b"3", partition_key="a")
print(reported.get(timeout=30), view.get("a"), len(view))
producer.send(b"", partition_key="b")
producer.send(b"4", partition_key="c")
producer.send(None, partition_key="a")
print(*(reported.get(timeout=30) for _ in range(3)))
print(view.get("a"), view.get("b"), view.get("c"), len(view))
client.close()
