"""The ledgers of a recorded case: how a managed ledger fills, rolls over, reopens and trims them.

Numbers are those of the recorder, so that positions can be compared. When a ledger is trimmed is
Pulsar's own affair, a background job: the record says which are gone, and here it is held that
each of them was consumed, closed, and that none is left out.
"""

from __future__ import annotations

from typing import Any

from pulsar_spark.model.positions.position import Position

FIRST_LEDGER_ID = 3


class RecordedLedgers:
    """`sizes` are the batch sizes of each ledger's entries; the last one is written to next."""

    def __init__(self, max_entries: int, steps: list[dict[str, Any]]) -> None:
        self.max_entries = max_entries
        self.batch_sizes = _batch_sizes(steps)
        self.next_id = FIRST_LEDGER_ID
        self.sizes: dict[int, list[int]] = {}
        self.ever: dict[int, list[int]] = {}
        """As `sizes`, with those that were trimmed."""
        self.roll_over()
        self.last_confirmed = Position(self.current, -1)

    def roll_over(self) -> None:
        self.current = self.next_id
        self.next_id += 1
        self.sizes[self.current] = self.ever[self.current] = []

    def add(self, count: int) -> list[list[int]]:
        added = []
        for _ in range(count):
            self.last_confirmed = Position(self.current, len(self.sizes[self.current]))
            self.sizes[self.current].append(self.batch_sizes.get(self.last_confirmed, 1))
            added.append([*self.last_confirmed])
            if len(self.sizes[self.current]) >= self.max_entries:
                self.roll_over()
        return added

    def reopen(self) -> None:
        if not self.sizes[self.current]:
            del self.sizes[self.current], self.ever[self.current]
        self.roll_over()
        filled = [k for k, v in self.sizes.items() if v]
        last = max(filled, default=self.current)
        self.last_confirmed = Position(last, len(self.sizes[last]) - 1)

    def may_trim(self, mark_delete: Position) -> list[int]:
        """The ids of the ledgers that are closed, and consumed up to that position."""
        held = self.ever.get(mark_delete.ledger_id, [])
        keep = mark_delete.ledger_id + (mark_delete.entry_id >= len(held) - 1)
        return [k for k in self.sizes if k < min(keep, self.current)]

    def trim(self, ids: list[int]) -> None:
        for ledger_id in ids:
            del self.sizes[ledger_id]

    def place_before(self, position: Position) -> Position:
        """The entry before; entry -1 of a ledger where there is none."""
        if position.entry_id > 0:
            return Position(position.ledger_id, position.entry_id - 1)
        earlier = [k for k, v in self.sizes.items() if k < position.ledger_id and v]
        if earlier:
            return Position(max(earlier), len(self.sizes[max(earlier)]) - 1)
        return Position(min(*self.sizes, position.ledger_id), -1)

    def last_entry_before(self, ledger_id: int) -> Position | None:
        """The last entry of an earlier ledger, trimmed or not."""
        earlier = [k for k, v in self.ever.items() if k < ledger_id and v]
        return Position(max(earlier), len(self.ever[max(earlier)]) - 1) if earlier else None

    def state(self) -> dict[str, Any]:
        """As the vectors record it: of the ledger that is written to, no entries are counted."""
        counts = {k: 0 if k == self.current else len(v) for k, v in sorted(self.sizes.items())}
        return {
            "ledgers": {str(k): v for k, v in counts.items()},
            "last_confirmed": [*self.last_confirmed],
        }


def _batch_sizes(steps: list[dict[str, Any]]) -> dict[Position, int]:
    """A size for each entry that an ack set names; the sets don't say.

    One more than the highest index in any of them: the last one is acknowledged in all of them,
    so it changes nothing, and no set is of a batch of which nothing is acknowledged.
    """
    sizes: dict[Position, int] = {}
    for step in steps:
        sets = [(step["position"], step["ack_set"])] if "ack_set" in step else []
        for text, words in step.get("state", {}).get("batch_ack_sets", {}).items():
            sets.append(([*Position.parse(text)], words))
        for place, words in sets:
            bits = sum((word & (1 << 64) - 1) << 64 * i for i, word in enumerate(words))
            position = Position(*place)
            sizes[position] = max(sizes.get(position, 1), bits.bit_length() + 1)
    return sizes
