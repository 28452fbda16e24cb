"""A set of messages as a row of entries: to be dealt out, cut anywhere.

Invariants: entries stand in order; `counts` has the number of each one's messages in the set;
`take` and `cut` give parts of the set. Stands for the list of entries that Pulsar's dispatchers
have just read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_spark.positions import batch_part
from pulsar_spark.positions.ledger_info import LedgerList
from pulsar_spark.positions.position_set import PositionSet


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Arrays of one length: ledger, entry, and how many of its messages are in the set."""

    messages: PositionSet
    ledgers: LedgerList
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]
    counts: NDArray[np.int64]

    @staticmethod
    def of(messages: PositionSet, ledgers: LedgerList) -> EntryRun:
        """The set's entries. KeyError if `ledgers` lacks one of its ledgers."""
        ids, entries, counts = [], [], []
        for ledger_id in messages.ledger_ids:
            ledger = ledgers.get(ledger_id)
            if ledger is None:
                raise KeyError(f"the list has no ledger {ledger_id}")
            parts = messages.partial_entries(ledger_id)
            held = messages.whole_entries(ledger_id)
            if parts:
                held = held | BitMap(list(parts))
            each = np.array(held.to_array(), np.int64)
            runs = ledger.batch_sizes.runs
            if len(runs) == 1:
                sizes = np.full(len(each), runs[0][0], np.int64)
            else:
                sizes = ledger.batch_sizes.array()[each]
            for entry_id, part in parts.items():
                sizes[held.rank(entry_id) - 1] = batch_part.bits(part).bit_count()
            ids.append(np.full(len(each), ledger_id, np.int64))
            entries.append(each)
            counts.append(sizes)
        if not ids:
            empty = np.zeros(0, np.int64)
            return EntryRun(messages, ledgers, empty, empty, empty)
        return EntryRun(
            messages, ledgers, np.concatenate(ids), np.concatenate(entries), np.concatenate(counts)
        )

    def take(self, places: NDArray[Any]) -> PositionSet:
        """The messages of the entries at these ascending places."""
        whole: dict[int, BitMap] = {}
        partial: dict[int, dict[int, int]] = {}
        ids, entries = self.ledger_ids[places], self.entry_ids[places]
        edges = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
        for start, stop in pairwise(edges):
            if start == stop:
                continue
            ledger_id = int(ids[start])
            held = BitMap(entries[start:stop].astype(np.uint32))
            parts = self.messages.partial_entries(ledger_id)
            if parts:
                partial[ledger_id] = {e: part for e, part in parts.items() if e in held}
                held = held - BitMap(list(parts))
            whole[ledger_id] = held
        return PositionSet(whole, partial)

    def cut(self, place: int, messages: int) -> PositionSet:
        """The first `messages` messages of the entry at a place."""
        ledger_id, entry_id = int(self.ledger_ids[place]), int(self.entry_ids[place])
        part = self.messages.partial_entries(ledger_id).get(entry_id)
        if part is None:
            ledger = self.ledgers.get(ledger_id)
            assert ledger is not None, "of() has looked it up"
            part = batch_part.whole(ledger.batch_sizes.size_of(entry_id))
        first = batch_part.first_messages(part, messages)
        return PositionSet(parts={ledger_id: {entry_id: first}})
