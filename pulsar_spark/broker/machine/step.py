"""Pulsar's broker for one topic partition, as one pure step.

    state, ready = step(state, commands, now_ms)

Invariants: the result depends on the arguments alone, and the given state does not change; time
never goes back; all commands of a batch are taken in first, and grants are decided once, at its
end; effects stand in `Ready`, in order; trims follow from the state before the step. Follows
Pulsar's `PersistentTopic`, `ServerCnx` and their dispatchers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

from pulsar_spark.broker.dispatchers import (
    dispatcher_multiple_consumers,
    dispatcher_single_active,
    dispatcher_sticky_key,
)
from pulsar_spark.broker.machine import acknowledgment, retention, topic_subscriptions
from pulsar_spark.broker.protocol import commands
from pulsar_spark.broker.protocol.commands import (
    Command,
    LedgerAdded,
    LogIdentified,
    SubscriptionType,
    TopicDeleted,
    TopicMade,
)
from pulsar_spark.broker.protocol.ready import Acknowledged, Ready, RefusedError
from pulsar_spark.broker.subscriptions.breaker import Breaker
from pulsar_spark.broker.subscriptions.broker_state import DELETED, BrokerState
from pulsar_spark.broker.subscriptions.message_redelivery import Holder
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.errors import ServerError, replaced
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet


def step(state: BrokerState, commands: Sequence[Command], now_ms: int) -> tuple[BrokerState, Ready]:
    """The state after these commands, in order, at that time; and the effects for the host."""
    out = Ready()
    before, state = state, state.copy()
    state.now_ms = max(now_ms, state.now_ms)
    commands = _take_in_deletion(state, commands, out)
    _check_log(state, commands)
    if state.incarnation != before.incarnation:
        before = state
    out.trim = retention.ledgers_to_trim(before, state.now_ms)
    state.trimming |= frozenset(out.trim)
    _take_in_ledgers(state, commands)
    for command in commands:
        handler = HANDLERS.get(type(command))
        if handler is None:
            raise TypeError(f"{type(command).__name__} is no command of the broker")
        try:
            _check_topic(state, command)
            handler(state, command, out)
        except RefusedError as refused:
            out.reply(command, refused.error, refused.message, newest=refused.newest)
    due = _take_out_delayed(state, out)
    for subscription in list(state.subscriptions.values()):
        _advance_time(state, subscription, due, out)
    retention.check_backlog_quota(state, out)
    for subscription in state.subscriptions.values():
        _dispatch(state, subscription, out)
    out.due_at(retention.next_release_ms(state, state.now_ms))
    if retention.ledgers_to_trim(state, state.now_ms):
        out.due_at(state.now_ms)
    return state, out


def _take_in_deletion(
    state: BrokerState, commands: Sequence[Command], out: Ready
) -> Sequence[Command]:
    """Forget a topic that the log says was deleted; what is said of the one that is there now."""
    begin = 0
    for place, command in enumerate(commands):
        now = state.incarnation
        if isinstance(command, TopicDeleted):
            now = DELETED
        elif isinstance(command, TopicMade):
            now = command.incarnation
        if now != state.incarnation:
            topic_subscriptions.delete_all(state, out)
            fresh = BrokerState(state.topic, state.partition, now_ms=state.now_ms)
            for each in fields(fresh):
                setattr(state, each.name, getattr(fresh, each.name))
            state.incarnation = now
            begin = place + 1
    return commands[begin:]


def _check_log(state: BrokerState, commands: Sequence[Command]) -> None:
    """TopicReplacedError if the log is not the one of which the state knows."""
    for command in commands:
        if isinstance(command, LogIdentified):
            if state.made_by not in ("", command.made_by):
                raise replaced(state.topic)
            state.made_by = command.made_by


def _check_topic(state: BrokerState, command: Command) -> None:
    """RefusedError if the topic that was meant is gone, whether or not another has its name."""
    if state.incarnation == DELETED and not isinstance(command, FROM_THE_LOG):
        raise RefusedError(ServerError.TOPIC_NOT_FOUND, "The topic was deleted")
    meant = getattr(command, "topic_incarnation", None)
    if meant is not None and meant != state.incarnation:
        text = "The topic was deleted, and another has its name: begin with a new checkpoint"
        raise RefusedError(ServerError.TOPIC_NOT_FOUND, text)


def _take_in_ledgers(state: BrokerState, commands: Sequence[Command]) -> None:
    """Take in the log first: consumers' commands may be about ledgers of this batch."""
    added = [each for each in commands if isinstance(each, LedgerAdded)]
    for command in sorted(added, key=lambda each: each.ledger.ledger_id):
        if state.add_ledger(command) and command.hidden:
            for subscription in state.subscriptions.values():
                subscription.pass_over(Cursor().acknowledge(command.hidden), state.ledgers)
    if added:
        for subscription in state.subscriptions.values():
            acknowledgment.acknowledge_pending(state, subscription)


def _advance_time(
    state: BrokerState, subscription: Subscription, delayed: PositionSet, out: Ready
) -> None:
    """Do all that is due by now: the time to live, ack timeouts, redeliveries, delays."""
    retention.expire(state, subscription, out)
    subscription.drop_acknowledged()
    for consumer in subscription.consumers.values():
        acknowledgment.time_out(Holder(state, subscription, consumer, out))
    due, subscription.waiting = subscription.waiting.split(state.now_ms)
    if subscription.subscription_type.is_shared:
        # Messages behind the read position are read anyway; delayed ones at their time.
        if due:
            due = due.up_to(subscription.read_position).difference(state.delayed.messages)
        if delayed:
            passed = delayed.up_to(subscription.read_position)
            passed = subscription.cursor.not_acknowledged(passed)
            for other in (subscription.held, subscription.waiting.messages):
                passed = passed.difference(other)
            due = due.union(passed)
    if due:
        subscription.replay = subscription.replay.union(due)


def _take_out_delayed(state: BrokerState, out: Ready) -> PositionSet:
    """The delayed messages whose time has come."""
    tick_ms = state.policies.delayed_delivery_tick_ms
    ahead_ms = state.policies.delayed_delivery_ahead_ms
    state.delayed, due = state.delayed.scheduled_messages(state.now_ms + ahead_ms, tick_ms)
    if (next_ms := state.delayed.next_delivery_time_ms(tick_ms)) is not None:
        out.due_at(next_ms - ahead_ms)
    return due


def _dispatch(state: BrokerState, subscription: Subscription, out: Ready) -> None:
    """Decide once what is granted; then report the subscription's place and its next instant."""
    subscription.drop_acknowledged()
    if not state.has_breakers:
        subscription.breaker = Breaker()
    if subscription.breaker.is_closed:
        DISPATCHERS[subscription.subscription_type](state, subscription, out)
    else:
        _dispatch_trial(state, subscription, out)
    topic_subscriptions.welcome(subscription, out)
    position = subscription.cursor.mark_delete_position
    if position != subscription.announced:
        subscription.announced = position
        out.acknowledged.append(Acknowledged(subscription.name, subscription.epoch, position))
    out.due_at(min(subscription.waiting, default=None))
    for consumer in subscription.consumers.values():
        out.due_at(min(consumer.timeouts, default=None))


def _dispatch_trial(state: BrokerState, subscription: Subscription, out: Ready) -> None:
    """Grant what the breaker allows: what failed in a trial only if there is nothing else."""
    dispatch = DISPATCHERS[subscription.subscription_type]
    now_ms, policies = state.now_ms, state.policies
    breaker = subscription.breaker.held(subscription.held)
    breaker = subscription.breaker = breaker.judged(state.ledgers, policies, now_ms)
    first = len(out.grants)
    tried = subscription.replay.intersection(breaker.tried)
    subscription.replay = subscription.replay.difference(tried)
    dispatch(state, subscription, out)
    subscription.replay = subscription.replay.union(tried)
    if tried and len(out.grants) == first:
        dispatch(state, subscription, out)
    if breaker.is_closed:
        return
    on_trial = PositionSet.union_of(each.messages for each in out.grants[first:])
    if on_trial:
        subscription.breaker = breaker.tries(on_trial, now_ms)
    due_ms = subscription.breaker.due_ms(subscription.delivered, policies)
    if due_ms is not None and due_ms > now_ms:
        out.due_at(due_ms)


def _set_policies(state: BrokerState, command: commands.SetPolicies, _out: Ready) -> None:
    state.policies = command.policies


FROM_THE_LOG: Final = (
    LedgerAdded, commands.LedgersTrimmed, commands.Compacted, commands.SetPolicies, TopicDeleted,
    TopicMade, LogIdentified,
)  # fmt: skip
HANDLERS: Final[dict[type, Callable[[BrokerState, Any, Ready], None]]] = {
    LedgerAdded: lambda _state, _command, _out: None,  # `_take_in_ledgers` has taken it in
    TopicDeleted: lambda _state, _command, _out: None,  # as `_take_in_deletion` this
    TopicMade: lambda _state, _command, _out: None,
    LogIdentified: lambda _state, _command, _out: None,  # `_check_log` has looked at it
    commands.LedgersTrimmed: lambda state, command, _: state.remove_ledgers(command.ledger_ids),
    commands.Compacted: lambda state, command, _: state.compact(command.compacted),
    commands.SetPolicies: _set_policies,
    commands.Subscribe: topic_subscriptions.subscribe,
    commands.CreateSubscription: topic_subscriptions.create,
    commands.CloseConsumer: topic_subscriptions.close,
    commands.LeaseLapsed: topic_subscriptions.close,
    commands.Unsubscribe: topic_subscriptions.unsubscribe,
    commands.Seek: topic_subscriptions.seek,
    commands.SkipMessages: topic_subscriptions.skip,
    commands.Report: acknowledgment.report,
    commands.RedeliverUnacknowledgedMessages: acknowledgment.redeliver_unacknowledged,
}
"""The function of each command; there are no other commands."""

DISPATCHERS: Final[dict[SubscriptionType, Callable[[BrokerState, Subscription, Ready], None]]] = {
    SubscriptionType.EXCLUSIVE: dispatcher_single_active.dispatch,
    SubscriptionType.FAILOVER: dispatcher_single_active.dispatch,
    SubscriptionType.SHARED: dispatcher_multiple_consumers.dispatch,
    SubscriptionType.KEY_SHARED: dispatcher_sticky_key.dispatch,
}
"""The dispatcher of each type of subscription."""
