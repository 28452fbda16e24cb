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
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast

from pulsar_spark.connector.client import client as sync_client
from pulsar_spark.connector.client import consumer as sync_consumer
from pulsar_spark.connector.client import producer as sync_producer
from pulsar_spark.connector.client import reader as sync_reader
from pulsar_spark.connector.client import transaction as sync_transaction
from pulsar_spark.connector.client.client_errors import AlreadyClosed, Timeout
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.log.transaction_attempt import DEFAULT_TRANSACTION_TIMEOUT_MS
from pulsar_spark.model.described import Described
from pulsar_spark.model.positions import message_id as core

POLL_EVERY_S: Final = 0.01
"""Seconds between two checks of a coroutine that awaits a message; a waiting thread costs more."""
S_co = TypeVar("S_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncWrapper(Described, Generic[S_co]):
    """A class of the client, whose calls are awaited."""

    def __init__(self, sync: S_co) -> None:
        self.sync = sync
        """The object whose calls these are."""

    def _facts(self) -> Mapping[str, object]:
        assert isinstance(self.sync, Described)
        return self.sync._facts()  # noqa: SLF001 - what a twin is, its other half knows


def awaited(
    method: Callable[Concatenate[S_co, P], R],
) -> Callable[Concatenate[AsyncWrapper[S_co], P], Awaitable[R]]:
    """The method, run in another thread."""

    @functools.wraps(method)
    async def call(self: AsyncWrapper[S_co], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.sync, *args, **kwargs)

    return call


def at_once(
    method: Callable[Concatenate[S_co, P], R],
) -> Callable[Concatenate[AsyncWrapper[S_co], P], R]:
    """The method itself: it waits for nothing."""

    @functools.wraps(method)
    def call(self: AsyncWrapper[S_co], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self.sync, *args, **kwargs)

    return call


def making(
    kind: Callable[[R], T], method: Callable[Concatenate[S_co, P], R], **defaults: Any
) -> Callable[Concatenate[AsyncWrapper[S_co], P], Awaitable[T]]:
    """The method, run in another thread with other defaults, and the twin of what it makes."""
    known, made_by = inspect.signature(method), cast("Callable[..., R]", method)

    @functools.wraps(method)
    async def call(self: AsyncWrapper[S_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        given = known.bind(self.sync, *args, **kwargs)
        given.arguments.update({k: v for k, v in defaults.items() if k not in given.arguments})
        return kind(await asyncio.to_thread(made_by, *given.args, **given.kwargs))

    call.__signature__ = known.replace(  # type: ignore[attr-defined]
        parameters=[
            each.replace(default=defaults.get(name, each.default))
            for name, each in known.parameters.items()
        ]
    )
    return call


def closing(method: Callable[[S_co], object]) -> Callable[[AsyncWrapper[S_co]], Awaitable[None]]:
    """The method, run in another thread; what is closed already stays so, without an error."""

    @functools.wraps(method)
    async def call(self: AsyncWrapper[S_co]) -> None:
        with suppress(AlreadyClosed):
            await asyncio.to_thread(method, self.sync)

    return call


class Transaction(AsyncWrapper[sync_transaction.Transaction]):
    """A transaction; `Client.new_transaction` makes it. `async with` commits it at its end."""

    commit = awaited(sync_transaction.Transaction.commit)
    abort = at_once(sync_transaction.Transaction.abort)

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await asyncio.to_thread(self.sync.__exit__, kind)


class Producer(AsyncWrapper[sync_producer.Producer]):
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
        **arguments: Any,
    ) -> None:
        """Publish a message when the transaction commits."""
        await asyncio.to_thread(
            self.sync.add, transaction.sync, content, partition_key, **arguments
        )

    flush = awaited(sync_producer.Producer.flush)
    close = closing(sync_producer.Producer.close)
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


class Consumer(AsyncWrapper[sync_consumer.Consumer]):
    """A consumer; `Client.subscribe` makes it."""

    async def receive(self) -> Message:
        """The next message; waits for it."""
        return await _first(self.sync, self.sync.receive_now)

    async def batch_receive(self) -> list[Message]:
        """The messages that are there, up to the consumer's policy; it waits as the policy says."""
        with self.sync.batch() as batch:
            while not self.sync.is_full(batch):
                left_ms = batch.left_ms()
                left_s = inf if left_ms is None else left_ms / 1000
                try:
                    message = await _first(self.sync, self.sync.reserve, left_s)
                except Timeout:
                    break
                if not self.sync.added(batch, message):
                    break
        return batch.messages

    def acknowledge_in(self, transaction: Transaction, *messages: Message) -> None:
        """Acknowledge these messages when the transaction commits."""
        self.sync.acknowledge_in(transaction.sync, *messages)

    acknowledge = awaited(sync_consumer.Consumer.acknowledge)
    acknowledge_cumulative = awaited(sync_consumer.Consumer.acknowledge_cumulative)
    negative_acknowledge = awaited(sync_consumer.Consumer.negative_acknowledge)
    reconsume_later = awaited(sync_consumer.Consumer.reconsume_later)
    redeliver_unacknowledged_messages = at_once(
        sync_consumer.Consumer.redeliver_unacknowledged_messages
    )
    unsubscribe = awaited(sync_consumer.Consumer.unsubscribe)
    seek = awaited(sync_consumer.Consumer.seek)
    close = closing(sync_consumer.Consumer.close)
    get_last_message_id = awaited(sync_consumer.Consumer.get_last_message_id)
    topic = at_once(sync_consumer.Consumer.topic)
    subscription_name = at_once(sync_consumer.Consumer.subscription_name)
    consumer_name = at_once(sync_consumer.Consumer.consumer_name)
    is_connected = at_once(sync_consumer.Consumer.is_connected)
    has_reached_end_of_topic = awaited(sync_consumer.Consumer.has_reached_end_of_topic)


class Reader(AsyncWrapper[sync_reader.Reader]):
    """A reader; `Client.create_reader` makes it."""

    async def read_next(self) -> Message:
        """The next message; waits for it."""
        return await _first(self.sync, self.sync.receive_now)

    has_message_available = awaited(sync_reader.Reader.has_message_available)
    has_reached_end_of_topic = awaited(sync_reader.Reader.has_reached_end_of_topic)
    seek = awaited(sync_reader.Reader.seek)
    close = closing(sync_reader.Reader.close)
    topic = at_once(sync_reader.Reader.topic)
    is_connected = at_once(sync_reader.Reader.is_connected)


class TableView(AsyncWrapper[sync_reader.TableView]):
    """A table view; `Client.create_table_view` makes it."""

    get = at_once(sync_reader.TableView.get)
    for_each = at_once(sync_reader.TableView.for_each)
    for_each_and_listen = at_once(sync_reader.TableView.for_each_and_listen)
    close = closing(sync_reader.TableView.close)

    def __len__(self) -> int:
        return len(self.sync)


class Client(AsyncWrapper[sync_client.Client]):
    """Makes producers, consumers and readers of one root."""

    def __init__(self, service_url: str, **kwargs: Any) -> None:
        """Arguments are those of the synchronous client."""
        super().__init__(sync_client.Client(service_url, **kwargs))

    create_producer = making(Producer, sync_client.Client.create_producer, batching_enabled=True)
    _subscribe = making(Consumer, sync_client.Client.subscribe)
    create_reader = making(Reader, sync_client.Client.create_reader)
    create_table_view = making(TableView, sync_client.Client.create_table_view)

    async def subscribe(
        self,
        topic: sync_client.Topics,
        subscription_name: str,
        *args: Any,
        is_pattern_topic: bool = False,
        **kwargs: Any,
    ) -> Consumer:
        """A consumer, as of the synchronous client; with `is_pattern_topic` a text is a pattern."""
        if is_pattern_topic and isinstance(topic, str):
            topic = re.compile(topic)
        return await self._subscribe(topic, subscription_name, *args, **kwargs)

    def new_transaction(self, timeout_millis: int = DEFAULT_TRANSACTION_TIMEOUT_MS) -> Transaction:
        """A transaction, for `Producer.add` and `Consumer.acknowledge_in`."""
        return Transaction(self.sync.new_transaction(timeout_millis))

    get_topic_partitions = awaited(sync_client.Client.get_topic_partitions)
    close = closing(sync_client.Client.close)
    shutdown = at_once(sync_client.Client.shutdown)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _first(
    source: sync_consumer.Consumer | sync_reader.Reader,
    take: Callable[[], Message | None],
    within_s: float = inf,
) -> Message:
    """The next message; Timeout if there is none in that time.

    It is taken in the event loop's thread, where nobody can cancel that.
    """
    time = asyncio.get_running_loop().time
    begun_s = time()
    while True:
        if await asyncio.to_thread(source.fetch) and (message := take()) is not None:
            return message
        looked_s = time()
        left_s = begun_s + within_s - looked_s
        if left_s <= 0:
            raise Timeout("Pulsar error: TimeOut")
        pause_s = min(source.pause_s(looked_s - begun_s), left_s)
        await asyncio.sleep(min(POLL_EVERY_S, pause_s))
        while time() - looked_s < pause_s and not source.has_activity():  # noqa: ASYNC110
            await asyncio.sleep(POLL_EVERY_S)
