"""One partition as of a commit of its topic's log.

Invariants: ledgers are added at the end of a column that lists handed out earlier share, and
trimmed by moving its start, so neither costs more as a topic grows. Stands for a part of Pulsar's
`ManagedLedgerImpl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_spark.chunked_messages import ChunkRun
from pulsar_spark.compacted_ledgers import CompactedLedgers
from pulsar_spark.ledger_info import LedgerColumn, LedgerList, LedgerSum
from pulsar_spark.position import EARLIEST, Position
from pulsar_spark.position_set import PositionSet
from pulsar_spark.sequence_ranges import PublishedSequences


@dataclass(slots=True)
class PartitionState:
    """The ledgers of one partition: the places start to stop of a column that only grows."""

    column: LedgerColumn = field(default_factory=LedgerColumn)
    start: int = 0
    messages: int = 0
    size_bytes: int = 0
    trimmed_up_to: Position = EARLIEST
    hidden: list[Any] = field(default_factory=list)
    hidden_set: PositionSet | None = None
    chunks: dict[int, tuple[ChunkRun, ...]] = field(default_factory=dict)
    sequences: PublishedSequences = field(default_factory=PublishedSequences)
    compacted: CompactedLedgers | None = None
    published: LedgerSum | None = field(default_factory=LedgerSum)
    """Of all ledgers ever; None as long as a snapshot from before it was stored is all there is."""
    removed: LedgerSum = field(default_factory=LedgerSum)
    """Of those that were trimmed: `published` is the sum of these and of those in `view`."""

    def view(self) -> LedgerList:
        """Its ledgers as of now."""
        return LedgerList.window(self.column, self.start, len(self.column.ids))

    @property
    def compacted_files(self) -> set[str]:
        """Those that compaction has left its messages in."""
        return self.compacted.files if self.compacted else set()

    def sums_to_json(self) -> dict[str, list[int]]:
        """`published` and `removed`; where they were never counted, from now on."""
        if self.published is None:
            self.published = self.sum_of_ledgers()
        return {"published": self.published.to_json(), "removed": self.removed.to_json()}

    def sum_of_ledgers(self) -> LedgerSum:
        """Of those that there are, by the ledgers themselves."""
        total = LedgerSum()
        for ledger in self.view():
            total = total.plus(ledger)
        return total

    def place(self, ledger_id: int) -> int | None:
        """Where the ledger stands in the column."""
        return self.view().place(ledger_id)


def sums_from_json(part: Mapping[str, Any]) -> dict[str, Any]:
    """Read `sums_to_json`; a snapshot from before has none."""
    if "published" not in part:
        return {"published": None}
    return {name: LedgerSum.from_json(part[name]) for name in ("published", "removed")}
