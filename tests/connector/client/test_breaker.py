"""A sink that is down: what a client and an embedded broker do with a breaker, on a moved clock."""

from __future__ import annotations

from typing import Any

import pytest

import pulsar_spark
from pulsar_spark import pulsar
from pulsar_spark.connector.storage.clock import ManualClock
from tests.connector.client.clients import EARLIEST
from tests.connector.topics import numbers, send

TWO_HOURS_MS = 2 * 60 * 60 * 1000
KINDS = (
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
)


class Sink:
    """Takes what it is given, in five milliseconds, when it is up; `poison` never."""

    def __init__(self, client: pulsar.Client, down_for_ms: int, poison: str) -> None:
        assert isinstance(client.root.clock, ManualClock)
        self.clock, self.poison = client.root.clock, poison
        self.up_at_ms = self.clock.wall_ms() + down_for_ms
        self.stored: list[str] = []
        self.attempts_while_down = 0

    def store(self, message: pulsar.Message) -> None:
        self.clock.advance(5)
        if self.clock.wall_ms() < self.up_at_ms:
            self.attempts_while_down += 1
            raise ConnectionError("down")
        if message.data().decode() == self.poison:
            raise ValueError("poison")
        self.stored.append(message.data().decode())


def served(client: pulsar.Client, sink: Sink, messages: int, **how: Any) -> None:
    """Receive all, and reject what the sink does not take, until nothing is left."""
    consumer = client.subscribe(
        "t", "s", initial_position=EARLIEST, negative_ack_redelivery_delay_ms=1000,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(3), receiver_queue_size=100, **how,
    )  # fmt: skip
    quiet = 0
    while quiet < 3:
        try:
            message = consumer.receive(600_000)
        except pulsar.Timeout:
            quiet += sink.clock.wall_ms() >= sink.up_at_ms
            continue
        try:
            sink.store(message)
        except (ConnectionError, ValueError) as error:
            consumer.negative_acknowledge(message, error=error)
        else:
            consumer.acknowledge(message)
    consumer.close()


def letters(url: str) -> list[str]:
    """The values of all dead letters."""
    table = pulsar_spark.dataset(url, view="dead-letters").to_table(columns=["value"])
    return [value.decode() for value in table["value"].to_pylist()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("poison", ["", "700"])
def test_a_sink_that_is_down_for_two_hours_buries_nothing_but_poison(
    url: str, client: pulsar.Client, kind: pulsar.ConsumerType, poison: str
) -> None:
    count = 10_000 if kind is pulsar.ConsumerType.Shared else 2_000
    keys = [f"k{number % 50}" for number in range(count)]
    send(url, "t", numbers(0, count), columns={"key": keys}, batchingMaxMessages=10)
    pulsar_spark.Policies("t", service_url=url).set(breaker_threshold=50)
    sink = Sink(client, TWO_HOURS_MS, poison)
    served(client, sink, count, consumer_type=kind)
    good = [str(number) for number in range(count) if str(number) != poison]
    assert letters(url) == ([poison] if poison else [])
    assert sorted(sink.stored, key=int) == good
    assert sink.attempts_while_down < 600


def test_without_a_breaker_all_of_them_are_buried(url: str, client: pulsar.Client) -> None:
    send(url, "t", numbers(0, 200))
    sink = Sink(client, TWO_HOURS_MS, "")
    served(client, sink, 200, consumer_type=pulsar.ConsumerType.Shared)
    assert len(letters(url)) == 200
