"""The streaming source of a Reader: offsets are cursors, a micro-batch is their difference.

Invariants: the constructor has no effects, since Spark builds readers in several processes; the
first `latestOffset` resolves where to begin, so that "latest" is pinned in Spark's log; when
nothing is new it returns `start` itself, since Spark compares offsets as text; a batch is planned
from its two offsets alone, and so the same after any restart.

Follows Spark's `KafkaMicroBatchStream`. What Spark calls, and when: ARCHITECTURE.md.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pulsar_spark.connector.source.compacted_reading import ReadView
from pulsar_spark.connector.source.micro_batch import MessageInputPartition, deal
from pulsar_spark.connector.source.offset_store import OffsetStore
from pulsar_spark.connector.source.start_positions import (
    StartPosition,
    last_position,
    start_position,
)
from pulsar_spark.connector.source.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.source.typed_values import TypedValues, check_typed_schema, read_values
from pulsar_spark.connector.spark.polling import pause_s
from pulsar_spark.connector.spark.worker_process import leave_if_hung_up
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.options import Options, Scope
from pulsar_spark.planning.admission import Admission, Waiting
from pulsar_spark.planning.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.position import EARLIEST, Position
from pulsar_spark.topic_name import TopicPartition, is_persistent

LONGEST_WAIT_S = 0.2
"""How long a look waits for news before it says that there is none: Spark asks 100 times a s."""


class PulsarliteStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics from a start position on; durable in Spark's checkpoint only."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        self._options, self._root, self._schema = options, root, schema
        self._clock = root.clock
        self._values = TypedValues.of(options, root, schema)
        self._start = start_position(options, default="latest")
        self._admission = Admission(
            options["maxMessagesPerTrigger"],
            options["maxBytesPerTrigger"],
            options["minMessagesPerTrigger"],
            options["maxTriggerDelay"],
        )
        self._topics = SubscribedTopics(options, root)
        self._view = ReadView(options)
        self._offsets = OffsetStore(root)
        self._stop_at: dict[TopicPartition, Position] | None = None
        self._last_batch_s = self._clock.monotonic_s()
        self._turn = 0
        self._checked = False
        self._connected: set[TopicPartition] = set()

    # -- what Spark calls ----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._check()
        return StreamOffset(None).to_json_value()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._check()
        self._topics.refresh()
        self._stop_at = {
            partition: last_position(
                self._view.ledgers(ledger, partition.partition),
                self._view.trimmed(ledger, partition.partition),
            )
            for partition, ledger in self._topics.partitions().items()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The end of the next micro-batch; `start` itself when there is none."""
        self._check()
        begun = self._offsets.load(start)
        if begun.subscription:
            raise InvalidOptionError(
                f"The checkpoint is of subscription {begun.subscription}: give subscriptionName to "
                "go on, or start with a new checkpoint."
            )
        deadline = self._clock.monotonic_s() + LONGEST_WAIT_S
        while True:
            self._topics.refresh()
            planned = self._plan(begun)
            if planned is not None:
                self._last_batch_s = self._clock.monotonic_s()
                self._turn += 1
                return self._offsets.save(planned)
            if self._stop_at is not None or self._clock.monotonic_s() >= deadline:
                return start
            quiet_s = self._clock.monotonic_s() - self._last_batch_s
            self._clock.sleep(pause_s(quiet_s, remote=self._topics.remote))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The last position of each partition, for the query's progress: the lag can be seen."""
        topics: dict[str, dict[str, str]] = {}
        for partition, ledger in sorted(self._topics.partitions().items()):
            number = partition.partition
            last = last_position(ledger.ledgers(number), ledger.state.trimmed_up_to(number))
            topics.setdefault(partition.topic, {})[str(number)] = str(last)
        return {"topics": topics, "version": 1} if topics else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[MessageInputPartition]:
        self._check()
        begun, ended = self._offsets.load(start), self._offsets.load(end)
        self._topics.open_all(
            partition.topic for partition, offset in ended.items() if offset != begun.get(partition)
        )
        ranges: dict[tuple[str, str], list[Any]] = {}
        for partition, offset in ended.items():
            since = begun.get(partition)
            if since == offset:
                continue
            ledger = self._topics.ledger(partition.topic)
            number = partition.partition
            batch = offset.batch_since(since, self._view.ledgers(ledger, number))
            same_epoch = since is not None and since.epoch == offset.epoch
            self._check_present(partition, since.cursor if since and same_epoch else offset.origin)
            rows = list(self._view.row_ranges(batch, ledger, number))
            if rows:
                ranges.setdefault((partition.topic, ledger.folder), []).extend(rows)
        return deal(
            ranges,
            self._root,
            at_least=self._options["minPartitions"] or os.cpu_count() or 1,
            fail_on_data_loss=self._options["failOnDataLoss"],
        )

    def read(self, partition: MessageInputPartition) -> Any:  # type: ignore[override]
        return _read(partition, self._schema, self._values)

    def commit(self, end: dict[str, Any]) -> None:
        self._offsets.release(end)

    def stop(self) -> None:
        """End the process if Spark has hung up on it: a Reader holds no place at any broker."""
        leave_if_hung_up()

    # -- planning --------------------------------------------------------------------------------

    def _check(self) -> None:
        """Check schema, options and topics before all else.

        Not in the constructor: an error from there reaches the user inside an unrelated one.
        """
        if not self._checked:
            self._options.check_scope(Scope.STREAM_READ)
            self._topics.refresh()
            check_typed_schema(self._options, self._schema, self._topics.typed_ledgers())
            self._checked = True

    def _plan(self, begun: StreamOffset) -> StreamOffset | None:
        """The offset behind `begun`; None if there is nothing to read and nothing to pin.

        A partition that the changed options no longer name stays where it was.
        """
        offsets = dict(begun.items())
        known = self._topics.partitions()
        pinned = begun.is_symbolic
        if pinned:
            self._start.check_topics(self._topics.partitions())
        for partition, ledger in known.items():
            if partition not in offsets:
                where = self._start if begun.is_symbolic else StartPosition("earliest")
                origin = self._view.cursor(where, ledger, partition.partition)
                offsets[partition] = PartitionOffset.beginning(origin)
                pinned = True
            if partition not in self._connected and not is_persistent(partition.topic):
                # Older messages are not for this run, whatever the last one has read.
                origin = self._view.cursor(StartPosition("latest"), ledger, partition.partition)
                epoch = offsets[partition].epoch + 1
                offsets[partition] = PartitionOffset.beginning(origin, epoch)
                pinned = True
            self._connected.add(partition)
        waiting: dict[TopicPartition, Waiting] = {}
        for partition, ledger in known.items():
            cursor = self._check_present(partition, offsets[partition].cursor)
            if cursor is not offsets[partition].cursor:  # so that a loss is reported once
                offsets[partition], pinned = offsets[partition].planned(cursor), True
            stop_at = None if self._stop_at is None else self._stop_at.get(partition, EARLIEST)
            number = partition.partition
            uncounted, ledgers = (
                self._view.uncounted(ledger, number),
                self._view.ledgers(ledger, number),
            )
            waiting[partition] = Waiting(cursor, ledgers, stop_at, uncounted)
        waited_ms = None
        if self._stop_at is None:
            waited_ms = int((self._clock.monotonic_s() - self._last_batch_s) * 1000)
        taken = self._admission.admit(waiting, waited_ms=waited_ms, turn=self._turn)
        for partition, messages in taken.items():
            cursor = offsets[partition].cursor.acknowledge(messages)
            cursor = cursor.advance(waiting[partition].ledgers)
            offsets[partition] = offsets[partition].planned(cursor)
        return StreamOffset(offsets) if pinned or taken else None

    def _check_present(self, partition: TopicPartition, cursor: Cursor) -> Cursor:
        ledger = self._topics.ledger(partition.topic)
        return self._view.check_present(ledger, partition, cursor)


def _read(partition: MessageInputPartition, schema: StructType, values: TypedValues | None) -> Any:
    batches = read_values(partition, schema, values)
    # Without a batch Spark takes the empty iterator for rows, which does no harm.
    return (batch for batch in batches if isinstance(batch, pa.RecordBatch))
