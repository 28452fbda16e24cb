"""A broker beside transactions that stay open: what waits for them, and what does not."""

from __future__ import annotations

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.topics.managed_ledger import BROKERS_PATIENCE_MS
from pulsar_spark.log.transaction_attempt import Transaction
from pulsar_spark.options.options import Scope
from pulsar_spark.testing import ManualClock, Place
from tests.connector.client.clients import shared
from tests.connector.topics import ledger_of, options_of, written

DLQ = "t-s-DLQ"


def left_open(url: str, topic: str) -> None:
    options = options_of(url, Scope.WRITE, {"topic": topic})
    (prepared,) = written(options, ["prepared"])
    open_ = Transaction.of(("query", 0), "a try", 3_600_000)
    ledger_of(url, topic).append(prepared.ledgers, transaction=open_)


def test_a_letter_that_waits_for_an_open_transaction_holds_up_no_other_topic(
    pulsarlite: Place, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    client = pulsarlite.client
    policy = pulsar.ConsumerDeadLetterPolicy(1)
    delay = {"negative_ack_redelivery_delay_ms": 1_000}
    failing = shared(client, topic="t", dead_letter_policy=policy, **delay)
    other = shared(client, topic="u")
    client.create_producer(DLQ).send(b"there before")
    client.create_producer("t").send(b"a")
    producer = client.create_producer("u")
    failing.negative_acknowledge(failing.receive(5_000))
    left_open(pulsarlite.service_url, DLQ)
    begun_ms = clock.wall_ms()
    failing.negative_acknowledge(failing.receive(5_000))
    clock.advance(seconds=2)
    producer.send(b"b")
    assert other.receive(1_000).data() == b"b"
    assert clock.wall_ms() - begun_ms < BROKERS_PATIENCE_MS, "the other topic did not wait"
    assert "ends in an open transaction" in caplog.text
    clock.advance(minutes=1)
    assert [each.data() for each in pulsarlite.messages(DLQ)] == [b"there before", b"a"]
