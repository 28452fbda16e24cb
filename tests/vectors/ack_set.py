"""Ack sets, as Pulsar's wire has them: of a batch the messages that are *not* yet acknowledged.

A list of signed 64-bit words, least significant first, without zero words at its end, as
java.util.BitSet; here the same set is an int.
"""

from __future__ import annotations

from collections.abc import Sequence

_WORD_BYTES = 8


def from_words(words: Sequence[int]) -> int:
    return sum((word & (1 << 64) - 1) << 64 * place for place, word in enumerate(words))


def to_words(bits: int) -> list[int]:
    data = bits.to_bytes(-(-bits.bit_length() // 64) * _WORD_BYTES, "little")
    starts = range(0, len(data), _WORD_BYTES)
    return [int.from_bytes(data[i : i + _WORD_BYTES], "little", signed=True) for i in starts]
