"""Messages sent without waiting, each with a callback."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "s")
producer = client.create_producer(
    TOPIC, block_if_queue_full=True, batching_enabled=True, batching_max_publish_delay_ms=10
)
results: list[object] = []
for number in range(5):
    producer.send_async(f"async-{number}".encode(), lambda result, _: results.append(result))
producer.flush()
print(sum(result == pulsar.Result.Ok for result in results), "published")
print(*(consumer.receive().data() for _ in range(5)))
client.close()
