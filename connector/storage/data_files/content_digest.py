"""The digest of a ledger: a checksum of its messages' keys and values, row by row, in order.

Invariants: it depends on the rows alone, not on how they are cut into batches or stored, so a merge
that copies them keeps it; a missing column counts as one of nulls. Of chunked messages the rows are
the chunks, of a compacted ledger the kept messages.

With the ledger's id and entries it stands for its message ids too: `LedgerSum` adds those up.
"""

from __future__ import annotations

import struct
from typing import Final

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from zlib_ng import zlib_ng

_COLUMNS: Final = ("key", "value")
_SUMS: Final = struct.Struct("<Q4I")
_NULL: Final = -2
"""The length of a null. With -1 a CRC-32 would begin at 0, where it is blind to zeros."""


class ContentDigest:
    """Adds up batches; `value` is the digest of all their rows."""

    def __init__(self) -> None:
        self._rows, self._sums = 0, [0] * 4

    def add(self, messages: pa.Table | pa.RecordBatch) -> None:
        self._rows += messages.num_rows
        for place, name in enumerate(_COLUMNS):
            if name in messages.schema.names:
                self._add(2 * place, messages.column(name))
            else:
                missing = np.full(messages.num_rows, _NULL, np.int32)
                self._sums[2 * place] = zlib_ng.crc32(missing, self._sums[2 * place])

    @property
    def value(self) -> int:
        """A hash of count and sums; a checksum of checksums would be blind, as both are linear."""
        return mmh3.hash(_SUMS.pack(self._rows, *self._sums), signed=False)

    def _add(self, place: int, column: pa.Array | pa.ChunkedArray) -> None:
        """Add a column: its lengths, and apart from them all bytes."""
        for array in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if array.null_count:
                lengths = pc.fill_null(pc.binary_length(array), _NULL).to_numpy()
            else:
                lengths = np.diff(offsets_of(array))
            self._sums[place] = zlib_ng.crc32(lengths, self._sums[place])
            self._sums[place + 1] = zlib_ng.crc32(payload(array), self._sums[place + 1])


def content_digest(messages: pa.Table | pa.RecordBatch) -> int:
    """The digest of these rows."""
    digest = ContentDigest()
    digest.add(messages)
    return digest.value


def payload(array: pa.Array) -> memoryview:
    """The bytes of all values, one behind the other. Nothing is copied where none is null."""
    if array.null_count:
        array = array.drop_null()
    offsets = offsets_of(array)
    data = memoryview(array.buffers()[2] or b"").cast("B")
    return data[int(offsets[0]) : int(offsets[-1])]


def offsets_of(array: pa.Array) -> NDArray[np.int32]:
    """The offset at which each value begins, and the end of the last."""
    if not len(array):
        return np.zeros(1, np.int32)
    held = np.frombuffer(array.buffers()[1], np.int32)
    return held[array.offset : array.offset + len(array) + 1]
