"""A topic's data files held against the log: whether they are there, and what is in them.

Invariants: a file that was merged or trimmed away while somebody looked is no difference; a file
that is wrong is told once, by its first ledger. Without `deep` no file is opened: one listing says
which there are, and how long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from pulsar_spark.connector.ledger_files.content_digest import FIRST_NULL_LENGTH, ContentDigest
from pulsar_spark.connector.ledger_files.ledger_file import (
    DATA_FOLDER,
    MESSAGE_SCHEMA,
    LedgerFileReader,
)
from pulsar_spark.connector.storage.local_store import TEMPORARY_PREFIX
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.connector.topic_log.ledger_store import Progress, unseen
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.verification.log_check import StoredRows, stored_rows
from pulsar_spark.connector.verification.verified import Check, Difference
from pulsar_spark.errors import DAMAGE, ObjectNotFoundError
from pulsar_spark.positions.ledger_info import LedgerInfo

LOOKS: Final = 3
"""How often a ledger is looked up again whose file was gone when it was to be read."""


def check_files(ledger: ManagedLedger) -> tuple[list[Difference], int]:
    """Files that are missing, or not as long as they were; and how many no commit names."""
    state = ledger.state
    folder = join(ledger.folder, DATA_FOLDER)
    listed = {
        join(DATA_FOLDER, item.name): item.size_bytes
        for item in ledger.store.files(folder)
        if not item.name.startswith(TEMPORARY_PREFIX)
    }
    found: list[Difference] = []
    wrong: dict[str, str] = {}
    first: dict[str, StoredRows] = {}
    for each in stored_rows(state, range(state.partitions)):
        first.setdefault(each.ledger.file, each)
        size, seal = listed.get(each.ledger.file), each.ledger.seal
        if size is None:
            wrong[each.ledger.file] = "is not there"
        elif seal is not None and seal.size_bytes != size:
            wrong[each.ledger.file] = (
                f"has {size:,} bytes, and was written with {seal.size_bytes:,}"
            )
    if wrong:
        ledger.refresh()  # a file may have been merged or trimmed away since
    still = ledger.state.files
    for file, why in wrong.items():
        if file in still and (
            file in listed or ledger.store.size(join(ledger.folder, file)) is None
        ):
            found.append(_of(first[file].ledger, Check.FILE, f"{file} {why}"))
    unnamed = listed.keys() - state.files.keys() - state.tombstones.keys()
    return found, len(unnamed)


def check_contents(
    ledger: ManagedLedger, partitions: Collection[int], progress: Progress = unseen
) -> Iterator[Difference]:
    """Read all rows, verify each block, and compare each ledger's digest."""
    every = [*stored_rows(ledger.state, partitions)]
    advance = progress(f"reading {ledger.topic}", sum(each.rows for each in every))
    told: dict[str, Difference] = {}
    with ledger.reader() as reader:
        for each in sorted(every, key=lambda one: (one.ledger.file, one.ledger.first_row)):
            if (difference := _checked(ledger, reader, each)) is not None:
                _tell(told, difference)
            advance(each.rows)
    yield from told.values()


def _tell(told: dict[str, Difference], new: Difference) -> None:
    """Of each file, the first ledger that differs."""
    assert new.file is not None
    known = told.get(new.file)
    if known is None or new.place < known.place:
        told[new.file] = new


def _checked(
    ledger: ManagedLedger, reader: LedgerFileReader, stored: StoredRows
) -> Difference | None:
    """What is wrong with a ledger's rows, wherever they lie by now."""
    now: StoredRows | None = stored
    for _ in range(LOOKS):
        if now is None:
            return None
        try:
            return _difference(reader, now)
        except ObjectNotFoundError:
            ledger.refresh()
            before, now = now, _again(ledger, now)
            if now is not None and now.ledger == before.ledger:
                break
    return _of(stored.ledger, Check.FILE, f"{stored.ledger.file} is not there")


def _again(ledger: ManagedLedger, stored: StoredRows) -> StoredRows | None:
    """The same rows as the log has them by now; None if they are gone."""
    same = (stored.ledger.ledger_id, stored.compacted)
    number = stored.ledger.partition
    for each in stored_rows(ledger.state, [number]):
        if (each.ledger.ledger_id, each.compacted) == same:
            return each
    return None


def _difference(reader: LedgerFileReader, stored: StoredRows) -> Difference | None:
    info = stored.ledger
    try:
        digest = _digest(reader, stored, ContentDigest(), MESSAGE_SCHEMA.names)
        if info.digest in (None, digest.value):
            return None
        digest = _digest(reader, stored, ContentDigest(FIRST_NULL_LENGTH), ("key", "value"))
    except DAMAGE as error:
        return Difference.met(error, Check.FILE, info)
    if info.digest == digest.first_value:
        return None
    what = "the messages that compaction kept" if stored.compacted else "those that were published"
    return _of(info, Check.CONTENT, f"the rows of ledger {info.ledger_id} are not {what}")


def _digest(
    reader: LedgerFileReader, stored: StoredRows, digest: ContentDigest, columns: Sequence[str]
) -> ContentDigest:
    """The digest of the rows; each block of these columns is verified on the way."""
    for batch in reader.read(stored.ledger, columns, 0, stored.rows):
        digest.add(batch)
    return digest


def _of(ledger: LedgerInfo, check: Check, text: str) -> Difference:
    return Difference(check, text, ledger.partition, ledger_id=ledger.ledger_id, file=ledger.file)
