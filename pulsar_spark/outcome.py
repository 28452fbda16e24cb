"""What became of a message that a function was given: acknowledged, again later, or a dead letter.

Invariants: a value, which pickles; an error's text has a bound. `RetryLater` and `Reject` are
signals that a function raises; whatever else it raises is an ordinary failure, a negative
acknowledgement. They stand where a Pulsar application calls `reconsumeLater` or its own dead
letter producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pulsar_spark.options import parse_duration_ms

LONGEST_ERROR: Final = 1_000
"""Characters of an error's text that are kept."""

INDIVIDUAL: Final = "Individual"
NEGATIVE: Final = "Negative"
DEAD_LETTER: Final = "DeadLetter"

Delay = timedelta | int | str
"""An int counts milliseconds; a text is a duration such as `30s`."""


class RetryLater(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a function: give it this message again, after the delay or the consumer's own."""

    def __init__(self, delay: Delay | None = None, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay_ms = None if delay is None else milliseconds(delay)
        self.reason = reason


class Reject(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a function: this message can never be processed. A dead letter at once.

    Without a dead letter policy of the consumer it is an ordinary failure.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one message. `result` is what the function returned."""

    ack_type: str = INDIVIDUAL
    delay_ms: int | None = None
    error: str | None = None
    result: Any = None

    @staticmethod
    def of_error(error: BaseException) -> Outcome:
        """What a function's error means.

        >>> Outcome.of_error(ValueError("no number"))
        Outcome(ack_type='Negative', delay_ms=None, error='ValueError: no number', result=None)
        """
        if isinstance(error, RetryLater):
            return Outcome(NEGATIVE, error.delay_ms, error.reason[:LONGEST_ERROR] or None)
        if isinstance(error, Reject):
            return Outcome(DEAD_LETTER, None, error.reason[:LONGEST_ERROR] or None)
        try:
            text = str(error)
        except Exception as second:  # noqa: BLE001 - it is the user's class
            text = f"its text can't be had: {type(second).__name__}"
        name = type(error).__name__
        return Outcome.failed(f"{name}: {text}" if text else name)

    @staticmethod
    def failed(text: str) -> Outcome:
        return Outcome(NEGATIVE, None, text[:LONGEST_ERROR])


def milliseconds(delay: Delay) -> int:
    """ValueError if it is no delay, or below 0.

    >>> milliseconds("5s"), milliseconds(20), milliseconds(timedelta(minutes=1))
    (5000, 20, 60000)
    """
    if isinstance(delay, timedelta):
        value = round(delay.total_seconds() * 1000)
    elif isinstance(delay, str):
        try:
            value = parse_duration_ms(delay)
        except ValueError:
            value = -1
    else:
        value = delay
    if value < 0:
        raise ValueError(
            f"A delay can't be {delay!r}: it is a timedelta, a number of milliseconds, or a text "
            "such as 500ms, 30s or 5m, and not below 0."
        )
    return value
