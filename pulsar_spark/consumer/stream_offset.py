"""A micro-batch offset: for each topic partition, the planned messages so far, as cursors.

Invariants: a micro-batch is the difference of its two offsets, and needs nothing but them and the
ledgers; equal offsets have equal text (keys sorted); cursors only grow from one offset to the
next within an epoch; a partition that `start` lacks, or has from another epoch, begins at `end`'s
origin. The symbolic offset, with which every query begins, resolves nothing and is always the same.
What an offset has in common with the one that it came from they share, so that to make, compare
and write one costs what changed.

Takes the place of Spark's `KafkaSourceOffset`; a number per partition can't say which messages
of a batch were acknowledged, so here it is Pulsar's cursor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pulsar_spark.errors import CorruptFileError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.records.stored_record import StoredFormat, canonical_json
from pulsar_spark.model.topic_name import TopicPartition

OFFSET_FORMAT: Final = StoredFormat(
    "An offset in the checkpoint",
    remedy="Restore the checkpoint from a copy, or start with a new one.",
)
FIRST_ATTEMPT: Final = 0
MOST_CHANGES: Final = 1000
"""The partitions in which an offset in memory differs from what it shares, before it is whole."""


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """One partition's place: the cursor from which its epoch began, and one per attempt.

    `floor` is the subscription's mark-delete position as last heard; messages at or below it
    belong to no micro-batch any more. A Reader has one attempt and no floor.
    """

    origin: Cursor
    attempts: Mapping[int, Cursor]
    epoch: int = 0
    floor: Position | None = None
    redelivery_counts: Mapping[int, PositionSet] = field(default_factory=dict)
    """Count above 0 -> the messages of the micro-batch ending here that have it."""

    @staticmethod
    def beginning(origin: Cursor, epoch: int = 0) -> PartitionOffset:
        return PartitionOffset(origin, {FIRST_ATTEMPT: origin}, epoch)

    @property
    def cursor(self) -> Cursor:
        """The cursor of the first attempt, which is a Reader's only one."""
        return self.attempts[FIRST_ATTEMPT]

    @property
    def last_ledger_id(self) -> int:
        """The highest id of a ledger that it names; -1 if it names none."""
        cursors = (self.origin, *self.attempts.values())
        singles = (max(each.individually_deleted.ledger_ids, default=-1) for each in cursors)
        return max(*(each.mark_delete_position.ledger_id for each in cursors), *singles)

    def planned(self, cursor: Cursor) -> PartitionOffset:
        """The offset with the first attempt's cursor moved on."""
        return replace(self, attempts={**self.attempts, FIRST_ATTEMPT: cursor})

    def batch_since(self, start: PartitionOffset | None, ledgers: LedgerList) -> PositionSet:
        """The messages of the micro-batch from `start` (None: from the origin) to this offset."""
        return PositionSet.union_of(self.attempts_since(start, ledgers).values())

    def attempts_since(
        self, start: PartitionOffset | None, ledgers: LedgerList
    ) -> dict[int, PositionSet]:
        """The same by attempt; attempts without messages are left out."""
        return {
            attempt: part
            for attempt, begin, end in self.steps_since(start)
            if (part := end.difference(begin, ledgers).after(self.floor or EARLIEST))
        }

    def steps_since(self, start: PartitionOffset | None) -> Iterator[tuple[int, Cursor, Cursor]]:
        """(attempt, its cursor at `start`, its cursor here), by attempt."""
        before = start.attempts if start is not None and start.epoch == self.epoch else {}
        for attempt, end in sorted(self.attempts.items()):
            yield attempt, before.get(attempt, self.origin), end

    def to_json_value(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "attempts": {str(n): _cursor_value(cursor) for n, cursor in self.attempts.items()},
            "epoch": self.epoch,
            "origin": _cursor_value(self.origin),
        }
        if self.floor is not None:
            value["floor"] = str(self.floor)
        if self.redelivery_counts:
            value["redelivery_counts"] = {
                str(n): _cursor_value(Cursor().acknowledge(messages))
                for n, messages in self.redelivery_counts.items()
            }
        return value

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> PartitionOffset:
        floor = value.get("floor")
        return PartitionOffset(
            _cursor(value["origin"]),
            {int(attempt): _cursor(cursor) for attempt, cursor in value["attempts"].items()},
            int(value["epoch"]),
            None if floor is None else Position.parse(floor),
            {
                int(count): _cursor(messages).individually_deleted
                for count, messages in value.get("redelivery_counts", {}).items()
            },
        )


class ChangedPartitions(Mapping[TopicPartition, PartitionOffset]):
    """The partitions of an offset as a `whole` that others share, and what is different here."""

    __slots__ = ("changes", "whole")

    def __init__(
        self,
        whole: Mapping[TopicPartition, PartitionOffset],
        changes: Mapping[TopicPartition, PartitionOffset],
    ) -> None:
        self.whole, self.changes = whole, changes

    def __getitem__(self, topic_partition: TopicPartition) -> PartitionOffset:
        found = self.changes.get(topic_partition)
        return self.whole[topic_partition] if found is None else found

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self.changes or topic_partition in self.whole

    def __iter__(self) -> Iterator[TopicPartition]:
        yield from self.whole
        yield from (
            topic_partition for topic_partition in self.changes if topic_partition not in self.whole
        )

    def __len__(self) -> int:
        return len(self.whole) + sum(
            topic_partition not in self.whole for topic_partition in self.changes
        )


Partitions = Mapping[TopicPartition, PartitionOffset]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """All partitions of one streaming source. `partitions` is None for the symbolic offset."""

    partitions: Partitions | None = field(default_factory=dict)
    subscription: str = ""
    consumer: str = ""
    """The consumer's name, so that a restart is the same one; a Reader has none."""
    incarnation: int = 0
    """The run of the consumer that planned this; the next one takes a higher number."""
    suspects: str = ""
    """The file of messages that the consumer tries apart; empty if there are none."""
    ack_mode: str = ""
    """The meaning of a consumer's cursors, `auto` or `manual`; a Reader has none."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """The incarnations of its topics that are not the first of their name."""

    @property
    def is_symbolic(self) -> bool:
        return self.partitions is None

    def get(self, partition: TopicPartition) -> PartitionOffset | None:
        return (self.partitions or {}).get(partition)

    def items(self) -> Iterator[tuple[TopicPartition, PartitionOffset]]:
        """The partitions and their offsets by topic and partition, ascending."""
        return iter(sorted((self.partitions or {}).items()))

    def with_changes(self, changes: Partitions) -> StreamOffset:
        """The offset with other places of these partitions; what it has besides is shared."""
        if not changes and self.partitions is not None:
            return self
        whole, before = _layers(self.partitions)
        changed = replace(self, partitions=ChangedPartitions(whole, {**before, **changes}))
        return changed if len(before) + len(changes) <= MOST_CHANGES else changed.settled()

    def settled(self) -> StreamOffset:
        """The same offset, as the whole that those which come from it share."""
        return replace(self, partitions=dict(self.partitions or {}))

    def changed_since(self, start: StreamOffset) -> dict[TopicPartition, PartitionOffset]:
        """The partitions whose place differs from that in `start`, by topic and number.

        Costs what the two do not share.
        """
        (whole, changes), (old, before) = _layers(self.partitions), _layers(start.partitions)
        candidates = changes.keys() | before.keys() if whole is old else whole.keys() | changes
        found = {}
        for topic_partition in candidates:
            here, there = self.get(topic_partition), start.get(topic_partition)
            if here is not None and here is not there and here != there:
                found[topic_partition] = here
        return dict(sorted(found.items()))

    def to_json_value(self) -> dict[str, Any]:
        """Canonical: two equal offsets give the same text, keys sorted at every level."""
        if self.partitions is None:
            return {"initial": True, "version": OFFSET_FORMAT.version}
        topics: dict[str, dict[str, Any]] = {}
        for (topic, partition), offset in self.items():
            topics.setdefault(topic, {})[str(partition)] = offset.to_json_value()
        value: dict[str, Any] = {"topics": topics, "version": OFFSET_FORMAT.version}
        if self.subscription:
            names = ("ack_mode", "consumer", "incarnation", "subscription")
            value |= {name: getattr(self, name) for name in names}
        if self.incarnations:
            value["incarnations"] = dict(self.incarnations)
        if self.suspects:
            value["suspects"] = self.suspects
        return dict(json.loads(canonical_json(value)))

    @staticmethod
    def from_json_value(value: Any) -> StreamOffset:
        """Read `to_json_value`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        version = value.get("version") if isinstance(value, dict) else None
        if version is None:
            raise CorruptFileError(
                "An offset in the checkpoint is not one of Pulsarlite: it has no version. Was "
                "the checkpoint made by another source? Start with a new checkpoint folder."
            )
        OFFSET_FORMAT.check_version(version)
        if value.get("initial"):
            return StreamOffset(None)
        try:
            return StreamOffset(
                {
                    TopicPartition(topic, int(partition)): PartitionOffset.from_json_value(offset)
                    for topic, partitions in value["topics"].items()
                    for partition, offset in partitions.items()
                },
                str(value.get("subscription", "")),
                str(value.get("consumer", "")),
                int(value.get("incarnation", 0)),
                str(value.get("suspects", "")),
                str(value.get("ack_mode", "")),
                {topic: int(each) for topic, each in value.get("incarnations", {}).items()},
            )
        except (
            KeyError, ValueError, TypeError, AttributeError, OverflowError, CorruptFileError,
        ) as error:  # fmt: skip
            raise OFFSET_FORMAT.damaged("", repr(error)) from error


def _layers(partitions: Partitions | None) -> tuple[Partitions, Partitions]:
    """(what is shared, what is different from that)."""
    if isinstance(partitions, ChangedPartitions):
        return partitions.whole, partitions.changes
    return ({} if partitions is None else partitions), {}


def _cursor_value(cursor: Cursor) -> Any:
    """`ledger:entry` for a cursor without holes, else the cursor's own form."""
    if not cursor.individually_deleted:
        return str(cursor.mark_delete_position)
    return cursor.to_json_value()


def _cursor(value: Any) -> Cursor:
    if isinstance(value, str):
        return Cursor(Position.parse(value))
    return Cursor.from_json_value(value)
