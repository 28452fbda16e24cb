"""The acknowledgements of a subscription, with those in commands that its broker has not taken in.

Invariants: the commands are taken in by the broker's own handlers, in their order, so the answer is
the one that the broker comes to; nothing is granted and no time passes. Stands for the check of
Pulsar's `PendingAckHandleImpl`, which has the cursor in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pulsar_spark.broker.machine import acknowledgment, topic_subscriptions
from pulsar_spark.broker.protocol.commands import Report, Seek, SkipMessages, Unsubscribe
from pulsar_spark.broker.protocol.ready import Ready, RefusedError
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST


def with_commands(state: BrokerState, commands: Iterable[Any]) -> BrokerState:
    """The state after what these commands acknowledge, seek, skip and delete; all else is left."""
    after, out = state.copy(), Ready()
    for command in commands:
        with suppress(RefusedError):
            if isinstance(command, Report):
                _take_in(after, command, out)
            elif isinstance(command, Seek):
                topic_subscriptions.seek(after, command, out)
            elif isinstance(command, SkipMessages):
                topic_subscriptions.skip(after, command, out)
            elif isinstance(command, Unsubscribe):
                topic_subscriptions.unsubscribe(after, command, out)
    return after


def acknowledged(state: BrokerState, name: str) -> Cursor:
    """The messages that are acknowledged, or will be once the log of the topic is known further."""
    subscription = state.subscriptions.get(name)
    if subscription is None:
        return Cursor()
    cursor = subscription.cursor.acknowledge(subscription.partial_acks)
    return (
        cursor
        if subscription.pending_acknowledgments is None
        else cursor.union(subscription.pending_acknowledgments)
    )


def _take_in(state: BrokerState, command: Report, out: Ready) -> None:
    """Take in a report. What it says of messages that the state does not know yet is pending.

    The broker refuses that of a sink, but by then it knows the log that the sink knew.
    """
    subscription = state.subscriptions.get(command.subscription)
    every = [command.acknowledged, *command.acknowledged_attempts.values()]
    is_cumulative = any(each.mark_delete_position > EARLIEST for each in every)
    if subscription is None or command.consumer or is_cumulative:
        acknowledgment.report(state, _acknowledging(command), out)
        return
    with suppress(ValueError):  # an entry is given another batch size than it has
        messages = acknowledgment.of_this_epoch(subscription, command)
        acknowledgment.acknowledge_cursor(state, subscription, messages)


def _acknowledging(command: Report) -> Report:
    """The report without what it says beside its acknowledgements."""
    return replace(
        command, delivered=None, rejected=(), reconsume_later=(), permits=None, revision=0,
        request_id=None,
    )  # fmt: skip
