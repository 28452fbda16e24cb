"""What the cursor cases run: the one place that names the code under test.

`cursors` reads a recorded case, and compares; it knows a cursor by this class alone. An
acknowledgement that is refused raises `InvalidCursorPositionError`, and changes nothing.
"""

from __future__ import annotations

from typing import Any

from pulsar_spark.positions.ledger_info import LedgerList
from pulsar_spark.positions.position import Position
from pulsar_spark.subscriptions.managed_cursor import ManagedCursor, last_position


class CursorSubject:
    """A durable subscription's cursor on one partition."""

    def __init__(self, ledgers: LedgerList, *, latest: bool) -> None:
        self._cursor = ManagedCursor.open(ledgers, latest=latest)

    @property
    def mark_delete(self) -> Position:
        return self._cursor.cursor.mark_delete_position

    def published(self, ledgers: LedgerList) -> None:
        """Messages were published, or ledgers trimmed."""
        self._cursor = self._cursor.with_ledgers(ledgers)

    def reopen(self, ledgers: LedgerList) -> None:
        self._cursor = self._cursor.reopen(ledgers)

    def acknowledge(self, positions: list[Position]) -> None:
        self._cursor = self._cursor.acknowledge(positions)

    def acknowledge_batch(self, position: Position, words: list[int]) -> None:
        self._cursor = self._cursor.acknowledge_batch(position, words)

    def acknowledge_cumulative(self, position: Position, words: list[int] | None = None) -> None:
        self._cursor = self._cursor.acknowledge_cumulative(position, words)

    def clear_backlog(self) -> None:
        """Acknowledge all that was published; nothing to do where all was."""
        last = last_position(self._cursor.ledgers)
        self.acknowledge_cumulative(max(last, self.mark_delete))

    def skip(self, count: int, *, include_deleted: bool) -> None:
        self._cursor = self._cursor.skip(count, include_deleted=include_deleted)

    def read(self, count: int) -> list[Position]:
        self._cursor, found = self._cursor.read(count)
        return found

    def rewind(self) -> None:
        self._cursor = self._cursor.rewind()

    def replay(self, positions: list[Position]) -> tuple[list[Position], list[Position]]:
        """(those already acknowledged, those to read again), each in order."""
        return self._cursor.replay(positions)

    def seek(self, position: Position, words: list[int] | None = None) -> None:
        self._cursor = self._cursor.seek(position, words)

    def is_deleted(self, position: Position) -> bool:
        return self._cursor.is_deleted(position)

    def check(self) -> None:
        """Its own invariants."""
        self._cursor.cursor.check()

    def state(self) -> dict[str, Any]:
        """As the vectors record it."""
        cursor = self._cursor
        persistent = cursor.persistent_mark_delete_position
        ranges = cursor.individually_deleted
        return {
            "mark_delete": [*self.mark_delete],
            "persistent_mark_delete": None if persistent is None else [*persistent],
            "read_position": [*cursor.read_position],
            "individually_deleted": str(ranges),
            "ranges_open_closed": [[*part.lower, *part.upper] for part in ranges],
            "non_contiguous_ranges": len(ranges),
            "backlog_precise": cursor.backlog,
            "backlog_imprecise": cursor.backlog,  # Pulsar's is a counter that may drift
            "entries_ahead_of_read": cursor.entries_ahead_of_read,
            "has_more": cursor.has_more_entries,
            "batch_ack_sets": {str(k): v for k, v in cursor.batch_ack_sets.items()},
        }
