"""A reader's place: a mark-delete position, and the messages it has finished beyond that.

Invariants: immutable; `individually_deleted` holds nothing at or before the mark-delete
position, and not the entry right behind it in the same ledger, which would have moved it; a
cursor only grows under its operations, and is no more than the set of messages that it holds.
Follows Pulsar's `ManagedCursorImpl`, where an acknowledgement is a union, and where a
micro-batch is a difference of two cursors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap

from pulsar_spark.positions import cursor_format
from pulsar_spark.positions.ledger_info import LedgerList
from pulsar_spark.positions.position import EARLIEST, Position
from pulsar_spark.positions.position_set import MAX_ENTRY_ID, PositionSet


@dataclass(frozen=True, slots=True)
class Cursor:
    """All messages up to the mark-delete position, and `individually_deleted` after it."""

    mark_delete_position: Position = EARLIEST
    individually_deleted: PositionSet = field(default_factory=PositionSet)

    def __post_init__(self) -> None:
        position, deleted = _advance_in_ledger(
            Position(*self.mark_delete_position), self.individually_deleted
        )
        object.__setattr__(self, "mark_delete_position", position)
        object.__setattr__(self, "individually_deleted", deleted)

    # -- acknowledging ---------------------------------------------------------------------------

    def acknowledge(self, messages: PositionSet) -> Cursor:
        """The cursor with these messages as well."""
        return Cursor(self.mark_delete_position, self.individually_deleted.union(messages))

    def acknowledge_cumulative(
        self, position: Position, batch_index: int = -1, batch_size: int = 0
    ) -> Cursor:
        """The cursor with all up to and including that message; acknowledgements after it stay.

        Below the mark-delete position it changes nothing.
        """
        if batch_index < 0 or batch_index + 1 >= batch_size:
            return self.floor(position)
        part = PositionSet.of_batch(position, batch_size, (1 << batch_index + 1) - 1)
        return self.floor(position.previous).acknowledge(part)

    def floor(self, position: Position) -> Cursor:
        """The cursor with its mark-delete position at that one, or beyond where it is already."""
        if position <= self.mark_delete_position:
            return self
        return Cursor(position, self.individually_deleted)

    # -- algebra -----------------------------------------------------------------------------

    def union(self, other: Cursor) -> Cursor:
        """The messages of both cursors."""
        return Cursor(
            max(self.mark_delete_position, other.mark_delete_position),
            self.individually_deleted.union(other.individually_deleted),
        )

    def difference(self, other: Cursor, ledgers: LedgerList) -> PositionSet:
        """Its messages that the other lacks: the micro-batch from the other to this one.

        `ledgers` must have those between the two mark-delete positions; one that they lack there
        was trimmed, and is not in the result.
        """
        return (
            PositionSet.between(ledgers, other.mark_delete_position, self.mark_delete_position)
            .union(self.individually_deleted.after(other.mark_delete_position))
            .difference(other.individually_deleted)
        )

    def not_acknowledged(self, messages: PositionSet) -> PositionSet:
        """The messages without its own; the same object if it has none of them."""
        if not messages:
            return messages
        rest = messages
        if messages.ledger_ids[0] <= self.mark_delete_position.ledger_id:
            rest = messages.after(self.mark_delete_position)
        if rest and self.individually_deleted:
            rest = rest.difference(self.individually_deleted)
        return rest

    def advance(self, ledgers: LedgerList) -> Cursor:
        """The same messages, with the mark-delete position as far as it goes.

        It moves over deleted entries, and from the last entry of a ledger into the next ledger
        of the partition once that one's first entry is deleted; until then it stays. A position
        before a ledger's first entry becomes the last entry of the ledger before it, if there is
        one. Ledgers that were trimmed lie below it or are not passed.
        """
        cursor = self
        while True:
            position = _last_entry_before(cursor.mark_delete_position, ledgers)
            following = _first_entry_after(position, ledgers)
            if following is None or not cursor.individually_deleted.contains(following):
                if position == cursor.mark_delete_position:
                    return cursor
                return Cursor(position, cursor.individually_deleted)
            cursor = Cursor(following, cursor.individually_deleted)

    # -- looking -----------------------------------------------------------------------------

    def contains(self, position: Position, batch_index: int | None = None) -> bool:
        """Whether it holds the whole entry, or the message of that batch index."""
        return position <= self.mark_delete_position or self.individually_deleted.contains(
            position, batch_index
        )

    def backlog(self, ledgers: LedgerList) -> int:
        """How many of the messages in `ledgers` it does not hold; costs the ledgers after it."""
        return self.unread(ledgers).count(ledgers)

    def unread(self, ledgers: LedgerList) -> PositionSet:
        """The messages in `ledgers` that it does not hold."""
        if not len(ledgers):
            return PositionSet()
        rest = PositionSet.between(ledgers, self.mark_delete_position, ledgers[-1].last)
        return rest.difference(self.individually_deleted)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.individually_deleted.check()
        below = self.individually_deleted.up_to(self.mark_delete_position)
        assert below.is_empty, "something lies at or before the mark-delete position"
        assert not self.individually_deleted.contains(self.mark_delete_position.next), "can move"

    # -- as bytes and JSON -------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Its stored form; see `cursor_format`."""
        return cursor_format.to_bytes(self.mark_delete_position, self.individually_deleted)

    @staticmethod
    def from_bytes(data: bytes) -> Cursor:
        """Read `to_bytes`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        return Cursor(*cursor_format.from_bytes(data))

    def to_json_value(self) -> dict[str, Any]:
        """Its JSON, for a place inside other JSON."""
        return cursor_format.to_json_value(self.mark_delete_position, self.individually_deleted)

    @staticmethod
    def from_json_value(value: object) -> Cursor:
        """Read `to_json_value`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        return Cursor(*cursor_format.from_json_value(value))

    def __str__(self) -> str:
        return f"{self.mark_delete_position} and {self.individually_deleted}"


def last_of_run(entries: BitMap, first: int) -> int:
    """The last of the unbroken run of entries that starts at `first`; first - 1 if none does."""
    if not entries or not 0 <= first <= MAX_ENTRY_ID or first not in entries:
        return first - 1
    low, high = first, entries.max()
    while low < high:
        middle = (low + high + 1) // 2
        if entries.contains_range(first, middle + 1):
            low = middle
        else:
            high = middle - 1
    return low


def _advance_in_ledger(position: Position, deleted: PositionSet) -> tuple[Position, PositionSet]:
    """Move over the deleted entries that follow in the same ledger, and drop them from the set.

    >>> _advance_in_ledger(Position(3, 0), PositionSet.of([(3, 1), (3, 2), (3, 4)]))
    (Position(ledger_id=3, entry_id=2), PositionSet(3:4))
    """
    if not deleted.is_empty:
        if min(deleted.ledger_ids) <= position.ledger_id:
            deleted = deleted.after(position)
        entries = deleted.whole_entries(position.ledger_id)
        last = last_of_run(entries, position.entry_id + 1)
        if last > position.entry_id:
            position = Position(position.ledger_id, last)
            deleted = deleted.after(position)
    return position, deleted


def _last_entry_before(position: Position, ledgers: LedgerList) -> Position:
    """The position; if it is before a ledger's first entry, the last entry before that."""
    earlier = ledgers.last_before(position.ledger_id) if position.entry_id < 0 else None
    return position if earlier is None else earlier.last


def _first_entry_after(position: Position, ledgers: LedgerList) -> Position | None:
    """The next entry that exists."""
    ledger = ledgers.get(position.ledger_id)
    if ledger is not None and position < ledger.last:
        return position.next
    following = ledgers.first_after(position.ledger_id)
    return None if following is None else Position(following.ledger_id, 0)
