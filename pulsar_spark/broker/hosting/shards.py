"""Values and message sets cut into pieces of bounded size, so that a small change is a small write.

Invariants: no shard is longer than MAX_SHARD_BYTES; each begins with magic and version, and one of
a newer version is refused; equal content gives equal shards; a set is cut at fixed places (aligned
powers of two of ledger and entry), so a change in it changes only the shards around it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.model.positions.cursor import CURSOR_FORMAT, Cursor, serialized
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
_PART_BYTES = 24
_PLAIN, _PACKED = b"\x00", b"\x01"
"""The kinds of an array: plain 32-bit integers, or zlib over 64-bit ones."""


class ShardWriter:
    """Collects shards by key."""

    def __init__(self) -> None:
        self.shards: dict[str, bytes] = {}

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
        if _size(messages) <= INLINE_BYTES:
            return Cursor(individually_deleted=messages).to_json_value()["individually_deleted"]
        pieces: list[str] = []
        self._put_range(key, messages, 0, 1 << 63, pieces)
        return pieces

    def _put_range(
        self, key: str, messages: PositionSet, start: int, span: int, pieces: list[str]
    ) -> None:
        """Add the part of the set in [start, start + span), halved until it fits."""
        part = _between(messages, start, start + span)
        if not part:
            return
        if _size(part) > _PIECE and span > 1:
            half = span // 2
            self._put_range(key, part, start, half, pieces)
            self._put_range(key, part, start + half, half, pieces)
            return
        name = f"{start:x}-{span.bit_length() - 1}"
        pieces.append(name)
        self.shards[f"{key}@{name}"] = _framed(Cursor(individually_deleted=part).to_bytes())


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


def _size(messages: PositionSet) -> int:
    """An estimate of its bytes, on the high side."""
    total = 0
    for ledger_id in messages.ledger_ids:
        total += 24
        if whole := messages.whole_entries(ledger_id):
            total += len(serialized(whole))
        parts = messages.partial_entries(ledger_id)
        total += sum(_PART_BYTES + part.bit_length() // 8 for part in parts.values())
    return total


def _between(messages: PositionSet, start: int, stop: int) -> PositionSet:
    """The messages in [start, stop), where ledger and entry are one number."""
    first, last = (Position(*divmod(each - 1, 1 << _ENTRY_BITS)) for each in (start, stop))
    ids = messages.ledger_ids
    if not ids or (start <= ids[0] << _ENTRY_BITS and (ids[-1] + 1) << _ENTRY_BITS <= stop):
        return messages
    return messages.after(first).up_to(last)
