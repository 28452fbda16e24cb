"""A message's id: ledger, entry, partition and batch index, as text, as bytes, and in order.

Invariants: ids sort by ledger, entry, partition, batch index, so an id without batch index (-1)
sorts before those of its batch; equality ignores batch size, first chunk and topic, but ids that
carry two different topics are unequal and refuse to be ordered. Follows Pulsar's `MessageIdImpl`,
`BatchMessageIdImpl`, `ChunkMessageIdImpl`, `TopicMessageIdImpl` and `MessageIdData`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final, Literal

from pulsar_spark.model.positions.position import MAX_LONG, Position

Client = Literal["java", "cpp"]
"""The client whose form is meant: Java's, or C++'s and those built on it (Python, Node)."""

_JAVA_TEXT = re.compile(r"(-?\d+):(-?\d+):(-?\d+)(?::(-?\d+))?", re.ASCII)
_CPP_TEXT = re.compile(r"\((-?\d+),(-?\d+),(-?\d+),(-?\d+)\)", re.ASCII)
_LEDGER, _ENTRY, _PARTITION, _BATCH_INDEX, _BATCH_SIZE, _FIRST_CHUNK = 1, 2, 3, 4, 6, 7
_NUMBERS = frozenset({_LEDGER, _ENTRY, _PARTITION, _BATCH_INDEX, _BATCH_SIZE})
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_CHUNK_NESTING: Final = 2


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class MessageId:
    """A message's id. `batch_size` 0 means unknown; `batched`: it names a batch."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = 0
    first_chunk: MessageId | None = None
    topic: str | None = None
    batched: bool = False
    """True whenever `batch_index` is given; on its own, a batch id whose index is -1."""

    def __post_init__(self) -> None:
        if self.batch_index >= 0 and not self.batched:
            object.__setattr__(self, "batched", True)

    @staticmethod
    def parse(text: str) -> MessageId:
        """Read `l:e:p`, `l:e:p:b`, `first;last` (Java) or `(l,e,p,b)`. ValueError otherwise."""
        first_text, chunked, last_text = text.partition(";")
        if chunked:
            first, last = MessageId.parse(first_text), MessageId.parse(last_text)
            if first.batched or last.batched or first.first_chunk or last.first_chunk:
                raise ValueError(f"{text!r} is no message id: a chunk is never in a batch")
            return MessageId(last.ledger_id, last.entry_id, last.partition, first_chunk=first)
        match = _JAVA_TEXT.fullmatch(text) or _CPP_TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is no message id: it should be ledger:entry:partition, with :batch "
                "index behind it if the message is in a batch"
            )
        ledger_id, entry_id, partition = (int(part) for part in match.groups()[:3])
        batch_index = match.group(4)
        return MessageId(
            ledger_id,
            entry_id,
            partition,
            int(batch_index or -1),
            batched=batch_index is not None and (text[0] != "(" or int(batch_index) >= 0),
        )

    @staticmethod
    def from_bytes(data: bytes, client: Client = "cpp") -> MessageId:
        """Read a MessageIdData. ValueError if it is damaged, or lacks ledger or entry.

        By `cpp`, protobuf's own rule, a field of another wire type than its own is unknown and
        skipped; by `java`, as recorded from that client, the field's number alone decides.
        """
        return _decode(data, client, _MAX_CHUNK_NESTING)

    def to_bytes(self, client: Client = "java") -> bytes:
        """Write a MessageIdData. Java writes the batch size always, C++ if there is one."""
        out = bytearray()
        _put_varint(out, _LEDGER, self.ledger_id)
        _put_varint(out, _ENTRY, self.entry_id)
        if self.partition >= 0:
            _put_varint(out, _PARTITION, self.partition)
        if self.batch_index >= 0:
            _put_varint(out, _BATCH_INDEX, self.batch_index)
        if client == "java" or self.batch_size > 0:
            _put_varint(out, _BATCH_SIZE, self.batch_size)
        if self.first_chunk is not None:
            chunk = self.first_chunk.to_bytes(client)
            out += bytes([_FIRST_CHUNK << 3 | _BYTES]) + _varint(len(chunk)) + chunk
        return bytes(out)

    def text(self, client: Client = "java") -> str:
        """`l:e:p`, `l:e:p:b` or `first;last` for Java, `(l,e,p,b)` for C++."""
        if client == "cpp":
            return f"({self.ledger_id},{self.entry_id},{self.partition},{self.batch_index})"
        own = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        if self.first_chunk is not None:
            return f"{self.first_chunk.text()};{own}"
        return f"{own}:{self.batch_index}" if self.batched else own

    def __str__(self) -> str:
        return self.text()

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The key by which ids are sorted."""
        return self.ledger_id, self.entry_id, self.partition, self.batch_index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self.order == other.order and not self._is_of_another_topic(other)

    def __lt__(self, other: MessageId) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        if self._is_of_another_topic(other):
            raise TypeError(
                f"message ids of two topics have no order: {self} of {self.topic} and {other} "
                f"of {other.topic}"
            )
        return self.order < other.order

    def __hash__(self) -> int:
        return hash(self.order)

    def _is_of_another_topic(self, other: MessageId) -> bool:
        return None not in (self.topic, other.topic) and self.topic != other.topic


EARLIEST: Final = MessageId(-1, -1)
LATEST: Final = MessageId(MAX_LONG, MAX_LONG)


def _decode(data: bytes, client: Client, nesting: int) -> MessageId:
    fields = _Fields(data, lenient=client == "java")
    ledger_id = entry_id = first_chunk = None
    numbers = {_PARTITION: -1, _BATCH_INDEX: -1, _BATCH_SIZE: 0}
    batched = False
    while fields.offset < len(data):
        tag = fields.varint()
        number, wire_type = tag >> 3, tag & 7
        if number == _FIRST_CHUNK and wire_type == _BYTES and nesting > 1:
            first_chunk = _decode(fields.chunk(), client, nesting - 1)
        elif number not in _NUMBERS or (wire_type != _VARINT and not fields.lenient):
            fields.skip(tag)
        elif number == _LEDGER:
            ledger_id = _signed(fields.varint(), 64)
        elif number == _ENTRY:
            entry_id = _signed(fields.varint(), 64)
        else:
            numbers[number] = _signed(fields.varint(), 32)
            batched |= number == _BATCH_INDEX
    if ledger_id is None or entry_id is None:
        raise ValueError("not a message id: it lacks its ledger or its entry")
    return MessageId(
        ledger_id,
        entry_id,
        numbers[_PARTITION],
        numbers[_BATCH_INDEX],
        numbers[_BATCH_SIZE],
        first_chunk,
        batched=batched,
    )


class _Fields:
    """Reads protobuf fields one after the other; ValueError where the bytes end too early."""

    def __init__(self, data: bytes, *, lenient: bool) -> None:
        self.data = data
        self.lenient = lenient
        self.offset = 0

    def varint(self) -> int:
        value = shift = 0
        while shift < 70:
            if self.offset >= len(self.data):
                raise ValueError("not a message id: the bytes end inside a number")
            byte = self.data[self.offset]
            self.offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("not a message id: a number of more than ten bytes")

    def chunk(self) -> bytes:
        start = self._move(self.varint())
        return self.data[start : self.offset]

    def skip(self, tag: int) -> None:
        wire_type = tag & 7
        if tag >> 3 == 0 and not self.lenient:
            raise ValueError("not a message id: a field numbered 0")
        if wire_type == _VARINT:
            self.varint()
        elif wire_type == _BYTES:
            self._move(self.varint())
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
            self._move(min(size, len(self.data) - self.offset) if self.lenient else size)
        else:
            raise ValueError(f"not a message id: a field of wire type {wire_type}")

    def _move(self, size: int) -> int:
        start, self.offset = self.offset, self.offset + size
        if self.offset > len(self.data):
            raise ValueError("not a message id: the bytes end inside a field")
        return start


def _put_varint(out: bytearray, number: int, value: int) -> None:
    out += bytes([number << 3 | _VARINT]) + _varint(value)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
