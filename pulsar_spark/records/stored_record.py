"""Stored records: the one way in which each of them is versioned, checked and refused.

Invariants: a record is canonical JSON, so equal records are equal bytes; its last field is the
CRC-32 of all bytes before it, in this version and every later one, so damage is told from a newer
version; what this Pulsarlite does not understand is refused, never skipped. Records from before
they had a checksum are read without it. `docs/storage-format.md` lists the formats.
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
from pulsar_spark.records.stored_data import parse_json

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

    Records of version `checked_since` and later carry a checksum; None: what they lie in has one.
    `fields` are those that a record may have, if somebody has to say; `remedy` is what to do
    about a damaged one.
    """

    what: str
    version: int
    checked_since: int | None = None
    fields: frozenset[str] = frozenset()
    remedy: str = "Restore the file from a copy."

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Canonical JSON of the record, its version and its checksum."""
        body = canonical_json({**record, "version": self.version})
        return body if self.checked_since is None else body[:-1] + _tail(body[:-1])

    def decode(self, data: bytes, name: str = "") -> dict[str, Any]:
        """The fields of a record called `name`, without version and checksum.

        CorruptFileError if it is damaged; FutureVersionError if a newer version wrote it.
        """
        if not data:
            why = "it is empty, as after a power cut on a disk that lies about fsync"
            raise self.damaged(name, why)
        try:
            record = parse_json(data)
        except ValueError as error:
            raise self.damaged(name, f"it is no JSON, perhaps torn: {error}") from error
        if not isinstance(record, dict):
            raise self.damaged(name, "it holds no JSON object")
        if CHECKSUM_FIELD in record and _tail(data[:-_TAIL_BYTES]) != data[-_TAIL_BYTES:]:
            raise self.damaged(name, "its checksum differs")
        version = self.check_version(record.pop("version", None), name)
        unchecked = record.pop(CHECKSUM_FIELD, None) is None
        if unchecked and self.checked_since is not None and version >= self.checked_since:
            raise self.damaged(name, "its checksum is missing")
        if self.fields:
            self.check_fields(record, self.fields, name)
        return record

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
    """What `write` makes, if `read` takes it (and the name); else UnreadableRecordError.

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
