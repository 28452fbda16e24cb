"""Messages that a consumer tries apart from all others, since a micro-batch with them never ends.

Invariants: values only; a micro-batch has either the messages of its two offsets, or one suspect
group, never both; when it fails once too often, all its messages are withheld: one alone is given
up after `most` failures, several are split, and each part is tried by itself, in order. So a
message that kills a query is found in a few restarts, and its neighbours are delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pulsar_spark.positions import cursor_format
from pulsar_spark.positions.ledger_info import LedgerList
from pulsar_spark.positions.position import EARLIEST
from pulsar_spark.positions.position_set import NOTHING, PositionSet
from pulsar_spark.records.stored_record import StoredFormat
from pulsar_spark.topic_name import TopicPartition

SUSPECTS_FORMAT: Final = StoredFormat(
    "A file of withheld messages",
    version=2,
    checked_since=2,
    fields=frozenset({"released", "groups", "buried", "failures"}),
    remedy="Restore it from a copy.",
)
PARTS: Final = 16
"""The parts of a failed group. A good trial takes a fraction of a second, a bad one a restart."""

Messages = Mapping[TopicPartition, Mapping[int, PositionSet]]
"""Topic partition -> attempt -> messages."""
Ledgers = Mapping[TopicPartition, LedgerList]


@dataclass(frozen=True, slots=True)
class SuspectGroup:
    """Messages that are tried together, and the number of micro-batches that failed with them."""

    failures: int
    messages: Messages

    def count(self, ledgers: Ledgers) -> int:
        return sum(part.count(ledgers[about]) for about, _, part in _parts(self.messages))

    def of(self, about: TopicPartition) -> PositionSet:
        return _union(self.messages.get(about, {}))

    def to_json_value(self) -> dict[str, Any]:
        messages = [[*about, attempt, _value(part)] for about, attempt, part in _sorted(self)]
        return {"failures": self.failures, "messages": messages}

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> SuspectGroup:
        messages: dict[TopicPartition, dict[int, PositionSet]] = {}
        for topic, partition, attempt, part in value["messages"]:
            about = TopicPartition(topic, partition)
            messages.setdefault(about, {})[attempt] = _messages(part)
        return SuspectGroup(value["failures"], messages)


@dataclass(frozen=True, slots=True)
class SuspectMessages:
    """The suspects behind one offset.

    `released` is the micro-batch that ends there; `groups` are to be tried, in order; `buried`
    are given up: to be dead letters.
    """

    released: SuspectGroup | None = None
    groups: tuple[SuspectGroup, ...] = ()
    buried: Mapping[TopicPartition, PositionSet] = field(default_factory=dict)
    failures: int = 0
    """The failures with which the latest of `buried` was given up."""

    @property
    def is_empty(self) -> bool:
        return not (self.released or self.groups or self.buried)

    def not_done(self, about: TopicPartition) -> PositionSet:
        """The partition's suspects: planned once, and not to be acknowledged."""
        result = self.buried.get(about, NOTHING)
        for group in self.groups:
            result = result.union(group.of(about))
        return result

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
        group = replace(group, messages=_present(group.messages, ledgers))
        total = group.count(ledgers)
        if total > 1:
            parts = (_by_itself(each, most, ledgers) for each in _split(group, total, ledgers))
            return SuspectMessages(None, (*parts, *self.groups), self.buried)
        if total == 0:
            return self.committed()
        if group.failures <= most:
            return SuspectMessages(None, (group, *self.groups), self.buried)
        buried = dict(self.buried)
        for about, _, part in _parts(group.messages):
            buried[about] = buried.get(about, NOTHING).union(part)
        return SuspectMessages(None, self.groups, buried, group.failures)

    def without(self, gone: Mapping[TopicPartition, PositionSet | None]) -> SuspectMessages:
        """The suspects without these messages, or (None) without a topic partition's."""
        groups = (replace(each, messages=_less(each.messages, gone)) for each in self.groups)
        buried = {}
        for about, part in self.buried.items():
            less = gone.get(about, NOTHING)
            left = NOTHING if less is None else part.difference(less)
            if left:
                buried[about] = left
        return replace(self, groups=tuple(each for each in groups if each.messages), buried=buried)

    def to_json(self) -> bytes:
        """The bytes of the file."""
        return SUSPECTS_FORMAT.encode(
            {
                "released": None if self.released is None else self.released.to_json_value(),
                "groups": [group.to_json_value() for group in self.groups],
                "buried": [[*about, _value(part)] for about, part in sorted(self.buried.items())],
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
                {TopicPartition(topic, p): _messages(part) for topic, p, part in value["buried"]},
                value["failures"],
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise SUSPECTS_FORMAT.damaged(name, repr(error)) from error


def _split(group: SuspectGroup, total: int, ledgers: Ledgers) -> Iterator[SuspectGroup]:
    """Up to `PARTS` groups of about the same size, in order."""
    most = -(-total // PARTS)
    taken: dict[TopicPartition, dict[int, PositionSet]] = {}
    room = most
    for about, attempt, part in _sorted(group):
        rest = part
        while rest:
            first = rest.prefix(room, ledgers[about])
            taken.setdefault(about, {})[attempt] = first
            room -= first.count(ledgers[about])
            rest = rest.difference(first)
            if not room:
                yield SuspectGroup(group.failures, taken)
                taken, room = {}, most
    if taken:
        yield SuspectGroup(group.failures, taken)


def _by_itself(group: SuspectGroup, most: int, ledgers: Ledgers) -> SuspectGroup:
    """A message alone may fail once more: the failures until now may have had other reasons."""
    alone = group.count(ledgers) == 1
    return replace(group, failures=min(group.failures, max(most - 1, 0))) if alone else group


def _parts(messages: Messages) -> Iterator[tuple[TopicPartition, int, PositionSet]]:
    for about, attempts in messages.items():
        for attempt, part in attempts.items():
            yield about, attempt, part


def _sorted(group: SuspectGroup) -> list[tuple[TopicPartition, int, PositionSet]]:
    return sorted(_parts(group.messages), key=lambda each: each[:2])


def _less(messages: Messages, gone: Mapping[TopicPartition, PositionSet | None]) -> Messages:
    left: dict[TopicPartition, dict[int, PositionSet]] = {}
    for about, attempt, part in _parts(messages):
        less = gone.get(about, NOTHING)
        rest = NOTHING if less is None else part.difference(less)
        if rest:
            left.setdefault(about, {})[attempt] = rest
    return left


def _present(messages: Messages, ledgers: Ledgers) -> Messages:
    """The messages without those of trimmed ledgers."""
    left: dict[TopicPartition, dict[int, PositionSet]] = {}
    for about, attempt, part in _parts(messages):
        there = [each for each in part.ledger_ids if ledgers[about].get(each) is not None]
        whole = {each: part.whole_entries(each) for each in there}
        rest = PositionSet(whole, {each: part.partial_entries(each) for each in there})
        if rest:
            left.setdefault(about, {})[attempt] = rest
    return left


def _union(attempts: Mapping[int, PositionSet]) -> PositionSet:
    result = NOTHING
    for part in attempts.values():
        result = result.union(part)
    return result


def _value(messages: PositionSet) -> Any:
    return cursor_format.to_json_value(EARLIEST, messages)


def _messages(value: Any) -> PositionSet:
    return cursor_format.from_json_value(value)[1]
