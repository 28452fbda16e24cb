"""Messages of a batch have ids of their own, and may be acknowledged one by one."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
settings = {"batch_index_ack_enabled": True}
consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, **settings)
producer = client.create_producer(
    TOPIC, batching_enabled=True, batching_max_messages=4, batching_max_publish_delay_ms=10_000
)
ids: list[pulsar.MessageId] = []
for number in range(4):
    producer.send_async(str(number).encode(), lambda _, msg_id: ids.append(msg_id))
producer.flush()
print(len({(each.ledger_id(), each.entry_id()) for each in ids}), "entry")
print([each.batch_index() for each in ids])
messages = [consumer.receive() for _ in range(4)]
print([msg.message_id().batch_index() for msg in messages])
print([msg.message_id() == msg_id for msg, msg_id in zip(messages, ids, strict=True)])
consumer.acknowledge(messages[1])
consumer.acknowledge(messages[2].message_id())
consumer.close()
again = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, **settings)
print(*(again.receive().data() for _ in range(2)))
try:
    again.receive(timeout_millis=300)
except pulsar.Timeout:
    print("no more")
client.close()
