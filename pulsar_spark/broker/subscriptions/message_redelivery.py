"""The messages that a consumer gives back: they wait, go out again, or become dead letters.

Invariants: a message that comes back is acknowledged already, dead-lettered (and acknowledged in
the same step), waiting, or to be granted now, and nothing else; its redelivery count rises only if
it may have been delivered; nothing comes back before its time. Follows Pulsar's
`MessageRedeliveryController`, and does on the broker what `ConsumerImpl` does with dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pulsar_spark.broker.protocol.commands import ReconsumeLater
from pulsar_spark.broker.protocol.policies import ConsumerOptions
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import MAX_INSTANTS, Consumer
from pulsar_spark.broker.subscriptions.dead_letter import Reason, dead_letters, retry_messages
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

Delay = Callable[[int], int]
"""Redelivery count -> milliseconds."""

LEAST_NEGATIVE_ACK_DELAY_MS: Final = 100
UNCOUNTED_WHILE_OPEN: Final = frozenset(
    {Reason.REJECTED, Reason.ACK_TIMEOUT, Reason.REDELIVERY_ASKED}
)
"""The reasons that are no failure of the message while its subscription's breaker is not closed."""


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """Messages that come back once too often become dead letters, with reason and properties.

    `now`: however seldom they were delivered.
    """

    reason: Reason
    now: bool = False
    properties: tuple[tuple[str, str], ...] = ()


class Holder(NamedTuple):
    """A consumer in a step: what it gives back goes to its subscription, and to `out`."""

    state: BrokerState
    subscription: Subscription
    consumer: Consumer
    out: Ready


def at_once(_count: int) -> int:
    return 0


def negative_ack_delay(options: ConsumerOptions, delay_ms: int | None) -> Delay:
    """The requested delay, or that by backoff, or the consumer's fixed one."""
    backoff = options.negative_ack_redelivery_backoff
    if delay_ms is not None:
        return lambda _count: delay_ms
    if backoff is not None:
        return backoff.next
    return lambda _count: max(options.negative_ack_redelivery_delay_ms, LEAST_NEGATIVE_ACK_DELAY_MS)


def give_back(
    holder: Holder,
    attempt: int,
    messages: PositionSet,
    *,
    seen: bool,
    counts: bool = True,
    delay: Delay = at_once,
    cause: DeadLetterCause | None = None,
) -> None:
    """Nobody holds these any more, which were granted at that attempt.

    `seen`: they may have been delivered, which `counts` unless the breaker pardons it; then those
    that were delivered too often already become dead letters, as `cause` says, or with None do
    not.
    """
    state, subscription, consumer, out = holder
    messages = subscription.cursor.not_acknowledged(messages)
    if not messages:
        return
    tracker = subscription.tracker
    policy, was_seen = consumer.options.dead_letter_policy, seen
    if (
        cause is not None
        and cause.reason in UNCOUNTED_WHILE_OPEN
        and not subscription.breaker.is_closed
    ):
        seen = False
    if seen and cause is not None and policy is not None:
        dead = messages
        if not cause.now:
            dead = messages.intersection(tracker.counts.at_least(policy.max_redeliver_count))
        if dead:
            out.republications += dead_letters(
                state, subscription, consumer, dead, cause.reason, cause.properties
            )
            subscription.acknowledge(Cursor().acknowledge(dead), state.ledgers)
            messages = messages.difference(dead)
    if seen and not state.is_persistent:  # no message of such a topic comes twice
        subscription.acknowledge(Cursor().acknowledge(messages), state.ledgers)
        return
    if was_seen:
        subscription.counts = subscription.counts.plus(state.ledgers, redelivered=messages)
    _grant_again(holder, messages, delay)
    subscription.tracker = tracker.given_back(attempt, messages, seen=seen and counts)


def _grant_again(holder: Holder, messages: PositionSet, delay: Delay) -> None:
    """Have these granted again after the delay of their count."""
    state, subscription, consumer, _ = holder
    for count, part in subscription.tracker.by_count(messages):
        wait_ms = delay(count)
        if wait_ms <= 0:
            subscription.replay = subscription.replay.union(part)
            continue
        waiting = subscription.waiting.put(state.now_ms + wait_ms, part)
        subscription.waiting = waiting.coarsened(MAX_INSTANTS)
        if consumer.options.prefetches:
            consumer.rejected = consumer.rejected.union(part)


def reject(
    holder: Holder, attempt: int, messages: PositionSet, delay: Delay, cause: DeadLetterCause
) -> None:
    """The consumer gives these back as delivered; what it does not hold at that attempt, stays.

    One that is blocked on unacknowledged messages is so no more, or nobody might get them again.
    """
    given = take_from(holder, attempt, messages)
    if given:
        holder.consumer.is_blocked = False
        subscription = holder.subscription
        subscription.suspects = subscription.suspects.difference(given)
    give_back(holder, attempt, given, seen=True, delay=delay, cause=cause)


def held_of(holder: Holder, attempt: int, messages: PositionSet) -> PositionSet:
    """The messages of these that the consumer holds at that attempt."""
    state, subscription, consumer, _ = holder
    messages = subscription.cursor.not_acknowledged(messages)
    if attempt == consumer.open_attempt:
        known, _ = state.known(messages)
        return subscription.held_openly(known)
    return consumer.pending.get(attempt, NOTHING).intersection(messages)


def take_from(holder: Holder, attempt: int, messages: PositionSet) -> PositionSet:
    """Take these from the consumer, as far as it held them at that attempt."""
    state, subscription, consumer, _ = holder
    messages = subscription.cursor.not_acknowledged(messages)
    whole = not state.policies.batch_index_acknowledgment
    if whole:  # but what it has not delivered yet stays: it may be about to
        entries = PositionSet.of(position for position, _ in messages.entries())
        if consumer.reports_delivered:
            entries = entries.intersection(consumer.delivered)
        messages = messages.union(entries)
    if attempt == consumer.open_attempt:
        known, _ = state.known(messages)
        given = subscription.held_openly(known)
        consumer.forget(given)
    else:
        given = consumer.take_back(attempt, messages)
    if whole:  # they come again, those included that were acknowledged in part of a batch
        subscription.partial_acks = subscription.partial_acks.difference(given)
    return given


def give_back_all(holder: Holder, reason: Reason | None) -> None:
    """The consumer holds nothing any more; what it may have delivered is counted as seen.

    With a reason, what it delivered too often already becomes dead letters; without one it has
    closed, which counts only where consumers share, as in Pulsar. With an open grant, of a consumer
    that never said: as much as it may hold at most. What a prefetching consumer that is gone may
    have delivered beyond its reports is suspect; what it gave back is due.
    """
    state, subscription, consumer, _ = holder
    cause = None if reason is None else DeadLetterCause(reason)
    counts = reason is not None or subscription.subscription_type.is_shared
    if reason is Reason.CONSUMER_GONE:
        subscription.suspects = subscription.suspects.union(_suspects_of(holder))
    if due := consumer.rejected.intersection(subscription.waiting.messages):
        subscription.waiting = subscription.waiting.without(due).put(state.now_ms, due)
    if consumer.has_open_grant:
        attempt = consumer.open_attempt
        seen = consumer.delivered.difference(consumer.held)
        if not consumer.reports_delivered:
            seen = subscription.held_openly(subscription.cursor.unread(state.ledgers))
            if consumer.permits > 0:
                seen = seen.prefix(consumer.permits, state.ledgers)
            cause = None
        consumer.open_attempt = -1
        give_back(holder, attempt, seen, seen=True, counts=counts, cause=cause)
    for attempt, held in list(consumer.pending.items()):
        delivered = held.intersection(consumer.delivered) if consumer.reports_delivered else held
        rest = held.difference(delivered)
        give_back(holder, attempt, delivered, seen=True, counts=counts, cause=cause)
        give_back(holder, attempt, rest, seen=False)
    if subscription.active == consumer.name:
        subscription.active = ""
    consumer.clear()


def _suspects_of(holder: Holder) -> PositionSet:
    """The messages that a lapsed consumer may have delivered without a report.

    With an open grant its permits bound that: the queue, and as many that left it since the report.
    """
    state, subscription, consumer, _ = holder
    if not consumer.options.prefetches or consumer.options.dead_letter_policy is None:
        return NOTHING
    held = consumer.held
    if consumer.has_open_grant:
        unread = subscription.held_openly(subscription.cursor.unread(state.ledgers))
        unread = unread.difference(consumer.delivered)
        held = held.union(unread.prefix(2 * consumer.permits, state.ledgers))
    return held.difference(consumer.delivered)


def reconsume_later(holder: Holder, attempts: Sequence[int], request: ReconsumeLater) -> None:
    """To the retry letter topic, or if they were there too often, to the dead letter topic.

    Those that are held at one of the attempts.
    """
    state, subscription, consumer, out = holder
    policy, messages = consumer.options.dead_letter_policy, request.messages
    is_paused = not subscription.breaker.is_closed  # and copies would count
    if policy is None or not policy.retry_letter_topic or is_paused:
        # An ordinary redelivery after the delay.
        cause = DeadLetterCause(Reason.REJECTED, properties=request.properties)
        for attempt in attempts:
            reject(holder, attempt, messages, lambda _: request.delay_ms, cause)
        return
    given = PositionSet.union_of([take_from(holder, each, messages) for each in attempts])
    if given:
        out.republications += retry_messages(state, subscription, consumer, given, request)
        subscription.acknowledge(Cursor().acknowledge(given), state.ledgers)
