"""Messages that fall due: when, and which.

Invariants: immutable; a message is due at one instant only, the last one it was given; nothing is
due before its instant; at most MAX_INSTANTS instants are kept, and where there would be more the
two that lie closest are merged at the later one. Stands for Pulsar's `NegativeAcksTracker` and
`UnAckedMessageTracker`, whose instants are rounded down, and so may come early.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.position_set import PositionSet

MAX_INSTANTS: Final = 1024
NOTHING: Final = PositionSet()


@dataclass(frozen=True, slots=True)
class DueMessages:
    """Instant in milliseconds -> the messages due then."""

    instants: Mapping[int, PositionSet] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.instants)

    @property
    def next_due_ms(self) -> int | None:
        return min(self.instants, default=None)

    @property
    def messages(self) -> PositionSet:
        """All of them."""
        result = NOTHING
        for messages in self.instants.values():
            result = result.union(messages) if result else messages
        return result

    def add(self, due_ms: int, messages: PositionSet) -> DueMessages:
        """With these messages due then, and at no other instant."""
        if not messages:
            return self
        instants = dict(self.without(messages).instants)
        instants[due_ms] = instants.get(due_ms, NOTHING).union(messages)
        while len(instants) > MAX_INSTANTS:
            _merge_closest(instants)
        return DueMessages(instants)

    def due(self, now_ms: int) -> tuple[PositionSet, DueMessages]:
        """(what is due by now, the rest)."""
        result = NOTHING
        later = {}
        for instant, messages in self.instants.items():
            if instant <= now_ms:
                result = result.union(messages)
            else:
                later[instant] = messages
        return result, (self if len(later) == len(self.instants) else DueMessages(later))

    def without(self, messages: PositionSet) -> DueMessages:
        """Without these messages."""
        if not self.instants or not messages:
            return self
        left = {due: held.difference(messages) for due, held in self.instants.items()}
        return DueMessages({due: held for due, held in left.items() if held})

    def not_acknowledged(self, cursor: Cursor) -> DueMessages:
        """Without what the cursor holds."""
        if not self.instants:
            return self
        left = {due: not_acknowledged(held, cursor) for due, held in self.instants.items()}
        return DueMessages({due: held for due, held in left.items() if held})

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        seen = NOTHING
        for messages in self.instants.values():
            assert messages, "an instant without messages"
            assert not seen.intersection(messages), "a message is due twice"
            seen = seen.union(messages)
        assert len(self.instants) <= MAX_INSTANTS, "too many instants"


def nothing() -> PositionSet:
    """The empty set, as a default."""
    return NOTHING


def not_acknowledged(messages: PositionSet, cursor: Cursor) -> PositionSet:
    """What of these messages the cursor does not hold; the same object if it holds none."""
    if messages.is_empty:
        return messages
    position = cursor.mark_delete_position
    rest = messages
    if messages.ledger_ids[0] <= position.ledger_id:
        rest = messages.after(position)
    if rest and cursor.individually_deleted:
        rest = rest.difference(cursor.individually_deleted)
    return rest


def _merge_closest(instants: dict[int, PositionSet]) -> None:
    ordered = sorted(instants)
    place = min(range(len(ordered) - 1), key=lambda i: ordered[i + 1] - ordered[i])
    earlier, later = ordered[place], ordered[place + 1]
    instants[later] = instants.pop(earlier).union(instants[later])
