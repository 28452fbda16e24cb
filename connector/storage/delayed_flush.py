"""A flush that waits, so that more messages share it.

Invariant: what waits is flushed when its time is over, and again and again while that fails, until
`stop`, which waits for a flush that is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pulsar_spark.connector.storage.clock import Clock


class DelayedFlush:
    """Calls `flush` once, `delay_ms` after something began to wait."""

    def __init__(self, clock: Clock, delay_ms: int, flush: Callable[[], object], name: str) -> None:
        self._clock, self._delay_ms, self._flush, self._name = clock, delay_ms, flush, name
        self._lock = threading.Lock()
        self._end: Callable[[], None] | None = None

    def begin(self) -> None:
        """Something waits from now on."""
        if self._end is not None:
            return
        with self._lock:
            if self._end is None:
                self._end = self._clock.repeat(self._delay_ms / 1000, self._act, self._name)

    def stop(self) -> None:
        """Flush nothing more. The caller holds no lock for which a flush may wait."""
        with self._lock:
            end, self._end = self._end, None
        if end is not None:
            end()

    def _act(self) -> None:
        self.stop()  # who comes now begins anew
        try:
            self._flush()
        except BaseException:
            self.begin()
            raise
