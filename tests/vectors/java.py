"""What Pulsar recorded beside what it does, and nobody here calls: worked out by Java's rules."""

from __future__ import annotations

from pulsar_spark.errors import InvalidTopicNameError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.topic_name import (
    DEFAULT_NAMESPACE,
    NON_PERSISTENT,
    PERSISTENT,
    PUBLIC_TENANT,
    NamespaceName,
)

REPLACEMENT = 0xFFFD
NO_BREAK_SPACES = "\u0085\u00a0\u2007\u202f"
V1_NAME = (
    "V1 topic names (with cluster component) are no longer supported. Please use the V2 "
    "format: '<domain>://tenant/namespace/topic'. Got: "
)


def hash_code(message_id: MessageId) -> int:
    """`hashCode()` of an id; that of a chunked id counts its first chunk too."""
    ledger_id, entry_id, partition, batch_index = message_id.order
    number = 31 * (ledger_id + 31 * entry_id) + 31 * partition + batch_index
    if message_id.first_chunk is not None:
        number = 31 * (31 + _int32(number)) + hash_code(message_id.first_chunk)
    return _int32(number)


def _int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def to_full_topic_name(text: str) -> str:
    """`TopicNameUtils.toFullTopicName`: stricter than `TopicName.parse`, which forgives."""
    if "://" in text:
        domain, rest = text.split("://", 1)
        if domain.lower() not in (PERSISTENT, NON_PERSISTENT):
            raise InvalidTopicNameError(f"Invalid topic domain: '{domain}'")
        parts = _split_by_slash(rest, 4)
        if len(parts) == 4:
            raise InvalidTopicNameError(V1_NAME + text)
        if len(parts) != 3:
            raise InvalidTopicNameError(
                f"{text} is invalid. Expected format: '<domain>://tenant/namespace/topic'"
            )
        full = text
    else:
        parts = _split_by_slash(text)
        if len(parts) not in (1, 3):
            raise InvalidTopicNameError(f"{text} is invalid")
        full = f"{PERSISTENT}://" + (
            text if len(parts) == 3 else f"{PUBLIC_TENANT}/{DEFAULT_NAMESPACE}/{text}"
        )
    if len(parts) == 3:
        NamespaceName(parts[0], parts[1])
    if is_blank(parts[-1]):
        raise InvalidTopicNameError(f"{text} has blank local topic")
    return full


def is_blank(text: str) -> bool:
    return all(mark.isspace() and mark not in NO_BREAK_SPACES for mark in text)


def _split_by_slash(text: str, limit: int = 0) -> list[str]:
    """Parts between slashes; only the last may be empty, and not when the limit cuts it."""
    parts = text.split("/", limit - 1 if limit else -1)
    if any(not part for part in parts[:-1]) or (len(parts) == limit and not parts[-1]):
        raise InvalidTopicNameError(f"Invalid topic name {text}")
    return parts


def decode_utf8(data: bytes) -> str:
    """`new String(data, UTF_8)`: malformed bytes become U+FFFD, counted as Java counts them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        marks, at = [], 0
        while at < len(data):
            mark, size = _next_mark(data, at)
            marks.append(chr(mark))
            at += size
        return "".join(marks)


def _next_mark(data: bytes, at: int) -> tuple[int, int]:
    """(code point, bytes taken). What is malformed is taken as Java's decoder takes it."""
    first = data[at]
    if first < 0x80:
        return first, 1
    size = 2 if 0xC2 <= first <= 0xDF else 3 if first >> 4 == 0xE else 4
    if first < 0xC2 or first > 0xF7:
        return REPLACEMENT, 1
    tail = data[at + 1 : at + size]
    good = 0
    while good < len(tail) and tail[good] >> 6 == 0b10:
        good += 1
    if tail and not _may_follow(first, tail[0]):
        good = 0
    if good == size - 1:
        point = first & (0x7F >> size)
        for byte in tail:
            point = point << 6 | byte & 0x3F
        return (REPLACEMENT if 0xD800 <= point <= 0xDFFF else point), size
    if first > 0xF4:
        return REPLACEMENT, 1
    return REPLACEMENT, good + 1


def _may_follow(first: int, second: int) -> bool:
    if first == 0xE0:
        return second >= 0xA0
    if first == 0xF0:
        return 0x90 <= second <= 0xBF
    if first >= 0xF4:
        return first == 0xF4 and second < 0x90
    return True
