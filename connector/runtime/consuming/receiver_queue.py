"""The receive queue of a consumer: messages that were prefetched, and those that were handed out.

Invariants: a message is delivered when `take` or `hand_out` hands it out, once; what is queued, or
reserved for a batch, can be dropped; what was handed out stays noted until a report names it.
Suspects, of which one may have killed a consumer, and all behind them are withheld until their
delivery was reported. Never holds its lock while anything is read or written, so any thread may
take. Follows `incomingMessages` of Pulsar's `ConsumerBase`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Final

from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition

SUSPECTS: Final = 16
"""The number of suspects whose delivery is reported together, if none was delivered too often."""
IsSuspect = Callable[[ReceivedMessage], bool]


class ReceiverQueue:
    """Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: deque[ReceivedMessage] = deque()
        self._withheld: deque[ReceivedMessage] = deque()
        """Behind all that is ready; the first is a suspect, or stood behind one."""
        self._reserved: dict[int, ReceivedMessage] = {}
        """The messages of batches that are being filled, by identity."""
        self._reported: dict[int, ReceivedMessage] = {}
        """The suspects that a report has named, and that were not handed out yet, by identity."""
        self._handed: list[ReceivedMessage] = []

    def __len__(self) -> int:
        return len(self._ready) + len(self._withheld)

    @property
    def is_ready(self) -> bool:
        """True if `take` has a message."""
        return bool(self._ready)

    def put(self, messages: Iterable[ReceivedMessage], is_suspect: IsSuspect | None) -> None:
        """Add these, in order; from the first suspect on they are withheld."""
        with self._lock:
            if is_suspect is None and not self._withheld:
                self._ready.extend(messages)
            else:
                self._withheld.extend(messages)

    def take(self) -> ReceivedMessage | None:
        """Hand out the next message; None if none is ready."""
        with self._lock:
            if not self._ready:
                return None
            message = self._ready.popleft()
            self._hand_out(message)
            return message

    def reserve(self) -> ReceivedMessage | None:
        """The next message, for a batch: `hand_out` hands it out, `put_back` does not."""
        with self._lock:
            if not self._ready:
                return None
            message = self._ready.popleft()
            self._reserved[id(message)] = message
            return message

    def hand_out(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Hand out these, but for those that were dropped since they were reserved."""
        with self._lock:
            found = [each for each in messages if self._reserved.pop(id(each), None) is not None]
            for each in found:
                self._hand_out(each)
            return found

    def put_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Make these the next, but for those that were dropped since they were reserved."""
        with self._lock:
            found = [each for each in messages if self._reserved.pop(id(each), None) is not None]
            self._ready.extendleft(reversed(found))

    def handed(self) -> list[ReceivedMessage]:
        """The messages that were handed out since the last call."""
        with self._lock:
            handed, self._handed = self._handed, []
            return handed

    def hand_again(self, messages: list[ReceivedMessage]) -> None:
        """Note that these were handed out, since the report that was to name them failed."""
        with self._lock:
            self._handed[:0] = messages

    # -- suspects ------------------------------------------------------------------------------

    def next_group(self, is_suspect: IsSuspect) -> tuple[list[ReceivedMessage], bool]:
        """(the next of those that are withheld, whether they are suspects).

        A suspect that was delivered before stands alone: once more, and it may be a dead letter.
        """
        with self._lock:
            if not self._withheld or not is_suspect(self._withheld[0]):
                calm = takewhile(lambda each: not is_suspect(each), self._withheld)
                return list(calm), False
            if self._withheld[0].redelivery_count:
                return [self._withheld[0]], True
            alike = takewhile(
                lambda each: not each.redelivery_count and is_suspect(each), self._withheld
            )
            return [each for each, _ in zip(alike, range(SUSPECTS), strict=False)], True

    def release(self, group: list[ReceivedMessage], *, is_reported: bool) -> None:
        """Make the first of those that are withheld ready; nothing else is."""
        with self._lock:
            for each in group:
                self._ready.append(self._withheld.popleft())
                if is_reported:
                    self._reported[id(each)] = each

    # -- dropping ------------------------------------------------------------------------------

    def revoke(self, topic_partition: TopicPartition, messages: PositionSet | None) -> None:
        """Drop these of a partition, or all, but for those that a report says were handed out."""

        def stays(each: ReceivedMessage) -> bool:
            if each.partition != topic_partition or id(each) in self._reported:
                return True
            position, index = each.message_id.position, each.message_id.batch_index
            return messages is not None and not messages.contains(position, index)

        with self._lock:
            self._drop_but(stays)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drop all of a partition, and what is noted of it: its subscription was reset."""
        with self._lock:
            self._drop_but(lambda each: each.partition != topic_partition)
            self._handed = [each for each in self._handed if each.partition != topic_partition]

    def clear(self) -> None:
        """Drop all that is queued."""
        with self._lock:
            self._drop_but(lambda _: False)

    # -- inside --------------------------------------------------------------------------------

    def _hand_out(self, message: ReceivedMessage) -> None:
        if self._reported.pop(id(message), None) is None:
            self._handed.append(message)

    def _drop_but(self, stays: Callable[[ReceivedMessage], bool]) -> None:
        self._ready = deque(filter(stays, self._ready))
        self._withheld = deque(filter(stays, self._withheld))
        self._reserved = {key: each for key, each in self._reserved.items() if stays(each)}
        self._reported = {key: each for key, each in self._reported.items() if stays(each)}
