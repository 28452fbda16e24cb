"""The source's side: a consumer that is a streaming query, with offsets as cursors per attempt.

What is durable is `committed` (its checkpoint's commit log) and `logged` (a batch in its offset
log that was not committed); all else dies with the process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsar_spark import ack_set
from pulsar_spark.commands import (
    Acknowledge,
    AckType,
    CloseConsumer,
    ReconsumeLater,
    RedeliverUnacknowledgedMessages,
    Rejection,
    Report,
    Subscribe,
    SubscriptionType,
    Unsubscribe,
)
from pulsar_spark.cursor import Cursor
from pulsar_spark.position import Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.ready import (
    Acknowledged,
    EpochBegan,
    Grant,
    OpenGrant,
    Reply,
    Revoke,
    ServerError,
)
from pulsar_spark.stream_offset import PartitionOffset

if TYPE_CHECKING:
    from tests.simulation.world import World

Message = tuple[int, int, int]


@dataclass
class Checkpoint:
    """Durable: what of the source survives its process."""

    committed: PartitionOffset | None = None
    logged: PartitionOffset | None = None
    """The end of a batch that was begun and not committed."""
    batches: int = 0


@dataclass
class Source:
    world: World
    subscription: str
    name: str
    kind: SubscriptionType
    manual: bool
    permits: int
    third: int = 0
    """Which of the sticky ranges it asks for."""
    incarnation: int = 0
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    connected: bool = False
    is_alive: bool = True
    stalled: bool = False
    request_id: int = -1
    unsubscribe_id: int = -1
    leaves: bool = False
    read_to: int = 0
    sequence: int = 0
    grants: dict[int, PositionSet] = field(default_factory=dict)
    open_attempt: int = -1
    open_after: Cursor = field(default_factory=Cursor)
    revision: int = 0
    floor: Position | None = None
    acked: Cursor = field(default_factory=Cursor)
    unsettled: dict[int, PositionSet] = field(default_factory=dict)
    """Manual: delivered, and neither acknowledged nor rejected yet, by attempt."""
    rejections: list[Rejection] = field(default_factory=list)
    gives_back: bool = False
    """It asked for everything again, and delivers nothing until it reads that it was heard."""
    retries: list[ReconsumeLater] = field(default_factory=list)
    batch: PositionSet = field(default_factory=PositionSet)
    """The last micro-batch."""

    # -- connecting --------------------------------------------------------------------------

    def subscribe(self) -> None:
        self.incarnation = self.world.next_number()
        self.request_id = self.world.next_number()
        self.connected = self.leaves = False
        self.grants, self.open_attempt, self.revision = {}, -1, 0
        self.gives_back = False
        self.sequence = 0
        self.read_to = len(self.world.dispatch)
        self.send_subscribe()

    def send_subscribe(self) -> None:
        setting = self.world.setting
        command = Subscribe(
            self.subscription, self.name, self.incarnation, self.kind,
            durable=setting.durable, initial_position=setting.initial_position,
            priority_level=self.world.priority_of(self.name),
            key_shared_policy=setting.key_shared_policy(self.third),
            options=setting.consumer_options,
            permits=self.permits, resumes=self.checkpoint.committed is not None,
            request_id=self.request_id,
        )  # fmt: skip
        self.world.send(command)

    def unsubscribe(self) -> None:
        """Refused unless it is alone; until it knows, it reads nothing."""
        self.commit()
        self.leaves = True
        self.unsubscribe_id = self.world.next_number()
        self.world.send(
            Unsubscribe(self.subscription, self.name, self.incarnation, self.unsubscribe_id)
        )

    def crash(self, *, keep_checkpoint: bool) -> None:
        """The process dies; with its checkpoint it will take up where it was."""
        if not keep_checkpoint:
            self.checkpoint = Checkpoint()
            self.acked = Cursor()
            self.unsettled = {}
            self.rejections, self.retries = [], []
            self.world.oracle.gone(self)
        else:
            self.take_up()
        self.is_alive = True
        self.subscribe()

    def take_up(self) -> None:
        """From its checkpoint: offsets are text there, and a batch is planned as it was."""
        checkpoint = self.checkpoint
        for name in ("committed", "logged"):
            offset = getattr(checkpoint, name)
            if offset is not None:
                text = json.dumps(offset.to_json_value())
                setattr(checkpoint, name, PartitionOffset.from_json_value(json.loads(text)))
        if checkpoint.logged is not None:
            again = checkpoint.logged.batch_since(checkpoint.committed, self.world.log_ledgers)
            if again != self.batch:
                self.world.oracle.fail(f"a batch is planned anew as {again}, and was {self.batch}")

    def close(self) -> None:
        """A last report, then it goes."""
        self.commit()
        self.report(certain=True)
        self.world.send(CloseConsumer(self.subscription, self.name, self.incarnation))
        self.connected = False
        self.is_alive = False
        self.world.oracle.gone(self)

    def give_back(self) -> None:
        """It asks for everything that it holds once more, or for what it has delivered."""
        if self.committed is None or not self.connected or self.checkpoint.logged is not None:
            return
        if self.manual and self.world.one_in(2):
            chosen, self.unsettled = self.unsettled, {}
            for messages in chosen.values():
                self.world.oracle.rejected(messages)
            self.world.send(
                RedeliverUnacknowledgedMessages(
                    self.subscription, self.name, self.incarnation, self.committed.epoch,
                    self.world.next_number(), chosen,
                )
            )  # fmt: skip
            return
        self.gives_back = True
        self.unsettled = {}
        self.world.oracle.gone(self)
        self.world.send(
            RedeliverUnacknowledgedMessages(
                self.subscription, self.name, self.incarnation, self.committed.epoch,
                self.world.next_number(),
            )
        )  # fmt: skip

    # -- hearing -----------------------------------------------------------------------------

    def hear(self, most: int | None = None) -> None:
        """Read on in the dispatch log."""
        log = self.world.dispatch
        stop = len(log) if most is None else min(len(log), self.read_to + most)
        while self.read_to < stop:
            for item in log[self.read_to]:
                if item.subscription == self.subscription:
                    self.hear_one(item)
            self.read_to += 1

    def hear_one(self, item: Any) -> None:
        committed = self.committed
        if isinstance(item, Acknowledged | EpochBegan):
            self.hear_of_all(item)
        elif (item.consumer, item.incarnation) != (self.name, self.incarnation):
            return
        elif isinstance(item, Reply):
            self.hear_reply(item)
        elif committed is None or item.epoch != committed.epoch:
            return
        elif isinstance(item, Grant):
            held = self.grants.get(item.attempt, PositionSet())
            self.grants[item.attempt] = held.union(item.messages)
        elif isinstance(item, OpenGrant):
            self.open_attempt, self.open_after = item.attempt, item.after
        elif isinstance(item, Revoke):
            self.obey(item)

    def hear_of_all(self, item: Acknowledged | EpochBegan) -> None:
        """What concerns each consumer of the subscription."""
        committed = self.committed
        if committed is None:
            return
        if isinstance(item, EpochBegan):
            if item.epoch > committed.epoch:
                self.begin(item.epoch, item.origin)
        elif item.epoch == committed.epoch:
            self.floor = max(self.floor or item.mark_delete_position, item.mark_delete_position)

    def hear_reply(self, reply: Reply) -> None:
        gone = (
            ServerError.CONSUMER_REPLACED,
            ServerError.CONSUMER_NOT_FOUND,
            ServerError.SUBSCRIPTION_NOT_FOUND,
        )
        self.leaves &= reply.request_id != self.unsubscribe_id
        is_gone = reply.request_id == self.unsubscribe_id and reply.error is None
        if is_gone or reply.error in gone:
            self.connected = False
            self.grants, self.open_attempt = {}, -1
        elif reply.request_id == self.request_id and reply.error is None:
            self.connected = True
            assert reply.origin is not None
            if self.committed is None or self.committed.epoch != reply.epoch:
                self.begin(reply.epoch, reply.origin)

    def begin(self, epoch: int, origin: Cursor) -> None:
        """A new epoch: nothing of the old one counts."""
        self.checkpoint.committed = PartitionOffset(origin, {}, epoch)
        self.checkpoint.logged = None
        self.grants, self.open_attempt, self.revision = {}, -1, 0
        self.gives_back = False
        self.floor, self.acked, self.unsettled = None, Cursor(), {}
        self.rejections, self.retries = [], []

    def obey(self, revoke: Revoke) -> None:
        if revoke.messages is None:
            self.gives_back = False
            self.open_attempt = -1
            self.grants = {}
        else:
            left = {a: held.difference(revoke.messages) for a, held in self.grants.items()}
            self.grants = {a: held for a, held in left.items() if held}
        self.revision = max(self.revision, revoke.revision)

    # -- micro-batches -----------------------------------------------------------------------

    @property
    def committed(self) -> PartitionOffset | None:
        return self.checkpoint.committed

    @property
    def planned(self) -> PartitionOffset | None:
        return self.checkpoint.logged or self.checkpoint.committed

    def poll(self) -> None:
        """One turn of `latestOffset`: what is committed is acknowledged, then a batch is planned.

        The report goes out before the batch is delivered, as it names what will be delivered.
        """
        if self.checkpoint.logged is not None:  # a replay after a crash, or a batch that runs
            self.commit()
            return
        self.hear(self.world.draw(1, 3))
        if not self.connected or self.committed is None or self.leaves:
            return
        end = self.plan(self.committed, self.world.draw(1, 6)) if not self.gives_back else None
        if end is not None:
            self.checkpoint.logged = end
            self.checkpoint.batches += 1
        self.report()
        if end is not None:
            batch = self.batch = end.batch_since(self.committed, self.world.log_ledgers)
            if self.manual:
                for attempt, cursor in end.attempts.items():
                    begin = self.committed.attempts.get(attempt, end.origin)
                    new = cursor.difference(begin, self.world.log_ledgers)
                    if end.floor is not None:
                        new = new.after(end.floor)
                    if new:
                        held = self.unsettled.get(attempt, PositionSet())
                        self.unsettled[attempt] = held.union(new)
            self.world.oracle.delivered(self, batch)
            if self.world.draw(0, 3):
                self.commit()

    def plan(self, start: PartitionOffset, most: int) -> PartitionOffset | None:
        """The next offset: messages in order, over all attempts; None if there is nothing."""
        floor = self.floor
        offers = dict(self.grants)
        if self.open_attempt >= 0:
            held = self.open_after.unread(self.world.log_ledgers)
            offers[self.open_attempt] = held.union(offers.get(self.open_attempt, PositionSet()))
        rows: list[tuple[Message, int]] = []
        for attempt, offer in offers.items():
            done = start.attempts.get(attempt, start.origin)
            left = offer.after(done.mark_delete_position).difference(done.individually_deleted)
            left = left.difference(self.world.hidden)  # readers subtract what the log hides
            if floor is not None:
                left = left.after(floor)
            if not self.manual:  # in its own committed offset: done, and reported, not read again
                for cursor in start.attempts.values():
                    left = left.difference(cursor.individually_deleted)
                    left = left.after(cursor.mark_delete_position)
            rows += [((*p, i), attempt) for p, i in left.messages(self.world.log_ledgers)]
        if not rows:
            return None
        attempts = dict(start.attempts)
        for message, attempt in sorted(rows)[:most]:
            cursor = attempts.get(attempt, start.origin)
            attempts[attempt] = cursor.acknowledge(self.world.one(message))
        return PartitionOffset(start.origin, attempts, start.epoch, floor)

    def commit(self) -> None:
        if self.checkpoint.logged is not None:
            self.checkpoint.committed = self.checkpoint.logged
            self.checkpoint.logged = None

    def report(self, *, certain: bool = False, request_id: int | None = None) -> None:
        """All that there is to say; absolute, so it may be lost, late or doubled."""
        committed, planned = self.committed, self.planned
        if committed is None or planned is None:
            return
        acked = self.acked
        if not self.manual:
            acked = committed.origin
            for cursor in committed.attempts.values():
                acked = acked.union(cursor)
        self.sequence += 1
        delivered = {
            attempt: cursor.difference(planned.origin, self.world.log_ledgers)
            for attempt, cursor in planned.attempts.items()
        }
        report = Report(
            self.subscription, self.name, self.incarnation, planned.epoch, self.sequence,
            acked, delivered, tuple(self.rejections), tuple(self.retries), self.permits,
            self.revision, self.floor or committed.origin.mark_delete_position, request_id,
        )  # fmt: skip
        if certain:
            self.world.send(report)
        else:
            self.world.send_badly(report)

    # -- its user (manual acknowledgement) ---------------------------------------------------

    def settle(self) -> None:
        """Its user acknowledges or rejects some of what was delivered."""
        rows = [
            (message, attempt)
            for attempt, held in self.unsettled.items()
            for message in self.world.plain(held)
        ]
        if not rows:
            return
        world = self.world
        how = world.draw(0, 9)
        chosen_rows = world.sample(rows)
        messages = [m for m, _ in chosen_rows]
        if how == 0 and self.committed is not None:
            self.acknowledge_as_a_client(messages)
        elif how >= 7 and not world.setting.calm:
            chosen = [(m, a) for m, a in rows if m in set(messages)]
            for attempt in sorted({a for _, a in chosen}):
                part = world.made(m for m, a in chosen if a == attempt)
                delay = world.draw_from((None, 0, 300, 2_000))
                if how == 9 and world.setting.consumer_options.dead_letter_policy is not None:
                    retry = ReconsumeLater(attempt, part, delay or 0, world.draw(0, 2))
                    self.retries.append(retry)
                    world.oracle.rejected(part)
                else:
                    self.rejections.append(Rejection(attempt, part, delay))
                    world.oracle.rejected(part)
        else:
            self.acked = self.acked.acknowledge(world.made(messages))
        settled = world.made(messages)
        left = {a: held.difference(settled) for a, held in self.unsettled.items()}
        self.unsettled = {a: held for a, held in left.items() if held}

    def acknowledge_as_a_client(self, messages: list[Message]) -> None:
        """By ids and ack sets, at once; on Exclusive and Failover perhaps up to one of them."""
        world, committed = self.world, self.committed
        assert committed is not None
        if world.one_in(2) and not self.kind.is_shared:
            ledger_id, entry_id, index = max(messages)
            size = world.sizes[ledger_id, entry_id]
            left = ack_set.full(size) & ~((2 << index) - 1)
            command = Acknowledge(
                self.subscription, self.name, committed.epoch, AckType.CUMULATIVE,
                position=Position(ledger_id, entry_id), ack_set=tuple(ack_set.to_words(left)),
            )  # fmt: skip
        else:
            sets: dict[Position, int] = {}
            for ledger_id, entry_id, index in messages:
                position = Position(ledger_id, entry_id)
                full = ack_set.full(world.sizes[position])
                sets[position] = sets.get(position, full) & ~(1 << index)
            words = tuple((p, tuple(ack_set.to_words(left))) for p, left in sets.items())
            command = Acknowledge(self.subscription, self.name, committed.epoch, ack_sets=words)
        world.send(command)
