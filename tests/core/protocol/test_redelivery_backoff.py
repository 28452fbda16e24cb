"""Delays between redeliveries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.broker.protocol.policies import MultiplierRedeliveryBackoff
from pulsar_spark.errors import InvalidOptionError
from tests.core.partition import repeatable


def test_from_one_second_to_a_minute_delays_double_until_they_are_a_minute() -> None:
    backoff = MultiplierRedeliveryBackoff(1_000, 60_000)
    seconds = [backoff.next(count) // 1000 for count in range(8)]
    assert seconds == [1, 2, 4, 8, 16, 32, 60, 60]


@repeatable
@given(
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.floats(1.01, 1e300),
    st.integers(-5, 2**31 - 1),
)
def test_delays_stay_within_their_bounds_and_never_shrink(
    shortest: int, more: int, multiplier: float, count: int
) -> None:
    backoff = MultiplierRedeliveryBackoff(shortest, shortest + more, multiplier)
    assert shortest <= backoff.next(count) <= shortest + more
    assert backoff.next(count) <= backoff.next(count + 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((-1, 10, 2.0), "min delay time must be >= 0"),
        ((10, 5, 2.0), "maxDelayMs must be >= minDelayMs"),
        ((1, 10, 1.0), "multiplier must be > 1"),
        ((1, 10, float("nan")), "multiplier must be > 1"),
    ],
)
def test_impossible_delays_are_refused(arguments: tuple[int, int, float], problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        MultiplierRedeliveryBackoff(*arguments)


def test_a_power_beyond_java_s_integers_wraps_as_it_does_there() -> None:
    backoff = MultiplierRedeliveryBackoff(1, 2**63 - 1, 1 + 1e-12)
    assert [backoff.next(count) for count in (0, 1)] == [1, 2**63 - 1]
