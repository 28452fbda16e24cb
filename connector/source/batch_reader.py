"""`spark.read`: all messages from one position to another, planned once.

Invariants: the end is fixed when the batch is planned; what is read is what a streaming query
from the same start to the same end would read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from pulsar_spark.connector.source.compacted_reading import ReadView
from pulsar_spark.connector.source.micro_batch import MessageInputPartition, deal
from pulsar_spark.connector.source.start_positions import end_position, start_position
from pulsar_spark.connector.source.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.source.typed_values import TypedValues, check_typed_schema, read_values
from pulsar_spark.connector.topic_log.non_persistent import check_kept
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.options.options import Options


class PulsarliteReader(DataSourceReader):
    """Reads topics from `startingOffsets` (earliest) to `endingOffsets` (latest)."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        self._options, self._root, self._schema = options, root, schema
        self._values = TypedValues.of(options, root, schema)
        self._start = start_position(options, default="earliest")
        self._end = end_position(options)
        self._topics = SubscribedTopics(options, root)
        self._view = ReadView(options)
        topics = SubscribedTopics(options, root)  # of its own: open topics don't pickle
        check_typed_schema(options, schema, topics.typed_ledgers())

    def partitions(self) -> list[MessageInputPartition]:
        self._topics.refresh()
        for position in (self._start, self._end):
            position.check_topics(self._topics.partitions())
        ranges: dict[tuple[str, str], list[Any]] = {}
        for partition, ledger in self._topics.partitions().items():
            check_kept(partition.topic)
            number = partition.partition
            start = self._view.cursor(self._start, ledger, number)
            start = self._view.check_present(ledger, partition, start)
            end = self._view.cursor(self._end, ledger, number)
            batch = end.difference(start, self._view.ledgers(ledger, number))
            if batch:
                rows = ranges.setdefault((partition.topic, ledger.folder), [])
                rows.extend(self._view.row_ranges(batch, ledger, number))
        tasks = deal(
            ranges,
            self._root,
            at_least=self._options["minPartitions"] or os.cpu_count() or 1,
            fail_on_data_loss=self._options["failOnDataLoss"],
        )
        return tasks or [MessageInputPartition(self._root, ())]

    def read(self, partition: MessageInputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return read_values(partition, self._schema, self._values)
