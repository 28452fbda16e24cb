"""Key_Shared: a key's messages go to one consumer at a time, in order.

Invariants: a message is granted only to the owner of its slot; a slot is granted to nobody while it
drains: another consumer still holds a message of it, or has yet to give one back; messages of a
slot are granted in order, for those passed over are kept in `replay` and go first; at most the
look-ahead is passed over. Follows Pulsar 4's `PersistentStickyKeyDispatcherMultipleConsumers`
(PIP-379), for each message where Pulsar looks at the first of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_spark.broker.dispatchers.dispatcher_single_active import revoke_of
from pulsar_spark.broker.dispatchers.granting import capacities_of, grant_all, read_new
from pulsar_spark.broker.protocol.policies import KeySharedMode, KeySharedPolicy, TopicPolicies
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.selectors.sticky_key_selector import (
    NOBODY,
    AutoSplitSelector,
    ConsistentHashingSelector,
    StickyKeySelector,
    StickyRangeSelector,
)
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.message_redelivery import Holder, give_back
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.log.producing.hashing import MASK_31
from pulsar_spark.model.positions import batch_part
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position import MAX_LONG
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

_SPREAD = 2_654_435_761
Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def new_selector(policy: KeySharedPolicy, policies: TopicPolicies) -> StickyKeySelector:
    """The selector of a subscription without consumers."""
    if policy.mode is KeySharedMode.STICKY:
        return StickyRangeSelector()
    if policies.key_shared_consistent_hashing:
        return ConsistentHashingSelector()
    return AutoSplitSelector()


def selector_changed(state: BrokerState, subscription: Subscription, out: Ready) -> None:
    """After a join or a leave: note which slots drain, and ask messages back."""
    selector = subscription.selector
    if selector is None or subscription.key_shared_policy.allow_out_of_order_delivery:
        return
    for consumer in subscription.consumers.values():
        moved = _moved(state, selector, consumer)
        asked = moved.difference(consumer.revoked)
        if consumer.reports_delivered:
            asked = asked.difference(consumer.delivered)
        consumer.draining = moved
        if asked:
            consumer.revision += 1
            consumer.revoked = consumer.revoked.union(asked)
            out.revokes.append(revoke_of(subscription, consumer))


def obeyed(holder: Holder) -> None:
    """Free the messages that were asked back, but for those reported as delivered."""
    consumer = holder.consumer
    asked, consumer.revoked = consumer.revoked, NOTHING
    rest = asked.difference(consumer.delivered) if consumer.reports_delivered else NOTHING
    for attempt in list(consumer.pending):
        given = consumer.take_back(attempt, rest)
        give_back(holder, attempt, given, seen=False)


def dispatch(state: BrokerState, subscription: Subscription, out: Ready) -> None:
    """Grant what may be granted now."""
    selector = subscription.selector
    capacities, room, blocked = capacities_of(state, subscription)
    if not capacities or selector is None or room <= 0:
        return
    draining = _draining_slots(state, subscription, selector)
    granted: dict[str, PositionSet] = {}
    if subscription.replay:  # passed over or rejected: these go first
        replay = subscription.replay
        rest = _deal(state, selector, replay, draining, capacities, granted, room)
        room -= replay.count(state.ledgers) - rest.count(state.ledgers)
        subscription.replay = rest
    look_ahead = look_ahead_of(state.policies, len(subscription.consumers))
    excluded = PositionSet.union_of([state.delayed.messages, subscription.waiting.messages])
    remainder = NOTHING
    while capacities and not blocked:
        passed_over = subscription.replay.count(state.ledgers)
        most = min(sum(capacities.values()), look_ahead - passed_over, room)
        if most <= 0:
            break
        # The rest of an entry that was cut goes before the entries behind it.
        candidates = remainder.prefix(most, state.ledgers)
        remainder = remainder.difference(candidates)
        if not remainder:
            most -= candidates.count(state.ledgers)
            new, remainder = read_new(state, subscription, most, excluded)
            candidates = candidates.union(new)
        if not candidates:
            break
        rest = _deal(state, selector, candidates, draining, capacities, granted, room)
        subscription.replay = subscription.replay.union(rest)
        room -= candidates.count(state.ledgers) - rest.count(state.ledgers)
    if remainder:  # too much at once; its owners may still have room
        rest = _deal(state, selector, remainder, draining, capacities, granted, max(room, 0))
        subscription.replay = subscription.replay.union(rest)
    grant_all(state, subscription, granted, out)


def look_ahead_of(policies: TopicPolicies, consumers: int) -> int:
    """The number of messages that may be passed over."""
    for each, together in (
        (policies.key_shared_look_ahead_per_consumer, policies.key_shared_look_ahead),
        (
            policies.max_unacked_messages_per_consumer,
            policies.max_unacked_messages_per_subscription,
        ),
    ):
        limits = [limit for limit in (each * consumers, together) if limit > 0]
        if limits:
            return min(limits)
    return MAX_LONG


def _deal(
    state: BrokerState,
    selector: StickyKeySelector,
    candidates: PositionSet,
    draining: NDArray[np.int64] | None,
    capacities: dict[str, int],
    granted: dict[str, PositionSet],
    room: int,
) -> PositionSet:
    """Give each message to the owner of its slot, up to its capacity; returns the others.

    All consumers together get as many as there is room for, the first ones.
    """
    run = StickyKeyRun.of(candidates, state, selector)
    owners = selector.owners[run.slots]
    if draining is not None:
        owners = np.where(np.isin(run.slots, draining), NOBODY, owners)
    chosen = np.zeros(len(owners), np.bool_)
    for index, name in enumerate(selector.consumers):
        chosen[np.flatnonzero(owners == index)[: capacities.get(name, 0)]] = True
    chosen[np.flatnonzero(chosen)[room:]] = False
    rest = candidates
    for index, name in enumerate(selector.consumers):
        places = np.flatnonzero(chosen & (owners == index))
        if len(places):
            messages = run.take(places)
            granted[name] = granted.get(name, NOTHING).union(messages)
            capacities[name] -= len(places)
            if capacities[name] <= 0:
                del capacities[name]
            rest = rest.difference(messages)
    return rest


def _draining_slots(
    state: BrokerState, subscription: Subscription, selector: StickyKeySelector
) -> NDArray[np.int64] | None:
    """The slots that are granted to nobody now; None if there are none."""
    consumers = subscription.consumers.values()
    going = [*(each.draining for each in consumers), *(each.revoked for each in consumers)]
    messages = PositionSet.union_of(going).difference(subscription.partial_acks)
    if not messages:
        return None
    return np.unique(StickyKeyRun.of(messages, state, selector).slots)


def _moved(state: BrokerState, selector: StickyKeySelector, consumer: Consumer) -> PositionSet:
    """The messages that the consumer holds of slots that are not its own."""
    held = consumer.held
    if not held:
        return NOTHING
    run = StickyKeyRun.of(held, state, selector)
    names = selector.consumers
    own = names.index(consumer.name) if consumer.name in names else -2
    places = np.flatnonzero(selector.owners[run.slots] != own)
    return run.take(places) if len(places) else NOTHING


@dataclass(frozen=True, slots=True)
class StickyKeyRun:
    """A set of messages, in order, each with its slot: arrays of one length, one value a message.

    A message without a hash gets one from its place, so that keyless messages spread over all.
    """

    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]
    batch_indexes: NDArray[np.int64]
    batch_sizes: NDArray[np.int64]
    slots: NDArray[np.int64]

    @staticmethod
    def of(messages: PositionSet, state: BrokerState, selector: StickyKeySelector) -> StickyKeyRun:
        """The set's messages. KeyError if the state lacks one of its ledgers."""
        ids, columns, hashes = [], [], []
        for ledger_id in messages.ledger_ids:
            entries, indexes, sizes, rows = _rows(messages, state.ledgers.of_id(ledger_id))
            ids.append(np.full(len(entries), ledger_id, np.int64))
            columns.append((entries, indexes, sizes))
            known = state.columns[ledger_id].sticky_key_hashes
            if known is None:
                hashes.append((rows + ledger_id * 31) * _SPREAD & MASK_31)
            else:
                hashes.append(np.asarray(known)[rows].astype(np.int64))
        if not ids:
            return StickyKeyRun(*(np.zeros(0, np.int64) for _ in fields(StickyKeyRun)))
        entries, indexes, sizes = (np.concatenate(each) for each in zip(*columns, strict=True))
        slots = selector.slots_of(np.concatenate(hashes))
        return StickyKeyRun(np.concatenate(ids), entries, indexes, sizes, slots)

    def take(self, places: NDArray[Any]) -> PositionSet:
        """The messages at these places."""
        sizes = self.batch_sizes[places]
        if (sizes == 1).all():
            return PositionSet.from_arrays(self.ledger_ids[places], self.entry_ids[places])
        return PositionSet.from_arrays(
            self.ledger_ids[places], self.entry_ids[places], self.batch_indexes[places], sizes
        )


def _rows(messages: PositionSet, ledger: LedgerInfo) -> Columns:
    """(entries, batch indexes, batch sizes, rows in the ledger) of the set's messages in it."""
    parts = messages.partial_entries(ledger.ledger_id)
    held = messages.whole_entries(ledger.ledger_id)
    whole = np.array(held.to_array(), np.int64)
    if ledger.messages == ledger.entries:
        return whole, np.zeros(len(whole), np.int64), np.ones(len(whole), np.int64), whole
    all_sizes = ledger.batch_sizes.array()
    first = np.cumsum(all_sizes) - all_sizes
    every = np.array((held | BitMap(list(parts))).to_array(), np.int64) if parts else whole
    sizes = all_sizes[every]
    entries = np.repeat(every, sizes)
    indexes = np.arange(len(entries)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    if parts:
        included = np.ones(len(entries), np.bool_)
        starts = np.cumsum(sizes) - sizes
        for entry_id, part in parts.items():
            start = int(starts[np.searchsorted(every, entry_id)])
            mask = batch_part.mask(part)
            included[start : start + len(mask)] = mask
        entries, indexes = entries[included], indexes[included]
    return entries, indexes, all_sizes[entries], first[entries] + indexes
