"""The client for asyncio: the same classes, whose calls are awaited.

    async with aio.Client("memory://shop") as client:
        producer = await client.create_producer("orders")
        await producer.send(b"2 apples")

Invariants: nothing blocks the event loop; who awaits a message and is cancelled loses none. Calls
and arguments are those of the synchronous client, whose work it is. Follows `pulsar.asyncio` of
Pulsar's Python client 3.13.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from pulsar_spark.connector.client import client as sync_client
from pulsar_spark.connector.client import consumer as sync_consumer
from pulsar_spark.connector.client import producer as sync_producer
from pulsar_spark.connector.client import reader as sync_reader
from pulsar_spark.connector.client import transaction as sync_transaction
from pulsar_spark.connector.client.client_errors import AlreadyClosed
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.positions import message_id as core
from pulsar_spark.shown import Shown
from pulsar_spark.topic_log.transaction_attempt import DEFAULT_TRANSACTION_TIMEOUT_MS

LOOKS_EVERY_S: Final = 0.01
"""How often who awaits a message looks at a glance: a thread that waits would cost more."""
S_co = TypeVar("S_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Twin(Shown, Generic[S_co]):
    """A class of the client, whose calls are awaited."""

    def __init__(self, sync: S_co) -> None:
        self.sync = sync
        """The object whose calls these are."""

    def _facts(self) -> Mapping[str, object]:
        assert isinstance(self.sync, Shown)
        return self.sync._facts()  # noqa: SLF001 - what a twin is, its other half knows


def awaited(
    method: Callable[Concatenate[S_co, P], R],
) -> Callable[Concatenate[Twin[S_co], P], Awaitable[R]]:
    """The method, run in another thread."""

    @functools.wraps(method)
    async def call(self: Twin[S_co], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.sync, *args, **kwargs)

    return call


def at_once(method: Callable[Concatenate[S_co, P], R]) -> Callable[Concatenate[Twin[S_co], P], R]:
    """The method itself: it waits for nothing."""

    @functools.wraps(method)
    def call(self: Twin[S_co], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self.sync, *args, **kwargs)

    return call


def making(
    kind: Callable[[R], T], method: Callable[Concatenate[S_co, P], R]
) -> Callable[Concatenate[Twin[S_co], P], Awaitable[T]]:
    """The method, run in another thread, and the twin of what it makes."""

    @functools.wraps(method)
    async def call(self: Twin[S_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return kind(await asyncio.to_thread(method, self.sync, *args, **kwargs))

    return call


class Transaction(Twin[sync_transaction.Transaction]):
    """A transaction; `Client.new_transaction` makes it. `async with` commits it at its end."""

    commit = awaited(sync_transaction.Transaction.commit)
    abort = at_once(sync_transaction.Transaction.abort)

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await asyncio.to_thread(self.sync.__exit__, kind)


class Producer(Twin[sync_producer.Producer]):
    """A producer; `Client.create_producer` makes it."""

    async def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Publish a message with others, and return its id once it is durable.

        Messages keep the order in which this is called, while there is room for them.
        """
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[MessageId] = loop.create_future()

        def done(answer: core.MessageId | Exception) -> None:
            loop.call_soon_threadsafe(self._answer, answered, answer)

        if self.sync.is_full():
            await self.flush()
        self.sync.enqueue(
            done, content, properties, partition_key, ordering_key, sequence_id, event_timestamp,
            deliver_at, deliver_after,
        )  # fmt: skip
        return await answered

    async def add(
        self,
        transaction: Transaction,
        content: Any,
        partition_key: str | None = None,
        **said: Any,
    ) -> None:
        """Publish a message when the transaction commits."""
        await asyncio.to_thread(self.sync.add, transaction.sync, content, partition_key, **said)

    flush = awaited(sync_producer.Producer.flush)
    close = awaited(sync_producer.Producer.close)
    topic = at_once(sync_producer.Producer.topic)
    producer_name = at_once(sync_producer.Producer.producer_name)
    last_sequence_id = at_once(sync_producer.Producer.last_sequence_id)
    is_connected = at_once(sync_producer.Producer.is_connected)

    def _answer(
        self, answered: asyncio.Future[MessageId], answer: core.MessageId | Exception
    ) -> None:
        if answered.done():  # nobody waits any more
            return
        if isinstance(answer, Exception):
            answered.set_exception(sync_producer.refusal_of(answer))
        else:
            answered.set_result(self.sync.id_of(answer))


class Consumer(Twin[sync_consumer.Consumer]):
    """A consumer; `Client.subscribe` makes it."""

    async def receive(self) -> Message:
        """The next message; waits for it."""
        return await _first(self.sync, self.sync.receive_now)

    def acknowledge_in(self, transaction: Transaction, *messages: Message) -> None:
        """Acknowledge these messages when the transaction commits."""
        self.sync.acknowledge_in(transaction.sync, *messages)

    batch_receive = awaited(sync_consumer.Consumer.batch_receive)
    acknowledge = awaited(sync_consumer.Consumer.acknowledge)
    acknowledge_cumulative = awaited(sync_consumer.Consumer.acknowledge_cumulative)
    negative_acknowledge = awaited(sync_consumer.Consumer.negative_acknowledge)
    reconsume_later = awaited(sync_consumer.Consumer.reconsume_later)
    redeliver_unacknowledged_messages = at_once(
        sync_consumer.Consumer.redeliver_unacknowledged_messages
    )
    unsubscribe = awaited(sync_consumer.Consumer.unsubscribe)
    seek = awaited(sync_consumer.Consumer.seek)
    close = awaited(sync_consumer.Consumer.close)
    get_last_message_id = awaited(sync_consumer.Consumer.get_last_message_id)
    topic = at_once(sync_consumer.Consumer.topic)
    subscription_name = at_once(sync_consumer.Consumer.subscription_name)
    consumer_name = at_once(sync_consumer.Consumer.consumer_name)
    is_connected = at_once(sync_consumer.Consumer.is_connected)
    has_reached_end_of_topic = awaited(sync_consumer.Consumer.has_reached_end_of_topic)


class Reader(Twin[sync_reader.Reader]):
    """A reader; `Client.create_reader` makes it."""

    async def read_next(self) -> Message:
        """The next message; waits for it."""
        return await _first(self.sync, self.sync.receive_now)

    has_message_available = awaited(sync_reader.Reader.has_message_available)
    has_reached_end_of_topic = awaited(sync_reader.Reader.has_reached_end_of_topic)
    seek = awaited(sync_reader.Reader.seek)
    close = awaited(sync_reader.Reader.close)
    topic = at_once(sync_reader.Reader.topic)
    is_connected = at_once(sync_reader.Reader.is_connected)


class TableView(Twin[sync_reader.TableView]):
    """A table view; `Client.create_table_view` makes it."""

    get = at_once(sync_reader.TableView.get)
    for_each = at_once(sync_reader.TableView.for_each)
    for_each_and_listen = at_once(sync_reader.TableView.for_each_and_listen)
    close = awaited(sync_reader.TableView.close)

    def __len__(self) -> int:
        return len(self.sync)


class Client(Twin[sync_client.Client]):
    """Makes producers, consumers and readers of one root."""

    def __init__(self, service_url: str, **kwargs: Any) -> None:
        """Arguments are those of the synchronous client."""
        super().__init__(sync_client.Client(service_url, **kwargs))

    create_producer = making(Producer, sync_client.Client.create_producer)
    subscribe = making(Consumer, sync_client.Client.subscribe)
    create_reader = making(Reader, sync_client.Client.create_reader)
    create_table_view = making(TableView, sync_client.Client.create_table_view)

    def new_transaction(self, timeout_millis: int = DEFAULT_TRANSACTION_TIMEOUT_MS) -> Transaction:
        """A transaction, for `Producer.add` and `Consumer.acknowledge_in`."""
        return Transaction(self.sync.new_transaction(timeout_millis))

    get_topic_partitions = awaited(sync_client.Client.get_topic_partitions)
    close = awaited(sync_client.Client.close)
    shutdown = at_once(sync_client.Client.shutdown)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.close()
        except AlreadyClosed:
            return


async def _first(
    source: sync_consumer.Consumer | sync_reader.Reader, take: Callable[[], Message | None]
) -> Message:
    """The next message. It is taken in the event loop's thread, where nobody can cancel that."""
    time = asyncio.get_running_loop().time
    begun_s = time()
    while True:
        if await asyncio.to_thread(source.fetch) and (message := take()) is not None:
            return message
        looked_s = time()
        pause_s = source.pause_s(looked_s - begun_s)
        await asyncio.sleep(min(LOOKS_EVERY_S, pause_s))
        while time() - looked_s < pause_s and not source.has_news():  # noqa: ASYNC110
            await asyncio.sleep(LOOKS_EVERY_S)
