"""The recent activity of a producer and of a consumer: a line in the log at an interval.

    [persistent://public/default/t] [billing] [c] Prefetched messages: 0 --- Consume throughput ...

Invariants: lines read as Pulsar's Java client's; nothing is printed of an interval in which nothing
happened; what is counted costs by the batch. They go to the logger `pulsar_spark.stats`, as INFO.
Follows `ProducerStatsRecorderImpl` and `ConsumerStatsRecorderImpl`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.connector.storage.clock import Clock

LOG: Final = logging.getLogger("pulsar_spark.stats")
KEPT: Final = 4096
"""The number of values of an interval of which percentiles are taken, at most."""
_PERCENTS: Final = (50, 95, 99, 99.9, 100)
_NAMES: Final = ("med", "95pct", "99pct", "99.9pct", "max")


def is_observed() -> bool:
    """True if anybody has these lines printed."""
    return LOG.isEnabledFor(logging.INFO)


def log_to_stderr() -> None:
    """Print the lines on standard error, unless the program's logging has another place for them.

    For Spark's processes, where nobody sets up logging.
    """
    if not LOG.isEnabledFor(logging.INFO):
        LOG.setLevel(logging.INFO)
    if not LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s INFO %(name)s: %(message)s"))
        LOG.addHandler(handler)


class StatsRecorder:
    """Counts, and has the clock print a line at the end of each interval in which it counted."""

    def __init__(self, clock: Clock, interval_s: float, name: str) -> None:
        """With an interval of 0 it does nothing."""
        self._clock, self._interval_s, self._name = clock, interval_s, name
        self._lock = threading.Lock()
        self._begun_s = clock.monotonic_s()
        self._end: Callable[[], None] | None = None

    def close(self) -> None:
        """Print what was counted since the last line, and no more."""
        end, self._end = self._end, None
        if end is not None:
            end()
            self._print()

    def _begin(self) -> None:
        """Something is counted: the clock prints from now on. Called under the lock."""
        if self._end is None and self._interval_s > 0:
            self._begun_s = self._clock.monotonic_s()
            self._end = self._clock.repeat(
                self._interval_s, self._print, f"statistics of {self._name}", coalesce=True
            )

    def _print(self) -> None:
        with self._lock:
            now_s = self._clock.monotonic_s()
            over_s, self._begun_s = max(now_s - self._begun_s, 1e-3), now_s
            line = self._line(over_s)
        if line is not None:
            LOG.info(line)

    def _line(self, over_s: float) -> str | None:
        """The line for that time; None if nothing was counted. Resets the counts."""
        raise NotImplementedError


class ProducerStatsRecorder(StatsRecorder):
    """The statistics of one producer, or one sink."""

    def __init__(
        self,
        clock: Clock,
        interval_s: float,
        topic: str,
        producer: str,
        pending: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(clock, interval_s, f"producer {producer}")
        self._head, self._pending = f"[{topic}] [{producer}]", pending
        self._messages = self._bytes = self._failed = 0
        self._latencies, self._batches, self._sizes = Sample(), Sample(), Sample()

    def published(self, messages: int, size: int, latencies_s: Iterable[float]) -> None:
        """Messages were published together, each so long after it was sent."""
        with self._lock:
            self._begin()
            self._messages += messages
            self._bytes += size
            self._batches.add([messages])
            self._sizes.add([size])
            self._latencies.add(np.fromiter(latencies_s, np.float64) * 1000)

    def failed(self, messages: int) -> None:
        """Messages were given up."""
        with self._lock:
            self._begin()
            self._failed += messages

    def _line(self, over_s: float) -> str | None:
        if not (self._messages or self._failed):
            return None
        line = (
            f"{self._head} --- Publish throughput: {self._messages / over_s:.2f} msg/s --- "
            f"{_mbits(self._bytes, over_s)} Mbit/s --- Latency: {self._latencies.text(' ms')} --- "
            f"BatchSize: {self._batches.text('')} --- MsgSize: {self._sizes.text(' bytes')} --- "
            f"Ack received rate: {self._messages / over_s:.2f} ack/s --- Failed messages: "
            f"{self._failed} --- Pending messages: {self._pending()}"
        )
        self._messages = self._bytes = self._failed = 0
        self._latencies, self._batches, self._sizes = Sample(), Sample(), Sample()
        return line


class ConsumerStatsRecorder(StatsRecorder):
    """The statistics of one consumer, or one source."""

    def __init__(
        self,
        clock: Clock,
        interval_s: float,
        topic: str,
        subscription: str,
        consumer: str,
        prefetched: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(clock, interval_s, f"consumer {consumer}")
        self._head = f"[{topic}] [{subscription}] [{consumer}]"
        self._prefetched = prefetched
        self._messages = self._bytes = self._acks = self._failed = self._batches = 0

    def received(self, messages: int, size: int) -> None:
        """Messages were taken in together."""
        with self._lock:
            self._begin()
            self._messages += messages
            self._bytes += size
            self._batches += 1

    def acknowledged(self, messages: int) -> None:
        """Acknowledgements were sent."""
        with self._lock:
            self._begin()
            self._acks += messages

    def failed(self, messages: int) -> None:
        """Messages were given back."""
        with self._lock:
            self._begin()
            self._failed += messages

    def _line(self, over_s: float) -> str | None:
        if not (self._messages or self._acks or self._failed):
            return None
        line = (
            f"{self._head} Prefetched messages: {self._prefetched()} --- Consume throughput "
            f"received: {self._messages / over_s:.2f} msgs/s --- {_mbits(self._bytes, over_s)} "
            f"Mbit/s --- Ack sent rate: {self._acks / over_s:.2f} ack/s --- Failed messages: "
            f"{self._failed} --- batch messages: {self._batches} ---Failed acks: 0"
        )
        self._messages = self._bytes = self._acks = self._failed = self._batches = 0
        return line


class Sample:
    """Values of which percentiles are wanted: all, or every second, fourth, and so on."""

    def __init__(self) -> None:
        self._held: NDArray[np.float64] = np.empty(0)
        self._every, self._seen = 1, 0

    def add(self, values: Iterable[float] | NDArray[np.float64]) -> None:
        every = np.asarray(values, np.float64)
        new = every[-self._seen % self._every :: self._every]
        self._seen += len(every)
        self._held = np.concatenate([self._held, new])
        while len(self._held) > KEPT:
            self._held, self._every = self._held[::2], self._every * 2

    def text(self, unit: str) -> str:
        """`med: 0.000 ms - 95pct: ...`."""
        values = np.percentile(self._held, _PERCENTS) if len(self._held) else [0.0] * len(_NAMES)
        pairs = zip(_NAMES, values, strict=True)
        return " - ".join(f"{name}: {value:.3f}{unit}" for name, value in pairs)


def _mbits(size: int, over_s: float) -> str:
    return f"{size * 8 / 1024 / 1024 / over_s:.2f}"
