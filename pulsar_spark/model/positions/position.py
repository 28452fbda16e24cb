"""The place of an entry in a topic partition.

Invariants: positions sort by ledger, then entry; entry id -1 stands before a ledger's first entry.
Follows Pulsar's `Position` and `PositionFactory`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_LONG: Final = 2**63 - 1


class Position(NamedTuple):
    """(ledger, entry). A tuple, for there are millions and they are sorted."""

    ledger_id: int
    entry_id: int

    @staticmethod
    def parse(text: str) -> Position:
        """Read `ledger:entry`. ValueError for any other text."""
        ledger_id, separator, entry_id = text.partition(":")
        if not separator:
            raise ValueError(f"{text!r} is no position: it should be ledger:entry")
        return Position(int(ledger_id), int(entry_id))

    @property
    def next(self) -> Position:
        """The next entry of the same ledger, whether it exists or not."""
        return Position(self.ledger_id, self.entry_id + 1)

    @property
    def previous(self) -> Position:
        """The entry before it in the same ledger; -1 before the first, and no further."""
        return Position(self.ledger_id, max(self.entry_id - 1, -1))

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(-1, -1)
LATEST: Final = Position(MAX_LONG, MAX_LONG)
