"""The breaker of a subscription: when it opens, what is tried, and what counts meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    LeaseLapsed,
    RedeliverUnacknowledgedMessages,
    Rejection,
    Report,
    SetPolicies,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import ConsumerOptions, DeadLetterPolicy, TopicPolicies
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.subscriptions.breaker import Breaker, BreakerPhase
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    TOPIC,
    entries,
    ledger,
    report,
    subscribe,
)

OPTIONS = ConsumerOptions(
    negative_ack_redelivery_delay_ms=100, dead_letter_policy=DeadLetterPolicy(1)
)
POLICIES = TopicPolicies(breaker_threshold=50, breaker_window=4)


class Topic:
    """One topic of sixteen messages with one consumer `a`, stepped on."""

    def __init__(self, kind: SubscriptionType = SHARED, **policies: Any) -> None:
        self.now_ms, self.sequence = 0, 0
        self.state = BrokerState(TOPIC, -1, TopicPolicies(**{
            "breaker_threshold": 50, "breaker_window": 4, **policies,
        }))  # fmt: skip
        self.ready = Ready()
        self.step(
            ledger(0, [1] * 16, sticky_key_hashes=range(16)),
            subscribe("a", kind, options=OPTIONS, permits=8),
        )

    def step(self, *commands: Command, after_ms: int = 0) -> Topic:
        self.now_ms += after_ms
        self.state, self.ready = step(self.state, list(commands), self.now_ms)
        self.state.check()
        return self

    def say(self, acked: Any = None, bad: Any = None, after_ms: int = 0, **said: Any) -> Topic:
        """What the consumer has delivered, finished and rejected."""
        self.sequence += 1
        held = self.consumer.pending
        delivered = dict(held.items())
        if self.consumer.has_open_grant:
            delivered[self.consumer.open_attempt] = entries(0, *range(8))
        rejected = () if bad is None else (Rejection(None, bad),)
        given = {"sequence": self.sequence, "delivered": delivered, "rejected": rejected,
                 "permits": 8, "revision": self.consumer.revision}  # fmt: skip
        return self.step(report("a", acked, **(given | said)), after_ms=after_ms)

    @property
    def consumer(self) -> Any:
        return self.state.subscriptions["s"].consumers["a"]

    @property
    def breaker(self) -> Breaker:
        return self.state.subscriptions["s"].breaker

    @property
    def phase(self) -> str:
        return self.breaker.phase(self.now_ms).value

    @property
    def granted(self) -> PositionSet:
        return PositionSet.union_of(each.messages for each in self.ready.grants)


def opened(**how: Any) -> Topic:
    """All eight messages that it holds have failed."""
    topic = Topic(**how)
    held = topic.granted or entries(0, *range(8))
    topic.say()
    topic.say(bad=held)
    assert topic.phase == BreakerPhase.OPEN
    return topic


def test_it_opens_where_most_of_the_latest_outcomes_are_failures() -> None:
    topic = Topic()
    topic.say(entries(0, 0, 1), bad=entries(0, 2, 3))
    assert topic.phase == "closed", "half of them"
    topic.say(entries(0, 0, 1), bad=entries(0, 4))
    assert topic.phase == "open"
    assert not topic.granted
    assert topic.ready.next_due_ms is not None


def test_it_does_not_open_before_there_are_as_many_outcomes_as_its_window() -> None:
    assert Topic().say(bad=entries(0, 0, 1, 2)).phase == "closed"
    assert Topic().say(bad=entries(0, 0, 1, 2, 3)).phase == "open"


def test_good_and_bad_messages_that_are_told_one_after_the_other_are_weighed_together() -> None:
    topic = Topic()
    topic.say(entries(0, *range(5)))
    assert topic.say(entries(0, *range(5)), bad=entries(0, 5, 6, 7)).phase == "closed"


def test_without_the_policy_there_is_none_and_one_that_is_open_goes() -> None:
    assert Topic(breaker_threshold=0).say(bad=entries(0, *range(8))).breaker == Breaker()
    topic = opened()
    topic.step(SetPolicies(TopicPolicies()), after_ms=100)
    assert topic.breaker == Breaker()
    assert topic.granted


def test_a_trial_is_one_message_and_waits_twice_as_long_after_each_that_fails() -> None:
    topic = opened()
    waits = []
    for _ in range(4):
        due_ms = topic.breaker.next_trial_ms
        assert not topic.step(after_ms=due_ms - topic.now_ms - 1).granted
        assert topic.step(after_ms=1).granted.count(topic.state.ledgers) == 1
        assert topic.phase == "half-open"
        trial = topic.breaker.trial
        topic.say()
        topic.say(bad=trial)
        assert topic.phase == "open"
        waits.append(topic.breaker.next_trial_ms - topic.now_ms)
    assert waits == [2_000, 4_000, 8_000, 16_000]
    topic = opened(breaker_max_delay_ms=1_500)
    topic.step(after_ms=1_000)
    topic.say()
    topic.say(bad=topic.breaker.trial)
    assert topic.breaker.next_trial_ms - topic.now_ms == 1_500


def test_trials_that_succeed_double_until_all_goes_on() -> None:
    topic = opened()
    topic.step(after_ms=1_000)
    done, sizes = PositionSet(), []
    while topic.phase == "half-open":
        sizes.append(topic.breaker.trial.count(topic.state.ledgers))
        done = done.union(topic.breaker.trial)
        topic.say()
        topic.say(done)
    assert sizes == [1, 2, 4]
    assert topic.breaker == Breaker()
    assert topic.granted.count(topic.state.ledgers) == 8


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED, EXCLUSIVE, FAILOVER])
def test_no_failure_counts_while_it_is_open(kind: SubscriptionType) -> None:
    topic = opened(kind=kind)
    for _ in range(5):
        topic.say()
        topic.step(after_ms=400_000)
        assert topic.breaker.trial
        topic.say()
        topic.say(bad=topic.breaker.trial)
        assert not topic.ready.republications
    assert not topic.state.subscriptions["s"].tracker.counts


def test_a_message_that_fails_alone_counts_and_is_buried_in_the_end() -> None:
    topic = opened()
    topic.step(after_ms=1_000)
    (poison,) = [topic.breaker.trial]
    topic.say()
    topic.say(bad=poison)
    topic.step(after_ms=2_000)
    assert not topic.breaker.trial.intersection(poison), "others are tried before"
    done, republications = PositionSet(), PositionSet()
    for _ in range(40):
        held = topic.consumer.held
        done = done.union(held.difference(poison))
        topic.say(done)
        topic.say(done, bad=held.intersection(poison))
        republications = republications.union(
            PositionSet.union_of(e.messages for e in topic.ready.republications)
        )
        topic.step(after_ms=1_000)
    assert republications == poison
    assert topic.breaker.is_closed
    assert not topic.state.subscriptions["s"].cursor.unread(topic.state.ledgers)


def test_a_message_that_failed_in_a_trial_is_tried_again_if_there_is_no_other() -> None:
    topic = opened()
    done = entries(0, *range(1, 16))
    topic.step(report("a", done, sequence=50), after_ms=1_000)
    for _ in range(3):
        topic.step(after_ms=400_000)
        assert topic.breaker.trial == entries(0, 0)
        topic.say(done)
        topic.say(done, bad=entries(0, 0))


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_who_reads_alone_is_revoked_and_reads_on_in_order_when_it_closes(
    kind: SubscriptionType,
) -> None:
    topic = Topic(kind)
    topic.say()
    topic.say(bad=entries(0, *range(8)))
    assert [each.messages for each in topic.ready.revokes] == [None]
    topic.say()  # it has obeyed
    assert not topic.consumer.has_open_grant
    topic.step(after_ms=1_000)
    done = PositionSet()
    while not topic.breaker.is_closed:
        assert topic.breaker.trial
        done = done.union(topic.breaker.trial)
        topic.say()
        topic.say(done)
    assert done == entries(0, *range(7)), "in order"
    assert topic.consumer.has_open_grant
    assert not topic.ready.open_grants[0].after.unread(topic.state.ledgers).intersection(done)


def test_what_is_put_off_while_it_is_open_is_copied_nowhere() -> None:
    from pulsar_spark.broker.protocol.commands import ReconsumeLater

    topic = opened()
    topic.step(after_ms=1_000)
    later = ReconsumeLater(None, topic.breaker.trial, 10, reconsume_times=9)
    topic.say(reconsume_later=(later,))
    assert not topic.ready.republications
    assert topic.phase == "open"


def test_who_dies_opens_nothing_and_counts_as_ever() -> None:
    topic = Topic()
    topic.say()
    topic.step(LeaseLapsed("s", "a", 1))
    assert topic.phase == "closed"
    assert len(topic.state.subscriptions["s"].tracker.counts) == 1
    topic = opened()
    topic.step(after_ms=1_000)
    topic.say()
    topic.step(LeaseLapsed("s", "a", 1))
    assert topic.state.subscriptions["s"].tracker.counts
    topic.step(subscribe("b", options=OPTIONS))
    assert topic.breaker.trial, "another one is tried at once"


def test_an_ack_timeout_and_a_request_for_redelivery_are_failures() -> None:
    topic = Topic()
    topic.say()
    topic.step(RedeliverUnacknowledgedMessages("s", "a", 1, 0, 1))
    assert topic.phase == "open"
    options = ConsumerOptions(ack_timeout_ms=1_000)
    topic = Topic()
    topic.step(subscribe("b", options=options, permits=8))
    held = topic.state.subscriptions["s"].consumers["b"].pending
    topic.step(Report("s", "b", 1, permits=8, delivered=dict(held.items())))
    topic.step(after_ms=1_000)
    assert topic.phase == "open"


def test_a_trial_that_is_only_part_of_what_is_needed_gets_more() -> None:
    topic = opened()  # a chunk, without which its message can't be delivered
    topic.step(after_ms=1_000)
    topic.step(after_ms=999)
    assert not topic.granted
    topic.step(after_ms=1)
    assert topic.breaker.trial.count(topic.state.ledgers) == 2
    topic.say()  # delivered: its consumer works on it, or waits for more
    topic.step(after_ms=299_999)
    assert topic.breaker.trial.count(topic.state.ledgers) == 2
    topic.step(after_ms=1)
    assert topic.breaker.trial.count(topic.state.ledgers) == 3


def test_a_batch_that_must_be_acknowledged_as_a_whole_is_tried_message_by_message() -> None:
    topic = Topic(batch_index_acknowledgment=False)
    topic.step(ledger(1, [4]))
    topic.say()
    topic.say(bad=entries(0, *range(8)))
    done = entries(0, *range(16))
    topic.step(report("a", done, sequence=90))
    for index in range(4):
        topic.step(after_ms=1_000)
        if topic.breaker.is_closed:
            break
        trial = topic.breaker.trial
        assert trial, index
        done = done.union(trial)
        topic.say()
        topic.say(done)
    assert topic.breaker.is_closed


def test_a_sinks_reports_are_outcomes_too() -> None:
    topic = Topic()
    bad = (Rejection(None, entries(0, *range(8))),)
    topic.say()
    topic.step(Report("s", epoch=None, acknowledged=Cursor(), rejected=bad))
    assert topic.phase == "open"
