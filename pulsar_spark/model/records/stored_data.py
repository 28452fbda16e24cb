"""Bytes that were stored, read back: JSON, zlib and paths, within bounds.

Invariant: whatever the bytes are, what is raised is a ValueError, and no more memory is taken than
twice a bound; who reads names the file, or the record, in an error of its own.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

MOST_INFLATED_BYTES: Final = 1 << 27
"""More than cursors, hidden messages and the broker's arrays come to; a bomb has more."""
SPARE_FRAMES: Final = 30
"""A value that was parsed can be printed, or walked, from so many calls further down."""

_NO_NAMES: Final = frozenset({"", ".", ".."})


def parse_json(data: bytes | str) -> Any:
    """The value. ValueError if it is no JSON, or nested deeper than any that is written here."""
    try:
        return _parse(data if isinstance(data, str) else data.decode(), SPARE_FRAMES)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def leads_out(path: str) -> bool:
    """True if it may lead out of its folder: it has a part that is empty, `.` or `..`, or a NUL."""
    return "\0" in path or not _NO_NAMES.isdisjoint(path.split("/"))


def inflate(data: bytes, most_bytes: int = MOST_INFLATED_BYTES) -> bytes:
    """The bytes that zlib compressed.

    ValueError if they are damaged, or would be larger than that.
    """
    engine = zlib.decompressobj()
    try:
        result = engine.decompress(data, most_bytes)
        if not engine.eof and engine.decompress(engine.unconsumed_tail, 1):
            raise ValueError(f"the compressed bytes stand for more than {most_bytes}")
    except zlib.error as error:
        raise ValueError(f"the compressed bytes are damaged: {error}") from error
    if not engine.eof or engine.unused_data:
        raise ValueError("the compressed bytes are cut off, or followed by others")
    return result


def _parse(text: str, spare: int) -> Any:
    return _parse(text, spare - 1) if spare else json.loads(text)
