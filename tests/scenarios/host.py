"""A store in memory, a clock that stands, a broker on it, and those who talk to it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from math import inf
from types import TracebackType
from typing import Any, Final

from pulsar_spark.broker.hosting.broker_rows import OutputRow
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.message_producer import MessageProducer
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.testing import Place

LOOK_EVERY_MS: Final = 1_000
"""How often the broker looks at leases."""


class Host:
    """One root. What its broker has said and done gathers in `said`, batch by batch."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._place = Place(now=datetime.fromtimestamp(now_ms / 1000, timezone.utc))
        self.clock, self.root = self._place.clock, self._place.root
        self.broker = EmbeddedBroker(self.root)
        self.consumers: list[MessageConsumer] = []
        self.said: list[tuple[tuple[OutputRow, ...], tuple[tuple[str, str], ...]]] = []
        """Rows of a batch, and the (topic, subscription)s that it deleted."""

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._place.close()

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def subscribe(self, options: Mapping[str, str], **named: Any) -> MessageConsumer:
        """A consumer that the broker has let in."""
        consumer = MessageConsumer({"serviceUrl": self.root.service_url, **options}, **named)
        self.consumers.append(consumer)
        try:
            self.run()
        except BaseException:
            self.consumers.remove(consumer)
            raise
        return consumer

    def producer(self, options: Mapping[str, str], **named: Any) -> MessageProducer:
        return MessageProducer({"serviceUrl": self.root.service_url, **options}, **named)

    def kill(self, consumer: MessageConsumer) -> None:
        """It shows no life from now on; nobody knows until its lease has lapsed."""
        self.consumers.remove(consumer)
        consumer.abandon()

    def tell(self, topic_partition: TopicPartition, subscription: str, command: Any) -> None:
        """A command for a partition's broker."""
        SystemTopic(self.root, COMMANDS).append([Record.of(topic_partition, subscription, command)])
        self.run()

    def state(self, topic_partition: TopicPartition) -> BrokerState:
        """What a partition's broker knows."""
        held = self.broker.brokers.get((topic_partition.topic, topic_partition.partition))
        state = None if held is None else held.state
        return BrokerState(*topic_partition) if state is None else state

    def run(self) -> None:
        """Let all talk until nobody has anything to say."""
        turned = self._turns()
        while turned or any(each.queue._handed for each in self.consumers):
            for consumer in list(self.consumers):
                if turned or consumer.queue._handed:
                    consumer.poll()
            turned = self._turns()

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and do at each instant what falls due at it."""
        until_ms = self.now_ms + milliseconds
        self.run()
        while self.now_ms < until_ms:
            instants = [until_ms, self.now_ms + LOOK_EVERY_MS]
            if (due_s := self.broker.next_due_s()) < inf:
                instants.append(self.now_ms + round(due_s * 1000))
            if (due_ms := self.clock.next_due_ms()) is not None:
                instants.append(due_ms)
            self.clock.advance(min(each for each in instants if each > self.now_ms) - self.now_ms)
            self.run()

    def _turns(self) -> bool:
        """Until the broker has nothing to do; whether it had."""
        turned = False
        while True:
            before = self._subscriptions()
            if not self.broker.run_once():
                return turned
            turned = True
            deleted = tuple(sorted(before - self._subscriptions()))
            self.said.append((self.broker.done, deleted))

    def _subscriptions(self) -> set[tuple[str, str]]:
        return {
            (topic, name)
            for (topic, _), held in self.broker.brokers.items()
            if held.state is not None
            for name in held.state.subscriptions
        }
