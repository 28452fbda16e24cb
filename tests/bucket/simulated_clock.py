"""A clock of processes that run beside each other in simulated time: each sleeps, none waits.

One thread runs at a time, the one that is to wake first; when it sleeps the time is that of the
next. So a request that takes 200 ms takes no time at all, and those of two processes overlap.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final

from pulsar_spark.connector.storage.clock import Clock, Pending, Poll, Wait
from pulsar_spark.connector.storage.polling import pause_s

STUCK_S: Final = 60.0
"""By the machine's clock: somebody waits for a lock that a sleeper holds."""

LOCK_S: Final = 0.001
"""How often who waits for a lock looks."""


class OverError(BaseException):
    """The simulation is over."""


class SimulatedClock(Clock):
    """Who makes it is its first thread; `spawn` makes others."""

    def __init__(self, now_s: float = 1_000_000_000.0) -> None:
        self._begun_s = self._now_s = now_s
        self._asleep: list[tuple[float, int, threading.Semaphore]] = []
        self._numbers = count()
        self._mine = threading.local()
        self._over = False
        self._moves = 0
        self._failed: BaseException | None = None

    def wall_ms(self) -> int:
        return int(self._now_s * 1000)

    def monotonic_s(self) -> float:
        return self._now_s - self._begun_s

    def sleep(self, seconds: float) -> None:
        self._enter(seconds, self._gate)
        self._pass_on(self._gate)

    def spawn(self, action: Callable[[], object]) -> Callable[[], None]:
        """Run it beside all others; what is returned waits for its end."""
        gate, ended = threading.Semaphore(0), False
        waiting: list[threading.Semaphore] = []

        def run() -> None:
            nonlocal ended
            self._mine.gate = gate
            try:
                self._await(gate)
                action()
            except OverError:
                return
            except BaseException as error:  # noqa: BLE001 - the first thread raises it
                self._failed = self._failed or error
            ended = True
            for each in waiting:
                self._enter(0.0, each)
            with suppress(OverError):
                self._pass_on(None)

        def join() -> None:
            if not ended:
                waiting.append(self._gate)
                self._pass_on(self._gate)

        self._enter(0.0, gate)
        threading.Thread(target=run, daemon=True).start()
        return join

    def at_once(self, request: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """What it answers to each, in their order, asked beside each other."""
        asked = list(items)
        if len(asked) < 2:
            return list(map(request, asked))
        answers: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}

        def ask(number: int) -> None:
            try:
                answers[number] = request(asked[number])
            except Exception as error:  # noqa: BLE001 - who asked raises it
                errors[number] = error

        joins = [self.spawn(partial(ask, number)) for number in range(len(asked))]
        for join in joins:
            join()
        for number in sorted(errors):
            raise errors[number]
        return [answers[number] for number in range(len(asked))]

    def repeat(
        self, every_s: float, action: Callable[[], None], name: str, *, coalesce: bool = False
    ) -> Callable[[], None]:
        del coalesce, name
        return self._until_stopped(lambda: every_s, action)

    def follow(
        self, look: Poll, name: str, *,
        remote: bool, pending: Pending = tuple, wait: Wait | None = None,
    ) -> Callable[[], None]:  # fmt: skip
        del name, pending, wait
        active_s, due_s = self.monotonic_s(), inf

        def rest_s() -> float:
            return min(pause_s(self.monotonic_s() - active_s, remote=remote), due_s)

        def act() -> None:
            nonlocal active_s, due_s
            due_s = look()
            if due_s <= 0:
                active_s, due_s = self.monotonic_s(), inf

        return self._until_stopped(rest_s, act)

    def end(self) -> None:
        """Nothing happens any more."""
        self._over = True
        for _, _, gate in self._asleep:
            gate.release()

    # -- inside --------------------------------------------------------------------------------

    @property
    def _gate(self) -> threading.Semaphore:
        if not hasattr(self._mine, "gate"):
            self._mine.gate = threading.Semaphore(0)
        gate: threading.Semaphore = self._mine.gate
        return gate

    def _enter(self, seconds: float, gate: threading.Semaphore) -> None:
        heapq.heappush(self._asleep, (self._now_s + max(seconds, 0), next(self._numbers), gate))

    def _pass_on(self, mine: threading.Semaphore | None) -> None:
        """Let the next one run, and wait for this one's turn."""
        if self._over:
            raise OverError
        self._now_s, _, gate = heapq.heappop(self._asleep)
        self._moves += 1
        if gate is mine:
            return
        gate.release()
        if mine is not None:
            self._await(mine)

    def _await(self, gate: threading.Semaphore) -> None:
        moves = -1
        while not gate.acquire(timeout=STUCK_S):
            assert moves != self._moves, "somebody holds a lock in his sleep"
            moves = self._moves
        if self._over:
            raise OverError
        if self._failed is not None and threading.current_thread() is threading.main_thread():
            error, self._failed = self._failed, None
            raise error

    def _until_stopped(
        self, rest_s: Callable[[], float], act: Callable[[], object]
    ) -> Callable[[], None]:
        stopped = False

        def run() -> None:
            while True:
                self.sleep(rest_s())
                if stopped:
                    return
                act()

        def stop() -> None:
            nonlocal stopped
            stopped = True

        self.spawn(run)
        return stop


class SimulatedLock:
    """Stands for `threading.RLock`: who waits for it sleeps, as others have to run."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._owner, self._times = 0, 0

    def acquire(self, blocking: bool = True) -> bool:
        me = threading.get_ident()
        while self._times and self._owner != me:
            if not blocking:
                return False
            self._clock.sleep(LOCK_S)
        self._owner = me
        self._times += 1
        return True

    def release(self) -> None:
        self._times -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def ticks(clock: Clock, instants: Iterable[float]) -> Iterator[float]:
    """Those instants, each when it has come."""
    for at_s in instants:
        clock.sleep(max(at_s - clock.monotonic_s(), 0.0))
        yield at_s
