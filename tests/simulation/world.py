"""One schedule: a partition, its producers, a broker in a host that crashes, and its sources.

Everything is drawn from one seed. Rows reach the host in any order, and it sorts them by position
before it steps, as the host in Spark does; a step may be run again from the same state, and must
give the same; the state may go through bytes between any two steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from pulsar_spark.broker import step
from pulsar_spark.broker_format import from_shards, to_shards
from pulsar_spark.broker_state import BrokerState
from pulsar_spark.commands import (
    Command,
    InitialPosition,
    LeaseLapsed,
    LedgerAdded,
    LedgersTrimmed,
    Seek,
    SubscriptionType,
)
from pulsar_spark.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.policies import (
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedPolicy,
    TopicPolicies,
)
from pulsar_spark.position import EARLIEST, LATEST, Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.ready import Ready
from pulsar_spark.redelivery_backoff import MultiplierRedeliveryBackoff
from tests.simulation.oracle import Oracle
from tests.simulation.source import Message, Source

T = TypeVar("T")
TOPIC = "persistent://public/default/t"
SUBSCRIPTION = "s"
LEASE_MS = 5_000


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Shape:
    """How large a schedule may be; most are smaller, since small ones fail more readably."""

    events: int = 28
    sources: int = 3


class World:
    """One partition and all who deal with it."""

    def __init__(self, seed: int, shape: Shape = Shape()) -> None:
        self.random = random.Random(seed)
        self.shape = shape
        self.now_ms = 1_000_000
        self.numbers = 0
        self.calm = self.draw(0, 2) == 0
        """Nobody rejects, seeks or dies."""
        self.ordered = self.calm
        self.kind = self.draw_from(tuple(SubscriptionType))
        self.manual = bool(self.draw(0, 1))
        self.durable = True
        self.initial_position = InitialPosition.EARLIEST
        self.key_shared_policy = KeySharedPolicy()
        if self.draw(0, 5) == 0:
            self.key_shared_policy = KeySharedPolicy(allow_out_of_order_delivery=True)
            self.ordered = False
        self.policies = self._policies()
        self.consumer_options = self._consumer_options()
        self.oracle = Oracle(self)
        self.state = BrokerState(TOPIC, self.draw_from((-1, 0, 1)), self.policies)
        self.log: list[LedgerAdded] = []
        self.log_ledgers = LedgerList()
        self.all_ledgers = LedgerList()
        self.sizes: dict[tuple[int, int], int] = {}
        self.hidden = PositionSet()
        self.rows: list[tuple[int, int, Command]] = []
        self.late: list[Command] = []
        self.dispatch: list[Any] = []
        self.sources: list[Source] = []
        self.stopped: dict[str, int] = {}
        self.steps = 0
        self.next_due_ms: int | None = None

    # -- drawing -----------------------------------------------------------------------------

    def draw(self, low: int, high: int) -> int:
        """low to high, both included."""
        return low + int(self.random.random() * (high - low + 1))

    def draw_from(self, choices: Sequence[T]) -> T:
        return choices[int(self.random.random() * len(choices))]

    def sample(self, rows: Sequence[T]) -> list[T]:
        return self.random.sample(rows, self.draw(1, len(rows)))

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _policies(self) -> TopicPolicies:
        return TopicPolicies(
            max_unacked_messages_per_consumer=self.draw_from((50_000, 50_000, 4)),
            max_unacked_messages_per_subscription=self.draw_from((200_000, 200_000, 6)),
            retention_time_ms=self.draw_from((-1, 0)),
            retention_size_bytes=-1 if self.draw(0, 1) else 0,
            dispatcher_max_round_robin_batch_size=self.draw_from((20, 1, 2)),
            key_shared_look_ahead=self.draw_from((20_000, 3)),
            key_shared_consistent_hashing=bool(self.draw(0, 1)),
            batch_index_acknowledgment=self.draw(0, 5) > 0,
            message_ttl_ms=0 if self.draw(0, 7) else 50_000,
        )

    def _consumer_options(self) -> ConsumerOptions:
        if self.calm:
            return ConsumerOptions()
        backoff = MultiplierRedeliveryBackoff(100, 1_000) if self.draw(0, 2) == 0 else None
        policy = DeadLetterPolicy(self.draw(1, 2)) if self.draw(0, 2) == 0 else None
        return ConsumerOptions(
            negative_ack_redelivery_delay_ms=self.draw_from((0, 1_000)),
            negative_ack_redelivery_backoff=backoff,
            ack_timeout_ms=self.draw_from((0, 0, 1_500)) if self.manual else 0,
            dead_letter_policy=policy,
        )

    def priority_of(self, name: str) -> int:
        return len(name) % 2

    # -- messages ----------------------------------------------------------------------------

    def one(self, message: Message) -> PositionSet:
        ledger_id, entry_id, index = message
        size = self.sizes[ledger_id, entry_id]
        return PositionSet.of_batch((ledger_id, entry_id), size, 1 << index)

    def made(self, messages: Iterable[Message]) -> PositionSet:
        result = PositionSet()
        for message in messages:
            result = result.union(self.one(message))
        return result

    def plain(self, messages: PositionSet) -> list[Message]:
        return [(*position, index) for position, index in messages.messages(self.all_ledgers)]

    def publish(self) -> None:
        """One commit of the log, with one ledger for this partition."""
        ledger_id = self.log[-1].ledger.ledger_id + self.draw(1, 2) if self.log else self.draw(0, 2)
        sizes = [self.draw_from((1, 1, 2, 3)) for _ in range(self.draw(1, 4))]
        if self.draw(0, 1):
            sizes = [1] * len(sizes)
        count = sum(sizes)
        keys = np.array([self.draw(0, 5) * 7_919_173 for _ in range(count)], np.int64)
        deliver_at = None
        if self.draw(0, 4) == 0 and not (self.calm and self.kind is SubscriptionType.KEY_SHARED):
            deliver_at = np.array(
                [self.now_ms + self.draw(0, 3_000) if self.draw(0, 1) else 0 for _ in range(count)],
                np.int64,
            )
        ledger = LedgerInfo(
            ledger_id, 0, "", 0, BatchSizes.of(sizes), count, self.now_ms, self.now_ms
        )
        rows = [
            (ledger_id, entry_id, index)
            for entry_id, size in enumerate(sizes)
            for index in range(size)
        ]
        self.sizes |= {(ledger_id, entry_id): size for entry_id, size in enumerate(sizes)}
        hidden = PositionSet()
        if self.draw(0, 7) == 0:  # duplicates, found when this was committed
            hidden = self.made(self.sample(rows))
            self.hidden = self.hidden.union(hidden)
        added = LedgerAdded(ledger, self.now_ms, keys, deliver_at, hidden=hidden)
        self.log.append(added)
        self.log_ledgers = LedgerList([*self.log_ledgers, ledger])
        self.all_ledgers = LedgerList([*self.all_ledgers, ledger])
        self.rows.append((0, ledger_id, added))
        self.oracle.published(added, rows)

    # -- commands ----------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        self.rows.append((1, self.next_number(), command))

    def send_badly(self, command: Command) -> None:
        """Lost, late, twice, or as it should be."""
        fate = self.draw(0, 9)
        if fate == 0:
            return
        if fate == 1:
            self.late.append(command)
            return
        self.send(command)
        if fate == 2:
            self.late.append(command)
        elif fate == 3:
            self.send(command)

    # -- the host ----------------------------------------------------------------------------

    def step(self) -> Ready:
        """One micro-batch of the broker: rows in any order, sorted, stepped, perhaps again."""
        rows, self.rows = self.rows, []
        if self.late and self.draw(0, 2) == 0:
            rows += [(1, self.next_number(), command) for command in self.late]
            self.late = []
        self.random.shuffle(rows)
        commands = [row[2] for row in sorted(rows, key=lambda row: row[:2])]
        before = self.state
        after, ready = step(before, commands, self.now_ms)
        if self.draw(0, 7) == 0:  # the host crashed before it had stored the state
            shards = to_shards(before)
            again, ready_again = step(from_shards(shards), commands, self.now_ms)
            if ready_again != ready:
                raise ViolationError(f"a replayed step differs: {ready_again} and not {ready}")
            if to_shards(again) != to_shards(after):
                raise ViolationError("a replayed step leaves another state")
        if self.draw(0, 7) == 0:
            after = from_shards(to_shards(after))
        self.state = after
        self.steps += 1
        self.next_due_ms = ready.next_due_ms
        self.oracle.stepped(before, commands, after, ready)
        self._perform(ready)
        return ready

    def _perform(self, ready: Ready) -> None:
        self.dispatch.extend(ready.epochs)
        self.dispatch.extend(ready.replies)
        self.dispatch.extend(ready.revokes)
        self.dispatch.extend(ready.acknowledged)
        self.dispatch.extend(ready.grants)
        self.dispatch.extend(ready.open_grants)
        if ready.trim:
            gone = set(ready.trim)
            self.log_ledgers = LedgerList(
                [each for each in self.log_ledgers if each.ledger_id not in gone]
            )
            self.send(LedgersTrimmed(ready.trim))

    # -- events ------------------------------------------------------------------------------

    def run(self) -> None:
        """The schedule, then an end in which all are well and everything must come through."""
        self.publish()
        self.join()
        events = self.shape.events
        for _ in range(self.draw(4, events) if self.draw(0, 3) == 0 else self.draw(3, events // 3)):
            self.event()
        self.finish()

    def event(self) -> None:
        happens = self.random.random()
        if happens < 0.30:
            self.step()
        elif happens < 0.62 and self.sources:
            self.turn_of(self.draw_from(self.sources))
        elif happens < 0.72:
            self.publish()
        elif happens < 0.80:
            self.time_passes()
        elif happens < 0.86:
            self.join()
        else:
            self.trouble()

    def time_passes(self) -> None:
        """The clock stands, goes on, jumps, or comes to just before something is due."""
        due_ms = self.next_due_ms
        if due_ms is not None and due_ms > self.now_ms and self.draw(0, 1):
            self.now_ms = max(self.now_ms, due_ms - self.draw_from((0, 1, 200)))
        else:
            self.now_ms += self.draw_from((0, 1, 400, 1_000, 3_000, 60_000))

    def turn_of(self, source: Source) -> None:
        if source.stalled or not source.is_alive:
            return
        if not source.connected and self.random.random() < 0.5:
            source.hear()
            self.subscribe_if_refused(source)
        elif source.manual and self.random.random() < 0.5:
            source.settle()
        else:
            source.poll()

    def subscribe_if_refused(self, source: Source) -> None:
        if not source.connected and self.draw(0, 1):
            source.subscribe()

    def join(self) -> None:
        if len(self.sources) < self.shape.sources:
            name = "c" * self.draw(1, 2) + str(self.next_number())
            source = Source(self, SUBSCRIPTION, name, self.kind, self.manual, self.draw(1, 9))
            self.sources.append(source)
            source.subscribe()

    def trouble(self) -> None:  # noqa: C901 - one line for each kind of trouble
        """Somebody leaves, dies, stalls, comes back; or somebody seeks."""
        if not self.sources:
            return
        source = self.draw_from(self.sources)
        what = self.draw(0, 8)
        if what == 0:
            source.close()
            self.sources.remove(source)
        elif what == 1:
            source.crash(keep_checkpoint=True)
        elif what == 2:
            source.permits = self.draw(0, 9)
        elif self.calm:
            return
        elif what == 3:
            source.crash(keep_checkpoint=False)
        elif what == 4:
            source.stalled = True
            self.send(LeaseLapsed(SUBSCRIPTION, source.name, source.incarnation))
            self.oracle.gone(source)
        elif what == 5:
            source.stalled = False
        elif what == 6:
            self.seek()
        elif what == 7:
            source.give_back()
        else:
            self.change_type()

    def change_type(self) -> None:
        """All leave; whoever comes next says of what type the subscription is."""
        for source in self.sources:
            source.stalled = False
            source.close()
        self.sources = []
        self.kind = self.draw_from(tuple(SubscriptionType))
        self.ordered = False

    def seek(self) -> None:
        choices = [EARLIEST, LATEST]
        choices += [Position(each.ledger_id, 0) for each in self.log_ledgers]
        self.send(Seek(SUBSCRIPTION, self.draw_from(choices)))

    # -- the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """All sources live and acknowledge; then nothing may be left."""
        self.calm = True
        while not self.sources:
            self.join()
        for source in self.sources:
            source.stalled = False
            source.permits = max(source.permits, 1)
        exclusive = self.kind is SubscriptionType.EXCLUSIVE
        for turn in range(200):
            for source in self.sources:
                source.hear()
                if not source.connected and turn % 3 == 0 and not (exclusive and self.is_taken()):
                    source.subscribe()
                    continue
                source.commit()
                source.poll()
                source.commit()
                source.acked = source.acked.acknowledge(
                    PositionSet() if not source.unsettled else _union(source.unsettled.values())
                )
                source.unsettled = {}
                if source.connected:
                    source.report(certain=True)
            ready = self.step()
            if turn > 0 and ready.is_quiet and self.oracle.is_done():
                self.oracle.finished()
                return
            if ready.next_due_ms is not None and ready.is_quiet:
                self.now_ms = max(self.now_ms, ready.next_due_ms)
        raise ViolationError(f"never done: {self.oracle.missing()} are not acknowledged")

    def is_taken(self) -> bool:
        return any(source.connected for source in self.sources)


def _union(sets: Iterable[PositionSet]) -> PositionSet:
    result = PositionSet()
    for each in sets:
        result = result.union(each)
    return result


def run_schedule(seed: int, shape: Shape = Shape()) -> World:
    """One schedule from its seed. ViolationError if a promise is broken; the world, for a look."""
    world = World(seed, shape)
    world.run()
    return world
