"""A finding: what was looked at, whether it is well, and what to do if it is not.

Invariant: a check that fails in a way that nobody thought of is a finding too, and the others go
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple


class State(str, Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """`remedy` says what to do, where it is not well."""

    state: State
    about: str
    text: str
    remedy: str = ""


def well(about: str, text: str) -> Finding:
    return Finding(State.OK, about, text)


def warning(about: str, text: str, remedy: str) -> Finding:
    return Finding(State.WARNING, about, text, remedy)


def problem(about: str, text: str, remedy: str) -> Finding:
    return Finding(State.PROBLEM, about, text, remedy)


def guarded(about: str, check: Callable[[], Iterator[Finding]], remedy: str) -> Iterator[Finding]:
    """The findings of a check; what it raises is one too."""
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the doctor was asked for
        text = str(error) or type(error).__name__
        yield problem(about, text.partition("\n")[0], remedy)
