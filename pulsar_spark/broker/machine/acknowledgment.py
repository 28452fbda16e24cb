"""The effects of a report, by a consumer or a sink.

Invariants: acknowledging is a union, so a command that arrives twice, late or from a consumer that
is gone does no harm, and one of an older epoch does nothing; a rejection counts only for messages
that are held at the attempt that it names; permits, revision and committed floor of a newer report
stand against an older one. Follows Pulsar's `Consumer.messageAcked`,
`PersistentSubscription.acknowledgeMessage` and `flowPermits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from pulsar_spark.broker.dispatchers import dispatcher_single_active, dispatcher_sticky_key
from pulsar_spark.broker.protocol.commands import (
    RedeliverUnacknowledgedMessages,
    Report,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.ready import Ready, RefusedError
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import MAX_INSTANTS, Consumer
from pulsar_spark.broker.subscriptions.dead_letter import Reason
from pulsar_spark.broker.subscriptions.message_redelivery import (
    DeadLetterCause,
    Holder,
    at_once,
    give_back_all,
    held_of,
    negative_ack_delay,
    reconsume_later,
    reject,
)
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.errors import ServerError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import previous_position
from pulsar_spark.model.positions.position import EARLIEST, LATEST
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet


def existing(state: BrokerState, name: str) -> Subscription:
    """The subscription of that name. RefusedError if there is none."""
    subscription = state.subscriptions.get(name)
    if subscription is None:
        raise RefusedError(ServerError.SUBSCRIPTION_NOT_FOUND, "Subscription not found")
    return subscription


def report(state: BrokerState, command: Report, out: Ready) -> None:
    """Take in a consumer's report, or a sink's: anybody may acknowledge another's message.

    So what a run acknowledges counts, though the rest of its report is refused.
    """
    subscription = existing(state, command.subscription)
    if command.epoch is not None and command.epoch != subscription.epoch:
        _check_is_connected(subscription, command)
        if command.request_id is not None:  # who is told nothing waits for nothing
            text = f"The subscription was reset: epoch {command.epoch} is over"
            raise RefusedError(ServerError.EPOCH_IS_OVER, text)
        return
    with _refusal_of_invalid_positions():
        for messages in _messages_of(command):
            state.check_batch_sizes(messages)
        acknowledged = of_this_epoch(subscription, command)
    before, was_out = subscription.cursor, subscription.places if subscription.active else None
    is_cumulative = acknowledged.mark_delete_position > EARLIEST
    if not command.consumer and is_cumulative and subscription.subscription_type.is_shared:
        kind = subscription.subscription_type.value  # «all up to this one» may be others'
        text = f"Cumulative acknowledgement is not allowed on a {kind} subscription"
        raise RefusedError(ServerError.NOT_ALLOWED_ERROR, text)
    with _refusal_of_invalid_positions():
        if not command.consumer:
            acknowledged = _handed(state, subscription, command, acknowledged)
        new = acknowledge_cursor(state, subscription, acknowledged)
    _check_is_connected(subscription, command)
    consumer = subscription.consumers.get(command.consumer)
    if consumer is not None:
        _take_state(Holder(state, subscription, consumer, out), command)
    every = [consumer] if consumer is not None else list(subscription.consumers.values())
    holders = [Holder(state, subscription, each, out) for each in every]
    if state.has_breakers:
        failing = (_failing(holder, command) for holder in holders)
        take_outcomes(state, subscription, before, PositionSet.union_of(failing))
    for holder in holders:
        _take_rejections(holder, command)
    if was_out is not None:
        _count_delivered(state, subscription, _named(state, command, before).union(new), was_out)
    out.confirm(command, epoch=subscription.epoch)


def redeliver_unacknowledged(
    state: BrokerState, command: RedeliverUnacknowledgedMessages, out: Ready
) -> None:
    """Take back messages that the consumer asks to be given again; without messages: everything."""
    subscription = state.subscriptions.get(command.subscription)
    consumer = subscription.consumers.get(command.consumer) if subscription else None
    if (
        subscription is None
        or consumer is None
        or consumer.incarnation != command.incarnation
        or subscription.epoch != command.epoch
        or command.sequence <= consumer.redeliver_sequence
    ):
        return
    with _refusal_of_invalid_positions():
        for messages in (command.messages or {}).values():
            state.check_batch_sizes(messages)
    consumer.redeliver_sequence = command.sequence
    holder = Holder(state, subscription, consumer, out)
    _note_failures(holder, command.messages)
    if command.messages is not None:
        for attempt, messages in sorted(command.messages.items()):
            reject(holder, attempt, messages, at_once, DeadLetterCause(Reason.REDELIVERY_ASKED))
    else:
        give_back_all(holder, Reason.REDELIVERY_ASKED)
        # The revision marks these grants: all that the consumer reads before this Revoke.
        consumer.revision += 1
        consumer.obeyed = consumer.revision
        out.revokes.append(dispatcher_single_active.revoke_all(subscription, consumer))


def time_out(holder: Holder) -> None:
    """Take back messages that were delivered longer ago than the consumer's ack timeout."""
    consumer = holder.consumer
    due, consumer.timeouts = consumer.timeouts.split(holder.state.now_ms)
    if due:
        _note_failures(holder, dict.fromkeys(_attempts(consumer, None), due))
    for attempt in _attempts(consumer, None) if due else ():
        reject(holder, attempt, due, at_once, DeadLetterCause(Reason.ACK_TIMEOUT))


def take_outcomes(
    state: BrokerState, subscription: Subscription, before: Cursor, failing: PositionSet
) -> None:
    """Tell the breaker what was acknowledged since `before`, and what is about to be given back."""
    breaker, ledgers, policies = subscription.breaker, state.ledgers, state.policies
    cursor = subscription.cursor
    if not breaker.is_closed:
        waits = cursor.not_acknowledged(breaker.trial).difference(subscription.partial_acks)
        done = breaker.trial.difference(waits)
        breaker = breaker.settled(done, waits.intersection(failing), ledgers)
        subscription.breaker = breaker.judged(ledgers, policies, state.now_ms)
        return
    successes = 0
    if cursor is not before:
        successes = max(0, before.backlog(ledgers) - cursor.backlog(ledgers))
    consumers = len(subscription.consumers)
    failures = failing.count(ledgers)
    reported = breaker.reported(successes, failures, consumers, policies, state.now_ms)
    subscription.breaker = reported


def acknowledge_cursor(
    state: BrokerState, subscription: Subscription, cursor: Cursor
) -> PositionSet:
    """Acknowledge published messages; those beyond wait until the log tells of them.

    What was not acknowledged before.
    """
    known, beyond = state.known(cursor.individually_deleted)
    end = state.last_position
    position = min(cursor.mark_delete_position, end)
    beyond |= cursor.mark_delete_position > end
    ledger = state.ledgers.get(position.ledger_id)
    if ledger is not None:
        position = min(position, ledger.last)
    if beyond:
        observed = subscription.pending_acknowledgments
        subscription.pending_acknowledgments = (
            cursor if observed is None else observed.union(cursor)
        )
    elif subscription.pending_acknowledgments is cursor:
        subscription.pending_acknowledgments = None
    if not state.policies.batch_index_acknowledgment:
        known = _complete_batches(subscription, known)
    if position > subscription.cursor.mark_delete_position or known:
        return subscription.acknowledge(Cursor(position, known), state.ledgers)
    return NOTHING


def acknowledge_pending(state: BrokerState, subscription: Subscription) -> None:
    """Acknowledge what the log tells of by now. What could never be right is forgotten."""
    if subscription.pending_acknowledgments is not None:
        was_out = subscription.out if subscription.active else None
        try:
            new = acknowledge_cursor(state, subscription, subscription.pending_acknowledgments)
            if was_out is not None:
                new = new.difference(was_out)
                subscription.counts = subscription.counts.plus(state.ledgers, delivered=new)
        except ValueError:
            subscription.pending_acknowledgments = None


# -- inside --------------------------------------------------------------------------------------


@contextmanager
def _refusal_of_invalid_positions() -> Iterator[None]:
    """Refuse instead of a ValueError: positions that the log can't have, batch sizes among them."""
    try:
        yield
    except ValueError as error:
        raise RefusedError(ServerError.INVALID_CURSOR_POSITION, str(error)) from error


def _messages_of(command: Report) -> Iterator[PositionSet]:
    yield from (each.messages for each in command.rejected)
    yield from (each.messages for each in command.reconsume_later)
    yield from (command.delivered or {}).values()
    yield from (each.individually_deleted for each in command.acknowledged_attempts.values())
    yield command.acknowledged.individually_deleted


def _check_is_connected(subscription: Subscription, command: Report) -> None:
    """RefusedError if it comes from a run that is not connected, or no longer."""
    consumer = subscription.consumers.get(command.consumer)
    known = consumer.incarnation if consumer is not None else -1
    if not command.consumer or (consumer is not None and command.incarnation == known):
        return
    if command.incarnation > known and command.consumer not in subscription.incarnations:
        raise RefusedError(ServerError.CONSUMER_NOT_FOUND, "Consumer not found: subscribe")
    text = "Another run took this consumer's name, or its lease lapsed"
    newest = subscription.newest_run_of(command.consumer)
    raise RefusedError(ServerError.CONSUMER_REPLACED, text, newest)


def of_this_epoch(subscription: Subscription, command: Report) -> Cursor:
    """Its acknowledgements, without those by a sink of messages delivered before a seek."""
    acknowledged = command.acknowledged
    for attempt, cursor in command.acknowledged_attempts.items():
        if attempt >= subscription.first_attempt:
            acknowledged = acknowledged.union(cursor)
    return acknowledged


def _complete_batches(subscription: Subscription, messages: PositionSet) -> PositionSet:
    """Without batch-index acknowledgement, the entries of which all messages are in; else all."""
    together = subscription.partial_acks.union(messages)
    entries = PositionSet.of(position for position, _ in together.entries())
    known = together.union(subscription.cursor.individually_deleted.intersection(entries))
    whole = PositionSet({k: known.whole_entries(k) for k in known.ledger_ids})
    subscription.partial_acks = subscription.cursor.not_acknowledged(together.difference(whole))
    return whole


def _published(state: BrokerState, subscription: Subscription, cursor: Cursor) -> Cursor:
    """The acknowledged messages of a sink, without those never published.

    ValueError where Pulsar refuses.

    Pulsar refuses what lies beyond the last entry, and «all up to» what is all acknowledged, and
    leaves out the rest: what was trimmed, what lies behind the last entry of an earlier ledger, and
    part of an entry that does not exist yet where everything before it is acknowledged.
    """
    known, beyond = state.known(cursor.individually_deleted)
    target, current = cursor.mark_delete_position, subscription.cursor.mark_delete_position
    is_cumulative = target > EARLIEST
    if is_cumulative and len(state.ledgers):
        target = previous_position(state.ledgers, target.next)
    if target > state.last_position or (beyond and not is_cumulative):
        raise ValueError(
            f"Invalid mark deleted position: it lies beyond the last entry, {state.last_position}"
        )
    if is_cumulative and target < current:
        raise ValueError(
            "Mark deleting an already mark-deleted position. Current mark-delete: "
            f"{current} -- attempted mark delete: {target}"
        )
    return Cursor(target, known)


def _handed(
    state: BrokerState, subscription: Subscription, command: Report, acknowledged: Cursor
) -> Cursor:
    """A sink's acknowledgements; a cumulative one takes nothing that its consumer has not had.

    That takes what that consumer has delivered and holds, or has rejected. Of a message that nobody
    holds at its attempt any more it takes that message alone, and without an attempt all before it
    that no consumer has delivered, and that does not wait to come again.
    """
    acknowledged = _published(state, subscription, acknowledged)
    if acknowledged.mark_delete_position == EARLIEST:
        return acknowledged
    known = acknowledged.individually_deleted
    taken = NOTHING
    for attempt, cursor in ((None, command.acknowledged), *command.acknowledged_attempts.items()):
        if attempt is not None and attempt < subscription.first_attempt:
            continue
        position, part = cursor.mark_delete_position, cursor.individually_deleted
        if position == EARLIEST:
            taken = taken.union(part)
            continue
        begin = subscription.cursor.mark_delete_position
        behind = PositionSet.between(state.ledgers, begin, position).union(part)
        last = part or PositionSet.of([position])
        holder = _holder_of(subscription, attempt, last)
        if holder is not None:
            rejected = holder.rejected.intersection(subscription.waiting.messages)
            taken = taken.union(holder.delivered.union(rejected).intersection(behind))
        elif attempt is not None:
            taken = taken.union(last)
        else:
            taken = taken.union(behind.difference(subscription.out))
    taken, _ = state.known(taken)
    return Cursor(EARLIEST, taken.union(known))


def _holder_of(
    subscription: Subscription, attempt: int | None, messages: PositionSet
) -> Consumer | None:
    """The consumer that was given these at that attempt, or at whichever, and has them still."""
    for consumer in subscription.consumers.values():
        if attempt is not None and attempt == consumer.open_attempt:
            return consumer
        had = consumer.delivered
        if attempt is not None:
            had = consumer.pending.get(attempt, NOTHING)
        if messages.intersection(had):
            return consumer
    return None


def _named(state: BrokerState, command: Report, before: Cursor) -> PositionSet:
    """The messages that a report names as delivered or gives back, and were not acknowledged."""
    named = [each.messages for each in command.rejected]
    named += [each.messages for each in command.reconsume_later]
    known, _ = state.known(PositionSet.union_of([*(command.delivered or {}).values(), *named]))
    return before.not_acknowledged(known)


def _count_delivered(
    state: BrokerState,
    subscription: Subscription,
    messages: PositionSet,
    was_out: Iterable[PositionSet],
) -> None:
    """Count what an open grant has delivered: only reports name it, or what is done with it."""
    for place in was_out:
        messages = messages.difference(place)
    subscription.counts = subscription.counts.plus(state.ledgers, delivered=messages)


def _take_state(holder: Holder, command: Report) -> None:
    _, subscription, consumer, _ = holder
    if consumer.options.prefetches and command.delivered:
        _take_delivered(holder, command.delivered)
    if command.sequence > consumer.sequence:
        consumer.sequence = command.sequence
        consumer.committed = LATEST if command.committed is None else command.committed
        if command.permits is not None:
            consumer.permits = command.permits
        consumer.reports_delivered = command.delivered is not None or consumer.options.prefetches
        if command.delivered is not None and not consumer.options.prefetches:
            _take_delivered(holder, command.delivered)
    if command.revision > consumer.obeyed:
        consumer.obeyed = min(command.revision, consumer.revision)
        if not consumer.is_revoking:
            if consumer.has_open_grant:
                dispatcher_single_active.obeyed(holder)
            elif subscription.subscription_type is SubscriptionType.KEY_SHARED:
                dispatcher_sticky_key.obeyed(holder)


def _take_delivered(holder: Holder, delivered: Mapping[int, PositionSet]) -> None:
    """Note what the consumer has planned of its messages, by attempt; timeouts begin now.

    A run that died may have reported more than it wrote down: the next run's report counts. What a
    prefetching consumer was handed adds to what is known.
    """
    state, subscription, consumer, _ = holder
    before = consumer.delivered
    if not consumer.options.prefetches:
        consumer.delivered = NOTHING
    for attempt, messages in delivered.items():
        if attempt == consumer.open_attempt:
            known, _ = state.known(messages)
            held = subscription.held_openly(known)
        else:
            held = subscription.cursor.not_acknowledged(messages)
            held = consumer.pending.get(attempt, NOTHING).intersection(held)
        consumer.delivered = consumer.delivered.union(held)
    consumer.timeouts = consumer.timeouts.without(before.difference(consumer.delivered))
    options = consumer.options
    if options.ack_timeout_ms > 0:
        new = consumer.delivered.difference(consumer.timeouts.messages)
        for count, part in subscription.tracker.by_count(new):
            backoff = options.ack_timeout_redelivery_backoff
            wait_ms = options.ack_timeout_ms + (backoff.next(count) if backoff else 0)
            tick_ms = max(1, options.ack_timeout_tick_ms)
            due_ms = -(-(state.now_ms + wait_ms) // tick_ms) * tick_ms
            timeouts = consumer.timeouts.put(due_ms, part)
            consumer.timeouts = timeouts.coarsened(MAX_INSTANTS)


def _take_rejections(holder: Holder, command: Report) -> None:
    consumer = holder.consumer
    for rejection in command.rejected:
        delay = negative_ack_delay(consumer.options, rejection.delay_ms)
        reason = Reason.DEAD_LETTER_ASKED if rejection.to_dead_letter else Reason.REJECTED
        cause = DeadLetterCause(reason, rejection.to_dead_letter, rejection.properties)
        for attempt in _attempts(consumer, rejection.attempt):
            reject(holder, attempt, rejection.messages, delay, cause)
    for request in command.reconsume_later:
        reconsume_later(holder, _attempts(consumer, request.attempt), request)


def _failing(holder: Holder, command: Report) -> PositionSet:
    """The failed messages of the report, without those that can never be processed."""
    given = [(each.attempt, each.messages) for each in command.rejected if not each.to_dead_letter]
    given += [(each.attempt, each.messages) for each in command.reconsume_later]
    return PositionSet.union_of(
        held_of(holder, attempt, messages)
        for given_attempt, messages in given
        for attempt in _attempts(holder.consumer, given_attempt)
    )


def _note_failures(holder: Holder, given: Mapping[int, PositionSet] | None) -> None:
    """Tell the breaker of these, by attempt; None: of all that was delivered."""
    state, subscription, consumer, _ = holder
    if not state.has_breakers:
        return
    failing = consumer.delivered
    if given is not None:
        held = (held_of(holder, attempt, messages) for attempt, messages in given.items())
        failing = PositionSet.union_of(held)
    take_outcomes(state, subscription, subscription.cursor, failing)


def _attempts(consumer: Consumer, attempt: int | None) -> list[int]:
    """The attempt that is given; without one, all at which the consumer holds messages."""
    if attempt is not None:
        return [attempt]
    held = sorted(consumer.pending)
    return [*held, consumer.open_attempt] if consumer.has_open_grant else held
