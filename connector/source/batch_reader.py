"""`spark.read`: all messages from one position to another, planned once.

Invariants: the end is fixed when the batch is planned; what is read is what a streaming query
from the same start to the same end would read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from pulsar_spark.connector.source.input_partition import MessageInputPartition
from pulsar_spark.connector.source.micro_batch import plan_tasks
from pulsar_spark.connector.source.start_positions import end_position, start_position
from pulsar_spark.connector.source.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.source.typed_values import TypedValues, check_typed_schema, read_values
from pulsar_spark.connector.topic_log.non_persistent import check_kept
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.options.options import Options
from pulsar_spark.planning.stream_offset import PartitionOffset, StreamOffset


class PulsarliteReader(DataSourceReader):
    """Reads topics from `startingOffsets` (earliest) to `endingOffsets` (latest)."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        self._root, self._schema = root, schema
        self._values = TypedValues.of(options, root, schema)
        self._start = start_position(options, default="earliest")
        self._end = end_position(options)
        self._topics = SubscribedTopics(options, root)
        topics = SubscribedTopics(options, root)  # of its own: open topics don't pickle
        check_typed_schema(options, schema, topics.typed_ledgers())

    def partitions(self) -> list[MessageInputPartition]:
        self._topics.refresh()
        views = self._topics.partitions()
        for position in (self._start, self._end):
            position.check_topics(views)
        offsets = {}
        for about, view in views.items():
            check_kept(about.topic)
            start = view.check_present(self._start.cursor(view))
            offsets[about] = PartitionOffset.beginning(start).planned(self._end.cursor(view))
        tasks = plan_tasks(self._topics, StreamOffset(), StreamOffset(offsets))
        return tasks or [MessageInputPartition(self._root, ())]

    def read(self, partition: MessageInputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return read_values(partition, self._schema, self._values)
