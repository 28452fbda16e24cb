"""One commit of a topic's log: everything that happens to the topic at one instant.

Invariants: a commit is canonical JSON (sorted keys, no blanks), so equal commits are equal bytes;
what this version does not understand is refused, never skipped; a file that it names lies inside
the topic's folder. The format is described in `docs/storage-format.md`.

Takes the place of Pulsar's `ManagedLedgerInfo` in the metadata store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsar_spark.chunked_messages import ChunkRun
from pulsar_spark.errors import CorruptFileError, FutureVersionError, UnreadableRecordError
from pulsar_spark.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.producer_registry import ProducerRegistry
from pulsar_spark.schema_info import SchemaInfo
from pulsar_spark.sequence_ranges import SequenceRange, ranges_from_json, ranges_to_json
from pulsar_spark.transaction_attempt import Transaction, unknown_fields

LOG_VERSION = 1
LOG_FOLDER = "_log"


@dataclass(frozen=True, slots=True)
class Application:
    """What makes a publication recognisable: the `version`-th of the application `id`."""

    id: str
    version: int


@dataclass(frozen=True, slots=True)
class MovedLedger:
    """A ledger whose rows now lie elsewhere; all its ids stay."""

    partition: int
    ledger_id: int
    file: str
    first_row: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One record of the log. Fields that are empty are left out of its JSON.

    `term` is None for writers that can't be fenced; `partitions` and `settings` are only given
    when they change; `trimmed` maps partitions to ledger ids, `hidden` to the JSON of a position
    set that readers subtract, `sequence_ids` to each producer's highest. `sequence_ranges` and
    `chunks` map ids of ledgers of this commit to what they hold, by producer and by entry id.
    `producers` is the JSON of a ProducerRegistry, when it changes; `compacted` maps partitions to
    the JSON of CompactedLedgers, which take the place of earlier ones. `schemas` are schemas added,
    by version. `reclaimed` are data files that no commit named and none may name later, `forgotten`
    such as are deleted. All that a commit of a `transaction` says holds once that is committed, and
    never if it is aborted.
    """

    number: int
    commit_id: str
    timestamp_ms: int
    term: int | None = None
    application: Application | None = None
    partitions: int | None = None
    settings: Mapping[str, Any] | None = None
    ledgers: tuple[LedgerInfo, ...] = ()
    trimmed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    moved: tuple[MovedLedger, ...] = ()
    hidden: Mapping[int, Any] = field(default_factory=dict)
    sequence_ids: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    sequence_ranges: Mapping[int, Mapping[str, SequenceRange]] = field(default_factory=dict)
    chunks: Mapping[int, tuple[ChunkRun, ...]] = field(default_factory=dict)
    producers: Mapping[str, Any] | None = None
    compacted: Mapping[int, Any] = field(default_factory=dict)
    schemas: Mapping[int, SchemaInfo] = field(default_factory=dict)
    reclaimed: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    transaction: Transaction | None = None

    @property
    def files(self) -> set[str]:
        """The data files that it names as published, in this commit for the first time."""
        kept = (each["file"] for of in self.compacted.values() for each in of["ledgers"])
        return {each.file for each in self.ledgers}.union((m.file for m in self.moved), kept)

    def aborted(self) -> Commit:
        """What is left of it when its transaction is aborted: its place in the log."""
        return Commit(self.number, self.commit_id, self.timestamp_ms, transaction=self.transaction)

    def to_json(self) -> bytes:
        """The canonical bytes of the log file."""
        record: dict[str, Any] = {
            "version": LOG_VERSION,
            "number": self.number,
            "commit_id": self.commit_id,
            "timestamp_ms": self.timestamp_ms,
            "transaction": self.transaction.to_json_value() if self.transaction else None,
            "term": self.term,
            "application": None,
        }
        if self.application:
            record["application"] = {
                "id": self.application.id,
                "version": self.application.version,
            }
        if self.partitions is not None:
            record["partitions"] = self.partitions
        if self.settings is not None:
            record["settings"] = dict(self.settings)
        if self.producers is not None:
            record["producers"] = dict(self.producers)
        lists: dict[str, Any] = {
            "ledgers": [ledger_to_json(ledger) for ledger in self.ledgers],
            "trimmed": _keyed({p: list(ids) for p, ids in self.trimmed.items() if ids}),
            "moved": [[m.partition, m.ledger_id, m.file, m.first_row] for m in self.moved],
            "hidden": _keyed(self.hidden),
            "sequence_ids": _keyed({p: dict(s) for p, s in self.sequence_ids.items() if s}),
            "sequence_ranges": ranges_to_json(self.sequence_ranges),
            "chunks": _keyed({k: [run.to_json() for run in v] for k, v in self.chunks.items()}),
            "compacted": _keyed(self.compacted),
            "schemas": _keyed({k: schema.to_json_value() for k, schema in self.schemas.items()}),
            "reclaimed": sorted(self.reclaimed),
            "forgotten": sorted(self.forgotten),
        }
        record.update({name: value for name, value in lists.items() if value})
        return canonical_json(record)

    @staticmethod
    def from_json(data: bytes, name: str, number: int | None = None) -> Commit:
        """From the bytes of the log file `name`, which stands at place `number` of its log.

        CorruptFileError if they are torn, empty or not a commit; FutureVersionError if a newer
        version wrote them.
        """
        record = read_json(data, name)
        check_version(record, LOG_VERSION, name)
        if unknown := sorted(set(record) - _FIELDS):
            raise FutureVersionError(
                f"Log file {name} has fields that this version of Pulsarlite does not know: "
                f"{', '.join(unknown)}. Update Pulsarlite to read this topic."
            )
        if unknown := unknown_fields(record.get("transaction")):
            raise FutureVersionError(
                f"Log file {name} belongs to a transaction with fields that this version of "
                f"Pulsarlite does not know: {', '.join(unknown)}. Update Pulsarlite to read this "
                "topic."
            )
        try:
            commit = _commit_of(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(name, f"a field is missing or malformed: {error!r}") from error
        if number is not None and commit.number != number:
            raise _damaged(name, f"it says that it is number {commit.number}")
        return commit


_FIELDS = {
    "version", "number", "commit_id", "timestamp_ms", "term", "transaction", "application",
    "partitions", "settings", "ledgers", "trimmed", "moved", "hidden", "sequence_ids",
    "sequence_ranges", "chunks", "producers", "compacted", "schemas", "reclaimed", "forgotten",
}  # fmt: skip


def log_file(number: int) -> str:
    """The place of a commit, relative to its topic's folder."""
    return f"{LOG_FOLDER}/{number:020d}.json"


def canonical_json(value: Any) -> bytes:
    """The one way in which a value is written down."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def readable(write: Callable[[], bytes], read: Callable[[bytes, str], object], name: str) -> bytes:
    """What `write` makes, if `read` takes it (and the name); else UnreadableRecordError.

    Every record that is stored passes here first: one that nobody can read ends its topic.
    """
    try:
        data = write()
        read(data, name)
    except (CorruptFileError, FutureVersionError) as error:
        raise _unreadable(name, error.message) from error
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise _unreadable(name, repr(error)) from error
    return data


def read_json(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object out of a stored file. CorruptFileError if it is none."""
    if not data:
        raise _damaged(name, "it is empty, as after a power cut on a disk that lies about fsync")
    try:
        record = json.loads(data)
    except ValueError as error:
        raise _damaged(name, f"it is no JSON, perhaps torn: {error}") from error
    if not isinstance(record, dict):
        raise _damaged(name, "it holds no JSON object")
    return record


def check_version(record: Mapping[str, Any], known: int, name: str) -> None:
    """Refuse a record that a newer version of Pulsarlite wrote, or nobody of ours."""
    version = record.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _damaged(name, f"its version is {version!r}")
    if version > known:
        raise FutureVersionError(
            f"File {name} has format version {version}; this Pulsarlite knows up to {known}. "
            "Update Pulsarlite to read this topic."
        )


def checked_file(file: str) -> str:
    """A data file's path in the topic's folder. ValueError if it could lead out of it."""
    parts = file.split("/")
    if len(parts) < 2 or any(part in ("", ".", "..") for part in parts) or "\0" in file:
        raise ValueError(f"{file!r} is no path inside the topic's folder")
    return file


def _commit_of(record: Mapping[str, Any]) -> Commit:
    application = record["application"]
    partitions, settings, term = record.get("partitions"), record.get("settings"), record["term"]
    producers, transaction = record.get("producers"), record.get("transaction")
    if producers is not None:
        ProducerRegistry.from_json_value(producers)
    return Commit(
        number=_whole(record["number"]),
        commit_id=_text(record["commit_id"]),
        timestamp_ms=_whole(record["timestamp_ms"]),
        term=None if term is None else _whole(term),
        application=None
        if application is None
        else Application(_text(application["id"]), _whole(application["version"])),
        partitions=None if partitions is None else _whole(partitions),
        settings=None if settings is None else dict(settings),
        ledgers=tuple(ledger_from_json(item) for item in record.get("ledgers", ())),
        trimmed={
            int(partition): tuple(_whole(ledger_id) for ledger_id in ids)
            for partition, ids in record.get("trimmed", {}).items()
        },
        moved=tuple(
            MovedLedger(_whole(partition), _whole(ledger_id), checked_file(file), _whole(row))
            for partition, ledger_id, file, row in record.get("moved", ())
        ),
        hidden={int(partition): value for partition, value in record.get("hidden", {}).items()},
        sequence_ids={
            int(partition): {producer: _whole(highest) for producer, highest in each.items()}
            for partition, each in record.get("sequence_ids", {}).items()
        },
        sequence_ranges=ranges_from_json(record.get("sequence_ranges", {})),
        chunks={
            int(ledger_id): tuple(ChunkRun.from_json(run) for run in runs)
            for ledger_id, runs in record.get("chunks", {}).items()
        },
        producers=None if producers is None else dict(producers),
        compacted={
            int(partition): value for partition, value in record.get("compacted", {}).items()
        },
        schemas={
            int(version): SchemaInfo.from_json_value(value)
            for version, value in record.get("schemas", {}).items()
        },
        reclaimed=tuple(checked_file(file) for file in record.get("reclaimed", ())),
        forgotten=tuple(checked_file(file) for file in record.get("forgotten", ())),
        transaction=None if transaction is None else Transaction.from_json_value(transaction),
    )


def ledger_to_json(ledger: LedgerInfo) -> dict[str, Any]:
    """One of a commit's ledgers."""
    record = {
        "id": ledger.ledger_id,
        "partition": ledger.partition,
        "file": ledger.file,
        "first_row": ledger.first_row,
        "batch_sizes": ledger.batch_sizes.to_json(),
        "size_bytes": ledger.size_bytes,
        "min_publish_time_ms": ledger.min_publish_time_ms,
        "max_publish_time_ms": ledger.max_publish_time_ms,
    }
    if ledger.max_deliver_at_ms is not None:
        record["max_deliver_at_ms"] = ledger.max_deliver_at_ms
    return record


def ledger_from_json(item: Mapping[str, Any]) -> LedgerInfo:
    """Read `ledger_to_json`. KeyError, TypeError or ValueError if it is none."""
    if unknown := set(item) - _LEDGER_FIELDS:
        raise ValueError(f"a ledger has the unknown fields {sorted(unknown)}")
    deliver_at = item.get("max_deliver_at_ms")
    return LedgerInfo(
        ledger_id=_whole(item["id"]),
        partition=_whole(item["partition"]),
        file=checked_file(item["file"]),
        first_row=_whole(item["first_row"]),
        batch_sizes=checked_batch_sizes(item["batch_sizes"]),
        size_bytes=_whole(item["size_bytes"]),
        min_publish_time_ms=_whole(item["min_publish_time_ms"]),
        max_publish_time_ms=_whole(item["max_publish_time_ms"]),
        max_deliver_at_ms=None if deliver_at is None else _whole(deliver_at),
    )


_LEDGER_FIELDS = {
    "id", "partition", "file", "first_row", "batch_sizes", "size_bytes", "min_publish_time_ms",
    "max_publish_time_ms", "max_deliver_at_ms",
}  # fmt: skip


def checked_batch_sizes(runs: Sequence[Sequence[int]]) -> BatchSizes:
    """Entries of at least one message each, at least one of them. ValueError otherwise."""
    sizes = BatchSizes.from_json(runs)
    if not sizes.runs or any(size < 1 or count < 1 for size, count in sizes.runs):
        raise ValueError(f"batch sizes {list(runs)} are no entries of one message or more")
    return sizes


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _keyed(by_partition: Mapping[int, Any]) -> dict[str, Any]:
    """With the text keys that JSON wants."""
    return {str(partition): value for partition, value in by_partition.items()}


def _unreadable(name: str, why: str) -> UnreadableRecordError:
    return UnreadableRecordError(
        f"File {name} was not written, for nobody could read it again: {why} Nothing was stored. "
        "Some value that it was made of is out of its bounds: correct that, and try again."
    )


def _damaged(name: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"Log file {name} is damaged: {why}. Nothing was changed; restore the file from a copy, "
        "or give the topic up. It can't be skipped: what it confirmed would be lost."
    )
