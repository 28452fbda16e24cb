"""Sources without a subscription: a Reader's stream, and `spark.read`, as Spark calls them.

Invariants: offsets are cursors, and a micro-batch is planned from its two offsets alone, so it is
the same after any restart; a batch is one micro-batch, whose end is fixed when it is planned; a
stream's constructor has no effects, since Spark builds readers in several processes; the first
`latestOffset` resolves where to begin, so that "latest" is pinned in Spark's log; when nothing is
new it returns `start` itself, since Spark compares offsets as text.

Follows Spark's `KafkaMicroBatchStream`. What Spark calls, and when: ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pulsar_spark.connector.inspect.telemetry.stats_recorder import (
    ConsumerStatsRecorder,
    log_to_stderr,
)
from pulsar_spark.connector.runtime.reading.input_partition import MessageInputPartition
from pulsar_spark.connector.runtime.reading.micro_batch import plan_tasks
from pulsar_spark.connector.runtime.reading.offset_store import OffsetStore
from pulsar_spark.connector.runtime.reading.partition_view import Lag, PartitionView
from pulsar_spark.connector.runtime.reading.reader_run import ReaderRun
from pulsar_spark.connector.runtime.reading.start_positions import end_position, start_position
from pulsar_spark.connector.runtime.reading.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.runtime.topics.non_persistent import check_kept
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.process.worker_process import leave_if_hung_up
from pulsar_spark.connector.spark.typed_values import TypedValues, check_typed_schema, read_values
from pulsar_spark.connector.storage.folder_watch import FolderWatch, Watched
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Options, Scope

LONGEST_WAIT_S = 0.2
"""Seconds for which a poll waits for activity before it reports none: Spark polls 100 times a s."""
MOST_NAMED = 100
"""The partitions of which a query's progress tells, whatever they have: Spark keeps a hundred."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The part of a Reader's and a consumer's stream that Spark sees."""

    def __init__(self, options: Options, schema: StructType, topics: SubscribedTopics) -> None:
        self._options, self._schema, self._topics = options, schema, topics
        self._clock = topics.root.clock
        self._values = TypedValues.of(options, topics.root, schema)
        self._offsets = OffsetStore(topics.root)
        self._checked = False
        self._stats: ConsumerStatsRecorder | None = None
        self._poll_s = 0.0
        """When to look for news again."""
        self._planned = 0
        """The number of messages of the last micro-batch, which are not acknowledged yet."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._check()
        return StreamOffset(None).to_json_value()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._check()
        self._topics.end_here()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The last position of each partition, and the lag, for the query's progress.

        Of more than MOST_TOLD partitions those are left out that have no backlog and no news.
        """
        every = self._topics.partitions()
        reported = sorted(self._behind() & every.keys()) if len(every) > MOST_NAMED else every
        topics: dict[str, dict[str, Any]] = {}
        for topic_partition in reported:
            progress = topics.setdefault(topic_partition.topic, {})
            progress[str(topic_partition.partition)] = self._progress(every[topic_partition])
        return {"topics": topics, "version": 1} if every else None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        batches = read_values(partition.value, self._schema, self._values)
        # Without a batch Spark takes the empty iterator for rows, which does no harm.
        return (batch for batch in batches if isinstance(batch, pa.RecordBatch))

    def commit(self, end: dict[str, Any]) -> None:
        self._offsets.release(end)

    def stop(self) -> None:
        """End the process if Spark has hung up on it. A consumer's lease then lapses in time."""
        leave_if_hung_up()

    def _count(self, begun: StreamOffset, planned: StreamOffset) -> None:
        """Tell of the micro-batch between these, if somebody wants to hear it."""
        if self._stats is None:
            return
        messages = size = 0
        for topic_partition, offset in planned.changed_since(begun).items():
            view = self._topics.view(topic_partition)
            ledgers = view.ledgers
            found = offset.batch_since(begun.get(topic_partition), ledgers)
            for ledger_id in found.ledger_ids:
                ledger = ledgers.of_id(ledger_id)
                count = found.of_ledgers([ledger_id]).count(ledgers)
                messages += count
                size += ledger.size_bytes * count // ledger.messages
        if messages:
            self._stats.received(messages, size)
        self._planned = messages

    def _count_done(self) -> None:
        """The last micro-batch that was planned is committed."""
        if self._stats is not None and self._planned and self._options["ackMode"] == "auto":
            self._stats.acknowledged(self._planned)
        self._planned = 0

    @property
    def _may_poll(self) -> bool:
        """True if it is time to look for news: on an object store seldom, however often Spark asks.

        Spark asks no other source of the query before the answer is there.
        """
        return self._topics.ends or self._clock.monotonic_s() >= self._poll_s

    def _pause(self, active_s: float) -> None:
        now_s = self._clock.monotonic_s()
        if not self._topics.root.store.remote:
            quiet_s = now_s - active_s
            most_s = pause_s(quiet_s, remote=False)  # a clock that stands moves no further
            self._clock.pause(quiet_s, most_s, remote=False, wait=self._wait)
            return
        if now_s >= self._poll_s:
            self._poll_s = now_s + pause_s(now_s - active_s, remote=True)
        self._clock.sleep(min(self._poll_s - now_s, LONGEST_WAIT_S))

    def _progress(self, view: PartitionView) -> dict[str, Any]:
        """The progress of a partition: the number of messages behind, and the age of the oldest."""
        lag = self._lag(view)
        first_ms = lag.first_ms if lag is not None and lag.messages else None
        age = None if first_ms is None else self._clock.wall_ms() - first_ms
        return {
            "backlog": None if lag is None else lag.messages,
            "last": str(view.last_position),
            "oldestBacklogMessageAgeSeconds": None if age is None else max(age, 0) // 1000,
        }

    @cached_property
    def _watch(self) -> FolderWatch:
        """The watch of the planning process: it doesn't pickle."""
        return FolderWatch(self._topics.root.store)

    def _wait(self, seconds: float) -> None:
        """Wait so long for news."""
        self._watch.rest(self._watched(), seconds)

    def _watched(self) -> list[Watched]:
        """The folders in which its input appears."""
        return self._topics.watched

    def _lag(self, view: PartitionView) -> Lag | None:
        """The lag of the query; None while it is not known."""
        raise NotImplementedError

    def _behind(self) -> set[TopicPartition]:
        """The partitions that may have a backlog, or had news in the last micro-batch."""
        raise NotImplementedError

    def _check(self, offset: StreamOffset | None = None) -> None:
        """Check schema, options and topics before all else, until they have passed.

        Not in the constructor: an error from there reaches the user inside an unrelated one.
        """
        if not self._checked:
            self._topics.were_read(
                topic_partition.topic for topic_partition, _ in (offset or StreamOffset()).items()
            )
            self._check_all()
            self._checked = True

    def _check_all(self) -> None:
        self._options.check_scope(Scope.STREAM_READ)
        self._topics.refresh()
        check_typed_schema(self._options, self._schema, self._topics.typed_ledgers())
        if interval_s := self._options["statsIntervalSeconds"]:
            log_to_stderr()
            topic_partition = ",".join(sorted({each.topic for each in self._topics.partitions()}))
            names = (self._options["subscriptionName"] or "", self._options["consumerName"] or "")
            self._stats = ConsumerStatsRecorder(self._clock, interval_s, topic_partition, *names)


class PulsarliteStreamReader(StreamReader):
    """Reads topics from a start position on; durable in Spark's checkpoint only."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        self._run = ReaderRun(options, root, start_position(options, default="latest"))
        super().__init__(options, schema, self._run.topics)
        self._at = StreamOffset(None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The end of the next micro-batch; `start` itself when there is none."""
        begun = self._offsets.load(start)
        self._check(begun)
        if begun.subscription:
            raise InvalidOptionError(
                f"The checkpoint is of subscription {begun.subscription}: give subscriptionName to "
                "go on, or start with a new checkpoint."
            )
        deadline = self._clock.monotonic_s() + LONGEST_WAIT_S
        while True:
            if self._may_poll:
                self._topics.refresh()
            planned = self._run.plan(begun)
            if planned is not None:
                self._run.planned()
                self._count(begun, planned)
                self._at = planned
                return self._offsets.save(planned)
            self._at = begun
            if self._topics.ends or self._clock.monotonic_s() >= deadline:
                return start
            self._pause(self._run.last_planned_s)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, ended = self._offsets.load(start), self._offsets.load(end)
        self._check(ended)
        return list(map(InputPartition, plan_tasks(self._topics, begun, ended)))

    def _lag(self, view: PartitionView) -> Lag | None:
        offset = self._at.get(view.topic_partition)
        return None if offset is None else Lag.behind(offset.cursor, view)

    def _behind(self) -> set[TopicPartition]:
        return self._run.waiting


class PulsarliteReader(DataSourceReader):
    """Reads topics from `startingOffsets` (earliest) to `endingOffsets` (latest)."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        self._schema = schema
        self._values = TypedValues.of(options, root, schema)
        self._start = start_position(options, default="earliest")
        self._end = end_position(options)
        self._topics = SubscribedTopics(options, root)
        topics = SubscribedTopics(options, root)  # of its own: open topics don't pickle
        check_typed_schema(options, schema, topics.typed_ledgers())

    def partitions(self) -> list[InputPartition]:
        self._topics.refresh()
        views = self._topics.partitions()
        for position in (self._start, self._end):
            position.check_topics(views)
        offsets = {}
        for topic_partition, view in views.items():
            check_kept(topic_partition.topic)
            start = view.check_present(self._start.cursor(view))
            offsets[topic_partition] = PartitionOffset.beginning(start).planned(
                self._end.cursor(view)
            )
        end = StreamOffset(offsets)
        end = replace(end, incarnations=self._topics.incarnations(end))
        tasks = plan_tasks(self._topics, StreamOffset(), end)
        tasks = tasks or [MessageInputPartition(self._topics.root, ())]
        return list(map(InputPartition, tasks))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_values(partition.value, self._schema, self._values)
