"""Dead letters: where they lie, and what their properties say.

Invariants: a letter is known by its property REAL_TOPIC, and a dead one has no delivery time, which
copies in retry letter topics have; what is asked of it is in its properties, and null if it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.broker.subscriptions.dead_letter import (
    DEAD_LETTER_ATTEMPTS,
    DEAD_LETTER_CONSUMER,
    DEAD_LETTER_REASON,
    ERROR,
    ORIGIN_MESSAGE_ID,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
)
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger

NEEDED: Final = ("topic", "properties", "deliver_at")
"""Columns of a message from which all of a letter's follow."""
TRACEPARENT: Final = "traceparent"
"""The property in which a W3C trace context travels."""
_TEXTS: Final = {
    "subscription": REAL_SUBSCRIPTION,
    "origin_topic": REAL_TOPIC,
    "origin_message_id": ORIGIN_MESSAGE_ID,
    "reason": DEAD_LETTER_REASON,
    "error": ERROR,
    "consumer_name": DEAD_LETTER_CONSUMER,
    "traceparent": TRACEPARENT,
}
_NUMBERS: Final = {"attempts": DEAD_LETTER_ATTEMPTS, "reconsume_times": RECONSUMETIMES}


def may_have_dead_letters(log: ManagedLedger) -> bool:
    """True if a broker made the topic for letters, or it has a dead letter topic's usual name."""
    policies = log.state.settings.get("policies", {})
    return bool(policies.get("keep_without_subscription")) or log.topic.endswith("-DLQ")


def dead_letters_of(batch: pa.RecordBatch, topics: frozenset[str] | None) -> pa.RecordBatch:
    """The dead letters among these messages, with what they say; if `topics`, theirs alone."""
    real = _property(batch, REAL_TOPIC)
    chosen = pc.and_(pc.is_valid(real), pc.is_null(batch.column("deliver_at")))
    if topics is not None:
        names = pa.array(sorted(topics), pa.string())
        of_origin = pc.is_in(real, value_set=names)
        chosen = pc.and_(chosen, pc.or_(of_origin, pc.is_in(batch.column("topic"), names)))
    dead_letters = batch.filter(chosen)
    texts: Mapping[str, pa.Array] = {
        name: _property(dead_letters, key) for name, key in _TEXTS.items()
    }
    numbers = {name: _number(dead_letters, key) for name, key in _NUMBERS.items()}
    for name, column in {**texts, **numbers}.items():
        dead_letters = dead_letters.append_column(name, column)
    return dead_letters


def _number(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A property as a whole number; null where it is none."""
    texts = _property(batch, name)
    is_number = pc.match_substring_regex(texts, r"^\d{1,9}$")
    return pc.if_else(is_number, texts, None).cast(pa.int32())


def _property(batch: pa.RecordBatch, name: str) -> pa.Array:
    return pc.map_lookup(batch.column("properties"), pa.scalar(name), "first")
