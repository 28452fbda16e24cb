"""A producer in this process: it gathers messages, and publishes them as a sink does.

Invariants: what waits is published in its order, as one commit, and waits on if that fails; a
message that can't be one is refused when it is sent, and changes nothing; sequence ids go on behind
the last that the topic knows of this producer. Entries, routing, chunks, delays and duplicates are
the sink's (`message_writer`, `publishing`). Follows Pulsar's `ProducerImpl`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.connector.client.delayed_flush import DelayedFlush
from pulsar_spark.connector.sink.message_writer import write_messages
from pulsar_spark.connector.sink.outgoing_messages import as_messages
from pulsar_spark.connector.sink.publishing import publish
from pulsar_spark.connector.topic_log.producer_connection import claim_of, connect, disconnect
from pulsar_spark.connector.topic_log.topics import Root, options_of
from pulsar_spark.errors import InvalidMessageError, ProducerBusyError, PulsarliteError
from pulsar_spark.options.options import Options, Scope
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.topic_log.ledger_commit import Commit
from pulsar_spark.topic_log.publication import AlreadyCommitted
from pulsar_spark.topic_name import TopicName, check_user_topic

MOST_WAITING: Final = 1000
"""Messages that are published at once, however short they have waited (Pulsar's default)."""
MOST_WAITING_BYTES: Final = 64 << 20
"""Bytes that wait at most, but for a single message of more (Pulsar's default `memoryLimit`)."""
_COLUMNS: Final = pa.schema(
    [
        ("value", pa.binary()), ("key", pa.string()), ("ordering_key", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())), ("sequence_id", pa.int64()),
        ("event_time", pa.timestamp("us", "UTC")), ("deliver_at", pa.timestamp("us", "UTC")),
        ("deliver_after", pa.duration("us")),
    ]
)  # fmt: skip


class MessageProducer(AbstractContextManager["MessageProducer"]):
    """One producer of one topic. Also a context manager, which closes it at its end."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        publish_delay_ms: int = 0,
        memory_limit_bytes: int = MOST_WAITING_BYTES,
    ) -> None:
        """Connects in its `accessMode`; the topic is made if it does not exist.

        `options` are those of a sink with a `topic`. Messages wait for `publish_delay_ms`, or until
        `memory_limit_bytes` of them do, so that others share their commit. ProducerFencedError or
        ProducerBusyError if the topic is another's, InvalidOptionError if an option is wrong.
        """
        given = {"producerName": f"producer-{uuid.uuid4().hex[:10]}", **options}
        self.options: Options = options_of(given, Scope.STREAM_WRITE)
        self.root = Root.of(self.options)
        self.name: str = self.options["producerName"]
        self._delay_ms = publish_delay_ms
        topic = check_user_topic(TopicName.parse(self.options["topic"]), "written")
        self._ledger = self.root.open_or_create(topic, self.options["numPartitions"])
        self._claim = claim_of(self.options, self.name, uuid.uuid4().hex)
        if self._claim is not None:
            connect(self._ledger, self._claim)
        known = (
            self._ledger.state.highest_sequence_id(number, self.name)
            for number in range(self._ledger.state.partitions)
        )
        self._next_sequence_id = 1 + max((each for each in known if each is not None), default=-1)
        self._waiting: list[dict[str, Any]] = []
        self._waiting_bytes, self._most_bytes = 0, memory_limit_bytes
        self._lock = threading.RLock()
        self._flushing = DelayedFlush(
            self.root.clock, publish_delay_ms, self._lock, self.flush, f"producer {self.name}"
        )
        self._is_closed = False

    def send(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        sequence_id: int | None = None,
        event_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: timedelta | None = None,
    ) -> int:
        """Publish a message, now or with others that wait; its sequence id.

        InvalidMessageError if it can't be one; of the others nothing is lost. What can't be
        published later on, as the store does not answer, waits, and is tried again.
        """
        with self._lock:
            if self._is_closed:
                raise ProducerBusyError(f"Producer {self.name} is closed: make another.")
            number = self._next_sequence_id if sequence_id is None else sequence_id
            message = {
                "value": value, "key": key, "ordering_key": ordering_key,
                "properties": None if properties is None else list(properties.items()),
                "sequence_id": number, "event_time": event_time, "deliver_at": deliver_at,
                "deliver_after": deliver_after,
            }  # fmt: skip
            now_ms = self.root.clock.wall_ms()
            row = _checked(message)
            as_messages(row, self.options, self.options["topic"], now_ms)
            if self._is_full(row.nbytes):
                self.flush()
            self._next_sequence_id = max(self._next_sequence_id, number + 1)
            if not self._delay_ms:
                self._publish([message])
                return number
            self._waiting.append(message)
            self._waiting_bytes += row.nbytes
            self._flushing.begin()
            if self._is_full():
                with suppress(PulsarliteError, OSError):  # it waits on, and is tried again
                    self.flush()
            return number

    def flush(self) -> list[MessageId]:
        """Publish what waits; the ids that it got, partition by partition, as they are stored.

        If that fails all of it waits on.
        """
        with self._lock:
            if not self._waiting:
                return []
            done = self._publish(self._waiting)
            self._waiting, self._waiting_bytes = [], 0
        return [each for commit in done if isinstance(commit, Commit) for each in _ids(commit)]

    def close(self) -> None:
        """Publish what waits, and go: others may have the topic."""
        self.flush()
        self._flushing.stop()
        with self._lock:
            if not self._is_closed and self._claim is not None:
                disconnect(self._ledger, self._claim)
            self._is_closed = True

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_full(self, more: int = 0) -> bool:
        """Whether messages of `more` bytes have no room beside what waits."""
        return len(self._waiting) >= MOST_WAITING or self._waiting_bytes + more > self._most_bytes

    def _publish(self, messages: Sequence[Mapping[str, Any]]) -> list[Commit | AlreadyCommitted]:
        written = write_messages([_batch(messages)], self.options, self.root)
        return publish(self.root, written, None, self._claim)


def _checked(message: Mapping[str, Any]) -> pa.RecordBatch:
    try:
        return _batch([message])
    except (ArithmeticError, TypeError, ValueError) as error:
        raise InvalidMessageError(
            f"Some part of the message can't be stored: {error}. Look at the types and bounds of "
            f"{', '.join(_COLUMNS.names)}."
        ) from error


def _batch(messages: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """The messages as rows; a column that none has is left out, for an option to fill in."""
    given = [
        each
        for each in _COLUMNS
        if each.name == "value" or any(message[each.name] is not None for message in messages)
    ]
    return pa.RecordBatch.from_pylist(messages, pa.schema(given))


def _ids(commit: Commit) -> Iterator[MessageId]:
    for ledger in commit.ledgers:
        for entry, size in enumerate(ledger.batch_sizes.array().tolist()):
            for index in range(size):
                place = index if size > 1 else -1
                yield MessageId(ledger.ledger_id, entry, ledger.partition, place)
