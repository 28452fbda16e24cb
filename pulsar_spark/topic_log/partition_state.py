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
from typing import Any, Final

from pulsar_spark.positions import cursor_format
from pulsar_spark.positions.ledger_info import LedgerColumn, LedgerList, LedgerSum
from pulsar_spark.positions.position import EARLIEST, Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.topic_log.chunked_messages import ChunkRun, chunks_from_json, chunks_to_json
from pulsar_spark.topic_log.compacted_ledgers import CompactedLedgers
from pulsar_spark.topic_log.sequence_ranges import PublishedSequences

TRIMMED_KEPT: Final = 64
"""Ledger ids are rebuilt when they exceed twice the present ledgers plus this number."""


@dataclass(slots=True)
class HiddenMessages:
    """The messages of one partition that readers leave out. Only asked for by ledger.

    A snapshot's cursors are read when somebody asks first.
    """

    stored: Sequence[Any] = ()
    """Cursors as JSON, from a snapshot; empty once they were read."""
    _by_ledger: dict[int, PositionSet] = field(default_factory=dict)
    _ledger_ids: list[int] = field(default_factory=list)
    """Ascending ids, some of trimmed ledgers."""

    def add(self, messages: PositionSet) -> None:
        """Hide these messages, of ledgers that are new."""
        self._read()
        for ledger_id, held in _by_ledger(messages):
            self._by_ledger[ledger_id] = held
            self._ledger_ids.append(ledger_id)

    def trim(self, ledger_id: int) -> None:
        self._read()
        self._by_ledger.pop(ledger_id, None)
        if len(self._ledger_ids) > 2 * len(self._by_ledger) + TRIMMED_KEPT:
            self._ledger_ids = sorted(self._by_ledger)

    def of(self, ledger_ids: Iterable[int]) -> PositionSet:
        """The hidden messages in these ledgers."""
        self._read()
        if not self._by_ledger:
            return PositionSet()
        held = {k: self._by_ledger[k] for k in ledger_ids if k in self._by_ledger}
        return PositionSet(
            {ledger_id: each.whole_entries(ledger_id) for ledger_id, each in held.items()},
            {ledger_id: each.partial_entries(ledger_id) for ledger_id, each in held.items()},
        )

    def since(self, ledger_id: int) -> PositionSet:
        """The hidden messages in that ledger and all behind it."""
        self._read()
        ledger_ids = self._ledger_ids
        return self.of(ledger_ids[bisect_left(ledger_ids, ledger_id) :])

    def _read(self) -> None:
        # Two threads may do this at once, with the same result.
        stored = self.stored
        if stored:
            sets = (cursor_format.from_json_value(value)[1] for value in stored)
            held = dict(chain.from_iterable(map(_by_ledger, sets)))
            self._by_ledger, self._ledger_ids = held, sorted(held)
            self.stored = ()


@dataclass(slots=True)
class PartitionState:
    """The ledgers of one partition: the places start to stop of a column that only grows."""

    column: LedgerColumn = field(default_factory=LedgerColumn)
    start: int = 0
    messages: int = 0
    size_bytes: int = 0
    trimmed_up_to: Position = EARLIEST
    hidden: HiddenMessages = field(default_factory=HiddenMessages)
    chunks: dict[int, tuple[ChunkRun, ...]] = field(default_factory=dict)
    sequences: PublishedSequences = field(default_factory=PublishedSequences)
    compacted: CompactedLedgers | None = None
    published: LedgerSum | None = field(default_factory=LedgerSum)
    """The sum of all ledgers ever; None if an older snapshot without it is all there is."""
    removed: LedgerSum = field(default_factory=LedgerSum)
    """The sum of trimmed ledgers: with that of `view` it makes `published`."""

    def view(self) -> LedgerList:
        """The partition's ledgers as of now."""
        return LedgerList.window(self.column, self.start, len(self.column.ids))

    @property
    def compacted_files(self) -> set[str]:
        """The files of its compacted part."""
        return self.compacted.files if self.compacted else set()

    def sum_of_ledgers(self) -> LedgerSum:
        """The sum of the present ledgers, by the ledgers themselves."""
        total = LedgerSum()
        for ledger in self.view():
            total = total.plus(ledger)
        return total

    def place(self, ledger_id: int) -> int | None:
        """The ledger's place in the column."""
        return self.view().place(ledger_id)

    def to_json_value(self) -> dict[str, Any]:
        """The state without its ledgers. `published` is counted now where it never was."""
        if self.published is None:
            self.published = self.sum_of_ledgers()
        ledgers = self.view()
        hidden = self.hidden.since(ledgers[0].ledger_id) if ledgers else None
        compacted = self.compacted and self.compacted.to_json_value()
        some = {"chunks": chunks_to_json(self.chunks), "compacted": compacted}
        return {
            "ledgers": len(ledgers),
            "messages": self.messages,
            "size_bytes": self.size_bytes,
            "trimmed_up_to": str(self.trimmed_up_to),
            "hidden": [cursor_format.to_json_value(EARLIEST, hidden)] if hidden else [],
            "published": self.published.to_json(),
            "removed": self.removed.to_json(),
            **self.sequences.to_json_value(),
            **{name: value for name, value in some.items() if value},
        }

    @staticmethod
    def from_json_value(
        value: Mapping[str, Any], column: LedgerColumn, highest: Mapping[str, int]
    ) -> PartitionState:
        """Read `to_json_value`; `highest` is each producer's highest sequence id.

        A snapshot of an older version has no sums; one without ranges has no other sequence ids.
        """
        compacted = value.get("compacted")
        sums: dict[str, Any] = {"published": None}
        if "published" in value:
            sums = {name: LedgerSum.from_json(value[name]) for name in ("published", "removed")}
        sequences = PublishedSequences.from_json_value(value)
        told = {producer for ranges in sequences.ranges.values() for producer in ranges}
        for producer, sequence_id in highest.items():
            if producer not in told and producer not in sequences.floors:
                sequences.raise_floor(producer, sequence_id)
        return PartitionState(
            column, 0, int(value["messages"]), int(value["size_bytes"]),
            Position.parse(value["trimmed_up_to"]), HiddenMessages(value["hidden"]),
            chunks=chunks_from_json(value.get("chunks", {})),
            sequences=sequences,
            compacted=compacted and CompactedLedgers.from_json_value(compacted),
            **sums,
        )  # fmt: skip


def _by_ledger(messages: PositionSet) -> Iterator[tuple[int, PositionSet]]:
    for ledger_id in messages.ledger_ids:
        whole, parts = messages.whole_entries(ledger_id), messages.partial_entries(ledger_id)
        yield ledger_id, PositionSet({ledger_id: whole}, {ledger_id: parts})
