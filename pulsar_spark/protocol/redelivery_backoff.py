"""How long a message waits for its next delivery, by its number of redeliveries.

Invariants: delays lie between the shortest and the longest, and never shrink as the count grows.
Follows Pulsar's `MultiplierRedeliveryBackoff`, to the millisecond: in doubles, with Java's casts,
so that nothing overflows whatever the count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.positions.position import MAX_LONG

_MAX_INT: Final = 2**31 - 1
_INTS: Final = 2**32


@dataclass(frozen=True, slots=True)
class MultiplierRedeliveryBackoff:
    """`min_delay_ms` times `multiplier` to the power of the count, `max_delay_ms` at most.

    InvalidOptionError if `min_delay_ms` is below 0 or above `max_delay_ms`, or `multiplier` is
    not above 1.
    """

    min_delay_ms: int = 10_000
    max_delay_ms: int = 600_000
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        if self.min_delay_ms < 0:
            raise InvalidOptionError("min delay time must be >= 0")
        if self.max_delay_ms < self.min_delay_ms:
            raise InvalidOptionError("maxDelayMs must be >= minDelayMs")
        if not self.multiplier > 1:
            raise InvalidOptionError("multiplier must be > 1")

    def next(self, redelivery_count: int) -> int:
        """The delay in milliseconds after so many redeliveries; 0 before the first."""
        if redelivery_count <= 0 or self.min_delay_ms <= 0:
            return self.min_delay_ms
        if redelivery_count > self._greatest_power():
            return self.max_delay_ms
        delay = self.min_delay_ms * math.pow(self.multiplier, redelivery_count)
        return min(_as_long(delay), self.max_delay_ms)

    def _greatest_power(self) -> int:
        """The exponent that reaches the longest delay. As in Java, one beyond 2**31 - 1 wraps."""
        ratio = float(self.max_delay_ms) / self.min_delay_ms
        power = math.log(ratio) / math.log(self.multiplier)
        return (min(int(power), _MAX_INT) + 1 + _INTS // 2) % _INTS - _INTS // 2


def _as_long(value: float) -> int:
    """Java's cast of a double to a long."""
    return MAX_LONG if value >= MAX_LONG else int(value)
