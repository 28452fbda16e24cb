"""Acknowledgements on their way: gathered until there are enough, or the first has waited enough.

Invariants: immutable; grouping only delays, what was added is in the next flush; a cumulative
acknowledgement never shrinks. Follows Pulsar's `PersistentAcknowledgmentsGroupingTracker`, whose
groups are lost when a connection breaks: here they stay in the consumer's next report.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from pulsar_spark.cursor import Cursor
from pulsar_spark.position import Position

DEFAULT_GROUP_TIME_MS: Final = 100
MAX_GROUP_SIZE: Final = 1000


@dataclass(frozen=True, slots=True)
class AcknowledgmentsGroupingTracker:
    """What one consumer has acknowledged; a group time of 0 flushes each at once."""

    group_time_ms: int = DEFAULT_GROUP_TIME_MS
    max_group_size: int = MAX_GROUP_SIZE
    acknowledged: Cursor = field(default_factory=Cursor)
    waiting: int = 0
    since_ms: int | None = None
    """When the first that waits was added."""

    def add(self, acknowledged: Cursor, count: int, now_ms: int) -> AcknowledgmentsGroupingTracker:
        """With so many acknowledgements more, which that cursor holds."""
        since_ms = now_ms if self.since_ms is None else self.since_ms
        return replace(
            self,
            acknowledged=self.acknowledged.union(acknowledged),
            waiting=self.waiting + count,
            since_ms=since_ms,
        )

    @property
    def next_flush_ms(self) -> int | None:
        """When to flush at the latest; None if nothing waits."""
        return None if self.since_ms is None else self.since_ms + self.group_time_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time to send a report."""
        if self.since_ms is None:
            return False
        return self.waiting >= self.max_group_size or now_ms >= self.since_ms + self.group_time_ms

    def flushed(self) -> AcknowledgmentsGroupingTracker:
        """Once a report is sent; it names all again, for that report may be lost."""
        return replace(self, waiting=0, since_ms=None)

    def forget_up_to(self, position: Position) -> AcknowledgmentsGroupingTracker:
        """The broker has all up to there: it need not be said again one by one."""
        return replace(self, acknowledged=self.acknowledged.floor(position))

    def begin_epoch(self) -> AcknowledgmentsGroupingTracker:
        """After a seek: nothing is acknowledged."""
        return AcknowledgmentsGroupingTracker(self.group_time_ms, self.max_group_size)
