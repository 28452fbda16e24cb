"""The next report of a consumer: the changes of each partition since the last report.

Invariants: a message that was handed out, acknowledged or rejected stays here until a report that
names it was sent; acknowledging is a union, so a report that was sent twice does no harm; the
permits make room for a full queue beside all that was taken into it and is not acknowledged. Stands
for Pulsar's `PersistentAcknowledgmentsGroupingTracker` and `UnAckedMessageTracker`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from pulsar_spark.broker.protocol.commands import Report
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Acknowledgments
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet
from pulsar_spark.model.topic_name import TopicPartition


class PendingReports:
    """The pending reports of one consumer, whose lock guards them."""

    def __init__(self, queue_size: int, *, durable: bool) -> None:
        self._queue_size = queue_size
        self._held: dict[TopicPartition, PositionSet] = {}
        """Messages taken into the queue, and not acknowledged or given back since."""
        self._delivered: dict[TopicPartition, PositionSet] = {}
        """The messages of these that were handed out."""
        self.handed: dict[TopicPartition, dict[int, PositionSet]] = {}
        """Messages that were handed out since the last report, by attempt."""
        self._acknowledged: dict[TopicPartition, Cursor] = {}
        self._pending: dict[TopicPartition, Acknowledgments] = {}
        """Rejections and cumulative acknowledgements since the last report."""
        self._kept: dict[TopicPartition, Cursor] | None = None if durable else {}
        """All that was acknowledged above the floor, where the broker may forget that."""

    # -- what happens --------------------------------------------------------------------------

    def queued(
        self, topic_partition: TopicPartition, messages: PositionSet, floor: Position
    ) -> None:
        """These are in the queue now."""
        self._held[topic_partition] = (
            self._held.get(topic_partition, NOTHING).union(messages).after(floor)
        )
        self._delivered[topic_partition] = self._delivered.get(topic_partition, NOTHING).after(
            floor
        )

    def handed_out(self, topic_partition: TopicPartition, found: Acknowledgments) -> None:
        """These were handed out, at their attempts."""
        handed = self.handed.setdefault(topic_partition, {})
        for attempt, messages in found.individual.items():
            assert attempt is not None, "what is received has an attempt"
            handed[attempt] = handed.get(attempt, NOTHING).union(messages)
            self._delivered[topic_partition] = self._delivered.get(topic_partition, NOTHING).union(
                messages
            )

    def settled(
        self, topic_partition: TopicPartition, found: Acknowledgments, floor: Position
    ) -> None:
        """These were acknowledged or rejected."""
        self._pending.setdefault(topic_partition, Acknowledgments()).join(found)
        done = Cursor().acknowledge(PositionSet.union_of(found.individual.values()))
        self._acknowledged[topic_partition] = self._acknowledged.get(
            topic_partition, Cursor()
        ).union(done)
        if self._kept is not None:
            self._kept[topic_partition] = (
                self._kept.get(topic_partition, Cursor()).union(done).floor(floor)
            )
        for furthest in found.cumulative.values():
            done = done.union(Cursor().acknowledge_cumulative(*furthest))
        gone = [done.individually_deleted, *found.rejected.values(), *found.later.values()]
        for held in (self._held, self._delivered):
            left = held.get(topic_partition, NOTHING).difference(PositionSet.union_of(gone))
            held[topic_partition] = left.after(done.mark_delete_position)

    def given_back(self, topic_partition: TopicPartition, messages: PositionSet | None) -> None:
        """These (None: all) were dropped from the queue, unless they were handed out."""
        held = self._held.get(topic_partition, NOTHING)
        gone = held if messages is None else messages
        delivered = self._delivered.get(topic_partition, NOTHING)
        self._held[topic_partition] = held.difference(gone.difference(delivered))

    def holds_nothing(self) -> None:
        """All is given again, whatever was handed out."""
        self._held.clear()
        self._delivered.clear()

    def begins_again(self) -> Collection[TopicPartition]:
        """The consumer was given up; returns where its acknowledgements are to be sent again."""
        self.holds_nothing()
        self.handed.clear()
        self._acknowledged |= self._kept or {}
        return self._kept or ()

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget the partition: its subscription was reset, or it is gone."""
        every = self._held, self._delivered, self.handed, self._acknowledged, self._pending
        for kept in (*every, self._kept or {}):
            kept.pop(topic_partition, None)

    # -- what is sent --------------------------------------------------------------------------

    def complete(
        self, topic_partition: TopicPartition, report: Report, ledgers: LedgerList
    ) -> Report:
        """The report with what is new since the last one, and permits for a full queue."""
        pending = self._pending.get(topic_partition, Acknowledgments())
        held = self._held.get(topic_partition, NOTHING)
        held = held.of_ledgers(filter(ledgers.get, held.ledger_ids))  # trimmed ones need no room
        return replace(
            report,
            acknowledged=report.acknowledged.union(
                self._acknowledged.get(topic_partition, Cursor())
            ),
            delivered=self.handed.get(topic_partition, {}),
            rejected=pending.rejections,
            reconsume_later=pending.to_reconsume_later,
            permits=held.count(ledgers) + self._queue_size,
            committed=None,  # it repeats no micro-batch
        )

    def cumulative(
        self, subscription: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Report]:
        """Cumulative acknowledgements as a sink sends them, behind the report.

        The broker knows what up to there the consumer was handed, and holds.
        """
        return {
            topic_partition: next(iter(pending.reports(subscription)))
            for topic_partition, pending in self._pending.items()
            if topic_partition in partitions and pending.cumulative
        }

    def sent(self, partitions: Iterable[TopicPartition]) -> None:
        """All of these partitions was sent."""
        for topic_partition in partitions:
            for each in (self.handed, self._acknowledged, self._pending):
                each.pop(topic_partition, None)
