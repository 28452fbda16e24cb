"""The embedded broker of a root, which all clients of this process share.

Invariants: a root has one at most in a process; whoever waits for it makes it work at once, and the
root's clock does beside that, for those who wait in other processes and for what falls due; the
last who leaves stops it. A process that stood still and was taken over is a client of the other
broker from then on, and serves again once that one is gone.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import ClassVar, Final

from pulsar_spark.connector.runtime.broker.embedded_broker import CHECKPOINT, EmbeddedBroker
from pulsar_spark.connector.runtime.housekeeping.housekeeper import Housekeeper
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.folder_watch import FolderWatch, Watched, has_activity
from pulsar_spark.connector.storage.polling import LEAST_PAUSE_S
from pulsar_spark.errors import BrokerBusyError, FencedError, StaleCheckpointError

STEP_S: Final = 0.001
MOST_STEPS: Final = 20
"""The number of short waits in which the broker's thread lets the process's consumers poll first.
"""
TAKE_OVER_EVERY_S: Final = 5.0
"""Seconds between two attempts of a process that was taken over to serve again."""
REMOTE_TAKE_OVER_EVERY_S: Final = 60.0
"""... and over a network, where each try takes requests."""

_log = logging.getLogger(__name__)


class SharedBroker:
    """One broker and the number of its users."""

    _running: ClassVar[dict[tuple[int, str], SharedBroker]] = {}
    _making = threading.Lock()

    def __init__(self, key: tuple[int, str], root: Root) -> None:
        self._key, self._users = key, 0
        self._turning = threading.Lock()
        self._root = root
        self._broker: EmbeddedBroker | None = _begin(root)
        """None while another process serves."""
        self._looking: list[None] = []
        """One for each consumer of this process that looks for messages now."""
        self._listens = True
        """True if a glance tells anything: not while something can't be taken in."""
        self._watch = FolderWatch(root.store)
        self._batches = self._followed = 0
        """The batches that it has done, and of these, those that the clock has heard of."""
        self._due_s = inf
        self._clock = root.clock
        self._take_over_s = -inf
        """The time of the next try to serve again."""
        self._housekeeper = Housekeeper(root)
        self._housekeeper.begin()
        self._end: Callable[[], None] = root.clock.follow(
            self._poll, "embedded broker",
            remote=root.store.remote, pending=self._pending, wait=self._wait,
        )  # fmt: skip

    @classmethod
    def join(cls, root: Root) -> SharedBroker:
        """The root's broker, begun now if this process has none.

        BrokerBusyError if another process serves the root.
        """
        key = (os.getpid(), root.service_url)  # a fork has none of its parent's threads
        with cls._making:
            broker = cls._running.get(key) or cls._running.setdefault(key, cls(key, root))
            broker._users += 1  # noqa: SLF001 - of its own class
        return broker

    def run_once(self, *, waits: bool = False) -> bool:
        """Do a batch, unless another thread is at it, or after that one; whether there was one."""
        if not self._turning.acquire(blocking=waits):
            return False
        try:
            broker = self._broker
            if broker is None or not self._users:  # it was taken over, or stopped
                return False
            found = broker.run_once()
            self._batches += found
            if not found:
                self._due_s = broker.next_due_s()
                self._listens = not self._has_activity()
        except (FencedError, StaleCheckpointError):
            self._stand_by()
            return False
        else:
            return found
        finally:
            self._turning.release()

    @contextmanager
    def yielding(self) -> Iterator[None]:
        """A context, of a consumer that looks for messages: the broker's thread lets it go first.

        Not for long: many consumers may look in turn.
        """
        self._looking.append(None)
        try:
            yield
        finally:
            self._looking.pop()

    @property
    def watched(self) -> list[Watched]:
        """The folders in which the input of a batch appears."""
        broker = self._broker
        return [] if broker is None else broker.watched

    def _has_activity(self) -> bool:
        return has_activity(self.watched)

    def leave(self) -> None:
        """Stop it, if this was its last user."""
        with self._making:
            self._users -= 1
            if self._users:
                return
            self._running.pop(self._key, None)
            self._housekeeper.end()
            self._end()
            with self._turning:
                if self._broker is not None:
                    self._leave(self._broker)

    def _leave(self, broker: EmbeddedBroker) -> None:
        with broker, suppress(FencedError, StaleCheckpointError):
            broker.until_quiet()  # consumers that have just left are seen to leave

    def _stand_by(self) -> None:
        """Another broker has taken over: be a client of that one."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()
        _log.warning(
            "This process stood still for so long that another broker has taken over %s: it is a "
            "client of that one now, and serves again once that one is gone.",
            self._root.service_url,
        )

    def _take_over(self) -> None:
        """Serve again, if it is time to try and no other broker does."""
        if self._clock.monotonic_s() < self._take_over_s:
            return
        try:
            broker = _begin(self._root, is_over=lambda: not self._users)
        except (BrokerBusyError, FencedError):
            return
        finally:
            every_s = REMOTE_TAKE_OVER_EVERY_S if self._root.store.remote else TAKE_OVER_EVERY_S
            self._take_over_s = self._clock.monotonic_s() + every_s
        with self._turning:
            if self._users:
                self._broker = broker
                _log.warning("This process serves %s again.", self._root.service_url)
                return
        broker.close()  # it was stopped meanwhile

    def _wait(self, seconds: float) -> None:
        """Wait so long for news, and let those that were woken with it begin."""
        if self._listens and self._broker is not None:
            self._watch.wait((each.folder for each in self.watched), seconds, self._has_activity)
        else:
            self._clock.sleep(seconds)
        self._clock.sleep(STEP_S)
        self._yield_to_consumers()

    def _yield_to_consumers(self) -> None:
        """Let consumers of this process look first: else they wait for Python's lock."""
        for _ in range(MOST_STEPS):
            if not self._looking:
                return
            self._clock.sleep(STEP_S)

    def _poll(self) -> float:
        if self._broker is None:
            self._take_over()
            if self._broker is None:
                return max(self._take_over_s - self._clock.monotonic_s(), LEAST_PAUSE_S)
        while self.run_once():
            self._yield_to_consumers()
        before, self._followed = self._followed, self._batches
        if before != self._followed:
            return 0.0
        return self._due_s if self._due_s > 0 else LEAST_PAUSE_S

    def _pending(self) -> list[tuple[float, str]]:
        with self._turning:
            return [] if self._broker is None else list(self._broker.pending())


def _begin(root: Root, is_over: Callable[[], bool] = lambda: False) -> EmbeddedBroker:
    try:
        return _begun(root, is_over)
    except StaleCheckpointError:  # another broker has served since: its states are in `__dispatch`
        root.store.delete(CHECKPOINT)
        return _begun(root, is_over)


def _begun(root: Root, is_over: Callable[[], bool]) -> EmbeddedBroker:
    broker = EmbeddedBroker(root, CHECKPOINT, is_over=is_over)
    try:
        broker.run_once()
    except BaseException:
        broker.close()
        raise
    return broker
