"""Conditions with deadlines: what a test does instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.02


def eventually(condition: Callable[[], T], deadline_s: float = 120.0, what: str = "") -> T:
    """The first true value of `condition`, asked again and again; AssertionError at the deadline.

    An AssertionError inside `condition` counts as «not yet», and is shown if it stays.
    """
    end = time.monotonic() + deadline_s
    while True:
        failure: AssertionError | None = None
        value: T | None = None
        try:
            value = condition()
        except AssertionError as error:
            failure = error
        if value:
            return value
        if time.monotonic() >= end:
            name = what or getattr(condition, "__name__", "the condition")
            message = f"after {deadline_s:g} s, still not so: {name} (last value: {value!r})"
            raise AssertionError(message) from failure
        time.sleep(POLL_SECONDS)
