"""One commit of a topic's log: everything that happens to the topic at one instant.

Invariants: equal commits are equal bytes, with their checksum; a field that this version does not
understand is refused, never skipped; a file that it names lies inside the topic's folder, and its
numbers are possible ones of rows and entries. The format is described in `docs/storage-format.md`.

Takes the place of Pulsar's `ManagedLedgerInfo` in the metadata store.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

from pulsar_spark.log.chunked_messages import ChunkRun, chunks_from_json, chunks_to_json
from pulsar_spark.log.producer_registry import ProducerRegistry
from pulsar_spark.log.sequence_ranges import SequenceRange, ranges_from_json, ranges_to_json
from pulsar_spark.log.transaction_attempt import TRANSACTION_FIELDS, Transaction
from pulsar_spark.model.positions.ledger_info import BatchSizes, FileSeal, LedgerInfo
from pulsar_spark.model.records.stored_data import leads_out
from pulsar_spark.model.records.stored_record import StoredFormat
from pulsar_spark.model.schema.schema_info import SchemaInfo

LOG_FOLDER = "_log"
MOST_MESSAGES: Final = (1 << 31) - 1
"""The most messages of a ledger: a task writes a file for each 64 MiB."""
MOST_COMMIT_BYTES: Final = 64 << 20
"""A commit has no more bytes: some 200,000 ledgers."""
_LARGEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Application:
    """The identity of a publication: the `version`-th of the application `id`."""

    id: str
    version: int


@dataclass(frozen=True, slots=True)
class MovedLedger:
    """A ledger whose rows now lie elsewhere; all its ids stay."""

    partition: int
    ledger_id: int
    file: str
    first_row: int
    seal: FileSeal | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One record of the log. Fields that are empty are left out of its JSON.

    `term` is None for writers that can't be fenced; `partitions` and `settings` are only given
    when they change; `trimmed` maps partitions to ledger ids, `hidden` to the JSON of a position
    set that readers subtract, `sequence_ids` to each producer's highest. `sequence_ranges` and
    `chunks` map ids of ledgers of this commit to their ranges and chunks, by producer and by entry
    id. `producers` is the JSON of a ProducerRegistry, when it changes; `compacted` maps partitions
    to the JSON of CompactedLedgers, which take the place of earlier ones. `schemas` are schemas
    added, by version. `reclaimed` are data files that no commit has named and none may name later,
    `forgotten` those that were deleted. `inactive_applications` and `inactive_producers` are
    forgotten: their later publications count as new. `embedded` has the bytes of new data files
    that are so small that the commit contains them, by name. A commit of a `transaction` has its
    effects once that is committed, and none if it is aborted. A commit that is `deleted` says
    nothing else: the topic ends, and a later one with `partitions` makes another under its name.
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
    inactive_applications: tuple[str, ...] = ()
    inactive_producers: tuple[str, ...] = ()
    embedded: Mapping[str, bytes] = field(default_factory=dict)
    transaction: Transaction | None = None
    deleted: bool = False

    @property
    def files(self) -> set[str]:
        """The data files that this commit publishes or moves rows to."""
        kept = (each["file"] for of in self.compacted.values() for each in of["ledgers"])
        return {each.file for each in self.ledgers}.union((m.file for m in self.moved), kept)

    def aborted(self) -> Commit:
        """The commit without effects, for an aborted transaction: it keeps its place in the log."""
        return Commit(self.number, self.commit_id, self.timestamp_ms, transaction=self.transaction)

    def to_json(self) -> bytes:
        application, transaction = self.application, self.transaction
        record = {
            "number": self.number,
            "commit_id": self.commit_id,
            "timestamp_ms": self.timestamp_ms,
            "term": self.term,
            "application": application and asdict(application),
            "transaction": transaction and asdict(transaction),
        }
        for name, (_, write) in _OPTIONAL.items():
            value = getattr(self, name)
            if value or (value is not None and name in _MAY_BE_EMPTY):
                record[name] = write(value)
        return COMMIT_FORMAT.encode(record)

    @staticmethod
    def from_json(data: bytes, name: str, number: int | None = None) -> Commit:
        """From the bytes of the log file `name`, which stands at place `number` of its log.

        CorruptFileError if they are torn, empty or not a commit; FutureVersionError if a newer
        version wrote them.
        """
        record = COMMIT_FORMAT.decode(data, name)
        if isinstance(record.setdefault("transaction", None), dict):
            COMMIT_FORMAT.check_fields(record["transaction"], TRANSACTION_FIELDS, name)
        try:
            commit = _commit_of(record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            why = f"a field is missing or malformed: {error!r}"
            raise COMMIT_FORMAT.damaged(name, why) from error
        if number is not None and commit.number != number:
            raise COMMIT_FORMAT.damaged(name, f"it says that it is number {commit.number}")
        return commit


def log_file(number: int) -> str:
    """The place of a commit, relative to its topic's folder."""
    return f"{LOG_FOLDER}/{number:020d}.json"


def checked_file(file: str) -> str:
    """A data file's path in the topic's folder. ValueError if it could lead out of it."""
    if "/" not in file or leads_out(file):
        raise ValueError(f"{file!r} is no path inside the topic's folder")
    return file


def _commit_of(record: Mapping[str, Any]) -> Commit:
    term, application, transaction = record["term"], record["application"], record["transaction"]
    if application is not None:
        application = Application(_text(application["id"]), _whole(application["version"]))
    commit = Commit(
        number=_count(record["number"]),
        commit_id=_text(record["commit_id"]),
        timestamp_ms=_whole(record["timestamp_ms"]),
        term=None if term is None else _whole(term),
        application=application,
        transaction=None if transaction is None else Transaction.from_json_value(transaction),
        **{name: _OPTIONAL[name][0](value) for name, value in record.items() if name in _OPTIONAL},
    )
    return _with_embedded(commit) if commit.embedded else commit


def _with_embedded(commit: Commit) -> Commit:
    """The commit whose ledgers know that it contains their files. ValueError if they don't fit."""
    sizes = {each.file: each.seal and each.seal.size_bytes for each in commit.ledgers}
    if {file: len(data) for file, data in commit.embedded.items()} != {
        file: sizes.get(file) for file in commit.embedded
    }:
        raise ValueError("it contains files that its ledgers do not have, or of another length")
    inside = (
        replace(each, embedded_in=commit.number) if each.file in commit.embedded else each
        for each in commit.ledgers
    )
    return replace(commit, ledgers=tuple(inside))


def embedded_file(data: bytes, name: str, file: str) -> bytes | None:
    """The data file that the log file `name` contains, from its bytes; None if it is not there."""
    return Commit.from_json(data, name).embedded.get(file)


def ledger_to_json(ledger: LedgerInfo) -> dict[str, Any]:
    """The JSON of one of a commit's ledgers."""
    record = {
        name: write(value)
        for name, (_, write) in _LEDGER.items()
        if (value := getattr(ledger, name)) is not None
    }
    return {"id": ledger.ledger_id, **record}


def ledger_from_json(item: Mapping[str, Any]) -> LedgerInfo:
    """Read `ledger_to_json`. KeyError, TypeError or ValueError if it is none."""
    given = dict(item)
    ledger_id = _count(given.pop("id"))
    if unknown := given.keys() - _LEDGER:
        raise ValueError(f"a ledger has the unknown fields {sorted(unknown)}")
    found = {name: _LEDGER[name][0](each) for name, each in given.items() if each is not None}
    return LedgerInfo(ledger_id, **found)


def _batch_sizes(runs: Sequence[Sequence[int]]) -> BatchSizes:
    """Entries of at least one message each, at least one of them. ValueError otherwise."""
    sizes = BatchSizes.from_json(runs)
    if not 1 <= sizes.messages <= MOST_MESSAGES or min(map(min, sizes.runs)) < 1:
        raise ValueError(f"batch sizes {list(runs)} are empty, too many, or no sizes")
    return sizes


def _ledgers(value: Iterable[Mapping[str, Any]]) -> tuple[LedgerInfo, ...]:
    """No row of a file is in two of them, and each file has one seal. ValueError otherwise."""
    ledgers = tuple(map(ledger_from_json, value))
    for one, other in pairwise(sorted(ledgers, key=attrgetter("file", "first_row"))):
        overlap = one.first_row + one.messages > other.first_row
        if one.file == other.file and (overlap or one.seal != other.seal):
            raise ValueError(
                f"ledgers {one.ledger_id} and {other.ledger_id} don't agree on file {one.file}"
            )
    return ledgers


def _seal(value: Sequence[int]) -> FileSeal | None:
    return FileSeal(*map(_count, value)) if value else None


def _whole(value: Any) -> int:
    if type(value) is int and -_LARGEST <= value <= _LARGEST:
        return value
    raise ValueError(f"{value!r} is no whole number of 64 bits")


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value <= _LARGEST:
        return value
    raise ValueError(f"{value!r} is no number from 0 to {_LARGEST}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _embedded(value: Mapping[str, str]) -> dict[str, bytes]:
    try:
        return {checked_file(file): b64decode(data, validate=True) for file, data in value.items()}
    except binascii.Error as error:
        raise ValueError(f"a file that it contains is no base64: {error}") from error


def _true(value: Any) -> bool:
    if value is True:
        return True
    raise ValueError(f"{value!r} is not true")


def _moved(value: Sequence[Any]) -> MovedLedger:
    partition, ledger_id, file, row, *seal = value
    place = (_count(partition), _count(ledger_id), checked_file(file), _count(row))
    return MovedLedger(*place, _seal(seal))


def _moved_to_json(moved: MovedLedger) -> list[Any]:
    *place, seal = astuple(moved)
    return [*place, *(seal or ())]


def _producers(value: Mapping[str, Any]) -> dict[str, Any]:
    ProducerRegistry.from_json_value(value)
    return dict(value)


def _same(value: Any) -> Any:
    return value


def _each(read: _Change) -> _Change:
    return lambda values: tuple(map(read, values))


def _listed(write: _Change) -> _Change:
    return lambda values: list(map(write, values))


def _by_number(read: _Change) -> _Change:
    return lambda values: {int(number): read(value) for number, value in values.items()}


def _by_text(write: _Change) -> _Change:
    """The keys are text, as JSON wants them; empty values are left out."""
    return lambda values: {str(n): write(value) for n, value in values.items() if value}


_Change = Callable[[Any], Any]
_LEDGER: Final[dict[str, tuple[_Change, _Change]]] = {
    "partition": (_count, _same),
    "file": (checked_file, _same),
    "first_row": (_count, _same),
    "batch_sizes": (_batch_sizes, BatchSizes.to_json),
    "size_bytes": (_count, _same),
    "min_publish_time_ms": (_whole, _same),
    "max_publish_time_ms": (_whole, _same),
    "max_deliver_at_ms": (_whole, _same),
    "seal": (_seal, astuple),
    "digest": (_count, _same),
}
"""Fields of a ledger besides its id: how each is read, and written. None is left out."""
_MAY_BE_EMPTY: Final = {"settings", "producers"}
_OPTIONAL: Final[dict[str, tuple[_Change, _Change]]] = {
    "partitions": (_count, _same),
    "settings": (dict, dict),
    "producers": (_producers, dict),
    "ledgers": (_ledgers, _listed(ledger_to_json)),
    "trimmed": (_by_number(_each(_whole)), _by_text(list)),
    "moved": (_each(_moved), _listed(_moved_to_json)),
    "hidden": (_by_number(_same), _by_text(_same)),
    "sequence_ids": (
        _by_number(lambda ids: {producer: _whole(highest) for producer, highest in ids.items()}),
        _by_text(dict),
    ),
    "sequence_ranges": (ranges_from_json, ranges_to_json),
    "chunks": (chunks_from_json, chunks_to_json),
    "compacted": (_by_number(_same), _by_text(_same)),
    "schemas": (_by_number(SchemaInfo.from_json_value), _by_text(SchemaInfo.to_json_value)),
    "reclaimed": (_each(checked_file), sorted),
    "forgotten": (_each(checked_file), sorted),
    "inactive_applications": (_each(_text), sorted),
    "inactive_producers": (_each(_text), sorted),
    "embedded": (
        _embedded,
        lambda files: {file: b64encode(data).decode("ascii") for file, data in files.items()},
    ),
    "deleted": (_true, _same),
}
"""Fields that are left out where a commit has nothing to say: how each is read, and written."""

COMMIT_FORMAT: Final = StoredFormat(
    "Log file",
    checked=True,
    fields=frozenset(
        {"number", "commit_id", "timestamp_ms", "term", "application", "transaction", *_OPTIONAL}
    ),
    remedy="Nothing was changed; restore the file from a copy, or give the topic up. It can't be "
    "skipped: what it confirmed would be lost.",
    most_bytes=MOST_COMMIT_BYTES,
)
