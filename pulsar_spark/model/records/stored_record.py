"""Stored records: the one way in which each of them is versioned, checked and refused.

Invariants: a record is canonical JSON, so equal records are equal bytes; its last field is the
CRC-32 of all bytes before it, in this version and every later one, so damage is told from a newer
version; what this Pulsarlite does not understand is refused, never skipped. Every format begins
at version 1 with release 0.1.0. `docs/storage-format.md` lists the formats.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pulsar_spark.errors import (
    CorruptFileError,
    FutureVersionError,
    PulsarliteError,
    UnreadableRecordError,
)
from pulsar_spark.model.records.stored_data import parse_json

MOST_RECORD_BYTES: Final = 64 << 20
"""A record has no more bytes, unless its format says another bound: a larger one is damaged."""
MOST_SMALL_RECORD_BYTES: Final = 8 << 20
"""Pointers, leases, decisions and signs of life have no more: they are a few numbers and names."""
CHECKSUM_FIELD: Final = "~crc32"
"""Sorts behind every other field."""

_UNREADABLE: Final = (
    CorruptFileError, FutureVersionError, ArithmeticError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_TAIL_BYTES: Final = len(f',"{CHECKSUM_FIELD}":"01234567"}}')


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """One kind of record: what errors call it, and the version that is written.

    A record that is `checked` carries a checksum; others lie in something that has one. `fields`
    names the fields that a record may have, if its format is closed; `remedy` tells what to do
    about a damaged record. A record of more than `most_bytes` is neither written nor read.
    """

    what: str
    version: int = 1
    checked: bool = False
    fields: frozenset[str] = frozenset()
    remedy: str = "Restore the file from a copy."
    most_bytes: int = MOST_RECORD_BYTES

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Canonical JSON of the record, its version and its checksum."""
        body = canonical_json({**record, "version": self.version})
        return body[:-1] + _tail(body[:-1]) if self.checked else body

    def decode(self, data: bytes, name: str = "") -> dict[str, Any]:
        """The fields of a record called `name`, without version and checksum.

        CorruptFileError if it is damaged; FutureVersionError if a newer version wrote it.
        """
        if not data:
            why = "it is empty, as after a power cut on a disk that lies about fsync"
            raise self.damaged(name, why)
        self.check_length(data, name)
        try:
            record = parse_json(data)
        except ValueError as error:
            raise self.damaged(name, f"it is no JSON, perhaps torn: {error}") from error
        if not isinstance(record, dict):
            raise self.damaged(name, "it holds no JSON object")
        if CHECKSUM_FIELD in record and _tail(data[:-_TAIL_BYTES]) != data[-_TAIL_BYTES:]:
            raise self.damaged(name, "its checksum differs")
        self.check_version(record.pop("version", None), name)
        if record.pop(CHECKSUM_FIELD, None) is None and self.checked:
            raise self.damaged(name, "its checksum is missing")
        if self.fields:
            self.check_fields(record, self.fields, name)
        return record

    def check_length(self, data: bytes, name: str = "") -> None:
        """CorruptFileError if it has more than `most_bytes`."""
        if len(data) > self.most_bytes:
            raise self.damaged(name, f"it has more than {self.most_bytes >> 20} MiB")

    def check_version(self, version: object, name: str = "") -> int:
        """The version of a record; refused if it is none, or newer than this Pulsarlite."""
        if type(version) is not int or version < 1:
            raise self.damaged(name, f"its version is {version!r}")
        if version > self.version:
            raise FutureVersionError(
                f"{self._named(name)} has format version {version}; this Pulsarlite knows up to "
                f"{self.version}. Update Pulsarlite to read it."
            )
        return version

    def check_fields(self, found: Iterable[str], known: Iterable[str], name: str = "") -> None:
        """Refuse fields that nobody knows: to leave them out could lose messages."""
        if unknown := set(found).difference(known):
            raise FutureVersionError(
                f"{self._named(name)} has fields that this version of Pulsarlite does not know: "
                f"{', '.join(sorted(unknown))}. Update Pulsarlite to read it."
            )

    def damaged(self, name: str, why: object) -> CorruptFileError:
        """The error that says so."""
        return CorruptFileError(f"{self._named(name)} is damaged: {why}. {self.remedy}")

    def _named(self, name: str) -> str:
        return f"{self.what} {name}" if name else self.what


def _tail(body: bytes) -> bytes:
    """The end of a record: the checksum of all bytes before it."""
    return f',"{CHECKSUM_FIELD}":"{zlib.crc32(body):08x}"}}'.encode()


def canonical_json(value: Any) -> bytes:
    """The one way in which a value is written down: sorted keys, no blanks, ASCII."""
    return _CANONICAL.encode(value).encode()


def readable(write: Callable[[], bytes], read: Callable[[bytes, str], object], name: str) -> bytes:
    """The bytes of `write`, if `read` takes them; else UnreadableRecordError.

    Every record that is stored passes here first: one that nobody can read ends its topic.
    """
    try:
        data = write()
        read(data, name)
    except _UNREADABLE as error:
        why = error.message if isinstance(error, PulsarliteError) else repr(error)
        raise UnreadableRecordError(
            f"File {name} was not written, for nobody could read it again: {why} Nothing was "
            "stored. Some value that it was made of is out of its bounds: correct that, and try "
            "again."
        ) from error
    return data
