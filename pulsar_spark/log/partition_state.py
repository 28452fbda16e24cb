"""One partition as of a commit of its topic's log.

Invariants: ledgers are added at the end of a column that earlier lists share, and trimmed by
moving its start, so neither costs more as a topic grows; a message is hidden by the commit that
adds its ledger. Stands for a part of Pulsar's `ManagedLedgerImpl`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from pulsar_spark.log.chunked_messages import (
    CHUNKS_KEPT_MS,
    ChunkedMessages,
    ChunkRun,
    chunks_from_json,
    chunks_to_json,
)
from pulsar_spark.log.compacted_ledgers import CompactedLedgers
from pulsar_spark.log.sequence_ranges import PublishedSequences
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerColumn, LedgerList, LedgerSum
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet


@dataclass(slots=True)
class HiddenMessages:
    """The messages of one partition that readers leave out. Only asked for by ledger.

    It only grows, so threads may look while one adds. A snapshot's cursors are read when somebody
    asks first.
    """

    stored: Sequence[Any] = ()
    """Cursors as JSON, from a snapshot; empty once they were read."""
    _held: list[tuple[dict[int, PositionSet], list[int]]] = field(default_factory=list)
    """First: by ledger id, and these ids, ascending. Others are of threads that came second."""

    def add(self, messages: PositionSet) -> None:
        """Hide these messages, of ledgers behind all others."""
        by_ledger, ledger_ids = self._read()
        by_ledger.update(_by_ledger(messages))
        ledger_ids += messages.ledger_ids

    def of(self, ledger_ids: Iterable[int]) -> PositionSet:
        """The hidden messages in these ledgers."""
        held, _ = self._read()
        return PositionSet.union_of(held[each] for each in ledger_ids if each in held)

    def since(self, ledger_id: int) -> PositionSet:
        """The hidden messages in that ledger and all behind it; costs these."""
        held, ledger_ids = self._read()
        later = ledger_ids[bisect_left(ledger_ids, ledger_id) :]
        return PositionSet.union_of(held[each] for each in later)

    def without_others(self, ledger_ids: Iterable[int]) -> HiddenMessages:
        """The hidden messages of these ledgers, by ascending id, to be added to."""
        held, _ = self._read()
        kept = {each: held[each] for each in ledger_ids if each in held}
        return HiddenMessages(_held=[(kept, [*kept])])

    def _read(self) -> tuple[dict[int, PositionSet], list[int]]:
        if not self._held:
            sets = (Cursor.from_json_value(value).individually_deleted for value in self.stored)
            found = dict(chain.from_iterable(map(_by_ledger, sets)))
            self._held.append((found, sorted(found)))
            self.stored = ()
        return self._held[0]


@dataclass(slots=True)
class PartitionState:
    """The ledgers of one partition: from the place `start` on, of a column that only grows."""

    column: LedgerColumn = field(default_factory=LedgerColumn)
    start: int = 0
    ledgers: LedgerList = field(default_factory=LedgerList)
    """The present ledgers; later commits put another list in its place."""
    messages: int = 0
    size_bytes: int = 0
    trimmed_up_to: Position = EARLIEST
    hidden: HiddenMessages = field(default_factory=HiddenMessages)
    chunks: dict[int, tuple[ChunkRun, ...]] = field(default_factory=dict)
    sequences: PublishedSequences = field(default_factory=PublishedSequences)
    compacted: CompactedLedgers | None = None
    published: LedgerSum = field(default_factory=LedgerSum)
    """The sum of all ledgers ever."""
    removed: LedgerSum = field(default_factory=LedgerSum)
    """The sum of trimmed ledgers: with that of `ledgers` it makes `published`."""

    def show(self) -> None:
        """Let all see the column as it is: the last step of a commit, for other threads' sake."""
        self.ledgers = LedgerList.window(self.column, self.start, len(self.column.ids))

    @property
    def compacted_files(self) -> set[str]:
        return self.compacted.files if self.compacted else set()

    def ledgers_left(self) -> LedgerList:
        """Its ledgers, and trimmed ones of which compaction has kept messages."""
        return self.compacted.with_log(self.ledgers) if self.compacted else self.ledgers

    def trimmable(self, before: int, now_ms: int) -> tuple[int, ...]:
        """The ids of the ledgers below `before` that may go.

        In a partition that was ever compacted, ledgers behind the horizon stay; and so does, with
        all behind it, a ledger with chunks of a message that stays, or is yet to be complete.
        """
        ledgers = self.ledgers
        if self.compacted is not None:
            before = min(before, self.compacted.horizon.ledger_id + 1)
        gone = tuple(each.ledger_id for each in ledgers.between(0, before - 1))
        if self.chunks:
            known = ChunkedMessages.of(self.chunks, ledgers)
            before = min(known.needed(gone, now_ms - CHUNKS_KEPT_MS), default=before)
        return tuple(each for each in gone if each < before)

    def to_json_value(self) -> dict[str, Any]:
        """The state without its ledgers."""
        ledgers = self.ledgers
        hidden = self.hidden.since(ledgers[0].ledger_id) if ledgers else None
        compacted = self.compacted and self.compacted.to_json_value()
        some = {"chunks": chunks_to_json(self.chunks), "compacted": compacted}
        return {
            "ledgers": len(ledgers),
            "messages": self.messages,
            "size_bytes": self.size_bytes,
            "trimmed_up_to": str(self.trimmed_up_to),
            "hidden": [Cursor(individually_deleted=hidden).to_json_value()] if hidden else [],
            "published": self.published.to_json(),
            "removed": self.removed.to_json(),
            **self.sequences.to_json_value(),
            **{name: value for name, value in some.items() if value},
        }

    @staticmethod
    def from_json_value(value: Mapping[str, Any], column: LedgerColumn) -> PartitionState:
        """Read `to_json_value`."""
        compacted = value.get("compacted")
        return PartitionState(
            column, 0, LedgerList.window(column, 0, len(column.ids)),
            int(value["messages"]), int(value["size_bytes"]),
            Position.parse(value["trimmed_up_to"]), HiddenMessages(value["hidden"]),
            chunks=chunks_from_json(value.get("chunks", {})),
            sequences=PublishedSequences.from_json_value(value),
            compacted=compacted and CompactedLedgers.from_json_value(compacted),
            published=LedgerSum.from_json(value["published"]),
            removed=LedgerSum.from_json(value["removed"]),
        )  # fmt: skip


def _by_ledger(messages: PositionSet) -> Iterator[tuple[int, PositionSet]]:
    return ((each, messages.of_ledgers([each])) for each in messages.ledger_ids)
