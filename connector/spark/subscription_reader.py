"""The streaming source of a consumer: it reads what the broker grants, and reports what it did.

Invariants: `latestOffset(start)` comes only after `start`'s micro-batch was committed, so that call
acknowledges it; the messages of a micro-batch are reported before its offset is handed out; a batch
follows from its two offsets alone, redelivery counts included; without news `start` itself is
returned. The consumer's name stands in the offset, so a query that is started again is the same
consumer. Spark's shell around `ConsumerRun`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pulsar_spark.connector.runtime.consuming.consumer_run import ConsumerRun
from pulsar_spark.connector.runtime.consuming.subscription_client import SubscriptionClient
from pulsar_spark.connector.runtime.consuming.withheld_batches import (
    WithheldBatches,
    report_without_suspects,
)
from pulsar_spark.connector.runtime.reading.micro_batch import plan_tasks
from pulsar_spark.connector.runtime.reading.partition_view import Lag, PartitionView
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.spark.stream_reader import StreamReader
from pulsar_spark.connector.storage.folder_watch import Watched
from pulsar_spark.consumer.stream_offset import StreamOffset
from pulsar_spark.consumer.suspect_messages import SuspectGroup, SuspectMessages
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Options


class SubscriptionStreamReader(StreamReader):
    """Reads as one consumer of a subscription."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        self._run = ConsumerRun(
            options,
            root,
            held_back=lambda topic_partition: self._suspected.not_done(topic_partition),  # noqa: PLW0108 - they change
            completed=lambda *report: report_without_suspects(self._suspected, *report),
        )
        super().__init__(options, schema, self._run.topics)
        self._withheld = WithheldBatches(options, root)
        self._suspected = SuspectMessages()
        self._client: SubscriptionClient | None = None

    # -- what Spark calls ----------------------------------------------------------------------

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The end of the next micro-batch; `start` itself when there is none."""
        begun = self._offsets.load(start)
        self._check(begun)
        self._check_checkpoint(begun)
        run = self._run
        if begun.is_symbolic:
            return self._ends_at(run.pinned())
        self._client = run.connected(begun)
        self._suspected = self._suspects(start, begun)  # a refusal has it say its last at once
        self._count_done()
        if self._client.is_closed:
            return start
        deadline = self._clock.monotonic_s() + stream_reader.LONGEST_WAIT_S
        always = self._options["minMessagesPerTrigger"] is not None
        first = True
        while True:
            if (self._may_poll and run.observe()) or first or always:
                planned = self._plan(start, begun)
                if planned is not None:
                    run.report(begun, planned)
                    run.planned()
                    self._count(begun, planned)
                    return self._ends_at(planned)
                if (
                    not self._topics.ends or run.has_open_request
                ):  # `is_drained` reports when it asks
                    run.report(begun, begun)
                first = False
            if self._topics.ends:
                if run.is_drained(begun):
                    run.close()
                    return start
            elif self._clock.monotonic_s() >= deadline:
                return start
            self._pause(run.active_s)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The last position of each partition, and the subscription's backlog before it."""
        report = super().reportLatestOffset()
        return report and {"subscription": self._options["subscriptionName"], **report}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, ended = self._offsets.load(start), self._offsets.load(end)
        self._check(ended)
        self._check_checkpoint(ended)
        if ended.changed_since(begun):
            self._client = self._run.connected(ended)  # a repeated batch needs the lease too
        if self._withheld.leaves_out(begun, end, ended, self._run.ledgers):
            return []
        released = self._withheld.in_batch(ended).released
        return list(map(InputPartition, plan_tasks(self._topics, begun, ended, released)))

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        self._withheld.forget(end)

    # -- inside ----------------------------------------------------------------------------------

    def _watched(self) -> list[Watched]:
        return self._run.watched

    def _lag(self, view: PartitionView) -> Lag | None:
        """As the broker last said, and what it has not heard of."""
        client = self._client
        step = None if client is None else client.stepped.get(view.topic_partition)
        consumer = None if client is None else client.consumers.get(view.topic_partition)
        backlog = None if client is None else client.backlog(view.topic_partition)
        if step is None or consumer is None or backlog is None:
            return None
        unobserved = Lag.behind(Cursor(step.last_position), view)
        first_ms = view.published_after(consumer.floor) if backlog else unobserved.first_ms
        return Lag(backlog + unobserved.messages, first_ms)

    def _behind(self) -> set[TopicPartition]:
        return self._run.behind

    def _check_all(self) -> None:
        super()._check_all()
        self._run.check()

    def _check_checkpoint(self, offset: StreamOffset) -> None:
        """InvalidOptionError if it is a Reader's, or another subscription's or consumer's."""
        name = self._options["subscriptionName"]
        if not offset.is_symbolic and offset.subscription != name:
            whose = f"subscription {offset.subscription}" if offset.subscription else "a Reader"
            raise InvalidOptionError(
                f"The checkpoint is of {whose}, and subscriptionName is {name}: start with a new "
                "checkpoint, which takes up at the subscription's own position."
            )
        mode = self._options["ackMode"]
        if offset.ack_mode and offset.ack_mode != mode:
            raise InvalidOptionError(
                f"The checkpoint is of ackMode {offset.ack_mode}, and ackMode is {mode}: what was "
                "delivered is acknowledged in the one and not in the other. Leave the option as it "
                "was, or start with a new checkpoint: it takes up at the subscription's position."
            )
        given = self._options["consumerName"]
        if given and offset.consumer and offset.consumer != given:
            raise InvalidOptionError(
                f"The checkpoint is of consumer {offset.consumer}, and consumerName is {given}: "
                "leave the option as it was, or start with a new checkpoint."
            )

    def _ends_at(self, planned: StreamOffset) -> dict[str, Any]:
        """The JSON of an offset that this run has planned, as Spark stores it."""
        end = self._offsets.save(planned)
        self._withheld.planned(end)
        return end

    def _plan(self, start: dict[str, Any], begun: StreamOffset) -> StreamOffset | None:
        """The offset behind `begun`; None if there is nothing to read and nothing to pin."""
        self._suspected = self._suspects(start, begun)
        if self._suspected.groups and self._is_connected(self._suspected.groups[0]):
            return self._withheld.named(self._suspected.release(), begun)
        planned = self._run.plan(begun)
        return None if planned is None else self._withheld.named(self._suspected, planned)

    def _is_connected(self, group: SuspectGroup) -> bool:
        """True if the broker has let the consumer in where they are: it may have given them away.

        A seek takes them all back, and then the epoch says so.
        """
        assert self._client is not None
        consumers = self._client.consumers
        return all(
            topic_partition in consumers and consumers[topic_partition].connected
            for topic_partition in group.partitions
        )

    def _suspects(self, start: dict[str, Any], begun: StreamOffset) -> SuspectMessages:
        """The messages to try apart, less those that the consumer no longer holds."""
        suspects = self._withheld.behind(start, begun)
        if suspects.is_empty:
            return suspects
        assert self._client is not None
        gone: dict[TopicPartition, PositionSet | None] = {}
        for topic_partition, consumer in self._client.consumers.items():
            offset = begun.get(topic_partition)
            if consumer.connected and (offset is None or offset.epoch != consumer.epoch):
                gone[topic_partition] = None
            else:
                gone[topic_partition] = suspects.not_done(topic_partition).up_to(consumer.floor)
        return suspects.without(gone)
