"""A message as the client hands it out, and its id.

Invariants: methods as of Pulsar's Python client 3.13; ids are bytes as its `serialize` makes them;
an id has a partition only if its topic has several, and a batch index only if its entry has.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import total_ordering
from typing import Any, ClassVar, Final, Protocol

from pulsar_spark.connector.client.records import Schema
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.model.described import Described
from pulsar_spark.model.positions import message_id as core
from pulsar_spark.model.schema.schema_info import SchemaInfo

ANY_ATTEMPT: Final = -1
"""The attempt of an id that names no delivery of its message."""


@total_ordering
class MessageId(Described):
    """The place of a message: `MessageId.earliest` and `.latest` are the ends of a topic."""

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(
        self,
        partition: int = -1,
        ledger_id: int = -1,
        entry_id: int = -1,
        batch_index: int = -1,
        topic: str | None = None,
    ) -> None:
        if not type(partition) is type(ledger_id) is type(entry_id) is type(batch_index) is int:
            given = partition, ledger_id, entry_id, batch_index
            raise TypeError(f"A message id is of whole numbers, and not of {given}.")
        self.core = core.MessageId(ledger_id, entry_id, partition, batch_index)
        self.topic = topic
        self.attempt = ANY_ATTEMPT
        """The delivery that a received message's id names; its bytes do not have it."""

    @staticmethod
    def of(message_id: core.MessageId, topic: str | None = None) -> MessageId:
        each = message_id
        return MessageId(each.partition, each.ledger_id, each.entry_id, each.batch_index, topic)

    @classmethod
    def wrap(cls, msg_id: MessageId) -> MessageId:
        """The id itself: there is no other kind of it. TypeError if it is none."""
        if not isinstance(msg_id, MessageId):
            raise TypeError(f"{msg_id!r} is no MessageId.")
        return msg_id

    def ledger_id(self) -> int:
        return self.core.ledger_id

    def entry_id(self) -> int:
        return self.core.entry_id

    def batch_index(self) -> int:
        return self.core.batch_index

    def partition(self) -> int:
        return self.core.partition

    def serialize(self) -> bytes:
        """Bytes for `deserialize`, or for a client of Pulsar's."""
        return self.core.to_bytes("cpp")

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """The id of these bytes; with several topics, of which topic. ValueError if it is none."""
        if not isinstance(message_id_bytes, (bytes, str)):
            raise TypeError(f"{message_id_bytes!r} is no bytes of a message id.")
        try:
            held = core.MessageId.from_bytes(message_id_bytes, "cpp")
        except (TypeError, ValueError) as error:
            raise ValueError("Failed to parse serialized message id") from error
        return MessageId.of(held, topic)

    def __str__(self) -> str:
        return self.core.text("cpp")

    def __repr__(self) -> str:
        return f"MessageId{self}"

    def _facts(self) -> dict[str, object]:
        return {
            "ledger": self.ledger_id(),
            "entry": self.entry_id(),
            "partition": None if self.partition() < 0 else self.partition(),
            "batch_index": None if self.batch_index() < 0 else self.batch_index(),
            "topic": self.topic,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self.core == other.core

    def __lt__(self, other: MessageId) -> bool:
        return self.core < other.core

    def __hash__(self) -> int:
        return hash(self.core)


MessageId.earliest = MessageId.of(core.EARLIEST)
MessageId.latest = MessageId.of(core.LATEST)


class Origin(Protocol):
    """The owner of a received message, which knows its topic."""

    def id_of(self, received: ReceivedMessage) -> MessageId:
        """Its id as Pulsar writes it."""

    def written_with(self, received: ReceivedMessage) -> SchemaInfo | None:
        """The schema of its own version; None if it has none."""


class Message(Described):
    """A message, received or on its way to a partition."""

    __slots__ = ("_origin", "_schema", "received")

    def __init__(
        self,
        received: ReceivedMessage,
        schema: Schema,
        origin: Origin | None = None,
    ) -> None:
        self.received = received
        self._schema, self._origin = schema, origin

    def data(self) -> bytes:
        """The payload; empty for a tombstone."""
        return self.received.value or b""

    def value(self) -> Any:
        """The payload, decoded by the schema; None for a tombstone."""
        value = self.received.value
        if value is None:
            return None
        written_with = None if self._origin is None else self._origin.written_with(self.received)
        return self._schema.decode_written(value, written_with)

    def has_null_value(self) -> bool:
        return self.received.value is None

    def properties(self) -> dict[str, str]:
        return dict(self.received.properties or {})

    def partition_key(self) -> str:
        """The key; empty without one."""
        return self.received.key or ""

    def ordering_key(self) -> str:
        """The ordering key; empty without one."""
        return (self.received.ordering_key or b"").decode(errors="surrogateescape")

    def publish_timestamp(self) -> int:
        """Milliseconds since 1970."""
        return (self.received.publish_time_us or 0) // 1000

    def event_timestamp(self) -> int:
        """Milliseconds since 1970; 0 without one."""
        return (self.received.event_time_us or 0) // 1000

    def message_id(self) -> MessageId:
        if self._origin is None:
            return MessageId.of(self.received.message_id)
        return self._origin.id_of(self.received)

    def topic_name(self) -> str:
        """The full name, with the partition if the topic has several."""
        partition = self.message_id().partition()
        return self.received.topic + (f"-partition-{partition}" if partition >= 0 else "")

    def schema_version(self) -> str:
        """The version's eight bytes, one a character; empty without a schema."""
        version = self.received.schema_version
        return "" if version is None else version.to_bytes(8, "big").decode("latin-1")

    def encryption_context(self) -> object:
        """None: messages are not encrypted here."""
        return None

    def redelivery_count(self) -> int:
        return self.received.redelivery_count

    def producer_name(self) -> str:
        return self.received.producer_name or ""

    def __repr__(self) -> str:
        return f"Message({self.message_id()}, {self.partition_key()!r}, {self.data()[:60]!r})"

    def _facts(self) -> dict[str, object]:
        return {
            "message_id": self.message_id(),
            "topic": self.topic_name(),
            "key": self.partition_key(),
            "data": None if self.has_null_value() else self.data(),
            "properties": self.properties(),
            "publish_time": _time(self.received.publish_time_us),
            "redelivery_count": self.redelivery_count(),
            "producer_name": self.producer_name(),
        }


def _time(since_1970_us: int | None) -> datetime | None:
    if since_1970_us is None:
        return None
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=since_1970_us)
