"""All that the broker knows of one topic partition, from one step to the next.

Invariants: a step changes its own copy, never the state that it was given; nothing is kept for
each message but in bitmaps, except the columns that came with a ledger, which never change and go
with it. Stands for Pulsar's `PersistentTopic`, without what is on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_spark import batch_part
from pulsar_spark.commands import LedgerAdded
from pulsar_spark.cursor import Cursor
from pulsar_spark.delayed_messages import DelayedMessages
from pulsar_spark.due_messages import nothing
from pulsar_spark.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.managed_cursor import last_position
from pulsar_spark.policies import TopicPolicies
from pulsar_spark.position import EARLIEST, Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.producer_access import TopicProducers
from pulsar_spark.subscription import Subscription
from pulsar_spark.topic_name import is_persistent


@dataclass(frozen=True, slots=True)
class LedgerColumns:
    """What the broker needs of a ledger's messages, one value each; None where it was not given."""

    published_at_ms: int
    sticky_key_hashes: NDArray[Any] | None = None
    publish_times_ms: NDArray[Any] | None = None
    packed: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """The arrays as they are stored, so that they are packed once."""


@dataclass(slots=True)
class BrokerState:
    """One topic partition. `partition` is -1 for a topic without partitions."""

    topic: str
    partition: int = -1
    policies: TopicPolicies = field(default_factory=TopicPolicies)
    now_ms: int = 0
    ledgers: LedgerList = field(default_factory=LedgerList)
    columns: dict[int, LedgerColumns] = field(default_factory=dict)
    hidden: PositionSet = field(default_factory=nothing)
    """Duplicates that the log hides: acknowledged for every subscription."""
    delayed: DelayedMessages = field(default_factory=DelayedMessages)
    """By their producers; one for all subscriptions, since it is the message that is delayed."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    producers: TopicProducers = field(default_factory=TopicProducers)
    was_subscribed: bool = False
    """Whether there ever was a durable subscription."""
    trimming: frozenset[int] = frozenset()
    """Ledgers whose removal was asked for and has not been heard of."""
    quota_exceeded: bool = False
    next_epoch: int = 0
    """Of the next subscription: above those of all that were deleted, whose reports may be late."""

    def copy(self) -> BrokerState:
        twin = replace(self)
        twin.columns = dict(self.columns)
        twin.subscriptions = {name: each.copy() for name, each in self.subscriptions.items()}
        return twin

    # -- the log -----------------------------------------------------------------------------

    def add_ledger(self, added: LedgerAdded) -> bool:
        """A ledger of the log; False if it is known, or was trimmed already."""
        ledger = added.ledger
        if len(self.ledgers) and ledger.ledger_id <= self.ledgers[-1].ledger_id:
            return False
        self.ledgers = LedgerList([*self.ledgers, ledger])
        self.columns[ledger.ledger_id] = LedgerColumns(
            added.published_at_ms, added.sticky_key_hashes, added.publish_times_ms
        )
        if added.hidden:
            self.hidden = self.hidden.union(added.hidden)
        delays = self.policies.delayed_delivery and self.is_persistent
        if delays and added.deliver_at_ms is not None:
            self._delay(ledger, np.asarray(added.deliver_at_ms, np.int64))
        return True

    def remove_ledgers(self, ledger_ids: tuple[int, ...]) -> None:
        """The log has trimmed them."""
        gone = frozenset(ledger_ids)
        held = [ledger for ledger in self.ledgers if ledger.ledger_id not in gone]
        removed = [ledger for ledger in self.ledgers if ledger.ledger_id in gone]
        if not removed:
            return
        messages = PositionSet()
        for ledger in removed:
            del self.columns[ledger.ledger_id]
            messages = messages.union(PositionSet.of_range(ledger.ledger_id, 0, ledger.entries - 1))
        before, self.ledgers = self.ledgers, LedgerList(held)
        self.trimming -= gone
        self.hidden = self.hidden.difference(messages)
        self.delayed = self.delayed.without(messages)
        for subscription in self.subscriptions.values():
            rest = messages.difference(subscription.cursor.individually_deleted)
            rest = rest.after(subscription.cursor.mark_delete_position)
            if rest:  # a Reader whose position is gone is moved on
                subscription.acknowledge(Cursor().acknowledge(rest), before)
            subscription.cursor = subscription.cursor.advance(self.ledgers)

    def _delay(self, ledger: LedgerInfo, deliver_at_ms: NDArray[np.int64]) -> None:
        if not (deliver_at_ms > self.now_ms).any():
            return
        delayed = self.delayed.with_tick(self.policies.delayed_delivery_tick_ms)
        self.delayed = delayed.add_ledger(ledger, deliver_at_ms, self.now_ms)

    # -- looking -----------------------------------------------------------------------------

    @property
    def is_persistent(self) -> bool:
        """Whether it keeps messages for those who are not connected."""
        return is_persistent(self.topic)

    @property
    def ledgers_that_stay(self) -> LedgerList:
        """Those whose removal was not asked for."""
        if not self.trimming:
            return self.ledgers
        return LedgerList(each for each in self.ledgers if each.ledger_id not in self.trimming)

    @property
    def last_position(self) -> Position:
        """The last entry; EARLIEST while there is no ledger."""
        return last_position(self.ledgers) if len(self.ledgers) else EARLIEST

    def known(self, messages: PositionSet) -> tuple[PositionSet, bool]:
        """(those that were published and not trimmed, whether others lie beyond the end).

        ValueError if an entry is given another batch size than it has.
        """
        newest = self.ledgers[-1].ledger_id if len(self.ledgers) else -1
        beyond = strange = False
        for ledger_id in messages.ledger_ids:
            ledger = self.ledgers.get(ledger_id)
            stop = 0 if ledger is None else ledger.entries
            whole, parts = messages.whole_entries(ledger_id), messages.partial_entries(ledger_id)
            if max(whole.max() if whole else -1, max(parts, default=-1)) >= stop:
                strange = True
                beyond |= ledger is not None or ledger_id > newest
            if ledger is not None and parts:
                _check_batch_sizes(ledger, parts)
        return (self._published(messages) if strange else messages), beyond

    def _published(self, messages: PositionSet) -> PositionSet:
        whole: dict[int, BitMap] = {}
        parts: dict[int, dict[int, int]] = {}
        for ledger_id in messages.ledger_ids:
            ledger = self.ledgers.get(ledger_id)
            if ledger is not None:
                stop = ledger.entries
                whole[ledger_id] = messages.whole_entries(ledger_id) & BitMap(range(stop))
                partial = messages.partial_entries(ledger_id)
                parts[ledger_id] = {e: part for e, part in partial.items() if e < stop}
        return PositionSet(whole, parts)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.delayed.check()
        self.producers.check()
        assert set(self.columns) == {ledger.ledger_id for ledger in self.ledgers}
        for subscription in self.subscriptions.values():
            subscription.check(self.ledgers)
            rest = self.hidden.difference(subscription.cursor.individually_deleted)
            rest = rest.after(subscription.cursor.mark_delete_position)
            assert not rest, "hidden, and not acknowledged"


def _check_batch_sizes(ledger: LedgerInfo, parts: Mapping[int, int]) -> None:
    for entry_id, part in parts.items():
        if entry_id < ledger.entries:
            size = ledger.batch_sizes.size_of(entry_id)
            if batch_part.batch_size(part) != size:
                raise ValueError(
                    f"entry {ledger.ledger_id}:{entry_id} is a batch of {size} messages, "
                    f"and not of {batch_part.batch_size(part)}"
                )
