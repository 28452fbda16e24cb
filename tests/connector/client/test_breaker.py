"""A sink that is down: what a client and an embedded broker do with a breaker, on a moved clock."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

import pulsar_spark
from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.tools.command_line.command_line import main
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


def served(client: pulsar.Client, sink: Sink, **how: Any) -> None:
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


def dead_letters(url: str) -> list[str]:
    """The values of all dead letters."""
    table = pulsar_spark.dataset(url, view="dead-letters").to_table(columns=["value"])
    return [value.decode() for value in table["value"].to_pylist()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("poison", ["", "170"])
def test_a_sink_that_is_down_for_two_hours_buries_nothing_but_poison(
    url: str, client: pulsar.Client, kind: pulsar.ConsumerType, poison: str
) -> None:
    story(url, client, kind, poison, 400)


@pytest.mark.slow
@pytest.mark.parametrize("poison", ["", "700"])
def test_of_ten_thousand_messages_none_is_buried_but_poison(
    url: str, client: pulsar.Client, poison: str
) -> None:
    story(url, client, pulsar.ConsumerType.Shared, poison, 10_000)


def story(
    url: str, client: pulsar.Client, kind: pulsar.ConsumerType, poison: str, count: int
) -> None:
    keys = [f"k{number % 50}" for number in range(count)]
    send(url, "t", numbers(0, count), columns={"key": keys}, batchingMaxMessages=10)
    Admin(url).policies("t").set(breaker_threshold=50)
    sink = Sink(client, TWO_HOURS_MS, poison)
    served(client, sink, consumer_type=kind)
    good = [str(number) for number in range(count) if str(number) != poison]
    assert dead_letters(url) == ([poison] if poison else [])
    assert sorted(sink.stored, key=int) == good
    assert sink.attempts_while_down < 600


def test_without_a_breaker_all_of_them_are_buried(url: str, client: pulsar.Client) -> None:
    send(url, "t", numbers(0, 100))
    sink = Sink(client, 60_000, "")
    served(client, sink, consumer_type=pulsar.ConsumerType.Shared)
    assert len(dead_letters(url)) == 100


def test_who_looks_sees_that_it_is_open(
    url: str, client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    send(url, "t", numbers(0, 50))
    Admin(url).policies("t").set(breaker_threshold=50, breaker_delay="30s")
    consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    for _ in range(20):
        consumer.negative_acknowledge(consumer.receive(1000))
    assert isinstance(client.root.clock, ManualClock)
    client.root.clock.advance(5_000)
    (row,) = pulsar_spark.dataset(url, "t", view="subscriptions").to_table().to_pylist()
    assert (row["breaker"], row["breaker_failed_trials"]) == ("open", 0)
    assert row["breaker_next_trial"] - row["breaker_opened"] == timedelta(seconds=30)
    assert main(["topics", "stats", "t", "--service-url", url]) == 0
    said = json.loads(capsys.readouterr().out)["subscriptions"]["s"]
    assert (said["breaker"], said["breakerFailedTrials"]) == ("open", 0)
    assert said["breakerNextTrial"] - said["breakerOpened"] == 30_000
    assert main(["metrics", "--service-url", url]) == 0
    (line,) = (
        each for each in capsys.readouterr().out.splitlines()
        if each.startswith("pulsarlite_subscription_breaker{")
    )  # fmt: skip
    assert line.endswith(" 2"), line
    assert main(["subscriptions", "list", "t", "--service-url", url]) == 0
    assert "breaker of s, partition 0: open since" in capsys.readouterr().out
    assert main(["topics", "get-breaker", "t", "--service-url", url]) == 0
    assert "breaker_threshold" in capsys.readouterr().out
