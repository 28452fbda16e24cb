"""A flush that waits, so that more messages share it.

Invariant: what waits is flushed when its time is over, and again and again while that fails. The
clock alone ends the repetition, or `stop`, which waits for a flush that is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from pulsar_spark.connector.storage.clock import Clock


class DelayedFlush:
    """Calls `flush` under the client's lock, `delay_ms` after something began to wait."""

    def __init__(
        self, clock: Clock, delay_ms: int, lock: RLock, flush: Callable[[], object], name: str
    ) -> None:
        self._clock, self._delay_ms, self._lock = clock, delay_ms, lock
        self._flush, self._name = flush, name
        self._end: Callable[[], None] | None = None

    def begin(self) -> None:
        """Something waits from now on. The caller holds the lock."""
        if self._end is None:
            self._end = self._clock.repeat(self._delay_ms / 1000, self._act, self._name)

    def stop(self) -> None:
        """Flush nothing more. The caller does not hold the lock, for which a flush may wait."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def _act(self) -> None:
        with self._lock:
            self._flush()
            self.stop()
