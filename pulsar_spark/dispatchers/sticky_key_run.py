"""A set of messages as a row of messages, each with its Key_Shared slot.

Invariants: messages stand in order; a message without a hash gets one from its place, so that
keyless messages spread over all consumers; `take` gives a part of the set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_spark.positions import batch_part
from pulsar_spark.positions.ledger_info import LedgerInfo
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.producing.hashing import MASK_31
from pulsar_spark.selectors.sticky_key_selector import StickyKeySelector
from pulsar_spark.subscriptions.broker_state import BrokerState

_SPREAD = 2_654_435_761
Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class StickyKeyRun:
    """Arrays of one length, one value a message."""

    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]
    batch_indexes: NDArray[np.int64]
    batch_sizes: NDArray[np.int64]
    slots: NDArray[np.int64]

    @staticmethod
    def of(messages: PositionSet, state: BrokerState, selector: StickyKeySelector) -> StickyKeyRun:
        """The set's messages. KeyError if the state lacks one of its ledgers."""
        ids, columns, hashes = [], [], []
        for ledger_id in messages.ledger_ids:
            ledger = state.ledgers.get(ledger_id)
            if ledger is None:
                raise KeyError(f"there is no ledger {ledger_id}")
            entries, indexes, sizes, rows = _rows(messages, ledger)
            ids.append(np.full(len(entries), ledger_id, np.int64))
            columns.append((entries, indexes, sizes))
            known = state.columns[ledger_id].sticky_key_hashes
            if known is None:
                hashes.append((rows + ledger_id * 31) * _SPREAD & MASK_31)
            else:
                hashes.append(np.asarray(known)[rows].astype(np.int64))
        if not ids:
            empty = np.zeros(0, np.int64)
            return StickyKeyRun(empty, empty, empty, empty, empty)
        entries, indexes, sizes = (np.concatenate(each) for each in zip(*columns, strict=True))
        slots = selector.slots_of(np.concatenate(hashes))
        return StickyKeyRun(np.concatenate(ids), entries, indexes, sizes, slots)

    def take(self, places: NDArray[Any]) -> PositionSet:
        """The messages at these places."""
        sizes = self.batch_sizes[places]
        if (sizes == 1).all():
            return PositionSet.from_arrays(self.ledger_ids[places], self.entry_ids[places])
        return PositionSet.from_arrays(
            self.ledger_ids[places], self.entry_ids[places], self.batch_indexes[places], sizes
        )


def _rows(messages: PositionSet, ledger: LedgerInfo) -> Columns:
    """(entries, batch indexes, batch sizes, rows in the ledger) of the set's messages in it."""
    parts = messages.partial_entries(ledger.ledger_id)
    held = messages.whole_entries(ledger.ledger_id)
    whole = np.array(held.to_array(), np.int64)
    if ledger.messages == ledger.entries:
        return whole, np.zeros(len(whole), np.int64), np.ones(len(whole), np.int64), whole
    all_sizes = ledger.batch_sizes.array()
    first = np.cumsum(all_sizes) - all_sizes
    every = np.array((held | BitMap(list(parts))).to_array(), np.int64) if parts else whole
    sizes = all_sizes[every]
    entries = np.repeat(every, sizes)
    indexes = np.arange(len(entries)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    if parts:
        included = np.ones(len(entries), np.bool_)
        starts = np.cumsum(sizes) - sizes
        for entry_id, part in parts.items():
            start = int(starts[np.searchsorted(every, entry_id)])
            mask = batch_part.mask(part)
            included[start : start + len(mask)] = mask
        entries, indexes = entries[included], indexes[included]
    return entries, indexes, all_sizes[entries], first[entries] + indexes
