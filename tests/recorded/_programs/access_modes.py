"""An exclusive producer keeps others out, a waiting one gets its turn."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
first = client.create_producer(TOPIC, access_mode=pulsar.ProducerAccessMode.Exclusive)
first.send(b"1")
try:
    client.create_producer(TOPIC, access_mode=pulsar.ProducerAccessMode.Exclusive)
except pulsar.ProducerFenced:
    print("a second exclusive one is refused")
try:
    client.create_producer(TOPIC).send(b"refused")
except pulsar.ProducerBusy:
    print("a shared one too")
fencing = client.create_producer(TOPIC, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
fencing.send(b"2")
try:
    first.send(b"3")
except pulsar.ProducerFenced:
    print("the first is fenced")
fencing.close()
waiting = client.create_producer(TOPIC, access_mode=pulsar.ProducerAccessMode.WaitForExclusive)
waiting.send(b"4")
reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
print(*(reader.read_next().data() for _ in range(3)))
client.close()
