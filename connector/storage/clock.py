"""Clocks: the time, waiting, and what happens again and again. The connector knows no other.

Invariants: a store has one clock, and code that works on the store asks no other; wall time may be
set, monotonic time only goes on; a manual clock stands until its owner moves it, or waits on it,
and all that happens meanwhile happens in the owner's thread, at its instant. Follows trio's clocks:
the clock is handed in, and whoever waits moves one that stands.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import ceil, inf, nextafter
from typing import Final

from pulsar_spark.connector.storage.polling import LEAST_PAUSE_S, pause_s
from pulsar_spark.errors import PulsarliteError

Poll = Callable[[], float]
"""Returns 0 after news, else the seconds until something falls due; inf if nothing does."""
Pending = Callable[[], Iterable[tuple[float, str]]]
Action = Callable[[], float | None]
Wait = Callable[[float], None]
"""Waits so many seconds at most, and less if there is news; where time passes by itself."""
MOST_POLLS: Final = 1_000
"""The number of polls that a manual clock makes at one instant, while each finds activity."""
STANDS_S: Final = 5.0
"""Seconds for which another thread waits, by the machine's clock, for a manual clock to move."""

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

    def pause(
        self, quiet_s: float, most_s: float, *, remote: bool, wait: Wait | None = None
    ) -> bool:
        """Wait before the next look for news, if there was none for so long; at most `most_s`.

        False if no news can come, however long one waits.
        """
        (wait or self.sleep)(min(pause_s(quiet_s, remote=remote), most_s))
        return True

    @abstractmethod
    def repeat(
        self, every_s: float, action: Callable[[], None], name: str, *, coalesce: bool = False
    ) -> Callable[[], None]:
        """Call `action` each time that `every_s` has passed; returns what ends that.

        An action under way has ended when that end returns. What it raises is logged as of `name`,
        and it is tried again the next time. Of those that `coalesce` one call does for several that
        were missed, if it comes before anything else happens.
        """

    @abstractmethod
    def follow(
        self, look: Poll, name: str, *,
        remote: bool, pending: Pending = tuple, wait: Wait | None = None,
    ) -> Callable[[], None]:  # fmt: skip
        """Look for news again and again, as often as who waits for it; returns what ends that.

        As for `repeat`. `pending` says of what will fall due (in how many seconds, what).
        """

    def pending(self) -> str:
        """The text for a wait that timed out: the pending events, and their times."""
        return ""


class SystemClock(Clock):
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def repeat(
        self, every_s: float, action: Callable[[], None], name: str, *, coalesce: bool = False
    ) -> Callable[[], None]:
        del coalesce  # a thread misses none
        return _threaded(lambda over: _repeat(over, every_s, action, name), name)

    def follow(
        self, look: Poll, name: str, *,
        remote: bool, pending: Pending = tuple, wait: Wait | None = None,
    ) -> Callable[[], None]:  # fmt: skip
        del pending
        return _threaded(lambda over: _follow(over, look, name, remote=remote), name, wait)


Over = Callable[[float], bool]
"""Waits so many seconds, and says whether it is over."""


def _repeat(over: Over, every_s: float, action: Callable[[], None], name: str) -> None:
    while not over(every_s):
        _try(action, name)


def _follow(over: Over, look: Poll, name: str, *, remote: bool) -> None:
    active_s, due_s = time.monotonic(), inf
    while not over(min(pause_s(time.monotonic() - active_s, remote=remote), due_s)):
        due_s = _poll(look, name)
        if due_s <= 0:
            active_s, due_s = time.monotonic(), inf


def _threaded(
    run: Callable[[Over], None], name: str, wait: Wait | None = None
) -> Callable[[], None]:
    """Run it in a thread; returns what ends it. Who waits by `wait` may see that later."""
    stopped, acting = threading.Event(), threading.Lock()

    def waited(seconds: float) -> float:
        (wait or stopped.wait)(seconds)
        return seconds

    def over(seconds: float) -> bool:
        acting.release()
        if _try(lambda: waited(seconds), name) is None:
            stopped.wait(seconds)
        acting.acquire()
        return stopped.is_set()

    def act() -> None:
        with acting:
            run(over)

    def stop() -> None:
        stopped.set()
        if thread is not threading.current_thread():
            with acting:  # an action under way has ended
                pass

    thread = threading.Thread(target=act, name=name, daemon=True)
    thread.start()
    return stop


class ManualClock(Clock):
    """Stands until `advance` moves it, or its owner waits; what falls due is done on the way.

    Its owner is the thread that made it. Another thread's wait for news does not move it.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms: float = now_ms
        self.ahead_ms = 0
        """Milliseconds by which the wall's time was set ahead."""
        self._repeated: list[_Due] = []
        self._followed: list[_Due] = []
        self._moving = threading.RLock()
        self._owner = threading.get_ident()
        self._moved_s = time.monotonic()
        """When it was moved last, by the machine's clock."""

    def wall_ms(self) -> int:
        return int(self._now_ms) + self.ahead_ms

    def monotonic_s(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        with self._moving:
            self._poll()
            self._move(self._later(seconds))

    def pause(
        self, quiet_s: float, most_s: float, *, remote: bool, wait: Wait | None = None
    ) -> bool:
        """Move on to what happens next; stay if it happens now."""
        del wait
        if threading.get_ident() != self._owner:
            time.sleep(pause_s(quiet_s, remote=remote))
            return time.monotonic() - self._moved_s < STANDS_S
        with self._moving:
            if self._poll():
                return True
            due_ms = min((each.at_ms for each in self._dues()), default=inf)
            until_ms = min(due_ms, self._later(most_s))
            if until_ms < inf:
                self._move(until_ms)
            return until_ms < inf

    def repeat(
        self, every_s: float, action: Callable[[], None], name: str, *, coalesce: bool = False
    ) -> Callable[[], None]:
        due = _Due(self._now_ms + every_s * 1000, name, action, every_s, coalesce)
        self._repeated.append(due)

        def stop() -> None:
            self._repeated = [each for each in self._repeated if each is not due]

        return stop

    def follow(
        self, look: Poll, name: str, *,
        remote: bool, pending: Pending = tuple, wait: Wait | None = None,
    ) -> Callable[[], None]:  # fmt: skip
        del remote, wait  # here nobody asks in vain
        followed = _Due(inf, name, look, pending=pending)
        self._followed.append(followed)

        def stop() -> None:
            self._followed = [each for each in self._followed if each is not followed]

        return stop

    def advance(
        self,
        milliseconds: float = 0,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> None:
        """Let time pass, and do at each instant what falls due at it."""
        passing = timedelta(days, seconds, 0, milliseconds, minutes, hours)
        if passing < timedelta(0):
            raise ValueError(f"A clock is not moved back, by {-passing}: set ahead_ms instead.")
        with self._moving:
            self._poll()
            self._move(self._now_ms + passing / timedelta(milliseconds=1))

    def next_due_ms(self) -> int | None:
        """The next instant at which something happens, if nobody does anything before."""
        at_ms = min((each.at_ms for each in self._dues()), default=None)
        return None if at_ms is None else ceil(at_ms)

    def pending(self) -> str:
        repeated = [each for each in self._repeated if not each.coalesce]  # others bring no news
        due = [(each.at_ms / 1000 - self.monotonic_s(), each.name) for each in repeated]
        due += [one for each in self._followed for one in each.pending()]
        lines = (f"\n  in {timedelta(seconds=round(s, 3))}: {name}" for s, name in sorted(due))
        stands = datetime.fromtimestamp(self.wall_ms() / 1000, timezone.utc)
        return (
            f" The test's clock stands at {stands:%Y-%m-%d %H:%M:%S}: advance it for what is still "
            f"to happen:{''.join(lines) or ' nothing'}"
        )

    # -- inside --------------------------------------------------------------------------------

    def _later(self, seconds: float) -> float:
        """That instant: however little is left to it, who waits for it gets there."""
        least_ms = nextafter(self._now_ms, inf) if seconds > 0 else self._now_ms
        return max(self._now_ms + seconds * 1000, least_ms)

    def _dues(self) -> Iterator[_Due]:
        """The events at which the clock stops on its way."""
        for each in (*self._repeated, *self._followed):
            if each.at_ms < inf and not (each.coalesce or each.under_way):
                yield each

    def _move(self, until_ms: float) -> None:
        while True:
            due = min(self._dues(), key=lambda each: each.at_ms, default=None)
            if due is None or due.at_ms > until_ms:
                break
            self._catch_up(due.at_ms)
            if due in self._repeated:
                self._act(due)
            self._poll()
        self._catch_up(until_ms)
        self._poll()

    def _catch_up(self, until_ms: float) -> None:
        """Go on to that instant, and do what was missed on the way."""
        self._now_ms = max(self._now_ms, until_ms)
        self._moved_s = time.monotonic()
        for each in self._repeated:
            if each.coalesce and each.at_ms <= self._now_ms:
                self._act(each)

    def _act(self, due: _Due) -> None:
        every_ms = due.every_s * 1000
        missed = (self._now_ms - due.at_ms) // every_ms if due.coalesce else 0
        due.at_ms += (missed + 1) * every_ms
        with due:
            _try(due.action, due.name)

    def _poll(self) -> bool:
        """Have all look that follow the news, until there is none; whether there was."""
        for number in range(MOST_POLLS):
            activity = False
            for each in [one for one in self._followed if not one.under_way]:
                with each:
                    due_s = _poll(each.action, each.name)
                activity |= due_s <= 0
                each.at_ms = self._now_ms + (due_s if due_s > 0 else LEAST_PAUSE_S) * 1000
            if not activity:
                return number > 0
        return True


@dataclass(eq=False, slots=True)
class _Due:
    """An action and its time. It is entered while it runs: it does not happen within itself."""

    at_ms: float
    name: str
    action: Action
    every_s: float = inf
    coalesce: bool = False
    pending: Pending = tuple
    under_way: bool = False

    def __enter__(self) -> None:
        self.under_way = True

    def __exit__(self, *_: object) -> None:
        self.under_way = False


def _poll(look: Action, name: str) -> float:
    """Run a poll; inf after an error, which is logged."""
    due_s = _try(look, name)
    return inf if due_s is None else due_s


def _try(action: Action, name: str) -> float | None:
    try:
        return action()
    except (PulsarliteError, OSError) as error:
        _log.warning("The clock's next turn tries again: %s: %s", name, error)
    except Exception:  # noqa: BLE001
        _log.exception("The clock's next turn tries again: %s", name)
    return None


SYSTEM_CLOCK: Final = SystemClock()
