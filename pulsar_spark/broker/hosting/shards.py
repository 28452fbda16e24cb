"""Values and message sets cut into pieces of bounded size, so that a small change is a small write.

Invariants: no shard is longer than MAX_SHARD_BYTES; each begins with magic and version, and one of
a newer version is refused; equal content gives equal shards; a set is cut at fixed places (aligned
powers of two of ledger and entry), so a change in it changes only the shards around it.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import is_
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.model.positions.cursor import (
    CURSOR_FORMAT,
    Cursor,
    packed_cursor,
    packed_ledger,
)
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.records.stored_data import inflate, parse_json
from pulsar_spark.model.records.stored_record import StoredFormat, canonical_json

SHARD_FORMAT: Final = StoredFormat(
    "A shard of the broker's state",
    remedy="Start the broker with a new checkpoint folder: it is rebuilt from __dispatch.",
)
MAGIC: Final = b"PLBS"
MAX_SHARD_BYTES: Final = 100_000
INLINE_BYTES: Final = 600
"""Smaller sets stand in the value to which they belong."""

_HEAD = struct.Struct("<4sHI")
_PIECE = MAX_SHARD_BYTES - 1_000
_ENTRY_BITS = 32
_ALL_LEDGERS = 1 << 31
_LEDGER_BYTES = 24
"""The bytes of a ledger in a piece, beside those of its set; on the high side."""
_PLAIN, _PACKED = b"\x00", b"\x01"
"""The kinds of an array: plain 32-bit integers, or zlib over 64-bit ones."""


Made = dict[str, Any]
"""Results of a `ShardWriter`, with the objects of which it made them: for the next writer."""


class ShardWriter:
    """Collects shards by key. What an earlier writer made of the same objects is not made again."""

    def __init__(self, before: Made | None = None) -> None:
        self.shards: dict[str, bytes] = {}
        self._before = before or {}
        self.made: Made = {}

    def put_made(
        self, key: str, sources: Sequence[object], make: Callable[[], dict[str, bytes]]
    ) -> object:
        """Add the shards that `make` gives, which depend on these immutable objects alone.

        The result stays the same object as long as they do.
        """
        held: Any = self._before.get(key)
        if held is None or len(held[0]) != len(sources) or not all(map(is_, held[0], sources)):
            held = sources, make()
        self.made[key] = held
        self.shards |= held[1]
        return held

    def put_value(self, key: str, value: Any) -> None:
        """Add plain values, as canonical JSON, in as many shards as it takes."""
        data = canonical_json(value)
        self.put_bytes(key, data if len(data) < INLINE_BYTES * 4 else zlib.compress(data, 1))

    def put_bytes(self, key: str, data: bytes) -> None:
        """Add bytes, such as `packed_array` makes, in as many shards as it takes."""
        for number, start in enumerate(range(0, max(len(data), 1), _PIECE)):
            self.shards[f"{key}#{number}"] = _framed(data[start : start + _PIECE])

    def put_set(self, key: str, messages: PositionSet) -> Any:
        """Add a set; returns its form in a value: the set if small, else its shards' names."""
        if not messages:
            return ""
        before, packed = self._before.get(key, {}), dict[int, _Packed]()
        for ledger_id in messages.ledger_ids:
            sources, held = messages.ledger(ledger_id), before.get(ledger_id)
            if held is None or not all(map(is_, held.sources, sources)):
                held = _Packed(sources, packed_ledger(messages, ledger_id))
            packed[ledger_id] = held
        self.made[key] = packed
        ends = [0, *accumulate(_LEDGER_BYTES + len(each.data) for each in packed.values())]
        if ends[-1] <= INLINE_BYTES:
            return Cursor(individually_deleted=messages).to_json_value()["individually_deleted"]
        cut = _Cut(key, messages, packed, [*packed], ends, [])
        self._put_ledgers(cut, 0, len(packed), 0, _ALL_LEDGERS)
        return cut.pieces

    def _put_ledgers(self, cut: _Cut, first: int, stop: int, start: int, count: int) -> None:
        """Add the set's ledgers at `first` up to `stop`, of `count` ids; halved until it fits."""
        if first == stop:
            return
        fits = cut.ends[stop] - cut.ends[first] <= _PIECE
        if count > 1 and not fits:
            half = count // 2
            middle = bisect_left(cut.ids, start + half, first, stop)
            self._put_ledgers(cut, first, middle, start, half)
            self._put_ledgers(cut, middle, stop, start + half, half)
            return
        ids = cut.ids[first:stop]
        if not fits:
            part = cut.messages.of_ledgers(ids)
            self._put_entries(cut, part, start << _ENTRY_BITS, 1 << _ENTRY_BITS)
            return
        shard = cut.begin_piece(start << _ENTRY_BITS, count << _ENTRY_BITS)
        held = [cut.packed[each] for each in ids]
        ledgers = zip(ids, (each.data for each in held), strict=True)
        self.put_made(shard, held, lambda: {shard: _framed(packed_cursor(EARLIEST, ledgers))})

    def _put_entries(self, cut: _Cut, part: PositionSet, start: int, span: int) -> None:
        """Add a part of one ledger, halved until it fits."""
        if not part:
            return
        if len(packed_ledger(part, part.ledger_ids[0])) + _LEDGER_BYTES <= _PIECE or span == 1:
            self.shards[cut.begin_piece(start, span)] = _framed(
                Cursor(individually_deleted=part).to_bytes()
            )
            return
        half = span // 2
        middle = Position(*divmod(start + half - 1, 1 << _ENTRY_BITS))
        self._put_entries(cut, part.up_to(middle), start, half)
        self._put_entries(cut, part.after(middle), start + half, half)


class _Packed(NamedTuple):
    """A ledger of a set, packed, and what it was made of."""

    sources: tuple[object, object]
    data: bytes


class _Cut(NamedTuple):
    """A set that is cut into pieces."""

    key: str
    messages: PositionSet
    packed: dict[int, _Packed]
    ids: list[int]
    ends: list[int]
    """The bytes of the ledgers up to each."""
    pieces: list[str]
    """The names of the pieces so far."""

    def begin_piece(self, start: int, span: int) -> str:
        """Note the next piece; the key of its shard."""
        self.pieces.append(f"{start:x}-{span.bit_length() - 1}")
        return f"{self.key}@{self.pieces[-1]}"


class ShardReader:
    """Reads what a `ShardWriter` collected; CorruptFileError where something is missing."""

    def __init__(self, shards: Mapping[str, bytes]) -> None:
        self.shards = shards

    def value(self, key: str) -> Any:
        data = self._bytes(key)
        try:
            return parse_json(data if data[:1] in b'{["' else inflate(data))
        except ValueError as error:
            raise SHARD_FORMAT.damaged(key, error) from error

    def packed(self, key: str) -> bytes:
        """An array in the form of `packed_array`."""
        return self._bytes(key)

    def array(self, key: str) -> NDArray[Any]:
        """An array, of 32-bit integers if it was packed as such, else of 64-bit ones."""
        data = self.packed(key)
        try:
            if data[:1] == _PLAIN:
                return np.frombuffer(data, "<i4", offset=1)
            return np.frombuffer(inflate(data[1:]), "<i8")
        except ValueError as error:
            raise SHARD_FORMAT.damaged(key, error) from error

    def set(self, key: str, value: Any) -> PositionSet:
        if not value:
            return PositionSet()
        if isinstance(value, dict):
            whole = {
                "mark_delete_position": str(EARLIEST),
                "version": CURSOR_FORMAT.version,
                "individually_deleted": value,
            }
            return Cursor.from_json_value(whole).individually_deleted
        pieces = (Cursor.from_bytes(self._one(f"{key}@{name}")) for name in value)
        return PositionSet.union_of(piece.individually_deleted for piece in pieces)

    def _bytes(self, key: str) -> bytes:
        parts = [self._one(f"{key}#0")]
        while len(parts[-1]) == _PIECE and f"{key}#{len(parts)}" in self.shards:
            parts.append(self._one(f"{key}#{len(parts)}"))
        return b"".join(parts)

    def _one(self, key: str) -> bytes:
        framed = self.shards.get(key)
        if framed is None:
            raise SHARD_FORMAT.damaged(key, "it is missing")
        if len(framed) < _HEAD.size or framed[:4] != MAGIC:
            raise SHARD_FORMAT.damaged(key, "it does not begin with PLBS")
        _, version, checksum = _HEAD.unpack_from(framed)
        SHARD_FORMAT.check_version(version, key)
        data = framed[_HEAD.size :]
        if zlib.crc32(data) != checksum:
            raise SHARD_FORMAT.damaged(key, "its checksum differs")
        return data


def packed_array(values: NDArray[Any]) -> bytes:
    """The bytes of an array; those of 32 bits are hashes, which no compression makes smaller."""
    if values.dtype == np.int32:
        return _PLAIN + np.ascontiguousarray(values, "<i4").tobytes()
    return _PACKED + zlib.compress(np.ascontiguousarray(values, "<i8").tobytes(), 1)


def changed(
    before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> tuple[dict[str, bytes], list[str]]:
    """(the shards to write, the keys to delete) that lead from one state to the next."""
    written = {key: data for key, data in after.items() if before.get(key) != data}
    return written, sorted(before.keys() - after.keys())


def _framed(data: bytes) -> bytes:
    return _HEAD.pack(MAGIC, SHARD_FORMAT.version, zlib.crc32(data)) + data
