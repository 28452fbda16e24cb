"""A topic's data files held against the log: whether they are there, and what is in them.

Invariants: a file that was merged or trimmed away while somebody looked is no difference; a file
that is wrong is told once, by its first ledger. Without `deep` no file is opened: one listing says
which there are, and how long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from pulsar_spark.connector.inspect.verification.log_check import StoredRows, stored_rows
from pulsar_spark.connector.inspect.verification.verified import Check, Difference
from pulsar_spark.connector.runtime.topics.ledger_store import Progress, no_progress
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.content_digest import ContentDigest
from pulsar_spark.connector.storage.data_files.ledger_file import (
    DATA_FOLDER,
    MESSAGE_SCHEMA,
    LedgerFileReader,
)
from pulsar_spark.connector.storage.local_store import TEMPORARY_PREFIX
from pulsar_spark.connector.storage.object_store import join
from pulsar_spark.errors import DAMAGE, ObjectNotFoundError
from pulsar_spark.model.positions.ledger_info import LedgerInfo

LOOKS: Final = 3
"""The number of times that a ledger is looked up again whose file was gone."""


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
        if each.ledger.embedded_in is not None:  # the log is verified
            continue
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
    ledger: ManagedLedger, partitions: Collection[int], progress: Progress = no_progress
) -> Iterator[Difference]:
    """Read all rows, verify each block, and compare each ledger's digest."""
    every = [*stored_rows(ledger.state, partitions)]
    advance = progress(f"reading {ledger.topic}", sum(each.rows for each in every))
    reported: dict[str, Difference] = {}
    with ledger.reader() as reader:
        for each in sorted(every, key=lambda one: (one.ledger.file, one.ledger.first_row)):
            if (difference := _checked(ledger, reader, each)) is not None:
                _report(reported, difference)
            advance(each.rows)
    yield from reported.values()


def _report(reported: dict[str, Difference], new: Difference) -> None:
    """Keep the first ledger that differs, for each file."""
    assert new.file is not None
    known = reported.get(new.file)
    if known is None or new.place < known.place:
        reported[new.file] = new


def _checked(
    ledger: ManagedLedger, reader: LedgerFileReader, stored: StoredRows
) -> Difference | None:
    """The differences of a ledger's rows, wherever they lie by now."""
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
        digest = ContentDigest()
        for batch in reader.read(stored.ledger, MESSAGE_SCHEMA.names, 0, stored.rows):
            digest.add(batch)  # each block is verified on the way
    except DAMAGE as error:
        return Difference.met(error, Check.FILE, info)
    if info.digest == digest.value:
        return None
    what = "the messages that compaction kept" if stored.compacted else "those that were published"
    return _of(info, Check.CONTENT, f"the rows of ledger {info.ledger_id} are not {what}")


def _of(ledger: LedgerInfo, check: Check, text: str) -> Difference:
    return Difference(check, text, ledger.partition, ledger_id=ledger.ledger_id, file=ledger.file)
