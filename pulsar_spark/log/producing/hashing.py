"""The hashes of a key: for choosing its partition, and its Key_Shared slot.

Invariants: hashes are 31 bits, 0 <= hash < 2**31; the vectorised forms give, for each key, what
the plain ones give. Follows Pulsar's `JavaStringHash`, `Murmur3_32Hash` and
`StickyKeyConsumerSelector.makeStickyKeyHash` (4.x: the slot is taken here).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import mmh3
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

MASK_31: Final = 0x7FFFFFFF
AUTO_SPLIT_SLOTS: Final = 65536
"""Slots 0 to 65535 of auto split without consistent hashing, and of STICKY."""
CONSISTENT_HASHING_SLOTS: Final = 65535
"""Slots 1 to 65535 of auto split with consistent hashing, which is the default."""

_BYTES_AT_ONCE: Final = 1 << 20


def java_string_hash(key: str) -> int:
    """JavaStringHash of a key: 31 bits of Java's `hashCode`, over UTF-16 units."""
    units = np.frombuffer(key.encode("utf-16-le", "surrogatepass"), "<u2")
    return int(units.astype(np.uint32) @ _powers_of_31(len(units))) & MASK_31


def murmur3_32_hash(key: str) -> int:
    """Murmur3_32Hash of a key: over its UTF-8 form, where a lone surrogate becomes `?`."""
    return murmur3_32(key.encode("utf-8", "replace")) & MASK_31


def murmur3_32(key: bytes) -> int:
    """The 32 bits of murmur3, x86, seed 0, unsigned."""
    return mmh3.hash(key, 0, signed=False)


def sticky_key_slot(sticky_key_hash: int, *, consistent_hashing: bool = True) -> int:
    """The Key_Shared slot of a key, from its Murmur3_32Hash; never 0, which means no key."""
    if consistent_hashing:
        return sticky_key_hash % CONSISTENT_HASHING_SLOTS + 1
    return sticky_key_hash % AUTO_SPLIT_SLOTS or 1


def java_string_hash_many(values: pa.Array) -> NDArray[np.int64]:
    """JavaStringHash of each key of an Arrow array of strings, shape (n,); 0 where null.

    ASCII keys are hashed in their buffers, those of one length together; others one by one.
    """
    return _hash_array(values, _java_string_hash_of_buffers)


def murmur3_32_hash_many(values: pa.Array) -> NDArray[np.int64]:
    """Murmur3_32Hash of each key of an Arrow array of strings or bytes, shape (n,); 0 if null."""
    return _hash_array(values, lambda keys: _hash_buffers(keys, _murmur3))


def _hash_array(
    values: pa.Array, hash_keys: Callable[[pa.Array], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Unfolds chunks and dictionaries, and puts 0 where there is no key."""
    import pyarrow as pa

    found: NDArray[np.int64]
    if isinstance(values, pa.ChunkedArray):
        parts = [_hash_array(chunk, hash_keys) for chunk in values.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if isinstance(values, pa.DictionaryArray):
        hashes = _hash_array(values.dictionary, hash_keys)
        if not len(hashes):
            return np.zeros(len(values), np.int64)
        found = np.take(hashes, values.indices.fill_null(0).to_numpy(zero_copy_only=False))
    elif pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64)
    else:
        found = hash_keys(values)
    if values.null_count:
        found[_nulls(values)] = 0
    return found


def _nulls(values: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _java_string_hash_of_buffers(values: pa.Array) -> NDArray[np.int64]:
    import pyarrow as pa

    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        values = values.cast(pa.large_string())
    result = _hash_buffers(values, _polynomial)
    for row in _rows_beyond_ascii(values):
        result[row] = java_string_hash(values[row].as_py())
    return result


def _hash_buffers(
    values: pa.Array, hash_keys: Callable[[NDArray[np.uint8]], NDArray[np.uint32]]
) -> NDArray[np.int64]:
    """31 bits of `hash_keys` over the bytes of each value; those of one length at a time."""
    if not len(values):
        return np.zeros(0, np.int64)
    offsets, data = _buffers(values)
    lengths = offsets[1:] - offsets[:-1]
    if values.null_count:  # what lies below a null is not said
        lengths = np.where(_nulls(values), 0, lengths)
    hashes = np.zeros(len(values), np.uint32)
    for length, rows in _groups_by_length(lengths):
        if length and rows is None:  # They lie side by side, as they are hashed.
            hashes = hash_keys(data[offsets[0] : offsets[-1]].reshape(-1, length))
        elif length:
            hashes[rows] = _hash_of_rows(data, offsets[rows], length, hash_keys)
    return (hashes & np.uint32(MASK_31)).astype(np.int64)


def _buffers(values: pa.Array) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """(offsets, shape (n + 1,); bytes) of an array of strings or bytes."""
    import pyarrow as pa

    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64 if large else np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    return offsets, np.frombuffer(data_buffer or b"", np.uint8)


def _groups_by_length(lengths: NDArray[Any]) -> list[tuple[int, NDArray[np.int64] | None]]:
    """(length, its rows) for each length that occurs; None for all the rows."""
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest:
        return [(shortest, None)]
    narrow = lengths.astype(np.uint16) if longest < 2**16 else lengths  # numpy's radix sort
    rows = np.argsort(narrow, kind="stable")
    distinct, first = np.unique(lengths[rows], return_index=True)
    return list(zip(distinct.tolist(), np.split(rows, first[1:]), strict=True))


def _hash_of_rows(
    data: NDArray[np.uint8],
    starts: NDArray[Any],
    length: int,
    hash_keys: Callable[[NDArray[np.uint8]], NDArray[np.uint32]],
) -> NDArray[np.uint32]:
    """Hashes of the keys of `length` bytes at `starts`; shape of starts."""
    hashes = np.empty(len(starts), np.uint32)
    windows = np.lib.stride_tricks.sliding_window_view(data, length)
    step = max(1, _BYTES_AT_ONCE // length)
    for begin in range(0, len(starts), step):
        hashes[begin : begin + step] = hash_keys(windows[starts[begin : begin + step]])
    return hashes


def _polynomial(keys: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """JavaStringHash of keys taken as Latin-1, shape (n, length)."""
    if keys.shape[1] > 64:
        return np.asarray(keys.astype(np.uint32) @ _powers_of_31(keys.shape[1]))
    hashes = keys[:, 0].astype(np.uint32)
    for column in range(1, keys.shape[1]):
        hashes *= np.uint32(31)
        hashes += keys[:, column]
    return hashes


def _murmur3(keys: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The value of `murmur3_32` for each of the keys, shape (n, length)."""
    count, length = keys.shape
    padded = np.zeros((count, -(-length // 4) * 4), np.uint8)
    padded[:, :length] = keys
    blocks = padded.view("<u4")
    hashes = np.zeros(count, np.uint32)
    for column in range(blocks.shape[1]):
        mixed = _rotated(blocks[:, column] * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        hashes ^= mixed
        if column < length // 4:
            hashes = _rotated(hashes, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashes ^= np.uint32(length)
    hashes = (hashes ^ hashes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> np.uint32(16)


def _rotated(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return values << np.uint32(bits) | values >> np.uint32(32 - bits)


def _rows_beyond_ascii(values: pa.Array) -> list[int]:
    if not len(values):
        return []
    offsets, data = _buffers(values)
    first, last = int(offsets[0]), int(offsets[-1])
    places = np.flatnonzero(data[first:last] >= 0x80) + first
    rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)
    return [row for row in rows.tolist() if values[row].is_valid]


def _powers_of_31(count: int) -> NDArray[np.uint32]:
    """31**(count-1) down to 31**0, modulo 2**32."""
    powers = np.full(count, 31, np.uint32)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint32)[::-1]
