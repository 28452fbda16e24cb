"""The parsers of option values: one for each kind of value.

Invariants: what is read depends on the text alone, and has a bound below which every sum of a few
fits where it is stored; an error of Pulsarlite's own says what is wrong with the value. Durations
and times are in milliseconds. Follows Kafka's `ConfigDef.Type`.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pulsar_spark.broker.protocol.policies import MultiplierRedeliveryBackoff
from pulsar_spark.broker.selectors.sticky_key_selector import HashRange, check_sticky_ranges
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.records.stored_data import parse_json
from pulsar_spark.model.topic_name import TopicName, TopicPartition, check_subscription_name

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

Delay = dt.timedelta | int | str
"""An int counts milliseconds; a text is a duration such as `30s`."""


class AsOf(NamedTuple):
    """A moment of the broker: one of its batches by number, or else an instant."""

    batch: int | None
    time_ms: int | None = None


class Kind(NamedTuple):
    """`parse` raises ValueError for a text that is not as `expects` says."""

    parse: Callable[[str], Any]
    expects: str


def _text(value: str) -> str:
    """Anything but blanks, of up to MOST_TEXT characters that are all some of Unicode's."""
    if not value.strip() or len(value) > MOST_TEXT:
        raise ValueError
    value.encode()  # a lone surrogate is a ValueError
    return value


def _size_bytes(value: str, least: int = 1) -> int:
    """`131072`, `128k`, `5m`, `1g`: bytes."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", value.lower())
    if not found:
        raise ValueError
    return _within(int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]], least, MOST_BYTES)


def parse_duration_ms(value: str) -> int:
    """`500ms`, `30s`, `5m`, `1h`, `2d`, or a number of milliseconds; else ValueError."""
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d|)\s*", value.lower())
    if not found:
        raise ValueError
    unit_ms = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return _within(int(found[1]) * unit_ms[found[2]], 0, MOST_DURATION_MS)


def milliseconds_of(delay: Delay) -> int:
    """Milliseconds of a delay in a user's code; InvalidOptionError if it is none."""
    try:
        if isinstance(delay, dt.timedelta):
            return _within(round(delay.total_seconds() * 1000), 0, MOST_DURATION_MS)
        if isinstance(delay, str):
            return parse_duration_ms(delay)
        return _within(round(delay), 0, MOST_DURATION_MS)
    except (ValueError, TypeError, OverflowError):
        raise InvalidOptionError(
            f"A delay can't be {delay!r}: it is a timedelta, a number of milliseconds, or a text "
            "such as 500ms, 30s or 5m, from 0 to 100 years."
        ) from None


def parse_time_ms(value: str) -> int:
    """Milliseconds since 1970, or ISO 8601 (UTC without a zone); else ValueError."""
    if value.strip().lstrip("-").isdecimal():
        return _within(int(value), FIRST_TIME_MS, LAST_TIME_MS)
    moment = dt.datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return _within(round(moment.timestamp() * 1000), FIRST_TIME_MS, LAST_TIME_MS)


def time_text(time_ms: int) -> str:
    """The instant as `parse_time_ms` takes it: `2026-01-31T12:00:00.000Z`."""
    moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_of(value: str) -> AsOf:
    if value.strip().isdecimal():
        return AsOf(_within(int(value), 0, MOST_COUNT))
    return AsOf(None, parse_time_ms(value))


def _topic_names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ValueError
    return names


def message_ids(*words: str) -> Kind:
    """One of these words, or JSON of message ids by topic and partition with words among them."""

    def parse(value: str) -> str | Mapping[TopicPartition, str]:
        if _text(value).strip().lower() in words:
            return value.strip().lower()
        try:
            ids = {
                TopicPartition(str(TopicName.parse(topic)), int(partition)): str(given)
                for topic, partitions in _object(parse_json(value)).items()
                for partition, given in _object(partitions).items()
            }
            for topic_partition, given in ids.items():
                number = -1 if given in words else MessageId.parse(given).partition
                if number not in (-1, topic_partition.partition):
                    raise InvalidOptionError(f"{given} is an id of partition {number}")
        except ValueError as error:
            raise InvalidOptionError(getattr(error, "message", str(error))) from error
        return ids

    return Kind(parse, f"{', '.join(words)}, or JSON of message ids by topic and partition")


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidOptionError(f"{json.dumps(value)} is no JSON object, such as {{}}")
    return value


def _message_id(value: str) -> MessageId:
    found = MessageId.parse(value)
    _within(found.partition, -1, MOST_COUNT)
    return found


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidOptionError(str(error)) from error
    return _text(value)


def _import_path(value: str) -> str:
    if not re.fullmatch(r"\s*\w+(\.\w+)*:\w+(\.\w+)*\s*", value):
        raise ValueError
    return value.strip()


def _subscription_name(value: str) -> str:
    check_subscription_name(value)
    return _text(value)


def _hash_ranges(value: str) -> tuple[HashRange, ...]:
    """`0-20000,30000-40000`: ranges of slots, both ends included."""
    pairs = (part.split("-") for part in value.split(","))
    ranges = tuple(HashRange(int(low), int(high)) for low, high in pairs)
    check_sticky_ranges(ranges)
    return ranges


def _backoff(value: str) -> MultiplierRedeliveryBackoff:
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


def text(expects: str) -> Kind:
    """Any text that is not blank."""
    return Kind(_text, expects)


def count(least: int, most: int = MOST_COUNT) -> Kind:
    """A whole number between these, both included."""
    bounds = f"{least} or more" if most == MOST_COUNT else f"{least} to {most}"
    return Kind(lambda value: _within(int(value), least, most), f"a whole number, {bounds}")


def duration(most_ms: int, most: str) -> Kind:
    """A duration up to that."""
    return Kind(
        lambda value: _within(parse_duration_ms(value), 0, most_ms),
        f"{DURATION.expects}, at most {most}",
    )


def one_of(*names: str) -> Kind:
    """One of these words, in any case, as it is written here."""
    known = {name.lower(): name for name in names}

    def parse(value: str) -> str:
        if value.strip().lower() not in known:
            raise ValueError
        return known[value.strip().lower()]

    return Kind(parse, " or ".join(filter(None, (", ".join(names[:-1]), names[-1]))))


_TRUTH: Final = one_of("true", "false")
BOOLEAN: Final = Kind(lambda value: _TRUTH.parse(value) == "true", _TRUTH.expects)
BYTES: Final = Kind(_size_bytes, "a number of bytes, such as 131072, 128k or 5m")
BYTES_OR_NONE: Final = Kind(
    lambda value: _size_bytes(value, least=0), "a number of bytes, such as 32768 or 32k, or 0"
)
DURATION: Final = Kind(
    parse_duration_ms,
    "a duration, such as 500ms, 30s, 5m or 1h (a number alone counts milliseconds)",
)
TIME: Final = Kind(
    parse_time_ms, "milliseconds since 1970, or a date and time such as 2026-01-31T12:00:00Z"
)
AS_OF: Final = Kind(
    _as_of, "a date and time such as 2026-01-31T12:00:00Z, or the number of a batch of the broker"
)
TOPIC_NAMES: Final = Kind(_topic_names, "topic names, separated by commas")
PATTERN: Final = Kind(_pattern, "a regular expression")
IMPORT_PATH: Final = Kind(_import_path, "package.module:function")
SUBSCRIPTION_NAME: Final = Kind(_subscription_name, "a name")
MESSAGE_ID: Final = Kind(_message_id, "a message id, such as 7:12:0:3")
HASH_RANGES: Final = Kind(_hash_ranges, "ranges, such as 0-999,2000-65535")
BACKOFF: Final = Kind(_backoff, "shortest and longest delay and a factor, such as 1s,60s,2")
