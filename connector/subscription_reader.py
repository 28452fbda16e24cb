"""The streaming source of a consumer: it reads what the broker grants, and reports what it did.

Invariants: `latestOffset(start)` comes only after `start`'s micro-batch was committed, so that is
where it is acknowledged; what a micro-batch will deliver is reported before its offset is handed
out; a batch follows from its two offsets alone, redelivery counts included; when there is nothing
new, `start` itself is returned. The consumer's name stands in the offset, so that a query that is
started again is the same consumer. Stands where Pulsar has `ConsumerImpl`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pulsar_spark.admission import Admission
from pulsar_spark.connector import stream_reader
from pulsar_spark.connector.data_loss import check_present
from pulsar_spark.connector.message_columns import check_read_schema
from pulsar_spark.connector.message_reader import read_messages
from pulsar_spark.connector.micro_batch import MessageInputPartition
from pulsar_spark.connector.offset_store import OffsetStore
from pulsar_spark.connector.start_positions import last_position
from pulsar_spark.connector.subscribed_batch import plan_tasks
from pulsar_spark.connector.subscribed_topics import SubscribedTopics, named_topics
from pulsar_spark.connector.subscription_client import SubscriptionClient
from pulsar_spark.connector.topics import Root
from pulsar_spark.connector.withheld import WithheldBatches, what_remains
from pulsar_spark.errors import BrokerAbsentError
from pulsar_spark.ledger_info import LedgerList
from pulsar_spark.options import Options, Scope
from pulsar_spark.partition_consumer import Offered
from pulsar_spark.position import EARLIEST, Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.stream_offset import StreamOffset, TopicPartition
from pulsar_spark.suspect_messages import SuspectMessages
from pulsar_spark.topic_name import TopicName, default_retry_letter_topic


class SubscriptionStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads as one consumer of a subscription."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        self._options, self._root, self._schema = options, root, schema
        self._admission = Admission(
            options["maxMessagesPerTrigger"],
            options["maxBytesPerTrigger"],
            options["minMessagesPerTrigger"],
            options["maxTriggerDelay"],
        )
        self._topics = SubscribedTopics(options, root)
        self._offsets = OffsetStore(root)
        self._withheld = WithheldBatches(options, root)
        self._client: SubscriptionClient | None = None
        self._stop_at: dict[TopicPartition, Position] | None = None
        self._said: dict[TopicPartition, Any] = {}
        self._last_batch_s = time.monotonic()
        self._turn = 0
        self._checked = False
        self._asked: dict[TopicPartition, int] = {}
        self._asked_s = 0.0
        self._suspected = SuspectMessages()

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
                ledger.ledgers(partition.partition),
                ledger.state.trimmed_up_to(partition.partition),
            )
            for partition, ledger in self._topics.partitions().items()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The end of the next micro-batch; `start` itself when there is none."""
        self._check()
        begun = self._offsets.load(start)
        client = self._connected(begun)
        if client.is_closed:
            return start
        deadline = time.monotonic() + stream_reader.LONGEST_WAIT_S
        first = True
        while True:
            self._topics.refresh()
            client.subscribe(self._topics.partitions())
            client.hear()
            suspects = self._suspects(start, begun, client)
            planned = self._plan(begun, client, suspects)
            if planned is not None:
                self._report(begun, planned, client)
                self._asked = {}
                self._last_batch_s = time.monotonic()
                self._turn += 1
                end = self._offsets.save(planned)
                self._withheld.planned(end)
                return end
            if first:
                self._report(begun, begun, client)
                first = False
            if self._stop_at is not None:
                if self._is_drained(begun, client):
                    client.close(self._reports(begun, begun, client))
                    return start
            elif time.monotonic() >= deadline:
                return start
            remote = self._topics.remote
            time.sleep(stream_reader.REMOTE_POLL_S if remote else stream_reader.POLL_S)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The last position of each partition, and the subscription's backlog before it."""
        topics: dict[str, dict[str, Any]] = {}
        for partition, ledger in sorted(self._topics.partitions().items()):
            number = partition.partition
            last = last_position(ledger.ledgers(number), ledger.state.trimmed_up_to(number))
            backlog = None if self._client is None else self._client.backlog(partition)
            topics.setdefault(partition.topic, {})[str(number)] = {
                "backlog": backlog, "last": str(last)
            }  # fmt: skip
        name = self._options["subscriptionName"]
        return {"subscription": name, "topics": topics, "version": 1} if topics else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[MessageInputPartition]:
        self._check()
        begun, ended = self._offsets.load(start), self._offsets.load(end)
        self._connected(begun if begun.partitions is not None else ended)  # its lease is kept
        self._topics.open_all(
            partition.topic for partition, offset in ended.items() if offset != begun.get(partition)
        )
        if self._withheld.leaves_out(begun, end, ended, self._ledgers(ended)):
            return []
        released = self._withheld.in_batch(ended).released
        return plan_tasks(self._topics, begun, ended, self._options, self._root, released)

    def read(self, partition: MessageInputPartition) -> Iterator[Any]:  # type: ignore[override]
        return _read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        self._offsets.release(end)
        self._withheld.forget(end, self._offsets.load(end))

    def stop(self) -> None:
        """It shows no more life: within its lease it may come back, and nothing is redelivered."""
        if isinstance(sys.exc_info()[1], EOFError):
            # Spark has hung up on this planner process; see `PulsarliteStreamReader.stop`.
            os._exit(0)

    # -- planning --------------------------------------------------------------------------------

    def _check(self) -> None:
        """That the user's schema, the options and the topics will do, before all else."""
        if not self._checked:
            self._options.check_scope(Scope.STREAM_READ)
            check_read_schema(self._schema)
            self._topics.refresh()
            if self._options["enableRetry"]:
                self._open_retry_topics()
            self._checked = True

    def _open_retry_topics(self) -> None:
        """They are read too; made now, so that what is published there finds a subscription."""
        for name in named_topics(self._options):
            own = self._options["retryLetterTopic"]
            text = own or default_retry_letter_topic(
                name.partitioned_topic_name, self._options["subscriptionName"]
            )
            topic = TopicName.parse(text)
            self._root.open_or_create(topic, 1)
            self._topics.open_all([topic.partitioned_topic_name])

    def _connected(self, begun: StreamOffset) -> SubscriptionClient:
        """The connection to the broker, made when it is known who this is."""
        if self._client is None:
            name = self._options["consumerName"] or begun.consumer or None
            self._client = SubscriptionClient(
                self._options, self._root, name, resumes=not begun.is_symbolic
            )
            self._topics.refresh()
            self._client.subscribe(self._topics.partitions())
        return self._client

    def _ledgers(self, offset: StreamOffset) -> dict[TopicPartition, LedgerList]:
        self._topics.open_all(about.topic for about, _ in offset.items())
        return {
            about: self._topics.ledger(about.topic).ledgers(about.partition)
            for about, _ in offset.items()
        }

    def _suspects(
        self, start: dict[str, Any], begun: StreamOffset, client: SubscriptionClient
    ) -> SuspectMessages:
        """What is tried apart, of what it still holds."""
        suspects = self._withheld.behind(start, begun)
        self._suspected = suspects
        if suspects.is_empty:
            return suspects
        gone: dict[TopicPartition, PositionSet | None] = {}
        for about, consumer in client.consumers.items():
            offset = begun.get(about)
            if consumer.connected and (offset is None or offset.epoch != consumer.epoch):
                gone[about] = None
            else:
                gone[about] = suspects.not_done(about).up_to(consumer.floor)
        self._suspected = suspects.without(gone)
        return self._suspected

    def _plan(
        self, begun: StreamOffset, client: SubscriptionClient, suspects: SuspectMessages
    ) -> StreamOffset | None:
        """The offset behind `begun`; None if there is nothing to read and nothing to pin."""
        if suspects.groups:
            return self._withheld.named(suspects.release(), begun)
        offsets = dict(begun.items())
        waiting: dict[TopicPartition, Offered] = {}
        pinned = False
        for partition, consumer in client.consumers.items():
            if not consumer.connected:
                continue
            ledger = self._topics.ledger(partition.topic)
            start = begun.get(partition)
            ledgers = ledger.ledgers(partition.partition)
            consumer.forget_planned(start)
            if start is None or start.epoch != consumer.epoch:
                offsets[partition] = consumer.plan(None, {}, ledgers)
                pinned = True
            check_present(ledger, partition, consumer.origin.floor(consumer.floor), fail=False)
            hidden = ledger.state.hidden(partition.partition) or PositionSet()
            hidden = hidden.union(suspects.not_done(partition))
            end = self._end_of(partition)
            waiting[partition] = consumer.offered(start, ledgers, hidden, end)
        waited_ms = None
        if self._stop_at is None:
            waited_ms = int((time.monotonic() - self._last_batch_s) * 1000)
        taken = self._admission.admit(waiting, waited_ms=waited_ms, turn=self._turn)
        for partition, messages in taken.items():
            offsets[partition] = client.consumers[partition].plan(
                begun.get(partition), waiting[partition].by_attempt(messages),
                waiting[partition].ledgers,
            )  # fmt: skip
        if not (pinned or taken):
            return None
        offset = StreamOffset(offsets, client.subscription, client.name)
        return self._withheld.named(suspects, offset)

    def _end_of(self, partition: TopicPartition) -> Position | None:
        return None if self._stop_at is None else self._stop_at.get(partition, EARLIEST)

    # -- reporting -------------------------------------------------------------------------------

    def _report(
        self, begun: StreamOffset, planned: StreamOffset, client: SubscriptionClient
    ) -> None:
        """Tell the broker what is new; nothing, if nothing is."""
        news = {}
        for partition, report in self._reports(begun, planned, client).items():
            said = (
                report.epoch, report.acknowledged, report.delivered, report.permits,
                report.revision, report.incarnation, report.rejected,
            )  # fmt: skip
            if self._said.get(partition) != said:
                self._said[partition] = said
                news[partition] = report
        if news:
            client.say(news)

    def _reports(
        self,
        begun: StreamOffset,
        planned: StreamOffset,
        client: SubscriptionClient,
        requests: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, Any]:
        reports = {}
        for partition, consumer in client.consumers.items():
            if consumer.connected:
                ledgers = self._topics.ledger(partition.topic).ledgers(partition.partition)
                report = consumer.report(
                    begun.get(partition), planned.get(partition), ledgers,
                    client.permits(), (requests or {}).get(partition),
                )  # fmt: skip
                reports[partition] = what_remains(
                    report, partition, self._suspected, consumer.floor, ledgers
                )
        return reports

    def _is_drained(self, begun: StreamOffset, client: SubscriptionClient) -> bool:
        """Whether the broker has answered, knows all up to the end, and granted nothing more.

        BrokerAbsentError if it does not answer in time.
        """
        now_s = time.monotonic()
        consumers = client.consumers
        if not self._asked and all(each.connected for each in consumers.values()):
            self._asked = {partition: client.next_request() for partition in consumers}
            self._asked_s = now_s
            client.say(self._reports(begun, begun, client, self._asked))
            return False
        answered = bool(self._asked) and all(
            consumers[partition].answered >= request for partition, request in self._asked.items()
        )
        if not answered:
            self._asked_s = self._asked_s or now_s
            if now_s - self._asked_s > self._options["drainTimeout"] / 1000:
                raise BrokerAbsentError(
                    f"The broker of {self._root.service_url} did not answer consumer "
                    f"{client.name} within drainTimeout "
                    f"({self._options['drainTimeout'] / 1000:g} s). Start one: pulsarlite "
                    f"standalone --service-url {self._root.service_url}"
                )
            return False
        for partition in consumers:
            step, end = client.stepped.get(partition), self._end_of(partition)
            if end is not None and (step is None or step.last_position < end):
                self._asked = {}  # it does not know all of the log yet: ask again
                return False
        return True


def _read(partition: MessageInputPartition, schema: StructType) -> Iterator[Any]:
    batches = read_messages(partition, schema)
    return (batch for batch in batches if isinstance(batch, pa.RecordBatch))
