"""Threads of several processes that take turns: one runs at a time, and the seed says which.

Invariants: a task is a real thread, and runs only while it holds the baton; it passes the baton on
only where something of another task can matter: at a call of the store, at a lock, and where it
waits. Time passes only while every task waits. A process that is stopped keeps its tasks where
they are, one that is killed for ever: nothing of it runs any more, no `finally` either, until the
schedule is over. Locks, events and threads of the code under test are these (`threads`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

from tests.simulation.lots import Lots
from tests.torture.place import Killed

Ready = Callable[[], bool]


class DeadlockError(AssertionError):
    """Every task waits, and nothing will ever wake one."""


@dataclass(eq=False)
class Process:
    """An operating system's process, as far as a schedule knows it."""

    name: str
    pid: int
    stopped: bool = False
    dead: bool = False
    stood_still: list[tuple[float, float]] = field(default_factory=list)
    """The beginning and the end of each time in which it was stopped, in ms."""


@dataclass(eq=False)
class Task:
    """One thread of a process."""

    name: str
    process: Process
    gate: Any = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None
    wake_ms: float = 0.0
    ready: Ready | None = None
    is_done: bool = False
    acting: list[str] = field(default_factory=list)
    """The names for which it acts meanwhile, innermost last."""

    def is_ready(self, now_ms: float) -> bool:
        if self.is_done or self.process.stopped or self.process.dead:
            return False
        return self.wake_ms <= now_ms or (self.ready is not None and self.ready())


class Turns:
    """The tasks of one schedule, and their time. The thread that makes it is the first task."""

    def __init__(self, lots: Lots, *, one_in: int = 3) -> None:
        self.lots, self.one_in = lots, one_in
        self.now_us = 0
        """Since the schedule began."""
        self.driver = Task("", Process("", 1))
        self.driver.gate.acquire()
        self.current = self.driver
        self.tasks = [self.driver]
        self.errors: list[tuple[Task, BaseException]] = []
        """The unexpected exceptions with which tasks ended."""
        self.is_over = False
        self.switches = 0
        self._numbers = itertools.count()

    @property
    def now_ms(self) -> float:
        return self.now_us / 1000

    def reads_clock(self) -> float:
        """Seconds; a microsecond has passed, so nobody waits for a time that never comes."""
        self.now_us += 1
        return self.now_us / 1_000_000

    # -- tasks -----------------------------------------------------------------------------------

    def spawn(self, process: Process, name: str, run: Callable[[], object]) -> Task:
        """Begin a thread of that process; it runs when it is chosen."""
        self._check()
        task = Task(f"{process.name}/{name}-{next(self._numbers)}", process)
        task.gate.acquire()
        task.thread = threading.Thread(target=self._run, args=(task, run), daemon=True)
        task.thread.start()
        self.tasks.append(task)
        return task

    def switch(self) -> None:
        """A point at which another task may go on."""
        if self.is_over:
            raise Killed(self.current.name)
        if self.lots.one_in(self.one_in):
            self._pass(self.current)

    def sleep(self, seconds: float) -> None:
        self.block(None, seconds)

    def block(self, ready: Ready | None, seconds: float = inf) -> None:
        """Wait until that holds, or for so long."""
        self._check()
        me = self.current
        me.wake_ms = inf if seconds == inf else ceil(self.now_us + seconds * 1e6) / 1000
        me.ready = ready
        self._pass(me)
        me.ready, me.wake_ms = None, 0.0

    def kill(self, process: Process) -> None:
        """SIGKILL; does not return in a task of that process."""
        process.dead = True
        if self.current.process is process and not self.is_over:
            self._pass(self.current)

    def end(self) -> None:
        """Let every thread end, in its turn; nothing that it still does reaches anything."""
        self.is_over = True
        for task in self.tasks:
            if task.thread is not None and task.thread.is_alive():
                self.current = task
                task.gate.release()
                task.thread.join(30)
                assert not task.thread.is_alive(), f"{task.name} does not end"
        self.current = self.driver

    # -- inside ----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.is_over:
            raise Killed(self.current.name)

    def _run(self, task: Task, run: Callable[[], object]) -> None:
        task.gate.acquire()
        try:
            if not self.is_over:
                run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the driver says what it was
            if not self.is_over:
                self.errors.append((task, error))
        task.is_done = True
        if not self.is_over:
            self.tasks.remove(task)
            self._go_on_with(self._chosen())

    def _pass(self, me: Task) -> None:
        chosen = self._chosen()
        if chosen is me:
            return
        self._go_on_with(chosen)
        me.gate.acquire()
        self._check()

    def _go_on_with(self, task: Task) -> None:
        self.current = task
        self.switches += 1
        task.gate.release()

    def _chosen(self) -> Task:
        while True:
            ready = [each for each in self.tasks if each.is_ready(self.now_ms)]
            if ready:
                return self.lots.draw_from(ready)
            waits = [
                each.wake_ms
                for each in self.tasks
                if not (each.is_done or each.process.stopped or each.process.dead)
            ]
            at_ms = min(waits, default=inf)
            if at_ms == inf:
                self.errors.append((self.driver, DeadlockError(self.waiting())))
                self.driver.wake_ms = self.now_ms
                at_ms = self.now_ms
            self.now_us = max(self.now_us, ceil(at_ms * 1000))

    def waiting(self) -> str:
        return ", ".join(f"{each.name} until {each.wake_ms}" for each in self.tasks)


class TurnLock:
    """Stands for `threading.Lock`, or for `threading.RLock`."""

    def __init__(self, turns: Turns, *, again: bool = False) -> None:
        self._turns, self._again = turns, again
        self._owner: Task | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        turns = self._turns
        if self._again and self._owner is turns.current:
            self._count += 1
            return True
        turns.switch()
        if self._owner is not None:
            if not blocking:
                return False
            turns.block(lambda: self._owner is None, inf if timeout < 0 else timeout)
            if self._owner is not None:
                return False
        self._owner, self._count = turns.current, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count <= 0:
            self._owner, self._count = None, 0

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class LockOfEachProcess:
    """A lock of a class, of which each process has its own."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._locks: dict[Process, TurnLock] = {}

    @property
    def _mine(self) -> TurnLock:
        return self._locks.setdefault(self._turns.current.process, TurnLock(self._turns))

    def __enter__(self) -> bool:
        return self._mine.acquire()

    def __exit__(self, *_: object) -> None:
        self._mine.release()


class TurnEvent:
    """Stands for `threading.Event`."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._is_set = turns, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._turns.block(self.is_set, inf if timeout is None else timeout)
        return self._is_set


class TurnThread:
    """Stands for `threading.Thread`."""

    def __init__(
        self,
        turns: Turns,
        target: Callable[..., object],
        name: str = "thread",
        args: tuple[Any, ...] = (),
    ) -> None:
        self._turns, self._target, self.name, self._args = turns, target, name, args
        self._task: Task | None = None

    def start(self) -> None:
        turns = self._turns
        self._task = turns.spawn(
            turns.current.process, self.name, lambda: self._target(*self._args)
        )

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._turns.block(lambda: not self.is_alive(), inf if timeout is None else timeout)

    def is_current(self) -> bool:
        return self._task is self._turns.current


class Threads:
    """Stands for the module `threading` in the code under test."""

    local = threading.local

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._threads: dict[Task, TurnThread] = {}

    def Lock(self) -> TurnLock:  # noqa: N802 - the module's name
        return TurnLock(self._turns)

    def RLock(self) -> TurnLock:  # noqa: N802 - the module's name
        return TurnLock(self._turns, again=True)

    def Event(self) -> TurnEvent:  # noqa: N802 - the module's name
        return TurnEvent(self._turns)

    def Thread(  # noqa: N802 - the module's name
        self,
        target: Callable[..., object],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        daemon: bool | None = None,
    ) -> TurnThread:
        del daemon
        made = TurnThread(self._turns, target, name, args)
        start = made.start

        def started() -> None:
            start()
            assert made._task is not None
            self._threads[made._task] = made

        made.start = started  # type: ignore[method-assign]
        return made

    def current_thread(self) -> object:
        return self._threads.get(self._turns.current, self._turns.current)

    def main_thread(self) -> object:
        return self._turns.driver

    def get_ident(self) -> int:
        return id(self._turns.current)
