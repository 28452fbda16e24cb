"""Receiving, as consumers and readers share it: they wait for messages and hand them out.

Invariants: a message is handed out once, to whoever asked first, or to the listener; who waits is
woken by news, looks now and then besides, and learns soon when this is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.client_errors import is_open, translated
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.connector.client.records import Schema
from pulsar_spark.connector.client.shared_broker import SharedBroker
from pulsar_spark.connector.inspect.telemetry import tracing
from pulsar_spark.connector.runtime.reading.partition_view import PartitionView
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.folder_watch import FolderWatch, Watched, has_activity
from pulsar_spark.connector.storage.polling import LEAST_PAUSE_S, pause_s
from pulsar_spark.model.described import Described
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.schema.schema_info import SchemaInfo
from pulsar_spark.model.topic_name import TopicPartition

_log = logging.getLogger(__name__)


class Engine(Protocol):
    """The engine of a receiver: it receives, and never waits."""

    root: Root

    def has_reached_end_of_topic(self) -> bool:
        """True if there will never be another message."""

    @property
    def is_ready(self) -> bool:
        """True if there is a message, and no need to look for news before."""

    def fetch(self) -> bool:
        """Look for messages; whether there is one now."""

    def take(self) -> ReceivedMessage | None:
        """The next message of those that were fetched."""

    @property
    def watched(self) -> list[Watched]:
        """The folders in which the input of `fetch` appears."""

    def view(self, topic_partition: TopicPartition) -> PartitionView:
        """A partition of which it has received something."""

    def partitions(self) -> Mapping[TopicPartition, PartitionView]:
        """Its topics' partitions as of now."""

    def close(self) -> None:
        """Receive nothing more."""


E = TypeVar("E", bound=Engine)


class Receiver(Described, Generic[E]):
    """Waits, and hands out what an engine receives. Safe for several threads."""

    def __init__(
        self,
        engine: E,
        topic: str,
        schema: Schema,
        *,
        broker: SharedBroker | None,
        check_open: Callable[[], None],
        closed: Callable[[Any], None],
    ) -> None:
        """An embedded `broker` works when somebody waits for it."""
        self._engine, self._topic, self._schema = engine, topic, schema
        self._broker, self._check_client, self._on_closed = broker, check_open, closed
        self._watch = FolderWatch(engine.root.store)
        self._clock, self._remote = engine.root.clock, engine.root.store.remote
        self._is_closed = False
        self._is_listening = True
        self._end_listening: Callable[[], None] | None = None

    @property
    def _name(self) -> str:
        """The name in log lines."""
        return f"a reader of {self._topic}"

    @property
    def _subscription(self) -> str | None:
        """The name of its subscription, which a Reader has not."""
        return None

    def topic(self) -> str:
        return self._topic

    def is_connected(self) -> bool:
        return is_open(self._check_open)

    def fetch(self) -> bool:
        """Look for messages; whether there is one now."""
        self._check_open()
        with translated():
            if self._engine.is_ready:
                return True
            while not self._fetch_first():
                if not self._run_once():
                    return False
            return True

    def has_activity(self) -> bool:
        """True if it is time for another `fetch`; cheap, and may err."""
        return self._is_closed or has_activity(self._watched)

    def pause_s(self, quiet_s: float) -> float:
        """Seconds until the next poll, after that long without activity."""
        return pause_s(quiet_s, remote=self._remote)

    def receive_now(self) -> Message | None:
        """The next message of those that were fetched; None if there is none left."""
        return self._message(self._engine.take())

    def listen(self, listener: Callable[[Any, Message], object]) -> None:
        """Hand each message to the listener from now on, in a thread of its own."""
        name = f"listener of {self._name}"
        self._end_listening = self.follow(lambda: self._hand_to(listener), name)

    def follow(self, look: Callable[[], float], name: str) -> Callable[[], None]:
        """Have that look for messages again and again; returns what ends it."""
        return self._clock.follow(look, name, remote=self._remote, wait=self._wait)

    def has_reached_end_of_topic(self) -> bool:
        """True if there will never be another message, as in Pulsar's Java client.

        The topic was terminated, and a reader has read all of it, a subscription acknowledged all.
        """
        self._check_open()
        with translated():
            return self._engine.has_reached_end_of_topic()

    def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message, of its last partition that has any.

        `earliest` if there is none. NotConnected if this is closed.
        """
        if not self.is_connected():
            raise client_errors.NotConnected("Pulsar error: NotConnected")
        with translated():
            last = self._last_messages()
        return last[max(last)] if last else MessageId.earliest

    def close(self) -> None:
        """Receive nothing more. What a consumer did not acknowledge goes to others."""
        self._check_open()
        self._is_closed = True
        if self._end_listening is not None:
            self._end_listening()
        try:
            with translated():
                self._engine.close()
        finally:
            self._on_closed(self)

    def end_with_process(self) -> None:
        """Receive nothing more, and wait for nobody to whom a message was handed."""
        self._is_closed = True
        self._engine.close()

    # -- inside --------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise client_errors.AlreadyClosed("Pulsar error: AlreadyClosed")
        self._check_client()

    def _message(self, received: ReceivedMessage | None) -> Message | None:
        return None if received is None else Message(received, self._schema, self)

    def _receive(
        self, timeout_ms: int | None, take: Callable[[], Message | None] | None = None
    ) -> Message:
        """The next message. Timeout, or Interrupted where Ctrl-C would end the program."""
        try:
            return self._awaited(timeout_ms, take or self.receive_now)
        except KeyboardInterrupt as error:
            if type(error) is not KeyboardInterrupt:  # the program's own, of its handler
                raise
            raise client_errors.Interrupted("Pulsar error: Interrupted") from None

    def _awaited(self, timeout_ms: int | None, take: Callable[[], Message | None]) -> Message:
        begun_s = self._clock.monotonic_s()
        while True:
            if self.fetch() and (message := take()) is not None:
                return message
            quiet_s = self._clock.monotonic_s() - begun_s
            left_s = inf if timeout_ms is None else timeout_ms / 1000 - quiet_s
            if left_s <= 0 or not self._pause(quiet_s, left_s):
                pending = self._clock.pending()
                raise client_errors.Timeout(f"Pulsar error: TimeOut{pending and '.'}{pending}")

    def _fetch_first(self) -> bool:
        """Look for messages before an embedded broker goes on."""
        if self._broker is None:
            return self._engine.fetch()
        with self._broker.yielding():
            return self._engine.fetch()

    def _run_once(self) -> bool:
        """Make an embedded broker work; whether it had something to do."""
        return self._broker is not None and self._broker.run_once()

    def _pause(self, quiet_s: float, most_s: float) -> bool:
        return self._clock.pause(quiet_s, most_s, remote=self._remote, wait=self._wait)

    def _wait(self, seconds: float) -> None:
        """Wait so long for news. What can't be taken in yet is no news."""
        if self.has_activity():
            self._clock.sleep(min(seconds, LEAST_PAUSE_S))
            return
        self._watch.wait((each.folder for each in self._watched), seconds, self.has_activity)

    @property
    def _watched(self) -> list[Watched]:
        """The folders in which its own input appears, and that of an embedded broker."""
        return self._engine.watched + ([] if self._broker is None else self._broker.watched)

    def id_of(self, received: ReceivedMessage) -> MessageId:
        """The id as Pulsar writes it."""
        held = received.message_id
        found = self._id(received.partition, held.position, held.batch_index)
        found.attempt = received.attempt
        return found

    def _id(self, topic_partition: TopicPartition, at: Position, batch_index: int) -> MessageId:
        view = self._engine.view(topic_partition)
        several = view.ledger.state.partitions > 1
        ledger = view.ledgers.get(at.ledger_id)
        if ledger is not None and ledger.batch_sizes.size_of(at.entry_id) == 1:
            batch_index = -1
        name = str(topic_partition) if several else topic_partition.topic
        number = topic_partition.partition if several else -1
        return MessageId(number, at.ledger_id, at.entry_id, batch_index, name)

    def written_with(self, received: ReceivedMessage) -> SchemaInfo | None:
        """The schema of the message's own version; None if it has none."""
        if received.schema_version is None:
            return None
        schemas = self._engine.view(received.partition).ledger.state.schemas
        return schemas.get(received.schema_version)

    def _last_messages(self) -> dict[TopicPartition, MessageId]:
        """The last message of each partition that has one."""
        found = {}
        for topic_partition, view in self._engine.partitions().items():
            at = view.last_position
            if at.entry_id >= 0 and (ledger := view.ledgers.get(at.ledger_id)) is not None:
                size = ledger.batch_sizes.size_of(at.entry_id)
                found[topic_partition] = self._id(topic_partition, at, size - 1)
        return found

    def _hand_to(self, listener: Callable[[Any, Message], object]) -> float:
        """Hand over what there is; 0 if there was something."""
        handed = 0
        try:
            # A look takes a while, in which the listener may have been paused.
            while self._may_deliver() and self.fetch() and self._may_deliver():
                message = self.receive_now()
                if message is None:
                    break
                handed += 1
                self._report(listener, message)
        except client_errors.PulsarException as error:
            if client_errors.may_pass(error):
                _log.warning("The listener of %s looks again: %s", self._name, error)
            elif not self._is_closed and self._end_listening is not None:
                _log.error("The listener of %s stops: %s", self._name, error)
                self._end_listening()
        return 0.0 if handed else inf

    def _may_deliver(self) -> bool:
        return self._is_listening and not self._is_closed

    def _report(self, listener: Callable[[Any, Message], object], message: Message) -> None:
        try:
            with tracing.processing(message, self._subscription):
                listener(self, message)
        except Exception:  # noqa: BLE001 - whatever it is, it is the listener's
            _log.exception("The listener of %s failed", self._name)
