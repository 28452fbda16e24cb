"""The messages of one entry that are in a set, as one int: `(1 << batch_size) | bits in the set`.

Invariants: the highest bit is the end bit and carries the batch size; bit i below it means that
batch index i is in; all ones mean the whole entry; an end bit alone means none of it. The inverse
of Pulsar's ack set, which has the messages left, and no batch size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def whole(batch_size: int) -> int:
    """The part that is the entry."""
    return (1 << batch_size + 1) - 1


def batch_size(part: int) -> int:
    return part.bit_length() - 1


def bits(part: int) -> int:
    """The part without its end bit."""
    return part ^ 1 << batch_size(part)


def complement(part: int) -> int:
    """The other messages of the entry."""
    return part ^ (1 << batch_size(part)) - 1


def union(one: int, other: int, entry_id: int) -> int:
    """The messages of either. ValueError, also of the next two, if the batch sizes differ."""
    _check_same_size(one, other, entry_id)
    return one | other


def intersection(one: int, other: int, entry_id: int) -> int:
    _check_same_size(one, other, entry_id)
    return one & other


def difference(one: int, other: int, entry_id: int) -> int:
    _check_same_size(one, other, entry_id)
    return one & complement(other)


def first_messages(part: int, count: int) -> int:
    """The part's first `count` messages; it has at least as many."""
    last = int(np.flatnonzero(mask(part))[count - 1])
    return 1 << batch_size(part) | bits(part) & (1 << last + 1) - 1


def mask(part: int) -> NDArray[np.bool_]:
    """True if each message is in; shape (batch size,)."""
    size = batch_size(part)
    data = np.frombuffer(part.to_bytes(size // 8 + 1, "little"), np.uint8)
    return np.unpackbits(data, count=size, bitorder="little").astype(np.bool_)


def from_mask(included: NDArray[np.bool_]) -> int:
    """The part of the True places; shape (batch size,)."""
    ended = np.append(included, True)
    return int.from_bytes(np.packbits(ended, bitorder="little").tobytes(), "little")


def _check_same_size(one: int, other: int, entry_id: int) -> None:
    if one.bit_length() != other.bit_length():
        raise ValueError(
            f"entry {entry_id} has two batch sizes, {batch_size(one)} and {batch_size(other)}: "
            "these sets are not of one topic partition"
        )
