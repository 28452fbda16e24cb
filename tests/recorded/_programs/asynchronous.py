"""The client's example with asyncio: what is produced at once is consumed at once."""

import asyncio
import os

from pulsar import BatchingType
from pulsar.asyncio import Client, Consumer, Producer

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]
MESSAGES = 100

received: list[str] = []


async def produce(producer: Producer, number: int) -> None:
    await producer.send(f"hello-{number}".encode(), None)
    await producer.flush()


async def consume(consumer: Consumer) -> None:
    msg = await consumer.receive()
    received.append(msg.data().decode())
    await consumer.acknowledge(msg)


async def main() -> None:
    client = Client(URL)
    consumer = await client.subscribe(
        TOPIC, "my-async-subscription", properties={"consumer-name": "test-consumer-name"}
    )
    producer = await client.create_producer(
        TOPIC,
        block_if_queue_full=True,
        batching_enabled=True,
        batching_max_publish_delay_ms=10,
        properties={"producer-name": "test-producer-name"},
        batching_type=BatchingType.KeyBased,
    )
    tasks = []
    for number in range(MESSAGES):
        tasks.append(asyncio.create_task(produce(producer, number)))
        tasks.append(asyncio.create_task(consume(consumer)))
    await asyncio.gather(*tasks)
    await producer.close()
    await consumer.close()
    await client.close()


asyncio.run(main())
print(len(received), *sorted(received)[:3])
