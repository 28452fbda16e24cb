"""The sinks as Spark calls them: tasks write files, and the driver publishes them.

Invariants: a publication belongs to one (query, micro-batch), or to one (txnAppId, txnVersion),
however often Spark repeats it; `abort` removes nothing, since it may come after a commit that took
effect. Spark's shell around `message_writer` and `publishing`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pulsar_spark.connector.schema.schema_registration import SinkSchema, look_ahead
from pulsar_spark.connector.sink.message_routing import message_router
from pulsar_spark.connector.sink.message_writer import WrittenTopic, write_messages
from pulsar_spark.connector.sink.publishing import publish
from pulsar_spark.connector.spark.message_columns import check_write_schema
from pulsar_spark.connector.topic_log.non_persistent import check_publishing
from pulsar_spark.connector.topic_log.producer_connection import claim_of
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.connector.topic_log.transaction_commit import begin
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.options import Options
from pulsar_spark.schema.schema_info import SchemaType
from pulsar_spark.topic_log.transaction_attempt import Transaction
from pulsar_spark.topic_name import TopicName, check_user_topic

QUERY_ID_PROPERTY = "sql.streaming.queryId"
RUN_ID_PROPERTY = "spark.jobGroup.id"
"""The property that names the run: Spark runs a query's jobs in a group of that name."""


@dataclass(frozen=True)
class WrittenFiles(WriterCommitMessage):
    """The files that one task wrote, and their query (None outside of one)."""

    topics: tuple[WrittenTopic, ...]
    query_id: str | None = None
    run_id: str | None = None


class PulsarliteWriter(DataSourceArrowWriter):
    """`df.write`: append only."""

    def __init__(
        self, options: Options, root: Root, schema: StructType, *, overwrite: bool
    ) -> None:
        self._schema = check_messages(options, root, schema, overwrite=overwrite)
        self._options, self._root = options, root

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        written = write_messages(iterator, self._options, self._root, self._schema)
        return WrittenFiles(tuple(written))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        application = None
        if self._options.has("txnAppId"):
            application = (self._options["txnAppId"], self._options["txnVersion"])
        name = self._options["txnAppId"] or uuid.uuid4().hex
        claim = claim_of(self._options, name, uuid.uuid4().hex)
        transaction = _transaction(self._root, self._options, application)
        written = topics_of(_written(messages))
        publish(self._root, written, application, claim, leaves=True, transaction=transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave the files to the clean-up of orphans."""


class PulsarliteStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: append mode, exactly once for each micro-batch."""

    def __init__(
        self, options: Options, root: Root, schema: StructType, *, overwrite: bool
    ) -> None:
        self._schema = check_messages(options, root, schema, overwrite=overwrite)
        self._options, self._root = options, root

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context else None
        run_id = context.getLocalProperty(RUN_ID_PROPERTY) if context else None
        written = tuple(write_messages(iterator, self._options, self._root, self._schema))
        return WrittenFiles(written, query_id, run_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = _written(messages)
        if any(each.topics for each in written):
            query_id = query_of((each.query_id for each in written), batchId)
            run_ids = {each.run_id for each in written if each.run_id}
            claim = claim_of(self._options, query_id, min(run_ids, default=query_id))
            application = (query_id, batchId)
            transaction = _transaction(self._root, self._options, application)
            published = topics_of(written)
            publish(self._root, published, application, claim, transaction=transaction)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the files to the clean-up of orphans: the commit may have taken effect."""


def query_of(query_ids: Iterable[str | None], batch_id: int) -> str:
    """The one query that a micro-batch's tasks name. InvalidOptionError if there are several."""
    known = {each for each in query_ids if each}
    if len(known) != 1:
        raise InvalidOptionError(
            f"Spark did not say which query micro-batch {batch_id} belongs to: its tasks have "
            f"{sorted(known)} as {QUERY_ID_PROPERTY}. So it can't be written exactly "
            "once, and nothing was written. Does the cluster's Spark pass task properties?"
        )
    return known.pop()


def _transaction(
    root: Root, options: Options, application: tuple[str, int] | None
) -> Transaction | None:
    if not options["transactional"]:
        return None
    return begin(root.store, application, options["transactionTimeout"])


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenFiles]:
    return [message for message in messages if isinstance(message, WrittenFiles)]


def topics_of(written: Iterable[WrittenFiles]) -> list[WrittenTopic]:
    """The topics' files of all tasks."""
    return [topic for task in written for topic in task.topics]


def check_messages(
    options: Options, root: Root, schema: StructType, *, overwrite: bool
) -> SinkSchema | None:
    """The schema of the values; None for bytes.

    InvalidOptionError, InvalidMessageError, IncompatibleSchemaError or BucketNotFoundError if rows
    of this type can't be published, as far as can be seen before anything runs.
    """
    if overwrite:
        raise InvalidOptionError(
            'Messages are only ever appended. Use mode("append") for write, and '
            'outputMode("append") for writeStream.'
        )
    check_write_schema(schema, typed=options["schemaType"] != SchemaType.BYTES.value)
    if options["topics"] or options["topicsPattern"]:
        raise InvalidOptionError(
            "A sink takes one topic. For several, give the rows a column named topic."
        )
    message_router(options)
    if options["topic"]:
        topic = check_user_topic(TopicName.parse(options["topic"]), "written")
        check_publishing(str(topic), options)
    elif "topic" not in schema.fieldNames():
        raise InvalidOptionError(
            'Which topic? Give .option("topic", "flights"), or a column named topic.'
        )
    root.store.check()
    sink_schema = SinkSchema.of(options, schema)
    if options["topic"]:
        look_ahead(root, TopicName.parse(options["topic"]), sink_schema)
    return sink_schema
