"""A producer of the client: it encodes values, and hands them to a `MessageProducer`.

Invariants: `send` returns when the message is durable; of those sent with `send_async` at most
`max_pending_messages` wait, and each callback is called once. Names and arguments as of Pulsar's
Python client 3.13.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.arguments import check_texts
from pulsar_spark.connector.client.client_errors import Result, exception_of, is_open, translated
from pulsar_spark.connector.client.client_settings import check_type, check_type_or_none
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.connector.client.message_producer import (
    Done,
    MessageProducer,
    Row,
    may_pass,
)
from pulsar_spark.connector.client.records import Schema
from pulsar_spark.connector.inspect.telemetry import tracing
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.model.described import Described
from pulsar_spark.model.positions import message_id as core

if TYPE_CHECKING:
    from pulsar_spark.connector.client.transaction import Transaction

Callback = Callable[[Result, "MessageId | None"], object]
Router = Callable[[Message, int], int]
"""(message, partitions) -> its partition, from 0 on."""
_ARGUMENTS: Final[Mapping[str, type]] = {
    "properties": dict, "partition_key": str, "ordering_key": str, "sequence_id": int,
    "event_timestamp": int, "deliver_at": int, "deliver_after": timedelta,
}  # fmt: skip
"""The arguments of a message beside its content, in the order of `_row`."""
_BEYOND: Final = 1 << 63
_NO_DELAY: Final = timedelta(0)
_log = logging.getLogger(__name__)


class Producer(Described):
    """One producer of a topic; `Client.create_producer` makes it. Safe for several threads."""

    def __init__(
        self,
        engine: MessageProducer,
        schema: Schema,
        *,
        max_pending: int,
        blocks: bool,
        router: Router | None,
        check_open: Callable[[], None],
        closed: Callable[[Producer], None],
    ) -> None:
        self._engine, self._schema, self._router = engine, schema, router
        self._max_pending, self._blocks = max_pending, blocks
        self._check_client, self._on_closed = check_open, closed
        self._is_closed = False

    def topic(self) -> str:
        return str(self._engine.topic)

    def producer_name(self) -> str:
        return self._engine.name

    def last_sequence_id(self) -> int:
        """The highest that was published, also by earlier runs of this name; -1 if none was."""
        return self._engine.last_sequence_id

    def is_connected(self) -> bool:
        return is_open(self._check_open)

    def is_full(self) -> bool:
        """True if as many messages wait as may; 0 is no bound, as in Pulsar."""
        return 0 < self._max_pending <= self._engine.pending

    def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Publish a message, with those that wait, and return its id once it is durable.

        `content` is as the schema takes it; None is a tombstone. Times are milliseconds since 1970.
        There is no replication: what is said of it has no effect. Timeout if the store refuses it
        for `send_timeout_millis`.
        """
        message = (
            content, properties, partition_key, ordering_key, sequence_id, event_timestamp,
            deliver_at, deliver_after,
        )  # fmt: skip
        if replication_clusters is not None or disable_replication is not False:
            _check_replication(replication_clusters, disable_replication)
        with tracing.sending(self.topic()):
            return self._send(message)

    def _send(self, message: tuple[Any, ...]) -> MessageId:
        answers: list[core.MessageId | Exception] = []
        self.enqueue(answers.append, *message, at_once=True)
        clock, remote = self._engine.root.clock, self._engine.root.store.remote
        begun_s = clock.monotonic_s()
        while not answers:
            try:
                self._engine.flush()
            except (PulsarliteError, OSError):  # noqa: PERF203 - once, unless the store fails
                if not answers:  # it waits on
                    clock.sleep(pause_s(clock.monotonic_s() - begun_s, remote=remote))
        (answer,) = answers
        if isinstance(answer, Exception):
            raise refusal_of(answer) from answer
        return self.id_of(answer)

    def send_async(
        self,
        content: Any,
        callback: Callback | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """Publish a message with others; `callback(result, id)` is called when it is durable.

        It may be called in another thread. With a full queue this waits, if the producer blocks;
        else the result is ProducerQueueIsFull, which is raised if there is no callback.
        """
        if replication_clusters is not None or disable_replication is not False:
            _check_replication(replication_clusters, disable_replication)
        if self.is_full():
            if not self._blocks:
                if callback is None:
                    raise client_errors.ProducerQueueIsFull(
                        f"Pulsar error: ProducerQueueIsFull. {self._max_pending} messages wait: "
                        "make the producer with block_if_queue_full=True, or give a callback."
                    )
                callback(Result.ProducerQueueIsFull, None)
                return
            self.flush()
        try:
            self.enqueue(
                None if callback is None else self._telling(callback), content, properties,
                partition_key, ordering_key, sequence_id, event_timestamp, deliver_at,
                deliver_after,
            )  # fmt: skip
        except client_errors.PulsarException as error:
            if callback is None or self._is_closed:
                raise
            callback(error.result, None)

    def add(
        self,
        /,
        transaction: Transaction,
        content: Any,
        partition_key: str | None = None,
        **arguments: Any,
    ) -> None:
        """Publish a message when the transaction commits. What is said of it is as in `send`.

        OperationNotSupported for a producer that wants the topic for itself.
        """
        if self._engine.options.has("accessMode"):
            text = "A transaction's messages come from producers with accessMode Shared."
            raise client_errors.OperationNotSupported(text)
        with translated():
            row = self._row(content, partition_key=partition_key, **arguments)
        transaction.publish(self._engine, row)

    def flush(self) -> None:
        """Return when all messages sent so far are durable."""
        self._check_open()
        with translated():
            self._engine.flush()

    def close(self) -> None:
        """Publish what waits, and leave the topic."""
        self._check_open()
        with translated():
            self._engine.close()
        self._is_closed = True
        self._on_closed(self)

    def end_with_process(self) -> None:
        self._engine.close()

    # -- inside --------------------------------------------------------------------------------

    def _facts(self) -> dict[str, object]:
        return {
            "topic": self.topic(),
            "producer_name": self.producer_name(),
            "partitions": self._engine.partitions,
            "last_sequence_id": self.last_sequence_id(),
            "pending": self._engine.pending,
        }

    def enqueue(
        self, done: Done | None, *message: Any, at_once: bool = False, **arguments: Any
    ) -> None:
        """Have a message, as `_row` takes it, published with others; `done` is told how it went."""
        with translated():
            self._engine.enqueue(self._row(*message, **arguments), done, at_once=at_once)

    def _check_open(self) -> None:
        if self._is_closed:
            raise client_errors.AlreadyClosed("Pulsar error: AlreadyClosed")
        self._check_client()

    def _row(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> Row:
        """The row of a message for the engine. An empty key is none."""
        self._check_open()
        value = None if content is None else self._schema.encode(content)
        arguments = (
            properties, partition_key, ordering_key, sequence_id, event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        if arguments.count(None) < len(arguments):
            _check_arguments(arguments)
        topic_partition = (
            partition_key or None,
            ordering_key.encode() if ordering_key else None,
            properties,
            sequence_id,
            None if event_timestamp is None else _time(event_timestamp),
            None if deliver_at is None else _time(deliver_at),
            None if deliver_after is None else max(deliver_after, _NO_DELAY),
        )
        partition = None if self._router is None else self._routed(value, topic_partition)
        return self._engine.row(value, *topic_partition, partition)

    def _routed(self, value: bytes | None, topic_partition: tuple[Any, ...]) -> int:
        """The partition that the user's router chooses."""
        assert self._router is not None
        key, ordering_key, properties, _, event_time, *_ = topic_partition
        event_time_us = None if event_time is None else round(event_time.timestamp() * 1_000_000)
        message = ReceivedMessage(
            value, (-1, -1, -1, -1), self.topic(), key, ordering_key, properties,
            event_time_us=event_time_us,
        )  # fmt: skip
        count = self._engine.partitions
        partition: Any = self._router(Message(message, self._schema), count)
        if not (isinstance(partition, int) and 0 <= partition < count):
            raise client_errors.UnknownError(  # as Pulsar's client calls it
                f"The message_router gave partition {partition!r} for {self.topic()}, which has "
                f"{count}. It has to give a whole number, 0 or more and below that."
            )
        return int(partition)

    def id_of(self, message_id: core.MessageId) -> MessageId:
        """The id as Pulsar writes it."""
        held = MessageId.of(message_id, self.topic())
        if self._engine.partitions > 1:
            return held
        return MessageId(-1, held.ledger_id(), held.entry_id(), held.batch_index(), self.topic())

    def _telling(self, callback: Callback) -> Done:
        def tell(answer: core.MessageId | Exception) -> None:
            try:
                if isinstance(answer, Exception):
                    callback(refusal_of(answer).result, None)
                else:
                    callback(Result.Ok, self.id_of(answer))
            except Exception:  # noqa: BLE001 - whatever it is, it is the callback's
                _log.exception("A callback of producer %s failed", self.producer_name())

        return tell


def refusal_of(error: Exception) -> client_errors.PulsarException:
    """Why a message was given up: of what might have passed, its time was up."""
    if may_pass(error):
        return client_errors.Timeout(str(error))
    return exception_of(error)


def _check_arguments(arguments: tuple[Any, ...]) -> None:
    """ValueError or TypeError names what is wrong."""
    for (name, kind), given in zip(_ARGUMENTS.items(), arguments, strict=True):
        check_type_or_none(kind, **{name: given})
    check_texts(arguments[0] or {})
    for name, given in zip(_ARGUMENTS, arguments, strict=True):
        if isinstance(given, int) and not -_BEYOND <= given < _BEYOND:
            raise TypeError(f"Argument {name} is {given}, which 64 bits do not hold.")
    sequence_id, deliver_at = arguments[3], arguments[5]
    if sequence_id is not None and sequence_id < 0:
        raise ValueError("sequenceId needs to be >= 0")
    if deliver_at is not None and deliver_at < 0:
        raise TypeError(f"Argument deliver_at is {deliver_at}: it takes 0 or more.")


def _check_replication(clusters: object, is_disabled: object) -> None:
    """ValueError or TypeError, though there is no replication."""
    check_type_or_none(list, replication_clusters=clusters)
    check_type(bool, disable_replication=is_disabled)
    for each in clusters if isinstance(clusters, list) else ():
        if not isinstance(each, str):
            raise TypeError(f"{each!r} is no name of a cluster.")


def _time(since_1970_ms: int) -> datetime:
    """Exactly, which a float is not for every year. ValueError after the year 9999."""
    try:
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=since_1970_ms)
    except OverflowError as error:
        raise ValueError(
            f"{since_1970_ms} ms since 1970 is no time of a year up to 9999."
        ) from error
