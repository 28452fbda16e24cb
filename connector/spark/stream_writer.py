"""The sinks as Spark calls them: tasks write files, and the driver publishes them.

Invariants: a publication belongs to one (query, micro-batch), or to one (txnAppId, txnVersion),
however often Spark repeats it; `abort` removes nothing, since it may come after a commit that took
effect. Spark's shell around `message_writer` and `publishing`, and the sink that acknowledges.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pulsar_spark.connector.inspect.telemetry import tracing
from pulsar_spark.connector.inspect.telemetry.stats_recorder import (
    ProducerStatsRecorder,
    log_to_stderr,
)
from pulsar_spark.connector.runtime.publishing.message_routing import imported, message_router
from pulsar_spark.connector.runtime.publishing.message_writer import WrittenTopic, write_messages
from pulsar_spark.connector.runtime.publishing.outgoing_messages import Numbering, with_properties
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.schema.schema_records import fastavro
from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, look_ahead
from pulsar_spark.connector.runtime.topics.non_persistent import check_publishing
from pulsar_spark.connector.runtime.topics.producer_connection import claim_of
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_commit import begin
from pulsar_spark.connector.spark.column_types import check_write_schema
from pulsar_spark.connector.spark.process.worker_process import spare_the_garbage_collector
from pulsar_spark.connector.spark.schema_types import as_struct, check_fits, definition_of
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.topic_name import TopicName, check_user_topic
from pulsar_spark.options.options import Options

QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
ROWS_OF_A_TASK: Final = 1 << 32
"""So many sequence ids a micro-batch has for itself, in each task."""
MOST_WRITES: Final = 1 << 31
"""After so many of one application the ids begin again: they have 64 bits."""
RUN_ID_PROPERTY = "spark.jobGroup.id"
"""The property that names the run: Spark runs a query's jobs in a group of that name."""


@dataclass(frozen=True)
class TaskDone(WriterCommitMessage):
    """The result of a sink for one task's rows, and the task's query (None outside of one)."""

    found: Any
    """Empty if there is nothing to commit."""
    query_id: str | None = None
    run_id: str | None = None


class RowSink(Protocol):
    """The output of rows, task by task and then as one commit. Pickles."""

    options: Options

    def write(self, batches: Iterable[pa.RecordBatch], numbering: Numbering | None = None) -> Any:
        """Write the rows of one task; they are invisible before the commit. Pickles."""

    def commit(
        self, found: Sequence[Any], application: tuple[str, int] | None, run_id: str | None
    ) -> None:
        """Let all see what the tasks made, once for an application; without a run, it is gone."""


class _TaskWriter:
    def __init__(self, sink: RowSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        context = TaskContext.get()
        found = self._sink.write(iterator, None if context is None else self._numbering(context))
        spare_the_garbage_collector()
        if context is None:
            return TaskDone(found)
        names = (QUERY_ID_PROPERTY, RUN_ID_PROPERTY)
        return TaskDone(found, *map(context.getLocalProperty, names))

    def _numbering(self, context: TaskContext) -> Numbering | None:
        """The names that a task fills in: the same where it is repeated, and nobody else's."""
        raise NotImplementedError


class PulsarliteWriter(_TaskWriter, DataSourceArrowWriter):
    """`df.write`: append only."""

    def __init__(self, sink: RowSink) -> None:
        super().__init__(sink)
        options = sink.options
        self._application = options["txnAppId"] or uuid.uuid4().hex
        self._version = options["txnVersion"] or 0

    def _numbering(self, context: TaskContext) -> Numbering:
        return numbering_of(self._application, self._version, context)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        options = self._sink.options
        named = options.has("txnAppId")
        application = (options["txnAppId"], options["txnVersion"]) if named else None
        self._sink.commit([each.found for each in _tasks(messages)], application, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave files to the clean-up of orphans."""


class PulsarliteStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """`df.writeStream`: append mode, exactly once for each micro-batch."""

    def _numbering(self, context: TaskContext) -> Numbering | None:
        query_id, batch_id = map(context.getLocalProperty, (QUERY_ID_PROPERTY, BATCH_ID_PROPERTY))
        if query_id is None or batch_id is None:
            return None
        return numbering_of(query_id, int(batch_id), context)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        tasks = _tasks(messages)
        if any(each.found for each in tasks):
            query_id = _query_of(tasks, batchId)
            run_id = min((each.run_id for each in tasks if each.run_id), default=query_id)
            self._sink.commit([each.found for each in tasks], (query_id, batchId), run_id)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave files to the clean-up of orphans: the commit may have taken effect."""


class MessageSink:
    """Rows become messages."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        """InvalidOptionError, InvalidMessageError, IncompatibleSchemaError or BucketNotFoundError.

        As far as can be seen before anything runs.
        """
        self.options, self._root = options, root
        self._schema = _checked(options, root, schema)

    def write(
        self, batches: Iterable[pa.RecordBatch], numbering: Numbering | None = None
    ) -> list[WrittenTopic]:
        if numbering is not None and not self.options["producerName"]:
            batches = numbering.filled(batches)
        if (function := imported(self.options, "tracing", "no arguments")) is not None:
            _set_up(function)
        topic = self.options["topic"]
        with tracing.publishing(topic and str(TopicName.parse(topic))) as span:
            if span is not None and (context := tracing.headers()):
                batches = with_properties(batches, context, unless=tracing.TRACEPARENT)
            found = write_messages(batches, self.options, self._root, self._schema)
            if span is not None:
                ledgers = (ledger for each in found for ledger in each.ledgers)
                tracing.count(span, sum(each.batch_sizes.messages for each in ledgers))
        if span is not None:
            tracing.flush()
        return found

    def commit(
        self,
        found: Sequence[list[WrittenTopic]],
        application: tuple[str, int] | None,
        run_id: str | None,
    ) -> None:
        producer = application[0] if application else uuid.uuid4().hex
        claim = claim_of(self.options, producer, run_id or uuid.uuid4().hex)
        transaction = None
        if self.options["transactional"]:
            timeout_ms = self.options["transactionTimeout"]
            transaction = begin(self._root.store, application, timeout_ms)
        topics, leaves = [*chain.from_iterable(found)], run_id is None
        begun_s = self._root.clock.monotonic_s()
        publish(self._root, topics, application, claim, leaves=leaves, transaction=transaction)
        if interval_s := self.options["statsIntervalSeconds"]:
            new = [ledger for topic in topics for ledger in topic.ledgers]
            _recorder(self._root, interval_s, self.options["topic"] or "", producer).published(
                sum(each.batch_sizes.messages for each in new),
                sum(each.size_bytes for each in new),
                [self._root.clock.monotonic_s() - begun_s],
            )


_recorders: dict[tuple[str, str, str], ProducerStatsRecorder] = {}
"""(service url, topic, query) -> what counts for it, in a process that Spark keeps."""


def _recorder(root: Root, interval_s: int, topic: str, producer: str) -> ProducerStatsRecorder:
    """The recorder of a query: Spark makes a sink for each micro-batch."""
    place = (root.service_url, topic, producer)
    if place not in _recorders:
        log_to_stderr()
        name = str(TopicName.parse(topic)) if topic else producer
        _recorders[place] = ProducerStatsRecorder(root.clock, interval_s, name, producer)
    return _recorders[place]


@cache
def _set_up(function: Callable[[], object]) -> None:
    """Once in a process."""
    function()


def numbering_of(application: str, version: int, context: TaskContext) -> Numbering:
    """The numbers that a task fills in, for that version of an application."""
    first = version % MOST_WRITES * ROWS_OF_A_TASK
    return Numbering(f"{application}-{context.partitionId()}", first)


def _tasks(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone]:
    return [message for message in messages if isinstance(message, TaskDone)]


def _query_of(tasks: Iterable[TaskDone], batch_id: int) -> str:
    """The one query that a micro-batch's tasks name. InvalidOptionError if there are several."""
    known = {each.query_id for each in tasks if each.query_id}
    if len(known) != 1:
        raise InvalidOptionError(
            f"Spark did not say which query micro-batch {batch_id} belongs to: its tasks have "
            f"{sorted(known)} as {QUERY_ID_PROPERTY}. So it can't be written exactly "
            "once, and nothing was written. Does the cluster's Spark pass task properties?"
        )
    return known.pop()


def _checked(options: Options, root: Root, schema: StructType) -> SinkSchema | None:
    """The schema of the values; None for bytes."""
    check_write_schema(schema, typed=options["schemaType"] != SchemaType.BYTES.value)
    if options["topics"] or options["topicsPattern"]:
        raise InvalidOptionError(
            "A sink takes one topic. For several, give the rows a column named topic."
        )
    message_router(options)
    imported(options, "tracing", "no arguments")
    if options["topic"]:
        topic = check_user_topic(TopicName.parse(options["topic"]), "written")
        check_publishing(str(topic), options)
    elif "topic" not in schema.fieldNames():
        raise InvalidOptionError(
            'Which topic? Give .option("topic", "flights"), or a column named topic.'
        )
    root.store.check()
    values = sink_schema(options, schema)
    if options["topic"]:
        look_ahead(root, TopicName.parse(options["topic"]), values)
    return values


def sink_schema(options: Options, rows: StructType) -> SinkSchema | None:
    """The schema of the rows' values. None for BYTES, which has no schema.

    InvalidSchemaDataError or InvalidMessageError if option and column don't go together.
    """
    kind = SchemaType(options["schemaType"])
    if kind is SchemaType.BYTES:
        return None
    if kind is SchemaType.AVRO:
        fastavro()
    column = rows["value"].dataType
    definition = options["schema"] or ""
    if kind.has_definition and not definition:
        definition = definition_of(as_struct(column, kind))
    info = SchemaInfo(kind, definition)
    check_fits(column, info)
    return SinkSchema(info)
