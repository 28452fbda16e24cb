"""Checksums of a data file: of each 64 KiB before its Parquet footer, and of the footer itself.

Invariants: the footer has the checksums of all blocks before it, and the log has the footer's (its
`FileSeal`), so no changed byte reaches Arrow, whose C++ may abort, spin or yield fewer rows on
damage; a footer is read and verified once for each open file, with the one request that fetches it;
blocks that came with the footer are not read again.

Stands where BookKeeper has the digest of each entry.
"""

from __future__ import annotations

import base64
import binascii
import io
from typing import Any, Final

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from pulsar_spark.errors import StorageError
from pulsar_spark.model.positions.ledger_info import FileSeal

BLOCK_BYTES: Final = 1 << 16
TAIL_BYTES: Final = 1 << 16
"""So many bytes of the end of a file are read at once; few footers are longer."""
KEPT_BYTES: Final = 1 << 20
"""The longest read that is kept for the next one."""

_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 4 + len(_MAGIC)
"""The length of what follows the footer: its length, and the magic."""


class DamagedError(OSError):
    """The bytes of a file are not those that were written."""


class SummedOutput(io.RawIOBase):
    """A Parquet writer's output: passes bytes on, and sums them up.

    StorageError, which names the file by `path`, if the disk takes no more.
    """

    def __init__(self, sink: pa.NativeFile, path: str) -> None:
        super().__init__()
        self._sink, self._path = sink, path
        self._sums: list[int] = []
        self._filled = self._crc32 = 0
        self._footer_crc32: int | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        try:
            self._sink.write(data)
        except OSError as error:
            raise StorageError(
                f"Could not write {self._path}: {error}. Nothing of it is kept. Check the disk and "
                "the rights on it, then try again."
            ) from error
        if self._footer_crc32 is not None:
            self._footer_crc32 = zlib_ng.crc32(view, self._footer_crc32)
            return len(view)
        start = 0
        while start < len(view):
            part = view[start : start + BLOCK_BYTES - self._filled]
            self._crc32 = zlib_ng.crc32(part, self._crc32)
            self._filled += len(part)
            start += len(part)
            if self._filled == BLOCK_BYTES:
                self._sums.append(self._crc32)
                self._filled = self._crc32 = 0
        return len(view)

    def end_of_blocks(self) -> str:
        """The checksums of all blocks, for the footer: all later bytes are the footer's."""
        if self._filled:
            self._sums.append(self._crc32)
        self._footer_crc32 = 0
        return base64.b64encode(np.array(self._sums, "<u4").tobytes()).decode("ascii")

    def seal(self, size_bytes: int) -> FileSeal:
        """The seal of the whole file, once its footer is written."""
        assert self._footer_crc32 is not None
        return FileSeal(size_bytes, self._footer_crc32)


class CheckedInput(io.RawIOBase):
    """A file of which every byte is verified before it is handed out. For one thread at a time.

    DamagedError if something differs. The footer is verified by the `seal`, if it is given, and
    the blocks from `check_blocks` on, by the checksums that the footer has.
    """

    def __init__(self, source: pa.NativeFile, seal: FileSeal | None) -> None:
        super().__init__()
        self._source, self._at = source, 0
        self._size = int(source.size())
        if seal is not None and self._size != seal.size_bytes:
            raise DamagedError(f"it has {self._size} bytes, and had {seal.size_bytes}")
        start = max(self._size - TAIL_BYTES, 0)
        self._kept = start, self._read_from(start, self._size)
        self._footer_at = self._start_of_footer(self._kept[1])
        self.footer = self._kept[1].slice(max(self._footer_at - start, 0))
        if self._footer_at < start:
            self.footer = self._read_from(self._footer_at, self._size)
        if seal is not None and zlib_ng.crc32(self.footer) != seal.footer_crc32:
            raise DamagedError("its footer has another checksum")
        self._sums: Any = None

    @property
    def verifies(self) -> bool:
        """True if blocks are verified, so that checksums of pages say nothing more."""
        return self._sums is not None

    def check_blocks(self, sums: bytes) -> None:
        """Verify blocks from now on, by these checksums of the footer."""
        try:
            found = np.frombuffer(base64.b64decode(sums, validate=True), "<u4")
        except (binascii.Error, ValueError) as error:
            raise DamagedError(f"its checksums are malformed: {error}") from error
        if len(found) != -(-self._footer_at // BLOCK_BYTES):
            raise DamagedError(f"it has {len(found)} checksums for {self._footer_at} bytes")
        self._sums = found.tolist()
        start, data = self._kept
        first = -(-start // BLOCK_BYTES) * BLOCK_BYTES
        self._kept = first, data.slice(min(first - start, len(data)))
        if first < self._footer_at:
            self._check(first, self._kept[1].slice(0, self._footer_at - first))

    def opened(self) -> pa.NativeFile:
        """The file for Arrow; a short one is in memory as a whole, and costs no call to Python."""
        start, data = self._kept
        return pa.PythonFile(self, "r") if start else pa.BufferReader(data)

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """Up to `nbytes` bytes from `offset` on."""
        stop = min(offset + nbytes, self._size)
        start, data = self._kept
        if start <= offset and stop <= start + len(data):
            return data.slice(offset - start, max(stop - offset, 0))
        if offset >= self._footer_at:
            return self.footer.slice(offset - self._footer_at, max(stop - offset, 0))
        if self._sums is None:
            return self._read_from(offset, stop)
        first = offset // BLOCK_BYTES * BLOCK_BYTES
        last = min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, self._footer_at)
        data = self._read_from(first, last)
        self._check(first, data)
        if len(data) <= KEPT_BYTES:
            self._kept = first, data
        return data.slice(offset - first, min(stop, last) - offset)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> Any:
        requested = self._size - self._at if size is None or size < 0 else size
        data = self.read_at(requested, self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()

    def _start_of_footer(self, tail: pa.Buffer) -> int:
        end = bytes(tail[-_END_BYTES:]) if len(tail) >= _END_BYTES else b""
        start = self._size - _END_BYTES - int.from_bytes(end[:4], "little")
        if not end.endswith(_MAGIC) or start < len(_MAGIC):
            raise DamagedError("it does not end as a Parquet file does, perhaps cut off")
        return start

    def _read_from(self, start: int, stop: int) -> pa.Buffer:
        self._source.seek(start)
        data = self._source.read_buffer(stop - start)
        if len(data) != stop - start:
            raise DamagedError(f"it ends at {start + len(data)}, before its {self._size} bytes")
        return data

    def _check(self, first: int, data: pa.Buffer) -> None:
        """Verify whole blocks (the last one before the footer may be shorter)."""
        view = memoryview(data)
        for number, at in enumerate(range(0, len(view), BLOCK_BYTES), first // BLOCK_BYTES):
            if zlib_ng.crc32(view[at : at + BLOCK_BYTES]) != self._sums[number]:
                raise DamagedError(f"its bytes from {number * BLOCK_BYTES} on were changed")
