"""A ledger as the log knows it: where its rows lie, and how they form entries.

Invariants: a ledger is immutable, and has an entry; entry ids run from 0 to `entries - 1`; the
messages of entry `e` are the rows `batch_sizes.first_message(e)` onwards, in batch-index order; the
ledgers of one partition have ascending ids. Follows Pulsar's `ManagedLedgerInfo.LedgerInfo`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import overload

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.model.positions.position import Position


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Messages per entry, run-length coded: `runs` holds (messages, how many such entries)."""

    runs: tuple[tuple[int, int], ...]

    @staticmethod
    def of(sizes: Iterable[int]) -> BatchSizes:
        """The sizes coded, from one size (>= 1) per entry."""
        return BatchSizes(tuple((size, sum(1 for _ in run)) for size, run in groupby(sizes)))

    @property
    def entries(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def messages(self) -> int:
        return sum(map(prod, self.runs))

    def size_of(self, entry_id: int) -> int:
        """The number of messages in the entry. IndexError if the ledger has no such entry."""
        if entry_id >= 0:
            for size, count in self.runs:
                if entry_id < count:
                    return size
                entry_id -= count
        raise IndexError(entry_id)

    def first_message(self, entry_id: int) -> int:
        """The number of messages before the entry; before `entries`, of the whole ledger."""
        first = 0
        for size, count in self.runs:
            if entry_id <= count:
                return first + size * entry_id
            first += size * count
            entry_id -= count
        raise IndexError(entry_id)

    def locate(self, message: int) -> tuple[int, int]:
        """(entry id, batch index) of the ledger's `message`-th message, counted from 0."""
        entry_id = 0
        for size, count in self.runs:
            if message < size * count:
                return entry_id + message // size, message % size
            message -= size * count
            entry_id += count
        raise IndexError(message)

    def array(self) -> NDArray[np.int64]:
        """One size per entry, shape (entries,), int64."""
        sizes, counts = zip(*self.runs, strict=True) if self.runs else ((), ())
        return np.repeat(np.array(sizes, np.int64), np.array(counts, np.int64))

    def places(self, messages: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(entry ids, batch indexes) of these messages of the ledger, counted from 0.

        >>> [each.tolist() for each in BatchSizes.of([2, 1]).places(np.array([0, 1, 2]))]
        [[0, 0, 1], [0, 1, 0]]
        """
        sizes = self.array()
        ends = np.cumsum(sizes)
        entries = np.searchsorted(ends, messages, side="right").astype(np.int64)
        return entries, messages - (ends - sizes)[entries]

    def to_json(self) -> list[list[int]]:
        return [list(run) for run in self.runs]

    @staticmethod
    def from_json(value: Sequence[Sequence[int]]) -> BatchSizes:
        """The sizes from JSON. TypeError or ValueError if it is no list of such runs."""
        if not all(type(number) is int for run in value for number in run):
            raise TypeError(f"{value!r} has other than whole numbers")
        return BatchSizes(tuple((size, count) for size, count in value))


@dataclass(frozen=True, slots=True)
class FileSeal:
    """The identity of a data file's bytes: its length, and the CRC-32 of its Parquet footer.

    The footer has the checksums of all other bytes, so no change of a sealed file goes unnoticed.
    """

    size_bytes: int
    footer_crc32: int


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One ledger of one partition: a range of rows of a data file.

    `file` is a path relative to the topic's folder; `size_bytes` counts payload bytes before
    compression; times are milliseconds since 1970; `max_deliver_at_ms` is None if no message
    of it is delayed. `seal` is the file's, and `digest` the checksum of the rows' content
    (`connector/storage/data_files/content_digest.py`). `embedded_in` is the number of the commit
    that contains the file, None where it is a file of its own. The broker's state keeps none of the
    three.
    """

    ledger_id: int
    partition: int
    file: str
    first_row: int
    batch_sizes: BatchSizes
    size_bytes: int
    min_publish_time_ms: int
    max_publish_time_ms: int
    max_deliver_at_ms: int | None = None
    seal: FileSeal | None = None
    digest: int | None = None
    embedded_in: int | None = None

    @property
    def entries(self) -> int:
        return self.batch_sizes.entries

    @property
    def messages(self) -> int:
        return self.batch_sizes.messages

    @property
    def last(self) -> Position:
        """Its last entry."""
        return Position(self.ledger_id, self.batch_sizes.entries - 1)


@dataclass(frozen=True, slots=True)
class LedgerSum:
    """Some ledgers added up, in any order: the number of messages, and a digest of ids and content.

    Two sums are equal only if the ledgers are (but for a chance of one to 2**64): `digest` is the
    sum, modulo 2**64, of a hash of each ledger's id, partition, entries and digest.
    """

    messages: int = 0
    digest: int = 0

    @staticmethod
    def of(ledger: LedgerInfo) -> LedgerSum:
        what = (ledger.ledger_id, ledger.partition, ledger.batch_sizes.runs, ledger.digest)
        digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
        return LedgerSum(ledger.messages, int.from_bytes(digest, "little"))

    def __add__(self, other: LedgerSum) -> LedgerSum:
        digest = (self.digest + other.digest) % (1 << 64)
        return LedgerSum(self.messages + other.messages, digest)

    def to_json(self) -> list[int]:
        return [self.messages, self.digest]

    @staticmethod
    def from_json(value: Sequence[int]) -> LedgerSum:
        messages, digest = value
        return LedgerSum(int(messages), int(digest))


class LedgerList(Sequence[LedgerInfo]):
    """The ledgers of one topic partition, by ascending id. Immutable; look-ups bisect.

    A window on a column that only grows at its end: the next list costs nothing.
    """

    __slots__ = ("_column", "_start", "_stop")

    def __init__(self, ledgers: Iterable[LedgerInfo] = ()) -> None:
        every = [*ledgers]
        self._column = LedgerColumn((each.ledger_id for each in every), every)
        self._start, self._stop = 0, len(every)

    @staticmethod
    def window(column: LedgerColumn, start: int, stop: int) -> LedgerList:
        """The ledgers start to stop of a column that never changes below `stop` again."""
        view: LedgerList = LedgerList.__new__(LedgerList)
        view._column, view._start, view._stop = column, start, stop
        return view

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[LedgerInfo]:
        return (self._column.at(index) for index in range(self._start, self._stop))

    @overload
    def __getitem__(self, index: int) -> LedgerInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LedgerInfo]: ...
    def __getitem__(self, index: int | slice) -> LedgerInfo | Sequence[LedgerInfo]:
        if isinstance(index, slice):
            return [self._column.at(place) for place in range(self._start, self._stop)[index]]
        return self._column.at(range(self._start, self._stop)[index])

    def with_next(self, ledger: LedgerInfo) -> LedgerList:
        """The list and one ledger behind it; costs nothing, unless another list had one there.

        For a list whose column nobody else adds to.
        """
        column, start = self._column, self._start
        if self._stop != len(column.ids):
            column, start = column.copy(start, self._stop, {}), 0
        column.append(ledger)
        return LedgerList.window(column, start, len(column.ids))

    def get(self, ledger_id: int) -> LedgerInfo | None:
        """The ledger of that id, or None (trimmed, another partition's, or not yet there)."""
        place = self.place(ledger_id)
        return None if place is None else self._column.at(place)

    def first_at_or_after(self, ledger_id: int) -> LedgerInfo | None:
        index = self._left(ledger_id)
        return self._column.at(index) if index < self._stop else None

    def of_id(self, ledger_id: int) -> LedgerInfo:
        """The ledger of that id. KeyError if the list lacks it."""
        if ledger := self.get(ledger_id):
            return ledger
        raise KeyError(f"the list has no ledger {ledger_id}")

    def first_after(self, ledger_id: int) -> LedgerInfo | None:
        return self.first_at_or_after(ledger_id + 1)

    def last_before(self, ledger_id: int) -> LedgerInfo | None:
        index = self._left(ledger_id)
        return self._column.at(index - 1) if index > self._start else None

    def between(self, first_id: int, last_id: int) -> Sequence[LedgerInfo]:
        """Ledgers with first_id <= id <= last_id; costs the ledgers that it returns."""
        places = range(self._left(first_id), self._left(last_id + 1))
        return [self._column.at(place) for place in places]

    @property
    def size_bytes(self) -> int:
        """The bytes of all ledgers; costs those that were added since it was asked for last."""
        column = self._column
        return column.bytes_before(self._stop) - column.bytes_before(self._start)

    def __reduce__(self) -> tuple[type[LedgerList], tuple[list[LedgerInfo]]]:
        return LedgerList, (list(self),)

    def place(self, ledger_id: int) -> int | None:
        """The ledger's place in the column below this list; None if it is not in it."""
        index = self._left(ledger_id)
        return index if index < self._stop and self._column.ids[index] == ledger_id else None

    def _left(self, ledger_id: int) -> int:
        return bisect_left(self._column.ids, ledger_id, self._start, self._stop)


class LedgerColumn:
    """The ids and ledgers that several lists share: appended to and never changed otherwise.

    A ledger from a snapshot is the number of its row there until somebody asks for it.
    """

    __slots__ = ("_ledgers", "_load", "_sizes", "ids")

    def __init__(
        self,
        ids: Iterable[int] = (),
        ledgers: Iterable[LedgerInfo | int] = (),
        load: Callable[[int], LedgerInfo] | None = None,
    ) -> None:
        self.ids = list(ids)
        self._ledgers = list(ledgers)
        self._load = load
        self._sizes = [0]
        """The bytes of all ledgers before a place, as far as somebody asked for them."""

    def at(self, index: int) -> LedgerInfo:
        ledger = self._ledgers[index]
        if isinstance(ledger, LedgerInfo):
            return ledger
        assert self._load is not None, "rows are only given with their loader"
        loaded = self._ledgers[index] = self._load(ledger)
        return loaded

    def bytes_before(self, index: int) -> int:
        """The bytes of the ledgers below that place; each is counted once."""
        sizes = self._sizes
        for place in range(len(sizes) - 1, index):
            sizes.append(sizes[-1] + self.at(place).size_bytes)
        return sizes[index]

    def append(self, ledger: LedgerInfo) -> None:
        self.ids.append(ledger.ledger_id)
        self._ledgers.append(ledger)

    def copy(self, start: int, stop: int, but: Mapping[int, LedgerInfo | None]) -> LedgerColumn:
        """The ledgers start to stop; those at `but` are replaced, or left out where None."""
        places = [place for place in range(start, stop) if but.get(place, self) is not None]
        return LedgerColumn(
            (self.ids[place] for place in places),
            (but.get(place) or self._ledgers[place] for place in places),
            self._load,
        )


def previous_position(ledgers: LedgerList, position: Position) -> Position:
    """The entry before; before a partition's first entry, entry -1 of a ledger."""
    if position.entry_id > 0:
        return position.previous
    earlier = ledgers.last_before(position.ledger_id)
    if earlier is not None:
        return earlier.last
    return Position(min(ledgers[0].ledger_id, position.ledger_id), -1)
