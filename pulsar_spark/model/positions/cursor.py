"""A reader's place: a mark-delete position, and the messages it has finished beyond that.

Invariants: immutable; `individually_deleted` holds nothing at or before the mark-delete
position, and not the entry right behind it in the same ledger, which would have moved it; a
cursor only grows under its operations, and is no more than the set of messages that it holds.
Its stored forms, bytes for topics and files, and JSON for offsets, carry a version; equal cursors
give equal ones; a damaged form raises CorruptFileError and nothing else. In JSON a ledger's
entries are readable where they are few, and packed (roaring bitmap, zlib, base85) where they are
many.

Follows Pulsar's `ManagedCursorImpl`, where an acknowledgement is a union, and where a
micro-batch is a difference of two cursors; its forms stand for `PositionInfo` and
`ManagedCursorInfo` in `MLDataFormats.proto`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pyroaring import BitMap

from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import (
    MAX_ENTRY_ID,
    PositionSet,
    part_text,
    ranges_text,
)
from pulsar_spark.model.records import base85
from pulsar_spark.model.records.stored_data import inflate
from pulsar_spark.model.records.stored_record import StoredFormat

CURSOR_FORMAT: Final = StoredFormat(
    "A cursor", remedy="Restore the file that it is in from a copy."
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


@dataclass(frozen=True, slots=True)
class Cursor:
    """All messages up to the mark-delete position, and `individually_deleted` after it."""

    mark_delete_position: Position = EARLIEST
    individually_deleted: PositionSet = field(default_factory=PositionSet)

    def __post_init__(self) -> None:
        position, deleted = _advance_in_ledger(
            Position(*self.mark_delete_position), self.individually_deleted
        )
        object.__setattr__(self, "mark_delete_position", position)
        object.__setattr__(self, "individually_deleted", deleted)

    def acknowledge(self, messages: PositionSet) -> Cursor:
        """The cursor with these messages as well."""
        return Cursor(self.mark_delete_position, self.individually_deleted.union(messages))

    def acknowledge_cumulative(
        self, position: Position, batch_index: int = -1, batch_size: int = 0
    ) -> Cursor:
        """The cursor with all up to and including that message; acknowledgements after it stay.

        Below the mark-delete position it changes nothing.
        """
        if batch_index < 0 or batch_index + 1 >= batch_size:
            return self.floor(position)
        part = PositionSet.of_batch(position, batch_size, (1 << batch_index + 1) - 1)
        return self.floor(position.previous).acknowledge(part)

    def floor(self, position: Position) -> Cursor:
        """The cursor with its mark-delete position at that one, or beyond where it is already."""
        if position <= self.mark_delete_position:
            return self
        return Cursor(position, self.individually_deleted)

    def union(self, other: Cursor) -> Cursor:
        """The messages of both cursors."""
        return Cursor(
            max(self.mark_delete_position, other.mark_delete_position),
            self.individually_deleted.union(other.individually_deleted),
        )

    def difference(self, other: Cursor, ledgers: LedgerList) -> PositionSet:
        """Its messages that the other lacks: the micro-batch from the other to this one.

        `ledgers` must have those between the two mark-delete positions; one that they lack there
        was trimmed, and is not in the result.
        """
        return (
            PositionSet.between(ledgers, other.mark_delete_position, self.mark_delete_position)
            .union(self.individually_deleted.after(other.mark_delete_position))
            .difference(other.individually_deleted)
        )

    def not_acknowledged(self, messages: PositionSet) -> PositionSet:
        """The messages without its own; the same object if it has none of them."""
        if not messages:
            return messages
        if messages.ledger_ids[0] <= self.mark_delete_position.ledger_id:
            messages = messages.after(self.mark_delete_position)
        if messages and self.individually_deleted:
            messages = messages.difference(self.individually_deleted)
        return messages

    def advance(self, ledgers: LedgerList) -> Cursor:
        """The same messages, with the mark-delete position as far as it goes.

        It moves over deleted entries, and into the next ledger once that one's first entry is
        deleted. A position before a ledger's first entry becomes the last entry before that.
        """
        cursor = self
        while True:
            position = cursor.mark_delete_position
            earlier = ledgers.last_before(position.ledger_id) if position.entry_id < 0 else None
            position = position if earlier is None else earlier.last
            following = _first_entry_after(position, ledgers)
            if following is None or not cursor.individually_deleted.contains(following):
                if position == cursor.mark_delete_position:
                    return cursor
                return Cursor(position, cursor.individually_deleted)
            cursor = Cursor(following, cursor.individually_deleted)

    def contains(self, position: Position, batch_index: int | None = None) -> bool:
        """True if it holds the whole entry, or the message of that batch index."""
        return position <= self.mark_delete_position or self.individually_deleted.contains(
            position, batch_index
        )

    def backlog(self, ledgers: LedgerList) -> int:
        """The number of messages in `ledgers` that it does not hold; costs the ledgers after it."""
        return self.unread(ledgers).count(ledgers)

    def unread(self, ledgers: LedgerList) -> PositionSet:
        """The messages in `ledgers` that it does not hold."""
        if not len(ledgers):
            return PositionSet()
        rest = PositionSet.between(ledgers, self.mark_delete_position, ledgers[-1].last)
        return rest.difference(self.individually_deleted)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.individually_deleted.check()
        below = self.individually_deleted.up_to(self.mark_delete_position)
        assert not below, "something lies at or before the mark-delete position"
        assert not self.individually_deleted.contains(self.mark_delete_position.next), "can move"

    def to_bytes(self) -> bytes:
        """Magic, version, and zlib over: mark-delete position, number of ledgers, the ledgers."""
        deleted = self.individually_deleted
        ledgers = [(each, packed_ledger(deleted, each)) for each in deleted.ledger_ids]
        return packed_cursor(self.mark_delete_position, ledgers)

    @staticmethod
    def from_bytes(data: bytes) -> Cursor:
        """Read `to_bytes`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        whole: dict[int, BitMap] = {}
        parts: dict[int, dict[int, int]] = {}
        try:
            magic, version = _HEAD.unpack_from(data)
            if magic != MAGIC:
                raise CURSOR_FORMAT.damaged("", "it does not begin with PLCU")
            CURSOR_FORMAT.check_version(version)
            body = inflate(data[_HEAD.size :])
            *position, ledgers = _POSITION.unpack_from(body)
            offset = _POSITION.size
            for _ in range(ledgers):
                ledger_id, size, checksum = _LEDGER.unpack_from(body, offset)
                offset += _LEDGER.size + size
                packed = body[offset - size : offset]
                if len(packed) != size or zlib.crc32(packed) != checksum:
                    raise CURSOR_FORMAT.damaged("", "a ledger's checksum differs")
                whole[ledger_id], parts[ledger_id] = _unpack(packed)
            if offset != len(body):
                raise CURSOR_FORMAT.damaged("", "there are bytes behind its end")
        except (struct.error, ValueError, OverflowError) as error:
            raise CURSOR_FORMAT.damaged("", f"{error}") from error
        return Cursor(Position(*position), PositionSet(whole, parts))

    def to_json_value(self) -> dict[str, Any]:
        """Mark-delete position as `ledger:entry`; entries by ledger, such as `0-5,7 8/10[0-3]`.

        The last one means: of entry 8, a batch of 10, the indexes 0 to 3. `~` begins a packed form.
        """
        deleted = self.individually_deleted
        ledgers = {str(each): _ledger_text(deleted, each) for each in deleted.ledger_ids}
        position = str(self.mark_delete_position)
        value = {"mark_delete_position": position, "version": CURSOR_FORMAT.version}
        return value | ({"individually_deleted": ledgers} if ledgers else {})

    @staticmethod
    def from_json_value(value: object) -> Cursor:
        """Read `to_json_value`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
        if not isinstance(value, dict):
            raise CURSOR_FORMAT.damaged("", "it is no JSON object")
        CURSOR_FORMAT.check_version(value.get("version"))
        whole: dict[int, BitMap] = {}
        parts: dict[int, dict[int, int]] = {}
        try:
            position = Position.parse(value["mark_delete_position"])
            for ledger_id, text in value.get("individually_deleted", {}).items():
                whole[int(ledger_id)], parts[int(ledger_id)] = _ledger_from_text(text)
        except (
            KeyError, ValueError, TypeError, AttributeError, OverflowError, struct.error,
        ) as error:  # fmt: skip
            raise CURSOR_FORMAT.damaged("", f"{error!r}") from error
        return Cursor(position, PositionSet(whole, parts))

    def __str__(self) -> str:
        return f"{self.mark_delete_position} and {self.individually_deleted}"


def last_of_run(entries: BitMap, first: int) -> int:
    """The last of the unbroken run of entries that starts at `first`; first - 1 if none does."""
    if not entries or not 0 <= first <= MAX_ENTRY_ID or first not in entries:
        return first - 1
    low, high = first, entries.max()
    while low < high:
        middle = (low + high + 1) // 2
        if entries.contains_range(first, middle + 1):
            low = middle
        else:
            high = middle - 1
    return low


def _advance_in_ledger(position: Position, deleted: PositionSet) -> tuple[Position, PositionSet]:
    """Move over the deleted entries that follow in the same ledger, and drop them from the set.

    >>> _advance_in_ledger(Position(3, 0), PositionSet.of([(3, 1), (3, 2), (3, 4)]))
    (Position(ledger_id=3, entry_id=2), PositionSet(3:4))
    """
    if deleted:
        if deleted.ledger_ids[0] <= position.ledger_id:
            deleted = deleted.after(position)
        entries = deleted.whole_entries(position.ledger_id)
        last = last_of_run(entries, position.entry_id + 1)
        if last > position.entry_id:
            position = Position(position.ledger_id, last)
            deleted = deleted.after(position)
    return position, deleted


def _first_entry_after(position: Position, ledgers: LedgerList) -> Position | None:
    """The next entry that exists."""
    ledger = ledgers.get(position.ledger_id)
    if ledger is not None and position < ledger.last:
        return position.next
    following = ledgers.first_after(position.ledger_id)
    return None if following is None else Position(following.ledger_id, 0)


def serialized(entries: BitMap) -> bytes:
    """The bytes of a bitmap; equal bitmaps have equal bytes, however they came about."""
    # run_optimize keeps runs where an array is as small.
    has_runs = entries.get_statistics()["n_run_containers"] > 0
    compact = BitMap(entries.to_array()) if has_runs else entries.copy()
    compact.run_optimize()
    return bytes(compact.serialize())


def packed_cursor(position: Position, ledgers: Iterable[tuple[int, bytes]]) -> bytes:
    """The bytes of a cursor with these ledgers, of which `packed_ledger` has made each."""
    held = [*ledgers]
    body = bytearray(_POSITION.pack(*position, len(held)))
    for ledger_id, packed in held:
        body += _LEDGER.pack(ledger_id, len(packed), zlib.crc32(packed)) + packed
    return _HEAD.pack(MAGIC, CURSOR_FORMAT.version) + _compressed(bytes(body))


def _ledger_text(deleted: PositionSet, ledger_id: int) -> str:
    text = ""
    for word in _ledger_texts(deleted, ledger_id):
        text += f"{word} "
        if len(text) > READABLE_CHARACTERS:
            return "~" + base85.encoded(_compressed(packed_ledger(deleted, ledger_id)))
    return text.removesuffix(" ")


def _ledger_texts(deleted: PositionSet, ledger_id: int) -> Iterator[str]:
    whole = deleted.whole_entries(ledger_id)
    if whole:
        head = np.array(whole[: READABLE_CHARACTERS + 1].to_array(), np.int64)
        text = ranges_text(head)
        # More entries than characters may still be few ranges: look at all of them.
        if len(head) < len(whole) and len(text) <= READABLE_CHARACTERS:
            text = ranges_text(np.array(whole.to_array(), np.int64))
        yield text
    for entry_id, part in sorted(deleted.partial_entries(ledger_id).items()):
        yield part_text(entry_id, part)


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


def packed_ledger(deleted: PositionSet, ledger_id: int) -> bytes:
    """Bitmap of whole entries, bitmap of those in part, their batch sizes, their bits."""
    parts = sorted(deleted.partial_entries(ledger_id).items())
    out = bytearray()
    for entries in (deleted.whole_entries(ledger_id), BitMap([entry for entry, _ in parts])):
        data = serialized(entries)
        out += _PARTS.pack(len(data)) + data
    out += np.array([part.bit_length() - 1 for _, part in parts], "<u4").tobytes()
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
    """The data by zlib; without its search, most of the work, if they have no pattern."""
    middle = len(data) // 2
    sample = data[middle : middle + SAMPLE_BYTES]
    if len(sample) < SAMPLE_BYTES or len(zlib.compress(sample, 1)) < len(sample) // 2:
        return zlib.compress(data)
    engine = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
    return engine.compress(data) + engine.flush()
