"""A producer in this process: it gathers messages, and publishes them as a sink does.

Invariants: what waits is published in its order, as one commit, and waits on while the store fails,
until its time is up; a commit that may have taken effect is tried again with the same files, which
are published once; a message that can't be one is refused when it is sent, and changes nothing;
sequence ids go on behind the last that the topic knows of this producer. Safe for several threads:
those that flush at once share a commit. Entries, routing, chunks, delays and duplicates are the
sink's (`message_writer`, `publishing`). Follows Pulsar's `ProducerImpl`.
"""

from __future__ import annotations

import operator
import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.connector.inspect.telemetry import instruments, stats_recorder, tracing
from pulsar_spark.connector.inspect.telemetry.stats_recorder import ProducerStatsRecorder
from pulsar_spark.connector.runtime.publishing.message_routing import MessageRouting
from pulsar_spark.connector.runtime.publishing.message_writer import WrittenTopic, write_messages
from pulsar_spark.connector.runtime.publishing.outgoing_messages import as_messages, check_delays
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.schema.schema_registration import (
    SinkSchema,
    check_validation,
    register,
)
from pulsar_spark.connector.runtime.topics.backlog_quota import await_room
from pulsar_spark.connector.runtime.topics.policies import max_delivery_delay_ms, open_or_create
from pulsar_spark.connector.runtime.topics.producer_connection import (
    claim_of,
    connect,
    disconnect,
    is_registered,
)
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.storage.delayed_flush import DelayedFlush
from pulsar_spark.connector.storage.process_identity import this_process
from pulsar_spark.errors import (
    FileReclaimedError,
    InvalidMessageError,
    ProducerBusyError,
    ProducerHeldError,
    PulsarliteError,
    StorageError,
    StorageRefusedError,
    TopicNotFoundError,
)
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.publication import AlreadyCommitted
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet
from pulsar_spark.model.topic_name import TopicName, check_user_topic
from pulsar_spark.options.option_values import MOST_COUNT
from pulsar_spark.options.options import Options, Scope

MOST_WAITING: Final = 20_000
"""The greatest number of messages that wait in a producer."""
MOST_WAITING_BYTES: Final = 64 << 20
"""The greatest size of the messages that wait, but for a single larger one (Pulsar's default
`memoryLimit`)."""
DUPLICATE: Final = MessageId(-1, -1)
"""The id of a message that was dropped, as the topic had it already."""
_COLUMNS: Final = pa.schema(
    [
        ("value", pa.binary()), ("key", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())), ("ordering_key", pa.binary()),
        ("event_time", pa.timestamp("us", "UTC")), ("deliver_at", pa.timestamp("us", "UTC")),
        ("deliver_after", pa.duration("us")), ("topic", pa.string()),
        ("sequence_id", pa.int64()),
    ]
)  # fmt: skip
_NO_DELAY: Final = timedelta(0)
_LONG_DELAY: Final = timedelta(days=100_000)
"""A shorter one ends at a time that can be stored."""
_MAY_PASS: Final = (StorageError, ProducerHeldError, OSError)

Row = tuple[Any, ...]
"""A message's values, in the order of _COLUMNS."""
Stored = tuple[list[LedgerInfo], dict[int, PositionSet]]
"""Ledgers that were published, and by partition what is hidden in them."""
Done = Callable[["MessageId | Exception"], object]
"""Called with what became of a message: its id, DUPLICATE, or why it was given up."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A message that is not published yet."""

    row: Row
    number: int
    size: int
    sent_s: float
    done: Done | None


class MessageProducer(AbstractContextManager["MessageProducer"]):
    """One producer of one topic. Also a context manager, which closes it at its end."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        publish_delay_ms: int = 0,
        memory_limit_bytes: int = MOST_WAITING_BYTES,
        send_timeout_ms: int = 0,
        first_sequence_id: int | None = None,
        schema: SinkSchema | None = None,
        settings: Mapping[str, Any] | None = None,
        is_alone: bool = False,
    ) -> None:
        """Connects in its `accessMode`; the topic is made, with these settings, if there is none.

        `options` are those of a sink with a `topic`. Messages wait for `publish_delay_ms`, or until
        `memory_limit_bytes` of them do, so that others share their commit; what could not be
        published for `send_timeout_ms` is given up (0: never). Values are bytes of `schema`, which
        is registered now. With `is_alone` nobody else may have its name. ProducerFencedError or
        ProducerBusyError if topic or name are another's, ProducerBlockedQuotaExceededError if its
        backlog quota is exceeded, IncompatibleSchemaError, InvalidOptionError if one is wrong.
        """
        given = {"producerName": f"producer-{uuid.uuid4().hex[:10]}", **options}
        self.options: Options = options_of(given, Scope.STREAM_WRITE)
        self.root = Root.of(self.options)
        self._clock = self.root.clock
        self.name: str = self.options["producerName"]
        self.topic = check_user_topic(TopicName.parse(self.options["topic"]), "written")
        self._delay_ms, self._timeout_s = publish_delay_ms, send_timeout_ms / 1000
        self._schema, self._largest = schema, int(self.options["maxMessageSize"])
        self._ledger = open_or_create(self.root, self.topic, self.options, settings)
        self._ledger.state.check_takes_messages()
        if schema is None:
            check_validation(self._ledger, self.topic)
        else:
            register(self._ledger, self.topic.partitioned_topic, schema)
        with suppress(ProducerHeldError):  # messages wait
            await_room(self._ledger, range(self.partitions), patience_ms=0)
        self._claim = claim_of(self.options, self.name, uuid.uuid4().hex, this_process())
        if is_alone:
            self._claim = replace(self._claim, is_requested=True, replaces=False)
        if is_registered(self._ledger, self._claim):
            connect(self._ledger, self._claim)
        known = (
            self._ledger.state.highest_sequence_id(number, self.name)
            for number in range(self._ledger.state.partitions)
        )
        self.last_sequence_id = max((each for each in known if each is not None), default=-1)
        """The highest that was published, also by earlier runs; -1 if none was."""
        if first_sequence_id is not None:
            self.last_sequence_id = first_sequence_id - 1
        self._next_sequence_id = self.last_sequence_id + 1
        self._routing = MessageRouting(self.options, self.partitions, str(self.topic))
        self._waiting: list[_Waiting] = []
        self._waiting_bytes, self._most_bytes = 0, memory_limit_bytes
        self._tried: tuple[list[_Waiting], list[WrittenTopic]] | None = None
        """Messages that may be published, some of which still wait, and their files."""
        self._lock = threading.Lock()
        """Guards the queue; never held while anything is published."""
        self._publishing = threading.RLock()
        self._flushing = DelayedFlush(
            self._clock, publish_delay_ms, self.flush, f"producer {self.name}"
        )
        self._is_closed = False
        self._stats: ProducerStatsRecorder | None = None
        stats_interval_s = self.options["statsIntervalSeconds"]
        if stats_interval_s and stats_recorder.is_observed():
            self._stats = ProducerStatsRecorder(
                self._clock, stats_interval_s, str(self.topic), self.name, lambda: self.pending
            )
        pa.array([])  # it loads pandas, if that is there: now, and not in the first send

    @property
    def partitions(self) -> int:
        return self._ledger.state.partitions

    @property
    def pending(self) -> int:
        """The number of messages that are not published yet."""
        return len(self._waiting)

    def send(
        self,
        value: bytes | None,
        *,
        done: Done | None = None,
        at_once: bool = False,
        **arguments: Any,
    ) -> int:
        """Publish a message in the background; errors as of `enqueue`."""
        return self.enqueue(self.row(value, **arguments), done, at_once=at_once)

    def enqueue(self, row: Row, done: Done | None, *, at_once: bool = False) -> int:
        """Have a message published, now or with others that wait; its sequence id.

        Who wants it `at_once` flushes next. What can't be published, as the store does not answer,
        waits, and is tried again.
        """
        size = _size(row)
        if self._is_full(size):
            self.flush()
        with self._lock:
            if self._is_closed:
                raise ProducerBusyError(f"Producer {self.name} is closed: make another.")
            number = self._next_sequence_id if row[-1] is None else row[-1]
            if number > MOST_COUNT:
                raise InvalidMessageError(
                    f"Producer {self.name} has used the last sequence id that there is, "
                    f"{MOST_COUNT}: give a lower one with each message, or take another "
                    "producer_name."
                )
            self._next_sequence_id = max(self._next_sequence_id, number + 1)
            waiting = _Waiting(row, number, size, self._clock.monotonic_s(), done)
            self._waiting.append(waiting)
            self._waiting_bytes += size
        if at_once:
            return number
        if not self._delay_ms:
            self._flush_now(waiting)
            return number
        self._flushing.begin()
        if self._is_full():
            with suppress(PulsarliteError, OSError):  # it waits on, and is tried again
                self.flush()
        return number

    def row(
        self,
        value: bytes | None,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        sequence_id: int | None = None,
        event_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: timedelta | None = None,
        partition: int | None = None,
    ) -> Row:
        """A message to be published; `partition` goes before the topic's routing.

        InvalidMessageError if it can't be one.
        """
        topic = None
        if partition is not None:
            number = self._checked_partition(partition)
            topic = f"{self.topic.partitioned_topic_name}-partition-{number}"
        properties = tracing.with_headers(properties)
        pairs = None if properties is None else list(properties.items())
        row = (
            value, key, pairs, ordering_key, event_time, deliver_at, deliver_after, topic,
            sequence_id,
        )  # fmt: skip
        if not self._is_plain(row):
            self._check(row)
        return row

    def flush(self) -> None:
        """Publish what waits now.

        If the store fails all of it waits on, but what has waited for its time; of any other error,
        as when another producer has the topic, all that waits gets to know, and waits no more.
        """
        with self._publishing:
            last = self._waiting[-1] if self._waiting else None
            while last in self._waiting:
                self._publish(*self._next_files())

    def written(self, rows: Iterable[Row]) -> list[WrittenTopic]:
        """Files of these messages, which nobody sees before a commit."""
        return write_messages(
            [_batch(list(rows))], self.options, self.root, self._schema, routing=self._routing,
            incarnation=self._ledger.state.incarnation,
        )  # fmt: skip

    def close(self) -> None:
        """Publish what waits, and go: others may have the topic."""
        self.flush()
        self._flushing.stop()
        with self._publishing:
            with self._lock:
                was_closed, self._is_closed = self._is_closed, True
            self.flush()
            if not was_closed:
                with suppress(TopicNotFoundError):  # with the topic went its producers
                    disconnect(self._ledger, self._claim)
        if self._stats is not None:
            self._stats.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _next_files(self) -> tuple[list[_Waiting], list[WrittenTopic]]:
        """The messages to publish next, and their files.

        Those of an earlier attempt once more, while any of its messages waits: it may have taken
        effect, and files are published once.
        """
        if self._tried is not None and not set(self._tried[0]).isdisjoint(self._waiting):
            return self._tried
        self._tried = None
        chosen = list(self._waiting)
        try:
            return chosen, self.written((*each.row[:-1], each.number) for each in chosen)
        except Exception as error:
            self._give_up(chosen, error)
            raise

    def _publish(self, chosen: list[_Waiting], written: list[WrittenTopic]) -> None:
        """Publish these messages, of which some may wait no more; errors as of `flush`."""
        is_again, self._tried = self._tried is not None, (chosen, written)
        try:
            ledgers, hidden = self._stored(written) if is_again else ([], {})
            if not ledgers:
                published = publish(self.root, written, None, self._claim, patience_ms=0)
                ledgers, hidden = _committed(published)
        except FileReclaimedError as error:  # the earlier attempt was none, long ago: write anew
            self._tried = None
            if not is_again:
                self._give_up(chosen, error)
                raise
            return
        except Exception as error:
            if not may_pass(error):
                self._tried = None
            self._give_up(chosen, error)
            raise
        numbers = [each.number for each in chosen]
        self.last_sequence_id = max(self.last_sequence_id, *numbers)
        left = self._leave(chosen)
        self._tried = None
        self._count(left)
        if any(each.done is not None for each in left):
            answers = dict(zip(chosen, self._answers(ledgers, hidden, numbers), strict=True))
            for each in left:
                if each.done is not None:
                    each.done(answers[each])

    def _stored(self, written: Sequence[WrittenTopic]) -> Stored:
        """The publications of an earlier attempt whose answer was lost, if there are any."""
        self._ledger.refresh()
        state = self._ledger.state
        files = {each.file for topic in written for each in topic.ledgers}
        if files.isdisjoint(state.files):
            return [], {}
        numbers = range(state.partitions)
        ledgers = [each for n in numbers for each in state.ledgers(n) if each.file in files]
        ids = [each.ledger_id for each in ledgers]
        return ledgers, {n: found for n in numbers if (found := state.partition(n).hidden.of(ids))}

    def _is_full(self, more: int = 0) -> bool:
        """True if a message of `more` bytes has no room beside what waits."""
        full = self._waiting_bytes + more > self._most_bytes or len(self._waiting) >= MOST_WAITING
        return full and bool(self._waiting)

    def _flush_now(self, waiting: _Waiting) -> None:
        """Publish what waits; that message does not wait on if it could not be published."""
        try:
            self.flush()
        except BaseException:
            with self._publishing:
                self._leave([waiting])
            raise

    def _leave(self, these: Sequence[_Waiting]) -> list[_Waiting]:
        """These wait no more; those of them that did."""
        leaving = set(these)
        with self._lock:
            left = [each for each in self._waiting if each in leaving]
            self._waiting = [each for each in self._waiting if each not in leaving]
            self._waiting_bytes -= sum(each.size for each in left)
        return left

    def _checked_partition(self, partition: int) -> int:
        """InvalidMessageError if the topic has no such: no other message is to suffer of it."""
        with suppress(TypeError):
            if 0 <= (number := operator.index(partition)) < self.partitions:
                return number
        raise InvalidMessageError(
            f"The message_router gave partition {partition!r} for {self.topic}, which has "
            f"{self.partitions}. It has to give a whole number, 0 or more and below that."
        )

    def _is_plain(self, row: Row) -> bool:
        """True if it can be seen at a glance that this is a message: most are such."""
        value, key, pairs, *others = row
        return (
            type(value) is bytes
            and len(value) <= self._largest
            and (key is None or _is_text(key))
            and (pairs is None or all(_is_text(each) for pair in pairs for each in pair))
            and (others.count(None) == len(others) or self._are_plain(*others))
        )

    def _are_plain(
        self, ordering_key: Any, event_time: Any, at: Any, after: Any, _topic: Any, number: Any
    ) -> bool:
        """True if what few messages have needs no closer look either."""
        is_delayed = not (at is None and after is None)
        return (
            (ordering_key is None or type(ordering_key) is bytes)
            and all(each is None or _is_utc(each) for each in (event_time, at))
            and (after is None or (at is None and _is_delay(after)))
            and (number is None or (type(number) is int and 0 <= number < 1 << 63))
            and not (is_delayed and max_delivery_delay_ms(self._ledger, self.topic))
        )

    def _check(self, row: Row) -> None:
        """InvalidMessageError if this can't be published: the sink's own checks."""
        try:
            batch = _batch([row])
        except (ArithmeticError, TypeError, ValueError) as error:
            raise InvalidMessageError(
                f"Some part of the message can't be stored: {error}. Look at the types and bounds "
                f"of {', '.join(_COLUMNS.names[:-1])}."
            ) from error
        rows = batch.drop_columns(["topic"]) if "topic" in batch.schema.names else batch
        topic = self.options["topic"]
        messages = as_messages(rows, self.options, topic, self._clock.wall_ms())
        if "deliver_at" in messages.column_names:
            check_delays(messages, max_delivery_delay_ms(self._ledger, self.topic), topic)

    def _give_up(self, chosen: Sequence[_Waiting], error: Exception) -> None:
        """End the messages that can't be published, or whose time is up, with that error."""
        now_s = self._clock.monotonic_s()
        late_s = now_s - self._timeout_s
        if may_pass(error):
            chosen = [each for each in chosen if self._timeout_s and each.sent_s <= late_s]
        for each in self._leave(chosen):
            if self._stats is not None:
                self._stats.failed(1)
            instruments.sent(str(self.topic), 1, now_s - each.sent_s, type(error).__qualname__)
            if each.done is not None:
                each.done(error)

    def _count(self, published: Sequence[_Waiting]) -> None:
        """Tell of messages that were published together."""
        now_s = self._clock.monotonic_s()
        instruments.sent(str(self.topic), len(published), now_s - published[0].sent_s)
        if self._stats is not None:
            size = sum(each.size for each in published)
            latencies_s = (now_s - each.sent_s for each in published)
            self._stats.published(len(published), size, latencies_s)

    def _answers(
        self,
        ledgers: Sequence[LedgerInfo],
        hidden: Mapping[int, PositionSet],
        numbers: Sequence[int],
    ) -> list[MessageId | Exception]:
        """The id of each message; if they can't be read now, why they are not known."""
        if (
            len(ledgers) == 1
            and ledgers[0].messages == len(numbers)
            and self.options["batcherBuilder"] == "DEFAULT"
            and not hidden
        ):
            return list(_ids(ledgers[0]))
        try:
            return [*self._ids_by_number(ledgers, hidden, numbers)]
        except _MAY_PASS as error:
            return [error for _ in numbers]

    def _ids_by_number(
        self,
        ledgers: Sequence[LedgerInfo],
        hidden: Mapping[int, PositionSet],
        numbers: Sequence[int],
    ) -> list[MessageId]:
        """The id of each message by its sequence id, as partitions, keys or chunks reorder them."""
        found: dict[int, deque[MessageId]] = defaultdict(deque)
        for ledger in ledgers:
            dropped = hidden.get(ledger.partition, NOTHING)
            with self._ledger.reader() as reader:
                stored = reader.read_table(ledger, ("sequence_id",))[0].to_pylist()
            for number, held in zip(stored, _ids(ledger), strict=True):
                is_dropped = dropped.contains(held.position, max(held.batch_index, 0))
                found[number].append(DUPLICATE if is_dropped else held)
        take = deque.pop if self.options["chunkingEnabled"] else deque.popleft  # at its last chunk
        return [take(found[number]) if found[number] else DUPLICATE for number in numbers]


def _committed(published: Iterable[Commit | AlreadyCommitted]) -> Stored:
    """The ids in the topic's commits."""
    commits = [each for each in published if isinstance(each, Commit)]
    hidden = {
        partition: Cursor.from_json_value(value).individually_deleted
        for each in commits
        for partition, value in each.hidden.items()
    }
    return [ledger for each in commits for ledger in each.ledgers], hidden


def may_pass(error: BaseException) -> bool:
    """True if messages wait on after it: the store may answer the next time, and have room."""
    return isinstance(error, _MAY_PASS) and not isinstance(error, StorageRefusedError)


def _is_text(value: Any) -> bool:
    return type(value) is str and value.isascii()


def _is_utc(value: Any) -> bool:
    return type(value) is datetime and value.tzinfo is timezone.utc


def _is_delay(value: Any) -> bool:
    return type(value) is timedelta and _NO_DELAY <= value < _LONG_DELAY


def _size(row: Row) -> int:
    """About the bytes of a message."""
    value, key, pairs, *_ = row
    texts = 0 if pairs is None else sum(len(each or "") for pair in pairs for each in pair)
    return len(value or b"") + len(key or "") + texts


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """The messages as rows; a column that none has is left out, for an option to fill in."""
    arrays = {}
    for field, values in zip(_COLUMNS, zip(*rows, strict=True), strict=True):
        if field.name == "value" or values.count(None) < len(values):
            arrays[field.name] = pa.array(values, field.type)
    return pa.RecordBatch.from_pydict(arrays)


def _ids(ledger: LedgerInfo) -> Iterator[MessageId]:
    for entry, size in enumerate(ledger.batch_sizes.array().tolist()):
        for index in range(size):
            place = index if size > 1 else -1
            yield MessageId(ledger.ledger_id, entry, ledger.partition, place)
