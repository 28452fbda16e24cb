"""A producer in this process: it gathers messages, and publishes them as a sink does.

Invariants: waiting messages are published in their order, as one commit; a message that can't be
published is refused when it is sent, and changes nothing; sequence ids go on behind the last that
the topic knows of this producer. Entries, routing, chunks, delays and duplicates are the sink's
(`message_writer`, `publishing`). Follows Pulsar's `ProducerImpl`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.connector.sink.message_writer import check_messages_fit, write_messages
from pulsar_spark.connector.sink.publishing import publish
from pulsar_spark.connector.storage.clock import Repeated
from pulsar_spark.connector.topic_log.producer_connection import claim_of, connect, disconnect
from pulsar_spark.connector.topic_log.topics import Root, options_of
from pulsar_spark.errors import ProducerBusyError
from pulsar_spark.options.options import Options, Scope
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.topic_log.ledger_commit import Commit
from pulsar_spark.topic_name import TopicName, check_user_topic

MOST_WAITING: Final = 1000
"""Messages that are published at once, however short they have waited (Pulsar's default)."""
_COLUMNS: Final = pa.schema(
    [
        ("value", pa.binary()), ("key", pa.string()), ("ordering_key", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())), ("sequence_id", pa.int64()),
        ("event_time", pa.timestamp("us", "UTC")), ("deliver_at", pa.timestamp("us", "UTC")),
        ("deliver_after", pa.duration("us")),
    ]
)  # fmt: skip


class MessageProducer:
    """One producer of one topic. Also a context manager, which closes it at its end."""

    def __init__(self, options: Mapping[str, str], *, publish_delay_ms: int = 0) -> None:
        """Connects in its `accessMode`; the topic is made if it does not exist.

        `options` are those of a sink with a `topic`. Messages wait for `publish_delay_ms`, so that
        others share their commit. ProducerFencedError or ProducerBusyError if the topic is
        another's, InvalidOptionError if an option is wrong.
        """
        given = {"producerName": f"producer-{uuid.uuid4().hex[:10]}", **options}
        self.options: Options = options_of(given, Scope.STREAM_WRITE)
        self.root = Root.of(self.options)
        self.name: str = self.options["producerName"]
        self._delay_s = publish_delay_ms / 1000
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
        self._flushing: Repeated | None = None
        self._lock = threading.RLock()
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

        InvalidMessageError if it can't be published; waiting messages are not lost.
        """
        with self._lock:
            self._check_open()
            number = self._next_sequence_id if sequence_id is None else sequence_id
            message = {
                "value": value, "key": key, "ordering_key": ordering_key,
                "properties": None if properties is None else list(properties.items()),
                "sequence_id": number, "event_time": event_time, "deliver_at": deliver_at,
                "deliver_after": deliver_after,
            }  # fmt: skip
            check_messages_fit(_batch([message]), self.options, self.root)
            self._next_sequence_id = max(self._next_sequence_id, number + 1)
            self._waiting.append(message)
            if not self._delay_s or len(self._waiting) >= MOST_WAITING:
                self.flush()
            elif self._flushing is None:
                clock = self.root.clock
                self._flushing = clock.repeat(self._delay_s, self._flush_due, "producer")
            return number

    def flush(self) -> list[MessageId]:
        """Publish waiting messages; their ids, partition by partition, as they are stored."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if not waiting:
                return []
            written = write_messages([_batch(waiting)], self.options, self.root)
            done = publish(self.root, written, None, self._claim)
        return [each for commit in done if isinstance(commit, Commit) for each in _ids(commit)]

    def close(self) -> None:
        """Publish waiting messages, and leave the topic to others."""
        self._flush_due()
        with self._lock:
            if not self._is_closed and self._claim is not None:
                disconnect(self._ledger, self._claim)
            self._is_closed = True

    def __enter__(self) -> MessageProducer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ProducerBusyError(f"Producer {self.name} is closed: make another.")

    def _flush_due(self) -> None:
        with self._lock:
            flushing, self._flushing = self._flushing, None
            self.flush()
        if flushing is not None:
            flushing.stop()


def _batch(messages: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """The messages as rows; a column that none has is left out, for an option to fill in."""
    names = [
        each.name
        for each in _COLUMNS
        if each.name == "value" or any(message[each.name] is not None for message in messages)
    ]
    arrays = [
        pa.array([message[name] for message in messages], _COLUMNS.field(name).type)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names)


def _ids(commit: Commit) -> Iterator[MessageId]:
    for ledger in commit.ledgers:
        for entry, size in enumerate(ledger.batch_sizes.array().tolist()):
            for index in range(size):
                place = index if size > 1 else -1
                yield MessageId(ledger.ledger_id, entry, ledger.partition, place)
