"""A flush that waits, so that more messages share it.

Invariant: what waits is flushed when its time is over, and again and again while that fails. The
clock alone ends the repetition, or `stop`, which waits for a flush that is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from pulsar_spark.connector.storage.clock import Clock, Repeated


class DelayedFlush:
    """Calls `flush` under the client's lock, `delay_ms` after something began to wait."""

    def __init__(
        self, clock: Clock, delay_ms: int, lock: RLock, flush: Callable[[], object], name: str
    ) -> None:
        self._clock, self._delay_ms, self._lock = clock, delay_ms, lock
        self._flush, self._name = flush, name
        self._repeated: Repeated | None = None

    def begin(self) -> None:
        """Something waits from now on. The caller holds the lock."""
        if self._repeated is None:
            self._repeated = self._clock.repeat(self._delay_ms / 1000, self._act, self._name)

    def stop(self) -> None:
        """Flush nothing more. The caller does not hold the lock, for which a flush may wait."""
        repeated, self._repeated = self._repeated, None
        if repeated is not None:
            repeated.stop()

    def _act(self) -> None:
        with self._lock:
            self._flush()
            self.stop()
