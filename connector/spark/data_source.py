"""`format("pulsarlite")`: options in, readers and writers out.

Invariants: options are checked when the DataFrame is made, in the constructor and in `schema`; a
topic that is not there, and may not be made, is an error of that moment too; nothing here has
effects on storage.
Follows Spark's `KafkaSourceProvider`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pulsar_spark.connector.runtime.reading.start_positions import end_position, start_position
from pulsar_spark.connector.runtime.reading.subscribed_topics import Absent, SubscribedTopics
from pulsar_spark.connector.runtime.topics.topics import Root, options_of
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.process.worker_process import spare_the_garbage_collector
from pulsar_spark.connector.spark.typed_values import value_type
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Scope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pulsar_spark.connector.spark.stream_reader import PulsarliteReader, PulsarliteStreamReader
    from pulsar_spark.connector.spark.stream_writer import (
        PulsarliteStreamWriter,
        PulsarliteWriter,
        RowSink,
    )
    from pulsar_spark.connector.spark.subscription_reader import SubscriptionStreamReader
    from pulsar_spark.connector.spark.view_reader import ViewReader


class PulsarliteDataSource(DataSource):
    """The data source that Spark makes for `format("pulsarlite")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """InvalidOptionError or InvalidTopicNameError for what can be seen in the options."""
        self.parsed = options_of(options)
        self.root = Root.of(self.parsed)
        for text in (self.parsed["topic"], *self.parsed["topics"]):
            if text:
                _ = TopicName.parse(text).storage_path
        _ = self.root.store  # of a kind that is known
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return "pulsarlite"

    def schema(self) -> StructType:
        """That of a source without a user schema.

        TopicNotFoundError if a topic is not there, and may not be made by a stream that reads it.
        """
        self.parsed.check_scope(Scope.READ)
        if self.parsed["view"]:
            from pulsar_spark.connector.spark.view_reader import view_schema

            return view_schema(self.parsed, self.root)
        topics = SubscribedTopics(self.parsed, self.root, Absent.PASSED_OVER)
        topics.refresh()
        for position in (start_position(self.parsed, default="latest"), end_position(self.parsed)):
            position.check_topics(topics.partitions())
        typed = bool(self.parsed["valueSchema"])
        return read_schema(
            include_properties=self.parsed["includeProperties"],
            consumer=self.parsed.has("subscriptionName"),
            value=value_type(topics.typed_ledgers()) if typed else None,
            schema_errors=typed and self.parsed["onSchemaMismatch"] == "null",
        )

    def reader(self, schema: StructType) -> PulsarliteReader | ViewReader:
        from pulsar_spark.connector.spark.stream_reader import PulsarliteReader
        from pulsar_spark.connector.spark.view_reader import ViewReader

        self.parsed.check_scope(Scope.BATCH_READ)
        if self.parsed["view"]:
            return ViewReader(self.parsed, self.root, schema)
        return PulsarliteReader(self.parsed, self.root, schema)

    def streamReader(self, schema: StructType) -> PulsarliteStreamReader | SubscriptionStreamReader:  # noqa: N802
        from pulsar_spark.connector.spark.stream_reader import PulsarliteStreamReader
        from pulsar_spark.connector.spark.subscription_reader import SubscriptionStreamReader

        if self.parsed.has("subscriptionName"):
            return SubscriptionStreamReader(self.parsed, self.root, schema)
        return PulsarliteStreamReader(self.parsed, self.root, schema)

    def writer(self, schema: StructType, overwrite: bool) -> PulsarliteWriter:
        from pulsar_spark.connector.spark.stream_writer import PulsarliteWriter

        self.parsed.check_scope(Scope.BATCH_WRITE)
        return PulsarliteWriter(self._sink(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PulsarliteStreamWriter:  # noqa: N802
        from pulsar_spark.connector.spark.stream_writer import PulsarliteStreamWriter

        spare_the_garbage_collector()  # Spark asks a process that it keeps, once a micro-batch
        self.parsed.check_scope(Scope.STREAM_WRITE)
        return PulsarliteStreamWriter(self._sink(schema, overwrite=overwrite))

    def _sink(self, schema: StructType, *, overwrite: bool) -> RowSink:
        from pulsar_spark.connector.spark.acknowledgment_sink import AcknowledgmentSink
        from pulsar_spark.connector.spark.stream_writer import MessageSink

        if overwrite:
            raise InvalidOptionError(
                "Messages, and acknowledgements, are only ever appended. Use "
                'mode("append") for write, and outputMode("append") for writeStream.'
            )
        acknowledges = self.parsed.has("subscriptionName")
        sink = AcknowledgmentSink if acknowledges else MessageSink
        return sink(self.parsed, self.root, schema)


def register(spark: SparkSession) -> None:
    """Make `format("pulsarlite")` known to this session, if it is not.

    An installed Pulsarlite needs no such call: Spark finds it through `pyspark_pulsarlite`. An
    editable install is found in that way only where the repository is the working folder.
    """
    try:
        spark.dataSource.register(PulsarliteDataSource)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
