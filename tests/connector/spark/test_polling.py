"""How often sources and the broker look for news."""

from __future__ import annotations

import pytest

from pulsar_spark.connector.spark.polling import MOST_PAUSE_S, REMOTE_PAUSE_S, pause_s


@pytest.mark.parametrize(
    ("quiet_s", "pause"), [(0, 0.01), (0.05, 0.01), (1, 0.1), (2, 0.2), (60, MOST_PAUSE_S)]
)
def test_the_longer_it_is_quiet_the_longer_the_pause(quiet_s: float, pause: float) -> None:
    assert pause_s(quiet_s, remote=False) == pytest.approx(pause)


@pytest.mark.parametrize("quiet_s", [0, 60])
def test_an_object_store_is_not_asked_more_often_than_that(quiet_s: float) -> None:
    assert pause_s(quiet_s, remote=True) == REMOTE_PAUSE_S


def test_a_whole_minute_of_quiet_takes_few_looks() -> None:
    now_s = looks = 0.0
    while now_s < 60:
        now_s += pause_s(now_s, remote=False)
        looks += 1
    assert looks < 300
