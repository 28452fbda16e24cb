"""A reader and a table view of the client: they read a topic from a place of their own choice.

Invariants: a reader is the one consumer of a subscription that nobody else sees and that ends with
it; a table view's value of a key is that of the key's last message, and one without content takes
the key away. Methods as of Pulsar's Python client 3.13. Follows Pulsar's `ReaderImpl` and
`TableViewImpl`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from math import inf
from typing import Any

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.consumer import Consumer
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.shown import Shown

ReaderListener = Callable[["Reader", Message], object]

_log = logging.getLogger(__name__)


class Reader(Shown):
    """One reader; `Client.create_reader` makes it."""

    def __init__(self, consumer: Consumer, listener: ReaderListener | None = None) -> None:
        self._consumer = consumer
        if listener is not None:
            consumer.listen(lambda _, message: listener(self, self._read(message)))

    def topic(self) -> str:
        return self._consumer.topic()

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for it. Timeout if there is none in that time."""
        return self._read(self._consumer.receive(timeout_millis))

    def fetch(self) -> bool:
        """Look for messages; whether there is one now."""
        return self._consumer.fetch()

    def has_news(self) -> bool:
        """Whether it is time for another `fetch`; cheap, and may err."""
        return self._consumer.has_news()

    def pause_s(self, quiet_s: float) -> float:
        """How long to wait before the next look, when nothing has come for so long."""
        return self._consumer.pause_s(quiet_s)

    def follow(self, look: Callable[[], float], name: str) -> Callable[[], None]:
        """Have that look for messages again and again; returns what ends it."""
        return self._consumer.follow(look, name)

    def read_now(self) -> Message | None:
        """The next message of those that were fetched; None if there is none left."""
        message = self._consumer.receive_now()
        return None if message is None else self._read(message)

    def has_message_available(self) -> bool:
        """Whether there is a message behind the last that was read."""
        return self._consumer.has_message_available()

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message, or at the first that was published at that time, in ms."""
        self._consumer.seek(messageid)

    def is_connected(self) -> bool:
        return self._consumer.is_connected()

    def close(self) -> None:
        self._consumer.close()

    def _facts(self) -> dict[str, object]:
        return {"topic": self.topic(), "is_connected": self.is_connected()}

    def _read(self, message: Message) -> Message:
        self._consumer.acknowledge_cumulative(message)
        return message


class TableView(Shown):
    """The table of one topic, as of now and from then on; `Client.create_table_view` makes it."""

    def __init__(self, reader: Reader, topic: str, subscription: str | None = None) -> None:
        self._reader, self._topic, self._subscription = reader, topic, subscription
        self._values: dict[str, Any] = {}
        self._listeners: list[Callable[[str, Any], object]] = []
        self._lock = threading.RLock()
        while reader.has_message_available():
            self._take(reader.read_next())
        self._end = reader.follow(self._look, f"table view of {topic}")

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

    def _look(self) -> float:
        """Take in what there is; 0 if there was something."""
        taken = 0
        try:
            while self._reader.fetch() and (message := self._reader.read_now()) is not None:
                self._take(message)
                taken += 1
        except client_errors.PulsarException:
            _log.exception("The table view of %s follows its topic no more", self._topic)
            self._end()
        return 0.0 if taken else inf

    def _take(self, message: Message) -> None:
        key = message.partition_key()
        if not key:
            return
        with self._lock:
            value = message.value()
            if message.data():
                self._values[key] = value
            else:
                self._values.pop(key, None)
            for listener in self._listeners:
                try:
                    listener(key, value)
                except Exception:  # noqa: BLE001, PERF203 - whatever it is, it is the listener's
                    _log.exception("A listener of the table view of %s failed", self._topic)
