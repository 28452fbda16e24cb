"""Sets of messages that a view shows, each with what is the same for all of them.

Invariants: the sets of one subscription are disjoint, so a message is a row of each subscription at
most; they follow from one state of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet
from pulsar_spark.model.topic_name import TopicPartition

Group = tuple[Any, ...]
"""The values of a view's own columns; times in milliseconds."""


@dataclass(frozen=True, slots=True)
class MessageSet:
    """Messages of one topic partition by group; `ledgers` has those of the trimmed ones too."""

    topic_partition: TopicPartition
    groups: list[tuple[Group, PositionSet]]
    ledgers: Mapping[int, LedgerInfo] = field(default_factory=dict)


LeaseEnds = Callable[[Lease], int | None]
"""When a lease ends, if that can be known."""
Sets = Callable[[BrokerState, Subscription, LeaseEnds], Iterator[tuple[Group, PositionSet]]]


def unread(state: BrokerState, subscription: Subscription) -> PositionSet:
    """The subscription's backlog."""
    ledgers = state.ledgers_that_stay(compacted=subscription.read_compacted)
    return subscription.cursor.unread(ledgers)


def backlog(
    state: BrokerState, subscription: Subscription, _ends: LeaseEnds
) -> Iterator[tuple[Group, PositionSet]]:
    """(subscription, state, consumer, attempt, redelivery count)."""
    rest = unread(state, subscription)
    for consumer, attempt, messages in _held(subscription, rest):
        rest = rest.difference(messages)
        yield from _counted(subscription, messages, "held", consumer.name, attempt)
    waiting = rest.intersection(subscription.waiting.messages)
    yield from _counted(subscription, waiting, "waiting", None, None)
    rest = rest.difference(waiting)
    late = rest.intersection(delayed_of(state, subscription))
    yield from _counted(subscription, late, "delayed", None, None)
    yield from _counted(subscription, rest.difference(late), "ready", None, None)


def unacknowledged(
    state: BrokerState, subscription: Subscription, ends: LeaseEnds
) -> Iterator[tuple[Group, PositionSet]]:
    """(subscription, consumer, attempt, redelivery count, is delivered, two ends)."""
    rest = unread(state, subscription)
    for consumer, attempt, messages in _held(subscription, rest):
        lease = Lease(subscription.name, consumer.name, consumer.incarnation)
        lease_ends = ends(lease)
        for count, counted in subscription.tracker.by_count(messages):
            reported_delivered = (
                counted.intersection(consumer.delivered) if consumer.reports_delivered else NOTHING
            )
            for delivered, part in (
                (True, reported_delivered),
                (False, counted.difference(reported_delivered)),
            ):
                is_delivered = delivered if consumer.reports_delivered else None
                head = (subscription.name, consumer.name, attempt, count, is_delivered)
                for timeout_ms, mine in _by_instant(consumer, part):
                    yield (*head, timeout_ms, lease_ends), mine


def delayed(
    state: BrokerState, subscription: Subscription, _ends: LeaseEnds
) -> Iterator[tuple[Group, PositionSet]]:
    """(subscription, reason, due, redelivery count); due is the message's own where it is None."""
    name, rest = subscription.name, unread(state, subscription)
    for due_ms, messages in subscription.waiting.items():
        for count, part in subscription.tracker.by_count(messages.intersection(rest)):
            yield (name, "redelivery", due_ms, count), part
    late = rest.intersection(delayed_of(state, subscription))
    late = late.difference(subscription.waiting.messages)
    for count, part in subscription.tracker.by_count(late):
        yield (name, "deliver_at", None, count), part


SETS: Final[dict[str, Sets]] = {
    "backlog": backlog, "unacknowledged": unacknowledged, "delayed": delayed,
}  # fmt: skip
"""The views about subscriptions as of one state."""


def delayed_of(state: BrokerState, subscription: Subscription) -> PositionSet:
    """The messages that producers delayed, for a subscription that waits for them."""
    return state.delayed.messages if subscription.subscription_type.is_shared else NOTHING


def _held(
    subscription: Subscription, rest: PositionSet
) -> Iterator[tuple[Consumer, int, PositionSet]]:
    """(consumer, attempt, what of these it holds); of an open grant what it has delivered."""
    for consumer in subscription.consumers.values():
        for attempt, messages in consumer.pending.items():
            if mine := messages.intersection(rest):
                yield consumer, attempt, mine
        if consumer.has_open_grant and consumer.reports_delivered:
            given = subscription.held_openly(consumer.delivered.intersection(rest))
            if given:
                yield consumer, consumer.open_attempt, given


def _counted(
    subscription: Subscription, messages: PositionSet, *values: Any
) -> Iterator[tuple[Group, PositionSet]]:
    """The messages by redelivery count, the last of the values."""
    for count, part in subscription.tracker.by_count(messages):
        yield (subscription.name, *values, count), part


def _by_instant(
    consumer: Consumer, messages: PositionSet
) -> Iterator[tuple[int | None, PositionSet]]:
    """The messages by the instant at which they are given back."""
    for instant_ms, timed in consumer.timeouts.items():
        if part := timed.intersection(messages):
            yield instant_ms, part
    if rest := messages.difference(consumer.timeouts.messages):
        yield None, rest
