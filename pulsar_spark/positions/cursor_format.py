"""The stored forms of a cursor: bytes for topics and files, JSON for offsets.

Invariants: both forms carry a version, and one from a newer version is refused; equal cursors
give equal text; a damaged form raises CorruptFileError and nothing else. In the JSON form a
ledger's entries are readable where they are few, and packed (roaring bitmap, zlib, base85) where
they are many. Stands for `PositionInfo` and `ManagedCursorInfo` in Pulsar's
`MLDataFormats.proto`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from pyroaring import BitMap

from pulsar_spark.positions.position import Position
from pulsar_spark.positions.position_set import MAX_ENTRY_ID, PositionSet, ranges_text
from pulsar_spark.records import base85
from pulsar_spark.records.stored_data import inflate
from pulsar_spark.records.stored_record import StoredFormat

CURSOR_FORMAT: Final = StoredFormat(
    "A cursor", version=1, remedy="Restore the file that it is in from a copy."
)
MAGIC: Final = b"PLCU"
READABLE_CHARACTERS: Final = 400
"""A ledger's entries are packed in JSON if they would take more characters than this."""

SAMPLE_BYTES: Final = 4_096
"""The size of a sample, from the middle of longer data, that shows whether they have a pattern."""

MAX_BATCH_SIZE: Final = 1 << 24
_HEAD = struct.Struct("<4sH")
_POSITION = struct.Struct("<qqI")
_LEDGER = struct.Struct("<qII")
_PARTS = struct.Struct("<I")

State = tuple[Position, PositionSet]


def to_bytes(position: Position, deleted: PositionSet) -> bytes:
    """Magic, version, and zlib over: mark-delete position, number of ledgers, the ledgers."""
    body = bytearray(_POSITION.pack(position[0], position[1], len(deleted.ledger_ids)))
    for ledger_id in deleted.ledger_ids:
        packed = _pack(deleted, ledger_id)
        body += _LEDGER.pack(ledger_id, len(packed), zlib.crc32(packed)) + packed
    return _HEAD.pack(MAGIC, CURSOR_FORMAT.version) + _compressed(bytes(body))


def from_bytes(data: bytes) -> State:
    """Read `to_bytes`. CorruptFileError, or FutureVersionError."""
    try:
        magic, version = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise CURSOR_FORMAT.damaged("", "it does not begin with PLCU")
        CURSOR_FORMAT.check_version(version)
        body = memoryview(inflate(data[_HEAD.size :]))
        ledger_id, entry_id, ledgers = _POSITION.unpack_from(body)
        position, offset = Position(ledger_id, entry_id), _POSITION.size
        whole: dict[int, BitMap] = {}
        parts: dict[int, dict[int, int]] = {}
        for _ in range(ledgers):
            ledger_id, size, checksum = _LEDGER.unpack_from(body, offset)
            packed = bytes(body[offset + _LEDGER.size : offset + _LEDGER.size + size])
            if len(packed) != size or zlib.crc32(packed) != checksum:
                raise CURSOR_FORMAT.damaged("", "a ledger's checksum differs")
            whole[ledger_id], parts[ledger_id] = _unpack(packed)
            offset += _LEDGER.size + size
        if offset != len(body):
            raise CURSOR_FORMAT.damaged("", "there are bytes behind its end")
    except (struct.error, ValueError, OverflowError) as error:
        raise CURSOR_FORMAT.damaged("", f"{error}") from error
    return position, PositionSet(whole, parts)


def to_json_value(position: Position, deleted: PositionSet) -> dict[str, Any]:
    """Mark-delete position as `ledger:entry`; entries by ledger, such as `0-5,7 8/10[0-3]`.

    The last one means: of entry 8, a batch of 10, the indexes 0 to 3. `~` begins a packed form.
    """
    ledgers = {str(ledger_id): _ledger_text(deleted, ledger_id) for ledger_id in deleted.ledger_ids}
    value = {"mark_delete_position": str(position), "version": CURSOR_FORMAT.version}
    return value | ({"individually_deleted": ledgers} if ledgers else {})


def from_json_value(value: object) -> State:
    """Read `to_json_value`. CorruptFileError, or FutureVersionError."""
    if not isinstance(value, dict):
        raise CURSOR_FORMAT.damaged("", "it is no JSON object")
    CURSOR_FORMAT.check_version(value.get("version"))
    try:
        position = Position.parse(value["mark_delete_position"])
        whole: dict[int, BitMap] = {}
        parts: dict[int, dict[int, int]] = {}
        ledgers: Mapping[str, str] = value.get("individually_deleted", {})
        for ledger_id, text in ledgers.items():
            whole[int(ledger_id)], parts[int(ledger_id)] = _ledger_from_text(text)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise CURSOR_FORMAT.damaged("", f"{error!r}") from error
    return position, PositionSet(whole, parts)


def serialized(entries: BitMap) -> bytes:
    """The bytes of a bitmap; equal bitmaps have equal bytes, however they came about."""
    # run_optimize keeps runs where an array is as small; rebuild, so that equal bitmaps give equal
    # bytes.
    has_runs = entries.get_statistics()["n_run_containers"] > 0
    compact = BitMap(entries.to_array()) if has_runs else entries.copy()
    compact.run_optimize()
    return bytes(compact.serialize())


def _ledger_text(deleted: PositionSet, ledger_id: int) -> str:
    texts: list[str] = []
    length = 0
    for text in _ledger_texts(deleted, ledger_id):
        texts.append(text)
        length += len(text) + 1
        if length > READABLE_CHARACTERS:
            return "~" + base85.encoded(_compressed(_pack(deleted, ledger_id)))
    return " ".join(texts)


def _ledger_texts(deleted: PositionSet, ledger_id: int) -> Any:
    whole = deleted.whole_entries(ledger_id)
    if whole:
        head = np.array(whole[: READABLE_CHARACTERS + 1].to_array(), np.int64)
        text = ranges_text(head)
        # More entries than characters may still be few ranges: look at all of them.
        if len(head) < len(whole) and len(text) <= READABLE_CHARACTERS:
            text = ranges_text(np.array(whole.to_array(), np.int64))
        yield text
    for entry_id, part in sorted(deleted.partial_entries(ledger_id).items()):
        size = part.bit_length() - 1
        indexes = [index for index in range(size) if part >> index & 1]
        yield f"{entry_id}/{size}[{ranges_text(np.array(indexes, np.int64))}]"


def _ledger_from_text(text: str) -> tuple[BitMap, dict[int, int]]:
    """(entries held whole, parts), from either form."""
    if text.startswith("~"):
        return _unpack(inflate(base85.decoded(text[1:])))
    whole, parts = BitMap(), {}
    for word in text.split(" "):
        entries, partial, rest = word.partition("/")
        if not partial:
            for first, last in _ranges(entries, MAX_ENTRY_ID):
                whole.add_range(first, last + 1)
        else:
            ((entry_id, _),) = _ranges(entries, MAX_ENTRY_ID)
            size_text, _, indexes = rest.removesuffix("]").partition("[")
            size = _batch_size(int(size_text))
            parts[entry_id] = 1 << size
            for first, last in _ranges(indexes, size - 1):
                parts[entry_id] |= (1 << last + 1) - (1 << first)
    return whole, parts


def _ranges(text: str, most: int) -> list[tuple[int, int]]:
    pairs = []
    for part in text.split(","):
        first_text, _, last_text = part.partition("-")
        first, last = int(first_text), int(last_text or first_text)
        if not 0 <= first <= last <= most:
            raise ValueError(f"{part!r} is no range up to {most}")
        pairs.append((first, last))
    return pairs


def _batch_size(size: int) -> int:
    if not 1 <= size <= MAX_BATCH_SIZE:
        raise ValueError(f"{size} is no batch size")
    return size


def _pack(deleted: PositionSet, ledger_id: int) -> bytes:
    """Bitmap of whole entries, bitmap of those in part, their batch sizes, their bits."""
    parts = sorted(deleted.partial_entries(ledger_id).items())
    out = bytearray()
    for entries in (deleted.whole_entries(ledger_id), BitMap([entry for entry, _ in parts])):
        data = serialized(entries)
        out += _PARTS.pack(len(data)) + data
    sizes = np.array([part.bit_length() - 1 for _, part in parts], "<u4")
    out += sizes.tobytes()
    for _, part in parts:
        out += part.to_bytes((part.bit_length() + 7) // 8, "little")
    return bytes(out)


def _unpack(data: bytes) -> tuple[BitMap, dict[int, int]]:
    """(entries held whole, parts)."""
    whole, offset = _bitmap(data, 0)
    partial, offset = _bitmap(data, offset)
    sizes = np.frombuffer(data, "<u4", len(partial), offset).tolist()
    offset += 4 * len(partial)
    parts = {}
    for entry_id, size in zip(partial, sizes, strict=True):
        stop = offset + _batch_size(size) // 8 + 1
        part = int.from_bytes(data[offset:stop], "little")
        if part.bit_length() != size + 1 or len(data) < stop:
            raise ValueError("a part is not of its batch size")
        parts[entry_id] = part
        offset = stop
    if offset != len(data):
        raise ValueError("bytes behind the end")
    return whole, parts


def _bitmap(data: bytes, offset: int) -> tuple[BitMap, int]:
    (size,) = _PARTS.unpack_from(data, offset)
    start = offset + _PARTS.size
    if start + size > len(data):
        raise ValueError("a bitmap is cut off")
    return BitMap.deserialize(data[start : start + size]), start + size


def _compressed(data: bytes) -> bytes:
    """The data by zlib; without a search if they have no pattern, as a third of all messages.

    For those that is a quarter of the work, or less, and takes no more bytes.
    """
    middle = len(data) // 2
    sample = data[middle : middle + SAMPLE_BYTES]
    if len(sample) < SAMPLE_BYTES or len(zlib.compress(sample, 1)) < len(sample) // 2:
        return zlib.compress(data)
    engine = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
    return engine.compress(data) + engine.flush()
