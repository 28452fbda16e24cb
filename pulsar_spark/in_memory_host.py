"""A host of the broker in memory: topics, their messages, and time that its owner moves on.

Invariants: it does what `Ready` says, in order; time moves only by `advance`, and stops on its way
at each instant at which something falls due; a message is stored once and never changed. It serves
tests, scenarios, and a Python process that wants Pulsar's semantics without Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pulsar_spark.broker import step
from pulsar_spark.broker_state import BrokerState
from pulsar_spark.commands import (
    Command,
    Compacted,
    CreateSubscription,
    LeaseLapsed,
    LedgerAdded,
    LedgersTrimmed,
    Subscribe,
)
from pulsar_spark.compacted_ledgers import CompactedLedgers
from pulsar_spark.dead_letter import letter_properties
from pulsar_spark.deduplication import MessageDeduplication
from pulsar_spark.hashing import murmur3_32_hash_of_bytes
from pulsar_spark.in_memory_consumer import InMemoryConsumer, Message
from pulsar_spark.in_memory_producer import (
    DEFAULT_PUBLISH_DELAY_MS,
    InMemoryProducer,
    MessageRouter,
    producer_options,
)
from pulsar_spark.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.message_id import MessageId
from pulsar_spark.policies import TopicPolicies
from pulsar_spark.position_set import PositionSet
from pulsar_spark.ready import Letter, Ready
from pulsar_spark.topic_name import TopicName

DEFAULT_LEASE_MS = 30_000


@dataclass(slots=True)
class TopicInMemory:
    """One topic partition: its broker's state, its messages, and the commands on their way."""

    state: BrokerState
    messages: dict[tuple[int, int, int], Message] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    compacted: CompactedLedgers | None = None
    ready: Ready = field(default_factory=Ready)
    """What the last step wanted."""

    def removed(self) -> PositionSet:
        """What compaction has not kept."""
        known = self.state.ledgers
        return PositionSet() if self.compacted is None else self.compacted.removed_from(known)

    def trim(self, ledger_ids: Collection[int]) -> None:
        """The messages of these ledgers go, but those that compaction has kept."""
        kept = PositionSet() if self.compacted is None else self.compacted.kept
        for place in [place for place in self.messages if place[0] in ledger_ids]:
            if not _one_of(self.state.ledgers, place).intersection(kept):
                del self.messages[place]


class InMemoryHost:
    """All topics of one process."""

    def __init__(self, now_ms: int = 0, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self.now_ms = now_ms
        self.lease_ms = lease_ms
        self.topics: dict[str, TopicInMemory] = {}
        self.history: list[tuple[str, Ready]] = []
        """Every step that was not quiet, with its topic."""
        self._consumers: dict[tuple[str, str, str], InMemoryConsumer] = {}
        self._producers: dict[tuple[str, str], InMemoryProducer] = {}
        self._deduplication: dict[str, MessageDeduplication] = {}
        self._dying: dict[tuple[str, str, str], int] = {}
        self._next_ledger_id = 0
        self._next_number = 0

    # -- topics ------------------------------------------------------------------------------

    def topic(self, name: str, policies: TopicPolicies | None = None) -> TopicInMemory:
        """The topic of that name, made if it is not there yet."""
        full = TopicName.parse(name)
        key = str(full)
        if key not in self.topics:
            state = BrokerState(key, full.partition_index, policies or TopicPolicies())
            self.topics[key] = TopicInMemory(state)
        return self.topics[key]

    def publish(
        self, topic: str, messages: Sequence[Message], *, batch: bool = False
    ) -> list[MessageId]:
        """One commit: each message an entry of its own, or all together one entry."""
        held = self.topic(topic)
        ledger_id, self._next_ledger_id = self._next_ledger_id, self._next_ledger_id + 1
        sizes = [len(messages)] if batch else [1] * len(messages)
        ids = []
        for number, message in enumerate(messages):
            entry_id, index = (0, number) if batch else (number, 0)
            partition = held.state.partition
            message_id = MessageId(ledger_id, entry_id, partition)
            if batch and len(messages) > 1:
                message_id = MessageId(ledger_id, entry_id, partition, index, len(messages))
            ids.append(message_id)
            held.messages[ledger_id, entry_id, index] = replace(
                message, message_id=message_id, publish_time_ms=self.now_ms
            )
        ledger = LedgerInfo(
            ledger_id, max(held.state.partition, 0), "", 0, BatchSizes.of(sizes),
            sum(len(message.value) for message in messages), self.now_ms, self.now_ms,
        )  # fmt: skip
        deliver_at = [message.deliver_at_ms or 0 for message in messages]
        held.commands.append(
            LedgerAdded(
                ledger,
                self.now_ms,
                np.array([_sticky_key_hash(m, i) for m, i in zip(messages, ids, strict=True)]),
                np.array(deliver_at, np.int64) if any(deliver_at) else None,
            )
        )
        return ids

    def compact(self, topic: str) -> None:
        """Keep the latest message of each key for who reads compacted; an empty one removes it."""
        self.run()
        held = self.topic(topic)
        if not len(held.state.ledgers):
            return
        latest = {held.messages[place].key: place for place in sorted(held.messages)}
        latest.pop(None, None)
        kept = PositionSet()
        for place in latest.values():
            if held.messages[place].value:
                kept = kept.union(_one_of(held.state.ledgers, place))
        ledgers = LedgerList(
            each for each in held.state.ledgers if each.ledger_id in kept.ledger_ids
        )
        held.compacted = CompactedLedgers(held.state.last_position, ledgers, kept)
        held.trim(held.state.compaction.trimmed)
        held.commands.append(Compacted(held.compacted))
        for (name, _, _), consumer in self._consumers.items():
            if name == held.state.topic:
                consumer.hear_of_compaction()

    def send(self, topic: str, command: Command) -> None:
        """A command for the broker of that topic."""
        self.topic(topic).commands.append(command)

    def next_number(self) -> int:
        """For request ids and incarnations: always higher than the last."""
        self._next_number += 1
        return self._next_number

    # -- consumers ---------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        command: Subscribe,
        *,
        receiver_queue_size: int = 1000,
        group_time_ms: int = 0,
        delayed_delivery: bool = False,
    ) -> InMemoryConsumer:
        """Connect a consumer; whether it is let in, it knows after `run`.

        With `delayed_delivery` it waits for delivery times on Exclusive and Failover too.
        """
        held = self.topic(topic)
        command = replace(
            command, incarnation=self.next_number(), permits=receiver_queue_size,
            request_id=self.next_number(),
        )  # fmt: skip

        def ahead() -> PositionSet:
            return held.state.delayed.messages() if delayed_delivery else PositionSet()

        consumer = InMemoryConsumer(
            command,
            partial(self.send, held.state.topic),
            lambda *place: held.messages[place],
            lambda: held.state.ledgers,
            held.removed if command.read_compacted else None,
            receiver_queue_size=receiver_queue_size,
            group_time_ms=group_time_ms,
            ahead=ahead,
        )
        key = (held.state.topic, command.subscription, command.consumer)
        self._consumers[key] = consumer
        self._dying.pop(key, None)
        held.commands.append(command)
        return consumer

    # -- producers ---------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        options: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
        batching_max_publish_delay_ms: int = DEFAULT_PUBLISH_DELAY_MS,
        router: MessageRouter | None = None,
    ) -> InMemoryProducer:
        """Connect a producer, with a sink's options; whether it is let in, it knows after `run`.

        With `numPartitions` above 1 it publishes to `topic-partition-0` and so on.
        InvalidOptionError if an option can't be.
        """
        full = TopicName.parse(topic)
        chosen = producer_options(str(full), options or {})
        partitions = chosen["numPartitions"]
        topics = [str(full)]
        if partitions > 1:
            topics = [str(full.partition(number)) for number in range(partitions)]
        for each in topics:
            if chosen["enableDeduplication"]:
                self._deduplication.setdefault(each, MessageDeduplication())
            self.topic(each)
        producer = InMemoryProducer(
            name or chosen["producerName"] or f"producer-{self.next_number()}",
            topics, chosen, self.send, self._publish_entry, lambda: self.now_ms,
            publish_delay_ms=batching_max_publish_delay_ms, router=router,
        )  # fmt: skip
        for each in topics:
            self._producers[each, producer.name] = producer
        producer.connect()
        return producer

    def _publish_entry(
        self, topic: str, producer: str, messages: Sequence[Message]
    ) -> list[MessageId]:
        """One batch, or the chunks of one message; without what its topic knows as duplicates."""
        known = self._deduplication.get(topic)
        fresh = list(messages)
        if known is not None:
            numbers = np.array([each.sequence_id for each in messages], np.int64)
            after, new = known.fresh(producer, numbers)
            taken = {int(number) for number in numbers[new]}
            fresh = [each for each in messages if each.sequence_id in taken]
            if messages[0].chunk is None:
                fresh = [each for each, is_new in zip(messages, new, strict=True) if is_new]
            for number in taken:
                after = after.record_persisted(producer, number)
            self._deduplication[topic] = after
        if not fresh:
            return []
        return self.publish(topic, fresh, batch=fresh[0].chunk is None)

    def kill(self, consumer: InMemoryConsumer) -> None:
        """It shows no life from now on; nobody knows until its lease has lapsed."""
        consumer.is_alive = False
        for key, each in self._consumers.items():
            if each is consumer:
                self._dying[key] = self.now_ms + self.lease_ms

    # -- time --------------------------------------------------------------------------------

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and do at each instant what falls due at it."""
        until_ms = self.now_ms + milliseconds
        self.run()
        while True:
            due = [at for at in self._instants() if at is not None and self.now_ms < at <= until_ms]
            if not due:
                break
            self.now_ms = min(due)
            self.run()
        self.now_ms = until_ms
        self.run()

    def run(self) -> None:
        """Step every topic that has something to do, until none has."""
        for key, lapses_ms in list(self._dying.items()):
            if lapses_ms <= self.now_ms:
                del self._dying[key]
                topic, subscription, name = key
                incarnation = self._consumers[key].command.incarnation
                self.send(topic, LeaseLapsed(subscription, name, incarnation))
        while True:
            for producer in self._producers.values():
                producer.flush_if_due()
            for consumer in self._consumers.values():
                if consumer.is_alive:
                    consumer.report_if_due(self.now_ms)
            busy = [name for name, held in self.topics.items() if self._has_work(held)]
            if not busy:
                return
            for name in busy:
                self._step(name)

    def _instants(self) -> Iterable[int | None]:
        yield from self._dying.values()
        for held in self.topics.values():
            yield held.ready.next_due_ms
        for consumer in self._consumers.values():
            yield consumer.next_report_ms()
        for producer in self._producers.values():
            yield producer.next_flush_ms()

    def _has_work(self, held: TopicInMemory) -> bool:
        due_ms = held.ready.next_due_ms
        return bool(held.commands) or (due_ms is not None and due_ms <= self.now_ms)

    # -- what a step wants done --------------------------------------------------------------

    def _step(self, name: str) -> None:
        held = self.topics[name]
        commands, held.commands = held.commands, []
        held.state, held.ready = step(held.state, commands, self.now_ms)
        self._do(name, held.ready)

    def _do(self, name: str, ready: Ready) -> None:
        held = self.topics[name]
        if not ready.is_quiet:
            self.history.append((name, ready))
        for letter in ready.letters:
            self._copy(held, letter)
        told: tuple[Any, ...] = (*ready.epochs, *ready.acknowledged)
        for news in told:
            for (topic, subscription, _), consumer in self._consumers.items():
                if (topic, subscription) == (name, news.subscription):
                    consumer.hear(news)
        items: tuple[Any, ...] = (
            *ready.replies, *ready.revokes, *ready.grants, *ready.open_grants
        )  # fmt: skip
        for item in items:
            consumer_ = self._consumers.get((name, item.subscription, item.consumer))
            if consumer_ is not None and consumer_.command.incarnation == item.incarnation:
                consumer_.hear(item)
        self._tell_producers(name, ready)
        if ready.trim:
            held.trim(ready.trim)
            held.commands.append(LedgersTrimmed(ready.trim))

    def _tell_producers(self, name: str, ready: Ready) -> None:
        for reply in ready.replies:
            if not reply.subscription and (name, reply.consumer) in self._producers:
                self._producers[name, reply.consumer].hear(name, reply)
        for fenced in ready.closed_producers:
            if (name, fenced) in self._producers:
                self._producers.pop((name, fenced)).fence()

    def _copy(self, held: TopicInMemory, letter: Letter) -> None:
        if letter.topic not in self.topics:
            self.topic(letter.topic, TopicPolicies(keep_without_subscription=True))
        if letter.initial_subscription:
            self.send(letter.topic, CreateSubscription(letter.initial_subscription))
        copies = []
        for position, batch_index in letter.messages.messages(held.state.ledgers):
            stored = held.messages[(*position, batch_index)]
            assert stored.message_id is not None, "it was published"
            properties = letter_properties(letter, stored.message_id, stored.properties)
            copies.append(
                Message(
                    stored.value, stored.key, properties, letter.deliver_at_ms,
                    ordering_key=stored.ordering_key,
                )
            )  # fmt: skip
        self.publish(letter.topic, copies)


def _one_of(ledgers: LedgerList, place: tuple[int, int, int]) -> PositionSet:
    """The message at (ledger, entry, batch index)."""
    ledger = ledgers.get(place[0])
    size = 1 if ledger is None else ledger.batch_sizes.size_of(place[1])
    return PositionSet.of_batch(place[:2], size, 1 << place[2])


def _sticky_key_hash(message: Message, message_id: MessageId) -> int:
    if message.ordering_key is not None:
        return murmur3_32_hash_of_bytes(message.ordering_key)
    return murmur3_32_hash_of_bytes((message.key or str(message_id)).encode())
