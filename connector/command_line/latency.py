"""What a measurement has counted so far, and how pulsar-perf says it.

Invariants: a latency is kept to four digits, so that memory stays small however long it runs; a
percentile is the least of the values that so many are not above. Safe for several threads. Follows
`HdrHistogram`, and the formats of `PerformanceProducer` and `PerformanceConsumer` 4.0.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import Final

from pulsar_spark.connector.storage.clock import Clock

MEGABIT: Final = 1024 * 1024 / 8
"""Bytes, as pulsar-perf has it."""
DIGITS: Final = 10_000
"""Values below are kept as they are, others to as many digits."""


class Histogram:
    """How often each value was recorded; values are whole and not below 0."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def record(self, value: int) -> None:
        step = 1
        while value >= DIGITS * step:
            step *= 10
        self._counts[value - value % step] += 1

    @property
    def mean(self) -> float:
        total = sum(self._counts.values())
        return sum(value * each for value, each in self._counts.items()) / total if total else 0.0

    @property
    def max(self) -> int:
        return max(self._counts, default=0)

    def percentile(self, percent: float) -> int:
        """The value that so many percent are not above; 0 if there is none."""
        wanted, seen = sum(self._counts.values()) * percent / 100, 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            if seen >= wanted:
                return value
        return 0


class Measured:
    """Messages, bytes, failures and latencies, altogether and since the last line."""

    PRODUCED: Final = (
        "Throughput produced: {total:7d} msg --- {rate:8.1f} msg/s --- {mbit:8.1f} Mbit/s  "
        "--- failure {failures:8.1f} msg/s --- Latency: mean: {mean:7.3f} ms - med: {p50:7.3f} "
        "- 95pct: {p95:7.3f} - 99pct: {p99:7.3f} - 99.9pct: {p999:7.3f} - 99.99pct: {p9999:7.3f} "
        "- Max: {max:7.3f}"
    )
    RECEIVED: Final = (
        "Throughput received: {total:7d} msg --- {rate:.3f}  msg/s --- {mbit:.3f} Mbit/s  "
        "--- Latency: mean: {mean:.3f} ms - med: {p50:.0f} - 95pct: {p95:.0f} - 99pct: {p99:.0f} "
        "- 99.9pct: {p999:.0f} - 99.99pct: {p9999:.0f} - Max: {max:.0f}"
    )

    def __init__(self, clock: Clock, unit_s: float) -> None:
        """Latencies are kept in that unit."""
        self.clock, self._unit_s = clock, unit_s
        self._lock = threading.Lock()
        self.messages = self.failed = self._bytes = 0
        self.failure: Exception = AssertionError("nothing has failed")
        """The first of those that failed."""
        self._begun_s = self._counts_from_s = clock.monotonic_s()
        self._all, self._latest = Histogram(), Histogram()
        self._before = (self._begun_s, 0, 0, 0)
        """When the last line was made, and the counts then."""

    def begin(self, warmup_s: float = -inf) -> None:
        """Time counts from now on, and latencies after the warm-up."""
        self._begun_s = self.clock.monotonic_s()
        self._counts_from_s = self._begun_s + warmup_s
        self._before = (self._begun_s, 0, 0, 0)

    def elapsed_s(self) -> float:
        return self.clock.monotonic_s() - self._begun_s

    def record(self, size: int, latency_s: float) -> None:
        with self._lock:
            self.messages += 1
            self._bytes += size
            if self.clock.monotonic_s() > self._counts_from_s:
                latency = round(latency_s / self._unit_s)
                self._all.record(latency)
                self._latest.record(latency)

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self.failed:
                self.failure = error
            self.failed += 1

    def interval(self, line: str) -> str:
        """PRODUCED or RECEIVED, of what came since the last such line."""
        with self._lock:
            now = (self.clock.monotonic_s(), self.messages, self._bytes, self.failed)
            latest, self._latest = self._latest, Histogram()
            took_s, messages, size, failed = (b - a for a, b in zip(self._before, now, strict=True))
            self._before = now
        took_s = max(took_s, 1e-9)
        return line.format(
            total=self.messages,
            rate=messages / took_s,
            mbit=size / took_s / MEGABIT,
            failures=failed / took_s,
            **self._latency(latest),
        )

    def produced(self) -> Iterator[str]:
        """The two lines of a producer's end."""
        rate, mbit = self._rates()
        yield (
            f"Aggregated throughput stats --- {self.messages} records sent --- {rate:.3f} msg/s "
            f"--- {mbit:.3f} Mbit/s "
        )
        yield self._aggregated("7.3f")

    def received(self) -> Iterator[str]:
        """The two lines of a consumer's end."""
        rate, mbit = self._rates()
        yield (
            f"Aggregated throughput stats --- {self.messages} records received --- {rate:.3f} "
            f"msg/s --- {mbit:.3f} Mbit/s --- AckRate: {rate}  msg/s --- ack failed 0 msg"
        )
        yield self._aggregated(".0f")

    def _rates(self) -> tuple[float, float]:
        took_s = max(self.elapsed_s(), 1e-9)
        return self.messages / took_s, self._bytes / took_s / MEGABIT

    def _aggregated(self, form: str) -> str:
        values = self._latency(self._all)
        mean = format(values["mean"], "7.3f" if form == "7.3f" else ".3f")
        shown = {name: format(each, form) for name, each in values.items()} | {"mean": mean}
        return (
            "Aggregated latency stats --- Latency: mean: {mean} ms - med: {p50} - 95pct: {p95} "
            "- 99pct: {p99} - 99.9pct: {p999} - 99.99pct: {p9999} - 99.999pct: {p99999} "
            "- Max: {max}"
        ).format(**shown)

    def _latency(self, of: Histogram) -> dict[str, float]:
        """In milliseconds."""
        to_ms = self._unit_s * 1000
        return {
            "mean": of.mean * to_ms,
            "max": of.max * to_ms,
            "p50": of.percentile(50) * to_ms,
            "p95": of.percentile(95) * to_ms,
            "p99": of.percentile(99) * to_ms,
            "p999": of.percentile(99.9) * to_ms,
            "p9999": of.percentile(99.99) * to_ms,
            "p99999": of.percentile(99.999) * to_ms,
        }
