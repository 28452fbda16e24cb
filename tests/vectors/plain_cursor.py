"""The obvious managed cursor: plain sets of the messages that were acknowledged.

Slow and short on purpose: what the broker's step says is compared with it.
"""

from __future__ import annotations

from itertools import groupby, takewhile
from typing import Any

from pulsar_spark.errors import InvalidCursorPositionError
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position

Message = tuple[int, int, int]
"""(ledger, entry, batch index)"""


class PlainCursor:
    """Over `sizes`, the batch sizes of each ledger's entries.

    Not `by_index`, part of a batch counts for nothing until the rest of it is acknowledged too.
    """

    def __init__(
        self, sizes: dict[int, list[int]], mark_delete: Position, *, by_index: bool = True
    ) -> None:
        self.published(sizes)
        self.by_index = by_index
        self.gathered: set[Message] = set()
        """What was acknowledged of batches, and does not count yet."""
        self.acked: set[Message] = set()
        self.start = mark_delete
        """Where it began, or was last sent to: all up to there is done."""
        self.persisted = False
        self.read_position = self._next_place(mark_delete)

    def published(self, sizes: dict[int, list[int]]) -> None:
        self.sizes = {k: list(v) for k, v in sorted(sizes.items())}
        self.entries = [Position(k, e) for k, v in self.sizes.items() for e in range(len(v))]

    def acknowledged(self) -> set[Message]:
        """All messages that are acknowledged, of the ledgers that there are."""
        done = {m for p in self.entries if p <= self.start for m in self._messages(p)}
        return done | {m for m in self.acked if m[0] in self.sizes}

    def messages(self, positions: list[Position]) -> set[Message]:
        """The messages of these entries."""
        return {message for position in positions for message in self._messages(position)}

    def is_done(self, position: Position) -> bool:
        return position <= self.start or self._messages(position) <= self.acked

    @property
    def mark_delete(self) -> Position:
        place = self.start
        for position in self.entries:
            if position > place:
                if not self.is_done(position):
                    break
                place = position
        return place

    # -- the operations --------------------------------------------------------------------

    def acknowledge(self, positions: list[Position]) -> None:
        if any(position > self.last for position in positions):
            raise InvalidCursorPositionError("beyond the last entry")
        for position in positions:
            self.acked |= self._messages(position)
        self._moved()

    def acknowledge_batch(self, position: Position, words: list[int]) -> None:
        if position > self.last:
            raise InvalidCursorPositionError("beyond the last entry")
        self._acknowledge_part(position, self._acked_by(position, words))
        self._moved()

    def acknowledge_cumulative(self, position: Position, words: list[int] | None = None) -> None:
        part: set[Message] = set()
        target, earlier = position, []
        if words:
            part = self._acked_by(position, words)
            earlier = [p for p in self.entries if p < position]
            target = earlier[-1] if earlier else Position(min(*self.sizes, position.ledger_id), -1)
            if position.entry_id > 0:
                target = position.previous
        if target.entry_id < 0 and target > self.mark_delete >= self.last:
            target = self.mark_delete
        if target > self.last:
            raise InvalidCursorPositionError("beyond the last entry")
        if target < self.mark_delete:
            raise InvalidCursorPositionError("below the mark-delete position")
        if words and not earlier:
            self.start = target  # before the first entry that is left
        for entry in self.entries:
            if entry <= target:
                self.acked |= self._messages(entry)
        self._acknowledge_part(position, part)
        self._moved(persist=True)

    def after_skipping(self, count: int, *, include_deleted: bool) -> Position:
        """The last of the next so many entries; those already deleted count, or they do not."""
        rest = [p for p in self.entries if p > self.mark_delete]
        if not include_deleted:
            rest = [p for p in rest if not self.is_done(p)]
        return [self.mark_delete, *rest][min(count, len(rest))]

    def read(self, count: int) -> list[Position]:
        found: list[Position] = []
        began = self.read_position
        while len(found) < count:
            rest = [p for p in self.entries if p >= self.read_position]
            if not rest:
                break
            ledger = [p for p in rest if p.ledger_id == rest[0].ledger_id]
            if self.read_position != began and not rest[0].entry_id and self.is_done(rest[0]):
                done = list(takewhile(self.is_done, ledger))
                self.read_position = self._next_place(done[-1])
            else:
                stretch = ledger[: count - len(found)]
                found += [p for p in stretch if not self.is_done(p)]
                self.read_position = Position(stretch[-1][0], stretch[-1][1] + 1)
        return found

    def rewind(self) -> None:
        self.read_position = self._next_place(self.mark_delete)

    def seek(self, position: Position, words: list[int] | None) -> None:
        self.gathered = set()
        self.acked = set() if words is None else self._acked_by(position, words)
        if position == EARLIEST:
            position = Position(min(self.sizes), -1)
        elif position == LATEST:
            position = self._next_place(self.last)
        elif position not in self.entries:
            position = self._next_place(position)
        earlier = [p for p in self.entries if p < position]
        self.start = earlier[-1] if earlier else Position(min(self.sizes), -1)
        self.acked = {m for m in self.acked if m[:2] >= position}
        self.read_position, self.persisted = position, False

    def reopen(self) -> None:
        self.persisted = True
        self.rewind()

    # -- what it says --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        mark_delete = [*self.mark_delete]
        after = [p for p in self.entries if p > self.mark_delete]
        ranges = []
        for (ledger_id, _), group in groupby(
            enumerate(p for p in after if self.is_done(p)), lambda x: (x[1][0], x[1][1] - x[0])
        ):
            ids = [p.entry_id for _, p in group]
            ranges.append([ledger_id, ids[0] - 1, ledger_id, ids[-1]])
        ack_sets = {}
        for position in after:
            left = self._messages(position) - self.acked
            if left and left != self._messages(position):
                bits = sum(1 << index for _, _, index in left)
                words = -(-bits.bit_length() // 64)
                data = bits.to_bytes(words * 8, "little")
                ack_sets[str(position)] = [
                    int.from_bytes(data[8 * i : 8 * i + 8], "little", signed=True)
                    for i in range(words)
                ]
        backlog = sum(not self.is_done(p) for p in after)
        texts = (f"({a}:{b}..{c}:{d}]" for a, b, c, d in ranges)
        ahead = [p for p in self.entries if p >= self.read_position]
        return {
            "mark_delete": mark_delete,
            "persistent_mark_delete": mark_delete if self.persisted else None,
            "read_position": [*self.read_position],
            "individually_deleted": "[" + ",".join(texts) + "]",
            "ranges_open_closed": ranges,
            "non_contiguous_ranges": len(ranges),
            "backlog_precise": backlog,
            "backlog_imprecise": backlog,
            "entries_ahead_of_read": sum(not self.is_done(p) for p in ahead),
            "has_more": bool(ahead),
            "batch_ack_sets": ack_sets,
        }

    # -- inside ------------------------------------------------------------------------------

    @property
    def last(self) -> Position:
        return self.entries[-1] if self.entries else Position(min(self.sizes), -1)

    def _moved(self, *, persist: bool = False) -> None:
        old, new = self.start, self.mark_delete
        self.start = new
        holes = any(self.is_done(p) for p in self.entries if p > new)
        self.persisted = self.persisted or persist or new != old or holes
        if self.read_position <= new:
            self.rewind()

    def _messages(self, position: Position) -> set[Message]:
        sizes = self.sizes.get(position.ledger_id, [])
        if not 0 <= position.entry_id < len(sizes):
            return set()
        return {(*position, index) for index in range(sizes[position.entry_id])}

    def _acknowledge_part(self, position: Position, part: set[Message]) -> None:
        self.gathered |= part
        if self.by_index or self._messages(position) <= self.gathered | self.acked:
            self.acked |= self.gathered & self._messages(position)

    def _acked_by(self, position: Position, words: list[int]) -> set[Message]:
        bits = sum((word & (1 << 64) - 1) << 64 * i for i, word in enumerate(words))
        return {m for m in self._messages(position) if not bits >> m[2] & 1}

    def _next_place(self, position: Position) -> Position:
        """The next entry; where the next one will be, if there is none."""
        later = [p for p in self.entries if p > position]
        newest = max(self.sizes)
        return later[0] if later else Position(newest, len(self.sizes[newest]))
