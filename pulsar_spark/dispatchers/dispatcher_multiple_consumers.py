"""Shared: messages are dealt out by priority and turn, to consumers with room.

Invariants: messages that go out again come before new ones; nobody gets more than it may hold, to
the message; messages without a taker stay in `replay`. Follows Pulsar's
`PersistentDispatcherMultipleConsumers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_spark.dispatchers.granting import (
    capacities_of,
    excluded_from_reading,
    grant_all,
    read_new,
)
from pulsar_spark.positions import batch_part
from pulsar_spark.positions.ledger_info import LedgerList
from pulsar_spark.positions.position_set import NOTHING, PositionSet
from pulsar_spark.protocol.ready import Ready
from pulsar_spark.subscriptions.broker_state import BrokerState
from pulsar_spark.subscriptions.subscription import Subscription


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
        excluded = excluded_from_reading(state, subscription)
        candidates, beside = read_new(state, subscription, total, excluded)
        rest = _deal(state, subscription, candidates, capacities, granted)
        subscription.replay = subscription.replay.union(rest).union(beside)
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
        run = _EntryRun.of(rest, state.ledgers)
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


def _within(run: _EntryRun, ranges: list[tuple[int, int]], capacity: int) -> PositionSet:
    """The entries at these places; the last are cut, to at most `capacity` messages."""
    places = np.concatenate([np.arange(first, stop) for first, stop in ranges])
    ends = np.cumsum(run.counts[places])
    fitting = int(np.searchsorted(ends, capacity, "right"))
    taken = run.take(places[:fitting])
    missing = capacity - (int(ends[fitting - 1]) if fitting else 0)
    if missing > 0 and fitting < len(places):
        taken = taken.union(run.cut(int(places[fitting]), missing))
    return taken


@dataclass(frozen=True, slots=True)
class _EntryRun:
    """A set of messages as a row of entries in order, to be dealt out, and cut anywhere.

    Arrays of one length: ledger, entry, and how many of its messages are in the set. Stands for the
    list of entries that Pulsar's dispatchers have just read.
    """

    messages: PositionSet
    ledgers: LedgerList
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]
    counts: NDArray[np.int64]

    @staticmethod
    def of(messages: PositionSet, ledgers: LedgerList) -> _EntryRun:
        """The set's entries. KeyError if `ledgers` lacks one of its ledgers."""
        ids, entries, counts = [], [], []
        for ledger_id in messages.ledger_ids:
            ledger = ledgers.get(ledger_id)
            if ledger is None:
                raise KeyError(f"the list has no ledger {ledger_id}")
            parts = messages.partial_entries(ledger_id)
            held = messages.whole_entries(ledger_id)
            if parts:
                held = held | BitMap(list(parts))
            each = np.array(held.to_array(), np.int64)
            runs = ledger.batch_sizes.runs
            if len(runs) == 1:
                sizes = np.full(len(each), runs[0][0], np.int64)
            else:
                sizes = ledger.batch_sizes.array()[each]
            for entry_id, part in parts.items():
                sizes[held.rank(entry_id) - 1] = batch_part.bits(part).bit_count()
            ids.append(np.full(len(each), ledger_id, np.int64))
            entries.append(each)
            counts.append(sizes)
        if not ids:
            empty = np.zeros(0, np.int64)
            return _EntryRun(messages, ledgers, empty, empty, empty)
        return _EntryRun(
            messages, ledgers, np.concatenate(ids), np.concatenate(entries), np.concatenate(counts)
        )

    def take(self, places: NDArray[Any]) -> PositionSet:
        """The messages of the entries at these ascending places."""
        whole: dict[int, BitMap] = {}
        partial: dict[int, dict[int, int]] = {}
        ids, entries = self.ledger_ids[places], self.entry_ids[places]
        edges = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
        for start, stop in pairwise(edges):
            if start == stop:
                continue
            ledger_id = int(ids[start])
            held = BitMap(entries[start:stop].astype(np.uint32))
            parts = self.messages.partial_entries(ledger_id)
            if parts:
                partial[ledger_id] = {e: part for e, part in parts.items() if e in held}
                held = held - BitMap(list(parts))
            whole[ledger_id] = held
        return PositionSet(whole, partial)

    def cut(self, place: int, messages: int) -> PositionSet:
        """The first `messages` messages of the entry at a place."""
        ledger_id, entry_id = int(self.ledger_ids[place]), int(self.entry_ids[place])
        part = self.messages.partial_entries(ledger_id).get(entry_id)
        if part is None:
            ledger = self.ledgers.of_id(ledger_id)
            part = batch_part.whole(ledger.batch_sizes.size_of(entry_id))
        first = batch_part.first_messages(part, messages)
        return PositionSet(parts={ledger_id: {entry_id: first}})
