"""The tasks of a batch: its messages as ranges of rows, dealt out.

Invariants: rows keep their order within a partition, task by task; a task's work is cut at row
group boundaries, since a row group is decoded whole; the same batch gives the same tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql.datasource import InputPartition

from pulsar_spark.connector.ledger_files.ledger_file import ROW_GROUP_ROWS
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.positions.position_set import PositionSet

ROWS_PER_TASK = 1 << 20
"""A task reads about so many rows at most, ..."""
BYTES_PER_TASK = 512 << 20
"""... or so many payload bytes, whichever is reached first."""
ROWS_WORTH_SPLITTING = 20_000
"""A batch of fewer rows is one task: a task costs 20 ms whatever it reads."""


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
        start = first - self.first_row
        numbers = tuple(
            (name, value[4 * start : 4 * (stop - self.first_row)])
            if isinstance(value, bytes)
            else (name, value)
            for name, value in self.numbers
        )
        mask = self._mask(first, stop)
        return replace(self, first_row=first, rows=stop - first, mask=mask, numbers=numbers)

    def selected(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        """The mask as booleans, shape (rows,); None if all rows are chosen."""
        if self.mask is None:
            return None
        bits = np.unpackbits(np.frombuffer(self.mask, np.uint8), count=self.rows)
        return bits.astype(np.bool_)

    def _mask(self, first: int, stop: int) -> bytes | None:
        selected = self.selected()
        if selected is None:
            return None
        return np.packbits(selected[first - self.first_row : stop - self.first_row]).tobytes()


@dataclass(frozen=True, slots=True)
class TopicRows:
    """The rows that a task reads of one topic."""

    topic: str
    folder: str
    ranges: tuple[RowRange, ...]


@dataclass(frozen=True)
class MessageInputPartition(InputPartition):
    """One task's share of a batch."""

    root: Root
    topics: tuple[TopicRows, ...]
    fail_on_data_loss: bool = True


def row_ranges(messages: PositionSet, ledgers: LedgerList) -> Iterator[RowRange]:
    """The rows of these messages, in order. `ledgers` has all of their ledgers."""
    for ledger_id in messages.ledger_ids:
        ledger = ledgers.get(ledger_id)
        if ledger is None:
            raise KeyError(ledger_id)
        whole = messages.whole_entries(ledger_id)
        if not messages.partial_entries(ledger_id) and whole:
            first, last = whole.min(), whole.max()
            if len(whole) == last - first + 1:
                row = ledger.batch_sizes.first_message(first)
                rows = ledger.batch_sizes.first_message(last + 1) - row
                yield RowRange(ledger, row, rows)
                continue
        mask = messages.row_mask(ledger)
        held = np.flatnonzero(mask)
        first_row, stop = int(held[0]), int(held[-1]) + 1
        inside = mask[first_row:stop]
        packed = None if inside.all() else np.packbits(inside).tobytes()
        yield RowRange(ledger, first_row, stop - first_row, packed)


def deal(
    ranges: Mapping[tuple[str, str], Iterable[RowRange]],
    root: Root,
    *,
    at_least: int,
    fail_on_data_loss: bool = True,
) -> list[MessageInputPartition]:
    """Tasks for the ranges of each (topic, folder), about equal, in order."""
    pieces = [
        (topic, piece) for topic, each in ranges.items() for one in each for piece in one.pieces()
    ]
    rows = sum(piece.rows for _, piece in pieces)
    size_bytes = sum(piece.size_bytes for _, piece in pieces)
    wanted = max(-(-rows // ROWS_PER_TASK), -(-size_bytes // BYTES_PER_TASK), 1)
    if rows > ROWS_WORTH_SPLITTING:
        wanted = max(wanted, at_least)
    goal = max(1, -(-rows // wanted))
    tasks: list[list[tuple[tuple[str, str], RowRange]]] = []
    filled = goal
    for piece in pieces:
        if filled + piece[1].rows // 2 >= goal and filled:
            tasks.append([])
            filled = 0
        tasks[-1].append(piece)
        filled += piece[1].rows
    return [
        MessageInputPartition(root, tuple(_by_topic(task)), fail_on_data_loss) for task in tasks
    ]


def _by_topic(pieces: Iterable[tuple[tuple[str, str], RowRange]]) -> Iterator[TopicRows]:
    grouped: dict[tuple[str, str], list[RowRange]] = {}
    for topic, piece in pieces:
        mine = grouped.setdefault(topic, [])
        if mine and _adjoin(mine[-1], piece):
            mine[-1] = replace(mine[-1], rows=mine[-1].rows + piece.rows)
        else:
            mine.append(piece)
    for (name, folder), ranges in grouped.items():
        yield TopicRows(name, folder, tuple(ranges))


def _adjoin(one: RowRange, other: RowRange) -> bool:
    same = one.ledger.ledger_id == other.ledger.ledger_id
    whole = one.mask is None and other.mask is None and not one.chunks and not other.chunks
    alike = one.numbers == other.numbers and all(isinstance(n, int) for _, n in one.numbers)
    return same and whole and alike and one.first_row + one.rows == other.first_row
