"""One schedule: a partition, its producers, a broker in a host that crashes, and its sources.

Everything is drawn from one seed. Rows reach the host in any order, and it sorts them by position
before it steps, as the host in Spark does; a step may be run again from the same state, and must
give the same; the state may go through bytes between any two steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    CreateSubscription,
    LedgerAdded,
    LedgersTrimmed,
    Report,
    SetPolicies,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import KeySharedMode
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import is_quiet
from tests.core.partition import messages_of
from tests.simulation.lots import Lots, ViolationError
from tests.simulation.oracle import Oracle
from tests.simulation.setting import THIRDS, drawn_setting
from tests.simulation.source import Message, Source
from tests.simulation.troubles import TROUBLES, ends_its_run

TOPIC = "persistent://public/default/t"
SUBSCRIPTION = "s"
WITNESS = "witness"


@dataclass(frozen=True)
class Shape:
    """How large a schedule may be; most are smaller, since small ones fail more readably."""

    events: int = 28
    sources: int = 3


class World(Lots):
    """One partition and all who deal with it."""

    def __init__(self, seed: int, shape: Shape = Shape()) -> None:
        super().__init__(seed)
        self.shape = shape
        self.now_ms = 1_000_000
        self.numbers = 0
        self.setting = drawn_setting(self)
        self.rows_of_sinks: list[tuple[int, PositionSet]] = []
        """What sinks are about to acknowledge, by the attempt at which it was delivered."""
        self.goes_on_alone = self.setting.alone and not self.setting.manual
        """One consumer for the whole schedule, whose checkpoint alone says where it is."""
        self.ordered = self.setting.is_ordered
        """Until somebody does what may mix up the keys."""
        self.oracle = Oracle(self)
        self.state = BrokerState(TOPIC, self.draw_from((-1, 0, 1)), self.setting.policies)
        self.log: list[LedgerAdded] = []
        self.log_ledgers = LedgerList()
        self.all_ledgers = LedgerList()
        self.sizes: dict[tuple[int, int], int] = {}
        self.hidden = PositionSet()
        self.rows: list[tuple[int, int, Command]] = []
        self.late: list[Command] = []
        self.dispatch: list[tuple[Any, ...]] = []
        """What each step said; readers take in a step whole, as it is one commit of the log."""
        self.sources: list[Source] = []
        self.trimmed_up_to = EARLIEST
        """Those that connected, and their incarnation."""
        self.steps = 0
        self.is_ending = False
        """Nobody dies any more."""
        self.next_due_ms: int | None = None

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

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
        return messages_of(messages, self.all_ledgers)

    def publish(self) -> None:
        """One commit of the log, with one ledger for this partition."""
        ledger_id = self.log[-1].ledger.ledger_id + self.draw(1, 2) if self.log else self.draw(0, 2)
        sizes = [self.draw_from((1, 1, 2, 3)) for _ in range(self.draw(1, 4))]
        if self.draw(0, 1):
            sizes = [1] * len(sizes)
        count = sum(sizes)
        keys = np.array([self.draw(0, 5) * 7_919_173 for _ in range(count)], np.int64)
        deliver_at = None
        if self.one_in(2 if self.setting.alone else 5) and not self.is_calm_and_key_shared:
            deliver_at = np.array(
                [self.now_ms + self.draw(0, 3_000) if self.draw(0, 1) else 0 for _ in range(count)],
                np.int64,
            )
        times: list[int] | None = None
        first_ms = self.log[-1].published_at_ms if self.log else self.now_ms - 500
        if self.one_in(3):
            times = sorted(self.draw(first_ms, self.now_ms) for _ in range(count))
        column = None if times is None else np.array(times, np.int64)
        first_ms, last_ms = (times[0], times[-1]) if times else (self.now_ms, self.now_ms)
        ledger = LedgerInfo(ledger_id, 0, "", 0, BatchSizes.of(sizes), count, first_ms, last_ms)
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
        added = LedgerAdded(ledger, self.now_ms, keys, deliver_at, column, hidden)
        self.log.append(added)
        self.log_ledgers = LedgerList([*self.log_ledgers, ledger])
        self.all_ledgers = LedgerList([*self.all_ledgers, ledger])
        self.rows.append((0, ledger_id, added))
        self.oracle.published(added, rows)

    def delayed(self) -> PositionSet:
        """What its producer wants to be delivered later."""
        later = self.oracle.deliver_at.items()
        return self.made(message for message, at_ms in later if at_ms > self.now_ms)

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
        if self.rows_of_sinks and self.one_in(3):
            self.sinks_commit()
        rows, self.rows = self.rows, []
        if self.late and self.draw(0, 2) == 0:
            rows += [(1, self.next_number(), command) for command in self.late]
            self.late = []
        self.random.shuffle(rows)
        commands = [row[2] for row in sorted(rows, key=lambda row: row[:2])]
        before = self.state
        clock_ms = self.now_ms
        if before.now_ms == clock_ms and self.one_in(8):
            clock_ms -= 5_000  # the clock was set back, and nobody but the host notices
        after, ready = step(before, commands, clock_ms)
        if self.one_in(10):  # the host crashed before it had stored the state
            shards = to_shards(before)
            again, ready_again = step(from_shards(shards), commands, clock_ms)
            if ready_again != ready:
                raise ViolationError(f"a replayed step differs: {ready_again} and not {ready}")
            if to_shards(again) != to_shards(after):
                raise ViolationError("a replayed step leaves another state")
        if self.one_in(20):
            after = self.restarted(after)
        self.state = after
        self.steps += 1
        self.next_due_ms = ready.next_due_ms
        self.oracle.stepped(before, commands, after, ready)
        if self.one_in(8):
            self.oracle.check_nothing_is_left(after, ready)
        self._perform(ready)
        return ready

    @staticmethod
    def restarted(state: BrokerState) -> BrokerState:
        """As it comes back from what was stored."""
        shards = to_shards(state)
        again = from_shards(shards)
        if to_shards(again) != shards:
            raise ViolationError("the state is another one after it was stored")
        return again

    def sinks_commit(self) -> None:
        """What they have worked on is acknowledged, whatever has become of the subscription."""
        rows, self.rows_of_sinks = self.rows_of_sinks, []
        for attempt, messages in rows:
            done = {attempt: Cursor().acknowledge(messages)}
            self.send(Report("s", epoch=None, acknowledged_attempts=done))

    def _perform(self, ready: Ready) -> None:
        items: tuple[Any, ...] = (
            *ready.epochs, *ready.replies, *ready.revokes,
            *ready.acknowledged, *ready.grants, *ready.open_grants,
        )  # fmt: skip
        if items:
            self.dispatch.append(items)
        if ready.trim:
            gone = set(ready.trim)
            lost = [each for each in self.log_ledgers if each.ledger_id in gone]
            ends = [Position(each.ledger_id, each.entries - 1) for each in lost]
            self.trimmed_up_to = max([self.trimmed_up_to, *ends])
            self.log_ledgers = LedgerList(
                [each for each in self.log_ledgers if each.ledger_id not in gone]
            )
            self.send(LedgersTrimmed(ready.trim))

    # -- events ------------------------------------------------------------------------------

    def run(self) -> None:
        """The schedule, then an end in which all are well and everything must come through."""
        if self.setting.has_witness:
            self.send(CreateSubscription(WITNESS))
        self.publish()
        self.join()
        events = self.shape.events
        count = self.draw(4, events) if self.one_in(4) else self.draw(3, events // 3)
        if self.setting.policies.breaker_threshold:  # until it opens, tries, and fails again
            count *= 4
        for _ in range(count):
            self.event()
        self.finish()

    def event(self) -> None:
        happens = self.random.random()
        if self.setting.policies.breaker_threshold:
            happens *= self.random.random() ** 0.5  # less trouble, and more work
            self.now_ms += self.draw_from((0, 0, 500))
        if happens < 0.30:
            self.step()
        elif happens < 0.62 and self.sources:
            self.turn_of(self.draw_from(self.sources))
        elif happens < 0.72:
            self.publish()
        elif happens < 0.80:
            self.time_passes()
        elif happens < 0.86 and self.setting.alone and self.sources:
            ends_its_run(self)
        elif happens < 0.86:
            self.join()
        else:
            self.draw_from(TROUBLES)(self)

    def time_passes(self) -> None:
        """The clock stands, goes on, jumps, or comes to just before something is due."""
        due_ms = self.next_due_ms
        if due_ms is not None and due_ms > self.now_ms and self.draw(0, 1):
            self.now_ms = max(self.now_ms, due_ms - self.draw_from((0, 1, 200)))
        else:
            self.now_ms += self.draw_from((0, 1, 400, 1_000, 3_000, 60_000))

    def turn_of(self, source: Source) -> None:
        if source.stalled:
            return
        if not source.is_alive:
            if self.one_in(2):
                source.crash(keep_checkpoint=True)
            return
        if not source.connected and self.one_in(2):
            source.observe()
            self.perhaps_subscribe(source)
        elif source.manual and self.one_in(2):
            source.settle()
        else:
            source.poll()

    def perhaps_subscribe(self, source: Source) -> None:
        if not source.connected and self.one_in(2):
            source.subscribe()

    def join(self, third: int | None = None) -> None:
        most = 1 if self.setting.alone else self.shape.sources
        if third is None and len(self.sources) >= most:
            return
        if third is None:
            taken = {source.third for source in self.sources}
            free = [each for each in range(len(THIRDS)) if each not in taken]
            third = self.draw_from(free) if free and not self.one_in(8) else self.draw(0, 2)
        self.goes_on_alone &= not self.sources
        name = "c" * self.draw(1, 2) + str(self.next_number())
        setting = self.setting
        source = Source(
            self, SUBSCRIPTION, name, setting.kind, setting.manual, self.draw(1, 9), third
        )
        self.sources.append(source)
        source.subscribe()

    @property
    def is_calm_and_key_shared(self) -> bool:
        return self.setting.calm and self.setting.kind is SubscriptionType.KEY_SHARED

    def change_policies(self, **changes: Any) -> None:
        """An admin does; it counts from the next step on."""
        self.setting.policies = replace(self.setting.policies, **changes)
        self.send(SetPolicies(self.setting.policies))

    # -- the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """All sources live and acknowledge; then nothing may be left."""
        self.setting.calm = self.is_ending = True
        while not self.sources:
            self.join()
        if self.setting.mode is KeySharedMode.STICKY:  # every slot must have an owner
            for third in set(range(len(THIRDS))) - {source.third for source in self.sources}:
                self.join(third)
        for source in self.sources:
            source.stalled = False
            source.permits = max(source.permits, 1)
            if not source.is_alive:
                source.crash(keep_checkpoint=True)
        for run_once in range(200):
            for source in self.sources:
                self.do_well(source, run_once)
            ready = self.step()
            if run_once > 0 and is_quiet(ready) and self.oracle.is_done():
                self.oracle.finished()
                self.restarted(self.state)
                return
            if ready.next_due_ms is not None and is_quiet(ready):
                self.now_ms = max(self.now_ms, ready.next_due_ms)
        raise ViolationError(f"never done: {self.oracle.missing()} are not acknowledged")

    def do_well(self, source: Source, run_once: int) -> None:
        """Connect, or take what there is, and acknowledge it."""
        source.observe()
        exclusive = self.setting.kind is SubscriptionType.EXCLUSIVE
        if not source.connected and run_once % 3 == 0 and not (exclusive and self.is_taken()):
            source.subscribe()
            return
        source.commit()
        source.poll()
        source.commit()
        source.acked = source.acked.acknowledge(_union(source.unsettled.values()))
        source.unsettled = {}
        if source.connected:
            source.report(certain=True)

    def is_taken(self) -> bool:
        return any(source.connected for source in self.sources)


def _union(sets: Iterable[PositionSet]) -> PositionSet:
    result = PositionSet()
    for each in sets:
        result = result.union(each)
    return result


def run_world(seed: int, shape: Shape = Shape()) -> World:
    """One schedule from its seed. ViolationError if a promise is broken; the world, for a look."""
    world = World(seed, shape)
    world.run()
    return world
