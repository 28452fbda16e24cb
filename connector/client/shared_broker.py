"""The embedded broker of a root, which all clients of this process share.

Invariants: a root has one at most in a process; whoever waits for it makes it work at once, and the
root's clock does beside that, for those who wait in other processes and for what falls due; the
last who leaves stops it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import ClassVar, Final

from pulsar_spark.connector.broker.embedded_broker import CHECKPOINT, EmbeddedBroker
from pulsar_spark.connector.housekeeping.housekeeper import Housekeeper
from pulsar_spark.connector.spark.polling import LEAST_PAUSE_S
from pulsar_spark.connector.storage.folder_watch import FolderWatch, Watched
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import FencedError, StaleCheckpointError

STEP_S: Final = 0.001
MOST_STEPS: Final = 20
"""How long at most the broker's thread lets a process's own consumers look first."""


class SharedBroker:
    """One broker and the number of its users."""

    _running: ClassVar[dict[tuple[int, str], SharedBroker]] = {}
    _making = threading.Lock()

    def __init__(self, key: tuple[int, str], root: Root) -> None:
        self._key, self._users = key, 0
        self._turning = threading.Lock()
        self._fenced: FencedError | None = None
        self._broker = _begin(root)
        self._looking: list[None] = []
        """One for each consumer of this process that looks for messages now."""
        self._listens = True
        """Whether a glance tells anything: not while something can't be taken in."""
        self._watch = FolderWatch(root.store)
        self._batches = self._followed = 0
        """The batches that it has done, and of these, those that the clock has heard of."""
        self._due_s = inf
        self._clock = root.clock
        self._housekeeper = Housekeeper(root)
        self._housekeeper.begin()
        self._end: Callable[[], None] = root.clock.follow(
            self._look, "embedded broker",
            remote=root.store.remote, pending=self._pending, wait=self._rest,
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

    def turn(self, *, waits: bool = False) -> bool:
        """Do a batch, unless another thread is at it, or after that one; whether there was one.

        BrokerFencedError if another broker has taken over.
        """
        if self._fenced is not None:
            raise self._fenced
        if not self._turning.acquire(blocking=waits):
            return False
        try:
            if not self._users:  # it was stopped
                return False
            found = self._broker.turn()
            self._batches += found
            if not found:
                self._due_s = self._broker.next_due_s()
                self._listens = not self._has_news()
        except FencedError as error:
            self._fenced = error
            raise
        else:
            return found
        finally:
            self._turning.release()

    @contextmanager
    def standing_back(self) -> Iterator[None]:
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
        """Where that appears for which a turn looks."""
        return self._broker.watched

    def _has_news(self) -> bool:
        return any(each.has_news() for each in self.watched)

    def leave(self) -> None:
        """Stop it, if this was its last user."""
        with self._making:
            self._users -= 1
            if self._users:
                return
            self._running.pop(self._key, None)
            self._housekeeper.end()
            self._end()
            with self._turning, self._broker:
                if self._fenced is None:
                    self._broker.until_quiet()  # consumers that have just left are seen to leave

    def _rest(self, seconds: float) -> None:
        """Wait so long for news, and let those that were woken with it begin."""
        if self._listens and self._fenced is None:
            self._watch.wait((each.folder for each in self.watched), seconds, self._has_news)
        else:
            self._clock.sleep(seconds)
        self._clock.sleep(STEP_S)
        self._stand_back()

    def _stand_back(self) -> None:
        """Let consumers of this process look first: else they wait for Python's lock."""
        for _ in range(MOST_STEPS):
            if not self._looking:
                return
            self._clock.sleep(STEP_S)

    def _look(self) -> float:
        if self._fenced is not None:
            return inf
        while self.turn():
            self._stand_back()
        before, self._followed = self._followed, self._batches
        if before != self._followed:
            return 0.0
        return self._due_s if self._due_s > 0 else LEAST_PAUSE_S

    def _pending(self) -> list[tuple[float, str]]:
        with self._turning:
            return list(self._broker.pending())


def _begin(root: Root) -> EmbeddedBroker:
    try:
        return _begun(root)
    except StaleCheckpointError:  # another broker has served since: its states are in `__dispatch`
        root.store.delete(CHECKPOINT)
        return _begun(root)


def _begun(root: Root) -> EmbeddedBroker:
    broker = EmbeddedBroker(root, CHECKPOINT)
    try:
        broker.turn()
    except BaseException:
        broker.close()
        raise
    return broker
