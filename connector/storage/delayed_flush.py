"""A flush that waits, so that more messages share it.

Invariant: what waits is flushed when its time is over, and again and again while that fails, until
`stop`, which waits for a flush that is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from pulsar_spark.connector.storage.clock import Clock

SOON_S: Final = 0.1
"""The longest delay of much that waits: more often would cost more than it brings."""


class DelayedFlush:
    """Calls `flush` once, `delay_ms` after something began to wait."""

    def __init__(self, clock: Clock, delay_ms: int, flush: Callable[[], object], name: str) -> None:
        self._clock, self._delay_ms, self._flush, self._name = clock, delay_ms, flush, name
        self._lock = threading.Lock()
        self._end: Callable[[], None] | None = None
        self._is_soon = False

    def begin(self, *, soon: bool = False) -> None:
        """Something waits from now on; with `soon` it is much, and waits for SOON_S at most."""
        soon = soon and self._delay_ms > SOON_S * 1000
        if self._end is not None and (self._is_soon or not soon):
            return
        if soon:
            self.stop()
        with self._lock:
            if self._end is None:
                delay_s = SOON_S if soon else self._delay_ms / 1000
                self._end = self._clock.repeat(delay_s, self._act, self._name)
                self._is_soon = soon

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
