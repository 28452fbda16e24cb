"""`eventually` itself."""

from __future__ import annotations

import pytest

from tests.waiting import eventually


def test_eventually_returns_the_first_true_value() -> None:
    values = iter([0, None, "there"])
    assert eventually(lambda: next(values)) == "there"


def test_an_assertion_that_fails_counts_as_not_yet() -> None:
    tries: list[int] = []

    def third_time_lucky() -> bool:
        tries.append(1)
        assert len(tries) == 3
        return True

    assert eventually(third_time_lucky)


def test_at_the_deadline_it_says_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"after 0\.05 s, still not so: the moon is full"):
        eventually(lambda: False, deadline_s=0.05, what="the moon is full")
