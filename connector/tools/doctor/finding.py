"""A finding: what was looked at, whether it is well, and what to do if it is not.

Invariant: a check that fails in a way that nobody thought of is a finding too, and the others go
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from pulsar_spark.errors import StorageRefusedError, StorageUnavailableError


class State(str, Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """`remedy` says what to do, where it is not well, and `text` does not."""

    state: State
    subject: str
    text: str
    remedy: str = ""


def well(subject: str, text: str) -> Finding:
    return Finding(State.OK, subject, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    return Finding(State.WARNING, subject, text, remedy)


def problem(subject: str, text: str, remedy: str) -> Finding:
    return Finding(State.PROBLEM, subject, text, remedy)


def guarded(subject: str, check: Callable[[], Iterator[Finding]], remedy: str) -> Iterator[Finding]:
    """The findings of a check; what it raises is one too."""
    try:
        yield from check()
    except (StorageRefusedError, StorageUnavailableError) as error:  # it says what to set
        yield problem(subject, error.message, "")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the doctor was asked for
        text = str(error) or type(error).__name__
        yield problem(subject, text.partition("\n")[0], remedy)
