"""How the text of an option becomes a value: each reads one kind, and raises ValueError otherwise.

Invariants: what is read depends on the text alone, and has a bound below which every sum of a few
fits where it is stored; the error's text, if it has one, says what is expected. Durations and times
are in milliseconds. Follows Kafka's `ConfigDef.Type`.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.protocol.redelivery_backoff import MultiplierRedeliveryBackoff
from pulsar_spark.records.stored_data import parse_json
from pulsar_spark.topic_name import TopicName, TopicPartition

MOST_COUNT: Final = (1 << 63) - 1
"""The highest of Java's longs, which stands for «no limit» in many configurations."""
MOST_TEXT: Final = 1 << 20
"""Characters of an option; the definition of a schema is the longest there is."""
MOST_BYTES: Final = 1 << 50
MOST_DURATION_MS: Final = 100 * 366 * 86_400_000
"""A hundred years."""
FIRST_TIME_MS: Final = -62_135_596_800_000
LAST_TIME_MS: Final = 253_402_300_799_999
"""From year 1 to year 9999, as ISO 8601 and Python have them."""


def text(value: str) -> str:
    """Anything but blanks, of up to MOST_TEXT characters that are all some of Unicode's."""
    if not value.strip() or len(value) > MOST_TEXT:
        raise ValueError
    value.encode()  # a lone surrogate is a ValueError
    return value


def boolean(value: str) -> bool:
    """`true` or `false`, in any case."""
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise ValueError
    return known[value.strip().lower()]


def count(least: int, most: int = MOST_COUNT) -> Callable[[str], int]:
    """Reads a whole number between these, both included."""

    def parse(value: str) -> int:
        return _within(int(value), least, most)

    return parse


def size_bytes(value: str) -> int:
    """`131072`, `128k`, `5m`, `1g`: bytes."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", value.lower())
    if not found:
        raise ValueError
    return _within(int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]], 1, MOST_BYTES)


def parse_duration_ms(value: str) -> int:
    """`500ms`, `30s`, `5m`, `1h`, `2d`, or a number of milliseconds; else ValueError."""
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d|)\s*", value.lower())
    if not found:
        raise ValueError
    unit_ms = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return _within(int(found[1]) * unit_ms[found[2]], 0, MOST_DURATION_MS)


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
        return _within(int(value), FIRST_TIME_MS, LAST_TIME_MS)
    moment = dt.datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return _within(round(moment.timestamp() * 1000), FIRST_TIME_MS, LAST_TIME_MS)


def message_ids(*words: str) -> Callable[[str], str | Mapping[TopicPartition, str]]:
    """Reads one of these words, or JSON of ids by topic and partition with words among them."""

    def parse(value: str) -> str | Mapping[TopicPartition, str]:
        if text(value).strip().lower() in words:
            return value.strip().lower()
        try:
            ids = {
                TopicPartition(str(TopicName.parse(topic)), int(partition)): str(given)
                for topic, partitions in parse_json(value).items()
                for partition, given in partitions.items()
            }
        except (AttributeError, TypeError):
            raise ValueError("it is no JSON object of objects") from None
        for about, given in ids.items():
            if given not in words:
                message_id = MessageId.parse(given)
                if message_id.partition not in (-1, about.partition):
                    raise ValueError(f"{given} is an id of partition {message_id.partition}")
        return ids

    return parse


start_positions: Final = message_ids("earliest", "latest")
end_positions: Final = message_ids("latest")


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
    except (re.error, OverflowError, RecursionError) as error:
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
    times = float(factor[0]) if factor else 2.0
    if len(factor) > 1 or not math.isfinite(times):
        raise ValueError
    return MultiplierRedeliveryBackoff(
        parse_duration_ms(shortest), parse_duration_ms(longest), times
    )


def _within(number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ValueError
    return number
