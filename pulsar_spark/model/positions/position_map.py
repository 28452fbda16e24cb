"""A map from messages of one topic partition to numbers: attempts, counts, instants.

Invariants: immutable; each message has one number at most; a number without messages is not in
the map. As a Mapping it goes from the number to the set of messages that have it: few numbers and
many messages stay small. Pulsar keeps such numbers a message each (`InMemoryRedeliveryTracker`,
`NegativeAcksTracker`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet


class PositionMap(Mapping[int, PositionSet]):
    """Number -> messages.

    >>> attempts = PositionMap().put(1, PositionSet.of([(0, 0), (0, 1)]))
    >>> attempts.put(2, PositionSet.of([(0, 1)]))
    PositionMap(1: PositionSet(0:0), 2: PositionSet(0:1))
    """

    __slots__ = ("_messages", "_sets")

    def __init__(
        self, sets: Mapping[int, PositionSet] | None = None, messages: PositionSet | None = None
    ) -> None:
        """From disjoint sets; where their union is given too, none of them is empty."""
        self._sets = dict(sets or {})
        self._messages = messages
        if messages is None:
            self._sets = {number: held for number, held in self._sets.items() if held}

    def __getitem__(self, number: int) -> PositionSet:
        return self._sets[number]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._sets))

    def __len__(self) -> int:
        return len(self._sets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._sets == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PositionMap({', '.join(f'{number}: {self[number]!r}' for number in self)})"

    def put(self, number: int, messages: PositionSet) -> PositionMap:
        """The map with that number for these messages, whatever they had before."""
        if not messages:
            return self
        if self.messages.intersection(messages):
            return self.without(messages).put(number, messages)
        sets = self._sets | {number: self._sets.get(number, NOTHING).union(messages)}
        return PositionMap(sets, self.messages.union(messages))

    def raised(self, messages: PositionSet) -> PositionMap:
        """The map with one more for each of these messages; those without a number get 1."""
        result = self
        for number, part in self.parts(messages, 0):
            result = result.put(number + 1, part)
        return result

    def without(self, messages: PositionSet) -> PositionMap:
        """The map without these messages."""
        if not self._sets or not messages:
            return self
        return PositionMap({each: held.difference(messages) for each, held in self._sets.items()})

    def split(self, number: int) -> tuple[PositionSet, PositionMap]:
        """(the messages whose number is that or lower, the map without them)."""
        if min(self._sets, default=number + 1) > number:
            return NOTHING, self
        first = (held for each, held in self._sets.items() if each <= number)
        rest = {each: held for each, held in self._sets.items() if each > number}
        return PositionSet.union_of(first), PositionMap(rest)

    def coarsened(self, most: int) -> PositionMap:
        """The map with so many numbers at most: the two that lie closest become the higher one."""
        sets = dict(self._sets)
        while len(sets) > most:
            low, high = min(pairwise(sorted(sets)), key=lambda pair: pair[1] - pair[0])
            sets[high] = sets[high].union(sets.pop(low))
        return self if len(sets) == len(self) else PositionMap(sets, self._messages)

    def after(self, position: Position) -> PositionMap:
        """The map without messages at or before that position."""
        return PositionMap({each: held.after(position) for each, held in self._sets.items()})

    def not_acknowledged(self, cursor: Cursor) -> PositionMap:
        """The map without messages that the cursor holds."""
        return PositionMap({n: cursor.not_acknowledged(held) for n, held in self._sets.items()})

    @property
    def messages(self) -> PositionSet:
        """All messages that have a number."""
        if self._messages is None:
            self._messages = PositionSet.union_of(self._sets.values())
        return self._messages

    def of(self, messages: PositionSet) -> PositionMap:
        """The map of these messages alone."""
        return PositionMap({n: held.intersection(messages) for n, held in self._sets.items()})

    def parts(self, messages: PositionSet, default: int) -> Iterator[tuple[int, PositionSet]]:
        """(number, those of the messages that have it), ascending; others have `default`."""
        found = dict(self.of(messages))
        rest = messages.difference(PositionSet.union_of(found.values())) if found else messages
        if rest:
            found[default] = found.get(default, NOTHING).union(rest)
        yield from sorted(found.items())

    def at_least(self, number: int) -> PositionSet:
        """The messages whose number is that or higher."""
        return PositionSet.union_of(held for each, held in self._sets.items() if each >= number)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        seen = NOTHING
        for number, held in self._sets.items():
            assert held, f"{number} has no messages"
            assert not seen.intersection(held), "a message has two numbers"
            seen = seen.union(held)
        assert seen == self.messages, "the union is not that of the sets"
