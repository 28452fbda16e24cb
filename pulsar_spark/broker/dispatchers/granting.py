"""A consumer's room for messages, the next messages that nobody was granted, and the grant.

Invariants: nobody holds more than its permits, nor more unacknowledged messages than the topic
allows; messages that are read are neither acknowledged, nor waiting, nor delayed; the read position
never goes back, and the rest of an entry that was cut is in `replay`. Follows Pulsar's `Consumer`
(`blockedConsumerOnUnackedMsgs`) and `ManagedCursorImpl.asyncReadEntries`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_spark.broker.protocol.ready import Grant, Ready
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

SMALLEST_READ = 64


def capacities_of(
    state: BrokerState, subscription: Subscription
) -> tuple[dict[str, int], int, bool]:
    """(the room of each consumer that has any, that of all together, whether nothing new is read).

    Notes who is blocked, and whether the subscription is: once full, until half is acknowledged.
    While its breaker is not closed, all together have room for the next trial.
    """
    capacities, total = {}, 0
    for name, consumer in subscription.consumers.items():
        held = subscription.unacked_messages_of(consumer, state.ledgers)
        total += held
        capacity = capacity_of(state, subscription, consumer, held)
        if capacity > 0:
            capacities[name] = capacity
    limit = state.policies.max_unacked_messages_per_subscription
    if total >= limit > 0:
        subscription.is_blocked = True
    elif total < max(limit // 2, 1) or limit <= 0:  # half of 1 is 0, and nobody holds fewer
        subscription.is_blocked = False
    room = limit - total if limit > 0 else sum(capacities.values())
    allowed = allowed_now(state, subscription)
    return capacities, room if allowed is None else min(room, allowed), subscription.is_blocked


def allowed_now(state: BrokerState, subscription: Subscription) -> int | None:
    """The number of messages that the breaker lets through; None if it sets no limit."""
    breaker = subscription.breaker
    due_ms = None if breaker.is_closed else breaker.due_ms(subscription.delivered, state.policies)
    if due_ms is None:
        return None
    return breaker.size if state.now_ms >= due_ms else 0


def capacity_of(
    state: BrokerState, subscription: Subscription, consumer: Consumer, held: int
) -> int:
    """The number of messages that it may hold beyond `held`; notes whether it is blocked.

    Too many unacknowledged messages block only consumers of a durable shared subscription.
    """
    capacity = consumer.permits - held
    limit = state.policies.max_unacked_messages_per_consumer
    if limit <= 0 or not (subscription.durable and subscription.subscription_type.is_shared):
        consumer.is_blocked = False
    else:
        consumer.is_blocked = held >= limit or (consumer.is_blocked and held > limit // 2)
        capacity = 0 if consumer.is_blocked else min(capacity, limit - held)
    return max(capacity, 0)


def read_new(
    state: BrokerState, subscription: Subscription, messages: int, excluded: PositionSet
) -> tuple[PositionSet, PositionSet]:
    """(the next messages behind the read position, as many at most; the rest of the last entry).

    `excluded` wait to go out, again or at all. The read position moves behind both.
    """
    found, remainder, left = NOTHING, NOTHING, messages
    position = subscription.read_position
    ledger = state.ledgers.first_at_or_after(position.ledger_id)
    while ledger is not None and left > 0:
        first = position.entry_id + 1 if position.ledger_id == ledger.ledger_id else 0
        if first >= ledger.entries:
            ledger = state.ledgers.first_after(ledger.ledger_id)
            continue
        stop = min(ledger.entries, first + max(left, SMALLEST_READ))
        window = PositionSet.of_range(ledger.ledger_id, first, stop - 1)
        deleted = subscription.cursor.individually_deleted
        rest = window.difference(deleted) if deleted else window
        rest = rest.difference(excluded) if excluded else rest
        taken, last = _at_most(rest, left, ledger)
        if last is not None:  # cut: the rest of its last entry is read later
            stop = last + 1
            entry = PositionSet.of([(ledger.ledger_id, last)])
            remainder = rest.intersection(entry).difference(taken)
        found = found.union(taken) if found else taken
        left -= taken.count(LedgerList([ledger])) if taken else 0
        position = Position(ledger.ledger_id, stop - 1)
    subscription.read_position = max(subscription.read_position, position)
    return found, remainder


def _at_most(rest: PositionSet, most: int, ledger: LedgerInfo) -> tuple[PositionSet, int | None]:
    """(the first messages, the last entry of which some were taken if not all were)."""
    one = LedgerList([ledger])
    if not rest or rest.count(one) <= most:
        return rest, None
    taken = rest.prefix(most, one)
    whole, parts = taken.whole_entries(ledger.ledger_id), taken.partial_entries(ledger.ledger_id)
    return taken, max(whole.max() if whole else -1, max(parts, default=-1))


def grant(
    state: BrokerState,
    subscription: Subscription,
    consumer: Consumer,
    messages: PositionSet,
    out: Ready,
) -> None:
    """Let the consumer hold these; one Grant for each attempt and redelivery count."""
    subscription.counts = subscription.counts.plus(state.ledgers, delivered=messages)
    if subscription.partial_acks:  # a batch that comes again is to be acknowledged as a whole
        subscription.partial_acks = subscription.partial_acks.difference(messages)
    for attempt, part in list(subscription.tracker.by_next_attempt(messages)):
        consumer.give(attempt, part)
        subscription.tracker = subscription.tracker.granted(attempt, part)
        _add_grants(subscription, consumer, attempt, part, out)


def grant_all(
    state: BrokerState, subscription: Subscription, granted: Mapping[str, PositionSet], out: Ready
) -> None:
    """Grant to several; a consumer that is full now is blocked now, not at the next look."""
    for name, messages in granted.items():
        grant(state, subscription, subscription.consumers[name], messages, out)
    if granted:
        capacities_of(state, subscription)


def grants_again(subscription: Subscription, consumer: Consumer, out: Ready) -> None:
    """Grant again all that the consumer holds, but for messages that it is to give back."""
    topic_partition = (subscription.name, consumer.name)
    new = (
        each.messages
        for each in out.grants
        if (each.subscription, each.consumer) == topic_partition
    )
    excluded = PositionSet.union_of([consumer.revoked, *new])
    for attempt, held in sorted(consumer.pending.items()):
        _add_grants(subscription, consumer, attempt, held.difference(excluded), out, again=True)


def _add_grants(
    subscription: Subscription,
    consumer: Consumer,
    attempt: int,
    messages: PositionSet,
    out: Ready,
    *,
    again: bool = False,
) -> None:
    """One Grant for each redelivery count."""
    name, who = subscription.name, (consumer.name, consumer.incarnation)
    for count, part in subscription.tracker.by_count(messages):
        suspects = subscription.suspects.intersection(part)
        epoch = subscription.epoch
        out.grants.append(Grant(name, *who, epoch, attempt, part, count, again, suspects))
