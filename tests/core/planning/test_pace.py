"""A micro-batch where others share: as long as two seconds' work, or twice a trigger's interval."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.consumer.admission import BATCH_S, FEWEST, GROWTH, MOST, Pace

Costs = Callable[[int], float]
"""Messages -> seconds of a micro-batch."""


def sizes(costs: Costs, batches: int) -> list[int]:
    """Of so many micro-batches, all of them full."""
    pace, found = Pace(), []
    for _ in range(batches):
        found.append(pace.size)
        pace.took(pace.size, costs(pace.size))
    return found


@pytest.mark.parametrize(
    ("costs", "batches", "settled"),
    [
        (lambda n: 0.25 + n * 1e-6, 5, MOST),
        (lambda n: 0.25 + n * 1e-4, 4, 17_500),
        (lambda n: 0.25 + n * 1e-2, 4, FEWEST),
        (lambda n: max(10.0, 0.25 + n * 1e-5), 6, MOST),  # a trigger of ten seconds
    ],
    ids=["fast work", "slower work", "slow work", "a trigger's interval"],
)
def test_it_settles_within_some_micro_batches(costs: Costs, batches: int, settled: int) -> None:
    found = sizes(costs, batches + 5)
    assert found[0] == FEWEST
    assert [round(each, -2) for each in found[batches:]] == [settled] * 5


def test_slow_work_is_never_held_for_long_by_one_consumer() -> None:
    assert max(sizes(lambda n: n * 1e-2, 20)) <= 2 * FEWEST


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=30))
def test_whatever_is_measured_it_stays_within_bounds(reported: list[tuple[float, bool]]) -> None:
    pace = Pace()
    for seconds, is_full in reported:
        before = pace.size
        pace.took(before - (not is_full), seconds)
        assert FEWEST <= pace.size <= min(MOST, GROWTH * before)
        assert pace.size < pace.queue <= (1 + GROWTH) * pace.size
        if not is_full:
            assert pace.size == before, "what is left over teaches nothing"


def test_it_has_at_least_what_a_micro_batch_waits_for() -> None:
    pace = Pace(5_000)
    pace.took(5_000, 600.0)
    pace.took(pace.size, 1_200.0)
    assert pace.size >= 5_000
    assert BATCH_S < 600
