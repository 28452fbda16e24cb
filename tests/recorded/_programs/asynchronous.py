"""The same with asyncio."""

import asyncio
import os

from pulsar.asyncio import Client

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]


async def main() -> None:
    client = Client(URL)
    consumer = await client.subscribe(TOPIC, "s")
    producer = await client.create_producer(TOPIC)
    await asyncio.gather(*(producer.send(f"async-{number}".encode()) for number in range(3)))
    messages = [await consumer.receive() for _ in range(3)]
    for message in messages:
        await consumer.acknowledge(message)
    print(*sorted(message.data() for message in messages))
    await client.close()


asyncio.run(main())
