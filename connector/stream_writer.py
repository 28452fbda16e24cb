"""The sinks: tasks write files, the driver publishes them in one commit a topic, once.

With `transactional` these commits take effect together, by one decision on all of them.

Invariants: what a task wrote is visible only through the commit, and the commit of one (query,
micro-batch), or of one (txnAppId, txnVersion), takes effect once, however often Spark repeats it;
`abort` removes nothing, since it may come after a commit that took effect.
Follows Delta's `DeltaSink` (application id and version).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pulsar_spark.connector.managed_ledger import ManagedLedger
from pulsar_spark.connector.message_columns import check_write_schema
from pulsar_spark.connector.message_routing import message_router
from pulsar_spark.connector.message_writer import WrittenTopic, write_messages
from pulsar_spark.connector.non_persistent import check_publishing, delete_old
from pulsar_spark.connector.producer_connection import claim_of, connect, disconnect, told
from pulsar_spark.connector.schema_registration import SinkSchema, look_ahead
from pulsar_spark.connector.topics import Root
from pulsar_spark.connector.transaction_commit import Prepare, begin, commit_together
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.ledger_commit import Commit
from pulsar_spark.options import Options
from pulsar_spark.producer_registry import ProducerClaim
from pulsar_spark.publication import AlreadyCommitted, NewLedger
from pulsar_spark.schema_info import SchemaType
from pulsar_spark.topic_name import TopicName, check_user_topic
from pulsar_spark.transaction_attempt import Transaction

QUERY_ID_PROPERTY = "sql.streaming.queryId"
RUN_ID_PROPERTY = "spark.jobGroup.id"
"""Spark runs a query's jobs in a group that is called after the run."""


@dataclass(frozen=True)
class WrittenFiles(WriterCommitMessage):
    """What one task wrote, and for which query (None outside of one)."""

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
        transaction = _transaction(self._options, application)
        publish(
            self._root, _written(messages), application, claim, leaves=True, transaction=transaction
        )

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
            transaction = _transaction(self._options, application)
            publish(self._root, written, application, claim, transaction=transaction)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the files to the clean-up of orphans: the commit may have taken effect."""


def query_of(query_ids: Iterable[str | None], batch_id: int) -> str:
    """The one query that a micro-batch's tasks name. InvalidOptionError if it is not one."""
    known = {each for each in query_ids if each}
    if len(known) != 1:
        raise InvalidOptionError(
            f"Spark did not say which query micro-batch {batch_id} belongs to: its tasks have "
            f"{sorted(known)} as {QUERY_ID_PROPERTY}. So it can't be written exactly "
            "once, and nothing was written. Does the cluster's Spark pass task properties?"
        )
    return known.pop()


def publish(
    root: Root,
    written: Iterable[WrittenFiles],
    application: tuple[str, int] | None,
    producer: ProducerClaim | None = None,
    *,
    leaves: bool = False,
    transaction: Transaction | None = None,
) -> None:
    """Make the files' messages visible, topic by topic, or all of them in one `transaction`.

    A `producer` gets each topic first, as its access mode says, and `leaves` it again if it is
    done. ProducerFencedError or ProducerBusyError if it may not have it; so that nothing at all
    is published then, its topics always get theirs in one transaction.
    """
    parts = list(_parts(root, written, application, producer, leaves=leaves))
    if transaction is None and (producer is None or len(parts) == 1):
        for part in parts:
            with part.connected():
                part.publish(None)
        return
    with ExitStack() as connected:
        for part in parts:
            connected.enter_context(part.connected())
        together = transaction or begin(application)
        commit_together(root.store, together, [part.publish for part in parts])


def prepares_of(
    root: Root, written: Iterable[WrittenFiles], application: tuple[str, int] | None
) -> list[Prepare]:
    """How a transaction publishes the files, topic by topic."""
    return [part.publish for part in _parts(root, written, application, None, leaves=False)]


@dataclass(frozen=True, slots=True)
class _TopicPart:
    """What goes into one topic."""

    ledger: ManagedLedger
    new: Sequence[NewLedger]
    deduplicate: bool
    application: tuple[str, int] | None
    producer: ProducerClaim | None
    leaves: bool

    @contextmanager
    def connected(self) -> Iterator[None]:
        """As long as the producer has the topic, which it need not for what was published."""
        published = self.application and self.ledger.state.was_published(*self.application)
        producer = None if published else self.producer
        if producer is not None:
            connect(self.ledger, producer)
        try:
            yield
        finally:
            if producer is not None and self.leaves:  # also if nothing was published
                disconnect(self.ledger, producer)

    def publish(self, transaction: Transaction | None) -> Commit | AlreadyCommitted:
        with told(self.ledger, self.producer):
            published = self.ledger.append(
                self.new,
                application=self.application,
                deduplicate=self.deduplicate,
                producer=self.producer,
                leaves=self.leaves,
                transaction=transaction,
            )
        delete_old(self.ledger)
        return published


def _parts(
    root: Root,
    written: Iterable[WrittenFiles],
    application: tuple[str, int] | None,
    producer: ProducerClaim | None,
    *,
    leaves: bool,
) -> Iterator[_TopicPart]:
    for name, (ledgers, deduplicate) in sorted(_by_topic(written).items()):
        ledger = root.open(TopicName.parse(name))
        yield _TopicPart(ledger, ledgers, deduplicate, application, producer, leaves)


def _by_topic(written: Iterable[WrittenFiles]) -> dict[str, tuple[list[NewLedger], bool]]:
    """(ledgers, whether duplicates are dropped) of each topic that gets something."""
    topics: dict[str, list[WrittenTopic]] = {}
    for task in written:
        for topic in task.topics:
            if topic.ledgers:
                topics.setdefault(topic.topic, []).append(topic)
    return {
        name: (
            [ledger for part in parts for ledger in part.ledgers],
            any(part.deduplicate for part in parts),
        )
        for name, parts in topics.items()
    }


def _transaction(options: Options, application: tuple[str, int] | None) -> Transaction | None:
    if not options["transactional"]:
        return None
    return begin(application, options["transactionTimeout"])


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenFiles]:
    return [message for message in messages if isinstance(message, WrittenFiles)]


def check_messages(
    options: Options, root: Root, schema: StructType, *, overwrite: bool
) -> SinkSchema | None:
    """The schema of the values, if they have one.

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
