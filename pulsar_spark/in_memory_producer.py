"""A producer in the process of the host: it batches, routes and cuts, and is let in or refused.

Invariants: what goes to one partition keeps its order; a batch is published as one entry, once it
is full, its delay has passed, or somebody flushes; a message with a delivery time is an entry of
its own; a message that is refused changes nothing. Options have the names and the meaning that
they have for a sink. Follows Pulsar's `ProducerImpl` and `PartitionedProducerImpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_spark.batch_message_container import BatchLimits, batch_key, key_based_batches
from pulsar_spark.chunking import Chunks
from pulsar_spark.commands import CloseProducer, Command, Producer
from pulsar_spark.errors import (
    BrokerRefusedError,
    InvalidMessageError,
    InvalidOptionError,
    ProducerBusyError,
    ProducerFencedError,
)
from pulsar_spark.hashing import java_string_hash, murmur3_32_hash, sign_safe_mod
from pulsar_spark.in_memory_consumer import ChunkOf, Message
from pulsar_spark.message_id import MessageId
from pulsar_spark.message_router import RoundRobinPartitionMessageRouter
from pulsar_spark.options import Options, Scope
from pulsar_spark.producer_access import ProducerAccessMode
from pulsar_spark.ready import Reply
from pulsar_spark.topic_name import is_persistent

DEFAULT_PUBLISH_DELAY_MS = 1
PARTITION_SWITCHES = 10
"""Round robin stays on a partition for so many publish delays (Pulsar's default)."""
_NOT_IN_MEMORY = ("messageRouter", "schemaType", "transactional", "txnAppId", "topic", "topics")

MessageRouter = Callable[[Message, int], int]
"""(message, partitions) -> where it goes, 0 <= p < partitions."""


@dataclass(slots=True)
class _Batch:
    """What waits to be published to one partition."""

    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0
    due_ms: int = 0


class InMemoryProducer:
    """One producer of one topic, with all its partitions; made by `InMemoryHost.producer`."""

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        options: Options,
        send: Callable[[str, Command], None],
        publish: Callable[[str, str, Sequence[Message]], list[MessageId]],
        clock: Callable[[], int],
        *,
        publish_delay_ms: int = DEFAULT_PUBLISH_DELAY_MS,
        router: MessageRouter | None = None,
    ) -> None:
        """`topics` are the partitions; `publish` takes (topic, producer, one entry's messages)."""
        self.name, self._topics, self._options = name, list(topics), options
        self._send, self._store, self._clock = send, publish, clock
        self._publish_delay_ms, self._router = publish_delay_ms, router
        self._limits = BatchLimits(
            options["batchingMaxMessages"], options["batchingMaxBytes"], options["maxMessageSize"]
        )
        self._round_robin = RoundRobinPartitionMessageRouter(
            0, options["batchingEnabled"], PARTITION_SWITCHES * publish_delay_ms
        )
        self._batches: dict[str, _Batch] = {}
        self._connected: set[str] = set()
        self._next_sequence_id = self._unkeyed = 0
        self.refusal: BrokerRefusedError | None = None
        self.is_fenced = self.is_closed = False
        self.published: list[MessageId] = []
        """Ids of all that was published, in that order; duplicates that were dropped have none."""

    @property
    def is_connected(self) -> bool:
        """Whether the brokers of all partitions have let it in."""
        return self._connected >= set(self._topics) and not (self.is_fenced or self.is_closed)

    # -- what its user does ------------------------------------------------------------------

    def send(
        self,
        value: bytes,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        sequence_id: int | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
    ) -> int:
        """Publish one message, now or with the batch that it joins; its sequence id.

        InvalidMessageError if it can't be one; ProducerBusyError or ProducerFencedError if this
        producer was not let in, or is out.
        """
        self._check_connected()
        number = self._next_sequence_id if sequence_id is None else sequence_id
        message = Message(
            value, key, dict(properties or {}), self._due_ms(deliver_at_ms, deliver_after_ms),
            ordering_key=ordering_key, producer_name=self.name, sequence_id=number,
        )  # fmt: skip
        self._check_size(message)
        topic = self._topics[self._partition_of(message)]
        self._next_sequence_id = max(self._next_sequence_id, number + 1)
        if not self._options["batchingEnabled"]:
            self._publish(topic, [message])
        elif message.deliver_at_ms is not None:
            self._flush(topic)
            self._publish(topic, [message])
        else:
            self._join(topic, message)
        return number

    def flush(self) -> None:
        """Publish what waits."""
        for topic in list(self._batches):
            self._flush(topic)

    def close(self) -> None:
        """Publish what waits, and go: others may have the topic."""
        if not self.is_closed:
            self.flush()
            for topic in self._topics:
                self._send(topic, CloseProducer(self.name))
            self.is_closed = True

    # -- what the host does ------------------------------------------------------------------

    def connect(self) -> None:
        """Ask every partition's broker to be let in."""
        mode = ProducerAccessMode(self._options["accessMode"])
        for topic in self._topics:
            self._send(topic, Producer(self.name, mode))

    def hear(self, topic: str, reply: Reply) -> None:
        """The answer of one partition's broker."""
        if reply.error is None:
            self._connected.add(topic)
        else:
            self.refusal = BrokerRefusedError(reply.error, reply.message)

    def fence(self) -> None:
        """Another has the topic now; what waited is not published."""
        self.is_fenced = True
        self._batches.clear()

    def next_flush_ms(self) -> int | None:
        """When the first batch has waited for its delay; None if none waits."""
        return min((batch.due_ms for batch in self._batches.values()), default=None)

    def flush_if_due(self) -> None:
        """Publish the batches that have waited for their delay."""
        for topic, batch in list(self._batches.items()):
            if batch.due_ms <= self._clock():
                self._flush(topic)

    # -- inside ------------------------------------------------------------------------------

    def _check_connected(self) -> None:
        if self.is_fenced:
            raise ProducerFencedError(f"Another producer has the topic: {self.name} must stop.")
        if self.refusal is not None:
            raise self.refusal
        if not self.is_connected:
            raise ProducerBusyError(f"Producer {self.name} is closed, or was not let in yet.")

    def _check_size(self, message: Message) -> None:
        most = self._options["maxMessageSize"]
        if len(message.value) > most and not self._options["chunkingEnabled"]:
            raise InvalidMessageError(
                f"A message has {len(message.value)} bytes, and maxMessageSize is {most}. Make it "
                "smaller, or set chunkingEnabled to true and batchingEnabled to false."
            )

    def _due_ms(self, at_ms: int | None, after_ms: int | None) -> int | None:
        if at_ms is not None and after_ms is not None:
            raise InvalidMessageError("A message has both deliver_at and deliver_after: give one.")
        if at_ms is None and after_ms is None:
            at_ms, after_ms = (
                self._options[name] if self._options.has(name) else None
                for name in ("deliverAt", "deliverAfter")
            )
        if after_ms is None:
            return at_ms
        if after_ms < 0:
            raise InvalidMessageError("A message has a deliver_after below zero: it is 0 or more.")
        return self._clock() + after_ms

    def _partition_of(self, message: Message) -> int:
        partitions = len(self._topics)
        if message.key is not None:
            java = self._options["hashingScheme"] == "JavaStringHash"
            hashed = java_string_hash(message.key) if java else murmur3_32_hash(message.key)
            return sign_safe_mod(hashed, partitions)
        if self._router is not None:
            chosen = self._router(message, partitions)
            if not 0 <= chosen < partitions:
                raise InvalidMessageError(f"The router chose {chosen} of {partitions} partitions.")
            return chosen
        if self._options["messageRoutingMode"] == "SinglePartition":
            return sign_safe_mod(murmur3_32_hash(self.name), partitions)
        self._unkeyed += 1
        return self._round_robin.choose_partition(
            partitions, clock_ms=self._clock(), message_number=self._unkeyed - 1
        )

    def _join(self, topic: str, message: Message) -> None:
        size = len(message.value)
        batch = self._batches.get(topic)
        if batch and not self._limits.have_enough_space(
            len(batch.messages), batch.size_bytes, size
        ):
            self._flush(topic)
            batch = None
        if batch is None:
            batch = self._batches[topic] = _Batch(due_ms=self._clock() + self._publish_delay_ms)
        batch.messages.append(message)
        batch.size_bytes += size
        if self._limits.is_full(len(batch.messages), batch.size_bytes):
            self._flush(topic)

    def _flush(self, topic: str) -> None:
        batch = self._batches.pop(topic, None)
        if batch is None:
            return
        if self._options["batcherBuilder"] == "DEFAULT":
            self._publish(topic, batch.messages)
            return
        keys = [batch_key(each.key, each.ordering_key) for each in batch.messages]
        for each in key_based_batches(keys, [m.sequence_id for m in batch.messages]):
            self._publish(topic, [batch.messages[place] for place in each.messages])

    def _publish(self, topic: str, messages: Sequence[Message]) -> None:
        """One entry; a message that is too large for one becomes several."""
        self.published += self._store(topic, self.name, [
            part for message in messages for part in self._in_chunks(message)
        ])  # fmt: skip

    def _in_chunks(self, message: Message) -> list[Message]:
        if not self._options["chunkingEnabled"]:
            return [message]
        limit = self._options["chunkMaxMessageSize"] or -1
        chunks = Chunks.of(len(message.value), 0, self._options["maxMessageSize"], limit)
        uuid = chunks.uuid(self.name, message.sequence_id)
        if uuid is None:
            return [message]
        return [
            message.with_value(
                message.value[chunks.slice(number)], ChunkOf(uuid, number, chunks.count)
            )
            for number in range(chunks.count)
        ]


def producer_options(topic: str, given: Mapping[str, str]) -> Options:
    """A sink's options. InvalidOptionError for what a producer in memory does not have."""
    options = Options.parse({**given, "serviceUrl": "memory"}, Scope.BATCH_WRITE)
    for name in _NOT_IN_MEMORY:
        if options.has(name):
            raise InvalidOptionError(f"Option {name} has no meaning in memory: leave it out.")
    if options["chunkingEnabled"] and not is_persistent(topic):
        raise InvalidOptionError(f"Topic {topic} is non-persistent: it has no chunked messages.")
    return options
