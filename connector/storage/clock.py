"""Clocks: the time, sleeping, and repeated actions. The connector knows no other.

Invariants: a store has one clock, and code that works on the store asks no other; wall time may be
set, monotonic time only goes on; a manual clock stands until its owner moves it, or somebody sleeps
on it. Follows trio's clocks: the clock is handed in.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Final

from pulsar_spark.errors import PulsarliteError

_log = logging.getLogger(__name__)


class Repeated(ABC):
    """An action that a clock repeats until `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """End the repetition; an action that is under way has ended when this returns."""


class Clock(ABC):
    """Tells the time, sleeps, and repeats."""

    @abstractmethod
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    @abstractmethod
    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Return when that time has passed."""

    @abstractmethod
    def repeat(self, every_s: float, action: Callable[[], None], name: str) -> Repeated:
        """Call `action` each time that `every_s` has passed, from now on.

        A PulsarliteError or OSError is logged as of `name`: it is tried again the next time.
        """


class SystemClock(Clock):
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def repeat(self, every_s: float, action: Callable[[], None], name: str) -> Repeated:
        return _Thread(every_s, partial(_try, action, name), name)


class ManualClock(Clock):
    """Stands until `advance` moves it; `repeat` acts on the way, in the caller's thread."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms: float = now_ms
        self._repeated: list[_Manual] = []

    def wall_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_s(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self._advance(seconds * 1000)

    def repeat(self, every_s: float, action: Callable[[], None], name: str) -> Repeated:
        repeated = _Manual(
            self._repeated, every_s * 1000, partial(_try, action, name), self._now_ms
        )
        self._repeated.append(repeated)
        return repeated

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and call each repeated action at its instants."""
        self._advance(milliseconds)

    def next_due_ms(self) -> int | None:
        """The next instant of a repeated action."""
        at_ms = min((each.due_ms for each in self._repeated), default=None)
        return None if at_ms is None else ceil(at_ms)

    def _advance(self, milliseconds: float) -> None:
        until_ms = self._now_ms + milliseconds
        while True:
            due = min(self._repeated, key=lambda each: each.due_ms, default=None)
            if due is None or due.due_ms > until_ms:
                break
            self._now_ms = max(self._now_ms, due.due_ms)
            due.act()
        self._now_ms = max(self._now_ms, until_ms)


class _Thread(Repeated):
    """Repeats in a daemon thread of its own."""

    def __init__(self, every_s: float, action: Callable[[], None], name: str) -> None:
        self._every_s, self._action = every_s, action
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._action()


class _Manual(Repeated):
    """Repeats when its clock is moved past it."""

    def __init__(
        self, others: list[_Manual], every_ms: float, action: Callable[[], None], now_ms: float
    ) -> None:
        self._others, self._every_ms, self._action = others, every_ms, action
        self.due_ms = now_ms + every_ms

    def act(self) -> None:
        self.due_ms += self._every_ms
        self._action()

    def stop(self) -> None:
        if self in self._others:
            self._others.remove(self)


def _try(action: Callable[[], None], name: str) -> None:
    try:
        action()
    except (PulsarliteError, OSError) as error:
        _log.warning("The clock's next turn tries again: %s: %s", name, error)


SYSTEM_CLOCK: Final = SystemClock()
