"""All that the broker knows of one topic partition, from one step to the next.

Invariants: a step changes its own copy, never the state that it was given; nothing is kept for
each message but in bitmaps, except the columns that came with a ledger, which never change and go
with it. Stands for Pulsar's `PersistentTopic`, without what is on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_spark.broker.protocol.commands import LedgerAdded
from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.broker.subscriptions.delayed_messages import DelayedMessages
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.log.compacted_ledgers import CompactedLedgers
from pulsar_spark.model.positions import batch_part
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import is_persistent

DELETED: Final = -1


@dataclass(frozen=True, slots=True)
class LedgerColumns:
    """The columns of a ledger's messages that the broker needs; None for a missing one."""

    published_at_ms: int
    sticky_key_hashes: NDArray[Any] | None = None
    publish_times_ms: NDArray[Any] | None = None
    hidden: PositionSet = field(default_factory=PositionSet)
    """Duplicates among them, acknowledged for every subscription."""
    packed: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """The arrays as they are stored, so that they are packed once."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The horizon of a compaction, if there was one, and the ledgers that it kept.

    Those of them that the log has `trimmed` are still there for subscriptions that read compacted.
    """

    horizon: Position | None = None
    ledger_ids: frozenset[int] = frozenset()
    trimmed: frozenset[int] = frozenset()


@dataclass(slots=True)
class BrokerState:
    """One topic partition. `partition` is -1 for a topic without partitions."""

    topic: str
    partition: int = -1
    policies: TopicPolicies = field(default_factory=TopicPolicies)
    now_ms: int = 0
    ledgers: LedgerList = field(default_factory=LedgerList)
    columns: dict[int, LedgerColumns] = field(default_factory=dict)
    delayed: DelayedMessages = field(default_factory=DelayedMessages)
    """The delays by producers; one for all subscriptions, since the message is delayed."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    was_subscribed: bool = False
    """True if there ever was a durable subscription."""
    trimming: frozenset[int] = frozenset()
    """Ledgers whose removal was asked for and has not been heard of."""
    compaction: Compaction = field(default_factory=Compaction)
    quota_exceeded: bool = False
    next_epoch: int = 0
    """The epoch of the next subscription: above those of deleted ones, whose reports may be late.
    """
    next_attempt: int = 0
    """The first of the next subscription, above those of all that were deleted."""
    incarnation: int = 0
    """The incarnation of the topic among those of its name; DELETED: there is none."""
    made_by: str = ""
    """The identity of the topic's log, by which another one in its place is known; or not known."""
    shards: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The shards that the last state was written in: the next one's are made of what is new."""

    def copy(self) -> BrokerState:
        copied = replace(self)
        copied.columns = dict(self.columns)
        copied.subscriptions = {name: each.copy() for name, each in self.subscriptions.items()}
        return copied

    # -- the log -----------------------------------------------------------------------------

    def add_ledger(self, added: LedgerAdded) -> bool:
        """A ledger of the log; False if it is known, or was trimmed already."""
        ledger = added.ledger
        if len(self.ledgers) and ledger.ledger_id <= self.ledgers[-1].ledger_id:
            return False
        self.ledgers = self.ledgers.with_next(ledger)
        self.columns[ledger.ledger_id] = LedgerColumns(
            added.published_at_ms, added.sticky_key_hashes, added.publish_times_ms
        )
        self.hide(added.hidden)
        delays = self.policies.delayed_delivery and self.is_persistent
        if delays and added.deliver_at_ms is not None:
            times = np.asarray(added.deliver_at_ms, np.int64)
            self.delayed = self.delayed.add_ledger(ledger, times, self.now_ms)
        return True

    def hide(self, messages: PositionSet) -> None:
        """Note duplicates, of ledgers that are known; costs these alone."""
        for ledger_id in messages.ledger_ids:
            if (columns := self.columns.get(ledger_id)) is not None:
                hidden = messages.of_ledgers([ledger_id])
                self.columns[ledger_id] = replace(columns, hidden=hidden)

    def remove_ledgers(self, ledger_ids: tuple[int, ...]) -> None:
        """The log has trimmed them; who reads compacted keeps those that compaction has kept."""
        gone = frozenset(ledger_ids)
        kept = gone & self.compaction.ledger_ids
        if kept:
            self._trim_but_keep([each for each in self.ledgers if each.ledger_id in kept])
            gone -= kept
        held = [ledger for ledger in self.ledgers if ledger.ledger_id not in gone]
        removed = [ledger for ledger in self.ledgers if ledger.ledger_id in gone]
        if not removed:
            return
        for ledger in removed:
            del self.columns[ledger.ledger_id]
        self._pass_over(_messages_of(removed), self.subscriptions.values())
        self.ledgers = LedgerList(held)
        self.trimming -= gone
        self.delayed = self.delayed.without(gone)

    def compact(self, compacted: CompactedLedgers) -> None:
        """The log was compacted: whoever reads compacted has what it kept of trimmed ledgers."""
        kept = {each.ledger_id: each for each in compacted.ledgers}
        gone = self.compaction.trimmed.difference(kept)
        new = [each for each in compacted.ledgers if self.ledgers.get(each.ledger_id) is None]
        trimmed = self.compaction.trimmed.intersection(kept)
        self.compaction = Compaction(compacted.horizon, frozenset(kept), trimmed)
        if new:
            held = sorted([*self.ledgers, *new], key=lambda each: each.ledger_id)
            self.ledgers = LedgerList(held)
            for each in new:
                self.columns[each.ledger_id] = LedgerColumns(each.max_publish_time_ms)
            self._trim_but_keep(new)
        self.remove_ledgers(tuple(gone))

    def _trim_but_keep(self, ledgers: Sequence[LedgerInfo]) -> None:
        """Gone they are for all but those who read compacted."""
        ledger_ids = frozenset(each.ledger_id for each in ledgers)
        trimmed = self.compaction.trimmed | ledger_ids
        self.compaction = replace(self.compaction, trimmed=trimmed)
        self.trimming -= ledger_ids
        for ledger_id in ledger_ids:  # nobody shares them by key
            columns = self.columns[ledger_id]
            self.columns[ledger_id] = replace(columns, sticky_key_hashes=None)
        self.delayed = self.delayed.without(ledger_ids)
        others = [each for each in self.subscriptions.values() if not each.read_compacted]
        self._pass_over(_messages_of(ledgers), others)

    def _pass_over(self, messages: PositionSet, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            rest = subscription.cursor.not_acknowledged(messages)
            if rest:  # a Reader whose position is gone is moved on
                subscription.pass_over(Cursor().acknowledge(rest), self.ledgers)
            subscription.cursor = subscription.cursor.advance(self.ledgers)
            subscription.drop_acknowledged()  # or it would be looked for in ledgers that are gone

    # -- looking -----------------------------------------------------------------------------

    @property
    def hidden(self) -> PositionSet:
        """Duplicates that the log hides."""
        return PositionSet.union_of(each.hidden for each in self.columns.values())

    def check_batch_sizes(self, messages: PositionSet) -> list[LedgerInfo]:
        """The ledgers of these messages. ValueError if an entry is given another batch size."""
        found = [self.ledgers.get(ledger_id) for ledger_id in messages.ledger_ids]
        ledgers = [ledger for ledger in found if ledger is not None]
        for ledger in ledgers:
            _check_batch_sizes(ledger, messages.partial_entries(ledger.ledger_id))
        return ledgers

    @property
    def is_persistent(self) -> bool:
        """True if it keeps messages for those who are not connected."""
        return is_persistent(self.topic)

    @property
    def has_breakers(self) -> bool:
        """True if delivery of its subscriptions pauses where most messages fail."""
        return self.policies.breaker_threshold > 0 and self.is_persistent

    def ledgers_that_stay(self, *, compacted: bool = False) -> LedgerList:
        """The ledgers that stay; if `compacted`, for readers of the compacted view."""
        going = self.trimming | self.compaction.trimmed
        if compacted:
            going = self.trimming - self.compaction.ledger_ids
        if not going:
            return self.ledgers
        return LedgerList(each for each in self.ledgers if each.ledger_id not in going)

    @property
    def only_compacted(self) -> PositionSet:
        """The messages that only readers of the compacted view find."""
        trimmed = self.compaction.trimmed
        return _messages_of([each for each in self.ledgers if each.ledger_id in trimmed])

    @property
    def last_position(self) -> Position:
        """The last entry; EARLIEST while there is no ledger."""
        return self.ledgers[-1].last if len(self.ledgers) else EARLIEST

    def known(self, messages: PositionSet) -> tuple[PositionSet, bool]:
        """(those that were published and not trimmed, whether others lie beyond the end).

        ValueError if an entry is given another batch size than it has.
        """
        published = messages.intersection(_messages_of(self.check_batch_sizes(messages)))
        newest = self.last_position.ledger_id
        unknown = messages.difference(published)
        return published, any(ledger_id >= newest for ledger_id in unknown.ledger_ids)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.delayed.check()
        assert set(self.columns) == {ledger.ledger_id for ledger in self.ledgers}
        assert self.compaction.trimmed <= self.compaction.ledger_ids & set(self.columns)
        for subscription in self.subscriptions.values():
            subscription.check(self.ledgers)
            rest = subscription.cursor.not_acknowledged(self.hidden)
            assert not rest, "hidden, and not acknowledged"


def _messages_of(ledgers: Iterable[LedgerInfo]) -> PositionSet:
    return PositionSet({each.ledger_id: BitMap(range(each.entries)) for each in ledgers})


def _check_batch_sizes(ledger: LedgerInfo, parts: Mapping[int, int]) -> None:
    for entry_id, part in parts.items():
        if entry_id < ledger.entries:
            size = ledger.batch_sizes.size_of(entry_id)
            if batch_part.batch_size(part) != size:
                raise ValueError(
                    f"entry {ledger.ledger_id}:{entry_id} is a batch of {size} messages, "
                    f"and not of {batch_part.batch_size(part)}"
                )
