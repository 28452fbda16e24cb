"""One schedule: who runs, what happens to them, and in which order, drawn from a seed."""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.runtime.broker import broker_sink, broker_source
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics import system_topics
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.errors import (
    BrokerAbsentError,
    BrokerFencedError,
    ConsumerBusyError,
    ConsumerReplacedError,
    FileReclaimedError,
    PulsarliteError,
    StaleCheckpointError,
)
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.connector.broker_query import BrokerQuery, QueryCheckpoint
from tests.connector.reading import Message
from tests.simulation.lots import Lots
from tests.torture.client import Client
from tests.torture.memory import decoding_once
from tests.torture.oracle import Followed, Oracle, ViolationError, is_dead_letter
from tests.torture.place import (
    ADMIN,
    NOTHING,
    InjectedError,
    Killed,
    SharedClock,
    TroubledStore,
)
from tests.torture.queries import POISON, Checkpoint, Consumer, Publisher, Query, Rows, acknowledge
from tests.torture.setting import Setting, drawn_setting
from tests.torture.troubles import GENTLE, TROUBLES, grow, lose_checkpoint

STARTED_MS = 1_700_000_000_000
CHECKPOINT = "_broker/broker"
BROKER = "broker"
EVENTS = 60
"""Of a schedule, a quarter of them troubles: twice as many that are half as dense find less a
second, as mutants show."""
MOST_ROUNDS = 150
"""Of the end, in which nothing goes wrong any more."""


class World:
    """What one schedule has; `run` runs it."""

    def __init__(self, seed: int) -> None:
        self.lots = Lots(seed)
        self.setting: Setting = drawn_setting(self.lots)
        self.lease_ms = self.setting.lease_ms
        self.clock = SharedClock(STARTED_MS)
        self.clock.while_asleep = self._while_asleep
        self.place = f"torture-{seed}-{next(_places)}"
        store = TroubledStore.named(self.place, self.clock)
        assert isinstance(store, TroubledStore)
        self.store = store
        self.store.lots, self.store.order = Lots(seed + 1), Lots(seed + 2)
        self.store.remote = is_remote(seed)
        self.root = Root(f"memory://{self.place}", {})
        self.oracle = Oracle(self)
        self.topics = tuple(f"persistent://public/default/{each}" for each in self.setting.topics)
        self.consumers: dict[str, Consumer] = {}
        self.publishers: dict[str, Publisher] = {}
        self.broker: EmbeddedBroker | None = None
        self.spark = QueryCheckpoint(f"broker-{seed}") if seed % 4 == 3 else None
        """What Spark keeps of the broker's query, where it hosts the broker."""
        self.cuts_off = ""
        """Set: Spark will not commit the broker's next batch, and this topic be away then."""
        self.leaving: set[str] = set()
        """Consumers who may say themselves that they go."""
        self.most_ahead_ms = 0
        self.moments_ms: dict[tuple[str, int], int] = {}
        self.history: list[str] = []
        self.asleep_until_ms: dict[str, int] = {}
        """Actors that stand still, as a machine under SIGSTOP does."""
        self._messages = itertools.count()
        self._pids: dict[str, int] = {}
        self._turning = False
        self._populate()

    # -- what is drawn ---------------------------------------------------------------------------

    def drawn_messages(self) -> Rows:
        setting, lots = self.setting, self.lots
        rows = []
        for _ in range(lots.draw(1, 6)):
            value = f"m{next(self._messages)}"
            if lots.one_in(8):
                value += "x" * 60
            poison = POISON if setting.poison and lots.one_in(16) else b""
            row = {
                "topic": lots.draw_from(self.topics),
                "key": None if lots.one_in(4) else f"k{lots.draw(0, 4)}",
                "value": poison + value.encode(),
                "deliver_at": None,
            }
            if setting.delays and lots.one_in(5):
                at_ms = self.clock.wall_ms() + lots.draw(-1_000, 9_000)
                row["deliver_at"] = _timestamp(at_ms)
            rows.append(row)
        return rows

    def drawn_acknowledgments(self, consumer: Consumer, messages: list[Message]) -> Rows:
        rows = []
        for message in messages:
            what = self.lots.draw_from(self.setting.verdicts)
            if what == "forget":
                continue
            row = _row(message, what)
            if self.setting.with_attempts:
                row["attempt"] = message["attempt"]
            if what in ("Negative", "ReconsumeLater"):
                row["delay_ms"] = self.lots.draw(0, 4_000)
            if what == "ReconsumeLater":
                times = dict(message["properties"] or ()).get("RECONSUMETIMES", "0")
                row["reconsume_times"] = int(times)
            rows.append(row)
        return rows

    # -- who there is ----------------------------------------------------------------------------

    def all_topics(self) -> list[str]:
        """Letter topics too."""
        return [str(each) for each in self.root.find() if not each.is_system]

    def partitions(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        return [
            (topic, number)
            for topic in topics
            for number in range(self.root.open(TopicName.parse(topic)).state.partitions)
        ]

    def actors(self) -> list[Query]:
        return [*self.consumers.values(), *self.publishers.values()]

    def pid(self) -> int:
        """Each process has caches of its own."""
        return self._pids.setdefault(self.clock.actor, next(_places) + 1_000_000)

    def note(self, text: str) -> None:
        self.history.append(f"{self.clock.elapsed_ms - STARTED_MS:>7} {text}")

    def _populate(self) -> None:
        setting = self.setting
        for topic in self.topics:
            name = TopicName.parse(topic)
            settings = {"policies": setting.policies} if setting.policies else None
            self.root.create(name, setting.partitions, settings)
        names = ["s", "w"] if setting.has_witness else ["s"]
        if not setting.grows_unseen:
            self.say({
                (TopicPartition(topic, number), name): CreateSubscription(name)
                for topic in self.topics for number in range(setting.partitions) for name in names
            })  # fmt: skip
        for number in range(setting.consumers):
            self._join(f"c{number}", "s", setting.consumer_options(number))
        if setting.has_witness:
            self._join("w0", "w", setting.witness_options())
        for number in range(2 if self.lots.one_in(3) else 1):
            publisher = f"p{number}"
            self.publishers[publisher] = Publisher(
                self, publisher, setting.publisher_options(self.lots)
            )
        if setting.grows_unseen:
            self._turning = True  # nobody looks
            self._subscribe_before_anybody_looks()
            self._turning = False
            self.oracle.latest_is_now(setting.partitions)
        while self.run_once():
            pass

    def _subscribe_before_anybody_looks(self) -> None:
        """All consumers subscribe, at Latest; the topics grow before the broker's first look."""
        self._start_all(self.consumers, "idle")
        for topic in self.topics:
            grow(self, topic)
        if self.setting.starts_anew:
            for consumer in self.consumers.values():
                self.kill(consumer)
                lose_checkpoint(self, consumer)
            self._start_all(self.publishers, "committed")
            self._start_all(self.consumers, "idle")

    def _start_all(self, queries: Mapping[str, Query], until: str) -> None:
        for query in queries.values():
            self.start(query)
            for _ in range(12):
                if query.is_running and query.stage != until:
                    self.step(query)

    def _join(self, name: str, subscription: str, given: dict[str, Any]) -> None:
        given = {"topics": ",".join(self.setting.topics)} | given
        kind = Client if given.get("ackMode") and self.setting.has_client(name) else Consumer
        self.consumers[name] = kind(self, name, subscription, given)
        shared = given["subscriptionType"] in ("Shared", "Key_Shared")
        manual = given.get("ackMode") == "manual"
        most = given.get("maxRedeliverCount")
        self.oracle.followed.setdefault(subscription, Followed(
            subscription, self.topics, shared,
            ordered=given["subscriptionType"] != "Shared" and most is None
            and not given.get("allowOutOfOrderDelivery") and not manual,
            ack_timeout_ms=given.get("ackTimeout", 0), max_redeliver_count=most, delays=shared,
            rewinds=given["subscriptionType"] == "Failover",
        ))  # fmt: skip

    def say(self, commands: dict[tuple[TopicPartition, str], Any]) -> int:
        """An admin says this; where `__commands` ends then."""
        SystemTopic(self.root, COMMANDS).append(
            [
                Record.of(topic_partition, name, each)
                for (topic_partition, name), each in commands.items()
            ]
        )
        return self.commands_end()

    def commands_end(self) -> int:
        with self.clock.acting(ADMIN):
            return SystemTopic(self.root, COMMANDS).refresh()

    # -- what they do ----------------------------------------------------------------------------

    def start(self, query: Query) -> None:
        """Its process begins, a new one."""
        self._renew_process(query.name)
        query.start()
        self.note(f"{query.name} starts")

    def kill(self, query: Query) -> None:
        """SIGKILL."""
        if isinstance(query, Consumer):
            if query.planning or query.stage not in ("stopped", "idle", "committed"):
                self.oracle.unlogged(query)
            query.planning = False
            self._note_unread(query)
        self.note(f"{query.name} is killed at {query.stage}")
        query.end()

    def _note_unread(self, consumer: Consumer) -> None:
        """Tell the oracle of a batch in Spark's log that no run has read, as nobody in trouble."""
        unread, consumer.unread = consumer.unread, None
        if unread is not None:
            with self.clock.acting(ADMIN), self.store.nearby(), suppress(PulsarliteError):
                self.oracle.logged(consumer, consumer.checkpoint.last, unread())

    def step(self, query: Query) -> None:
        """One step of Spark's; what ends the query on the way."""
        try:
            query.step()
            self.note(f"{query.name} {query.stage}")
        except StopIteration:
            self.note(f"{query.name} ends")
            query.end()
        except Killed:
            self.kill(query)
        except InjectedError as error:
            self.note(f"{query.name} fails: {error.message}")
            self.kill(query)
        except FileReclaimedError:
            self.note(f"{query.name} stood still for too long")
            self.kill(query)
        except (ConsumerBusyError, ConsumerReplacedError, BrokerAbsentError) as error:
            self.note(f"{query.name} gives up: {type(error).__name__}")
            if isinstance(query, Consumer):
                self.oracle.gone(query)
                self.leaving.add(query.name)
            self.kill(query)

    def run_once(self) -> bool:
        """One look of the broker's; whether it did anything."""
        if self._turning:
            return False
        self._turning = True
        try:
            with self.clock.acting(BROKER):
                if self.broker is None:
                    self.note("the broker begins")
                    self.broker = self._begun_broker()
                    self._observed(self.oracle.begun_anew)
                did = self.broker.run_once()
                if did:
                    self.store.away = NOTHING
                    self.note("the broker turns")
                    self._observed(self.oracle.turned)
                return did
        except (Killed, InjectedError) as error:
            self.note(f"the broker ends: {type(error).__name__} {error}")
            self.end_broker()
        except (BrokerFencedError, StaleCheckpointError) as error:
            if not self.setting.rivals:
                raise
            self.note(f"the broker is out: {type(error).__name__}")
            self.end_broker()
        finally:
            self._turning = False
        return True

    def _begun_broker(self) -> EmbeddedBroker:
        if self.spark is None:
            return EmbeddedBroker(self.root, CHECKPOINT)
        return BrokerQuery(self.root, self.spark, self._before_spark_commits)

    def _before_spark_commits(self) -> None:
        if self.cuts_off:
            self.store.away = self.cuts_off.replace("://", "/") + "/"
            self.cuts_off = ""
            raise Killed(BROKER)

    def end_broker(self) -> None:
        self.broker = None
        self._renew_process(BROKER)

    def _do_beside(self) -> None:
        """Some of what processes do beside comes to its turn; of one process in its order."""
        for actor, left in list(self.store.left.items()):
            while left and actor not in self.asleep_until_ms and self.store.order.one_in(2):
                action = left.pop(0)
                try:
                    with self.clock.acting(actor):
                        action()
                    self.note(f"{actor} has done something beside")
                except Killed:
                    self._killed_beside(actor)
                    break

    def _killed_beside(self, actor: str) -> None:
        if actor == BROKER:
            self.end_broker()
        for query in self.actors():
            if query.name == actor:
                self.kill(query)

    def _observed(self, observe: Callable[[EmbeddedBroker], None]) -> None:
        assert self.broker is not None
        with self.clock.acting(ADMIN):
            observe(self.broker)

    def _renew_process(self, actor: str) -> None:
        self.store.fuses.pop(actor, None)
        self.store.left.pop(actor, None)
        self._pids.pop(actor, None)
        self.clock.end(actor)
        self.clock.stopped.discard(actor)
        self.asleep_until_ms.pop(actor, None)

    def _while_asleep(self) -> None:
        """Who waits in a step lets the broker work, unless he is the broker."""
        if self.clock.actor not in (ADMIN, BROKER) and not self.clock.renewing:
            self.run_once()

    # -- the schedule ----------------------------------------------------------------------------

    def run(self, events: int) -> None:
        for _ in range(events):
            self._event()
        self._finish()

    def _event(self) -> None:
        lots = self.lots
        self._do_beside()
        for actor in [each for each, until in self.asleep_until_ms.items()
                      if until <= self.clock.elapsed_ms]:  # fmt: skip
            self._wake(actor)
        what = lots.draw(0, 99)
        if what < 50:
            self._step_somebody()
        elif what < 66:
            if BROKER not in self.asleep_until_ms:
                self.run_once()
        elif what < 76:
            self.clock.advance(lots.draw(1, 1_500))
        else:
            trouble = lots.draw_from(GENTLE if self.setting.calm else TROUBLES)
            trouble(self)

    def _wake(self, actor: str) -> None:
        self.asleep_until_ms.pop(actor)
        self.clock.stopped.discard(actor)
        self.note(f"{actor} wakes up")

    def _step_somebody(self) -> None:
        awake = [each for each in self.actors() if each.name not in self.asleep_until_ms]
        if awake:
            query = self.lots.draw_from(awake)
            if not query.is_running:
                self.start(query)
            for _ in range(self.lots.draw(1, 4)):
                if query.is_running:
                    self.step(query)
                if query.stage == "idle":  # until something happens
                    return

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Nothing goes wrong any more, and all is done within a bound."""
        self.note("the end begins")
        store = self.store
        store.one_fails_in = store.one_is_slow_in = store.full_until_ms = 0
        store.fuses.clear()
        self.cuts_off, store.away = "", NOTHING
        for actor in list(self.asleep_until_ms):
            self._wake(actor)
        self.clock.stopped.clear()
        self.clock.set_ahead_ms.clear()
        self._publish_the_rest()
        self._until_done()
        for query in self.consumers.values():  # within its lease
            self.kill(query)
            query.available_now = False
        before = len(self.oracle.batches)
        for _ in range(3):
            self._round()
            self.clock.advance(300)
        new = {key: rows for key, rows in list(self.oracle.batches.items())[before:] if rows}
        if new:
            self.oracle.fail(f"delivered after all was done: {new}")

    def _publish_the_rest(self) -> None:
        for publisher in self.publishers.values():
            for _ in range(30):
                if not publisher.is_running:
                    self.start(publisher)
                self.step(publisher)
                numbers = publisher.checkpoint.rows.keys()
                if publisher.stage == "committed" and numbers <= publisher.checkpoint.committed:
                    break
            self.kill(publisher)

    def _until_done(self) -> None:
        for consumer in self.consumers.values():
            if consumer.available_now and consumer.is_running:
                self.kill(consumer)
            consumer.available_now = False
        for number in range(MOST_ROUNDS):
            busy = self._round()
            if number % 5 == 4:
                self._acknowledge_the_rest(number)
            missing = self.oracle.missing()
            if not missing and not busy and not self._backlog():
                return
            self.clock.advance(300 if busy else 3_000)
        missing = self.oracle.missing()
        lost = "\n  ".join(f"{name}: {each}" for name, each in missing)
        self.oracle.fail(f"not done in {MOST_ROUNDS} rounds: {self._backlog()}\n  {lost}")

    def _backlog(self) -> dict[tuple[str, int, str], int]:
        from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions

        return {
            (*each.topic_partition, each.name): each.backlog
            for each in subscriptions(self.root)
            if each.backlog and not is_dead_letter(each.topic_partition.topic)
        }

    def _round(self) -> bool:
        """Everybody until nobody has anything to do at this moment, bounded; was there any?"""
        delivered = False
        self._do_beside()
        for query in self.consumers.values():
            if not query.is_running:
                self.start(query)
        for _ in range(8):
            did = False
            for query in self.consumers.values():
                for _ in range(12):
                    if query.is_running:
                        self.step(query)
                        did |= query.stage == "delivered"
                    if query.stage in ("idle", "stopped"):
                        break
            delivered |= did
            if not self.run_once() and not did:
                break
        return delivered

    def _acknowledge_the_rest(self, number: int) -> None:
        """What its sink has forgotten is acknowledged by another."""
        names = ("topic", "partition", "ledger_id", "entry_id", "batch_index")
        manual = {each.subscription for each in self.consumers.values() if each.manual}
        for subscription in sorted(manual):
            followed = self.oracle.followed[subscription]
            rows = [
                dict(zip(names, which, strict=True)) | {"ack_type": "Individual"}
                for which, deliveries in sorted(followed.deliveries.items())
                if deliveries and which not in followed.dead_letters
                and not self.oracle.stored[which].trimmed
            ]  # fmt: skip
            if rows:
                application = f"the-rest-{subscription}", number
                for _ in acknowledge(self, subscription, rows, application):
                    pass


def is_remote(seed: int) -> bool:
    """Whether its store is one over a network; none where Spark hosts the broker."""
    return seed % 4 == 1


def run_schedule(seed: int, events: int = EVENTS) -> World:
    """Run one; ViolationError, with what happened, if a promise is broken."""
    with prepared(seed) as make:
        world = make()
        try:
            world.run(events)
        except Exception as error:
            error.add_note("\n".join([str(world.setting), *world.history[-300:]]))
            raise
        return world


@contextmanager
def prepared(seed: int) -> Iterator[Callable[[], World]]:
    """A process that does the same again for the same seed, and in which little is much."""
    ids = random.Random(seed)
    worlds: list[World] = []

    def make() -> World:
        worlds.append(World(seed))
        return worlds[0]

    def next_id() -> uuid.UUID:
        return uuid.UUID(int=ids.getrandbits(128), version=4)

    def pid() -> int:
        return worlds[0].pid() if worlds else 1

    before = random.getstate()
    random.seed(seed)  # by which a sink chooses where it begins
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(uuid, "uuid4", next_id))
        enter(mock.patch.object(os, "getpid", pid))
        enter(mock.patch.dict(managed_ledger._cache, clear=True))
        enter(mock.patch.dict(system_topics._remembered, clear=True))
        enter(decoding_once())
        enter(mock.patch.object(stream_reader, "LONGEST_WAIT_S", 0.0))
        enter(mock.patch.object(broker_source, "SNAPSHOT_EVERY", 15))
        enter(mock.patch.object(broker_sink, "LEDGERS_KEPT", 8))
        enter(mock.patch.object(broker_sink, "COMMANDS_KEPT", 8))
        enter(mock.patch.object(broker_sink, "REMOTE_TRIM_LEDGERS", 2))
        enter(mock.patch.object(managed_ledger, "SNAPSHOT_EVERY", 8))
        try:
            yield make
        finally:
            random.setstate(before)
            with suppress(IndexError):
                MemoryStore.forget(worlds[0].place)


def _row(message: Message, what: str) -> dict[str, Any]:
    names = ("topic", "partition", "ledger_id", "entry_id", "batch_index")
    return {name: message[name] for name in names} | {"ack_type": what}


def _timestamp(at_ms: int) -> Any:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(at_ms / 1000, tz=timezone.utc)


_places = itertools.count()
__all__ = ["Checkpoint", "ViolationError", "World", "run_schedule"]
