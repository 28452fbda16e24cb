"""Messages that fall due: when, and which.

Invariants: immutable; a message is due at one instant only, the last one it was given; nothing is
due before its instant; at most MAX_INSTANTS instants are kept, and where there would be more the
two that lie closest are merged at the later one. Stands for Pulsar's `NegativeAcksTracker` and
`UnAckedMessageTracker`, whose instants are rounded down, and so may come early.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.position_map import PositionMap
from pulsar_spark.positions.position_set import NOTHING, PositionSet

MAX_INSTANTS: Final = 1024


@dataclass(frozen=True, slots=True)
class DueMessages:
    """Instant in milliseconds -> the messages due then."""

    instants: PositionMap = field(default_factory=PositionMap)

    def __bool__(self) -> bool:
        return bool(self.instants)

    @property
    def next_due_ms(self) -> int | None:
        return min(self.instants, default=None)

    @property
    def messages(self) -> PositionSet:
        """All of them."""
        return self.instants.messages

    def add(self, due_ms: int, messages: PositionSet) -> DueMessages:
        """With these messages due then, and at no other instant."""
        instants = self.instants.put(due_ms, messages)
        while len(instants) > MAX_INSTANTS:
            ordered = list(instants)
            place = min(range(len(ordered) - 1), key=lambda i: ordered[i + 1] - ordered[i])
            instants = instants.put(ordered[place + 1], instants[ordered[place]])
        return DueMessages(instants)

    def due(self, now_ms: int) -> tuple[PositionSet, DueMessages]:
        """(what is due by now, the rest)."""
        if not self.instants or min(self.instants) > now_ms:
            return NOTHING, self
        later = {at: held for at, held in self.instants.items() if at > now_ms}
        due = (held for at, held in self.instants.items() if at <= now_ms)
        return PositionSet.union_of(due), DueMessages(PositionMap(later))

    def without(self, messages: PositionSet) -> DueMessages:
        """Without these messages."""
        return DueMessages(self.instants.without(messages)) if self.instants else self

    def not_acknowledged(self, cursor: Cursor) -> DueMessages:
        """Without what the cursor holds."""
        return DueMessages(self.instants.not_acknowledged(cursor)) if self.instants else self

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.instants.check()
        assert len(self.instants) <= MAX_INSTANTS, "too many instants"
