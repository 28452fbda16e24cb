"""A small partition for property tests, where plain Python sets of messages are the truth."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet

Message = tuple[int, int, int]

SIZES = {2: [1, 3, 1, 2, 5, 1], 5: [4, 1, 1], 6: [1], 9: [1, 1, 1, 1, 70, 1, 2]}
"""Batch sizes by ledger; ids with gaps, and a ledger of one message."""

ENTRIES = [Position(k, e) for k, sizes in SIZES.items() for e in range(len(sizes))]
MESSAGES: list[Message] = [(*p, b) for p in ENTRIES for b in range(SIZES[p.ledger_id][p.entry_id])]
LEDGERS = LedgerList(
    LedgerInfo(k, 0, "", 0, BatchSizes.of(sizes), 0, 0, 0) for k, sizes in SIZES.items()
)

repeatable = settings(derandomize=True, deadline=None, max_examples=150)
"""The same examples every time."""


def size_of(position: tuple[int, int]) -> int:
    return SIZES[position[0]][position[1]]


def made(messages: Iterable[Message]) -> PositionSet:
    """The set of these messages, in the order given."""
    rows = list(messages)
    ledgers, entries, indexes = np.array(rows or np.empty((0, 3)), np.int64).reshape(-1, 3).T
    sizes = np.array([size_of(row[:2]) for row in rows], np.int64)
    return PositionSet.from_arrays(ledgers, entries, indexes, sizes)


def listed(positions: PositionSet) -> list[Message]:
    return messages_of(positions, LEDGERS)


def messages_of(positions: PositionSet, ledgers: LedgerList) -> list[Message]:
    """(ledger, entry, batch index) of each message, in order."""
    found = []
    for ledger_id in positions.ledger_ids:
        ledger = ledgers.get(ledger_id)
        assert ledger is not None
        rows = np.flatnonzero(positions.row_mask(ledger))
        entries, indexes = ledger.batch_sizes.places(rows)
        places = zip(entries.tolist(), indexes.tolist(), strict=True)
        found += [(ledger_id, entry_id, index) for entry_id, index in places]
    return found


_single = st.frozensets(st.sampled_from(MESSAGES))
_runs = st.tuples(st.integers(0, len(MESSAGES)), st.integers(0, len(MESSAGES))).map(
    lambda ends: frozenset(MESSAGES[min(ends) : max(ends)])
)
message_sets = st.lists(st.one_of(_single, _runs), max_size=3).map(
    lambda parts: frozenset[Message]().union(*parts)
)
"""Scattered messages, and runs, so that entries and ledgers fill up."""

positions = st.sampled_from([*ENTRIES, Position(0, 3), Position(5, -1), Position(6, 0)])
