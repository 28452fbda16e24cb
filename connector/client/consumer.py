"""A consumer of the client: it waits, and hands out what a `MessageConsumer` receives.

Invariants: a message is handed out once, to whoever asked first, or to the listener; who waits
learns soon when the consumer is closed. Names and arguments as of Pulsar's Python client 3.13, and
`reconsume_later`, which that lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.client_errors import translated
from pulsar_spark.connector.client.client_settings import (
    ConsumerBatchReceivePolicy,
    check_type,
)
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.receiver import Receiver
from pulsar_spark.connector.client.records import Schema
from pulsar_spark.connector.client.shared_broker import SharedBroker
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.connector.runtime.system_topics.hosted_topics import FollowedTopics
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.connector.runtime.system_topics.subscription_admin import ask
from pulsar_spark.connector.storage.clock import Clock
from pulsar_spark.errors import BrokerRefusedError, PulsarliteError
from pulsar_spark.model.positions import message_id as core
from pulsar_spark.model.positions.position import EARLIEST, LATEST
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.option_values import milliseconds_of

if TYPE_CHECKING:
    from pulsar_spark.connector.client.transaction import Transaction

Listener = Callable[["Consumer", Message], object]
Messages = Message | MessageId | Iterable[Message | MessageId]
"""One, or many."""
_ENDS: Final = {MessageId.earliest: EARLIEST, MessageId.latest: LATEST}

_log = logging.getLogger(__name__)


class Batch:
    """The messages of one `batch_receive`, up to the bounds of its policy."""

    def __init__(self, policy: ConsumerBatchReceivePolicy, clock: Clock) -> None:
        self._policy, self._clock, self._size = policy, clock, 0
        self._until_s = clock.monotonic_s() + policy.timeout_ms / 1000
        self.messages: list[Message] = []

    @property
    def is_full(self) -> bool:
        policy = self._policy
        is_long = 0 < policy.max_num_message <= len(self.messages)
        return is_long or 0 < policy.max_num_bytes <= self._size

    def left_ms(self) -> int | None:
        """The time that is left to wait; None if it waits for ever."""
        if self._policy.timeout_ms <= 0:
            return None
        return max(0, round((self._until_s - self._clock.monotonic_s()) * 1000))

    def fits(self, message: Message) -> bool:
        """True if the batch has room for it; a batch always takes one."""
        most = self._policy.max_num_bytes
        return not self.messages or most <= 0 or self._size + len(message.data()) <= most

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._size += len(message.data())


class Consumer(Receiver[MessageConsumer]):
    """One consumer of a subscription; `Client.subscribe` makes it. Safe for several threads."""

    def __init__(
        self,
        engine: MessageConsumer,
        topic: str,
        schema: Schema,
        batch_policy: ConsumerBatchReceivePolicy,
        *,
        inclusive: bool = False,
        receipts: bool = False,
        broker: SharedBroker | None,
        check_open: Callable[[], None],
        closed: Callable[[Consumer], None],
    ) -> None:
        """Waits until the broker has let it in; the embedded one, if there is any."""
        super().__init__(engine, topic, schema, broker=broker, check_open=check_open, closed=closed)
        self._batch_policy, self._inclusive, self._receipts = batch_policy, inclusive, receipts
        try:
            self._until(engine.is_connected)
        except BaseException:
            with suppress(PulsarliteError, OSError):  # its lease ends in any case
                engine.close()
            raise
        self._end_attending = self._clock.follow(
            lambda: engine.attend(self.has_activity), self._name, remote=self._remote
        )

    def close(self) -> None:
        self._end_attending()
        super().close()

    def subscription_name(self) -> str:
        return str(self._engine.options["subscriptionName"])

    def consumer_name(self) -> str:
        return self._engine.name

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for it. Timeout if there is none in that time."""
        if timeout_millis is not None:
            check_type(int, timeout_millis=timeout_millis)
        if self._end_listening is not None:
            text = "This consumer has a message_listener, which gets its messages: leave it out."
            raise client_errors.InvalidConfiguration(text)
        return self._receive(timeout_millis)

    def batch_receive(self) -> list[Message]:
        """The messages that are there, up to the consumer's policy; it waits as the policy says.

        After an error the next call hands out what this one had taken.
        """
        with self.batch() as batch:
            while not batch.is_full:
                try:
                    message = self._receive(batch.left_ms(), self.reserve)
                except client_errors.Timeout:
                    break
                if not self.added(batch, message):
                    break
        return batch.messages

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """A batch to be filled within the block by `reserve`, and handed out at its end.

        If the block fails its messages are the next. What is revoked meanwhile is left out.
        """
        batch = Batch(self._batch_policy, self._clock)
        try:
            yield batch
        except BaseException:
            self._engine.queue.put_back([each.received for each in batch.messages])
            raise
        handed = {*map(id, self._engine.hand_out([each.received for each in batch.messages]))}
        batch.messages = [each for each in batch.messages if id(each.received) in handed]

    def reserve(self) -> Message | None:
        """The next message of those that were fetched, for a batch."""
        return self._message(self._engine.reserve())

    def added(self, batch: Batch, message: Message) -> bool:
        """Add it to the batch if there is room; otherwise it is handed out next."""
        if batch.fits(message):
            batch.add(message)
            return True
        self._engine.queue.put_back([message.received])
        return False

    def pause_message_listener(self) -> None:
        """Hand the listener no more messages for now; one may be under way.

        InvalidConfiguration if the consumer has no listener.
        """
        self._check_listener()
        self._is_listening = False

    def resume_message_listener(self) -> None:
        """Hand the listener messages again. InvalidConfiguration as of pausing."""
        self._check_listener()
        self._is_listening = True

    # -- acknowledging -------------------------------------------------------------------------

    def acknowledge(self, message: Messages) -> None:
        """Acknowledge this message, or these: they are not delivered any more.

        It reaches the broker with others, or at once if the consumer wants receipts, and then this
        waits for the broker's.
        """
        self._check_open()
        with translated():
            self._engine.acknowledge(*self._received_all(message))
            self._await_receipt()

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge all messages of its partition up to this."""
        self._check_open()
        with translated():
            try:
                self._engine.acknowledge_cumulative(self._received(message))
            except BrokerRefusedError as error:
                kind = client_errors.CumulativeAcknowledgementNotAllowedError
                raise kind(str(error)) from error
            self._await_receipt()

    def acknowledge_in(self, transaction: Transaction, *messages: Message) -> None:
        """Acknowledge these messages when the transaction commits; then it awaits a receipt."""
        self._check_open()
        received = [each.received for each in messages]
        transaction.acknowledge(self._engine, received, self._await_receipt)

    def negative_acknowledge(
        self,
        message: Messages,
        *,
        delay_millis: int | None = None,
        error: str | BaseException | None = None,
    ) -> None:
        """Have this message, or these, delivered again after the consumer's delay, or that one.

        If it becomes a dead letter, the last `error` is in its property ERROR. A closed consumer
        does nothing: it has given all back.
        """
        if self._is_closed:
            return
        with translated():
            messages = self._received_all(message)
            delay_ms = None if delay_millis is None else milliseconds_of(delay_millis)
            self._engine.negative_acknowledge(*messages, delay_ms=delay_ms, error=_text(error))

    def reconsume_later(
        self,
        message: Message,
        delay_millis: int,
        properties: Mapping[str, str] | None = None,
        *,
        error: str | BaseException | None = None,
    ) -> None:
        """Have this message delivered again after that delay, from the retry letter topic.

        The `error` is in the property ERROR of its copy.
        """
        self._check_open()
        with translated():
            delay_ms = milliseconds_of(delay_millis)
            self._engine.reconsume_later(message.received, delay_ms, properties, _text(error))

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all messages delivered again that were received and not acknowledged.

        A closed consumer does nothing: it has given all back.
        """
        if self._is_closed:
            return
        with translated():
            self._engine.redeliver_unacknowledged_messages()

    # -- the subscription ----------------------------------------------------------------------

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message, or at the first that was published at that time, in ms.

        With `start_message_id_inclusive` the message itself is delivered too. `earliest` and
        `latest` are the ends of the topic. A message moves its own topic partition only; ValueError
        if the consumer has several topics, and the id names none of them.
        """
        self._check_open()
        if not isinstance(messageid, (MessageId, int)):
            raise ValueError(f"invalid seek_arg type {type(messageid)}")  # noqa: TRY004 - as Pulsar's
        with translated():
            if isinstance(messageid, int):
                commands = self._engine.seeks(messageid)
            elif messageid in _ENDS:
                commands = self._engine.seeks(_ENDS[messageid])
            else:
                topic_partition = self._partition_of(messageid)
                commands = self._engine.seeks(
                    self._from(messageid.core, topic_partition), topic_partition
                )
            before = {
                topic_partition: self._engine.epoch(topic_partition) for topic_partition in commands
            }
            ask(self._engine.root, commands, self._engine.options["drainTimeout"] / 1000)
        self._until(lambda: all(self._engine.epoch(each) > before[each] for each in before))

    def unsubscribe(self) -> None:
        """Delete the subscription, and close this consumer."""
        self._check_open()
        with translated():
            self._engine.unsubscribe()
        self._until(lambda: self._engine.is_closed)
        self.close()

    def settle(self, outcomes: Iterable[Mapping[str, Any]]) -> None:
        """Say of messages what the rows of `pulsar_spark.process` say."""
        self._check_open()
        with translated():
            self._engine.report_rows(outcomes)

    def abandon(self) -> Lease | None:
        """Say nothing any more, as if its process had been killed; the lease that will lapse."""
        self._is_closed = True
        self._end_attending()
        if self._end_listening is not None:
            self._end_listening()
        self._on_closed(self)
        return self._engine.abandon()

    # -- inside --------------------------------------------------------------------------------

    def _check_listener(self) -> None:
        if self._end_listening is None:
            raise client_errors.InvalidConfiguration("This consumer has no message_listener.")

    @property
    def _subscription(self) -> str | None:
        return self.subscription_name()

    @property
    def _name(self) -> str:
        return f"consumer {self.consumer_name()}"

    def _facts(self) -> dict[str, object]:
        return {
            "topic": self.topic(),
            "subscription_name": self.subscription_name(),
            "subscription_type": str(self._engine.options["subscriptionType"]),
            "consumer_name": self.consumer_name(),
            "is_connected": self.is_connected(),
        }

    def _until(self, is_done: Callable[[], bool]) -> None:
        """Take in news until that holds.

        Timeout if it does not in `operation_timeout_seconds`, ServiceUnitNotReady if the broker has
        quarantined one of the topics.
        """
        begun_s, wait_s = self._clock.monotonic_s(), self._engine.options["drainTimeout"] / 1000
        while True:
            with translated():
                while self._run_once():
                    pass
                self._engine.poll()
            if is_done():
                return
            quiet_s = self._clock.monotonic_s() - begun_s
            left_s = wait_s - quiet_s
            if left_s <= 0 or not self._pause(quiet_s, left_s):
                with translated():
                    self._check_quarantine()
                url = self._engine.root.service_url
                raise client_errors.Timeout(
                    f"Pulsar error: TimeOut. The broker of {url} did not answer. Start one "
                    f"(pulsarlite standalone --service-url {url}), or make the client with "
                    'broker="embedded".'
                )

    def _check_quarantine(self) -> None:
        hosted = FollowedTopics(self._engine.root)
        hosted.follow()
        for topic_partition in sorted(self._engine.partitions()):
            if (found := hosted.quarantined.get(topic_partition)) is not None:
                raise client_errors.ServiceUnitNotReady(
                    f"The broker has quarantined {topic_partition}: {found.error}"
                )

    def _await_receipt(self) -> None:
        if self._receipts:
            self._engine.request_receipt()
            self._until(self._engine.is_answered)

    def _received_all(self, messages: Messages) -> list[ReceivedMessage]:
        if isinstance(messages, (Message, MessageId, str, bytes)):
            return [self._received(messages)]
        return [self._received(each) for each in messages]

    def _received(self, message: Message | MessageId) -> ReceivedMessage:
        if isinstance(message, Message):
            return message.received
        if not isinstance(message, MessageId):
            raise TypeError(f"{message!r} is neither a Message nor a MessageId.")
        held = message.core
        place = held.ledger_id, held.entry_id, held.partition, held.batch_index
        topic = self._partition_of(message).topic
        return ReceivedMessage(None, place, topic, attempt=message.attempt)

    def _partition_of(self, message_id: MessageId) -> TopicPartition:
        """The partition of its message. OperationNotSupported if it might be one of several."""
        topics = {topic_partition.topic for topic_partition in self._engine.partitions()}
        if message_id.topic is not None:
            topics &= {TopicName.parse(message_id.topic).partitioned_topic_name}
        if len(topics) != 1:
            raise client_errors.OperationNotSupported(
                f"Of which topic is {message_id}? Give MessageId.deserialize its topic."
            )
        return TopicPartition(topics.pop(), max(message_id.partition(), 0))

    def _from(self, held: core.MessageId, topic_partition: TopicPartition) -> core.MessageId:
        """The first message of the partition to be delivered after a seek to this one."""
        if self._inclusive:
            return held
        ledger = self._engine.view(topic_partition).ledgers.get(held.ledger_id)
        size = 1 if ledger is None else ledger.batch_sizes.size_of(held.entry_id)
        if 0 <= held.batch_index < size - 1:
            return replace(held, batch_index=held.batch_index + 1)
        return core.MessageId(held.ledger_id, held.entry_id + 1, held.partition)


def _text(error: str | BaseException | None) -> str | None:
    """The error's text for the dead letter; surrogates, which are no UTF-8, are escaped."""
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    return None if error is None else error.encode(errors="backslashreplace").decode()
