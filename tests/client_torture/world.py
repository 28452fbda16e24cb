"""One schedule of programs, drawn from a seed: their processes, and what happens to them."""

from __future__ import annotations

import itertools
import random
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from typing import Any
from unittest import mock

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.broker import broker_sink, broker_source
from pulsar_spark.connector.runtime.system_topics import system_topics
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.tools.command_line import standalone_command
from pulsar_spark.errors import ConditionalWriteError, PulsarliteError
from pulsar_spark.model.topic_name import TopicName
from tests.client_torture.onlookers import ReaderProgram, ViewProgram
from tests.client_torture.oracle import Followed, Oracle
from tests.client_torture.place import TurnsClock, TurnsStore, taking_turns
from tests.client_torture.programs import LATE, POISON, ConsumerProgram, Program, Publisher
from tests.client_torture.setting import Setting, drawn_setting
from tests.client_torture.troubles import TROUBLES
from tests.client_torture.turns import Process, Turns
from tests.connector.reading import Run
from tests.simulation.lots import Lots
from tests.torture.memory import decoding_once

FINISH_S = 240.0
"""The longest time of the end, in which nothing goes wrong any more."""
LATE_S = 30.0
"""The longest time until others have the messages of a consumer that is gone."""
HAND_OVER_S = 25.0
OPERATION_TIMEOUT_S = 20
REMOTE_PATIENCE = 35.0
"""Over a network a consumer polls each 30 s at least, elsewhere four times a second."""


class World:
    """The processes, store, time and oracle of one schedule; `run` runs it."""

    def __init__(self, seed: int, setting: Setting | None, without: frozenset[str]) -> None:
        self.lots = Lots(seed)
        drawn = drawn_setting(self.lots)
        self.setting = setting or drawn
        self.turns = Turns(self.lots, one_in=self.setting.switch_one_in)
        self.clock = TurnsClock(self.turns)
        self.place = f"client-torture-{seed}"
        store = TurnsStore.named(self.place, self.clock)
        assert isinstance(store, TurnsStore)
        self.store = store
        store.remote = self.setting.remote
        self.patience = REMOTE_PATIENCE if self.setting.remote else 1.0
        """The factor of all bounds on time."""
        self.remade = False
        """A topic was deleted."""
        store.turns = self.turns
        store.lots = store.order = Lots(seed + 1)
        self.root = Root(f"memory://{self.place}", {})
        self.oracle = Oracle(self, without=without)
        self.topics = tuple(f"persistent://public/default/{each}" for each in self.setting.topics)
        self._pids = itertools.count(1_000_000)
        self.processes: dict[int, Process] = {}
        self.by_name: dict[str, Process] = {}
        self.clients: dict[Process, pulsar.Client] = {}
        self.programs: dict[Process, list[Program]] = {}
        self.serving: Process | None = None
        self.troubled: list[tuple[float, float]] = []
        """The beginning and the end of each time without a store or a broker, in ms."""
        self._trouble: dict[str, float] = {}
        """The present troubles, and the time of each one's beginning in ms."""
        self.calm_since_ms: float = inf
        self.finishing = False
        self.history: list[str] = []
        self.broker_failed = False
        self.trouble_begins("broker")
        values = [f"m{number}" for number in range(self.setting.messages)]
        if self.setting.poison:
            place = self.lots.draw(0, len(values) - 1)
            values[place] = POISON + values[place]
        count = self.setting.publishers
        self._values = [values[number::count] for number in range(count)]
        """The messages that are left to each publisher, however often it begins."""

    def note(self, text: str) -> None:
        self.broker_failed |= "has begun again" in text
        self.history.append(f"{self.turns.now_ms:>9.1f} {text}")

    # -- processes -------------------------------------------------------------------------------

    def client(self, process: Process) -> pulsar.Client:
        """The client that all programs of a process share."""
        made = self.clients.get(process)
        if made is None:
            made = pulsar.Client(
                self.root.service_url, operation_timeout_seconds=OPERATION_TIMEOUT_S
            )
            made = self.clients.setdefault(process, made)
        return made

    def begin(self, name: str) -> Process:
        """A process of that name, with its programs."""
        process = Process(name, next(self._pids))
        self.processes[process.pid] = self.by_name[name] = process
        self.programs[process] = []
        self.note(f"{name} begins, process {process.pid}")
        if name.startswith("host"):
            by_command = self.setting.by_command and not self.setting.embedded
            host = self._serve if by_command else self._host
            self.turns.spawn(process, "host", lambda: host(process))
        else:
            self._begin_programs(process)
        return process

    def _host(self, process: Process) -> None:
        """Serve the root, or wait until nobody else does."""
        client = None
        while client is None:
            try:
                client = pulsar.Client(
                    self.root.service_url, operation_timeout_seconds=OPERATION_TIMEOUT_S,
                    broker="embedded",
                )  # fmt: skip
            except pulsar.PulsarException as error:  # noqa: PERF203 - it waits
                self.note(f"{process.name}: {type(error).__name__} {error}"[:120])
                if process.name == "host0" and self.setting.embedded:
                    self._begin_programs(process)  # as clients of whoever serves
                    return
                self.turns.sleep(1)
        self.clients[process] = client
        self._is_served_by(process)
        self._begin_programs(process)

    def _serve(self, process: Process) -> None:
        """`pulsarlite standalone --embedded`, or its standby; a process of its own."""
        arguments = ["--embedded", "--service-url", self.root.service_url]
        arguments += ["--standby"] if self.setting.hosts > 1 else []
        parser = ArgumentParser()
        standalone_command.add_to(parser)
        answer = self._run_command(parser.parse_args(arguments))
        self.oracle.fail("ended", f"{process.name}: pulsarlite standalone ended: {answer!r}")

    def says(self, text: str) -> None:
        """Note a line that the command of a process prints."""
        process = self.turns.current.process
        self.note(f"{process.name}: {text}")
        if " runs (process " in text:
            self._is_served_by(process)

    def _run_command(self, parsed: Any) -> object:
        try:
            return parsed.run(parsed)
        except PulsarliteError as error:
            return error

    def _is_served_by(self, process: Process) -> None:
        self.note(f"{process.name} serves")
        self.serving = process
        self.trouble_ends("broker")

    def trouble_begins(self, what: str) -> None:
        self._trouble.setdefault(what, self.turns.now_ms)
        self.calm_since_ms = inf

    def trouble_ends(self, what: str) -> None:
        if what in self._trouble:
            self.troubled.append((self._trouble.pop(what), self.turns.now_ms))
        if not self._trouble:
            self.calm_since_ms = self.turns.now_ms

    def _begin_programs(self, process: Process) -> None:
        for make in self._roles(process):
            program = make()
            self.programs[process].append(program)
            self.turns.spawn(process, program.name, program.run)

    def _roles(self, process: Process) -> Iterator[Callable[[], Program]]:
        setting, name = self.setting, process.name
        followed = self.oracle.followed["s"]
        mine = [f"c{number}" for number in range(len(setting.styles))]
        if setting.embedded:
            here = mine if name == "host0" else []
        elif setting.together:
            here = mine if name == "c0" else []
        else:
            here = [name]
        for each in here:
            if each in mine:
                yield (
                    lambda n=each: ConsumerProgram(  # type: ignore[misc]
                        self, process, n, followed, int(n[1:])
                    )
                )
        if name == LATE:
            yield lambda: ConsumerProgram(self, process, LATE, followed, 0)
        if name.startswith("r"):
            yield lambda: ReaderProgram(self, process, name, self.topics[0])
        if name.startswith("v"):
            yield lambda: ViewProgram(self, process, name, self.topics[0])
        if name.startswith("p"):
            mine = self._values[int(name[1:])]
            yield lambda: Publisher(self, process, name, mine)

    def kill(self, process: Process) -> None:
        """SIGKILL; its programs begin again after a while."""
        self.note(f"{process.name} is killed")
        self.oracle.killed(process)
        self._is_gone(process)
        self.turns.kill(process)

    def _is_gone(self, process: Process) -> None:
        if self.serving is process:
            self.serving = None
            self.trouble_begins("broker")

    def stop(self, process: Process) -> None:
        """SIGSTOP."""
        self.note(f"{process.name} stands still")
        process.stopped = True
        process.stood_still.append((self.turns.now_ms, inf))
        if self.serving is process:
            self.trouble_begins("broker")

    def go_on(self, process: Process) -> None:
        """SIGCONT."""
        self.note(f"{process.name} goes on")
        process.stopped = False
        since_ms, _ = process.stood_still.pop()
        process.stood_still.append((since_ms, self.turns.now_ms))
        if self.turns.now_ms - since_ms >= self.setting.lease_ms / 2:
            self.oracle.stood_still(process)
        if self.serving is process:
            self.trouble_ends("broker")

    def away_ms(self, process: Process, since_ms: float) -> float:
        """The longest time since then in which it could not show life, or was not seen to."""
        now_ms = self.turns.now_ms
        gaps = [*process.stood_still, *self.troubled]
        gaps += [(at, now_ms) for at in self._trouble.values()]
        return max((min(end, now_ms) - max(at, since_ms) for at, end in gaps), default=0.0)

    def is_calm_for(self, seconds: float) -> bool:
        """True if nothing has gone wrong for so long."""
        return self.turns.now_ms - self.calm_since_ms >= seconds * 1000

    # -- the schedule ----------------------------------------------------------------------------

    def run(self) -> None:
        setting = self.setting
        self.store.ignores_conditions = setting.ignores_conditions
        try:
            self._create_topics()
        except ConditionalWriteError as error:
            if not setting.ignores_conditions:
                raise
            self.note(f"the store is refused, as it should be: {error}")
            return
        self.oracle.followed["s"] = Followed(
            "s", self.topics, setting.kind, setting.lease_ms, setting.ack_timeout_ms,
            setting.group_ms, setting.max_redeliver_count,
        )  # fmt: skip
        names = self._names()
        for each in names:
            self.begin(each)
        for _ in range(setting.events):
            self.wait(self.lots.draw(1, 1_500) / 1000)
            for each in names:
                if self.by_name[each].dead and self.lots.one_in(3):
                    self.begin(each)
            if setting.troubles and self.lots.one_in(setting.trouble_one_in):
                TROUBLES[self.lots.draw_from(setting.troubles)](self)
            for process in self.by_name.values():
                if process.stopped and self.lots.one_in(8):
                    self.go_on(process)
        self._finish(names)

    def _create_topics(self) -> None:
        for topic in self.topics:
            self.create(topic)

    def create(self, topic: str) -> None:
        """A topic that keeps all of its messages."""
        policies = {"retention_time_ms": -1, "retention_size_bytes": -1}
        self.root.create(TopicName.parse(topic), self.setting.partitions, {"policies": policies})

    def _names(self) -> list[str]:
        """The processes that there are."""
        setting = self.setting
        names = [f"host{number}" for number in range(setting.hosts)]
        names += [f"p{number}" for number in range(setting.publishers)]
        names += [f"r{number}" for number in range(setting.readers)]
        names += [f"v{number}" for number in range(setting.views)]
        if setting.embedded:
            return names
        return names + [f"c{n}" for n in range(1 if setting.together else len(setting.styles))]

    def wait(self, seconds: float) -> None:
        """Let the others go on for so long."""
        self.turns.sleep(seconds)
        self.check()

    def check(self) -> None:
        if self.oracle.violation is not None:
            raise self.oracle.violation
        if self.turns.errors:
            task, error = self.turns.errors[0]
            error.add_note(f"in {task.name}")
            raise error

    def _finish(self, names: list[str]) -> None:
        """Nothing goes wrong any more, and all is done within a bound."""
        self.note("the end begins")
        self.store.one_fails_in = self.store.one_is_slow_in = self.store.full_until_ms = 0
        self.store.fuses.clear()
        self.trouble_ends("store")
        for process in list(self.by_name.values()):
            if process.stopped:
                self.go_on(process)
        for each in names:
            if self.by_name[each].dead:
                self.begin(each)
        self.finishing = True
        if self.setting.busy_at_end:
            self._hand_over()
        begun_ms = self.turns.now_ms
        while self.turns.now_ms < begun_ms + min(self.patience, 3) * FINISH_S * 1000:
            self.wait(2)
            self.look()
            missing = self.oracle.missing() + self._unread()
            if not missing and not self.backlog():
                break
            late = self.oracle.waiting_too_long()
            if late and self.turns.now_ms > begun_ms + self.patience * LATE_S * 1000:
                self.oracle.fail("late", f"{late} had only those who are gone, {LATE_S:g} s later")
        else:
            lost = "\n  ".join(self.oracle.missing() + self._unread())
            self.oracle.fail("lost", f"not done in {FINISH_S:g} s: {self.backlog()}\n  {lost}")
        self.wait(3)

    def _hand_over(self) -> None:
        """Programs are busy; to one that comes now, and is nearer, all goes that none had."""
        for each in self._consumers():
            each.busy = True
        self.note("all consumers are busy from now on, and another comes")
        self.begin(LATE)
        begun_ms = self.turns.now_ms
        while True:
            self.wait(2)
            self.look()
            waiting = [each for each in self.oracle.missing() if "to nobody" in each]
            if not waiting:
                break
            if self.turns.now_ms > begun_ms + self.patience * HAND_OVER_S * 1000:
                lines = "\n  ".join(waiting)
                self.oracle.fail("handover", f"not handed over in {HAND_OVER_S:g} s:\n  {lines}")
                break
        for each in self._consumers():
            each.busy = False

    def _unread(self) -> list[str]:
        return [
            line for mine in self.by_name.values() for each in self.programs[mine]
            if isinstance(each, (ReaderProgram, ViewProgram)) for line in each.missing()
        ]  # fmt: skip

    def _consumers(self) -> list[ConsumerProgram]:
        return [
            each for mine in self.by_name.values() for each in self.programs[mine]
            if isinstance(each, ConsumerProgram)
        ]  # fmt: skip

    def look(self) -> None:
        """Read all topics, as nobody who could be in trouble."""
        for topic in self.root.find():
            if topic.is_system:
                continue
            run = Run(
                self.root.service_url, topic=str(topic), startingOffsets="earliest",
                failOnDataLoss=False, topicDiscoveryInterval="0",
            )  # fmt: skip
            for batch in run.all():
                for row in batch.messages:
                    value = row["value"].decode()
                    if str(topic).endswith("-DLQ"):
                        if value not in self.oracle.followed["s"].dead:
                            self.oracle.died(self.oracle.followed["s"], value)
                    elif "-RETRY" not in str(topic):
                        index = max(row["batch_index"], 0)
                        position = row["ledger_id"], row["entry_id"], index
                        self.oracle.stored((str(topic), max(row["partition"], 0)), position, value)

    def backlog(self) -> dict[Any, int]:
        return {
            (*each.topic_partition, each.name): each.backlog
            for each in subscriptions(self.root)
            if each.backlog and not each.topic_partition.topic.endswith("-DLQ")
        }


# -- one schedule --------------------------------------------------------------------------------


def run_schedule(
    seed: int, setting: Setting | None = None, without: frozenset[str] = frozenset()
) -> World:
    """Run one; ViolationError, with what happened, if a promise is broken."""
    ids = random.Random(seed)

    def next_id() -> uuid.UUID:
        return uuid.UUID(int=ids.getrandbits(128), version=4)

    before = random.getstate()
    random.seed(seed)
    world = World(seed, setting, without)
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(uuid, "uuid4", next_id))
        enter(mock.patch.dict(managed_ledger._cache, clear=True))
        enter(mock.patch.dict(system_topics._remembered, clear=True))
        enter(mock.patch.object(broker_source, "SNAPSHOT_EVERY", 15))
        enter(mock.patch.object(broker_sink, "LEDGERS_KEPT", 8))
        enter(mock.patch.object(broker_sink, "COMMANDS_KEPT", 8))
        enter(mock.patch.object(managed_ledger, "SNAPSHOT_EVERY", 8))
        enter(mock.patch.object(stream_reader, "LONGEST_WAIT_S", 0.0))
        enter(mock.patch.object(standalone_command, "signal", mock.MagicMock()))
        enter(mock.patch.object(standalone_command, "_print_line", world.says))
        enter(mock.patch.object(
            standalone_command, "watch", partial(standalone_command.watch, print_line=world.says)
        ))  # fmt: skip
        enter(decoding_once())
        try:
            with taking_turns(world.turns, world.store, world.processes):
                try:
                    world.run()
                except Exception as error:
                    error.add_note("\n".join([str(world.setting), *world.history[-300:]]))
                    raise
        finally:
            random.setstate(before)
            with suppress(KeyError):
                MemoryStore.forget(world.place)
    return world
