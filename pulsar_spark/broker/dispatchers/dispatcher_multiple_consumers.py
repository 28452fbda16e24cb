"""Shared: messages are dealt out by priority and turn, to consumers with room.

Invariants: messages that go out again come before new ones; nobody gets more than it may hold, to
the message; messages without a taker stay in `replay`. Follows Pulsar's
`PersistentDispatcherMultipleConsumers`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_spark.broker.dispatchers.granting import capacities_of, grant_all, read_new
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.model.positions import batch_part
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet


def dispatch(state: BrokerState, subscription: Subscription, out: Ready) -> None:
    """Grant what may be granted now."""
    capacities, room, blocked = capacities_of(state, subscription)
    if not capacities:
        return
    total = min(sum(capacities.values()), room)
    granted: dict[str, PositionSet] = {}
    if subscription.replay and total > 0:
        candidates = subscription.replay.prefix(total, state.ledgers)
        rest = _deal(state, subscription, candidates, capacities, granted)
        subscription.replay = subscription.replay.difference(candidates.difference(rest))
        room -= sum(messages.count(state.ledgers) for messages in granted.values())
        total = min(sum(capacities.values()), room)
    if total > 0 and not blocked:
        excluded = PositionSet.union_of([state.delayed.messages, subscription.waiting.messages])
        candidates, remainder = read_new(state, subscription, total, excluded)
        rest = _deal(state, subscription, candidates, capacities, granted)
        subscription.replay = subscription.replay.union(rest).union(remainder)
    grant_all(state, subscription, granted, out)


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
        ledger_ids, entry_ids, counts = _entries(rest, state.ledgers)
        subscription.shared, picks = subscription.shared.dispatch(
            counts, dict(capacities), state.policies.dispatcher_max_round_robin_batch_size
        )
        if not picks:
            break
        ranges: dict[str, list[NDArray[np.int64]]] = {}
        for name, first, stop in picks:
            ranges.setdefault(name, []).append(np.arange(first, stop))
        for name, each in ranges.items():
            places = np.concatenate(each)
            entries = PositionSet.from_arrays(ledger_ids[places], entry_ids[places])
            taken = entries.intersection(rest).prefix(capacities[name], state.ledgers)
            granted[name] = granted.get(name, NOTHING).union(taken)
            rest = rest.difference(taken)
            capacities[name] -= taken.count(state.ledgers)
            if capacities[name] <= 0:
                del capacities[name]
    return rest


def _entries(
    messages: PositionSet, ledgers: LedgerList
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The set's entries in order: ledger, entry, and how many of its messages are in the set.

    Arrays of one length, as the list of entries that Pulsar's dispatchers have just read. KeyError
    if `ledgers` lacks one of its ledgers.
    """
    columns = []
    for ledger_id in messages.ledger_ids:
        ledger = ledgers.of_id(ledger_id)
        parts = messages.partial_entries(ledger_id)
        held = messages.whole_entries(ledger_id) | BitMap(list(parts))
        entry_ids = np.array(held.to_array(), np.int64)
        runs = ledger.batch_sizes.runs
        if len(runs) == 1:
            counts = np.full(len(entry_ids), runs[0][0], np.int64)
        else:
            counts = ledger.batch_sizes.array()[entry_ids]
        for entry_id, part in parts.items():
            counts[held.rank(entry_id) - 1] = batch_part.bits(part).bit_count()
        columns.append(np.stack((np.full_like(entry_ids, ledger_id), entry_ids, counts)))
    ids, entry_ids, counts = np.concatenate(columns, axis=1)
    return ids, entry_ids, counts
