"""The embedded broker of a root, which all clients of this process share.

Invariants: a root has one at most in a process; whoever waits for it makes it work at once, and the
root's clock does beside that, for those who wait in other processes, the less often the longer
nothing happens; the last who leaves stops it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from pulsar_spark.connector.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.spark.polling import pause_s
from pulsar_spark.connector.storage.folder_watch import FolderWatch
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import FencedError, StaleCheckpointError

CHECKPOINT: Final = "_broker/embedded.json"
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
        self._looking: list[None] = []
        """One for each consumer of this process that looks for messages now."""
        self._fenced: FencedError | None = None
        self._listens = True
        """Whether a cheap look tells anything: not while something can't be taken in."""
        self._broker = _begin(root)
        self._clock, self._remote = root.clock, root.store.remote
        self._looked_s = self._news_s = self._clock.monotonic_s()
        self._watch = FolderWatch(root.store)
        least_s = pause_s(0.0, remote=self._remote)
        self._end: Callable[[], None] = self._clock.repeat(
            least_s, self._look, "embedded broker", self._rest
        )

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

    def turn(self) -> bool:
        """Do a batch, unless another thread is at it; whether there was one to do.

        BrokerFencedError if another broker has taken over.
        """
        if self._fenced is not None:
            raise self._fenced
        if not self._turning.acquire(blocking=False):
            return False
        try:
            if not self._users:  # it was stopped
                return False
            self._looked_s = self._clock.monotonic_s()
            found = self._broker.turn()
            if found:
                self._news_s = self._clock.monotonic_s()
            else:
                self._listens = not self.has_news()
        except FencedError as error:
            self._fenced = error
            raise
        else:
            return found
        finally:
            self._turning.release()

    @contextmanager
    def standing_back(self) -> Iterator[None]:
        """A context, of a consumer that looks for messages, in which no batch is begun beside it.

        Or after a while: many consumers may look in turn.
        """
        self._looking.append(None)
        try:
            yield
        finally:
            self._looking.pop()

    def leave(self) -> None:
        """Stop it, if this was its last user."""
        with self._making:
            self._users -= 1
            if self._users:
                return
            self._running.pop(self._key, None)
            self._end()
            with self._turning, self._broker:
                if self._fenced is None:
                    self._broker.until_quiet()  # consumers that have just left are seen to leave

    def has_news(self) -> bool:
        """Whether a turn may find something new in the logs; cheap, and may err."""
        return self._broker.has_news()

    @property
    def log_folders(self) -> list[str]:
        """Where news appears."""
        return self._broker.log_folders

    def _rest(self) -> None:
        """Wait until it is time for a look, or there is news."""
        now_s = self._clock.monotonic_s()
        left_s = self._looked_s + pause_s(now_s - self._news_s, remote=self._remote) - now_s
        if self._listens and self._fenced is None:
            self._watch.wait(self.log_folders, left_s, self.has_news)
        else:
            self._clock.sleep(max(left_s, pause_s(0.0, remote=self._remote)))
        self._clock.sleep(STEP_S)  # whoever else was woken has begun by then

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        is_time = now_s - self._looked_s >= pause_s(now_s - self._news_s, remote=self._remote)
        if is_time or self._listens:
            self._stand_back()
        if self._fenced is None and (is_time or (self._listens and self.has_news())):
            while self.turn():
                self._stand_back()

    def _stand_back(self) -> None:
        """Let consumers of this process look first: they wait for Python's lock else."""
        for _ in range(MOST_STEPS):
            if not self._looking:
                return
            self._clock.sleep(STEP_S)


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
