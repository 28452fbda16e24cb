"""One run of a Reader: what it reads next, without Spark and without a broker.

Invariants: offsets are cursors, and what is read is the difference of two; the first offset behind
a symbolic one pins where to begin; a partition that is new later is read from its first message.
The host keeps the offset. Spark's source and `MessageReader` host it. Follows Pulsar's
`ReaderImpl`.
"""

from __future__ import annotations

from dataclasses import replace

from pulsar_spark.connector.runtime.reading.micro_batch import admission
from pulsar_spark.connector.runtime.reading.partition_view import PartitionView
from pulsar_spark.connector.runtime.reading.start_positions import StartPosition
from pulsar_spark.connector.runtime.reading.subscribed_topics import Absent, SubscribedTopics
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.consumer.admission import Waiting
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.model.topic_name import TopicPartition, is_persistent
from pulsar_spark.options.options import Options


class ReaderRun:
    """Plans over all topic partitions. Opens nothing before `plan`'s caller refreshes `topics`."""

    def __init__(self, options: Options, root: Root, start: StartPosition) -> None:
        self.topics = SubscribedTopics(options, root, Absent.MADE)
        self.start = start
        self._clock = root.clock
        self._admission = admission(options, self._clock.monotonic_s())
        self._connected: set[TopicPartition] = set()
        self._looked: StreamOffset | None = None
        """The offset behind which it looked last."""
        self.waiting: set[TopicPartition] = set()
        """The partitions in which it found something then, or something has happened since."""

    @property
    def last_planned_s(self) -> float:
        return self._admission.last_batch_s

    def planned(self) -> None:
        """Note that the plan is read now."""
        self._admission.planned(self._clock.monotonic_s())

    def plan(self, begun: StreamOffset) -> StreamOffset | None:
        """The offset behind `begun`; None if there is nothing to read and nothing to pin.

        A partition that the changed options no longer name stays where it was.
        """
        views, at = self.topics.partitions(), self._to_poll(begun)
        self.topics.check_incarnations(begun, at)
        at = list(filter(self.topics.is_open, at))
        if begun.is_symbolic:
            self.start.check_topics(views)
        changes: dict[TopicPartition, PartitionOffset] = {}
        waiting: dict[TopicPartition, Waiting] = {}
        for topic_partition in at:
            view, before = views[topic_partition], begun.get(topic_partition)
            offset = self._beginning(topic_partition, view, before, is_first=begun.is_symbolic)
            cursor = view.check_present(offset.cursor)
            if cursor is not offset.cursor:  # so that a loss is reported once
                offset = offset.planned(cursor)
            if offset != before:
                changes[topic_partition] = offset
            end = self.topics.end_of(topic_partition)
            waiting[topic_partition] = Waiting(cursor, view.ledgers, end, view.uncounted)
        now_s = None if self.topics.ends else self._clock.monotonic_s()
        taken = self._admission.admit(waiting, now_s)
        for topic_partition, messages in taken.items():
            passed = waiting[topic_partition].with_uncounted(messages)
            place = changes.get(topic_partition) or begun.get(topic_partition)
            assert place is not None, "it is there, or began now"
            cursor = place.cursor.acknowledge(passed).advance(waiting[topic_partition].ledgers)
            changes[topic_partition] = place.planned(cursor)
        self.waiting = {
            *changes,
            *(topic_partition for topic_partition, each in waiting.items() if each.count(1)),
        }
        self._looked = begun
        if not (changes or begun.is_symbolic):
            return None
        planned = begun.with_changes(changes)
        return replace(planned, incarnations=self.topics.incarnations(planned))

    def _to_poll(self, begun: StreamOffset) -> list[TopicPartition]:
        """The partitions with something new since the last look, and where messages wait."""
        views = self.topics.partitions()
        self.waiting |= self.topics.changed()
        moved = views if self._looked is None else begun.changed_since(self._looked)
        return sorted(
            topic_partition
            for topic_partition in {*self.waiting, *moved}
            if topic_partition in views
        )

    def _beginning(
        self,
        topic_partition: TopicPartition,
        view: PartitionView,
        offset: PartitionOffset | None,
        *,
        is_first: bool,
    ) -> PartitionOffset:
        """The partition's place: in the offset, or at its beginning for this run."""
        if offset is None:
            is_new = not is_first or topic_partition.topic in self.topics.made
            where = StartPosition("earliest") if is_new else self.start
            offset = PartitionOffset.beginning(where.cursor(view))
        if topic_partition not in self._connected and not is_persistent(topic_partition.topic):
            # Older messages are not for this run, whatever the last one has read.
            origin = StartPosition("latest").cursor(view)
            offset = PartitionOffset.beginning(origin, offset.epoch + 1)
        self._connected.add(topic_partition)
        return offset
