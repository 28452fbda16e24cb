"""What a subscription counts of its deliveries, by the broker's own steps."""

from __future__ import annotations

import pytest

from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    LeaseLapsed,
    LedgersTrimmed,
    Rejection,
    Seek,
    SkipMessages,
)
from pulsar_spark.broker.protocol.policies import ConsumerOptions, TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.delivery_counts import DeliveryCounts
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST
from tests.core.broker_samples import (
    EXCLUSIVE,
    TOPIC,
    by_sink,
    entries,
    ledger,
    report,
    subscribe,
)

AT_ONCE = ConsumerOptions(negative_ack_redelivery_delay_ms=100)


class Broker:
    """Steps, and what the subscription `s` has counted so far."""

    def __init__(self, time_to_live_ms: int = 0) -> None:
        policies = TopicPolicies(message_ttl_ms=time_to_live_ms)
        self.state = BrokerState(TOPIC, -1, policies)
        self.now_ms = 0

    def __call__(self, *commands: Command, after_ms: int = 1) -> tuple[int, ...]:
        self.now_ms += after_ms
        self.state, _ = step(self.state, commands, self.now_ms)
        self.state.check()
        counts = self.state.subscriptions["s"].counts
        return counts.delivered, counts.redelivered, counts.expired, counts.acknowledged

    @property
    def counts(self) -> DeliveryCounts:
        return self.state.subscriptions["s"].counts


def test_what_is_granted_is_delivered_and_again_when_it_comes_again() -> None:
    broker = Broker()
    assert broker(ledger(0, [1] * 6), subscribe("a", options=AT_ONCE)) == (6, 0, 0, 0)
    assert broker.counts.delivered_bytes == 60
    said = report("a", entries(0, 0, 1), rejected=(Rejection(0, entries(0, 4, 5)),))
    assert broker(said) == (6, 2, 0, 2)
    assert broker(after_ms=100) == (8, 2, 0, 2)
    assert broker(LeaseLapsed("s", "a", 1)) == (8, 6, 0, 2)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_of_an_open_grant_what_is_reported_counts_once(is_told_first: bool) -> None:
    broker = Broker()
    assert broker(ledger(0, [1] * 6), subscribe("a", EXCLUSIVE, options=AT_ONCE)) == (0, 0, 0, 0)
    first = 0
    if is_told_first:
        said = report("a", delivered={0: entries(0, 0, 1, 2)}, sequence=1)
        assert broker(said) == (3, 0, 0, 0)
        assert broker(said) == (3, 0, 0, 0)
        first = 1
    rejected = (Rejection(0, entries(0, 2)),)
    said = report("a", entries(0, 0, 1), delivered={0: entries(0, 2)}, rejected=rejected,
                  sequence=first + 1)  # fmt: skip
    assert broker(said) == (3, 1, 0, 2)
    assert broker(said) == (3, 1, 0, 2)
    assert broker(by_sink(Cursor().acknowledge(entries(0, 3)))) == (4, 1, 0, 3)
    assert broker(after_ms=100) == (5, 1, 0, 3), "it came again, by a grant of its own"


def test_what_expires_is_neither_delivered_nor_counted_twice() -> None:
    broker = Broker(time_to_live_ms=1_000)
    broker(ledger(0, [1] * 3), ledger(1, [1] * 3, at_ms=5_000), subscribe("a", permits=2))
    assert broker(report("a", entries(0, 0), permits=2)) == (3, 0, 0, 1)
    assert broker(after_ms=2_000) == (5, 0, 2, 3), "and two more are granted"
    assert broker(after_ms=1_000) == (5, 0, 2, 3)
    assert broker(SkipMessages("s", before_ms=5_001))[2:] == (5, 6)
    assert broker(ledger(2), SkipMessages("s"))[2:] == (5, 7), "skipped is not expired"


def test_counts_go_on_through_a_seek_which_acknowledges_nothing() -> None:
    broker = Broker()
    broker(ledger(0, [1] * 3), subscribe("a"))
    before = broker(report("a", entries(0, 0, 1, 2)))
    assert before == (3, 0, 0, 3)
    assert broker(Seek("s", EARLIEST)) == (6, 0, 0, 3)


def test_duplicates_and_what_was_trimmed_are_not_counted() -> None:
    broker = Broker()
    broker(ledger(0, [1] * 3, hidden=entries(0, 1)), subscribe("a"))
    assert broker(ledger(1, [1] * 2, hidden=entries(1, 0))) == (3, 0, 0, 0)
    one = report("a", entries(0, 0))
    assert broker(one, LedgersTrimmed((0,))) == (3, 0, 0, 1), "the other one was trimmed"


def test_what_a_reader_acknowledges_before_its_broker_hears_of_it_counts_then() -> None:
    broker = Broker()
    broker(ledger(0, [1] * 2), subscribe("a", EXCLUSIVE))
    assert broker(report("a", entries(0, 0, 1).union(entries(1, 0)))) == (2, 0, 0, 2)
    assert broker(ledger(1, [1] * 2)) == (3, 0, 0, 3)
