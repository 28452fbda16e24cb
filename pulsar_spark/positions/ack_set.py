"""The messages of a batch that are *not* yet acknowledged, as in Pulsar's wire protocol.

Invariants: an `ack_set` is a list of signed 64-bit words, least significant first, without zero
words at its end, so an acknowledged batch is []; bit i set means that batch index i is not
acknowledged. Here the same set is one Python int. Follows `BitSetRecyclable` (java.util.BitSet).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

WORD_BITS: Final = 64
_WORD_BYTES: Final = 8


def from_words(words: Sequence[int]) -> int:
    """The set as an int, from signed (or unsigned) 64-bit words."""
    mask = (1 << WORD_BITS) - 1
    return int.from_bytes(
        b"".join((word & mask).to_bytes(_WORD_BYTES, "little") for word in words), "little"
    )


def to_words(bits: int) -> list[int]:
    """The words of a set: signed, without zero words at the end."""
    count = -(-bits.bit_length() // WORD_BITS)
    data = bits.to_bytes(count * _WORD_BYTES, "little")
    starts = range(0, len(data), _WORD_BYTES)
    return [int.from_bytes(data[i : i + _WORD_BYTES], "little", signed=True) for i in starts]


def full(batch_size: int) -> int:
    """The set of a batch of which nothing is acknowledged."""
    return (1 << batch_size) - 1


def without(bits: int, batch_indexes: Iterable[int]) -> int:
    """The set once these indexes are acknowledged."""
    for index in batch_indexes:
        bits &= ~(1 << index)
    return bits


def without_up_to(bits: int, batch_index: int) -> int:
    """The set once all indexes up to and including `batch_index` are acknowledged."""
    return bits >> (batch_index + 1) << (batch_index + 1)


def remaining(bits: int) -> int:
    """How many messages are not acknowledged."""
    return bits.bit_count()
