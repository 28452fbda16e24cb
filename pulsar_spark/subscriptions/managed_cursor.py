"""A subscription's cursor over a partition's ledgers: what to read next, and what is done.

Invariants: immutable; the mark-delete position is as far as it goes; the read position lies after
it, except right after a seek to the earliest message, which stands before the first entry; a
refused command changes nothing; all that is acknowledged survives a reopening, since there is
nothing besides this value. Follows Pulsar's `ManagedCursorImpl` on one `ManagedLedgerImpl`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pulsar_spark.errors import InvalidCursorPositionError
from pulsar_spark.positions import ack_set
from pulsar_spark.positions.cursor import Cursor, last_of_run
from pulsar_spark.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.positions.range_set import RangeSet


@dataclass(frozen=True, slots=True)
class ManagedCursor:
    """A cursor on `ledgers`, of which the last one may be empty: it is written to next."""

    ledgers: LedgerList
    cursor: Cursor
    read_position: Position
    persistent_mark_delete_position: Position | None = None
    """The mark-delete position, once it was acknowledged to; None since creation or a seek."""

    @staticmethod
    def open(ledgers: LedgerList, *, latest: bool = False) -> ManagedCursor:
        """A new subscription, before the first entry or behind the last."""
        position = last_position(ledgers) if latest else Position(ledgers[0].ledger_id, -1)
        return ManagedCursor(ledgers, Cursor(position), next_valid_position(ledgers, position))

    # -- acknowledging ---------------------------------------------------------------------------

    def acknowledge(self, positions: Iterable[Position]) -> ManagedCursor:
        """Whole entries. InvalidCursorPositionError if one lies beyond the last entry."""
        wanted = list(positions)
        for position in wanted:
            self._check_not_beyond_end(position)
        mark_delete = self.cursor.mark_delete_position
        return self._delete(PositionSet.of(p for p in wanted if p > mark_delete and p[1] >= 0))

    def acknowledge_batch(self, position: Position, words: list[int]) -> ManagedCursor:
        """Of one entry, the batch indexes that `words`, an ack_set, no longer has."""
        self._check_not_beyond_end(position)
        return self._delete(self._acknowledged_by(position, words))

    def acknowledge_cumulative(
        self, position: Position, words: list[int] | None = None
    ) -> ManagedCursor:
        """All up to an entry; with `words`, only the indexes of it that they no longer have.

        InvalidCursorPositionError if that is below the mark-delete position, or beyond the end.
        """
        target, part = position, PositionSet()
        if words is not None and ack_set.from_words(words):
            self._check_not_beyond_end(position)
            target = previous_position(self.ledgers, position)
            part = self._acknowledged_by(position, words)
        current = self.cursor.mark_delete_position
        if target.entry_id < 0 and target > current >= last_position(self.ledgers):
            target = current  # before a ledger that is still empty, once all is consumed
        self._check_not_beyond_end(target)
        if target < current:
            raise InvalidCursorPositionError(
                "Mark deleting an already mark-deleted position. Current mark-delete: "
                f"{current} -- attempted mark delete: {target}"
            )
        return self._moved(self.cursor.floor(target).acknowledge(part), persist=True)

    def skip(self, entries: int, *, include_deleted: bool = True) -> ManagedCursor:
        """Acknowledge the next entries; those already deleted count, or they do not."""
        position = self.cursor.mark_delete_position
        for _ in range(entries):
            following = self._next_entry(position)
            while following and not include_deleted and self.is_deleted(following):
                following = self._next_entry(following)
            if following is None:
                break
            position = following
        return self.acknowledge_cumulative(position)

    # -- reading -----------------------------------------------------------------------------

    def read(self, entries: int) -> tuple[ManagedCursor, list[Position]]:
        """The next entries that are not deleted, at most so many.

        Reads stretch by stretch, each inside one ledger. Deleted entries with which a later
        ledger begins are stepped over; others are read, and left out.
        """
        found: list[Position] = []
        position = self.read_position
        start = self._entry_at_or_after(position)
        while start is not None and len(found) < entries:
            if position != self.read_position and not start.entry_id and self.is_deleted(start):
                held = self.cursor.individually_deleted.whole_entries(start.ledger_id)
                last = Position(start.ledger_id, last_of_run(held, start.entry_id))
                position = next_valid_position(self.ledgers, last)
            else:
                stop = min(start.entry_id + entries - len(found), self._entries_of(start))
                stretch = (Position(start.ledger_id, e) for e in range(start.entry_id, stop))
                found += [entry for entry in stretch if not self.is_deleted(entry)]
                position = Position(start.ledger_id, stop)
            start = self._entry_at_or_after(position)
        return replace(self, read_position=position), found

    def rewind(self) -> ManagedCursor:
        """Read again from the first message that is not acknowledged."""
        position = next_valid_position(self.ledgers, self.cursor.mark_delete_position)
        return replace(self, read_position=position)

    def replay(self, positions: Iterable[Position]) -> tuple[list[Position], list[Position]]:
        """(those already acknowledged, those to read again), each in order."""
        wanted = sorted(set(positions))
        return (
            [position for position in wanted if self.is_deleted(position)],
            [position for position in wanted if not self.is_deleted(position)],
        )

    def seek(self, position: Position, words: list[int] | None = None) -> ManagedCursor:
        """Make a message the next one; acknowledgements made so far are forgotten.

        `words`, an ack_set, hides batch indexes of that entry. A position that there is not
        gives the next one that there is.
        """
        part = PositionSet() if words is None else self._acknowledged_by(position, words)
        if position == EARLIEST:
            position = Position(self.ledgers[0].ledger_id, -1)
        elif position == LATEST:
            position = next_valid_position(self.ledgers, last_position(self.ledgers))
        elif not is_valid_position(self.ledgers, position):
            position = next_valid_position(self.ledgers, position)
        mark_delete = previous_position(self.ledgers, position)
        return ManagedCursor(self.ledgers, Cursor(mark_delete, part), position)

    def with_ledgers(self, ledgers: LedgerList) -> ManagedCursor:
        """After messages were published, or ledgers trimmed."""
        return replace(self, ledgers=ledgers)

    def reopen(self, ledgers: LedgerList) -> ManagedCursor:
        """After a restart, however it came about."""
        mark_delete = self.cursor.mark_delete_position
        return replace(
            self,
            ledgers=ledgers,
            read_position=next_valid_position(ledgers, mark_delete),
            persistent_mark_delete_position=mark_delete,
        )

    # -- looking -----------------------------------------------------------------------------

    def is_deleted(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return self.cursor.contains(position)

    @property
    def individually_deleted(self) -> RangeSet:
        return RangeSet(self.cursor.individually_deleted)

    @property
    def batch_ack_sets(self) -> dict[Position, list[int]]:
        """What is left, as an ack_set, of each entry that is acknowledged in part."""
        return {
            position: ack_set.to_words(part ^ (1 << part.bit_length()) - 1)
            for position, part in self.cursor.individually_deleted.entries()
            if part is not None
        }

    @property
    def backlog(self) -> int:
        """Entries that are not wholly acknowledged."""
        return self._entries_left(self.cursor.mark_delete_position)

    @property
    def entries_ahead_of_read(self) -> int:
        """Entries still to be read."""
        return self._entries_left(self.read_position.previous)

    @property
    def has_more_entries(self) -> bool:
        """Whether something was published at or after the read position."""
        return bool(self.ledgers) and self.read_position <= last_position(self.ledgers)

    # -- inside ------------------------------------------------------------------------------

    def _delete(self, messages: PositionSet) -> ManagedCursor:
        cursor = self.cursor.acknowledge(messages)
        moved = cursor.mark_delete_position != self.cursor.mark_delete_position
        whole = cursor.individually_deleted.whole_entry_count()
        return self._moved(cursor, persist=moved or whole > 0)

    def _moved(self, cursor: Cursor, *, persist: bool) -> ManagedCursor:
        cursor = cursor.advance(self.ledgers)
        mark_delete = cursor.mark_delete_position
        read_position, persisted = self.read_position, self.persistent_mark_delete_position
        if read_position <= mark_delete:
            read_position = next_valid_position(self.ledgers, mark_delete)
        if persist:
            persisted = mark_delete
        return ManagedCursor(self.ledgers, cursor, read_position, persisted)

    def _acknowledged_by(self, position: Position, words: list[int]) -> PositionSet:
        """The messages of an entry that an ack_set no longer has."""
        ledger = self.ledgers.get(position.ledger_id)
        if ledger is None or not 0 <= position.entry_id < ledger.entries:
            return PositionSet()  # trimmed, so below the mark-delete position
        size = ledger.batch_sizes.size_of(position.entry_id)
        acknowledged = ack_set.full(size) & ~ack_set.from_words(words)
        return PositionSet.of_batch(position, size, acknowledged)

    def _check_not_beyond_end(self, position: Position) -> None:
        if position > last_position(self.ledgers):
            raise InvalidCursorPositionError(
                f"Invalid mark deleted position: {position} lies beyond the last entry, "
                f"{last_position(self.ledgers)}"
            )

    def _entries_left(self, after: Position) -> int:
        rest = PositionSet.between(self.ledgers, after, last_position(self.ledgers))
        left = rest.difference(self.cursor.individually_deleted)
        return left.whole_entry_count() + left.partial_entry_count()

    def _entries_of(self, position: Position) -> int:
        ledger = self.ledgers.get(position.ledger_id)
        return 0 if ledger is None else ledger.entries

    def _entry_at_or_after(self, position: Position) -> Position | None:
        return self._next_entry(Position(position.ledger_id, position.entry_id - 1))

    def _next_entry(self, position: Position) -> Position | None:
        ledger = self.ledgers.get(position.ledger_id)
        if ledger is not None and position.entry_id + 1 < ledger.entries:
            return position.next if position.entry_id >= -1 else Position(ledger.ledger_id, 0)
        following = _next_with_entries(self.ledgers, position.ledger_id)
        return None if following is None else Position(following.ledger_id, 0)


def last_position(ledgers: LedgerList) -> Position:
    """The last entry; before the first ledger's first if there is none."""
    for ledger in reversed(ledgers):
        if ledger.entries:
            return Position(ledger.ledger_id, ledger.entries - 1)
    return Position(ledgers[0].ledger_id, -1)


def previous_position(ledgers: LedgerList, position: Position) -> Position:
    """The entry before; before a partition's first entry, entry -1 of a ledger."""
    if position.entry_id > 0:
        return Position(position.ledger_id, position.entry_id - 1)
    ledger = ledgers.last_before(position.ledger_id)
    while ledger is not None:
        if ledger.entries:
            return Position(ledger.ledger_id, ledger.entries - 1)
        ledger = ledgers.last_before(ledger.ledger_id)
    earliest = ledgers[0].ledger_id
    return Position(min(earliest, position.ledger_id), -1)


def is_valid_position(ledgers: LedgerList, position: Position) -> bool:
    """Whether an entry is there, or comes there next."""
    ledger = ledgers.get(position.ledger_id)
    if ledger is None:
        return position.ledger_id > _newest(ledgers).ledger_id
    is_newest = position.ledger_id == _newest(ledgers).ledger_id
    return 0 <= position.entry_id < ledger.entries + is_newest


def next_valid_position(ledgers: LedgerList, position: Position) -> Position:
    """The next position where an entry is, or will be."""
    candidate = position.next
    while not is_valid_position(ledgers, candidate):
        following = ledgers.first_after(candidate.ledger_id)
        if following is None:
            newest = _newest(ledgers)
            if not newest.entries:
                return Position(newest.ledger_id, 0)
            return last_position(ledgers).next
        candidate = Position(following.ledger_id, 0)
    return candidate


def _newest(ledgers: LedgerList) -> LedgerInfo:
    newest: LedgerInfo = ledgers[-1]
    return newest


def _next_with_entries(ledgers: LedgerList, ledger_id: int) -> LedgerInfo | None:
    ledger = ledgers.first_after(ledger_id)
    while ledger is not None and not ledger.entries:
        ledger = ledgers.first_after(ledger.ledger_id)
    return ledger
