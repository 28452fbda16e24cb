"""A set of messages of one topic partition, and its algebra.

Invariants: immutable; canonical, so equal sets compare equal: no empty ledger, and an entry is
held either whole, in its ledger's bitmap, or in part, as one int (see `batch_part`), never both
and never empty. Entry ids are below 2**32. Pulsar keeps this as `individualDeletedMessages`
(`OpenLongPairRangeSet`) and `batchDeletedIndexes` in `ManagedCursorImpl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_spark.model.positions import batch_part
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import Position

MAX_ENTRY_ID: Final = 2**32 - 1
_FEW_RUNS: Final = 64
_NO_ENTRIES: Final = BitMap()
_WORD_BITS: Final = 62
"""The largest batch that fits into an int64 along with its end bit."""


class PositionSet:
    """A set of messages: whole entries, and batch indexes of others."""

    __slots__ = ("_parts", "_whole")

    def __init__(
        self,
        whole: Mapping[int, BitMap] | None = None,
        parts: Mapping[int, Mapping[int, int]] | None = None,
    ) -> None:
        """From bitmaps of entry ids by ledger, and from parts by ledger and entry.

        The set takes over its arguments, which must not change afterwards, and makes them
        canonical.
        """
        self._whole: dict[int, BitMap] = {k: v for k, v in (whole or {}).items() if v}
        self._parts: dict[int, dict[int, int]] = {}
        for ledger_id, entries in (parts or {}).items():
            self._put_parts(ledger_id, entries)

    @staticmethod
    def of(positions: Iterable[tuple[int, int]]) -> PositionSet:
        """The whole entries at these positions."""
        whole: dict[int, BitMap] = {}
        for ledger_id, entry_id in positions:
            whole.setdefault(ledger_id, BitMap()).add(entry_id)
        return PositionSet(whole)

    @staticmethod
    def of_range(ledger_id: int, first_entry_id: int, last_entry_id: int) -> PositionSet:
        """The entries first to last of one ledger, both included; empty if last < first."""
        return PositionSet({ledger_id: BitMap(range(max(first_entry_id, 0), last_entry_id + 1))})

    @staticmethod
    def of_batch(position: tuple[int, int], batch_size: int, bits: int) -> PositionSet:
        """The messages of one entry whose bit is set in `bits`."""
        if batch_size < 1 or bits < 0 or bits >> batch_size:
            raise ValueError(f"{bits:b} is no set of batch indexes below {batch_size}")
        return PositionSet(parts={position[0]: {position[1]: 1 << batch_size | bits}})

    @staticmethod
    def from_arrays(
        ledger_ids: NDArray[Any],
        entry_ids: NDArray[Any],
        batch_indexes: NDArray[Any] | None = None,
        batch_sizes: NDArray[Any] | None = None,
    ) -> PositionSet:
        """One message (or whole entry) a row; arrays of shape (n,), in any order, of integers.

        Without `batch_indexes`, and where one is below 0, a row stands for a whole entry.
        `batch_sizes` goes with them. ValueError if an index is not below its batch's size.
        """
        if len(entry_ids) and (entry_ids.min() < 0 or entry_ids.max() > MAX_ENTRY_ID):
            raise ValueError(f"entry ids run from 0 to {MAX_ENTRY_ID}")
        if batch_indexes is None:
            return PositionSet(dict(_by_ledger(ledger_ids, entry_ids)))
        if batch_sizes is None:
            raise ValueError("batch indexes need their batch sizes")
        whole_rows = (batch_indexes < 0) | (batch_sizes == 1)
        if np.any((batch_indexes >= batch_sizes) & (batch_indexes >= 0)):
            raise ValueError("a batch index is not below its batch's size")
        whole = dict(_by_ledger(ledger_ids[whole_rows], entry_ids[whole_rows]))
        rest = ~whole_rows
        columns = (ledger_ids[rest], entry_ids[rest], batch_indexes[rest], batch_sizes[rest])
        return PositionSet(whole).union(_parts_of(*columns))

    @staticmethod
    def of_messages(ledger: LedgerInfo, numbers: NDArray[np.int64]) -> PositionSet:
        """These messages of a ledger, counted from 0; shape (n,)."""
        entries, indexes = ledger.batch_sizes.places(numbers)
        ids = np.full(len(numbers), ledger.ledger_id, np.int64)
        return PositionSet.from_arrays(ids, entries, indexes, ledger.batch_sizes.array()[entries])

    @staticmethod
    def between(ledgers: LedgerList, after: Position, up_to: Position) -> PositionSet:
        """All entries of `ledgers` after one position, up to and including another."""
        whole: dict[int, BitMap] = {}
        if up_to > after:
            for ledger in ledgers.between(after.ledger_id, up_to.ledger_id):
                ledger_id = ledger.ledger_id
                first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
                stop = ledger.entries
                if ledger_id == up_to.ledger_id:
                    stop = min(stop, up_to.entry_id + 1)
                whole[ledger_id] = BitMap(range(first, max(first, stop)))
        return PositionSet(whole)

    @staticmethod
    def union_of(sets: Iterable[PositionSet]) -> PositionSet:
        """The union of all, a ledger's bitmaps joined at once; a single set is itself."""
        there = [each for each in sets if each]
        if len(there) < 2:
            return there[0] if there else NOTHING
        whole: dict[int, list[BitMap]] = {}
        parts: dict[int, Mapping[int, int]] = {}
        for each in there:
            for ledger_id in each.ledger_ids:
                whole.setdefault(ledger_id, []).append(each.whole_entries(ledger_id))
                if entries := each.partial_entries(ledger_id):
                    parts[ledger_id] = _joined(parts.get(ledger_id, {}), entries)
        joined = {ledger_id: BitMap.union(*bitmaps) for ledger_id, bitmaps in whole.items()}
        return PositionSet(joined, parts)

    @property
    def ledger_ids(self) -> list[int]:
        """The ids of ledgers that it has entries of, ascending."""
        return sorted(self._whole.keys() | self._parts.keys())

    def whole_entries(self, ledger_id: int) -> BitMap:
        """The entries of a ledger that it holds whole. Not to be changed."""
        return self._whole.get(ledger_id) or BitMap()

    def partial_entries(self, ledger_id: int) -> Mapping[int, int]:
        """Entry id -> part (see the module), for the entries that it holds in part."""
        return self._parts.get(ledger_id, {})

    def ledger(self, ledger_id: int) -> tuple[object, object]:
        """The two objects that hold its part of a ledger: the same as long as that is the same."""
        return self._whole.get(ledger_id), self._parts.get(ledger_id)

    def contains(self, position: tuple[int, int], batch_index: int | None = None) -> bool:
        """True if it holds the entry whole, or the message of that batch index."""
        ledger_id, entry_id = position
        if 0 <= entry_id <= MAX_ENTRY_ID and entry_id in self._whole.get(ledger_id, ()):
            return True
        if batch_index is None:
            return False
        part = self.partial_entries(ledger_id).get(entry_id, 1)
        return bool(batch_part.bits(part) >> batch_index & 1)

    def count(self, ledgers: LedgerList) -> int:
        """The number of messages that it holds. KeyError if `ledgers` lacks one of its ledgers."""
        return sum(self._count_of(ledgers.of_id(ledger_id)) for ledger_id in self.ledger_ids)

    def size_bytes(self, ledgers: LedgerList) -> int:
        """Their bytes, as if all messages of a ledger had one size. KeyError as of `count`."""
        total = 0
        for ledger_id in self.ledger_ids:
            ledger = ledgers.of_id(ledger_id)
            total += ledger.size_bytes * self._count_of(ledger) // max(1, ledger.messages)
        return total

    def entries(self) -> Iterator[tuple[Position, int | None]]:
        """(position, None if whole, else the part) in order."""
        for ledger_id in self.ledger_ids:
            parts = self.partial_entries(ledger_id)
            for entry_id in self.whole_entries(ledger_id) | BitMap(sorted(parts)):
                yield Position(ledger_id, entry_id), parts.get(entry_id)

    def fits(self, ledger: LedgerInfo) -> bool:
        """True if the ledger has the entries that it holds of it, in batches of these sizes."""
        held, parts = self.whole_entries(ledger.ledger_id), self.partial_entries(ledger.ledger_id)
        if max([*held[-1:], *parts], default=-1) >= ledger.entries:
            return False
        sizes = ledger.batch_sizes.array() if parts else ()
        return all(batch_part.batch_size(part) == sizes[each] for each, part in parts.items())

    def row_mask(self, ledger: LedgerInfo) -> NDArray[np.bool_]:
        """For each message of the ledger, in order, whether it is in; shape (messages,)."""
        sizes = ledger.batch_sizes.array()
        held = np.zeros(len(sizes), np.bool_)
        held[_array(self.whole_entries(ledger.ledger_id))] = True
        mask = np.repeat(held, sizes)
        parts = self.partial_entries(ledger.ledger_id)
        if parts:
            first = np.cumsum(sizes) - sizes
            for entry_id, part in parts.items():
                bits = batch_part.mask(part)
                mask[first[entry_id] : first[entry_id] + len(bits)] = bits
        return mask

    def union(self, other: PositionSet) -> PositionSet:
        """The messages of either. ValueError if they give one entry two batch sizes."""
        whole = dict(self._whole)
        for ledger_id, entries in other._whole.items():
            held = whole.get(ledger_id)
            whole[ledger_id] = entries if held is None else held | entries
        result = PositionSet(whole)
        result._parts = dict(self._parts)
        # Ledgers of which the other has nothing stay as they are, whatever their number.
        for ledger_id in self._parts.keys() & other._whole.keys() | other._parts.keys():
            mine, theirs = self.partial_entries(ledger_id), other.partial_entries(ledger_id)
            result._parts.pop(ledger_id, None)
            result._put_parts(ledger_id, _joined(mine, theirs))
        return result

    def intersection(self, other: PositionSet) -> PositionSet:
        """The messages of both."""
        shared = self._whole.keys() & other._whole.keys()
        result = PositionSet({k: self._whole[k] & other._whole[k] for k in shared})
        for ledger_id in self.ledger_ids:
            mine, theirs = self.partial_entries(ledger_id), other.partial_entries(ledger_id)
            mine_whole, their_whole = self.whole_entries(ledger_id), other.whole_entries(ledger_id)
            parts = {e: part for e, part in mine.items() if e in their_whole}
            parts |= {e: part for e, part in theirs.items() if e in mine_whole}
            both = mine.keys() & theirs.keys()
            parts |= {e: batch_part.intersection(mine[e], theirs[e], e) for e in both}
            result._put_parts(ledger_id, parts)
        return result

    def difference(self, other: PositionSet) -> PositionSet:
        """The messages that the other lacks."""
        result = PositionSet()
        for ledger_id in self._whole.keys() | self._parts.keys():
            mine, theirs = self.partial_entries(ledger_id), other.partial_entries(ledger_id)
            left = self._whole.get(ledger_id, _NO_ENTRIES)
            removed = other._whole.get(ledger_id, _NO_ENTRIES)
            parts: Mapping[int, int] = mine
            if removed and mine:
                parts = {e: part for e, part in mine.items() if e not in removed}
            if len(theirs) > len(mine) + len(left):
                theirs = {e: theirs[e] for e in chain(mine, left) if e in theirs}
            changed = _cut(parts, left, theirs)
            if left and removed:
                left = left - removed
            if left and theirs:
                left = left - BitMap(list(theirs))
            if left:
                result._whole[ledger_id] = left
            result._put_parts(ledger_id, changed)
            if changed:
                rest = {e: part for e, part in parts.items() if e not in changed}
                result._parts[ledger_id] = rest | dict(result.partial_entries(ledger_id))
                if not result._parts[ledger_id]:
                    del result._parts[ledger_id]
            elif parts:
                result._parts[ledger_id] = self._parts[ledger_id] if parts is mine else dict(parts)
        return result

    def of_ledgers(self, ledger_ids: Iterable[int]) -> PositionSet:
        """The messages of these ledgers."""
        chosen = [*ledger_ids]
        return PositionSet(
            {each: self.whole_entries(each) for each in chosen},
            {each: self.partial_entries(each) for each in chosen},
        )

    def after(self, position: Position) -> PositionSet:
        """The messages after a position."""
        edge, entry_id = position
        result = PositionSet()
        result._whole = {k: v for k, v in self._whole.items() if k >= edge}
        result._parts = {k: v for k, v in self._parts.items() if k >= edge}
        if held := result._whole.pop(edge, None):
            left = held - BitMap(range(min(max(entry_id, -1), MAX_ENTRY_ID) + 1))
            if left:
                result._whole[edge] = left
        if parts := result._parts.pop(edge, None):
            behind = parts
            if min(parts) <= entry_id:
                behind = {e: part for e, part in parts.items() if e > entry_id}
            if behind:
                result._parts[edge] = behind
        return result

    def up_to(self, position: Position) -> PositionSet:
        """The messages at or before a position."""
        return self.difference(self.after(position))

    def prefix(self, messages: int, ledgers: LedgerList) -> PositionSet:
        """Its first messages, in order; all of it if there are fewer. May end inside an entry."""
        taken: list[PositionSet] = []
        for ledger_id in self.ledger_ids:
            if messages <= 0:
                break
            ledger = ledgers.of_id(ledger_id)
            held = self._count_of(ledger)
            fits = held <= messages
            taken.append(
                self.of_ledgers([ledger_id]) if fits else self._prefix_in(ledger, messages)
            )
            messages -= held
        return PositionSet.union_of(taken)

    __or__ = union
    __and__ = intersection
    __sub__ = difference

    def __bool__(self) -> bool:
        return bool(self._whole or self._parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PositionSet):
            return NotImplemented
        return self._whole == other._whole and self._parts == other._parts

    __hash__ = None  # type: ignore[assignment]  # bitmaps have none

    def __repr__(self) -> str:
        return f"PositionSet({self})"

    def __str__(self) -> str:
        """`3:0-5,7 3:8/10[0-3]`: entries whole, and parts as entry/batch size[indexes]."""
        texts = []
        for ledger_id in self.ledger_ids:
            if whole := self._whole.get(ledger_id):
                texts.append(f"{ledger_id}:{ranges_text(_array(whole))}")
            for entry_id, part in sorted(self.partial_entries(ledger_id).items()):
                texts.append(f"{ledger_id}:{part_text(entry_id, part)}")
        return " ".join(texts) or "nothing"

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert all(self._whole.values()), "an empty bitmap"
        for ledger_id, entries in self._parts.items():
            assert entries, "a ledger without parts"
            for entry_id, part in entries.items():
                assert not self.contains((ledger_id, entry_id)), "both whole and in part"
                assert batch_part.bits(part), "an empty part"
                assert part & (part + 1), "a part that is whole"

    def _put_parts(self, ledger_id: int, entries: Mapping[int, int]) -> None:
        """Add parts, for entries of which nothing is held; whole ones become whole entries."""
        # A part is whole if `part & (part + 1)` is 0, and empty if `part & (part - 1)` is.
        became_whole = [entry_id for entry_id, part in entries.items() if not part & (part + 1)]
        if became_whole:
            self._whole[ledger_id] = self.whole_entries(ledger_id) | BitMap(became_whole)
        covered = self._whole.get(ledger_id, ())
        left = {
            entry_id: part
            for entry_id, part in entries.items()
            if part & (part - 1) and entry_id not in covered
        }
        if left:
            self._parts[ledger_id] = left

    def _count_of(self, ledger: LedgerInfo) -> int:
        parts = self.partial_entries(ledger.ledger_id)
        total = sum(batch_part.bits(part).bit_count() for part in parts.values())
        whole = self._whole.get(ledger.ledger_id)
        if whole is None:
            return total
        runs = ledger.batch_sizes.runs
        if len(runs) > _FEW_RUNS:
            return total + int(ledger.batch_sizes.array()[_array(whole)].sum())
        first = 0
        for size, entries in runs:
            total += size * whole.range_cardinality(first, first + entries)
            first += entries
        return total

    def _prefix_of_equal(self, ledger: LedgerInfo, messages: int) -> PositionSet:
        """`prefix` where all entries are whole and have one size."""
        whole, size = self.whole_entries(ledger.ledger_id), ledger.batch_sizes.runs[0][0]
        fitting, missing = divmod(messages, size)
        result = PositionSet({ledger.ledger_id: whole[:fitting]})
        if missing:
            part = batch_part.first_messages(batch_part.whole(size), missing)
            result._parts[ledger.ledger_id] = {whole[fitting]: part}
        return result

    def _prefix_in(self, ledger: LedgerInfo, messages: int) -> PositionSet:
        """The first messages held of one ledger, which has more."""
        parts = self.partial_entries(ledger.ledger_id)
        if not parts and len(ledger.batch_sizes.runs) == 1:
            return self._prefix_of_equal(ledger, messages)
        entries = _array(self.whole_entries(ledger.ledger_id) | BitMap(sorted(parts)))
        counts = ledger.batch_sizes.array()[entries]
        if parts:
            places = np.searchsorted(entries, sorted(parts))
            counts[places] = [batch_part.bits(parts[e]).bit_count() for e in sorted(parts)]
        ends = np.cumsum(counts)
        fitting = int(np.searchsorted(ends, messages, "right"))
        taken = BitMap(entries[:fitting])
        result = {e: part for e, part in parts.items() if e in taken}
        whole = taken - BitMap(sorted(parts))
        missing = messages - (int(ends[fitting - 1]) if fitting else 0)
        if missing:
            cut = int(entries[fitting])
            part = parts.get(cut) or batch_part.whole(ledger.batch_sizes.size_of(cut))
            result[cut] = batch_part.first_messages(part, missing)
        return PositionSet({ledger.ledger_id: whole}, {ledger.ledger_id: result})


NOTHING: Final = PositionSet()
"""The empty set."""


def ranges_text(values: NDArray[Any]) -> str:
    """`0-5,7` for ascending numbers."""
    if not len(values):
        return ""
    breaks = np.flatnonzero(np.diff(values) != 1)
    firsts = values[np.concatenate(([0], breaks + 1))].tolist()
    lasts = values[np.concatenate((breaks, [len(values) - 1]))].tolist()
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in pairs)


def part_text(entry_id: int, part: int) -> str:
    """`8/10[0-3]`: of entry 8, a batch of 10, the indexes 0 to 3."""
    indexes = ranges_text(np.flatnonzero(batch_part.mask(part)))
    return f"{entry_id}/{batch_part.batch_size(part)}[{indexes}]"


def _array(entries: BitMap) -> NDArray[np.int64]:
    return np.array(entries.to_array(), dtype=np.int64)


def _cut(parts: Mapping[int, int], whole: BitMap, removed: Mapping[int, int]) -> dict[int, int]:
    """The remaining parts of a ledger's entries of which a part is removed."""
    changed = {}
    for entry_id, part in removed.items():
        if entry_id in parts:
            changed[entry_id] = batch_part.difference(parts[entry_id], part, entry_id)
        elif entry_id in whole:
            changed[entry_id] = batch_part.complement(part)
    return changed


def _joined(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    both = one.keys() & other.keys()
    return {**one, **other, **{e: batch_part.union(one[e], other[e], e) for e in both}}


def _by_ledger(ledger_ids: NDArray[Any], entry_ids: NDArray[Any]) -> Iterator[tuple[int, BitMap]]:
    """(ledger, bitmap of its entries); one pass for each run of a ledger, in any order."""
    if len(ledger_ids) and np.any(ledger_ids[1:] < ledger_ids[:-1]):
        order = np.argsort(ledger_ids, kind="stable")
        ledger_ids, entry_ids = ledger_ids[order], entry_ids[order]
    entries = entry_ids.astype(np.uint32)
    for start, stop in _runs(ledger_ids[1:] != ledger_ids[:-1], len(ledger_ids)):
        yield int(ledger_ids[start]), BitMap(entries[start:stop])


def _parts_of(
    ledger_ids: NDArray[Any],
    entry_ids: NDArray[Any],
    batch_indexes: NDArray[Any],
    batch_sizes: NDArray[Any],
) -> PositionSet:
    """(whole entries, parts) of these messages; an entry with all its messages is whole."""
    order = np.lexsort((entry_ids, ledger_ids))
    ledgers, entries = ledger_ids[order], entry_ids[order]
    indexes, sizes = batch_indexes[order], batch_sizes[order]
    if not len(order):
        return PositionSet()
    changes = (ledgers[1:] != ledgers[:-1]) | (entries[1:] != entries[:-1])
    torn = np.flatnonzero(~changes & (sizes[1:] != sizes[:-1]))
    if len(torn):
        raise ValueError(f"entry {ledgers[torn[0]]}:{entries[torn[0]]} has two batch sizes")
    firsts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    small = sizes[firsts] <= _WORD_BITS
    parts = marker = np.zeros(len(firsts), np.int64)
    if small.any():
        bits = np.left_shift(np.int64(1), np.minimum(indexes, _WORD_BITS).astype(np.int64))
        parts = np.bitwise_or.reduceat(bits, firsts)
        marker = np.left_shift(np.int64(1), np.minimum(sizes[firsts], _WORD_BITS).astype(np.int64))
    whole = small & (parts == marker - 1)
    complete: dict[int, BitMap] = {}
    partial: dict[int, dict[int, int]] = {}
    lasts = [*firsts[1:].tolist(), len(order)]
    for start, stop in _runs(ledgers[firsts][1:] != ledgers[firsts][:-1], len(firsts)):
        ledger_id = int(ledgers[firsts[start]])
        done = entries[firsts[start:stop][whole[start:stop]]]
        complete[ledger_id] = BitMap(done.astype(np.uint32))
        few = np.flatnonzero((small & ~whole)[start:stop]) + start
        held = (parts | marker)[few].tolist()
        partial[ledger_id] = dict(zip(entries[firsts[few]].tolist(), held, strict=True))
        for place in (np.flatnonzero(~small[start:stop]) + start).tolist():
            first = int(firsts[place])
            mask = np.zeros(int(sizes[first]), np.bool_)
            mask[indexes[first : lasts[place]]] = True
            partial[ledger_id][int(entries[first])] = batch_part.from_mask(mask)
    return PositionSet(complete, partial)


def _runs(changes: NDArray[np.bool_], count: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of the stretches between changes."""
    if count:
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), count]
        yield from pairwise(edges)
