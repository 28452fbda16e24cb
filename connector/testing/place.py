"""A place for a test: topics in memory, a broker in the process, and a clock that is moved.

    with Place() as place:
        consumer = place.client.subscribe("jobs", "workers")
        place.clock.advance(days=1)

Invariants: nobody sleeps and nothing happens by chance: what falls due is done at its instant, in
the thread that moves the clock; a place is gone with its `with`, and no other test sees it. All of
it is the product: only the clock is another.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.connector.client.client import Client
from pulsar_spark.connector.client.consumer import Consumer
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.connector.runtime.system_topics.lease import RENEWALS
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.functions import processing
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.storage.memory_store import MEMORY, MemoryStore
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import TopicName

START: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
Outcome = dict[str, Any]
"""The outcome of a message: the row that the sink with `subscriptionName` would take."""

_numbers = itertools.count()


class Place(AbstractContextManager["Place"]):
    """A root of its own, whose time only the test moves."""

    def __init__(self, service_url: str | None = None, *, now: datetime = START) -> None:
        """`service_url` is `memory://NAME`, for code that has it; by default one that none has.

        StorageError if something is at that name already.
        """
        self.service_url = service_url or f"{MEMORY}test-{os.getpid()}-{next(_numbers)}"
        if not self.service_url.startswith(MEMORY):
            raise InvalidOptionError(
                f"A place for tests is memory://NAME, not {self.service_url!r}: what lies on a "
                "disk is read by processes with clocks of their own."
            )
        self.clock = ManualClock(round(now.timestamp() * 1000))
        MemoryStore.named(self.service_url.removeprefix(MEMORY), self.clock)
        self.root = Root(self.service_url, {})
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client; `pulsar_spark.Client(place.service_url)` makes others."""
        if self._client is None:
            self._client = Client(self.service_url)
        return self._client

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.wall_ms() / 1000, timezone.utc)

    def messages(self, topic: str) -> list[Message]:
        """All messages of a topic, such as a dead letter topic, as they were published."""
        if self.root.open_found(TopicName.parse(topic).partitioned_topic) is None:
            return []
        reader = self.client.create_reader(topic, MessageId.earliest)
        try:
            found = []
            while reader.has_message_available():
                found.append(reader.read_next())
            return found
        finally:
            reader.close()

    def backlog(self, topic: str, subscription: str) -> int:
        """The number of unacknowledged messages of the subscription."""
        self.clock.advance()
        topic_partition = TopicName.parse(topic).partitioned_topic_name
        found = [
            each for each in subscriptions(self.root, topic_partition) if each.name == subscription
        ]
        if not found:
            raise LookupError(f"{topic_partition} has no subscription {subscription!r}.")
        return sum(each.backlog for each in found)

    def kill(self, consumer: Consumer) -> None:
        """Its process is no more: it says nothing, and shows no life from now on.

        What it has not acknowledged goes to others when its lease is over: after 30 seconds.
        """
        lease = consumer.abandon()
        if lease is None:
            return
        store = self.root.store

        def look() -> None:
            """Make the clock stop where the broker looks for life, until it has given up."""
            if store.get(lease.path) is None:
                end()

        every_s = lease.lease_ms / 1000 / RENEWALS
        end = self.clock.repeat(every_s, look, f"a look whether {lease.consumer} lives")

    def process(
        self,
        consumer: Consumer,
        function: Callable[[Any], object],
        *,
        batch: bool = False,
        value: Callable[[bytes], Any] | None = None,
    ) -> list[Outcome]:
        """Call a function on all messages that are there now, as `pulsar_spark.process` does.

        What it raises is the outcome of its message, which comes again, waits in the retry letter
        topic or becomes a dead letter, by the consumer's policies; the rest is acknowledged. There
        is no child process, so the function may keep what it sees. `value` makes of bytes what
        `valueSchema` would. Returns the outcomes, in order; without an entry means nothing to say.
        """
        received = list(_received(consumer))
        if not received:
            return []
        task = processing.Processor(_valued(function, value), batch)
        rows = task.outcomes(_batch(received)).to_pylist()
        rows = [{name: each for name, each in row.items() if each is not None} for row in rows]
        consumer.settle(rows)
        self.clock.advance()
        return rows

    def close(self) -> None:
        """Close its client, and forget all of it."""
        try:
            if self._client is not None:
                self._client.__exit__(None, None, None)
        finally:
            MemoryStore.forget(self.service_url.removeprefix(MEMORY))

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Place({self.service_url!r}, now={self.now():%Y-%m-%dT%H:%M:%SZ})"


def _received(consumer: Consumer) -> Iterator[ReceivedMessage]:
    while consumer.fetch() and (message := consumer.receive_now()) is not None:
        yield message.received


def _valued(
    function: Callable[[Any], object], value: Callable[[bytes], Any] | None
) -> Callable[[Any], object]:
    if value is None:
        return function

    def with_value(message: processing.Message) -> object:
        held = None if message.value is None else value(message.value)
        return function(replace(message, value=held))

    return with_value


def _batch(received: list[ReceivedMessage]) -> pa.RecordBatch:
    """The columns that a streaming source has of them."""
    ids = [each.message_id for each in received]
    columns = {
        "value": pa.array([each.value for each in received], pa.binary()),
        "key": pa.array([each.key for each in received], pa.string()),
        "properties": pa.array(
            [list((each.properties or {}).items()) for each in received],
            pa.map_(pa.string(), pa.string()),
        ),
        "topic": [each.topic for each in received],
        "ledger_id": [each.ledger_id for each in ids],
        "entry_id": [each.entry_id for each in ids],
        "partition": [each.partition.partition for each in received],
        "batch_index": [each.batch_index for each in ids],
        "redelivery_count": [each.redelivery_count for each in received],
        "attempt": [each.attempt for each in received],
    }
    return pa.RecordBatch.from_pydict(columns)
