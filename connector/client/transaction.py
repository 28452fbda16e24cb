"""A transaction of the client: messages published and acknowledged as one unit, or not at all.

Invariants: nothing of it is seen before `commit`, and then all of it at once, also if the process
ends meanwhile; left open, or aborted, it has changed nothing. Follows Pulsar's `Transaction`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.client_errors import translated
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.message_producer import MessageProducer, Row
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Folded
from pulsar_spark.connector.runtime.acknowledging.outcome_rows import folded
from pulsar_spark.connector.runtime.acknowledging.transaction_conflicts import ConflictCheck
from pulsar_spark.connector.runtime.publishing.publishing import commit_as_one
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.connector.runtime.system_topics.system_topics import Record
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.described import Described


class Transaction(Described):
    """The messages sent and acknowledged so far; `Client.new_transaction` makes it.

    As a context manager it commits at the end of its block, or aborts if that fails.
    """

    def __init__(self, root: Root, timeout_ms: int) -> None:
        self._root, self._timeout_ms = root, timeout_ms
        self._rows: dict[MessageProducer, list[Row]] = {}
        self._acknowledged: dict[MessageConsumer, list[ReceivedMessage]] = {}
        self._receipts: dict[MessageConsumer, Callable[[], None]] = {}
        self._is_open = True

    def publish(self, producer: MessageProducer, row: Row) -> None:
        """Publish this message when it commits."""
        self._check_open()
        self._rows.setdefault(producer, []).append(row)

    def acknowledge(
        self,
        consumer: MessageConsumer,
        messages: Iterable[ReceivedMessage],
        await_receipt: Callable[[], None],
    ) -> None:
        """Acknowledge these messages when it commits, which then waits for the broker's receipt."""
        self._check_open()
        self._acknowledged.setdefault(consumer, []).extend(messages)
        self._receipts[consumer] = await_receipt

    def _facts(self) -> dict[str, object]:
        return {
            "service_url": self._root.service_url,
            "is_open": self._is_open,
            "messages": sum(map(len, self._rows.values())),
            "acknowledged": sum(map(len, self._acknowledged.values())),
        }

    def commit(self) -> None:
        """Let it all take effect at once. InvalidTxnStatusError if its time was over.

        TransactionConflict, and nothing has taken effect, if a message that it acknowledges was
        acknowledged before, by another transaction or without one.
        For consumers that want receipts it returns when the broker has their acknowledgements; if
        that takes too long it is Timeout, and the transaction stays committed.
        """
        self._check_open()
        self._is_open = False
        with translated():
            written = [each for mine, rows in self._rows.items() for each in mine.written(rows)]
            acknowledged: dict[str, list[Folded]] = {}
            for consumer, messages in self._acknowledged.items():
                name = str(consumer.options["subscriptionName"])
                acknowledged.setdefault(name, []).append(folded(messages, self._root))
            records = [
                Record.of(topic_partition, name, report)
                for name, every in acknowledged.items()
                for each in every
                for topic_partition, acknowledgments in each.items()
                for report in acknowledgments.reports(name)
            ]
            check = ConflictCheck(self._root, acknowledged) if acknowledged else None
            commit_as_one(self._root, written, records, None, self._timeout_ms, check=check)
            for consumer, messages in self._acknowledged.items():
                consumer.committed(messages)
            for await_receipt in self._receipts.values():
                await_receipt()

    def abort(self) -> None:
        """Forget it."""
        self._check_open()
        self._is_open = False

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_open:
            if kind is None:
                self.commit()
            else:
                self.abort()

    def _check_open(self) -> None:
        if not self._is_open:
            text = "This transaction was committed or aborted before: begin another."
            raise client_errors.InvalidTxnStatusError(text)
