"""The input of one task: ranges of rows of a topic's ledgers.

Invariants: rows keep their order within a partition; a range names its ledger whole, so that a task
needs no log unless a file was moved meanwhile. It pickles: Spark sends it to a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import ROW_GROUP_ROWS
from pulsar_spark.errors import DataLossError
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.model.positions.position_set import PositionSet

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowRange:
    """Consecutive messages of one ledger; `mask` (packed bits, one a row) chooses among them.

    `numbers` are columns that the planner knows, by name: one value, or the bytes of an int32 a
    row. A chunked message is a range of its own, the row of its last chunk; `chunks` has all of
    its chunks. Rows of a `compacted` ledger have their ids in `numbers`.
    """

    ledger: LedgerInfo
    first_row: int
    rows: int
    mask: bytes | None = None
    numbers: tuple[tuple[str, int | bytes], ...] = ()
    chunks: tuple[RowRange, ...] = ()
    compacted: bool = False

    @property
    def size_bytes(self) -> int:
        """An estimate of its payload bytes."""
        if self.chunks:
            return sum(part.size_bytes for part in self.chunks)
        return self.ledger.size_bytes * self.rows // max(1, self.ledger.messages)

    @property
    def messages(self) -> int:
        """The number of rows that the mask chooses."""
        selected = self.selected()
        return self.rows if selected is None else int(np.count_nonzero(selected))

    def pieces(self) -> Iterator[RowRange]:
        """The range, cut where its file's row groups end."""
        first, stop = self.first_row, self.first_row + self.rows
        while first < stop:
            end = min(stop, (first // ROW_GROUP_ROWS + 1) * ROW_GROUP_ROWS)
            yield self.part(first, end)
            first = end

    def part(self, first: int, stop: int) -> RowRange:
        """The rows first to stop of the ledger, which lie in the range."""
        inside = slice(first - self.first_row, stop - self.first_row)
        numbers = tuple(
            (name, value[4 * inside.start : 4 * inside.stop] if isinstance(value, bytes) else value)
            for name, value in self.numbers
        )
        part = replace(self, first_row=first, rows=stop - first, mask=None, numbers=numbers)
        selected = self.selected()
        return part if selected is None else replace(part, mask=packed(selected[inside]))

    def selection(self, chosen: NDArray[np.bool_]) -> RowRange | None:
        """The part from the first to the last of the chosen rows, and only those; None if none."""
        held = np.flatnonzero(chosen)
        if not len(held):
            return None
        first, stop = int(held[0]), int(held[-1]) + 1
        part = self.part(self.first_row + first, self.first_row + stop)
        return replace(part, mask=packed(chosen[first:stop]))

    def selected(self) -> NDArray[np.bool_] | None:
        """The mask as booleans, shape (rows,); None if all rows are chosen."""
        if self.mask is None:
            return None
        bits = np.unpackbits(np.frombuffer(self.mask, np.uint8), count=self.rows)
        return bits.astype(np.bool_)


@dataclass(frozen=True, slots=True)
class TopicRows:
    """The rows that a task reads of one topic."""

    topic: str
    folder: str
    ranges: tuple[RowRange, ...]


@dataclass(frozen=True, slots=True)
class MessageInputPartition:
    """One task's share of a batch."""

    root: Root
    topics: tuple[TopicRows, ...]
    fail_on_data_loss: bool = True


def lose(
    lost: str,
    *,
    fail: bool,
    onward: str = "without them",
    remedy: str = ", or keep messages longer",
) -> None:
    """DataLossError says what is lost; with `failOnDataLoss` false a warning, and where it goes on.

    `remedy` is what else to do about it.
    """
    if fail:
        raise DataLossError(f"{lost}. Set failOnDataLoss to false to go on {onward}{remedy}.")
    _log.warning("%s; failOnDataLoss is false, so the query goes on %s", lost, onward)


def row_ranges(messages: PositionSet, ledgers: LedgerList) -> Iterator[RowRange]:
    """The rows of these messages, in order. `ledgers` has all of their ledgers."""
    for ledger_id in messages.ledger_ids:
        ledger = ledgers.of_id(ledger_id)
        whole = messages.whole_entries(ledger_id)
        if not messages.partial_entries(ledger_id) and whole:
            first, last = whole.min(), whole.max()
            if len(whole) == last - first + 1:
                row = ledger.batch_sizes.first_message(first)
                yield RowRange(ledger, row, ledger.batch_sizes.first_message(last + 1) - row)
                continue
        every = RowRange(ledger, 0, ledger.messages)
        if (chosen := every.selection(messages.row_mask(ledger))) is not None:
            yield chosen


def packed(chosen: NDArray[np.bool_]) -> bytes | None:
    """The mask of these rows; None if all are chosen."""
    return None if chosen.all() else np.packbits(chosen).tobytes()
