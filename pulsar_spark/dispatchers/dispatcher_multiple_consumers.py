"""Shared: messages are dealt out by priority and turn, to consumers with room.

Invariants: messages that go out again come before new ones; nobody gets more than it may hold, to
the message; messages without a taker stay in `replay`. Follows Pulsar's
`PersistentDispatcherMultipleConsumers`.
"""

from __future__ import annotations

import numpy as np

from pulsar_spark.dispatchers.entry_run import EntryRun
from pulsar_spark.dispatchers.granting import (
    block_the_full,
    capacity_of,
    grant,
    is_blocked_on_unacked,
    read_new,
)
from pulsar_spark.positions.position_set import NOTHING, PositionSet
from pulsar_spark.protocol.ready_builder import ReadyBuilder
from pulsar_spark.subscriptions.broker_state import BrokerState
from pulsar_spark.subscriptions.subscription import Subscription


def dispatch(state: BrokerState, subscription: Subscription, out: ReadyBuilder) -> None:
    """Grant what may be granted now."""
    capacities, held = capacities_of(state, subscription)
    blocked = is_blocked_on_unacked(state, subscription, held)
    if not capacities:
        return
    limit = state.policies.max_unacked_messages_per_subscription
    room = limit - held if limit > 0 else sum(capacities.values())
    total = min(sum(capacities.values()), room)
    granted: dict[str, PositionSet] = {}
    if subscription.replay and total > 0:
        candidates = subscription.replay.prefix(total, state.ledgers)
        rest = _deal(state, subscription, candidates, capacities, granted)
        subscription.replay = subscription.replay.difference(candidates.difference(rest))
        room -= sum(messages.count(state.ledgers) for messages in granted.values())
        total = min(sum(capacities.values()), room)
    if total > 0 and not blocked:
        excluded = excluded_from_reading(state, subscription)
        candidates, beside = read_new(state, subscription, total, excluded)
        rest = _deal(state, subscription, candidates, capacities, granted)
        subscription.replay = subscription.replay.union(rest).union(beside)
    for name, messages in granted.items():
        grant(subscription, subscription.consumers[name], messages, out)
    if granted:
        block_the_full(state, subscription)


def capacities_of(state: BrokerState, subscription: Subscription) -> tuple[dict[str, int], int]:
    """(the room of each consumer that has any, the number of messages that all hold now)."""
    capacities, total = {}, 0
    for name, consumer in subscription.consumers.items():
        held = subscription.unacked_messages_of(consumer, state.ledgers)
        total += held
        capacity = capacity_of(state, subscription, consumer, held)
        if capacity > 0:
            capacities[name] = capacity
    return capacities, total


def excluded_from_reading(state: BrokerState, subscription: Subscription) -> PositionSet:
    """Messages not to read: delayed ones, and those that somebody holds from before a rewind."""
    excluded = state.delayed.messages
    if subscription.waiting:
        excluded = excluded.union(subscription.waiting.messages)
    return excluded


def _deal(
    state: BrokerState,
    subscription: Subscription,
    candidates: PositionSet,
    capacities: dict[str, int],
    granted: dict[str, PositionSet],
) -> PositionSet:
    """Deal these out, entry by entry in turn; returns those left over."""
    rest = candidates
    while rest and capacities:
        run = EntryRun.of(rest, state.ledgers)
        subscription.shared, picks = subscription.shared.dispatch(
            run.counts, dict(capacities), state.policies.dispatcher_max_round_robin_batch_size
        )
        if not picks:
            break
        places: dict[str, list[tuple[int, int]]] = {}
        for name, first, stop in picks:
            places.setdefault(name, []).append((first, stop))
        for name, ranges in places.items():
            taken = _within(run, ranges, capacities[name])
            granted[name] = granted.get(name, NOTHING).union(taken)
            rest = rest.difference(taken)
            capacities[name] -= taken.count(state.ledgers)
            if capacities[name] <= 0:
                del capacities[name]
    return rest


def _within(run: EntryRun, ranges: list[tuple[int, int]], capacity: int) -> PositionSet:
    """The entries at these places; the last are cut, to at most `capacity` messages."""
    places = np.concatenate([np.arange(first, stop) for first, stop in ranges])
    ends = np.cumsum(run.counts[places])
    fitting = int(np.searchsorted(ends, capacity, "right"))
    taken = run.take(places[:fitting])
    missing = capacity - (int(ends[fitting - 1]) if fitting else 0)
    if missing > 0 and fitting < len(places):
        taken = taken.union(run.cut(int(places[fitting]), missing))
    return taken
