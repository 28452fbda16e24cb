"""The streaming source of a consumer: it reads what the broker grants, and reports what it did.

Invariants: `latestOffset(start)` comes only after `start`'s micro-batch was committed, so that is
where it is acknowledged; what a micro-batch will deliver is reported before its offset is handed
out; a batch follows from its two offsets alone, redelivery counts included; when there is nothing
new, `start` itself is returned. The consumer's name stands in the offset, so that a query that is
started again is the same consumer. Stands where Pulsar has `ConsumerImpl`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
from pulsar_spark.commands import Report
from pulsar_spark.connector import stream_reader
from pulsar_spark.connector.compacted_reading import ConsumerView
from pulsar_spark.connector.data_loss import check_present
from pulsar_spark.connector.delivery_times import DeliveryTimes
from pulsar_spark.connector.managed_ledger import wall_clock_ms
from pulsar_spark.connector.micro_batch import MessageInputPartition
from pulsar_spark.connector.offset_store import OffsetStore
from pulsar_spark.connector.polling import pause_s
from pulsar_spark.connector.start_positions import last_position
from pulsar_spark.connector.subscribed_batch import plan_tasks
from pulsar_spark.connector.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.subscription_client import (
    SubscriptionClient,
    new_consumer_name,
)
from pulsar_spark.connector.topics import Root
from pulsar_spark.connector.typed_values import TypedValues, check_typed_schema, read_values
from pulsar_spark.connector.withheld import WithheldBatches, what_remains
from pulsar_spark.connector.worker_process import leave_if_hung_up
from pulsar_spark.cursor import Cursor
from pulsar_spark.errors import BrokerAbsentError, InvalidOptionError
from pulsar_spark.ledger_info import LedgerList
from pulsar_spark.options import Options, Scope
from pulsar_spark.partition_consumer import Offered
from pulsar_spark.position import EARLIEST, Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.stream_offset import PartitionOffset, StreamOffset, TopicPartition
from pulsar_spark.suspect_messages import SuspectMessages

FLOOR_EVERY_S = 5.0
"""How often a consumer reports at most when nothing has moved but the subscription's floor."""


class SubscriptionStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads as one consumer of a subscription."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        self._options, self._root, self._schema = options, root, schema
        self._values = TypedValues.of(options, root, schema)
        self._admission = Admission(
            options["maxMessagesPerTrigger"],
            options["maxBytesPerTrigger"],
            options["minMessagesPerTrigger"],
            options["maxTriggerDelay"],
        )
        self._topics = SubscribedTopics(options, root)
        self._view = ConsumerView(options)
        self._times = DeliveryTimes() if options["delayedDelivery"] else None
        self._offsets = OffsetStore(root)
        self._withheld = WithheldBatches(options, root)
        self._suspected = SuspectMessages()
        self._client: SubscriptionClient | None = None
        self._stop_at: dict[TopicPartition, Position] | None = None
        self._delivered: dict[TopicPartition, PositionSet] = {}
        """By this run, under AvailableNow and by hand: what is rejected is for the next run."""
        self._said: dict[TopicPartition, Report] = {}
        self._said_s = 0.0
        self._last_batch_s = self._news_s = time.monotonic()
        self._turn = 0
        self._checked = False
        self._asked: dict[TopicPartition, int] = {}
        self._asked_s = 0.0

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
            partition: last_position(self._view.ledgers(ledger, partition.partition), EARLIEST)
            for partition, ledger in self._topics.partitions().items()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The end of the next micro-batch; `start` itself when there is none."""
        self._check()
        begun = self._offsets.load(start)
        self._check_checkpoint(begun)
        if begun.is_symbolic:
            return self._ends_at(self._pinned())
        client = self._connected(begun)
        if client.is_closed:
            return start
        deadline = time.monotonic() + stream_reader.LONGEST_WAIT_S
        always = self._options["minMessagesPerTrigger"] is not None
        first = True
        while True:
            if self._news(client) or first or always:
                suspects = self._suspects(start, begun, client)
                planned = self._plan(begun, client, suspects)
                if planned is not None:
                    self._report(begun, planned, client)
                    self._asked = {}
                    self._last_batch_s = time.monotonic()
                    self._turn += 1
                    return self._ends_at(planned)
                if self._stop_at is None or self._asked:  # else what it asks says all of it
                    self._report(begun, begun, client)
                first = False
            if self._stop_at is not None:
                if self._is_drained(begun, client):
                    client.close(self._news_of(self._reports(begun, begun, client)))
                    return start
            elif time.monotonic() >= deadline:
                return start
            time.sleep(pause_s(time.monotonic() - self._news_s, remote=self._topics.remote))

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
        self._check_checkpoint(ended)
        if any(begun.get(partition) != offset for partition, offset in ended.items()):
            self._connected(ended)  # repeated after a restart or not: its lease is kept meanwhile
        self._topics.open_all(
            partition.topic for partition, offset in ended.items() if offset != begun.get(partition)
        )
        if self._withheld.leaves_out(begun, end, ended, self._ledgers(ended)):
            return []
        released = self._withheld.in_batch(ended).released
        return plan_tasks(
            self._topics, self._view, begun, ended, self._options, self._root, released
        )

    def read(self, partition: MessageInputPartition) -> Iterator[Any]:  # type: ignore[override]
        return _read(partition, self._schema, self._values)

    def commit(self, end: dict[str, Any]) -> None:
        self._offsets.release(end)
        self._withheld.forget(end)

    def stop(self) -> None:
        """It shows no more life: within its lease it may come back, and nothing is redelivered."""
        leave_if_hung_up()

    # -- planning --------------------------------------------------------------------------------

    def _check(self) -> None:
        """That the user's schema, the options and the topics will do, before all else."""
        if not self._checked:
            self._options.check_scope(Scope.STREAM_READ)
            self._topics.refresh()
            check_typed_schema(self._options, self._schema, self._topics.typed_ledgers())
            self._topics.open_retry_topic()
            self._view.retry_topic = self._topics.retry_topic
            self._checked = True

    def _check_checkpoint(self, offset: StreamOffset) -> None:
        """InvalidOptionError if it is of a Reader, or of another subscription or consumer."""
        name = self._options["subscriptionName"]
        if not offset.is_symbolic and offset.subscription != name:
            whose = f"subscription {offset.subscription}" if offset.subscription else "a Reader"
            raise InvalidOptionError(
                f"The checkpoint is of {whose}, and subscriptionName is {name}: start with a new "
                "checkpoint, which takes up at the subscription's own position."
            )
        given = self._options["consumerName"]
        mode = self._options["ackMode"]
        if offset.ack_mode and offset.ack_mode != mode:
            raise InvalidOptionError(
                f"The checkpoint is of ackMode {offset.ack_mode}, and ackMode is {mode}: what was "
                "delivered is acknowledged in the one and not in the other. Leave the option as it "
                "was, or start with a new checkpoint, which takes up at the subscription's position."
            )
        if given and offset.consumer and offset.consumer != given:
            raise InvalidOptionError(
                f"The checkpoint is of consumer {offset.consumer}, and consumerName is {given}: "
                "leave the option as it was, or start with a new checkpoint."
            )

    def _ends_at(self, planned: StreamOffset) -> dict[str, Any]:
        """What Spark writes down of a micro-batch that this run has planned."""
        end = self._offsets.save(planned)
        self._withheld.planned(end)
        return end

    def _pinned(self) -> StreamOffset:
        """Who this is, before anybody hears of it: a run after a crash has to be the same one."""
        name = self._options["subscriptionName"]
        consumer = self._options["consumerName"] or new_consumer_name(name)
        return StreamOffset({}, name, consumer, ack_mode=self._options["ackMode"])

    def _connected(self, begun: StreamOffset) -> SubscriptionClient:
        """The connection to the broker, made when it is known who this is."""
        if self._client is None:
            self._client = SubscriptionClient(
                self._options, self._root, begun.consumer, begun, self._topics.first_topic
            )
            self._client.subscribe(self._topics.partitions())
        self._client.committed = begun
        return self._client

    def _news(self, client: SubscriptionClient) -> bool:
        """Take in what is new in the logs and from the broker; whether there was anything.

        The logs are looked at again behind the broker, who may have granted what is newer.
        """
        news = self._topics.refresh()
        client.subscribe(self._topics.partitions())
        if client.hear():
            news = True
            self._topics.refresh()
        if news:
            self._news_s = time.monotonic()
        return news

    def _ledgers(self, offset: StreamOffset) -> dict[TopicPartition, LedgerList]:
        self._topics.open_all(about.topic for about, _ in offset.items())
        return {
            about: self._view.ledgers(self._topics.ledger(about.topic), about.partition)
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
            start = begun.get(partition)
            consumer.forget_planned(start)
            waiting[partition] = self._offered(partition, start, client)
            if start is None or start.epoch != consumer.epoch:
                self._delivered.pop(partition, None)
                offsets[partition] = consumer.plan(None, {}, waiting[partition].ledgers)
                pinned = True
        waited_ms = None
        if self._stop_at is None:
            waited_ms = int((time.monotonic() - self._last_batch_s) * 1000)
        taken = self._admission.admit(waiting, waited_ms=waited_ms, turn=self._turn)
        for partition, messages in taken.items():
            offered = waiting[partition]
            consumer = client.consumers[partition]
            offsets[partition] = consumer.plan(
                begun.get(partition), offered.by_attempt(messages), offered.ledgers
            )
            if self._stop_at is not None and not consumer.automatic:
                delivered = self._delivered.get(partition, PositionSet()).union(messages)
                self._delivered[partition] = delivered.after(consumer.floor)
        if not (pinned or taken):
            return None
        mode = self._options["ackMode"]
        offset = StreamOffset(
            offsets, client.subscription, client.name, client.incarnation, ack_mode=mode
        )
        return self._withheld.named(suspects, offset)

    def _offered(
        self, partition: TopicPartition, start: PartitionOffset | None, client: SubscriptionClient
    ) -> Offered:
        """What may be planned of one partition. DataLossError if some of it was trimmed away."""
        consumer, ledger = client.consumers[partition], self._topics.ledger(partition.topic)
        number = partition.partition
        while True:
            hidden = ledger.state.hidden(number) or PositionSet()
            hidden = hidden.union(self._suspected.not_done(partition))
            if partition in self._delivered:
                hidden = hidden.union(self._delivered[partition])
            if self._times is not None and not consumer.command.subscription_type.is_shared:
                hidden = hidden.union(self._times.ahead(partition, ledger, wall_clock_ms()))
            offered = consumer.offered(
                start, self._view.ledgers(ledger, number), hidden, self._end_of(partition),
                self._view.removed(ledger, number) or None,
            )  # fmt: skip
            trimmed = self._view.lost_up_to(ledger, number)
            if not offered.begins_before(trimmed):
                return offered
            # What everybody has acknowledged is trimmed too, and this consumer may hear of that
            # later than the log does.
            if not client.hear():
                check_present(
                    ledger, partition, Cursor(consumer.floor), fail=self._options["failOnDataLoss"]
                )
                consumer.give_up(trimmed)

    def _end_of(self, partition: TopicPartition) -> Position | None:
        return None if self._stop_at is None else self._stop_at.get(partition, EARLIEST)

    # -- reporting -------------------------------------------------------------------------------

    def _report(
        self, begun: StreamOffset, planned: StreamOffset, client: SubscriptionClient
    ) -> None:
        """Tell the broker what is new; nothing, if nothing is.

        That the floor moved, and no more, is worth a report only now and then: until then the
        topic keeps a ledger longer.
        """
        self._say(client, self._news_of(self._reports(begun, planned, client)))

    def _say(self, client: SubscriptionClient, reports: Mapping[TopicPartition, Report]) -> None:
        if reports:
            self._said |= {about: replace(each, request_id=None) for about, each in reports.items()}
            self._said_s = time.monotonic()
            client.say(reports)

    def _news_of(self, reports: Mapping[TopicPartition, Report]) -> dict[TopicPartition, Report]:
        """Those that say something that was not said before."""
        late = time.monotonic() - self._said_s > FLOOR_EVERY_S
        news = {}
        for partition, report in reports.items():
            said = self._said.get(partition)
            if said is not None:
                same = replace(report, sequence=said.sequence)
                if same == said or (not late and replace(same, committed=said.committed) == said):
                    continue
            news[partition] = report
        return news

    def _reports(
        self,
        begun: StreamOffset,
        planned: StreamOffset,
        client: SubscriptionClient,
        requests: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, Report]:
        reports = {}
        for partition, consumer in client.consumers.items():
            if consumer.connected:
                ledger, number = self._topics.ledger(partition.topic), partition.partition
                ledgers = self._view.ledgers(ledger, number)
                report = consumer.report(
                    begun.get(partition), planned.get(partition), ledgers, client.permits(),
                    (requests or {}).get(partition), self._view.removed(ledger, number),
                )  # fmt: skip
                if not consumer.automatic:  # no row tells its user of these
                    dead = self._view.abandoned(ledger, number, wall_clock_ms())
                    dead = dead.after(consumer.floor) if dead else dead
                    report = replace(report, acknowledged=report.acknowledged.acknowledge(dead))
                reports[partition] = what_remains(
                    report, partition, self._suspected, consumer.floor, ledgers
                )
        return reports

    def _is_drained(self, begun: StreamOffset, client: SubscriptionClient) -> bool:
        """Whether the broker has answered, knows all up to the end, and granted nothing more.

        BrokerAbsentError if it does not answer in time.
        """
        consumers = client.consumers
        if not self._asked and all(each.connected for each in consumers.values()):
            self._asked = {partition: client.next_request() for partition in consumers}
            self._say(client, self._reports(begun, begun, client, self._asked))
        if all(self._is_heard_out(partition, client) for partition in consumers):
            return True
        self._asked_s = self._asked_s or time.monotonic()
        silent_s = time.monotonic() - max(self._asked_s, client.heard_s)
        if silent_s > self._options["drainTimeout"] / 1000:
            url = self._root.service_url
            raise BrokerAbsentError(
                f"The broker of {url} has been silent for drainTimeout ({silent_s:.1f} s), and "
                f"consumer {client.name} of subscription {client.subscription} can't know "
                "whether it has all that was there at its start. Start one: pulsarlite standalone "
                f"--service-url {url}"
            )
        return False

    def _is_heard_out(self, partition: TopicPartition, client: SubscriptionClient) -> bool:
        """Whether the broker knows what is done and what was there, and has granted what it could.

        The answer to a request comes with the end of the step that took it in.
        """
        asked, step = self._asked.get(partition), client.stepped.get(partition)
        if asked is None or step is None or client.consumers[partition].answered < asked:
            return False
        end = self._end_of(partition)
        return end is None or step.last_position >= end


def _read(
    partition: MessageInputPartition, schema: StructType, values: TypedValues | None
) -> Iterator[Any]:
    batches = read_values(partition, schema, values)
    return (batch for batch in batches if isinstance(batch, pa.RecordBatch))
