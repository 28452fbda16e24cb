"""A consumer in the process of the host: it receives, acknowledges, rejects, and reports.

Invariants: what it delivers it has been granted, once for each attempt; everything that it tells
the broker is in its reports, which are absolute. Follows Pulsar's `ConsumerImpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pulsar_spark.acknowledgments_grouping_tracker import AcknowledgmentsGroupingTracker
from pulsar_spark.commands import (
    CloseConsumer,
    Command,
    ReconsumeLater,
    RedeliverUnacknowledgedMessages,
    Rejection,
    Report,
    Subscribe,
)
from pulsar_spark.cursor import Cursor
from pulsar_spark.due_messages import NOTHING
from pulsar_spark.errors import BrokerRefusedError
from pulsar_spark.ledger_info import LedgerList
from pulsar_spark.message_id import MessageId
from pulsar_spark.position import Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.ready import (
    Acknowledged,
    EpochBegan,
    Grant,
    OpenGrant,
    Reply,
    Revoke,
    ServerError,
)

NO_OPEN_GRANT = -1


class ChunkOf(NamedTuple):
    """Of which message something is a part, and which part of how many."""

    uuid: str
    chunk_id: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Message:
    """What is published and received. `message_id` and `redelivery_count` come with receiving."""

    value: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    deliver_at_ms: int | None = None
    publish_time_ms: int = 0
    ordering_key: bytes | None = None
    message_id: MessageId | None = None
    redelivery_count: int = 0
    attempt: int = 0
    producer_name: str = ""
    sequence_id: int = -1
    chunk: ChunkOf | None = None

    def with_value(self, value: bytes, chunk: ChunkOf | None = None) -> Message:
        """The same with another value."""
        return replace(self, value=value, chunk=chunk)


Lookup = Callable[[int, int, int], Message]
"""(ledger, entry, batch index) -> the stored message."""


class InMemoryConsumer:
    """One consumer of one topic partition; made by `InMemoryHost.subscribe`."""

    def __init__(
        self,
        command: Subscribe,
        send: Callable[[Command], None],
        look_up: Lookup,
        ledgers: Callable[[], LedgerList],
        removed: Callable[[], PositionSet] | None = None,
        *,
        receiver_queue_size: int = 1000,
        group_time_ms: int = 0,
        ahead: Callable[[], PositionSet] = PositionSet,
    ) -> None:
        """`ahead`: what it holds back, as its delivery time has not come."""
        self.command = command
        self.receiver_queue_size = receiver_queue_size
        self.is_connected = False
        self.is_alive = True
        self.refusal: BrokerRefusedError | None = None
        self._send, self._look_up, self._ledgers = send, look_up, ledgers
        self._ahead = ahead
        self._removed = removed or (lambda: NOTHING)
        self._tracker = AcknowledgmentsGroupingTracker(group_time_ms)
        self._epoch, self._sequence, self._revision = 0, 0, 0
        self._granted: dict[int, PositionSet] = {}
        self._counts: dict[int, list[tuple[int, PositionSet]]] = {}
        self._open_attempt = NO_OPEN_GRANT
        self._open_after = Cursor()
        self._delivered: dict[int, PositionSet] = {}
        self._rejected: list[Rejection] = []
        self._reconsume: list[ReconsumeLater] = []
        self._must_report = True
        self._chunks: dict[str, list[Message]] = {}
        self._chunk_ids: dict[MessageId, list[MessageId]] = {}

    @property
    def name(self) -> str:
        return self.command.consumer

    # -- what its user does ------------------------------------------------------------------

    def receive(self) -> Message | None:
        """The next message, or None if there is none just now. Chunks come as one message."""
        while (message := self._next()) is not None and message.chunk is not None:
            whole = self._put_together(message, message.chunk)
            if whole is not None:
                return whole
        return message

    def _next(self) -> Message | None:
        if not self.is_alive or self.refusal is not None:
            return None
        offers = [
            (attempt, waiting.prefix(1, self._ledgers()))
            for attempt, granted in self._offers().items()
            if (waiting := granted.difference(self._delivered.get(attempt, NOTHING)))
        ]
        if not offers:
            return None
        first = min((next(one.messages(self._ledgers())), attempt) for attempt, one in offers)
        (position, batch_index), attempt = first
        one = dict(offers)[attempt]
        self._delivered[attempt] = self._delivered.get(attempt, NOTHING).union(one)
        self._must_report = True
        stored = self._look_up(*position, batch_index)
        count = next((n for n, held in self._counts.get(attempt, []) if _in(one, held)), 0)
        return replace(stored, redelivery_count=count, attempt=attempt)

    def _put_together(self, part: Message, chunk: ChunkOf) -> Message | None:
        """The message that this chunk completes; it stands at its last chunk's id."""
        if chunk.chunk_id == 0:
            self._chunks[chunk.uuid] = []
        parts = self._chunks.get(chunk.uuid, [])
        if len(parts) != chunk.chunk_id:
            return None  # one before it is still to come again
        parts.append(part)
        if len(parts) < chunk.chunks:
            return None
        del self._chunks[chunk.uuid]
        self._chunk_ids[_id_of(part)] = [_id_of(each) for each in parts]
        return part.with_value(b"".join(each.value for each in parts))

    def acknowledge(self, messages: Iterable[Message], now_ms: int) -> None:
        """These are done, one by one."""
        chosen = list(messages)
        cursor = Cursor().acknowledge(self._set_of(chosen))
        self._tracker = self._tracker.add(cursor, len(chosen), now_ms)

    def acknowledge_cumulative(self, message: Message, now_ms: int) -> None:
        """This one and all before it. NotAllowed on Shared and Key_Shared."""
        if self.command.subscription_type.is_shared:
            text = "Cannot use cumulative acks on a non-exclusive/non-failover subscription"
            raise BrokerRefusedError(ServerError.NOT_ALLOWED_ERROR, text)
        message_id = _id_of(message)
        cursor = Cursor().acknowledge_cumulative(
            message_id.position, message_id.batch_index, message_id.batch_size
        )
        self._tracker = self._tracker.add(cursor, 1, now_ms)

    def negative_acknowledge(
        self, messages: Iterable[Message], delay_ms: int | None = None
    ) -> None:
        """These come again, after the consumer's delay or that one."""
        for attempt, chosen in self._by_attempt(messages).items():
            self._rejected.append(Rejection(attempt, chosen, delay_ms))
            self._must_report = True

    def reconsume_later(
        self, message: Message, delay_ms: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """To the retry letter topic, to come again from there."""
        times = int(message.properties.get("RECONSUMETIMES", "0"))
        custom = tuple((properties or {}).items())
        self._reconsume.append(
            ReconsumeLater(message.attempt, self._set_of([message]), delay_ms, times, custom)
        )
        self._must_report = True

    def redeliver_unacknowledged_messages(self) -> None:
        """All that was received and is not acknowledged comes again."""
        self._sequence += 1
        self._send(
            RedeliverUnacknowledgedMessages(
                self.command.subscription, self.name, self.command.incarnation, self._epoch,
                self._sequence,
            )
        )  # fmt: skip

    def close(self) -> None:
        """A last report, then it goes."""
        self._must_report = True
        self.report()
        self._send(CloseConsumer(self.command.subscription, self.name, self.command.incarnation))
        self.is_alive = self.is_connected = False

    # -- what the host does ------------------------------------------------------------------

    def hear(self, item: object) -> None:
        """Take in what the broker says to it."""
        if isinstance(item, Reply):
            if item.error is not None:
                self.refusal = BrokerRefusedError(item.error, item.message)
                self.is_connected = False
            elif item.origin is not None:
                self.is_connected = True
                self._epoch = item.epoch
        elif isinstance(item, EpochBegan):
            self._begin_epoch(item.epoch)
        elif isinstance(item, Acknowledged):
            self._forget_up_to(item.mark_delete_position)
        elif isinstance(item, Grant):
            held = self._granted.get(item.attempt, NOTHING)
            self._granted[item.attempt] = held.union(item.messages)
            counts = self._counts.setdefault(item.attempt, [])
            counts.append((item.redelivery_count, item.messages))
        elif isinstance(item, OpenGrant):
            self._open_attempt, self._open_after = item.attempt, item.after
            self._counts[item.attempt] = list(item.redelivery_counts.items())
        elif isinstance(item, Revoke):
            self._obey(item)

    def hear_of_compaction(self) -> None:
        """What was removed is done, as far as it has come."""
        self._must_report = True

    def next_report_ms(self) -> int | None:
        """When its grouped acknowledgements are to be sent."""
        return self._tracker.next_flush_ms if self.is_alive else None

    def report_if_due(self, now_ms: int) -> None:
        """Send a report if there is something to say."""
        if self.is_connected and (self._must_report or self._tracker.is_due(now_ms)):
            self.report()

    def report(self) -> None:
        """Say everything."""
        delivered = dict(self._delivered)
        done = self._tracker.acknowledged.acknowledge(self._passed_over())
        left = [messages.difference(done.individually_deleted) for messages in delivered.values()]
        unacked = sum(
            messages.after(done.mark_delete_position).count(self._ledgers())
            for messages in left
            if messages
        )
        self._sequence += 1
        self._send(
            Report(
                self.command.subscription, self.name, self.command.incarnation, self._epoch,
                self._sequence, done, delivered, tuple(self._rejected), tuple(self._reconsume),
                unacked + self.receiver_queue_size, self._revision,
            )
        )  # fmt: skip
        self._tracker = self._tracker.flushed()
        self._rejected, self._reconsume = [], []
        self._must_report = False

    # -- inside ------------------------------------------------------------------------------

    def _offers(self) -> dict[int, PositionSet]:
        offers = dict(self._granted)
        if self._open_attempt != NO_OPEN_GRANT:
            unread = self._open_after.unread(self._ledgers()).difference(self._ahead())
            offers[self._open_attempt] = unread.union(offers.get(self._open_attempt, NOTHING))
        removed = self._removed()
        if removed:
            offers = {attempt: each.difference(removed) for attempt, each in offers.items()}
        return offers

    def _passed_over(self) -> PositionSet:
        """Of what compaction has removed, what lies before the next message to be delivered."""
        removed = self._removed()
        if removed:
            for attempt, granted in self._offers().items():
                waiting = granted.difference(self._delivered.get(attempt, NOTHING))
                if waiting:
                    position, _ = next(waiting.messages(self._ledgers()))
                    removed = removed.up_to(position.previous)
        return removed

    def _obey(self, revoke: Revoke) -> None:
        if revoke.messages is None:
            self._open_attempt = NO_OPEN_GRANT
            self._granted = {}
        else:
            left = {a: held.difference(revoke.messages) for a, held in self._granted.items()}
            self._granted = {a: held for a, held in left.items() if held}
        self._revision = revoke.revision
        self._must_report = True

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._granted, self._counts, self._delivered = {}, {}, {}
        self._chunks, self._chunk_ids = {}, {}
        self._open_attempt = NO_OPEN_GRANT
        self._tracker = self._tracker.begin_epoch()
        self._rejected, self._reconsume = [], []
        self._must_report = True

    def _forget_up_to(self, position: Position) -> None:
        """All that is acknowledged; its ledgers may be trimmed."""
        self._tracker = self._tracker.forget_up_to(position)
        self._open_after = self._open_after.floor(position)
        for held in (self._granted, self._delivered):
            for attempt, messages in list(held.items()):
                held[attempt] = messages.after(position)
                if not held[attempt]:
                    del held[attempt]
        self._chunk_ids = {k: ids for k, ids in self._chunk_ids.items() if k.position > position}
        self._counts = {
            attempt: [(count, left) for count, part in counts if (left := part.after(position))]
            for attempt, counts in self._counts.items()
        }

    def _by_attempt(self, messages: Iterable[Message]) -> dict[int, PositionSet]:
        found: dict[int, list[Message]] = {}
        for message in messages:
            found.setdefault(message.attempt, []).append(message)
        return {attempt: self._set_of(held) for attempt, held in found.items()}

    def _set_of(self, messages: Iterable[Message]) -> PositionSet:
        result = NOTHING
        for message in messages:
            message_id = _id_of(message)
            if message_id.batch_index < 0:
                ids = self._chunk_ids.get(message_id, [message_id])
                one = PositionSet.of(each.position for each in ids)
            else:
                bits = 1 << message_id.batch_index
                one = PositionSet.of_batch(message_id.position, message_id.batch_size, bits)
            result = result.union(one)
        return result


def _in(one: PositionSet, held: PositionSet) -> bool:
    return bool(one.intersection(held))


def _id_of(message: Message) -> MessageId:
    if message.message_id is None:
        raise ValueError("this message was never published: it has no message id")
    return message.message_id
