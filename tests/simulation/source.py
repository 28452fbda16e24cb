"""The source's side: a streaming query around a `PartitionConsumer`, and its user.

What is durable is `committed` (its checkpoint's commit log) and `logged` (a batch in its offset
log that was not committed); all else dies with the process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    ReconsumeLater,
    RedeliverUnacknowledgedMessages,
    Rejection,
    Report,
    Subscribe,
    SubscriptionType,
    Unsubscribe,
)
from pulsar_spark.broker.protocol.ready import Reply, Revoke
from pulsar_spark.consumer.partition_consumer import PartitionConsumer
from pulsar_spark.consumer.stream_offset import PartitionOffset
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet

if TYPE_CHECKING:
    from tests.simulation.world import World

Message = tuple[int, int, int]


@dataclass
class Checkpoint:
    """Durable: what of the source survives its process."""

    committed: PartitionOffset | None = None
    logged: PartitionOffset | None = None
    """The end of a batch that was begun and not committed."""


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
    consumer: PartitionConsumer | None = None
    epoch: int = 0
    """In which its user's acknowledgements and rejections are."""
    is_alive: bool = True
    stalled: bool = False
    unsubscribe_ids: set[int] = field(default_factory=set)
    leaves: bool = False
    read_to: int = 0
    acked: Cursor = field(default_factory=Cursor)
    unsettled: dict[int, PositionSet] = field(default_factory=dict)
    """Manual: delivered, and neither acknowledged nor rejected yet, by attempt."""
    rejections: list[Rejection] = field(default_factory=list)
    gave_back_at: int | None = None
    """It asked for everything again when the dispatch log was so long.

    It delivers nothing until it reads that it was heard: what it reads from before is older.
    """
    retries: list[ReconsumeLater] = field(default_factory=list)
    batch: dict[int, PositionSet] = field(default_factory=dict)
    """The last micro-batch, by attempt."""
    copy: Checkpoint = field(default_factory=Checkpoint)
    """Of its checkpoint, made a while ago."""
    finished: set[Message] = field(default_factory=set)
    """What its query has committed, since it was told to begin elsewhere."""

    # -- connecting --------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.consumer is not None and self.consumer.connected

    def subscribe(self, *, anew: bool = True) -> None:
        """As another run, in the same process; or because it missed what was said to this one."""
        if anew:
            self.incarnation = self.world.next_number()
        self.gave_back_at, self.leaves = None, False
        self.read_to = len(self.world.dispatch)
        setting = self.world.setting
        command = Subscribe(
            self.subscription, self.name, self.incarnation, self.kind,
            durable=setting.durable, initial_position=setting.initial_position,
            priority_level=self.world.priority_of(self.name),
            key_shared_policy=setting.key_shared_policy(self.third),
            options=setting.consumer_options,
            permits=self.permits, resumes=self.planned is not None,
            request_id=self.world.next_number(),
        )  # fmt: skip
        if self.consumer is None:
            self.consumer = PartitionConsumer(command, automatic=not self.manual)
        if not command.durable:
            command = replace(command, begins_behind=self.consumer.done(self.planned))
        self.consumer.subscribe_again(command)
        self.world.send(command)

    def unsubscribe(self) -> None:
        """Refused unless it is alone; until it knows, it reads nothing."""
        self.commit()
        self.leaves = True
        request_id = self.world.next_number()
        self.unsubscribe_ids.add(request_id)
        self.world.send(Unsubscribe(self.subscription, self.name, self.incarnation, request_id))

    def die(self) -> None:
        """The process is killed; its lease goes on."""
        self.consumer, self.is_alive = None, False

    def crash(self, *, keep_checkpoint: bool) -> None:
        """The process dies and begins again; with its checkpoint it takes up where it was."""
        if not keep_checkpoint:
            self.checkpoint, self.copy = Checkpoint(), Checkpoint()
            self.finished = set()
            self.acked = Cursor()
            self.unsettled = {}
            self.rejections, self.retries = [], []
            self.world.oracle.gone(self)
        else:
            self.take_up()
        self.is_alive = True
        self.consumer = None
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
            again = checkpoint.logged.attempts_since(checkpoint.committed, self.world.log_ledgers)
            self.world.oracle.deliveries.check_repeated(self, again)

    def restore(self) -> None:
        """Its checkpoint is lost, and an old copy put in its place: what came since comes again.

        Its user settles what came since once it has come again.
        """
        self.checkpoint = replace(self.copy)
        known = {} if self.planned is None else self.planned.attempts

        def kept(attempt: int | None, held: PositionSet) -> PositionSet:
            if attempt is None or attempt not in known:
                return PositionSet()
            return held.difference(known[attempt].not_acknowledged(held))

        unsettled = {attempt: kept(attempt, held) for attempt, held in self.unsettled.items()}
        self.unsettled = {attempt: held for attempt, held in unsettled.items() if held}
        self.rejections, self.retries = (
            [replace(each, messages=kept(each.attempt, each.messages)) for each in self.rejections],
            [replace(each, messages=kept(each.attempt, each.messages)) for each in self.retries],
        )
        self.world.oracle.gone(self)
        self.finished = set()
        self.crash(keep_checkpoint=True)

    def close(self) -> None:
        """A last report, then it goes; its checkpoint may wait for another run."""
        self.commit()
        self.report(certain=True)
        self.world.send(CloseConsumer(self.subscription, self.name, self.incarnation))
        self.consumer = None
        self.is_alive = False
        self.world.oracle.gone(self)

    def give_back(self) -> None:
        """It asks for everything that it holds once more, or for what it has delivered."""
        if not self.connected or self.checkpoint.logged is not None:
            return
        if self.manual and self.world.one_in(2):
            chosen, self.unsettled = self.unsettled, {}
            for messages in chosen.values():
                self.world.oracle.rejected(messages)
            self.world.send(
                RedeliverUnacknowledgedMessages(
                    self.subscription, self.name, self.incarnation, self.epoch,
                    self.world.next_number(), chosen,
                )
            )  # fmt: skip
            return
        self.gave_back_at = len(self.world.dispatch)
        self.unsettled = {}
        self.world.oracle.gone(self)
        self.world.send(
            RedeliverUnacknowledgedMessages(
                self.subscription, self.name, self.incarnation, self.epoch,
                self.world.next_number(),
            )
        )  # fmt: skip

    # -- hearing -----------------------------------------------------------------------------

    def observe(self, most: int | None = None) -> None:
        """Read on in the dispatch log."""
        log = self.world.dispatch
        stop = len(log) if most is None else min(len(log), self.read_to + most)
        while self.read_to < stop:
            for item in log[self.read_to]:
                if item.subscription == self.subscription:
                    self.hear_one(item)
            self.read_to += 1

    def hear_one(self, item: Any) -> None:
        consumer = self.consumer
        assert consumer is not None
        was = consumer.connected
        consumer.observe(item)
        if consumer.connected and consumer.epoch != self.epoch:
            self.begin(consumer.epoch)
        mine = getattr(item, "incarnation", None) == self.incarnation
        if isinstance(item, Revoke) and mine and was and item.messages is None:
            is_older = self.gave_back_at is not None and self.read_to < self.gave_back_at
            self.gave_back_at = self.gave_back_at if is_older else None
        if isinstance(item, Reply) and mine and item.request_id in self.unsubscribe_ids:
            self.leaves = False
            consumer.connected &= item.error is not None

    def begin(self, epoch: int) -> None:
        """A new epoch: what its user has said of the old one counts no more."""
        self.epoch = epoch
        self.gave_back_at = None
        self.copy = Checkpoint()
        self.acked, self.unsettled = Cursor(), {}
        self.rejections, self.retries = [], []

    # -- micro-batches -----------------------------------------------------------------------

    @property
    def committed(self) -> PartitionOffset | None:
        return self.checkpoint.committed

    @property
    def planned(self) -> PartitionOffset | None:
        return self.checkpoint.logged or self.checkpoint.committed

    def poll(self) -> None:
        """One turn of `latestOffset`: what is committed is acknowledged, then a batch is planned.

        As Spark does it: the report goes out before the offset is logged, and the batch is
        delivered behind both. The process may die between them.
        """
        if self.checkpoint.logged is not None:  # a replay after a crash, or a batch that runs
            self.commit()
            return
        self.observe(self.world.draw(1, 3))
        consumer, ledgers = self.consumer, self.world.log_ledgers
        if consumer is None or not consumer.connected or self.leaves:
            return
        most = self.world.draw(1, 6)
        end = self.plan(consumer, most) if self.gave_back_at is None else None
        start = self.committed
        self.report(planned=end)
        if end is not None and not self.world.is_ending and self.world.one_in(8):
            self.die()
        elif end is not None:
            self.checkpoint.logged = end
            self.batch = end.attempts_since(start, ledgers)
            self.world.oracle.deliveries.check_offset(end, ledgers)
            if self.manual:
                for attempt, new in self.batch.items():
                    held = self.unsettled.get(attempt, PositionSet())
                    self.unsettled[attempt] = held.union(new)
            self.world.oracle.delivered(self, self.batch)
            if self.world.draw(0, 3):
                self.commit()

    def plan(self, consumer: PartitionConsumer, most: int) -> PartitionOffset | None:
        """The next offset; None if there is nothing to read."""
        ledgers, start = self.world.log_ledgers, self.committed
        hidden = self.world.hidden
        if not self.kind.is_shared:  # of an open grant it holds back by itself what is delayed
            hidden = hidden.union(self.world.delayed())
        consumer.forget_planned(start)
        offered = consumer.offered(start, ledgers, hidden)
        while offered.begins_before(self.world.trimmed_up_to) and self.read_to < len(
            self.world.dispatch
        ):
            self.observe(1)  # the log may be ahead of what was heard
            if not consumer.connected or self.gave_back_at is not None:
                return None
            offered = consumer.offered(start, ledgers, hidden)
        taken = offered.waiting.take(most)
        if taken or start is None or start.epoch != consumer.epoch:  # an epoch is pinned at once
            return consumer.plan(start, offered.by_attempt(taken), ledgers)
        return None

    def commit(self) -> None:
        if self.checkpoint.logged is not None:
            self.checkpoint.committed = self.checkpoint.logged
            self.checkpoint.logged = None
            for messages in self.batch.values():
                self.finished.update(self.world.plain(messages))
            if self.world.one_in(4):
                self.copy = replace(self.checkpoint)

    def report(
        self,
        *,
        planned: PartitionOffset | None = None,
        certain: bool = False,
        request_id: int | None = None,
    ) -> None:
        """All that there is to say; absolute, so it may be lost, late or doubled."""
        if self.consumer is None or not self.consumer.connected:
            return
        report = self.consumer.report(
            self.committed, planned or self.planned, self.world.log_ledgers, self.permits,
            request_id,
        )  # fmt: skip
        if self.manual:
            report = replace(
                report, acknowledged=self.acked, rejected=tuple(self.rejections),
                reconsume_later=tuple(self.retries),
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
        if how == 0:
            self.acknowledge_as_a_client(messages)
        elif how == 1:
            world.rows_of_sinks += [(a, world.one(m)) for m, a in rows if m in set(messages)]
        elif how >= world.setting.rejects_from and not world.setting.calm:
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
        """As a sink does; on Exclusive and Failover perhaps up to one of them."""
        world = self.world
        acknowledged = Cursor().acknowledge(world.made(messages))
        if world.one_in(2) and not self.kind.is_shared:
            ledger_id, entry_id, index = max(messages)
            position = Position(ledger_id, entry_id)
            size = world.sizes[position]
            acknowledged = Cursor().acknowledge_cumulative(position, index, size)
        command = Report(self.subscription, epoch=self.epoch, acknowledged=acknowledged)
        world.send(command)
