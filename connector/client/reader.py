"""A reader and a table view of the client: they read a topic from a place of their own choice.

Invariants: nobody hears of a reader, so it needs no broker and holds back no trim: what was trimmed
before it came there is passed over, with a warning; each message is taken into its queue once, but
after a seek. A table view's value of a key is that of the key's last message, and one without
content takes the key away. Methods as of Pulsar's Python client 3.13. Follows Pulsar's `ReaderImpl`
and `TableViewImpl`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.client_errors import translated
from pulsar_spark.connector.client.client_settings import check_type
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.connector.client.receiver import Receiver
from pulsar_spark.connector.client.records import Schema
from pulsar_spark.connector.runtime.reading.partition_view import PartitionView
from pulsar_spark.connector.runtime.reading.reader_run import ReaderRun
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage, read_between
from pulsar_spark.connector.runtime.reading.start_positions import StartPosition
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.model.described import Described
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Options, Scope

ReaderListener = Callable[["Reader", Message], object]

_log = logging.getLogger(__name__)


class MessageReader:
    """Reads one topic, and never waits. Safe for several threads."""

    def __init__(
        self, options: Mapping[str, str], start: StartPosition, *, prefetch: int = 1
    ) -> None:
        """Begins at `start` as of now; `options` are those of a streaming source.

        InvalidOptionError if an option is wrong, TopicNotFoundError if there is no topic.
        """
        given = {**options, "maxMessagesPerTrigger": str(prefetch), "failOnDataLoss": "false"}
        self.options: Options = options_of(given, Scope.STREAM_READ)
        self.root = Root.of(self.options)
        self._run = ReaderRun(self.options, self.root, start)
        self._lock = threading.RLock()
        self._queue: deque[ReceivedMessage] = deque()
        self._offset = StreamOffset()
        partitions = self.partitions()
        start.check_topics(partitions)
        self.seek(partitions, start)

    @property
    def is_ready(self) -> bool:
        """True if its queue has a message."""
        return bool(self._queue)

    def fetch(self) -> bool:
        """Fill its queue if that is empty; whether there is a message now."""
        with self._lock:
            if not self._queue:
                self._run.topics.refresh()
            while not self._queue:
                planned = self._run.plan(self._offset)
                if planned is None:
                    return False
                self._run.planned()
                taken = list(read_between(self._run.topics, self._offset, planned))
                self._queue.extend(taken)  # all or none: after a fault they are read again
                self._offset = planned
            return True

    def take(self) -> ReceivedMessage | None:
        """The next message of its queue."""
        try:
            return self._queue.popleft()
        except IndexError:
            return None

    def seek(self, partitions: Iterable[TopicPartition], to: StartPosition) -> None:
        """Go on from there in these partitions; in others where it is."""
        with self._lock:
            begun = {
                topic_partition: to.cursor(self.view(topic_partition))
                for topic_partition in partitions
            }
            begins = {
                topic_partition: PartitionOffset.beginning(each)
                for topic_partition, each in begun.items()
            }
            moved = self._offset.with_changes(begins)
            self._offset = replace(moved, incarnations=self._run.topics.incarnations(moved))
            others = []  # one by one: another thread may take messages meanwhile
            while (message := self.take()) is not None:
                if message.partition not in begun:
                    others.append(message)
            self._queue.extend(others)

    @property
    def watched(self) -> list[Watched]:
        """The folders in which the input of `fetch` appears."""
        return self._run.topics.watched

    def view(self, topic_partition: TopicPartition) -> PartitionView:
        """A partition of its topic."""
        return self._run.topics.view(topic_partition)

    def partitions(self) -> Mapping[TopicPartition, PartitionView]:
        """Its topic's partitions as of now."""
        with self._lock:
            self._run.topics.refresh()
            return self._run.topics.partitions()

    def has_reached_end_of_topic(self) -> bool:
        """True if its topic is terminated, and it has read everything."""
        views = self.partitions().values()
        return all(view.ledger.state.is_terminated for view in views) and not self.fetch()

    def close(self) -> None:
        """Nobody has to hear of it."""


class Reader(Receiver[MessageReader]):
    """One reader; `Client.create_reader` makes it. Safe for several threads."""

    def __init__(
        self,
        engine: MessageReader,
        topic: str,
        schema: Schema,
        *,
        inclusive: bool,
        check_open: Callable[[], None],
        closed: Callable[[Reader], None],
    ) -> None:
        super().__init__(engine, topic, schema, broker=None, check_open=check_open, closed=closed)
        self._inclusive = inclusive

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for it. Timeout if there is none in that time."""
        if timeout_millis is not None:
            check_type(int, timeout_millis=timeout_millis)
        return self._receive(timeout_millis)

    def has_message_available(self) -> bool:
        """True if there is a message behind the last that was read."""
        return self.fetch()

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message, or at the first that was published at that time, in ms.

        With `start_message_id_inclusive` the message itself is read too. `earliest` and `latest`
        are the ends of the topic.
        """
        self._check_open()
        if self._inclusive and messageid == MessageId.latest:
            messageid = self.get_last_message_id()
        with translated():
            partitions = self._engine.partitions()
            if isinstance(messageid, MessageId):
                number = max(messageid.partition(), 0)
                chosen = [
                    topic_partition
                    for topic_partition in partitions
                    if topic_partition.partition == number
                ]
                to = start_at(messageid, chosen, inclusive=self._inclusive)
                self._engine.seek(chosen if to.ids else partitions, to)
            elif isinstance(messageid, int):
                self._engine.seek(partitions, StartPosition(time_ms=messageid))
            else:
                raise ValueError(  # noqa: TRY004 - as Pulsar's
                    f"invalid seek_arg type {type(messageid)}"
                )

    def _facts(self) -> dict[str, object]:
        return {"topic": self.topic(), "is_connected": self.is_connected()}


def start_at(
    message_id: MessageId, partitions: Iterable[TopicPartition], *, inclusive: bool
) -> StartPosition:
    """The positions behind (or at) a message id; other partitions start at their first."""
    if message_id == MessageId.earliest:
        return StartPosition("earliest")
    if message_id == MessageId.latest:
        return StartPosition("latest")
    ids = dict.fromkeys(partitions, str(message_id.core))
    return StartPosition("earliest", ids, inclusive=inclusive)


class TableView(Described):
    """The table of one topic, as of now and from then on; `Client.create_table_view` makes it."""

    def __init__(self, reader: Reader, topic: str, subscription: str | None = None) -> None:
        self._reader, self._topic, self._subscription = reader, topic, subscription
        self._values: dict[str, Any] = {}
        self._listeners: list[Callable[[str, Any], object]] = []
        self._lock = threading.RLock()
        while reader.has_message_available():
            self._take(reader.read_next())
        self._end = reader.follow(self._poll, f"table view of {topic}")

    def get(self, key: str) -> Any:
        """The value of the key; None if it has none."""
        with self._lock:
            return self._values.get(key)

    def for_each(self, callback: Callable[[str, Any], object]) -> None:
        """Call back with each key and its value."""
        with self._lock:
            for key, value in list(self._values.items()):
                callback(key, value)

    def for_each_and_listen(self, callback: Callable[[str, Any], object]) -> None:
        """The same, and from now on with each that changes, in another thread."""
        with self._lock:
            self.for_each(callback)
            self._listeners.append(callback)

    def close(self) -> None:
        self._end()
        self._reader.close()

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        named = "" if self._subscription is None else f", subscription={self._subscription}"
        return f"TableView(topic={self._topic}{named})"

    def _facts(self) -> dict[str, object]:
        with self._lock:
            return {"topic": self._topic, "keys": len(self), "values": dict(self._values)}

    def _poll(self) -> float:
        """Take in what there is; 0 if there was something."""
        taken = 0
        try:
            while self._reader.fetch() and (message := self._reader.receive_now()) is not None:
                self._take(message)
                taken += 1
        except client_errors.AlreadyClosed:  # its client was
            self._end()
        except client_errors.PulsarException as error:
            if client_errors.may_pass(error):
                _log.warning("The table view of %s looks again: %s", self._topic, error)
            else:
                _log.exception("The table view of %s follows its topic no more", self._topic)
                self._end()
        return 0.0 if taken else inf

    def _take(self, message: Message) -> None:
        key = message.partition_key()
        if not key:
            return
        with self._lock:
            try:
                value = message.value()
            except Exception:  # noqa: BLE001 - a value that does not fit keeps no other out
                text = "The table view of %s has no value for key %r: message %s can't be decoded"
                _log.warning(text, self._topic, key, message.message_id(), exc_info=True)
                self._values.pop(key, None)
                return
            if message.data():
                self._values[key] = value
            else:
                self._values.pop(key, None)
            for listener in self._listeners:
                try:
                    listener(key, value)
                except Exception:  # noqa: BLE001, PERF203 - whatever it is, it is the listener's
                    _log.exception("A listener of the table view of %s failed", self._topic)
