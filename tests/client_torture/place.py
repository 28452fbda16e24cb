"""The place where programs run: time, store and event loop of tasks that take turns.

Invariants: the product's own `SystemClock` runs here, threads and all; only its machine is another.
A thread that waits for a folder is woken by a new name in it, as by the kernel, and by nothing
else.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock
from weakref import WeakSet

from pulsar_spark.connector.client import client as client_module
from pulsar_spark.connector.client.shared_broker import SharedBroker
from pulsar_spark.connector.storage import clock as clock_module
from pulsar_spark.connector.storage import process_identity
from pulsar_spark.connector.storage.clock import SystemClock
from pulsar_spark.connector.storage.folder_watch import FolderWatch
from pulsar_spark.connector.storage.object_store import ObjectInfo, Output
from pulsar_spark.connector.storage.remote_store import RemoteStore
from tests.client_torture.turns import LockOfEachProcess, Process, Task, Threads, Turns
from tests.torture.place import ADMIN, Killed, TroubledStore

STARTED_MS = 1_700_000_000_000
FIRST = "first"
"""The process that creates the topics, and finds that the store ignores conditions."""
STARTED = 1
"""The start of each process in ticks; no process id is given twice."""


class MachineTime:
    """Stands for the module `time`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def time_ns(self) -> int:
        return int((STARTED_MS + self._turns.now_ms) * 1_000_000)

    def monotonic(self) -> float:
        return self._turns.reads_clock()

    def sleep(self, seconds: float) -> None:
        self._turns.sleep(seconds)


class TurnsClock(SystemClock):
    """The machine's clock, and who acts, for `TroubledStore`."""

    renewing = False

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    @property
    def actor(self) -> str:
        task = self._turns.current
        acting = task.acting
        return acting[-1] if acting else task.process.name

    def monotonic_s(self) -> float:
        return self._turns.reads_clock()

    @property
    def elapsed_ms(self) -> int:
        return int(self._turns.now_ms)

    @contextmanager
    def acting(self, actor: str) -> Iterator[None]:
        task = self._turns.current
        task.acting.append(actor)
        try:
            yield
        finally:
            task.acting.pop()

    def advance(self, milliseconds: float) -> None:
        """A slow call of the store."""
        self._turns.sleep(milliseconds / 1000)


class TurnsStore(TroubledStore):
    """A store at each call of which another task may go on, or a process end."""

    turns: Turns
    ignores_conditions = False
    """True if it overwrites files that it is to create, and swaps whatever is there."""
    _has_checked_writes = False

    def __init__(self, root: str, clock: Any) -> None:
        super().__init__(root, clock)
        self.changes: dict[str, int] = defaultdict(int)
        """Folder -> how many names it has been given."""

    def create(self, path: str, data: bytes) -> bool:
        with self._call():
            if self.ignores_conditions and self.time.actor != ADMIN:
                self._files.pop(path, None)
            made = super().create(path, data)
            self._changed(path)
        return made

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        with self._call():
            if self.ignores_conditions and self.time.actor != ADMIN:
                with self.time.acting(ADMIN):
                    token = self.get_versioned(path)[1]
            made = super().compare_and_swap(path, token, data)
            self._changed(path)
        return made

    def check_writes(self) -> None:
        """Try the conditions as a store over a network does; memory is trusted otherwise."""
        if self.ignores_conditions:
            tries: Any = RemoteStore.check_writes
            with self.time.acting(FIRST):
                tries(self)

    def in_background(self, action: Callable[[], object]) -> None:
        """Over a network a thread of the process does it, and nobody learns of its error."""
        if not self.remote or self.time.actor == ADMIN:
            action()
            return

        def act() -> None:
            with suppress(Exception):
                action()

        self.turns.spawn(self.turns.current.process, "background", act)

    def touch(self, path: str, data: bytes) -> None:
        with self._call():
            super().touch(path, data)
            self._changed(path)

    def delete(self, path: str) -> None:
        with self._call():
            super().delete(path)

    def get(self, path: str) -> bytes | None:
        if self.time.actor != ADMIN:
            self.turns.switch()
        return super().get(path)

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        with self._call():
            return super().files(folder)

    def open_input(self, path: str) -> Any:
        with self._call():
            return super().open_input(path)

    def open_output(self, path: str) -> Output:
        with self._call():
            return super().open_output(path)

    def _changed(self, path: str) -> None:
        self.changes[path.rpartition("/")[0]] += 1

    @contextmanager
    def _call(self) -> Iterator[None]:
        if self.time.actor == ADMIN:
            yield
            return
        self.turns.switch()
        try:
            yield
        except Killed:
            self.turns.kill(self.turns.current.process)
            raise


class TurnsLoop(asyncio.BaseEventLoop):
    """An event loop whose time is the schedule's, and whose threads take turns."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._is_woken = False
        self._selector = self

    def time(self) -> float:
        return self._turns.reads_clock()

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until a thread calls, or for so long, as a selector does."""
        if not self._is_woken and timeout != 0:
            self._turns.block(lambda: self._is_woken, float("inf") if timeout is None else timeout)
        else:
            self._turns.switch()
        self._is_woken = False
        return []

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        self._is_woken = True

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Run it in a thread that nobody can cancel; nobody has to await it."""
        del executor
        answered = self.create_future()

        def settle(set_answer: Callable[[Any], None], answer: Any) -> None:
            if not answered.done():
                set_answer(answer)

        def work() -> None:
            try:
                answer = func(*args)
            except Exception as error:  # noqa: BLE001 - whoever awaits it gets it
                self.call_soon_threadsafe(settle, answered.set_exception, error)
            else:
                self.call_soon_threadsafe(settle, answered.set_result, answer)

        self._turns.spawn(self._turns.current.process, "executor", work)
        return answered


@contextmanager
def _on_one_machine(turns: Turns, processes: dict[int, Process]) -> Iterator[None]:
    """Meanwhile process ids, and what the system tells of processes, are those of `turns`."""

    def getpid() -> int:
        return turns.current.process.pid

    def kill(pid: int, number: int) -> None:
        assert not number, "nobody sends a signal here"
        process = processes.get(pid)
        if process is None or process.dead:
            raise ProcessLookupError

    def identity_of(pid: int) -> str:
        return f"machine/{pid} {STARTED}"

    def stat(name: str) -> tuple[str, int, int]:
        """A process that is stopped lives; `kill` tells of one that is dead."""
        assert not processes[int(name)].dead
        return "S", 1, STARTED

    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(os, "getpid", getpid))
        enter(mock.patch.object(os, "kill", kill))
        enter(mock.patch.object(socket, "gethostname", return_value="machine"))
        enter(mock.patch.object(process_identity, "_identity_of", identity_of))
        enter(mock.patch.object(process_identity, "_stat", stat))
        yield


@contextmanager
def taking_turns(turns: Turns, store: TurnsStore, processes: dict[int, Process]) -> Iterator[None]:
    """Meanwhile threads and time of the code under test are those of `turns`."""
    threads, time = Threads(turns), MachineTime(turns)
    versions: dict[Task, dict[str, int]] = defaultdict(dict)

    def add(watch: FolderWatch, folder: str) -> bool:
        if store.remote:
            return False
        watch._known.add(folder)
        versions[turns.current].setdefault(folder, store.changes[folder])
        return True

    def block(watch: FolderWatch, seconds: float) -> None:
        seen = versions[turns.current]
        turns.block(lambda: any(store.changes[each] != n for each, n in seen.items()), seconds)
        for folder in seen:
            seen[folder] = store.changes[folder]

    with ExitStack() as stack:
        enter = stack.enter_context
        for name, module in sorted(sys.modules.items()):
            if name.startswith("pulsar_spark.") and vars(module).get("threading") is not None:
                enter(mock.patch.object(module, "threading", threads))
        enter(mock.patch.object(clock_module, "time", time))
        enter(_on_one_machine(turns, processes))
        enter(mock.patch.object(client_module, "_open", WeakSet()))  # none ends with this process
        enter(mock.patch.object(client_module, "MEMORY", "\0"))
        enter(mock.patch.object(SharedBroker, "_making", LockOfEachProcess(turns)))
        enter(mock.patch.object(SharedBroker, "_running", {}))
        enter(mock.patch.object(FolderWatch, "_add", add))
        enter(mock.patch.object(FolderWatch, "_block", block))
        try:
            yield
        finally:
            turns.end()
