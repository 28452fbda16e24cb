"""`pulsar_spark.transaction`: DataFrames published, and messages acknowledged, as one unit.

    def done(batch, batch_id):
        with pulsar_spark.transaction(batch_id=batch_id) as txn:
            txn.write(work(batch), topic="results")
            txn.acknowledge(batch, "billing")

Invariants: within the block data files are written, and nothing is committed; at its end all of it
is committed together, `__commands` last, so that whoever meets a transaction there can finish it;
left by an exception the block has stored nothing that anybody sees. Follows Pulsar's `Transaction`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Folded
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_writer import (
    await_receipts,
    records_of,
)
from pulsar_spark.connector.runtime.acknowledging.transaction_conflicts import ConflictCheck
from pulsar_spark.connector.runtime.publishing.message_writer import WrittenTopic
from pulsar_spark.connector.runtime.publishing.publishing import commit_as_one, give_up
from pulsar_spark.connector.runtime.system_topics.system_topics import Record
from pulsar_spark.connector.runtime.topics.topics import Root, root_options, service_url_of
from pulsar_spark.connector.spark.acknowledgment_sink import AcknowledgmentSink
from pulsar_spark.connector.spark.functions.acknowledging import (
    details_of_later,
    details_of_negative,
    query_of_batch,
    rows_that_acknowledge,
)
from pulsar_spark.connector.spark.process.worker_process import spare_the_garbage_collector
from pulsar_spark.connector.spark.stream_writer import MessageSink, PulsarliteWriter
from pulsar_spark.errors import InvalidOptionError, TransactionConflictError
from pulsar_spark.options.option_values import MOST_COUNT, Delay, milliseconds_of
from pulsar_spark.options.options import Options, Scope

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OF_THE_WHOLE: Final = {
    "accessMode", "producerLease", "subscriptionName", "transactional", "txnAppId", "txnVersion",
}  # fmt: skip
"""Options that say how a sink commits, or what else it does: here the transaction says that."""


def transaction(
    service_url: str | None = None,
    *,
    storage: Mapping[str, str] | None = None,
    batch_id: int | None = None,
    application: str | None = None,
    transaction_timeout: str | None = None,
    ack_receipt_enabled: bool = False,
    operation_timeout: Delay | None = None,
) -> BatchTransaction:
    """A transaction, to be used with `with`; it is committed at the end of the block.

    With `batch_id` it takes effect once for the `application`, by default the query in whose
    `foreachBatch` it stands; where a micro-batch has two transactions, each needs an `application`
    of its own. With `ack_receipt_enabled` the block ends when the brokers have what it has said of
    messages, or raises, and stays committed: BrokerAbsentError if that takes longer than
    `operation_timeout` (30 s), BrokerRefusedError if one refuses. `storage` are options of the
    object store. InvalidOptionError if one of these can't be.
    """
    if application is not None and batch_id is None:
        raise InvalidOptionError("application needs batch_id: the number of this transaction.")
    if batch_id is not None and (type(batch_id) is not int or not 0 <= batch_id <= MOST_COUNT):
        raise InvalidOptionError("batch_id is a whole number, 0 to 2^63 - 1, as Spark counts them.")
    common = root_options(service_url_of(service_url), storage)
    given = {**common, "transactional": "true"}
    if transaction_timeout is not None:
        given["transactionTimeout"] = transaction_timeout
    if operation_timeout is not None and not ack_receipt_enabled:
        raise InvalidOptionError("operation_timeout needs ack_receipt_enabled: it is how long.")
    parsed = Options.parse(given, Scope.BATCH_WRITE)
    timeout_ms, receipt_ms = parsed["transactionTimeout"], None
    if ack_receipt_enabled:
        receipt_ms = int(parsed["operationTimeout"])
        if operation_timeout is not None:
            receipt_ms = milliseconds_of(operation_timeout)
    root = Root.of(parsed)
    return BatchTransaction(common, root, batch_id, application, timeout_ms, receipt_ms)


@dataclass(slots=True, eq=False)
class BatchTransaction:
    """The rows written and acknowledged so far. Made by `transaction`."""

    _common: Mapping[str, str]  # options of the root
    _root: Root
    _batch_id: int | None
    _application: str | None
    _timeout_ms: int
    _receipt_within_ms: int | None
    _written: list[WrittenTopic] = field(default_factory=list)
    _acknowledged_rows: dict[str, list[Folded]] = field(default_factory=dict)
    _is_open: bool = False

    def __enter__(self) -> BatchTransaction:
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_open = False
        if kind is not None:
            return
        application = None
        if self._batch_id is not None and self._application is not None:
            application = (self._application, self._batch_id)
        records = self._records(self._acknowledged_rows)
        check = (
            ConflictCheck(self._root, self._acknowledged_rows) if self._acknowledged_rows else None
        )
        try:
            commit_as_one(
                self._root, self._written, records, application, self._timeout_ms, check=check
            )
        except TransactionConflictError:
            if application is not None:  # else Spark would repeat the micro-batch for ever
                back = {
                    name: list(map(_back, found)) for name, found in self._acknowledged_rows.items()
                }
                give_up(self._root, self._records(back), application)
            raise
        if self._receipt_within_ms is not None:
            await_receipts(self._root, records, self._receipt_within_ms)

    def _records(self, acknowledgments: Mapping[str, Sequence[Folded]]) -> list[Record]:
        return [
            record
            for subscription, found in sorted(acknowledgments.items())
            for record in records_of(self._root, subscription, found)
        ]

    def write(
        self, df: DataFrame, *, topic: str | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        """Publish the rows, with a sink's options and columns, once the transaction commits.

        The files are written now. InvalidOptionError or InvalidMessageError as from a sink.
        """
        self._check(df)
        given = {**self._common, **(options or {})}
        if topic is not None:
            given["topic"] = topic
        if foreign := _OF_THE_WHOLE & Options.parse(given, Scope.BATCH_WRITE).given.keys():
            raise InvalidOptionError(
                f"Option {min(foreign)} has no meaning within a transaction, which says itself how "
                "and as what it is committed. Leave it out."
            )
        parsed = Options.parse({**given, "transactional": "true"}, Scope.BATCH_WRITE)
        writer = PulsarliteWriter(MessageSink(parsed, self._root, df.schema))
        self._written += chain(*(done.found for done in _in_tasks(df, writer.write)))

    def acknowledge(self, df: DataFrame, subscription: str, *, topic: str | None = None) -> None:
        """Acknowledge the messages of a DataFrame, one by one, once the transaction commits."""
        self._acknowledge(df, subscription, "Individual", {}, topic)

    def acknowledge_cumulative(
        self, df: DataFrame, subscription: str, *, topic: str | None = None
    ) -> None:
        """Acknowledge all up to the furthest of these, once the transaction commits."""
        self._acknowledge(df, subscription, "Cumulative", {}, topic)

    def negative_acknowledge(
        self,
        df: DataFrame,
        subscription: str,
        *,
        delay: Delay | None = None,
        error: str | Column | None = None,
        topic: str | None = None,
    ) -> None:
        """Give the messages back once the transaction commits; the delay counts from then."""
        self._acknowledge(df, subscription, "Negative", details_of_negative(delay, error), topic)

    def reconsume_later(
        self,
        df: DataFrame,
        subscription: str,
        delay: Delay,
        *,
        properties: Mapping[str, str] | None = None,
        error: str | Column | None = None,
        topic: str | None = None,
    ) -> None:
        """Have the messages copied to the retry letter topic once the transaction commits."""
        details = details_of_later(df, delay, properties, error)
        self._acknowledge(df, subscription, "ReconsumeLater", details, topic)

    def _acknowledge(
        self,
        df: DataFrame,
        subscription: str,
        ack_type: str,
        details: Mapping[str, Column],
        topic: str | None,
    ) -> None:
        self._check(df)
        rows = rows_that_acknowledge(df, ack_type, details, topic)
        given = {**self._common, "subscriptionName": subscription}
        parsed = Options.parse(given, Scope.BATCH_WRITE)
        sink = AcknowledgmentSink(parsed, self._root, rows.schema)
        self._acknowledged_rows.setdefault(subscription, []).extend(_in_tasks(rows, sink.write))

    def _check(self, df: DataFrame) -> None:
        if not self._is_open:
            raise InvalidOptionError(
                "The transaction is not open: use it within its block, "
                "with pulsar_spark.transaction(...) as txn."
            )
        if df.isStreaming:
            raise InvalidOptionError(
                "A transaction takes batch DataFrames, as foreachBatch has them; a stream that "
                'only publishes has .option("transactional", "true").'
            )
        if self._batch_id is not None and self._application is None:
            self._application = query_of_batch(df)


def _back(acknowledgments: Folded) -> Folded:
    """Give the messages back, to be delivered again at once."""
    return {topic_partition: each.given_back() for topic_partition, each in acknowledgments.items()}


def _in_tasks(df: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Any]) -> list[Any]:
    """The results of the work for each task's rows; of a repeated task, those of its last run."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = pickle.dumps(work(batches))
        spare_the_garbage_collector()
        yield pa.record_batch({"done": pa.array([done], pa.binary())})

    return [pickle.loads(row.done) for row in df.mapInArrow(task, "done binary").collect()]  # noqa: S301
