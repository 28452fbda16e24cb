"""Dead letters as pages: those that nobody has redriven yet, some at a time, and sending them back.

Invariants: a page reads the messages that it shows, and no others; values, keys and properties are
text for people, cut at LONGEST_TEXT; what goes back, and how, is decided by `Redrive` alone.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.broker.subscriptions.dead_letter import (
    REDRIVE_SUBSCRIPTION,
    REPUBLICATION_PROPERTIES,
)
from pulsar_spark.connector.runtime.broker.broker_heartbeat import is_alive
from pulsar_spark.connector.runtime.housekeeping.redrive import (
    DeadLetterFilter,
    Redrive,
    Redriven,
    not_redriven,
)
from pulsar_spark.connector.runtime.reading.dead_letters import dead_letters_of
from pulsar_spark.connector.runtime.reading.message_reader import read_positions
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.message_columns import IDS, READ_COLUMNS
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.dashboard.followed_queue import FollowedQueue
from pulsar_spark.errors import BrokerAbsentError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition

DEAD_LETTERS_A_PAGE: Final = 25
LONGEST_TEXT: Final = 2000
USUAL_END: Final = "-DLQ"
"""The usual end of a dead letter topic's name."""

_UTF8: Final = getincrementaldecoder("utf-8")
_COLUMNS: Final = (*IDS, "topic", "key", "value", "properties", "publish_time", "deliver_at")
_SHOWN: Final = (
    "key", "publish_time", "subscription", "origin_topic", "origin_message_id", "reason", "error",
    "attempts", "consumer_name", "traceparent",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some letters of a dead letter topic, in its order."""

    topic: str
    left: int
    """Messages of the topic that were not redriven; of letters and whatever else is there."""
    dead_letters: list[dict[str, Any]]


def dead_letter_topics_of(queue: FollowedQueue) -> list[str]:
    """Topics that are dead letter topics by their name, or by what a consumer of late says."""
    there = [str(each) for each in queue.topics()]
    named = queue.dead_letter_topics()
    return [each for each in there if each.endswith(USUAL_END) or each in named]


def dead_letter_page(queue: FollowedQueue, name: str, page: int) -> DeadLetterPage:
    """InvalidTopicNameError, TopicNotFoundError, CorruptFileError."""
    log = queue.open(name)
    skipped, requested = page * DEAD_LETTERS_A_PAGE, DEAD_LETTERS_A_PAGE
    left, rows = 0, []
    for partition in range(log.state.partitions):
        there = log.ledgers(partition)
        state = queue.state(TopicPartition(log.topic, partition))
        messages = not_redriven(log, partition, state, REDRIVE_SUBSCRIPTION)
        count = messages.count(there)
        left += count
        if skipped < count and requested:
            chosen = messages.difference(messages.prefix(skipped, there)).prefix(requested, there)
            requested -= chosen.count(there)
            rows += _read(queue.root, log, partition, chosen)
        skipped = max(skipped - count, 0)
    return DeadLetterPage(log.topic, left, rows)


def send_back(root: Root, topic: str, message_ids: Sequence[str]) -> Redriven:
    """Redrive the letters with these ids, all without any.

    BrokerAbsentError if no broker shows life; what `Redrive` raises.
    """
    if not is_alive(root):
        raise BrokerAbsentError(
            "No broker serves this root, and letters go back through one. Start one: pulsarlite "
            f"standalone --service-url {root.service_url}"
        )
    requested = DeadLetterFilter(message_ids=tuple(map(MessageId.parse, message_ids)))
    return Redrive(root, TopicName.parse(topic), requested).run()


def _read(
    root: Root, log: ManagedLedger, partition: int, messages: PositionSet
) -> list[dict[str, Any]]:
    schema = pa.schema([each.field for each in READ_COLUMNS if each.name in _COLUMNS])
    return [
        _dead_letter(row)
        for batch in read_positions(root, log, partition, messages, schema)
        for row in dead_letters_of(batch, None).to_pylist()
    ]


def _dead_letter(row: dict[str, Any]) -> dict[str, Any]:
    own = [
        (name, text)
        for name, text in row["properties"] or ()
        if name not in REPUBLICATION_PROPERTIES
    ]
    message_id = MessageId(
        row["ledger_id"], row["entry_id"], row["partition"], row["batch_index"]
    )  # fmt: skip
    return {
        **{name: row[name] for name in _SHOWN},
        "error": shown(row["error"] or ""),
        "key": shown(row["key"] or ""),
        "id": str(message_id),
        "value": shown(row["value"]),
        "properties": [(shown(name), shown(text)) for name, text in own],
    }


def shown(value: bytes | str | None) -> str:
    """A value as text for a person: bytes that are none as hexadecimal digits.

    >>> shown(b"plain"), shown(b"\\xff\\x00"), shown(None)
    ('plain', '0xff00', '')
    """
    if value is None:
        return ""
    head, is_cut = value[:LONGEST_TEXT], len(value) > LONGEST_TEXT
    text = head if isinstance(head, str) else _decoded(head, is_cut=is_cut)
    return f"{text}… ({len(value):,} in all)" if is_cut else text


def _decoded(head: bytes, *, is_cut: bool) -> str:
    try:
        return _UTF8().decode(head, final=not is_cut)  # without half a character at a cut
    except UnicodeDecodeError:
        return f"0x{head.hex()}"
