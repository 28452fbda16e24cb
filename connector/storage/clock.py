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
from dataclasses import dataclass
from math import ceil
from typing import Final

from pulsar_spark.errors import PulsarliteError

_LEAST_STEP_S: Final = 0.001
_MOST_STEP_S: Final = 0.005
"""How often `wait` asks: ten times, within these, ..."""
_RESTS: Final = 100
"""... and seldom enough that asking takes a hundredth of the time."""

_log = logging.getLogger(__name__)


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

    def wait(
        self,
        seconds: float,
        until: Callable[[], bool],  # noqa: ARG002
        block: Callable[[float], None] | None = None,  # noqa: ARG002
    ) -> None:
        """Return when that time has passed, or a little after `until()` is true.

        `block(seconds)` waits so long at most for something by which that may turn true.
        """
        self.sleep(seconds)

    @abstractmethod
    def repeat(
        self,
        every_s: float,
        action: Callable[[], None],
        name: str,
        rest: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Call `action` each time that `every_s` has passed; returns what ends that.

        An action under way has ended when that end returns. What it raises is logged as of `name`,
        and it is tried again the next time. `rest`, if given, waits until the next time where time
        passes by itself.
        """


class SystemClock(Clock):
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(
        self,
        seconds: float,
        until: Callable[[], bool],
        block: Callable[[float], None] | None = None,
    ) -> None:
        asked_s = time.monotonic()
        end_s = asked_s + seconds
        pause_s = min(max(_LEAST_STEP_S, seconds / 10), _MOST_STEP_S)
        while not until() and (now_s := time.monotonic()) < end_s:
            if block is not None:
                block(end_s - now_s)
            else:
                time.sleep(min(max(pause_s, (now_s - asked_s) * _RESTS), end_s - now_s))
            asked_s = time.monotonic()

    def repeat(
        self,
        every_s: float,
        action: Callable[[], None],
        name: str,
        rest: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        stopped = threading.Event()
        acting = threading.Lock()

        def run() -> None:
            while not stopped.is_set():
                if rest is None or not _try(rest, name):
                    stopped.wait(every_s)
                with acting:
                    if not stopped.is_set():
                        _try(action, name)

        def stop() -> None:
            stopped.set()
            if thread is not threading.current_thread():
                with acting:  # who rests sees it later, and does nothing more
                    pass

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return stop


class ManualClock(Clock):
    """Stands until `advance` moves it; `repeat` acts on the way, in the caller's thread."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms: float = now_ms
        self._repeated: list[_Due] = []

    def wall_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_s(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(seconds * 1000)

    def repeat(
        self,
        every_s: float,
        action: Callable[[], None],
        name: str,
        rest: Callable[[], None] | None = None,  # noqa: ARG002
    ) -> Callable[[], None]:
        due = _Due(self._now_ms + every_s * 1000, every_s * 1000, action, name)
        self._repeated.append(due)

        def stop() -> None:
            self._repeated = [each for each in self._repeated if each is not due]

        return stop

    def advance(self, milliseconds: float) -> None:
        """Let time pass, and call each repeated action at its instants."""
        until_ms = self._now_ms + milliseconds
        while True:
            due = min(self._repeated, key=lambda each: each.at_ms, default=None)
            if due is None or due.at_ms > until_ms:
                break
            self._now_ms = max(self._now_ms, due.at_ms)
            due.at_ms += due.every_ms
            _try(due.action, due.name)
        self._now_ms = max(self._now_ms, until_ms)

    def next_due_ms(self) -> int | None:
        """The next instant of a repeated action."""
        at_ms = min((each.at_ms for each in self._repeated), default=None)
        return None if at_ms is None else ceil(at_ms)


@dataclass(eq=False, slots=True)
class _Due:
    """A repeated action, and when it is due."""

    at_ms: float
    every_ms: float
    action: Callable[[], None]
    name: str


def _try(action: Callable[[], None], name: str) -> bool:
    try:
        action()
    except (PulsarliteError, OSError) as error:
        _log.warning("The clock's next turn tries again: %s: %s", name, error)
    except Exception:  # noqa: BLE001
        _log.exception("The clock's next turn tries again: %s", name)
    else:
        return True
    return False


SYSTEM_CLOCK: Final = SystemClock()
