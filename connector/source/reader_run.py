"""One run of a Reader: what it reads next, without Spark and without a broker.

Invariants: offsets are cursors, and what is read is the difference of two; the first offset behind
a symbolic one pins where to begin; a partition that is new later is read from its first message.
The host keeps the offset. Spark's source and `MessageReader` host it. Follows Pulsar's
`ReaderImpl`.
"""

from __future__ import annotations

from pulsar_spark.connector.source.micro_batch import admission
from pulsar_spark.connector.source.start_positions import StartPosition
from pulsar_spark.connector.source.subscribed_topics import Absent, SubscribedTopics
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.options.options import Options
from pulsar_spark.planning.admission import Waiting
from pulsar_spark.planning.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.topic_name import TopicPartition, is_persistent


class ReaderRun:
    """Plans over all topic partitions. Opens nothing before `plan`'s caller refreshes `topics`."""

    def __init__(self, options: Options, root: Root, start: StartPosition) -> None:
        self.topics = SubscribedTopics(options, root, Absent.MADE)
        self.start = start
        self._clock = root.clock
        self._admission = admission(options, self._clock.monotonic_s())
        self._connected: set[TopicPartition] = set()

    @property
    def last_planned_s(self) -> float:
        return self._admission.last_batch_s

    def planned(self) -> None:
        """What was planned is read now."""
        self._admission.planned(self._clock.monotonic_s())

    def plan(self, begun: StreamOffset) -> StreamOffset | None:
        """The offset behind `begun`; None if there is nothing to read and nothing to pin.

        A partition that the changed options no longer name stays where it was.
        """
        self.topics.check_incarnations(begun)
        offsets = dict(begun.items())
        views = self.topics.partitions()
        if begun.is_symbolic:
            self.start.check_topics(views)
        waiting: dict[TopicPartition, Waiting] = {}
        for about, view in views.items():
            if about not in offsets:
                is_new = not begun.is_symbolic or about.topic in self.topics.made
                where = StartPosition("earliest") if is_new else self.start
                offsets[about] = PartitionOffset.beginning(where.cursor(view))
            if about not in self._connected and not is_persistent(about.topic):
                # Older messages are not for this run, whatever the last one has read.
                origin = StartPosition("latest").cursor(view)
                offsets[about] = PartitionOffset.beginning(origin, offsets[about].epoch + 1)
            self._connected.add(about)
            cursor = view.check_present(offsets[about].cursor)
            if cursor is not offsets[about].cursor:  # so that a loss is reported once
                offsets[about] = offsets[about].planned(cursor)
            end = self.topics.end_of(about)
            waiting[about] = Waiting(cursor, view.ledgers, end, view.uncounted)
        now_s = None if self.topics.ends else self._clock.monotonic_s()
        taken = self._admission.admit(waiting, now_s)
        for about, messages in taken.items():
            passed = waiting[about].with_uncounted(messages)
            cursor = offsets[about].cursor.acknowledge(passed).advance(waiting[about].ledgers)
            offsets[about] = offsets[about].planned(cursor)
        changed = begun.is_symbolic or offsets != dict(begun.items())
        named = self.topics.incarnations(offsets)
        return StreamOffset(offsets, incarnations=named) if changed else None
