"""Exclusive and Failover: one consumer reads all, by an open grant, until it is revoked.

Invariants: at most one consumer has the open grant; another gets it only after the holder has
reported what it delivered, or is gone; delivered and unacknowledged messages stay with the holder,
so a handover delivers nothing twice; rejected messages come back by an explicit grant. The table
TRANSITIONS has the roles of a consumer and their changes; the figure in docs/broker.md is drawn
from it. Follows Pulsar's `PersistentDispatcherSingleActiveConsumer`, which rewinds instead.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from pulsar_spark.broker.dispatchers.granting import allowed_now, capacity_of, grant
from pulsar_spark.broker.protocol.ready import OpenGrant, Ready, Revoke
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import NO_OPEN_GRANT, Consumer
from pulsar_spark.broker.subscriptions.message_redelivery import Holder, give_back
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.model.positions.position_set import NOTHING


class Role(str, Enum):
    """The present role of a consumer."""

    STANDBY = "standby"
    ACTIVE = "active"
    REVOKING = "revoking"
    GONE = "gone"


class Event(str, Enum):
    """An event that may change a consumer's role."""

    ELECTED = "elected, and nobody holds the grant"
    DEPOSED = "another was elected, or the breaker opened"
    OBEYED = "its final report"
    LEFT = "closed, or its lease lapsed"


TRANSITIONS: Final = {
    (Role.STANDBY, Event.ELECTED): Role.ACTIVE,
    (Role.ACTIVE, Event.DEPOSED): Role.REVOKING,
    (Role.REVOKING, Event.OBEYED): Role.STANDBY,
    (Role.STANDBY, Event.LEFT): Role.GONE,
    (Role.ACTIVE, Event.LEFT): Role.GONE,
    (Role.REVOKING, Event.LEFT): Role.GONE,
}
"""A pair that is missing here can't happen; `moved` names it in an error."""


def role_of(consumer: Consumer) -> Role:
    if not consumer.has_open_grant:
        return Role.STANDBY
    return Role.REVOKING if consumer.is_revoking else Role.ACTIVE


def moved(role: Role, event: Event) -> Role:
    """The role after an event. ValueError names both if there is none."""
    if (role, event) not in TRANSITIONS:
        raise ValueError(f"a consumer that is {role.value} can't be {event.value}")
    return TRANSITIONS[role, event]


def dispatch(state: BrokerState, subscription: Subscription, out: Ready) -> None:
    """Hand over if another was elected; then grant again rejected messages that are due.

    While the breaker is not closed nobody has the open grant, and the elected consumer gets trials.
    """
    elected = subscription.failover.active if subscription.failover is not None else None
    holder = subscription.consumers.get(subscription.active)
    is_closed = subscription.breaker.is_closed
    is_deposed = holder is not None and (holder.name != elected or not is_closed)
    if holder is not None and is_deposed and role_of(holder) is Role.ACTIVE:
        _revoke(subscription, holder, out)
    if holder is None and elected is not None and not is_closed:
        _grant_trial(state, subscription, subscription.consumers[elected], out)
    elif holder is None and elected is not None:
        holder = subscription.consumers[elected]
        _open(subscription, holder)
        out.open_grants.append(open_grant_of(subscription, holder))
    if holder is not None and role_of(holder) is Role.ACTIVE and subscription.replay:
        held = subscription.unacked_messages_of(holder, state.ledgers)
        capacity = capacity_of(state, subscription, holder, held)
        messages = subscription.replay
        if capacity > 0:
            messages = messages.prefix(capacity, state.ledgers)
            grant(state, subscription, holder, messages, out)
            subscription.replay = subscription.replay.difference(messages)


def _grant_trial(
    state: BrokerState, subscription: Subscription, consumer: Consumer, out: Ready
) -> None:
    """Grant what the breaker allows now: rejected messages that are due, then those not read."""
    held = subscription.unacked_messages_of(consumer, state.ledgers)
    capacity = capacity_of(state, subscription, consumer, held)
    most = min(capacity, allowed_now(state, subscription) or 0)
    if most <= 0:
        return
    messages = subscription.replay
    if not messages:
        unread = subscription.held_openly(subscription.cursor.unread(state.ledgers))
        excluded = subscription.breaker.tried.union(state.delayed.messages)
        messages = unread.difference(excluded) if excluded else unread
    messages = messages.prefix(most, state.ledgers)
    if messages:
        grant(state, subscription, consumer, messages, out)
        subscription.replay = subscription.replay.difference(messages)


def obeyed(holder: Holder) -> None:
    """Note that the holder has reported, and knows that its grant is over."""
    _, subscription, consumer, _ = holder
    moved(Role.REVOKING, Event.OBEYED)
    attempt, held = consumer.open_attempt, consumer.held
    delivered = subscription.held_openly(consumer.delivered.difference(held))
    consumer.open_attempt = NO_OPEN_GRANT
    consumer.rejected = NOTHING  # it comes again to another
    subscription.active = ""
    if delivered:
        consumer.give(attempt, delivered)
    for number, pending in list(consumer.pending.items()):
        rest = pending.difference(consumer.delivered)
        if rest:
            consumer.take_back(number, rest)
            give_back(holder, number, rest, seen=False)


def open_grant_of(
    subscription: Subscription, consumer: Consumer, *, again: bool = False
) -> OpenGrant:
    """Everything but acknowledged and waiting messages, and those in explicit grants."""
    others = subscription.held.union(subscription.waiting.messages).union(subscription.replay)
    after = subscription.cursor.acknowledge(others) if others else subscription.cursor
    counts = dict(subscription.tracker.counts.without(others).items())
    who = (subscription.name, consumer.name, consumer.incarnation)
    place = (subscription.epoch, consumer.open_attempt, after)
    return OpenGrant(*who, *place, counts, again, subscription.suspects.difference(others))


def _open(subscription: Subscription, consumer: Consumer) -> None:
    moved(role_of(consumer), Event.ELECTED)
    subscription.tracker = subscription.tracker.open_grant()
    subscription.replay = NOTHING  # the new grant is above all attempts, so it has them too
    subscription.active = consumer.name
    consumer.open_attempt = subscription.tracker.base_attempt
    consumer.open_from = subscription.cursor.mark_delete_position


def _revoke(subscription: Subscription, consumer: Consumer, out: Ready) -> None:
    moved(Role.ACTIVE, Event.DEPOSED)
    consumer.revision += 1
    out.revokes.append(revoke_of(subscription, consumer))


def revoke_of(subscription: Subscription, consumer: Consumer) -> Revoke:
    """The latest Revoke, to say it again."""
    revoke = revoke_all(subscription, consumer)
    return revoke if consumer.has_open_grant else replace(revoke, messages=consumer.revoked)


def revoke_all(subscription: Subscription, consumer: Consumer) -> Revoke:
    """A Revoke of all earlier grants."""
    who = (subscription.name, consumer.name, consumer.incarnation)
    return Revoke(*who, subscription.epoch, consumer.revision)
