"""A consumer in this process: it receives, acknowledges, rejects and seeks, without Spark.

Invariants: it plans, reads and reports as the streaming source does (`ConsumerRun`), and folds its
acknowledgements as a sink does (`acknowledgment_rows`); messages are reported as delivered before
they enter its queue; what was said of messages goes out together, with its next report. It moves
when somebody calls it, or its root's clock does. Safe for several threads. Follows Pulsar's
`ConsumerImpl`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.connector.ack_sink.acknowledgment_rows import Acknowledgments, fold
from pulsar_spark.connector.source.partition_view import PartitionView
from pulsar_spark.connector.source.received_message import ReceivedMessage, read_between
from pulsar_spark.connector.spark.polling import LEAST_PAUSE_S
from pulsar_spark.connector.storage.delayed_flush import DelayedFlush
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.subscription.consumer_run import NO_REQUESTS, ConsumerRun
from pulsar_spark.connector.system.lease import Lease
from pulsar_spark.connector.telemetry import instruments, stats_recorder
from pulsar_spark.connector.telemetry.stats_recorder import ConsumerStatsRecorder
from pulsar_spark.connector.topic_log.topics import Root, options_of
from pulsar_spark.errors import (
    BrokerRefusedError,
    ConsumerNotConnectedError,
    InvalidCursorPositionError,
    InvalidMessageError,
    ServerError,
    TopicNotFoundError,
)
from pulsar_spark.options.options import Options, Scope
from pulsar_spark.planning.stream_offset import StreamOffset
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.ledger_info import LedgerList
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.positions.position import Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.protocol.commands import (
    RedeliverUnacknowledgedMessages,
    Report,
    Seek,
    Unsubscribe,
)
from pulsar_spark.subscriptions.dead_letter import times_reconsumed
from pulsar_spark.topic_name import TopicName, TopicPartition

GROUPED: Final = 20_000
"""The number of acknowledgements that are sent at once, however short they have waited."""
REMOTE_GROUP_MS: Final = 1_000
"""The least group time over a network, where a report takes three requests."""
_PLACE: Final = {
    "topic": pa.string(), "ledger_id": pa.int64(), "entry_id": pa.int64(),
    "partition": pa.int64(), "batch_index": pa.int64(), "attempt": pa.int64(),
}  # fmt: skip
_SAID: Final = {
    **_PLACE, "ack_type": pa.string(), "delay_ms": pa.int64(), "reconsume_times": pa.int64(),
    "properties": pa.map_(pa.string(), pa.string()), "delay": pa.string(), "error": pa.string(),
}  # fmt: skip
"""The columns of what is said of messages, as for a sink that acknowledges."""
_log = logging.getLogger(__name__)
_SaidRow = tuple[Any, ...]
_Said = ReceivedMessage | _SaidRow
"""A message that is acknowledged, or a row that says something else."""
_NEVER_RIGHT: Final = (InvalidCursorPositionError, InvalidMessageError, TopicNotFoundError)
"""Faults of one row that stay, however often it is said: the others go out without it."""


class MessageConsumer(AbstractContextManager["MessageConsumer"]):
    """One consumer of a subscription. Also a context manager, which closes it at its end."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        prefetch: int = 1,
        acknowledgment_group_time_ms: int = 0,
    ) -> None:
        """Subscribes; the broker's answer comes with the next call.

        `options` are those of a streaming source. `prefetch` messages are taken at once, each of
        which counts as delivered. Acknowledgements wait for the group time, so that others join
        them. InvalidOptionError if an option is wrong, TopicNotFoundError if there is no topic.
        """
        defaults = {"receiverQueueSize": "1000", "failOnDataLoss": "false"}  # as in Pulsar
        given = {**defaults, **options, "ackMode": "manual"}
        given["maxMessagesPerTrigger"] = str(prefetch)
        self.options: Options = options_of(given, Scope.STREAM_READ)
        self.root = Root.of(self.options)
        self._clock = self.root.clock
        self._group_ms = acknowledgment_group_time_ms
        if self._group_ms and self.root.store.remote:
            self._group_ms = max(self._group_ms, REMOTE_GROUP_MS)
        self._waits_for_others = bool(self._group_ms) and self.root.store.remote
        """Whether acknowledgements wait also when it looks for messages and finds none."""
        self._queue_size: int = self.options["receiverQueueSize"]
        self._topics = _named(self.options)
        self._run = ConsumerRun(self.options, self.root, completed=self._completed)
        self._run.check()
        self._offset = self._run.pinned()
        self._client = self._run.connected(self._offset)
        self._lock = threading.RLock()
        self._saying = threading.Lock()
        """Guards `_unsaid`; never held while anything is read or written."""
        self._queue: deque[ReceivedMessage] = deque()
        self._unacknowledged: dict[TopicPartition, PositionSet] = {}
        """Messages taken into the queue, and not acknowledged or given back since."""
        self._acknowledged: dict[TopicPartition, Cursor] = {}
        """Messages that this consumer acknowledged, above the subscription's floor."""
        self._said: dict[TopicPartition, Acknowledgments] = {}
        """Rejections since the last report."""
        self._unsaid: list[_Said] = []
        """For the next report."""
        self._flushing = DelayedFlush(self._clock, self._group_ms, self.flush, "acknowledgements")
        self._heard_s = -inf
        self._epochs: dict[TopicPartition, int] = {}
        self._redelivers = 0
        self._requested: dict[TopicPartition, int] = {}
        self._unconfirmed: set[TopicPartition] = set()
        """The partitions of which something was said since a receipt was asked for."""
        self._unsubscribing: dict[TopicPartition, int] = {}
        self._asking: dict[TopicPartition, RedeliverUnacknowledgedMessages] = {}
        """That everything be given again, which goes out with the next report."""
        self._stats: ConsumerStatsRecorder | None = None
        stats_interval_s = self.options["statsIntervalSeconds"]
        if stats_interval_s and stats_recorder.is_heard():
            self._stats = ConsumerStatsRecorder(
                self._clock, stats_interval_s, self._topics, self._client.subscription, self.name,
                lambda: len(self._queue),
            )  # fmt: skip

    @property
    def name(self) -> str:
        return self._client.name

    @property
    def is_closed(self) -> bool:
        return self._client.is_closed

    @property
    def news_s(self) -> float:
        """When there was news last."""
        return self._run.news_s

    def is_connected(self) -> bool:
        """Whether the broker has let it in, on all partitions."""
        return all(each.connected for each in self._client.consumers.values())

    def is_answered(self) -> bool:
        """Whether the broker has answered all requests."""
        consumers, asked = self._client.consumers, self._requested
        return all(each.answered >= asked.get(about, 0) for about, each in consumers.items())

    def has_reached_end_of_topic(self) -> bool:
        """Whether its topics are terminated, and the subscription has acknowledged everything."""
        self.flush()
        self.poll()
        views, stepped = self.partitions(), self._client.stepped
        return all(
            view.ledger.state.is_terminated
            and about in stepped
            and stepped[about].last_position >= view.last_position
            and not self._client.backlog(about)
            for about, view in views.items()
        )

    def view(self, about: TopicPartition) -> PartitionView:
        """A partition of which it has received something."""
        return self._run.topics.view(about)

    def partitions(self) -> Mapping[TopicPartition, PartitionView]:
        """Its topics' partitions as of now."""
        with self._lock:
            self._run.topics.refresh()
            return self._run.topics.partitions()

    # -- receiving -----------------------------------------------------------------------------

    def receive(self) -> ReceivedMessage | None:
        """The next message; None if there is none just now.

        BrokerRefusedError if the broker does not let it in, ConsumerReplacedError if a newer run
        has its name. What was trimmed before it was read is passed over, with a warning.
        """
        with self._lock:
            return self.take() if self.fetch() else None

    @property
    def is_ready(self) -> bool:
        """Whether its queue has a message, and it has just heard the broker."""
        self._check_open()
        return bool(self._queue) and self._clock.monotonic_s() - self._heard_s < LEAST_PAUSE_S

    def take(self) -> ReceivedMessage | None:
        """The next message of its queue."""
        try:
            return self._queue.popleft()
        except IndexError:
            return None

    def fetch(self) -> bool:
        """Fill its queue if that is empty; whether there is a message now. Errors as `receive`."""
        if self.is_ready:
            return True
        with self._lock:
            self._check_open()
            self._heard_s = self._clock.monotonic_s()
            self._hear()
            while not self._queue:
                planned = self._run.plan(self._offset)
                if planned is None:
                    if self._asking or not self._waits_for_others:
                        self._report()
                    return False
                self._take(planned)
            return True

    @property
    def watched(self) -> list[Watched]:
        """Where that appears for which `fetch` looks."""
        return self._run.watched

    def poll(self) -> None:
        """Take in the broker's news, and report; errors as of `receive`."""
        with self._lock:
            if not self._client.is_closed:
                self._hear()
                self._report()

    # -- acknowledging -------------------------------------------------------------------------

    def acknowledge(self, *messages: ReceivedMessage) -> None:
        """Acknowledge these, one by one, whichever consumer of the subscription received them.

        InvalidCursorPositionError if one was never published: the others are acknowledged.
        """
        self._say(messages)

    def acknowledge_cumulative(self, message: ReceivedMessage) -> None:
        """Acknowledge all of its partition up to it. BrokerRefusedError where others share."""
        if self.options["subscriptionType"] in ("Shared", "Key_Shared"):
            text = "Cannot use cumulative acks on a non-exclusive/non-failover subscription"
            raise BrokerRefusedError(ServerError.NOT_ALLOWED_ERROR, text)
        self._say(_rows("Cumulative", [message]))

    def negative_acknowledge(
        self, *messages: ReceivedMessage, delay_ms: int | None = None, error: str | None = None
    ) -> None:
        """Have these delivered again, after the consumer's delay or that one.

        What is said last of a message is in its dead letter, if it comes to that.
        """
        self._say(_rows("Negative", messages, delay_ms, error=error))

    def reconsume_later(
        self,
        message: ReceivedMessage,
        delay_ms: int,
        properties: Mapping[str, str] | None = None,
        error: str | None = None,
    ) -> None:
        """Have them delivered again from the retry letter topic."""
        times = times_reconsumed(message.properties or {})
        given = list((properties or {}).items())
        self._say(_rows("ReconsumeLater", [message], delay_ms, times, given, error))

    def say(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Say of messages what these rows say, as to a sink that acknowledges."""
        self._check_open()
        said = [tuple(map(row.get, _SAID)) for row in rows]
        if said:
            _batch(said)
        with self._saying:
            self._unsaid += said
        self.poll()

    def flush(self) -> None:
        """Send the acknowledgements that wait for others to join them."""
        with self._lock:
            if not self._client.is_closed:
                self._report()

    def ask_for_receipt(self) -> None:
        """Send what waits, and have the broker answer: `is_answered` says when it has."""
        with self._lock:
            self._check_open()
            self._fold()
            asked = dict(zip(sorted(self._unconfirmed), self._client.requests, strict=False))
            self._send(self._offset, asked)
            self._requested |= asked
            self._unconfirmed.clear()

    def committed(self, messages: Sequence[ReceivedMessage]) -> None:
        """A transaction has acknowledged these."""
        with self._lock:
            for about, found in folded(messages, self.root).items():
                if not self._run.topics.is_left_out(about.topic):
                    self._take_in(about, found)

    # -- the subscription ----------------------------------------------------------------------

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all messages delivered again that were received and not acknowledged."""
        with self._lock:
            self._check_open()
            self._redelivers = max(self._redelivers + 1, self._clock.wall_ms())
            client = self._client
            self._asking = {
                about: RedeliverUnacknowledgedMessages(
                    client.subscription, self.name, client.incarnation, each.epoch, self._redelivers
                )
                for about, each in client.consumers.items()
                if each.connected
            }
            self._queue.clear()
            self._unacknowledged.clear()
            self._report()

    def seek(self, to: MessageId | Position | int) -> None:
        """Move all consumers of the subscription to this message, or to that publish time in ms."""
        with self._lock:
            self._client.say(self.seeks(to))

    def seeks(self, to: MessageId | Position | int) -> dict[TopicPartition, Seek]:
        """The commands of a seek: an id moves its partition; EARLIEST, LATEST and a time all."""
        self._check_open()
        name, commands = self._client.subscription, {}
        for about in filter(self._run.topics.is_open, self._client.consumers):
            if isinstance(to, int):
                commands[about] = Seek(name, timestamp_ms=to)
            elif isinstance(to, Position):
                commands[about] = Seek(name, to)
            elif max(to.partition, 0) == about.partition:
                commands[about] = Seek(name, to.position, to.batch_index)
        return {
            about: replace(each, topic_incarnation=self.view(about).ledger.state.incarnation)
            for about, each in commands.items()
        }

    def epoch(self, about: TopicPartition) -> int:
        """How often others or this consumer have sought on that partition, as far as it heard."""
        return self._client.consumers[about].epoch

    def unsubscribe(self) -> None:
        """Delete the subscription and close, unless other consumers are connected to it."""
        with self._lock:
            self._check_open()
            client = self._client
            self._unsubscribing = dict(zip(client.consumers, client.requests, strict=False))
            client.say({
                about: Unsubscribe(client.subscription, self.name, client.incarnation, request)
                for about, request in self._unsubscribing.items()
            })  # fmt: skip

    def close(self) -> None:
        """Send a last report and leave: unacknowledged messages go to others at once."""
        self._flushing.stop()
        try:
            self.flush()
        finally:
            with self._lock:
                if not self._client.is_closed:
                    self._run.close()
            if self._stats is not None:
                self._stats.close()

    def abandon(self) -> Lease | None:
        """Say nothing any more, as if its process had been killed; the lease that will lapse."""
        self._flushing.stop()
        return self._client.abandon()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._client.is_closed:
            raise ConsumerNotConnectedError(f"Consumer {self.name} is closed: subscribe again.")

    def _hear(self) -> None:
        """Take in news. A seek empties the queue of earlier messages."""
        self._run.hear()
        for about in sorted(self._run.heard & self._client.consumers.keys()):
            consumer = self._client.consumers[about]
            if consumer.connected and self._epochs.get(about) != consumer.epoch:
                if about in self._epochs:
                    self._forget(about)
                self._epochs[about] = consumer.epoch
                self._queue = deque(each for each in self._queue if each.partition != about)
        for about in self._epochs.keys() - self._client.consumers.keys():  # its topic is left out
            self._forget(about)
        consumers, asked = self._client.consumers, self._unsubscribing
        left = asked.keys() & consumers.keys()
        if asked and all(consumers[each].answered >= asked[each] for each in left):
            self._unsubscribing = {}
            if any(self._client.backlog(about) is not None for about in left):
                raise BrokerRefusedError(
                    ServerError.NOT_ALLOWED_ERROR,
                    f"Subscription {self._client.subscription} has other consumers: whoever is "
                    "alone can delete it.",
                )
            self._client.leave()

    def _forget(self, about: TopicPartition) -> None:
        """Forget what was said of a partition, and is to be: somebody has sought, or it is gone."""
        with self._saying:
            self._unsaid = [said for said in self._unsaid if _partition_of(said) != about]
        self._unconfirmed.discard(about)
        state = self._unacknowledged, self._acknowledged, self._said, self._asking, self._epochs
        for kept in state:
            kept.pop(about, None)

    def _take(self, planned: StreamOffset) -> None:
        messages = read_between(self._run.topics, self._offset, planned)
        self._fold()  # it goes along with the report of what is taken
        changes = planned.changed_since(self._offset)
        for about, ledgers in self._run.ledgers(changes).items():
            new = changes[about].batch_since(self._offset.get(about), ledgers)
            held = self._unacknowledged.get(about, PositionSet()).union(new)
            self._unacknowledged[about] = held.after(self._client.consumers[about].floor)
        taken: list[ReceivedMessage] = []
        both: list[Callable[[], None]] = [
            lambda: taken.extend(messages),
            lambda: self._send(planned),
        ]
        for _ in self.root.store.answers(lambda do: do(), both):  # first it reads, on a disk
            pass
        self._run.planned()
        self._offset = planned
        self._run.connected(planned)
        self._queue.extend(taken)
        instruments.consumed(self._topics, self._client.subscription, len(taken))
        if self._stats is not None and taken:
            self._stats.received(len(taken), sum(len(each.value or b"") for each in taken))

    def _say(self, said: Sequence[_Said]) -> None:
        """Add to the next report, and send it unless others may join it."""
        self._check_open()
        with self._saying:
            self._unsaid += said
            waiting = len(self._unsaid)
        if not self._group_ms or waiting >= GROUPED:
            self.flush()
        else:
            self._flushing.begin()

    def _fold(self) -> None:
        """Take in what was said; what can never be right is left out, and raised at the end."""
        with self._saying:
            said, self._unsaid = self._unsaid, []
        if gone := self._run.topics.left_out:
            said = [each for each in said if _partition_of(each).topic not in gone]
        done = [each for each in said if type(each) is ReceivedMessage]
        rows = [each for each in said if type(each) is not ReceivedMessage]
        if self._stats is not None and said:
            given_back = sum(row[len(_PLACE)] == "Negative" for row in rows)
            self._stats.acknowledged(len(said) - given_back)
            self._stats.failed(given_back)
        wrong = None
        parts: list[list[Any]] = [part for part in (done, rows) if part]
        while parts:
            part = parts[-1]
            try:
                found = fold([_batch(part)], self.root, None)
            except _NEVER_RIGHT as error:
                parts.pop()
                if len(part) > 1:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
                elif self._is_left_out(part[0], error):
                    _log.warning("Left out, what was said of a message: %s", error)
                else:
                    wrong = error
                continue
            except BaseException:
                with self._saying:
                    self._unsaid[:0] = [each for left in parts for each in left]
                raise
            parts.pop()
            for about, each in found.items():
                self._take_in(about, each)
        if wrong is not None:
            raise wrong

    def _is_left_out(self, said: _Said, error: Exception) -> bool:
        topic, topics = _partition_of(said).topic, self._run.topics
        if isinstance(error, TopicNotFoundError):
            return topics.goes_on_without(topic)
        return topics.is_left_out(topic)

    def _take_in(self, about: TopicPartition, found: Acknowledgments) -> None:
        self._run.to_report(about)
        self._unconfirmed.add(about)
        self._said.setdefault(about, Acknowledgments()).join(found)
        held = self._unacknowledged.get(about, PositionSet())
        for messages in (*found.rejected.values(), *found.later.values()):
            held = held.difference(messages)
        done = Cursor()
        for messages in found.individual.values():
            done = done.acknowledge(messages)
        for furthest in found.cumulative.values():
            done = done.union(Cursor().acknowledge_cumulative(*furthest))
        held = held.after(done.mark_delete_position).difference(done.individually_deleted)
        self._unacknowledged[about] = held
        floor = self._client.consumers[about].floor
        before = self._acknowledged.get(about, Cursor())
        self._acknowledged[about] = before.union(done).floor(floor)

    def _report(self) -> None:
        try:
            self._fold()
        finally:
            self._send(self._offset)

    def _send(
        self, planned: StreamOffset, requests: Mapping[TopicPartition, int] = NO_REQUESTS
    ) -> None:
        """Report what is planned, and what waits; the broker answers to `requests`.

        Rejections are said once; they wait where a report failed, or nobody is connected.
        """
        consumers = {a: each for a, each in self._client.consumers.items() if each.connected}
        asking = {about: each for about, each in self._asking.items() if about in consumers}
        again = dict(zip(asking, self._client.requests, strict=False))
        for about, number in again.items():  # whether or not it is heard that it was said
            consumers[about].asked_again = number
        self._run.report(self._offset, planned, {**requests, **again}, asking)
        for about in [*asking, *self._said]:
            if about in consumers:
                self._asking.pop(about, None)
                self._said.pop(about, None)

    def _completed(self, about: TopicPartition, report: Report, ledgers: LedgerList) -> Report:
        """The report with the acknowledgements and rejections, and permits for a full queue."""
        said = self._said.get(about, Acknowledgments())
        held = self._unacknowledged.get(about, PositionSet())
        held = held.of_ledgers(filter(ledgers.get, held.ledger_ids))  # trimmed ones need no room
        return replace(
            report,
            acknowledged=report.acknowledged.union(self._acknowledged.get(about, Cursor())),
            rejected=said.rejections,
            reconsume_later=said.to_reconsume_later,
            permits=held.count(ledgers) + self._queue_size,
        )


def _named(options: Options) -> str:
    """The topics or the pattern that a consumer was given."""
    names = [options["topic"]] if options["topic"] else options["topics"]
    return ",".join(str(TopicName.parse(each)) for each in names) or str(options["topicsPattern"])


def folded(
    messages: Sequence[ReceivedMessage], root: Root
) -> dict[TopicPartition, Acknowledgments]:
    """What a sink that acknowledges makes of these, if they are acknowledged."""
    return fold([_batch(messages)], root, None) if messages else {}


def _partition_of(said: _Said) -> TopicPartition:
    if isinstance(said, ReceivedMessage):
        return said.partition
    return TopicPartition(said[0], said[3])


def _places(messages: Iterable[ReceivedMessage]) -> Iterator[_SaidRow]:
    """Which messages are meant, in the order of _PLACE."""
    for each in messages:
        ledger_id, entry_id, partition, batch_index = each.place
        yield each.topic, ledger_id, entry_id, max(partition, 0), batch_index, each.attempt


def _rows(
    kind: str,
    messages: Iterable[ReceivedMessage],
    delay_ms: int | None = None,
    reconsume_times: int | None = None,
    properties: list[tuple[str, str]] | None = None,
    error: str | None = None,
) -> list[_SaidRow]:
    """What is said of these, in the order of _SAID."""
    said = kind, delay_ms, reconsume_times, properties, None, error
    rows = [(*place, *said) for place in _places(messages)]
    if rows and said.count(None) < len(said) - 1:
        _batch(rows)  # what can't be said is refused while the caller is here
    return rows


def _batch(said: Sequence[_Said]) -> pa.RecordBatch:
    """Rows, or messages that are acknowledged. InvalidMessageError: no column holds one's part."""
    done = [each for each in said if isinstance(each, ReceivedMessage)]
    rows: Iterable[_SaidRow] = _places(done) if done else said
    columns = zip(_SAID.items(), zip(*rows, strict=True), strict=False)
    try:
        return pa.RecordBatch.from_pydict(
            {
                name: pa.array(values, kind)
                for (name, kind), values in columns
                if values.count(None) < len(values)
            }
        )
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidMessageError(f"That can't be said of a message: {error}") from error
