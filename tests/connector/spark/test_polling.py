"""How often sources and the broker look for news."""

from __future__ import annotations

import pytest

from pulsar_spark.connector.storage.polling import (
    MOST_PAUSE_S,
    REMOTE_LEAST_PAUSE_S,
    REMOTE_MOST_PAUSE_S,
    pause_s,
)


@pytest.mark.parametrize(
    ("quiet_s", "pause"), [(0, 0.01), (0.05, 0.01), (1, 0.1), (2, 0.2), (60, MOST_PAUSE_S)]
)
def test_the_longer_it_is_quiet_the_longer_the_pause(quiet_s: float, pause: float) -> None:
    assert pause_s(quiet_s, remote=False) == pytest.approx(pause)


@pytest.mark.parametrize(
    ("quiet_s", "pause"),
    [(0, REMOTE_LEAST_PAUSE_S), (5, 0.5), (60, 6), (1000, REMOTE_MOST_PAUSE_S)],
)
def test_an_object_store_is_asked_rarely_when_it_is_quiet(quiet_s: float, pause: float) -> None:
    assert pause_s(quiet_s, remote=True) == pytest.approx(pause)


def test_a_whole_minute_of_quiet_takes_few_looks() -> None:
    now_s = looks = 0.0
    while now_s < 60:
        now_s += pause_s(now_s, remote=False)
        looks += 1
    assert looks < 300
