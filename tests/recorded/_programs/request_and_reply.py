"""A request says in its properties where its reply goes."""

import os

import pulsar

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]

client = pulsar.Client(URL)
server = client.subscribe(TOPIC, "server", pulsar.ConsumerType.Shared)
replies = client.subscribe(f"{TOPIC}-replies", "caller")
call = client.create_producer(TOPIC)
for number in range(3):
    call.send(str(number).encode(), properties={"reply_to": f"{TOPIC}-replies", "id": str(number)})
for _ in range(3):
    request = server.receive()
    producer = client.create_producer(request.properties()["reply_to"])
    content = str(int(request.data()) ** 2).encode()
    producer.send(content, properties={"id": request.properties()["id"]})
    server.acknowledge(request)
    producer.close()
for _ in range(3):
    reply = replies.receive()
    replies.acknowledge(reply)
    print(reply.properties()["id"], reply.data())
client.close()
