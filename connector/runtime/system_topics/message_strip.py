"""The messages of a subscription as one line of characters, a cell for each or for several.

Invariant: when several messages share a cell, the cell has the state of the least finished one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

UNREAD, HELD, WAITING, ACKNOWLEDGED, GONE = range(5)
"""The states of a message, from the least finished one; GONE is outside the range."""
CHARACTERS: Final = {UNREAD: "·", HELD: "▒", WAITING: "○", ACKNOWLEDGED: "█", GONE: " "}
MOST_CELLS: Final = 1200
"""When a strip has more messages, some share a cell."""
MOST_CHARACTERS: Final = 80


def strip_text(states: Mapping[int, NDArray[np.int8]]) -> str:
    """One character for each cell: `█` acknowledged, `▒` with a consumer, `○` to come later."""
    (line,) = aligned([states], MOST_CHARACTERS)
    return "".join(CHARACTERS[state] for state in line.tolist())


def aligned(
    cursors: Sequence[Mapping[int, NDArray[np.int8]]], most: int = MOST_CELLS
) -> NDArray[np.int8]:
    """One row for each cursor, one column for each message; shape (cursors, at most `most`)."""
    sizes: dict[int, int] = {}
    for ledgers in cursors:
        for ledger, states in ledgers.items():
            sizes[ledger] = max(len(states), sizes.get(ledger, 0))
    grid = np.full((len(cursors), sum(sizes.values())), GONE, np.int8)
    for line, ledgers in enumerate(cursors):
        first = 0
        for ledger in sorted(sizes):
            states = ledgers.get(ledger, np.empty(0, np.int8))
            grid[line, first : first + len(states)] = states
            first += sizes[ledger]
        known = np.flatnonzero(grid[line] != GONE)
        if len(known):  # what was trimmed before them is done; what is behind, not yet there
            before = grid[line, : known[0]]
            before[:] = ACKNOWLEDGED
    if grid.shape[1] <= most:
        return grid
    edges = np.linspace(0, grid.shape[1], most, endpoint=False).astype(np.int64)
    binned: NDArray[np.int8] = np.minimum.reduceat(grid, edges, axis=1)
    return binned
