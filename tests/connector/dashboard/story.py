"""A queue with something of everything that the dashboard shows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pulsar_spark import pulsar
from pulsar_spark.connector.storage.clock import ManualClock

EVIL = "<script>document.title='taken'</script>"
EVIL_NAME = "_$\\frac{<b>\x01夜$"
"""Of a subscription or consumer: what HTML, matplotlib and SVG might take for more than text."""
EARLIEST = pulsar.InitialPosition.Earliest


def advance(client: pulsar.Client, ms: int) -> None:
    clock = client.root.clock
    assert isinstance(clock, ManualClock)
    clock.advance(ms)


def all_of(consumer: pulsar.Consumer, timeout_millis: int = 1000) -> list[pulsar.Message]:
    found = []
    while True:
        try:
            found.append(consumer.receive(timeout_millis))
        except pulsar.Timeout:  # noqa: PERF203 - it comes once
            return found


def subscribed(client: pulsar.Client, topic: str, name: str, **said: Any) -> pulsar.Consumer:
    said.setdefault("consumer_type", pulsar.ConsumerType.Shared)
    return client.subscribe(topic, name, initial_position=EARLIEST, **said)


def to_dead_letter(
    client: pulsar.Client, topic: str, *values: str, name: str = EVIL_NAME, **said: Any
) -> None:
    """Publish these, and have subscription `billing` give them up, saying each one as its error."""
    subscribed(client, topic, "billing").close()
    producer = client.create_producer(topic)
    for value in values:
        producer.send(value.encode(), **said)
    producer.close()
    policy = pulsar.ConsumerDeadLetterPolicy(1)
    consumer = subscribed(
        client, topic, "billing", dead_letter_policy=policy, consumer_name=name,
        negative_ack_redelivery_delay_ms=1000,
    )  # fmt: skip
    for _ in range(2):
        for message in all_of(consumer, 5000):
            consumer.negative_acknowledge(message, error=message.data().decode())
    all_of(consumer, 2000)
    consumer.close()


def busy(
    client: pulsar.Client, topic: str = "orders", *, third: str = EVIL_NAME
) -> list[pulsar.Consumer]:
    """Holes, redeliveries, delays, and three consumers of one Key_Shared subscription."""
    producer = client.create_producer(topic)
    keyed = [
        subscribed(
            client, topic, "by-customer", consumer_type=pulsar.ConsumerType.KeyShared,
            consumer_name=name, receiver_queue_size=40,
        )
        for name in ("alice", "bob", third)
    ]  # fmt: skip
    worker = subscribed(
        client, topic, "billing", consumer_name="worker", receiver_queue_size=30,
        negative_ack_redelivery_delay_ms=1000,
    )  # fmt: skip
    for step in range(8):
        for number in range(30):
            key = f"customer {number * (step + 1) % 17}"
            producer.send_async(b"order %d" % number, None, partition_key=key)
        producer.flush()
        advance(client, 30_000)
        for consumer in keyed:
            got = all_of(consumer, 10)
            consumer.acknowledge(got[: len(got) * 2 // 3])
        got = all_of(worker, 10)
        worker.acknowledge([each for place, each in enumerate(got) if place % 5])
        for each in got[::10]:
            worker.negative_acknowledge(each)
        advance(client, 3000)
    for each in all_of(worker, 10)[:4]:
        worker.negative_acknowledge(each, delay_millis=7_200_000)
    for number in range(12):
        producer.send_async(b"later", None, deliver_after=timedelta(hours=number % 5 + 1))
    producer.flush()
    advance(client, 2000)
    return [*keyed, worker]
