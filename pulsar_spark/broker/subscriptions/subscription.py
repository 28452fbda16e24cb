"""A subscription: what is acknowledged, what its consumers hold, and what waits to go out again.

Invariants: `cursor` is all that is acknowledged, and only grows within an epoch; an unacknowledged
message at or before the read position is in exactly one place: held by one consumer, in `replay`
(to be granted now), in `waiting` (its time has not come), or delayed by its producer; with an open
grant the holder has all that is in none of those. Follows Pulsar's `PersistentSubscription`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pulsar_spark.broker.protocol.commands import SubscriptionType
from pulsar_spark.broker.protocol.policies import KeySharedPolicy
from pulsar_spark.broker.selectors.failover_selector import FailoverSelector
from pulsar_spark.broker.selectors.shared_dispatch import SharedDispatch
from pulsar_spark.broker.selectors.sticky_key_selector import StickyKeySelector
from pulsar_spark.broker.subscriptions.breaker import Breaker
from pulsar_spark.broker.subscriptions.consumer import MAX_INSTANTS, Consumer
from pulsar_spark.broker.subscriptions.delivery_counts import DeliveryCounts
from pulsar_spark.broker.subscriptions.redelivery_tracker import RedeliveryTracker
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_map import PositionMap
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

MAX_REMEMBERED_INCARNATIONS = 1000


@dataclass(slots=True)
class Subscription:
    """One subscription of one topic partition. Changes within a step; `copy` keeps the old one."""

    name: str
    subscription_type: SubscriptionType
    durable: bool
    cursor: Cursor
    origin: Cursor
    key_shared_policy: KeySharedPolicy = field(default_factory=KeySharedPolicy)
    epoch: int = 0
    first_attempt: int = 0
    """The first attempt of this epoch: a grant at a lower attempt precedes it."""
    read_position: Position = EARLIEST
    replay: PositionSet = field(default_factory=PositionSet)
    waiting: PositionMap = field(default_factory=PositionMap)
    """Instant in milliseconds -> what is to be granted again then; at most MAX_INSTANTS."""
    tracker: RedeliveryTracker = field(default_factory=RedeliveryTracker)
    suspects: PositionSet = field(default_factory=PositionSet)
    """The messages that a lapsed prefetching consumer may have delivered without a report. The next
    consumer reports their delivery first, so a message that kills its consumers is counted."""
    consumers: dict[str, Consumer] = field(default_factory=dict)
    active: str = ""
    """The consumer that has the open grant, until it has given it back."""
    failover: FailoverSelector | None = None
    shared: SharedDispatch = field(default_factory=SharedDispatch)
    selector: StickyKeySelector | None = None
    incarnations: dict[str, int] = field(default_factory=dict)
    """The last one of each consumer that left, so that a late command does not bring it back."""
    pending_acknowledgments: Cursor | None = None
    """Acknowledged in ledgers of which the log has not told yet."""
    partial_acks: PositionSet = field(default_factory=PositionSet)
    """With batch-index acknowledgement off: indexes whose batch is not complete yet."""
    is_blocked: bool = False
    """On unacknowledged messages: until half of those allowed are left."""
    announced: Position = EARLIEST
    """The mark-delete position that consumers were told last."""
    read_compacted: bool = False
    """True if its consumers read what compaction has left, as the first of them said."""
    fresh: PositionSet = field(default_factory=PositionSet)
    """The newly acknowledged messages that are not dropped yet; empty between two steps."""
    breaker: Breaker = field(default_factory=Breaker)
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)

    def copy(self) -> Subscription:
        copied = replace(self)
        copied.consumers = {name: replace(each) for name, each in self.consumers.items()}
        copied.incarnations = dict(self.incarnations)
        return copied

    # -- acknowledging -----------------------------------------------------------------------

    def acknowledge(self, cursor: Cursor, ledgers: LedgerList) -> PositionSet:
        """With all that the cursor holds; what of it was not acknowledged before."""
        new = self.pass_over(cursor, ledgers)
        self.counts = self.counts.plus(ledgers, acknowledged=new)
        return new

    def pass_over(self, cursor: Cursor, ledgers: LedgerList) -> PositionSet:
        """With all that the cursor holds, which is not there for anybody; what of it is new."""
        known = self.cursor
        behind = PositionSet.between(
            ledgers, known.mark_delete_position, cursor.mark_delete_position
        )
        new = known.not_acknowledged(behind.union(cursor.individually_deleted))
        self.fresh = self.fresh.union(new)
        self.cursor = known.union(cursor).advance(ledgers)
        return new

    def drop_acknowledged(self) -> None:
        """Keep nothing anywhere that is acknowledged; costs what was since the last time."""
        fresh, self.fresh = self.fresh, NOTHING
        self.read_position = max(self.read_position, self.cursor.mark_delete_position)
        if not fresh:
            return
        for consumer in self.consumers.values():
            consumer.acknowledged(fresh)
        self.replay = self.replay.difference(fresh)
        self.waiting = self.waiting.without(fresh)
        self.tracker = self.tracker.without(fresh)
        self.suspects = self.suspects.difference(fresh)
        self.partial_acks = self.partial_acks.difference(fresh)
        if not self.breaker.is_closed:
            self.breaker = self.breaker.not_acknowledged(self.cursor)

    def unacked_messages_of(self, consumer: Consumer, ledgers: LedgerList) -> int:
        """The number of messages that it holds by explicit grants, and has not acknowledged.

        One whose batch is not complete yet does not count, though it is still held.
        """
        held = consumer.held
        if self.partial_acks and held:
            held = held.difference(self.partial_acks)
        return held.count(ledgers) if held else 0

    @property
    def delivered(self) -> PositionSet:
        """The messages that consumers hold and may have delivered."""
        return PositionSet.union_of(
            each.delivered if each.reports_delivered else each.held
            for each in self.consumers.values()
        )

    @property
    def out(self) -> PositionSet:
        """The messages that were delivered, as far as is known, and are not acknowledged."""
        return PositionSet.union_of(self.places)

    @property
    def places(self) -> list[PositionSet]:
        """The sets that `out` is the union of: a glance at them costs nothing."""
        consumers = self.consumers.values()
        places = [self.replay, self.waiting.messages, *(each.held for each in consumers)]
        places += [each.delivered for each in consumers if each.reports_delivered]
        return places

    # -- who holds what ------------------------------------------------------------------------

    @property
    def held(self) -> PositionSet:
        """The messages that consumers hold by explicit grants."""
        return PositionSet.union_of(consumer.held for consumer in self.consumers.values())

    def held_openly(self, messages: PositionSet) -> PositionSet:
        """The messages of these that the holder of the open grant has by it alone."""
        rest = self.cursor.not_acknowledged(messages)
        for other in (self.held, self.replay, self.waiting.messages):
            if other and rest:
                rest = rest.difference(other)
        return rest

    def remember(self, consumer: Consumer) -> None:
        """Its incarnation is over."""
        self.incarnations.pop(consumer.name, None)
        self.incarnations[consumer.name] = consumer.incarnation
        if len(self.incarnations) > MAX_REMEMBERED_INCARNATIONS:
            del self.incarnations[next(iter(self.incarnations))]

    @property
    def origin_for_consumers(self) -> Cursor:
        """The cursor at which it begins for a consumer. It has holes if it is not durable."""
        return Cursor(self.cursor.mark_delete_position) if self.durable else self.cursor

    def newest_run_of(self, consumer: str) -> int:
        """The highest incarnation that is known of it; -1 if none is."""
        held = self.consumers.get(consumer)
        return self.incarnations.get(consumer, -1) if held is None else held.incarnation

    # -- beginning again -----------------------------------------------------------------------

    def rewind(self) -> None:
        """As nobody holds anything: read on from the mark-delete position."""
        self.read_position = self.cursor.mark_delete_position
        self.replay = NOTHING

    def begin_epoch(self, cursor: Cursor) -> None:
        """After a seek: nothing of what was granted before counts any more."""
        self.epoch += 1
        self.cursor = self.origin = cursor
        self.waiting = PositionMap()
        self.tracker = self.tracker.begin_epoch()
        self.suspects = self.fresh = NOTHING
        self.first_attempt = self.tracker.highest_attempt + 1
        self.pending_acknowledgments = None
        self.partial_acks = NOTHING
        self.is_blocked = False
        self.breaker = Breaker()
        self.active = ""
        self.announced = cursor.mark_delete_position
        for consumer in self.consumers.values():
            consumer.clear()
            # Reset until its next report: a seek back may need ledgers that it had finished.
            consumer.committed = min(consumer.committed, cursor.mark_delete_position)
        self.rewind()

    # -- looking -----------------------------------------------------------------------------

    def check(self, ledgers: LedgerList) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.cursor.check()
        self.waiting.check()
        assert len(self.waiting) <= MAX_INSTANTS, "too many instants"
        self.tracker.check()
        places = [self.replay, self.waiting.messages]
        places += [consumer.held for consumer in self.consumers.values()]
        seen = NOTHING
        for place in places:
            assert not seen.intersection(place), f"in two places: {seen.intersection(place)}"
            assert self.cursor.not_acknowledged(place) == place, "kept, and acknowledged"
            seen = seen.union(place)
        for consumer in self.consumers.values():
            consumer.check()
            assert not consumer.has_open_grant or consumer.name == self.active, "two open grants"
        self.breaker.check(self.held)
        assert not self.active or self.consumers[self.active].has_open_grant, "active without grant"
        if len(ledgers):
            assert not seen.after(ledgers[-1].last), "held, and not published"
