"""Messages that a consumer tries apart from all others, since a micro-batch with them never ends.

Invariants: values only; a micro-batch has either the messages of its two offsets, or one suspect
group, never both; when it fails once too often, all its messages are withheld: one alone is given
up after `most` failures, several are split, and each part is tried by itself, in order. So a
message that kills a query is found in a few restarts, and its neighbours are delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet
from pulsar_spark.model.records.stored_record import StoredFormat
from pulsar_spark.model.topic_name import TopicPartition

SUSPECTS_FORMAT: Final = StoredFormat(
    "A file of withheld messages",
    checked=True,
    fields=frozenset({"released", "groups", "dead_lettered", "failures"}),
    remedy="Restore it from a copy.",
)
PARTS: Final = 16
"""The parts of a failed group. A good trial takes a fraction of a second, a bad one a restart."""

Messages = Mapping[tuple[TopicPartition, int], PositionSet]
"""(topic partition, attempt) -> messages."""
Ledgers = Mapping[TopicPartition, LedgerList]
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class SuspectGroup:
    """Messages that are tried together, and the number of micro-batches that failed with them."""

    failures: int
    messages: Messages

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted({topic_partition for topic_partition, _ in self.messages})

    def attempts(self, topic_partition: TopicPartition) -> dict[int, PositionSet]:
        """Attempt -> the partition's messages."""
        return {n: part for (where, n), part in self.messages.items() if where == topic_partition}

    def of(self, topic_partition: TopicPartition) -> PositionSet:
        return PositionSet.union_of(self.attempts(topic_partition).values())

    def count(self, ledgers: Ledgers) -> int:
        return sum(
            part.count(ledgers[topic_partition])
            for (topic_partition, _), part in self.messages.items()
        )

    def to_json_value(self) -> dict[str, Any]:
        messages = [
            [*a, attempt, _value(part)] for (a, attempt), part in sorted(self.messages.items())
        ]
        return {"failures": self.failures, "messages": messages}

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> SuspectGroup:
        messages = {
            (TopicPartition(topic, partition), attempt): _messages(part)
            for topic, partition, attempt, part in value["messages"]
        }
        return SuspectGroup(value["failures"], messages)


@dataclass(frozen=True, slots=True)
class SuspectMessages:
    """The suspects behind one offset.

    `released` is the micro-batch that ends there; `groups` are to be tried, in order;
    `dead_lettered` are to become dead letters.
    """

    released: SuspectGroup | None = None
    groups: tuple[SuspectGroup, ...] = ()
    dead_lettered: Mapping[TopicPartition, PositionSet] = field(default_factory=dict)
    failures: int = 0
    """The failures with which the latest of `dead_lettered` was given up."""

    @property
    def is_empty(self) -> bool:
        return not (self.released or self.groups or self.dead_lettered)

    def not_done(self, topic_partition: TopicPartition) -> PositionSet:
        """The partition's suspects: planned once, and not to be acknowledged."""
        groups = (group.of(topic_partition) for group in self.groups)
        return PositionSet.union_of((self.dead_lettered.get(topic_partition, NOTHING), *groups))

    def release(self) -> SuspectMessages:
        """The suspects with the first group released: the next micro-batch tries it."""
        return replace(self, released=self.groups[0], groups=self.groups[1:])

    def committed(self) -> SuspectMessages:
        """The suspects once the micro-batch that ends here is done."""
        return replace(self, released=None)

    def failed(
        self, batch: Messages, failures: int, most: int, ledgers: Ledgers
    ) -> SuspectMessages:
        """The suspects if the micro-batch that ends here is withheld: begun often, never done.

        `batch` is what its offsets say; `most` failures are allowed to a message by itself.
        """
        group = SuspectGroup(failures, batch)
        if self.released is not None:
            group = replace(self.released, failures=self.released.failures + failures)
        there = {  # not those of trimmed ledgers
            key: part.of_ledgers(filter(ledgers[key[0]].get, part.ledger_ids))
            for key, part in group.messages.items()
        }
        group = replace(group, messages=_there(there))
        total = group.count(ledgers)
        if total > 1:
            parts = (_by_itself(each, most, ledgers) for each in _split(group, total, ledgers))
            return SuspectMessages(None, (*parts, *self.groups), self.dead_lettered)
        if total == 0:
            return self.committed()
        if group.failures <= most:
            return SuspectMessages(None, (group, *self.groups), self.dead_lettered)
        dead_lettered = dict(self.dead_lettered)
        for (topic_partition, _), part in group.messages.items():
            dead_lettered[topic_partition] = dead_lettered.get(topic_partition, NOTHING).union(part)
        return SuspectMessages(None, self.groups, dead_lettered, group.failures)

    def without(self, gone: Mapping[TopicPartition, PositionSet | None]) -> SuspectMessages:
        """The suspects without these messages, or (None) without a topic partition's."""

        def left(topic_partition: TopicPartition, part: PositionSet) -> PositionSet:
            less = gone.get(topic_partition, NOTHING)
            return NOTHING if less is None else part.difference(less)

        groups = (
            replace(one, messages=_there({k: left(k[0], m) for k, m in one.messages.items()}))
            for one in self.groups
        )
        dead_lettered = _there(
            {
                topic_partition: left(topic_partition, part)
                for topic_partition, part in self.dead_lettered.items()
            }
        )
        return replace(
            self,
            groups=tuple(each for each in groups if each.messages),
            dead_lettered=dead_lettered,
        )

    def to_json(self) -> bytes:
        """The bytes of the file."""
        return SUSPECTS_FORMAT.encode(
            {
                "released": None if self.released is None else self.released.to_json_value(),
                "groups": [group.to_json_value() for group in self.groups],
                "dead_lettered": [
                    [*topic_partition, _value(part)]
                    for topic_partition, part in sorted(self.dead_lettered.items())
                ],
                "failures": self.failures,
            }
        )

    @staticmethod
    def from_json(data: bytes, name: str = "") -> SuspectMessages:
        """Read `to_json`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        value = SUSPECTS_FORMAT.decode(data, name)
        try:
            released = value["released"]
            return SuspectMessages(
                None if released is None else SuspectGroup.from_json_value(released),
                tuple(SuspectGroup.from_json_value(each) for each in value["groups"]),
                {
                    TopicPartition(topic, p): _messages(part)
                    for topic, p, part in value["dead_lettered"]
                },
                value["failures"],
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise SUSPECTS_FORMAT.damaged(name, repr(error)) from error


def _split(group: SuspectGroup, total: int, ledgers: Ledgers) -> Iterator[SuspectGroup]:
    """Up to `PARTS` groups of about the same size, in order."""
    most = room = -(-total // PARTS)
    taken: dict[tuple[TopicPartition, int], PositionSet] = {}
    for key, part in sorted(group.messages.items()):
        rest, known = part, ledgers[key[0]]
        while rest:
            taken[key] = rest.prefix(room, known)
            room -= taken[key].count(known)
            rest = rest.difference(taken[key])
            if not room:
                yield SuspectGroup(group.failures, taken)
                taken, room = {}, most
    if taken:
        yield SuspectGroup(group.failures, taken)


def _by_itself(group: SuspectGroup, most: int, ledgers: Ledgers) -> SuspectGroup:
    """A message alone may fail once more: the failures until now may have had other reasons."""
    alone = group.count(ledgers) == 1
    return replace(group, failures=min(group.failures, max(most - 1, 0))) if alone else group


def _there(messages: Mapping[Key, PositionSet]) -> dict[Key, PositionSet]:
    """Without those that are empty."""
    return {key: part for key, part in messages.items() if part}


def _value(messages: PositionSet) -> Any:
    return Cursor(individually_deleted=messages).to_json_value()


def _messages(value: Any) -> PositionSet:
    return Cursor.from_json_value(value).individually_deleted
