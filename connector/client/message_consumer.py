"""A consumer in this process: it receives, acknowledges, rejects and seeks, without Spark.

Invariants: it plans, reads and reports as the streaming source does (`ConsumerRun`), and folds its
acknowledgements as a sink does (`acknowledgment_rows`); a message is delivered when it is handed
out, which the next report names, and nobody else gets what was granted before; what is queued goes
back when it is revoked, and after a pause longer than the lease nothing is handed out before the
broker has answered. A report has what is new since the last one that was sent. It moves when
somebody calls it, or its root's clock does. Safe for several threads. Follows Pulsar's
`ConsumerImpl`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from typing import Any, Final

from pulsar_spark.broker.protocol.commands import RedeliverUnacknowledgedMessages, Seek, Unsubscribe
from pulsar_spark.broker.subscriptions.dead_letter import times_reconsumed
from pulsar_spark.connector.inspect.telemetry import instruments, stats_recorder
from pulsar_spark.connector.inspect.telemetry.stats_recorder import ConsumerStatsRecorder
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Acknowledgments, fold
from pulsar_spark.connector.runtime.acknowledging.outcome_rows import (
    COLUMNS,
    PLACE,
    Outcome,
    batch_of,
    folded,
    partition_of,
    rows_of,
)
from pulsar_spark.connector.runtime.consuming.consumer_run import NO_REQUESTS, ConsumerRun
from pulsar_spark.connector.runtime.consuming.pending_reports import PendingReports
from pulsar_spark.connector.runtime.consuming.receiver_queue import ReceiverQueue
from pulsar_spark.connector.runtime.reading.partition_view import PartitionView
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage, read_between
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.storage.delayed_flush import DelayedFlush
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.connector.storage.polling import LEAST_PAUSE_S
from pulsar_spark.connector.storage.process_identity import this_process
from pulsar_spark.consumer.stream_offset import StreamOffset
from pulsar_spark.errors import (
    BrokerRefusedError,
    ConsumerNotConnectedError,
    InvalidCursorPositionError,
    InvalidMessageError,
    ServerError,
    TopicNotFoundError,
)
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.consumer_options import dead_letter_policy
from pulsar_spark.options.options import Options, Scope

QUEUE_BYTES: Final = "64m"
"""The payload that a queue has at most, but for one larger message."""
REPORTED_WITHIN_S: Final = 0.1
"""The longest time from handing out a message to the report that names it."""
ATTENDED_WITHIN_S: Final = 1.0
"""The longest time without a poll of the broker while the program makes no call."""
REMOTE_ATTENDED_WITHIN_S: Final = 5.0
"""The same over a network, where each poll costs requests."""
GROUPED: Final = 1_000
"""So many acknowledgements are sent at once (`ackGroupingMaxSize` of Pulsar's C++ client)."""
REMOTE_GROUP_MS: Final = 1_000
"""The least group time over a network, where a report takes three requests."""
_log = logging.getLogger(__name__)
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

        `options` are those of a streaming source. `prefetch` messages are queued at most.
        Acknowledgements wait for the group time, so that others join them. InvalidOptionError if an
        option is wrong, TopicNotFoundError if there is no topic.
        """
        defaults = {"receiverQueueSize": "1000", "failOnDataLoss": "false"}  # as in Pulsar
        given = {**defaults, **options, "ackMode": "manual"}
        given |= {"maxMessagesPerTrigger": str(prefetch), "maxBytesPerTrigger": QUEUE_BYTES}
        self.options: Options = options_of(given, Scope.STREAM_READ)
        self.root = Root.of(self.options)
        self._clock = self.root.clock
        self._group_ms = acknowledgment_group_time_ms
        if self._group_ms and self.root.store.remote:
            self._group_ms = max(self._group_ms, REMOTE_GROUP_MS)
        self._waits_for_others = bool(self._group_ms) and self.root.store.remote
        """True if acknowledgements wait also when it looks for messages and finds none."""
        self._queue_size: int = self.options["receiverQueueSize"]
        self._topics = _named(self.options)
        is_durable = self.options["subscriptionMode"] == "Durable"
        self._pending = PendingReports(self._queue_size, durable=is_durable)
        self._run = ConsumerRun(
            self.options, self.root, completed=self._pending.complete, prefetches=True,
            process=this_process(),
        )  # fmt: skip
        self._run.topics.reads_again = True
        self._run.check()
        self._offset = self._run.pinned()
        self._client = self._run.connected(self._offset)
        self._lock = threading.RLock()
        self._saying = threading.Lock()
        """Guards `_unsent`; never held while anything is read or written."""
        self.queue = ReceiverQueue()
        self._counts_suspects = dead_letter_policy(self.options) is not None
        self._unreported = 0
        """The number of messages taken into the queue that no report has made room for."""
        self._unsent: list[Outcome] = []
        """For the next report."""
        self._flushing = DelayedFlush(self._clock, self._group_ms, self.flush, "acknowledgements")
        self._polled_s = -inf
        self._handed_s = inf
        """The time at which the oldest message was handed out that no report has named."""
        self._incarnation = self._client.incarnation
        self._confirming: tuple[float, dict[TopicPartition, int]] | None = None
        """The time at which the broker was asked whether it gave this consumer up, and requests."""
        self._epochs: dict[TopicPartition, tuple[int, int]] = {}
        """The topic's incarnation and the epoch of each partition, as received last."""
        self._redelivers = 0
        self._requested: dict[TopicPartition, int] = {}
        self._unconfirmed: set[TopicPartition] = set()
        """The partitions of which something was said since a receipt was asked for."""
        self._unsubscribing: dict[TopicPartition, int] = {}
        self._asking: dict[TopicPartition, RedeliverUnacknowledgedMessages] = {}
        """That everything be given again, which goes out with the next report."""
        self._stats: ConsumerStatsRecorder | None = None
        stats_interval_s = self.options["statsIntervalSeconds"]
        if stats_interval_s and stats_recorder.is_observed():
            self._stats = ConsumerStatsRecorder(
                self._clock, stats_interval_s, self._topics, self._client.subscription, self.name,
                lambda: len(self.queue),
            )  # fmt: skip

    @property
    def name(self) -> str:
        return self._client.name

    @property
    def is_closed(self) -> bool:
        return self._client.is_closed

    @property
    def active_s(self) -> float:
        """When there was news last."""
        return self._run.active_s

    def is_connected(self) -> bool:
        """True if the broker has let it in, on all partitions."""
        return all(each.connected for each in self._client.consumers.values())

    def is_answered(self) -> bool:
        """True if the broker has answered all requests."""
        consumers, asked = self._client.consumers, self._requested
        return all(
            each.answered >= asked.get(topic_partition, 0)
            for topic_partition, each in consumers.items()
        )

    def has_reached_end_of_topic(self) -> bool:
        """True if its topics are terminated, and the subscription has acknowledged everything."""
        self.flush()
        self.poll()
        views, stepped = self.partitions(), self._client.stepped
        return all(
            view.ledger.state.is_terminated
            and topic_partition in stepped
            and stepped[topic_partition].last_position >= view.last_position
            and not self._client.backlog(topic_partition)
            for topic_partition, view in views.items()
        )

    def view(self, topic_partition: TopicPartition) -> PartitionView:
        """A partition of which it has received something."""
        return self._run.topics.view(topic_partition)

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
        """True if its queue has a message, and it has just heard the broker."""
        self._check_open()
        if not self.queue.is_ready or self._client.is_overdue:
            return False
        return self._clock.monotonic_s() - self._polled_s < LEAST_PAUSE_S

    def take(self) -> ReceivedMessage | None:
        """Hand out the next message of its queue."""
        if self._client.is_overdue:
            return None
        message = self.queue.take()
        if message is not None and self._handed_s == inf:
            self._handed_s = self._clock.monotonic_s()
        return message

    def reserve(self) -> ReceivedMessage | None:
        """The next message of its queue, for a batch; it is handed out, or put back, later."""
        return None if self._client.is_overdue else self.queue.reserve()

    def hand_out(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Hand out these of a batch, but for those that others may have been given meanwhile."""
        if self._client.is_overdue:
            self.queue.put_back(messages)
            return []
        if messages and self._handed_s == inf:
            self._handed_s = self._clock.monotonic_s()
        return self.queue.hand_out(messages)

    def fetch(self) -> bool:
        """Fill its queue if that is empty; whether there is a message now. Errors as `receive`."""
        if self.is_ready:
            return True
        with self._lock:
            self._check_open()
            self._polled_s = self._clock.monotonic_s()
            self._observe()
            if self._client.is_overdue and not self._is_confirmed():
                return False
            while not self.queue.is_ready:
                if len(self.queue):
                    return self._release()
                planned = self._run.plan(self._offset)
                if planned is None:
                    if self._asking or not self._waits_for_others:
                        self._report()
                    elif self._run.may_report:  # the broker may wait for what it asked back
                        self._send(self._offset)
                    return False
                self._take(planned)
            return True

    @property
    def watched(self) -> list[Watched]:
        """The folders in which the input of `fetch` appears."""
        return self._run.watched

    def poll(self) -> None:
        """Take in the broker's news, and report; errors as of `receive`."""
        with self._lock:
            if not self._client.is_closed:
                self._polled_s = self._clock.monotonic_s()
                self._observe()
                self._report()

    def attend(self, has_activity: Callable[[], bool]) -> float:
        """Poll if the program has made no call for a while; 0 if so, else seconds until it is due.

        So a consumer obeys, and reports, while its program is busy or its listener is paused.
        """
        if self._client.is_closed:
            return inf
        remote, now_s = self.root.store.remote, self._clock.monotonic_s()
        reported_within_s = max(REPORTED_WITHIN_S, self._group_ms / 1000)
        due_s = self._handed_s + reported_within_s - now_s
        within_s = REMOTE_ATTENDED_WITHIN_S if remote else ATTENDED_WITHIN_S
        is_quiet = now_s - self._polled_s >= within_s
        if due_s <= 0 or (is_quiet and (remote or has_activity())):
            self.poll()
            return 0.0
        return due_s

    # -- acknowledging -------------------------------------------------------------------------

    def acknowledge(self, *messages: ReceivedMessage) -> None:
        """Acknowledge these, one by one, whichever consumer of the subscription received them.

        InvalidCursorPositionError if one was never published: the others are acknowledged.
        """
        self._add_to_report(messages)

    def acknowledge_cumulative(self, message: ReceivedMessage) -> None:
        """Acknowledge all of its partition up to it. BrokerRefusedError where others share."""
        if self.options["subscriptionType"] in ("Shared", "Key_Shared"):
            text = "Cannot use cumulative acks on a non-exclusive/non-failover subscription"
            raise BrokerRefusedError(ServerError.NOT_ALLOWED_ERROR, text)
        self._add_to_report(rows_of("Cumulative", [message]))

    def negative_acknowledge(
        self, *messages: ReceivedMessage, delay_ms: int | None = None, error: str | None = None
    ) -> None:
        """Have these delivered again, after the consumer's delay or that one.

        What is said last of a message is in its dead letter, if it comes to that.
        """
        self._add_to_report(rows_of("Negative", messages, delay_ms, error=error))

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
        self._add_to_report(rows_of("ReconsumeLater", [message], delay_ms, times, given, error))

    def report_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Say of messages what these rows say, as to a sink that acknowledges."""
        self._check_open()
        pending = [tuple(map(row.get, COLUMNS)) for row in rows]
        if pending:
            batch_of(pending)
        with self._saying:
            self._unsent += pending
        self.poll()

    def flush(self) -> None:
        """Send the acknowledgements that wait for others to join them."""
        with self._lock:
            if not self._client.is_closed:
                self._report()

    def request_receipt(self) -> None:
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
            for topic_partition, found in folded(messages, self.root).items():
                if not self._run.topics.is_left_out(topic_partition.topic):
                    self._take_in(topic_partition, found)

    # -- the subscription ----------------------------------------------------------------------

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all messages delivered again that were received and not acknowledged."""
        with self._lock:
            self._check_open()
            self._redelivers = max(self._redelivers + 1, self._clock.wall_ms())
            client = self._client
            self._asking = {
                topic_partition: RedeliverUnacknowledgedMessages(
                    client.subscription, self.name, client.incarnation, each.epoch, self._redelivers
                )
                for topic_partition, each in client.consumers.items()
                if each.connected
            }
            self.queue.clear()
            self._fold()
            self._pending.holds_nothing()
            self._report()

    def seek(
        self, to: MessageId | Position | int, topic_partition: TopicPartition | None = None
    ) -> None:
        """Move all consumers of the subscription to this message, or to that publish time in ms."""
        with self._lock:
            self._client.send(self.seeks(to, topic_partition))

    def seeks(
        self, to: MessageId | Position | int, topic_partition: TopicPartition | None = None
    ) -> dict[TopicPartition, Seek]:
        """The commands of a seek, which moves that partition, or all of them."""
        self._check_open()
        if isinstance(to, int):
            command = Seek(self._client.subscription, timestamp_ms=to)
        elif isinstance(to, Position):
            command = Seek(self._client.subscription, to)
        else:
            command = Seek(self._client.subscription, to.position, to.batch_index)
        there = filter(self._run.topics.is_open, self._client.consumers)
        return {
            each: replace(command, topic_incarnation=self.view(each).ledger.state.incarnation)
            for each in there
            if topic_partition in (None, each)
        }

    def epoch(self, topic_partition: TopicPartition) -> int:
        """The number of seeks on that partition, as far as this consumer has received them."""
        return self._client.consumers[topic_partition].epoch

    def unsubscribe(self) -> None:
        """Delete the subscription and close, unless other consumers are connected to it."""
        with self._lock:
            self._check_open()
            self._report()
            client = self._client
            self._unsubscribing = dict(zip(client.consumers, client.requests, strict=False))
            who = client.subscription, self.name, client.incarnation
            client.send({a: Unsubscribe(*who, n) for a, n in self._unsubscribing.items()})

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

    def _observe(self) -> None:
        """Take in news. A seek empties the queue of earlier messages; what is revoked goes back."""
        self._run.observe()
        if self._client.incarnation != self._incarnation:
            self._begin_again()
        for topic_partition in sorted(self._run.observed & self._client.consumers.keys()):
            consumer = self._client.consumers[topic_partition]
            epoch = consumer.command.topic_incarnation, consumer.epoch
            if consumer.connected and self._epochs.get(topic_partition) != epoch:
                if topic_partition in self._epochs:
                    self._forget(topic_partition)
                self.queue.forget(topic_partition)
                self._epochs[topic_partition] = epoch
            self._give_back(topic_partition)
        for topic_partition in self._epochs.keys() - self._client.consumers.keys():  # left out
            self._forget(topic_partition)
        consumers, asked = self._client.consumers, self._unsubscribing
        left = asked.keys() & consumers.keys()
        if asked and all(consumers[each].answered >= asked[each] for each in left):
            self._unsubscribing = {}
            if any(self._client.backlog(topic_partition) is not None for topic_partition in left):
                raise BrokerRefusedError(
                    ServerError.METADATA_ERROR,
                    f"Subscription {self._client.subscription} has other consumers: whoever is "
                    "alone can delete it.",
                )
            self._client.leave()

    def _forget(self, topic_partition: TopicPartition) -> None:
        """Forget what was said of a partition, and is to be: somebody has sought, or it is gone."""
        with self._saying:
            self._unsent = [
                pending for pending in self._unsent if partition_of(pending) != topic_partition
            ]
        self._unconfirmed.discard(topic_partition)
        self._pending.forget(topic_partition)
        self._asking.pop(topic_partition, None)
        self._epochs.pop(topic_partition, None)

    def _begin_again(self) -> None:
        """Drop the queue: the consumer was given up, others may have what it held."""
        self.queue.clear()
        self.queue.handed()
        self._incarnation, self._confirming = self._client.incarnation, None
        for topic_partition in self._pending.begins_again():
            self._run.to_report(topic_partition)

    def _give_back(self, topic_partition: TopicPartition) -> None:
        """Drop from the queue what the broker has revoked; what was handed out stays."""
        revoked = self._client.consumers[topic_partition].take_revoked()
        if revoked is not None and not revoked:
            return
        self.queue.revoke(topic_partition, revoked)
        self._fold_handed()
        self._pending.given_back(topic_partition, revoked)

    def _is_confirmed(self) -> bool:
        """True if the broker has answered that it has not given this consumer up; asks first."""
        consumers = {a: each for a, each in self._client.consumers.items() if each.connected}
        if self._confirming is None:
            asked = dict(zip(consumers, self._client.requests, strict=False))
            self._confirming = self._clock.monotonic_s(), asked
            self._fold()
            self._send(self._offset, asked)
            return False
        asked_s, asked = self._confirming
        if any(
            each.answered < asked.get(topic_partition, 0)
            for topic_partition, each in consumers.items()
        ):
            return False
        self._confirming = None
        self._client.confirm(asked_s)
        return not self._client.is_overdue

    def _release(self) -> bool:
        """Make the next of the queue ready; suspects only once they are reported as handed out."""
        group, are_suspects = self.queue.next_group(self._is_suspect)
        if are_suspects:
            self._fold()
            self._note_handed(group)
            self._send(self._offset)
            if any(each.partition in self._pending.handed for each in group):
                return False  # the broker does not let it in just now
        self.queue.release(group, is_reported=are_suspects)
        return True

    def _is_suspect(self, message: ReceivedMessage) -> bool:
        consumer = self._client.consumers.get(message.partition)
        if consumer is None or not consumer.suspects:
            return False
        held = message.message_id
        return consumer.suspects.contains(held.position, held.batch_index)

    def _take(self, planned: StreamOffset) -> None:
        messages = read_between(self._run.topics, self._offset, planned)
        self._fold()  # it goes along with the report of what is taken
        changes = planned.changed_since(self._offset)
        for topic_partition, ledgers in self._run.ledgers(changes).items():
            new = changes[topic_partition].batch_since(self._offset.get(topic_partition), ledgers)
            self._unreported += new.count(ledgers)
            self._pending.queued(
                topic_partition, new, self._client.consumers[topic_partition].floor
            )
        taken: list[ReceivedMessage] = []
        both: list[Callable[[], None]] = [lambda: taken.extend(messages)]
        if 2 * self._unreported >= self._queue_size:
            both.append(lambda: self._send(planned))
        for _ in self.root.store.answers(lambda do: do(), both):  # first it reads, on a disk
            pass
        self._run.planned()
        self._offset = planned
        self._run.connected(planned)
        suspects = (self._client.consumers[topic_partition].suspects for topic_partition in changes)
        looks = self._counts_suspects and any(suspects)
        self.queue.put(taken, self._is_suspect if looks else None)
        instruments.consumed(self._topics, self._client.subscription, len(taken))
        if self._stats is not None and taken:
            self._stats.received(len(taken), sum(len(each.value or b"") for each in taken))

    def _add_to_report(self, pending: Sequence[Outcome]) -> None:
        """Add to the next report, and send it unless others may join it."""
        self._check_open()
        with self._saying:
            self._unsent += pending
            waiting = len(self._unsent)
        if self._group_ms:
            self._flushing.begin(soon=waiting >= GROUPED)
        else:
            self.flush()

    def _fold(self) -> None:
        """Take in what was said; what can never be right is left out, and raised at the end."""
        self._fold_handed()
        with self._saying:
            pending, self._unsent = self._unsent, []
        if gone := self._run.topics.left_out:
            pending = [each for each in pending if partition_of(each).topic not in gone]
        done = [each for each in pending if type(each) is ReceivedMessage]
        rows = [each for each in pending if type(each) is not ReceivedMessage]
        if self._stats is not None and pending:
            given_back = sum(row[len(PLACE)] == "Negative" for row in rows)
            self._stats.acknowledged(len(pending) - given_back)
            self._stats.failed(given_back)
        wrong = None
        parts: list[list[Any]] = [part for part in (done, rows) if part]
        while parts:
            part = parts[-1]
            try:
                found = fold([batch_of(part)], self.root, None)
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
                    self._unsent[:0] = [each for left in parts for each in left]
                raise
            parts.pop()
            for topic_partition, each in found.items():
                self._take_in(topic_partition, each)
        if wrong is not None:
            raise wrong

    def _fold_handed(self) -> None:
        """Take in what was handed out; what can't be found any more needs no report."""
        self._handed_s = inf
        messages = self.queue.handed()
        try:
            self._note_handed(messages)
        except BaseException:
            self.queue.hand_again(messages)
            self._handed_s = self._clock.monotonic_s()
            raise

    def _note_handed(self, messages: Sequence[ReceivedMessage]) -> None:
        gone = self._run.topics.left_out
        parts = [[each for each in messages if each.partition.topic not in gone]]
        while parts:
            part = parts.pop()
            try:
                found = folded(part, self.root)
            except _NEVER_RIGHT:
                if len(part) > 1:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            for topic_partition, each in found.items():
                self._run.to_report(topic_partition)
                self._pending.handed_out(topic_partition, each)

    def _is_left_out(self, pending: Outcome, error: Exception) -> bool:
        topic, topics = partition_of(pending).topic, self._run.topics
        if isinstance(error, TopicNotFoundError):
            return topics.goes_on_without(topic)
        return topic in topics.made_again or topics.is_left_out(topic)

    def _take_in(self, topic_partition: TopicPartition, found: Acknowledgments) -> None:
        """Add to the next report, but for messages that were received before the last seek."""
        consumer = self._client.consumers[topic_partition]
        self._run.to_report(topic_partition)
        self._unconfirmed.add(topic_partition)
        self._pending.settled(topic_partition, found.since(consumer.first_attempt), consumer.floor)

    def _report(self) -> None:
        try:
            self._fold()
        finally:
            self._send(self._offset)

    def _send(
        self, planned: StreamOffset, requests: Mapping[TopicPartition, int] = NO_REQUESTS
    ) -> None:
        """Report what is planned, and what waits; the broker answers to `requests`.

        Rejections are reported once; they wait where a report failed, or nobody is connected.
        Nothing follows an Unsubscribe that has no answer: the broker would not know the consumer.
        """
        if self._unsubscribing:
            return
        consumers = {a: each for a, each in self._client.consumers.items() if each.connected}
        asking = {
            topic_partition: each
            for topic_partition, each in self._asking.items()
            if topic_partition in consumers
        }
        again = dict(zip(asking, self._client.requests, strict=False))
        for topic_partition, number in again.items():  # whether or not it is heard that it was said
            consumers[topic_partition].requested_again = number
        up_to = self._pending.cumulative(self._client.subscription, consumers.keys())
        self._run.report(self._offset, planned, {**requests, **again}, up_to, asking)
        self._unreported = 0
        self._pending.sent(consumers)
        for topic_partition in asking:
            self._asking.pop(topic_partition, None)


def _named(options: Options) -> str:
    """The topics or the pattern that a consumer was given."""
    names = [options["topic"]] if options["topic"] else options["topics"]
    return ",".join(str(TopicName.parse(each)) for each in names) or str(options["topicsPattern"])
