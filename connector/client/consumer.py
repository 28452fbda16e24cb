"""A consumer of the client: it waits, and hands out what a `MessageConsumer` receives.

Invariants: a message is handed out once, to whoever asked first, or to the listener; who waits
learns soon when the consumer is closed. Names and arguments as of Pulsar's Python client 3.13, and
`reconsume_later`, which that lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.client_errors import translated
from pulsar_spark.connector.client.client_settings import (
    ConsumerBatchReceivePolicy,
    check_type_or_none,
)
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.connector.client.message_consumer import MessageConsumer, ReceivedMessage
from pulsar_spark.connector.client.records import Schema
from pulsar_spark.connector.client.shared_broker import SharedBroker
from pulsar_spark.connector.source.partition_view import PartitionView
from pulsar_spark.connector.spark.polling import LEAST_PAUSE_S, pause_s
from pulsar_spark.connector.storage.folder_watch import FolderWatch
from pulsar_spark.connector.system.lease import Lease
from pulsar_spark.connector.system.subscription_admin import ask
from pulsar_spark.errors import BrokerRefusedError
from pulsar_spark.positions import message_id as core
from pulsar_spark.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.schema.schema_info import SchemaInfo
from pulsar_spark.shown import Shown
from pulsar_spark.topic_name import TopicName, TopicPartition

if TYPE_CHECKING:
    from pulsar_spark.connector.client.transaction import Transaction

Listener = Callable[["Consumer", Message], object]
Messages = Message | MessageId | Iterable[Message | MessageId]
"""One, or many."""
WHATEVER_ATTEMPT: Final = -1
"""An id does not say which delivery of its message is meant."""

_log = logging.getLogger(__name__)


class Consumer(Shown):
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
        self._engine, self._topic, self._schema = engine, topic, schema
        self._batch_policy, self._inclusive, self._receipts = batch_policy, inclusive, receipts
        self._broker, self._check_client, self._on_closed = broker, check_open, closed
        self._watch = FolderWatch(engine.root.store)
        self._clock, self._remote = engine.root.clock, engine.root.store.remote
        self._is_closed = False
        self._is_listening = True
        self._end_listening: Callable[[], None] | None = None
        self._last: dict[tuple[str, int], core.MessageId | ReceivedMessage] = {}
        """The last message of each partition that was handed out."""
        try:
            self._until(engine.is_connected)
        except BaseException:
            engine.close()
            raise

    def topic(self) -> str:
        return self._topic

    def subscription_name(self) -> str:
        return str(self._engine.options["subscriptionName"])

    def consumer_name(self) -> str:
        return self._engine.name

    def is_connected(self) -> bool:
        return not self._is_closed

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for it. Timeout if there is none in that time."""
        check_type_or_none(int, timeout_millis=timeout_millis)
        if self._end_listening is not None:
            text = "This consumer has a message_listener, which gets its messages: leave it out."
            raise client_errors.InvalidConfiguration(text)
        return self._receive(timeout_millis)

    def fetch(self) -> bool:
        """Look for messages; whether there is one now."""
        self._check_open()
        with translated():
            if self._engine.is_ready:
                return True
            while not self._fetch_first():
                if not self._turn():
                    return False
            return True

    def has_news(self) -> bool:
        """Whether it is time for another `fetch`; cheap, and may err."""
        broker = self._broker
        return (
            self._is_closed or self._engine.has_news() or (broker is not None and broker.has_news())
        )

    def pause_s(self, quiet_s: float) -> float:
        """How long to wait before the next look, when nothing has come for so long."""
        return pause_s(quiet_s, remote=self._remote)

    def receive_now(self) -> Message | None:
        """The next message of those that were fetched; None if there is none left."""
        received = self._engine.take()
        return None if received is None else self._handed_out(received)

    def batch_receive(self) -> list[Message]:
        """What there is, up to the consumer's policy; waits for it as the policy says."""
        policy, found, size = self._batch_policy, list[Message](), 0
        until_s = self._clock.monotonic_s() + policy.timeout_ms / 1000
        while not (0 < policy.max_num_message <= len(found) or 0 < policy.max_num_bytes <= size):
            left_ms = None
            if policy.timeout_ms > 0:
                left_ms = max(0, round((until_s - self._clock.monotonic_s()) * 1000))
            try:
                found.append(self._receive(left_ms))
            except client_errors.Timeout:
                break
            size += len(found[-1].data())
        return found

    def listen(self, listener: Listener) -> None:
        """Hand each message to the listener from now on, in a thread of its own."""
        name = f"listener of {self.consumer_name()}"
        self._end_listening = self.follow(lambda: self._hand_to(listener), name)

    def follow(self, look: Callable[[], float], name: str) -> Callable[[], None]:
        """Have that look for messages again and again; returns what ends it."""
        return self._clock.follow(look, name, remote=self._remote, wait=self._rest)

    def pause_message_listener(self) -> None:
        """Hand the listener no more messages for now; one may be under way."""
        self._is_listening = False

    def resume_message_listener(self) -> None:
        self._is_listening = True

    def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message, of its last partition that has any.

        `earliest` if there is none.
        """
        with translated():
            last = self._last_messages()
        return last[max(last)] if last else MessageId.earliest

    def has_message_available(self) -> bool:
        """Whether there is a message behind the last that was handed out."""
        with translated():
            if self._engine.has_received:
                return True
            views = self._engine.partitions().items()
            return any(_has_behind(view, _id(self._last.get(about))) for about, view in views)

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
        """Acknowledge these messages when the transaction commits."""
        self._check_open()
        transaction.acknowledge(self._engine, [each.received for each in messages])

    def negative_acknowledge(self, message: Messages, *, delay_millis: int | None = None) -> None:
        """Have this message, or these, delivered again after the consumer's delay, or that one."""
        self._check_open()
        with translated():
            messages = self._received_all(message)
            self._engine.negative_acknowledge(*messages, delay_ms=delay_millis)

    def reconsume_later(
        self, message: Message, delay_millis: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Have this message delivered again after that delay, from the retry letter topic."""
        self._check_open()
        with translated():
            self._engine.reconsume_later(message.received, delay_millis, properties)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all messages delivered again that were received and not acknowledged."""
        self._check_open()
        with translated():
            self._engine.redeliver_unacknowledged_messages()

    # -- the subscription ----------------------------------------------------------------------

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message, or at the first that was published at that time, in ms.

        With `start_message_id_inclusive` the message itself is delivered too. `earliest` and
        `latest` are the ends of the topic.
        """
        self._check_open()
        to: Any
        if isinstance(messageid, MessageId):
            ends = {MessageId.earliest: EARLIEST, MessageId.latest: LATEST}
            to = ends.get(messageid) or self._from(messageid.core)
        elif isinstance(messageid, int):
            to = datetime.fromtimestamp(messageid / 1000, timezone.utc)
        else:
            raise ValueError(f"invalid seek_arg type {type(messageid)}")  # noqa: TRY004 - as Pulsar's
        with translated():
            commands = self._engine.seeks(to)
            before = {about: self._engine.epoch(about) for about in commands}
            ask(self._engine.root, commands, self._engine.options["drainTimeout"] / 1000)
        self._until(lambda: all(self._engine.epoch(each) > before[each] for each in before))
        self.begins_at(messageid)

    def begins_at(self, messageid: MessageId | int) -> None:
        """It reads on from there: what was handed out before does not count any more."""
        if messageid == MessageId.latest:
            for about, each in self._last_messages().items():
                self._last[about] = each.core
            return
        self._last = {}
        if isinstance(messageid, MessageId) and not self._inclusive:
            for about in self._partitions_of(messageid.core):
                self._last[about] = messageid.core

    def unsubscribe(self) -> None:
        """Delete the subscription, and close this consumer."""
        self._check_open()
        with translated():
            self._engine.unsubscribe()
        self._until(lambda: self._engine.is_closed)
        self.close()

    def close(self) -> None:
        """Leave the subscription: what was not acknowledged goes to others."""
        self._check_open()
        self._is_closed = True
        if self._end_listening is not None:
            self._end_listening()
        with translated():
            self._engine.close()
        self._on_closed(self)

    def settle(self, outcomes: Iterable[Mapping[str, Any]]) -> None:
        """Say of messages what the rows of `pulsar_spark.process` say."""
        self._check_open()
        with translated():
            self._engine.say(outcomes)

    def abandon(self) -> Lease | None:
        """Say nothing any more, as if its process had been killed; the lease that will lapse."""
        self._is_closed = True
        if self._end_listening is not None:
            self._end_listening()
        self._on_closed(self)
        return self._engine.abandon()

    # -- inside --------------------------------------------------------------------------------

    def _facts(self) -> dict[str, object]:
        return {
            "topic": self.topic(),
            "subscription_name": self.subscription_name(),
            "subscription_type": str(self._engine.options["subscriptionType"]),
            "consumer_name": self.consumer_name(),
            "is_connected": self.is_connected(),
        }

    def _check_open(self) -> None:
        if self._is_closed:
            raise client_errors.AlreadyClosed("Pulsar error: AlreadyClosed")
        self._check_client()

    def _receive(self, timeout_ms: int | None) -> Message:
        begun_s = self._clock.monotonic_s()
        while True:
            if self.fetch() and (message := self.receive_now()) is not None:
                return message
            quiet_s = self._clock.monotonic_s() - begun_s
            left_s = inf if timeout_ms is None else timeout_ms / 1000 - quiet_s
            if left_s <= 0 or not self._pause(quiet_s, left_s):
                raise client_errors.Timeout(f"Pulsar error: TimeOut.{self._clock.pending()}")

    def _until(self, is_done: Callable[[], bool]) -> None:
        """Take in news until that holds; Timeout if it does not in `operation_timeout_seconds`."""
        begun_s, wait_s = self._clock.monotonic_s(), self._engine.options["drainTimeout"] / 1000
        while True:
            with translated():
                while self._turn():
                    pass
                self._engine.poll()
            if is_done():
                return
            quiet_s = self._clock.monotonic_s() - begun_s
            left_s = wait_s - quiet_s
            if left_s <= 0 or not self._pause(quiet_s, left_s):
                url = self._engine.root.service_url
                raise client_errors.Timeout(
                    f"Pulsar error: TimeOut. The broker of {url} did not answer. Start one "
                    f"(pulsarlite standalone --service-url {url}), or make the client with "
                    'broker="embedded".'
                )

    def _fetch_first(self) -> bool:
        """Look for messages before an embedded broker goes on."""
        if self._broker is None:
            return self._engine.fetch()
        with self._broker.standing_back():
            return self._engine.fetch()

    def _turn(self) -> bool:
        """Make an embedded broker work; whether it had something to do."""
        return self._broker is not None and self._broker.turn()

    def _pause(self, quiet_s: float, most_s: float) -> bool:
        return self._clock.pause(quiet_s, most_s, remote=self._remote, wait=self._rest)

    def _rest(self, seconds: float) -> None:
        """Wait so long for news. What can't be taken in yet is no news."""
        if self.has_news():
            self._clock.sleep(min(seconds, LEAST_PAUSE_S))
            return
        folders = self._engine.log_folders
        if self._broker is not None:
            folders += self._broker.log_folders
        self._watch.wait(folders, seconds, self.has_news)

    def _await_receipt(self) -> None:
        if self._receipts:
            self._engine.ask_for_receipt()
            self._until(self._engine.is_answered)

    def _handed_out(self, received: ReceivedMessage) -> Message:
        self._last[received.topic, max(received.place[2], 0)] = received
        return Message(received, self._schema, self)

    def id_of(self, received: ReceivedMessage) -> MessageId:
        """The id as Pulsar writes it."""
        held = received.message_id
        return self._id(received.partition, held.position, held.batch_index)

    def _id(self, about: TopicPartition, at: Position, batch_index: int) -> MessageId:
        view = self._engine.view(about)
        several = view.ledger.state.partitions > 1
        ledger = view.ledgers.get(at.ledger_id)
        if ledger is not None and ledger.batch_sizes.size_of(at.entry_id) == 1:
            batch_index = -1
        name = str(about) if several else about.topic
        number = about.partition if several else -1
        return MessageId(number, at.ledger_id, at.entry_id, batch_index, name)

    def written_with(self, received: ReceivedMessage) -> SchemaInfo | None:
        """The schema of the message's own version; None if it has none."""
        if received.schema_version is None:
            return None
        schemas = self._engine.view(received.partition).ledger.state.schemas
        return schemas.get(received.schema_version)

    def _received_all(self, messages: Messages) -> list[ReceivedMessage]:
        if isinstance(messages, (Message, MessageId, str, bytes)):
            return [self._received(messages)]
        return [self._received(each) for each in messages]

    def _received(self, message: Message | MessageId) -> ReceivedMessage:
        if isinstance(message, Message):
            return message.received
        if not isinstance(message, MessageId):
            raise TypeError(f"{message!r} is neither a Message nor a MessageId.")
        topics = {about.topic for about in self._engine.partitions()}
        if message.topic is not None:
            topics &= {TopicName.parse(message.topic).partitioned_topic_name}
        if len(topics) != 1:
            raise ValueError(f"Of which topic is {message}? Give MessageId.deserialize its topic.")
        held = message.core
        place = held.ledger_id, held.entry_id, held.partition, held.batch_index
        return ReceivedMessage(None, place, topics.pop(), attempt=WHATEVER_ATTEMPT)

    def _last_messages(self) -> dict[TopicPartition, MessageId]:
        """The last message of each partition that has one."""
        found = {}
        for about, view in self._engine.partitions().items():
            at = view.last_position
            if at.entry_id >= 0 and (ledger := view.ledgers.get(at.ledger_id)) is not None:
                size = ledger.batch_sizes.size_of(at.entry_id)
                found[about] = self._id(about, at, size - 1)
        return found

    def _partitions_of(self, message_id: core.MessageId) -> list[TopicPartition]:
        """Those of that number: one, unless the consumer has several topics."""
        number = max(message_id.partition, 0)
        return [about for about in self._engine.partitions() if about.partition == number]

    def _from(self, held: core.MessageId) -> core.MessageId:
        """The first message to be delivered after a seek to this one."""
        if self._inclusive:
            return held
        for about in self._partitions_of(held):
            ledger = self._engine.view(about).ledgers.get(held.ledger_id)
            size = 1 if ledger is None else ledger.batch_sizes.size_of(held.entry_id)
            if 0 <= held.batch_index < size - 1:
                return replace(held, batch_index=held.batch_index + 1)
        return core.MessageId(held.ledger_id, held.entry_id + 1, held.partition)

    def _hand_to(self, listener: Listener) -> float:
        """Hand over what there is; 0 if there was something."""
        handed = 0
        try:
            # A look takes a while, in which the listener may have been paused.
            while self._may_tell() and self.fetch() and self._may_tell():
                message = self.receive_now()
                if message is None:
                    break
                handed += 1
                self._tell(listener, message)
        except client_errors.PulsarException as error:
            if not self._is_closed and self._end_listening is not None:
                _log.error("Consumer %s stops: %s", self.consumer_name(), error)
                self._end_listening()
        return 0.0 if handed else inf

    def _may_tell(self) -> bool:
        return self._is_listening and not self._is_closed

    def _tell(self, listener: Listener, message: Message) -> None:
        try:
            listener(self, message)
        except Exception:  # noqa: BLE001 - whatever it is, it is the listener's
            _log.exception("The listener of consumer %s failed", self.consumer_name())


def _id(last: core.MessageId | ReceivedMessage | None) -> core.MessageId | None:
    return last.message_id if isinstance(last, ReceivedMessage) else last


def _has_behind(view: PartitionView, last: core.MessageId | None) -> bool:
    """Whether a partition has a message to read behind that one; behind None, any."""
    after = view.first_position
    if last is not None:
        after = last.position
        ledger = view.ledgers.get(after.ledger_id)
        size = 1 if ledger is None else ledger.batch_sizes.size_of(after.entry_id)
        if 0 <= last.batch_index < size - 1:
            return True
    there = PositionSet.between(view.ledgers, after, view.last_position)
    return bool(there.difference(view.hidden.of(there.ledger_ids)).difference(view.removed))
