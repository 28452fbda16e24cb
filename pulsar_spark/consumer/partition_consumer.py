"""One run of a consumer on one topic partition: its grants, its plans, and its reports.

Invariants: only granted messages are planned, and an offset has them at the attempt of the grant,
so that a redelivery is something new in the difference of two offsets; cursors in offsets are cut
at the floor, so they don't grow; a report is absolute, and precedes the delivery of its messages.
With automatic acknowledgement messages in the committed offset are done, and not read again.
Follows Pulsar's `ConsumerImpl`; a micro-batch stands for its receiver queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

from pulsar_spark.broker.protocol.commands import Report, Subscribe
from pulsar_spark.broker.protocol.ready import (
    Acknowledged,
    EpochBegan,
    Grant,
    OpenGrant,
    Reply,
    Revoke,
)
from pulsar_spark.consumer.admission import Waiting
from pulsar_spark.consumer.stream_offset import PartitionOffset
from pulsar_spark.errors import ServerError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_map import PositionMap
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

NO_OPEN_GRANT: Final = -1
NOT_THE_END: Final = frozenset({ServerError.EPOCH_IS_OVER, ServerError.CONSUMER_BUSY})
"""Refusals of a request that leave a consumer connected: its report was of an epoch that is over
(it hears of the new one, and reports again), or it is not alone and can't unsubscribe."""


@dataclass(slots=True)
class PartitionConsumer:
    """`automatic`: committed messages are acknowledged. Of no use before it is `connected`."""

    command: Subscribe
    automatic: bool = True
    connected: bool = False
    was_connected: bool = False
    """True if it was ever let in: then epoch, origin and floor are those heard last."""
    refusal: Reply | None = None
    """The error with which the broker refused it, or ended its connection."""
    epoch: int = 0
    first_attempt: int = 0
    """The lowest attempt of the epoch: what was granted at a lower one is of an earlier epoch."""
    origin: Cursor = field(default_factory=Cursor)
    floor: Position = EARLIEST
    """The subscription's mark-delete position, as last heard of."""
    grants: PositionMap = field(default_factory=PositionMap)
    """Attempt -> messages; each message is held at its highest attempt only."""
    counts: PositionMap = field(default_factory=PositionMap)
    """Redelivery count above 0 -> messages."""
    suspects: PositionSet = field(default_factory=PositionSet)
    """Granted messages of which one may have killed a consumer; see `Grant`."""
    open_attempt: int = NO_OPEN_GRANT
    open_after: Cursor = field(default_factory=Cursor)
    revision: int = 0
    revoked: PositionSet | None = field(default_factory=PositionSet)
    """The messages that were revoked and not given back by a prefetching host; None means all."""
    sequence: int = 0
    lost_up_to: Position = EARLIEST
    """The position up to which messages were trimmed unread, and are given up."""
    answered: int = -1
    """The highest request that was answered."""
    requested_again: int = -1
    """A request behind that for all that it holds to be given again. Until its answer nothing is
    offered: what was granted before comes again."""

    # -- hearing -----------------------------------------------------------------------------

    def observe(self, item: Any) -> None:
        """Take in an item of the broker about this subscription; others are left out."""
        if isinstance(item, EpochBegan):
            if self.connected and item.epoch > self.epoch:
                self._begin(item, item.origin)
        elif isinstance(item, Acknowledged):
            if self.connected and item.epoch == self.epoch:
                self.floor = max(self.floor, item.mark_delete_position)
        elif isinstance(item, Reply | Grant | OpenGrant | Revoke):
            if item.consumer != self.command.consumer:
                return
            is_current = self.connected and item.epoch == self.epoch
            if isinstance(item, Reply):
                self._take_reply(item)
            elif item.incarnation == self.command.incarnation and is_current:
                self._take_in(item)

    @property
    def offers(self) -> bool:
        """True if what it was granted may be read."""
        return self.connected and self.answered >= self.requested_again

    def done(self, committed: PartitionOffset | None) -> Cursor | None:
        """The messages that it has finished, as far as it knows; None if it never had a place.

        `committed` is its checkpoint; a newer epoch makes it void.
        """
        if self.was_connected and (committed is None or committed.epoch != self.epoch):
            return self.origin.floor(self.floor)
        if committed is None:
            return None
        done = committed.origin.floor(max(self.floor, committed.floor or EARLIEST))
        return _union(done, committed.attempts) if self.automatic else done

    def take_revoked(self) -> PositionSet | None:
        """The messages that were revoked since the last call; None means all."""
        revoked, self.revoked = self.revoked, NOTHING
        return revoked

    def subscribe_again(self, command: Subscribe) -> None:
        """Subscribe as another run, or after missed records: the broker repeats everything."""
        self.command = command
        self.connected, self.refusal = False, None
        self._forget_grants()

    def _take_in(self, item: Grant | OpenGrant | Revoke) -> None:
        if isinstance(item, Grant):
            newer = self.grants.at_least(item.attempt + 1)
            self.grants = self.grants.put(item.attempt, item.messages.difference(newer))
            self._count(item.redelivery_count, item.messages)
            self.suspects = self.suspects.union(item.suspects)
        elif isinstance(item, OpenGrant):
            self.open_attempt, self.open_after = item.attempt, item.after
            self.suspects = self.suspects.union(item.suspects)
            for count, messages in item.redelivery_counts.items():
                self._count(count, messages)
        else:
            if item.messages is None:
                self.grants, self.open_attempt = PositionMap(), NO_OPEN_GRANT
                self.revoked = None
            else:
                self.grants = self.grants.without(item.messages)
                if self.revoked is not None:
                    self.revoked = self.revoked.union(item.messages)
            self.revision = max(self.revision, item.revision)

    def _take_reply(self, reply: Reply) -> None:
        lets_in = reply.error is None and reply.origin is not None
        if reply.incarnation != self.command.incarnation:
            if reply.incarnation > self.command.incarnation and lets_in:
                self.connected = False
                gone = ServerError.CONSUMER_REPLACED
                self.refusal = replace(reply, error=gone, message="replaced")
            return
        if reply.error is not None:
            if reply.error not in NOT_THE_END or reply.request_id == self.command.request_id:
                self.connected, self.refusal = False, reply
                self._forget_grants()
        elif reply.origin is not None:
            if not self.connected:
                self._begin(reply, reply.origin)
            self.connected = self.was_connected = True
            self.refusal = None
        if reply.request_id is not None:
            self.answered = max(self.answered, reply.request_id)

    def _begin(self, reported: Reply | EpochBegan, origin: Cursor) -> None:
        self.epoch, self.first_attempt = reported.epoch, reported.first_attempt
        self.origin, self.floor = origin, origin.mark_delete_position
        self.lost_up_to = EARLIEST
        self._forget_grants()

    def _forget_grants(self) -> None:
        self.grants, self.counts, self.open_attempt = PositionMap(), PositionMap(), NO_OPEN_GRANT
        self.suspects, self.revoked = NOTHING, NOTHING
        self.revision, self.requested_again = 0, -1

    def _count(self, count: int, messages: PositionSet) -> None:
        counts = self.counts
        self.counts = counts.put(count, messages) if count else counts.without(messages)

    def give_up(self, lost_up_to: Position) -> None:
        """Acknowledge messages up to that position, without reading them: they are gone."""
        self.lost_up_to = lost_up_to
        self.floor = max(self.floor, lost_up_to)

    # -- planning ----------------------------------------------------------------------------

    def offered(
        self,
        start: PartitionOffset | None,
        ledgers: LedgerList,
        hidden: PositionSet = NOTHING,
        up_to: Position | None = None,
        removed: PositionSet = NOTHING,
    ) -> Offered:
        """The messages to plan behind `start`: granted, and neither planned nor done.

        `hidden` are not offered, nor are those that compaction has `removed`.
        """
        attempts = self._attempts(start)
        done = _union(self.origin.floor(self.floor), attempts if self.automatic else {})
        done = done.acknowledge(hidden).acknowledge(removed)
        explicit: dict[int, PositionSet] = {}
        for attempt, granted in self.grants.items():
            left = done.not_acknowledged(granted)
            if not self.automatic and attempt in attempts:
                left = attempts[attempt].not_acknowledged(left)
            left = left if up_to is None else left.up_to(up_to)
            if left:
                explicit[attempt] = left
        behind = None
        if self.open_attempt != NO_OPEN_GRANT:
            planned = {a: cursor for a, cursor in attempts.items() if a >= self.open_attempt}
            behind = _union(done.union(self.open_after), planned)
            behind = behind.acknowledge(self.grants.messages).advance(ledgers)
        granted = PositionSet.union_of(explicit.values())
        return Offered(
            explicit, self.open_attempt, Waiting(behind, ledgers, up_to, removed, granted)
        )

    def plan(
        self, start: PartitionOffset | None, taken: Mapping[int, PositionSet], ledgers: LedgerList
    ) -> PartitionOffset:
        """The offset behind `start` with these messages, by attempt, in its micro-batch."""
        attempts = self._attempts(start)
        for attempt, messages in taken.items():
            attempts[attempt] = attempts.get(attempt, self.origin).acknowledge(messages)
        cut = {a: cursor.floor(self.floor).advance(ledgers) for a, cursor in attempts.items()}
        return PartitionOffset(
            self.origin.floor(self.floor),
            self._not_superseded(cut, ledgers),
            self.epoch,
            self.floor,
            self.counts.of(PositionSet.union_of(taken.values())),
        )

    def _not_superseded(
        self, attempts: Mapping[int, Cursor], ledgers: LedgerList
    ) -> dict[int, Cursor]:
        """Attempts, but for messages below the floor only, or that came again at a higher one.

        Forgetting is safe: at an attempt that is over nothing is planned again, and an open grant
        leaves out messages that were planned at a higher one.
        """
        floor, higher = Cursor(self.floor), NOTHING
        kept: dict[int, Cursor] = {}
        for attempt in sorted(attempts, reverse=True):
            planned = attempts[attempt].difference(floor, ledgers)
            if planned.difference(higher):
                kept[attempt] = attempts[attempt]
                higher = higher.union(planned)
        return dict(sorted(kept.items()))

    def forget_planned(self, committed: PartitionOffset | None) -> None:
        """Forget the messages of a committed micro-batch: they are never offered again."""
        if committed is None or committed.epoch != self.epoch:
            return
        grants, counts = self.grants.after(self.floor), self.counts.after(self.floor)
        self.suspects = self.suspects.after(self.floor)
        planned, counted = committed.attempts, committed.redelivery_counts
        self.grants = PositionMap(
            {n: planned.get(n, Cursor()).not_acknowledged(held) for n, held in grants.items()}
        )
        self.counts = PositionMap(
            {n: held.difference(counted.get(n, NOTHING)) for n, held in counts.items()}
        )

    def _attempts(self, start: PartitionOffset | None) -> dict[int, Cursor]:
        return dict(start.attempts) if start is not None and start.epoch == self.epoch else {}

    # -- reporting ---------------------------------------------------------------------------

    def report(
        self,
        committed: PartitionOffset | None,
        planned: PartitionOffset | None,
        ledgers: LedgerList,
        permits: int,
        request_id: int | None = None,
        removed: PositionSet = NOTHING,
    ) -> Report:
        """The whole report; absolute, but for its sequence number.

        `committed` is done, if acknowledgement is automatic; `planned` is about to be delivered.
        Messages that compaction has `removed` are done too, once they were passed over.
        """
        begin, attempts = self.origin.floor(self.floor), self._attempts(planned or committed)
        acknowledged = Cursor()
        if self.automatic:
            acknowledged = _union(self.origin, self._attempts(committed))
        acknowledged = acknowledged.floor(self.lost_up_to)
        if removed:
            done = _union(begin, attempts).acknowledge(removed).advance(ledgers)
            passed = removed.after(self.floor).up_to(done.mark_delete_position)
            acknowledged = acknowledged.acknowledge(passed)
        # Acknowledged messages are named too: without batch-index acknowledgement part of a batch
        # stays held until the floor has passed it.
        delivered = {
            attempt: held
            for attempt, cursor in attempts.items()
            if (held := cursor.difference(begin, ledgers).after(self.floor))
        }
        self.sequence += 1
        return Report(
            self.command.subscription, self.command.consumer, self.command.incarnation,
            self.epoch, self.sequence, acknowledged, delivered, permits=permits,
            revision=self.revision, committed=self.floor, request_id=request_id,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Offered:
    """The messages of one partition that wait, granted explicitly (by attempt) or openly."""

    explicit: Mapping[int, PositionSet]
    open_attempt: int
    waiting: Waiting

    def begins_before(self, position: Position) -> bool:
        """True if it offers a message at or before that position."""
        openly = self.waiting.cursor
        if openly is not None and openly.mark_delete_position < position:
            return True
        return bool(self.waiting.granted.up_to(position))

    def by_attempt(self, taken: PositionSet) -> dict[int, PositionSet]:
        """The messages by the attempt of their grant; the highest, where there are several."""
        found: dict[int, PositionSet] = {}
        for attempt in sorted(self.explicit, reverse=True):
            if part := taken.intersection(self.explicit[attempt]):
                found[attempt] = part
                taken = taken.difference(part)
        if taken and self.open_attempt != NO_OPEN_GRANT:
            found[self.open_attempt] = found.get(self.open_attempt, NOTHING).union(taken)
        return found


def _union(cursor: Cursor, attempts: Mapping[int, Cursor]) -> Cursor:
    return reduce(Cursor.union, attempts.values(), cursor)
