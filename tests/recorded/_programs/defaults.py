"""What a message, a producer and a consumer say of what nobody set."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "my-subscription", consumer_name="me")
producer = client.create_producer(TOPIC)
print(producer.topic().replace(TOPIC, "TOPIC"), producer.last_sequence_id())
print(consumer.topic().replace(TOPIC, "TOPIC"), consumer.subscription_name())
print(consumer.consumer_name())
print(producer.is_connected(), consumer.is_connected())
print([name.replace(TOPIC, "TOPIC") for name in client.get_topic_partitions(TOPIC)])
msg_id = producer.send(b"")
print(msg_id.partition(), msg_id.batch_index(), producer.last_sequence_id())
msg = consumer.receive()
print(msg.data(), msg.value(), msg.properties(), msg.has_null_value())
print(repr(msg.partition_key()), repr(msg.ordering_key()), msg.event_timestamp())
print(msg.redelivery_count(), msg.schema_version(), msg.topic_name().replace(TOPIC, "TOPIC"))
print(msg.message_id() == msg_id, consumer.get_last_message_id() == msg_id)
print(msg.message_id().partition(), msg.message_id().batch_index())
print(msg.producer_name() == producer.producer_name(), bool(producer.producer_name()))
producer.close()
consumer.close()
print(producer.is_connected(), consumer.is_connected())
client.close()
