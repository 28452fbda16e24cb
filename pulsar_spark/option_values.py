"""How the text of an option becomes a value: each reads one kind, and raises ValueError otherwise.

Invariants: what is read depends on the text alone; the error's text, if it has one, says what is
expected. Durations and times are in milliseconds. Follows Kafka's `ConfigDef.Type`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable

from pulsar_spark.redelivery_backoff import MultiplierRedeliveryBackoff


def text(value: str) -> str:
    """Anything but blanks."""
    if not value.strip():
        raise ValueError
    return value


def boolean(value: str) -> bool:
    """`true` or `false`, in any case."""
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise ValueError
    return known[value.strip().lower()]


def count(least: int) -> Callable[[str], int]:
    """Reads a whole number, at least so large."""

    def parse(value: str) -> int:
        number = int(value)
        if number < least:
            raise ValueError
        return number

    return parse


def size_bytes(value: str) -> int:
    """`131072`, `128k`, `5m`, `1g`: bytes."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", value.lower())
    if not found or not int(found[1]):
        raise ValueError
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]


def parse_duration_ms(value: str) -> int:
    """`500ms`, `30s`, `5m`, `1h`, `2d`, or a number of milliseconds; else ValueError."""
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d|)\s*", value.lower())
    if not found:
        raise ValueError
    unit_ms = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(found[1]) * unit_ms[found[2]]


def duration_ms(most: int) -> Callable[[str], int]:
    """Reads a duration of at most so many milliseconds."""

    def parse(value: str) -> int:
        length_ms = parse_duration_ms(value)
        if length_ms > most:
            raise ValueError
        return length_ms

    return parse


def parse_time_ms(value: str) -> int:
    """Milliseconds since 1970, or ISO 8601 (UTC without a zone); else ValueError."""
    if value.strip().lstrip("-").isdecimal():
        return int(value)
    moment = dt.datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return round(moment.timestamp() * 1000)


def topic_names(value: str) -> tuple[str, ...]:
    """Names between commas."""
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ValueError
    return names


def pattern(value: str) -> str:
    """A regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(str(error)) from error
    return text(value)


def import_path(value: str) -> str:
    """`package.module:name`."""
    if not re.fullmatch(r"\s*\w+(\.\w+)*:\w+(\.\w+)*\s*", value):
        raise ValueError
    return value.strip()


def one_of(*names: str) -> Callable[[str], str]:
    """Reads one of these words, in any case, as it is written here."""

    def parse(value: str) -> str:
        for name in names:
            if value.strip().lower() == name.lower():
                return name
        raise ValueError

    return parse


def hash_ranges(value: str) -> tuple[tuple[int, int], ...]:
    """`0-20000,30000-40000`: ranges of slots, both ends included."""
    found = []
    for part in value.split(","):
        low, dash, high = part.strip().partition("-")
        if not dash or int(low) > int(high):
            raise ValueError
        found.append((int(low), int(high)))
    return tuple(found)


def backoff(value: str) -> MultiplierRedeliveryBackoff:
    """`1s,60s` or `1s,60s,2`: shortest and longest delay, and the factor between."""
    shortest, longest, *factor = (part.strip() for part in value.split(","))
    if len(factor) > 1:
        raise ValueError
    return MultiplierRedeliveryBackoff(
        parse_duration_ms(shortest), parse_duration_ms(longest), float(factor[0]) if factor else 2.0
    )
