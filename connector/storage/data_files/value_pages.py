"""Values as they lie in a file's pages: Arrow arrays over the bytes that were read, not copied.

Values that compression would not shrink are stored as they are, all lengths of a page before
all bytes (Parquet's DELTA_LENGTH_BYTE_ARRAY), which but for the lengths is an Arrow array. Arrow's
own reader builds it anew, value by value: as much work as all other columns together.

Invariant: any other page and one with a null are left to Arrow's reader, which knows every kind of
page; where blocks have no checksums, so is a page with a wrong one, whose fault it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from pulsar_spark.connector.storage.data_files.block_checksums import CheckedInput

_HEADER_BYTES: Final = 128
"""The longest header of such a page, which has no statistics."""
_LENGTHS_THEN_BYTES: Final = 0, 6
"""Page type and encoding: a data page, DELTA_LENGTH_BYTE_ARRAY."""
_BLOCK, _MINIBLOCKS = 128, 4
"""Numbers of a DELTA_BINARY_PACKED block, and its parts, as Arrow writes them."""

# Fields of Parquet's Thrift structs PageHeader and DataPageHeader.
_TYPE, _SIZE, _STORED_SIZE, _CHECKSUM, _DATA_PAGE_HEADER = 1, 2, 3, 4, 5
_VALUES, _ENCODING = 1, 2
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _I16, _I32, _I64, _BINARY, _STRUCT = 1, 2, 4, 5, 6, 8, 12


class _Unexpected(Exception):  # noqa: N818 - not an error: Arrow reads it
    """A page that this module does not read."""


def value_pages(source: CheckedInput, chunk: pq.ColumnChunkMetaData) -> Iterator[pa.Array]:
    """The values of one row group, page by page, as binary arrays.

    Ends early, perhaps at once, before the first page that Arrow has to read.
    """
    if chunk.compression != "UNCOMPRESSED" or chunk.has_dictionary_page:
        return
    place = chunk.data_page_offset
    end = place + chunk.total_compressed_size
    while place < end:
        try:
            begin = source.read_at(min(_HEADER_BYTES, end - place), place)
            header, size = _struct(memoryview(begin).cast("B"), 0)
            page = source.read_at(header[_STORED_SIZE], place + size)
            if not source.verifies and zlib_ng.crc32(page) != header[_CHECKSUM] & 0xFFFFFFFF:
                return
            array = _array(page, header, chunk.num_values)
        except (_Unexpected, KeyError, IndexError, TypeError, ValueError, OverflowError):
            return
        place += size + len(page)
        yield array


def _array(page: pa.Buffer, header: dict[int, Any], most_rows: int) -> pa.Array:
    """The page as an array over its own bytes."""
    topic_partition = header[_DATA_PAGE_HEADER]
    rows, kind = topic_partition[_VALUES], (header[_TYPE], topic_partition[_ENCODING])
    # More rows would take more memory than the footer allows.
    if kind != _LENGTHS_THEN_BYTES or rows > most_rows or len(page) != header[_SIZE]:
        raise _Unexpected
    data = memoryview(page).cast("B")
    levels = 4 + int.from_bytes(data[:4], "little")
    run, at = _varint(data, 4)
    if run != rows << 1 or data[at] != 1 or levels != at + 1:  # one run: no value is null
        raise _Unexpected
    lengths, first = _lengths(data, levels, rows)
    if lengths.min() < 0 or lengths.max() > len(page) or first + lengths.sum() != len(page):
        raise _Unexpected
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), page.slice(first)], null_count=0
    )


def _lengths(data: memoryview, at: int, rows: int) -> tuple[NDArray[np.int64], int]:
    """(so many numbers of a DELTA_BINARY_PACKED block sequence, where it ends).

    A block has the least difference and some miniblocks; each of these has its differences,
    less the least, in as many bits as the largest takes.
    """
    block, at = _varint(data, at)
    miniblocks, at = _varint(data, at)
    count, at = _varint(data, at)
    first, at = _zigzag(data, at)
    if (block, miniblocks, count) != (_BLOCK, _MINIBLOCKS, rows) or rows < 1:
        raise _Unexpected
    size = block // miniblocks
    blocks = -(-(count - 1) // block)
    plain = bytes(blocks * (1 + miniblocks))  # as blocks of numbers that are all the same are
    if data[at : at + len(plain)] == plain:
        return np.full(count, first, np.int64), at + len(plain)
    differences = np.zeros((blocks * miniblocks, size), np.int64)
    packed: dict[int, list[tuple[int, int]]] = {}  # bits -> (miniblock, its place)
    for begin in range(0, blocks * miniblocks, miniblocks):
        least, at = _zigzag(data, at)
        if least:
            differences[begin : begin + miniblocks] = least
        widths = bytes(data[at : at + miniblocks])
        at += miniblocks
        if any(widths):
            used = -(-(count - 1 - begin * size) // size)  # The last block may have fewer.
            for miniblock, bits in enumerate(widths[:used], begin):
                if bits:
                    packed.setdefault(bits, []).append((miniblock, at))
                    at += bits * size // 8
    for bits, places in packed.items():
        stored = b"".join(data[start : start + bits * size // 8] for _, start in places)
        differences[[number for number, _ in places]] += _unpacked(stored, bits).reshape(-1, size)
    lengths = np.empty(count, np.int64)
    lengths[0] = first
    np.cumsum(differences.reshape(-1)[: count - 1], out=lengths[1:])
    lengths[1:] += first
    return lengths, at


def _unpacked(stored: bytes, bits: int) -> NDArray[np.int64]:
    """Unsigned numbers of so many bits each, the lowest first; eight at a time are whole bytes."""
    if bits > 31:  # more bits than a length has
        raise _Unexpected
    eights = len(stored) // bits
    numbers = np.empty((eights, 8), np.int64)
    padded = stored + bytes(8)
    for each in range(8):
        byte, shift = divmod(each * bits, 8)
        words: NDArray[np.int64] = np.ndarray((eights,), "<i8", padded, byte, (bits,))
        numbers[:, each] = words >> shift & (1 << bits) - 1
    return numbers.reshape(-1)


def _struct(data: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """(field -> value, where it ends) of a struct in Thrift's compact protocol."""
    fields: dict[int, Any] = {}
    field = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        at += 1
        if step:
            field += step
        else:
            field, at = _zigzag(data, at)
        if kind in (_TRUE, _FALSE):
            fields[field] = kind == _TRUE
        elif kind in (_I16, _I32, _I64):
            fields[field], at = _zigzag(data, at)
        elif kind == _BINARY:
            length, at = _varint(data, at)
            at += length
        elif kind == _STRUCT:
            fields[field], at = _struct(data, at)
        else:
            raise _Unexpected
    return fields, at + 1


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # else another byte follows
            return number, at


def _zigzag(data: memoryview, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return number >> 1 ^ -(number & 1), at
