"""A topic that a client made keeps what was acknowledged for a while: a seek back finds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark import Admin, pulsar
from pulsar_spark.broker.machine import retention
from pulsar_spark.testing import Place
from tests.connector.client.clients import all_of, received, subscribe

Clock = Callable[[float], None]


def acknowledged(client: pulsar.Client, *values: bytes) -> pulsar.Consumer:
    """A consumer that has acknowledged these."""
    consumer = subscribe(client, consumer_name="c")
    producer = client.create_producer("t")
    for value in values:
        producer.send(value)
    for message in all_of(consumer):
        consumer.acknowledge(message)
    assert received(consumer) == []
    return consumer


def test_what_was_acknowledged_is_found_by_a_seek_for_ten_minutes(pulsarlite: Place) -> None:
    client = pulsarlite.client
    consumer = acknowledged(client, b"a", b"b", b"c")
    pulsarlite.clock.advance(500_000)
    consumer.seek(pulsar.MessageId.earliest)
    assert received(consumer) == [b"a", b"b", b"c"]
    consumer.seek(pulsar.MessageId.latest)  # what a seek passes counts as acknowledged
    consumer.seek(pulsar.MessageId.earliest)
    assert [consumer.receive(1000).data() for _ in "abc"] == [b"a", b"b", b"c"]
    consumer.seek(pulsar.MessageId.latest)
    client.create_producer("t").send(b"d")
    consumer.acknowledge(consumer.receive(1000))
    pulsarlite.clock.advance(300_000)
    assert received(consumer) == []
    consumer.seek(pulsar.MessageId.earliest)
    assert received(consumer) == [b"d"]


@pytest.mark.parametrize("bound", ["KEPT_FOR_SEEKS_BYTES", "KEPT_FOR_SEEKS_LEDGERS"])
def test_it_is_bounded_by_bytes_and_by_commits(
    client: pulsar.Client, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(retention, bound, 10)
    consumer = acknowledged(client, *(b"%d" % (number % 10) for number in range(15)))
    producer = client.create_producer("t")
    producer.send(b"x")
    consumer.acknowledge(consumer.receive(1000))
    assert received(consumer) == []
    consumer.seek(pulsar.MessageId.earliest)
    assert 9 <= len(received(consumer)) <= 10


@pytest.mark.parametrize("where", ["t", "public/default"])
def test_a_retention_policy_switches_it_off(client: pulsar.Client, url: str, where: str) -> None:
    client.create_producer("t").close()
    Admin(url).policies(where).set(retention_time=0, retention_size=0)
    consumer = acknowledged(client, b"a", b"b", b"c")
    consumer.seek(pulsar.MessageId.earliest)
    assert received(consumer) == [b"c"], "the newest commit stays"
