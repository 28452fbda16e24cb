"""The streaming source of a Reader: offsets are cursors, a micro-batch is their difference.

Invariants: the constructor has no effects, since Spark builds readers in several processes; the
first `latestOffset` resolves where to begin, so that "latest" is pinned in Spark's log; when
nothing is new it returns `start` itself, since Spark compares offsets as text; a batch is planned
from its two offsets alone, and so the same after any restart.

Follows Spark's `KafkaMicroBatchStream`. What Spark calls, and when: ARCHITECTURE.md.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pulsar_spark.admission import Admission, Waiting
from pulsar_spark.connector.message_columns import check_read_schema
from pulsar_spark.connector.message_reader import read_messages
from pulsar_spark.connector.micro_batch import MessageInputPartition, deal, row_ranges
from pulsar_spark.connector.offset_store import OffsetStore
from pulsar_spark.connector.start_positions import StartPosition, first_position, last_position
from pulsar_spark.connector.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.topics import Root
from pulsar_spark.cursor import Cursor
from pulsar_spark.errors import DataLossError
from pulsar_spark.options import Options
from pulsar_spark.position import Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.stream_offset import PartitionOffset, StreamOffset, TopicPartition

LONGEST_WAIT_S = 0.2
"""How long a look waits for news before it says that there is none: Spark asks 100 times a s."""
POLL_S = 0.01
"""Between two looks at the log while it waits, on a local disk, ..."""
REMOTE_POLL_S = 0.2
"""... and on an object store, where each look is a request that costs money."""

_log = logging.getLogger(__name__)


class PulsarliteStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics from a start position on; durable in Spark's checkpoint only."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        check_read_schema(schema)
        self._options, self._root, self._schema = options, root, schema
        self._start = start_position(options, default="latest")
        self._admission = Admission(
            options["maxMessagesPerTrigger"],
            options["maxBytesPerTrigger"],
            options["minMessagesPerTrigger"],
            options["maxTriggerDelay"],
        )
        self._topics = SubscribedTopics(options, root)
        self._offsets = OffsetStore(root)
        self._stop_at: dict[TopicPartition, Position] | None = None
        self._last_batch_s = time.monotonic()
        self._turn = 0

    # -- what Spark calls ----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._topics.refresh()
        return StreamOffset(None).to_json_value()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._topics.refresh()
        self._stop_at = {
            partition: last_position(
                ledger.ledgers(partition.partition),
                ledger.state.trimmed_up_to(partition.partition),
            )
            for partition, ledger in self._topics.partitions().items()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The end of the next micro-batch; `start` itself when there is none."""
        begun = self._offsets.load(start)
        deadline = time.monotonic() + LONGEST_WAIT_S
        while True:
            self._topics.refresh()
            planned = self._plan(begun)
            if planned is not None:
                self._last_batch_s = time.monotonic()
                self._turn += 1
                return self._offsets.save(planned)
            if self._stop_at is not None or time.monotonic() >= deadline:
                return start
            time.sleep(REMOTE_POLL_S if self._topics.remote else POLL_S)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The last position of each partition, for the query's progress: the lag can be seen."""
        topics: dict[str, dict[str, str]] = {}
        for partition, ledger in sorted(self._topics.partitions().items()):
            number = partition.partition
            last = last_position(ledger.ledgers(number), ledger.state.trimmed_up_to(number))
            topics.setdefault(partition.topic, {})[str(number)] = str(last)
        return {"topics": topics, "version": 1} if topics else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[MessageInputPartition]:
        begun, ended = self._offsets.load(start), self._offsets.load(end)
        self._topics.open_all(partition.topic for partition, _ in ended.items())
        ranges: dict[tuple[str, str], list[Any]] = {}
        for partition, offset in ended.items():
            ledger = self._topics.ledger(partition.topic)
            ledgers = ledger.ledgers(partition.partition)
            since = begun.get(partition)
            self._check_present(partition, since or PartitionOffset.beginning(offset.origin))
            batch = offset.batch_since(since, ledgers)
            batch = self._without_hidden(batch, partition)
            if batch:
                rows = ranges.setdefault((partition.topic, ledger.folder), [])
                rows.extend(row_ranges(batch, ledgers))
        return deal(
            ranges,
            self._root,
            at_least=self._options["minPartitions"] or os.cpu_count() or 1,
            fail_on_data_loss=self._options["failOnDataLoss"],
        )

    def read(self, partition: MessageInputPartition) -> Any:  # type: ignore[override]
        return _read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        self._offsets.release(end)

    def stop(self) -> None:
        """Nothing is held: a Reader has no place at any broker."""

    # -- planning --------------------------------------------------------------------------------

    def _plan(self, begun: StreamOffset) -> StreamOffset | None:
        """The offset behind `begun`; None if there is nothing to read and nothing to pin."""
        offsets = dict(begun.items())
        known = self._topics.partitions()
        pinned = begun.is_symbolic
        if pinned:
            self._start.check_topics(self._topics.partitions)
        for partition, ledger in known.items():
            if partition not in offsets:
                where = self._start if begun.is_symbolic else StartPosition("earliest")
                origin = where.cursor(ledger, partition.partition)
                offsets[partition] = PartitionOffset.beginning(origin)
                pinned = True
        waiting: dict[TopicPartition, Waiting] = {}
        for partition, offset in list(offsets.items()):
            ledger = self._topics.ledger(partition.topic)
            offset = offsets[partition] = self._check_present(partition, offset)
            stop_at = None if self._stop_at is None else self._stop_at.get(partition, Position(-1, -1))
            waiting[partition] = Waiting(offset.cursor, ledger.ledgers(partition.partition), stop_at)
        waited_ms = None
        if self._stop_at is None:
            waited_ms = int((time.monotonic() - self._last_batch_s) * 1000)
        taken = self._admission.admit(waiting, waited_ms=waited_ms, turn=self._turn)
        for partition, messages in taken.items():
            cursor = offsets[partition].cursor.acknowledge(messages)
            cursor = cursor.advance(waiting[partition].ledgers)
            offsets[partition] = offsets[partition].planned(cursor)
        return StreamOffset(offsets) if pinned or taken else None

    def _without_hidden(self, batch: PositionSet, partition: TopicPartition) -> PositionSet:
        hidden = self._topics.ledger(partition.topic).state.hidden(partition.partition)
        return batch if hidden is None else batch.difference(hidden)

    def _check_present(self, partition: TopicPartition, offset: PartitionOffset) -> PartitionOffset:
        """The offset, if what comes behind it is still there; else moved on, or DataLossError."""
        ledger = self._topics.ledger(partition.topic)
        trimmed = ledger.state.trimmed_up_to(partition.partition)
        done = offset.cursor.mark_delete_position
        if done >= trimmed:
            return offset
        first = first_position(ledger.ledgers(partition.partition), trimmed)
        lost = (
            f"Messages after {done} up to {trimmed} of {partition} were trimmed away before this "
            "query read them: it was stopped for longer than the topic keeps messages, or its "
            "checkpoint is old"
        )
        if self._options["failOnDataLoss"]:
            raise DataLossError(
                f"{lost}. Set failOnDataLoss to false to go on from {first}, or start with a new "
                "checkpoint; to keep messages longer, trim later."
            )
        _log.warning("%s; failOnDataLoss is false, so it goes on from %s", lost, first)
        return offset.planned(offset.cursor.union(Cursor(trimmed)))


def start_position(options: Options, default: str) -> StartPosition:
    """Where the options say that reading begins."""
    if options.has("startingTime"):
        return StartPosition.parse_time("startingTime", options["startingTime"])
    text = options["startingOffsets"] if options.has("startingOffsets") else default
    return StartPosition.parse(
        "startingOffsets", text, inclusive=options["startMessageIdInclusive"]
    )


def _read(partition: MessageInputPartition, schema: StructType) -> Any:
    batches = read_messages(partition, schema)
    # Without a single batch Spark would take the empty iterator for rows, which is as well.
    return (batch for batch in batches if isinstance(batch, pa.RecordBatch))
