"""Keeps a topic's data files in order: trims, gives up orphans, merges small files, deletes.

Invariants: a file is deleted only after a commit has given it up and a grace period has passed,
so a reader with an older view has time to finish, or finds it gone, refreshes and reads again;
a late commit that names such a file is refused; merging changes no message id. Every method may
stop at any point and run again, in several processes at once.

Follows Pulsar's ledger trimming; merging has no counterpart there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import inf
from typing import TypeAlias

import pyarrow as pa

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.content_digest import content_digest
from pulsar_spark.connector.storage.data_files.ledger_file import (
    DATA_FOLDER,
    FILE_FORMAT,
    MESSAGE_SCHEMA,
    LedgerFileReader,
    LedgerFileWriter,
)
from pulsar_spark.connector.storage.local_store import TEMPORARY_PREFIX
from pulsar_spark.connector.storage.object_store import ObjectInfo, ObjectStore, join
from pulsar_spark.errors import FileReclaimedError, ObjectNotFoundError, TopicDeletedError
from pulsar_spark.log.ledger_commit import LOG_FOLDER, Commit, MovedLedger
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.positions.ledger_info import LedgerInfo

FILE_GRACE_MS = 60 * 60 * 1000
"""Milliseconds for which a file stays after the commit that gave it up."""
ORPHAN_AGE_MS = 24 * 60 * 60 * 1000
"""The age in milliseconds at which a file that no commit names is given up."""
INACTIVE_AGE_MS = 7 * 24 * 60 * 60 * 1000
"""Milliseconds for which an inactive application, or producer, is remembered."""
SMALL_FILE_BYTES = 1 << 20
"""Files up to this length are merged."""
SMALL_FILE_LEDGERS = 1_000
"""A file that has so many ledgers is not small, so tiny ones are not copied again and again."""
MERGED_FILE_BYTES = 64 << 20
"""The size at which the rows of small files fill a merged one."""

Progress: TypeAlias = Callable[[str, int], Callable[[int], object]]
"""Long work calls it with a title and a total; it returns a function that takes the progress made.
`progress_bar` of `connector/tools/command_line/noun.py` makes one that shows it; other callers show
nothing."""


def no_progress(_doing: str, _total: int) -> Callable[[int], object]:
    """The `Progress` of work that nobody looks at."""
    return lambda _done: None


class LedgerStore:
    """The housekeeping of one topic. Times are the ledger's clock."""

    def __init__(
        self, ledger: ManagedLedger, *, grace_ms: int = FILE_GRACE_MS, waits: bool = True
    ) -> None:
        """`waits`: for an open transaction; without it a method does nothing behind one."""
        self.ledger = ledger
        self.grace_ms = grace_ms
        self.waits = waits

    def trim(self, before: Mapping[int, int]) -> Commit | None:
        """Drop each partition's ledgers with an id below `before[partition]`; None if none are.

        Some stay all the same: see `TopicState.trimmable`. A file to which no ledger refers any
        more is given up by the same commit.
        """

        def build(state: TopicState, new: Commit) -> Commit | None:
            trimmed = {
                partition: state.partition(partition).trimmable(ledger_id, new.timestamp_ms)
                for partition, ledger_id in before.items()
                if 0 <= partition < state.partitions
            }
            if not any(trimmed.values()):
                return None
            return replace(new, trimmed=trimmed)

        return self.ledger.commit(build, waits=self.waits)

    def reclaim_orphans(self, *, older_than_ms: int = ORPHAN_AGE_MS) -> Commit | None:
        """Give up the data files that no commit names and that are older; None if there are none.

        Tasks leave them that failed, or whose commit found all messages to be duplicates.
        """
        self.ledger.refresh()
        before_ms = self.ledger.clock() - older_than_ms
        old = [file for file, item in self._data_files().items() if item.modified_ms <= before_ms]

        def build(state: TopicState, new: Commit) -> Commit | None:
            known = {*state.files, *state.tombstones}
            orphans = tuple(file for file in old if file not in known)
            if not orphans:
                return None
            return replace(new, reclaimed=orphans)

        return self.ledger.commit(build, waits=self.waits)

    def sweep(self, *, temporary_age_ms: int = ORPHAN_AGE_MS) -> list[str]:
        """Delete the files that were given up before the grace period; their paths.

        Temporary files of killed writers go too, once they are that old.
        """
        self.ledger.refresh()
        now_ms, graves = self.ledger.clock(), [*self.ledger.state.tombstones.items()]
        due = {file: each for file, each in graves if now_ms - each.since_ms >= self.grace_ms}
        for file, grave in due.items():
            if grave.embedded_in is None:
                self.ledger.store.delete(self._path(file))

        def build(state: TopicState, new: Commit) -> Commit | None:
            gone = tuple(file for file in due if file in state.tombstones)
            return replace(new, forgotten=gone) if gone else None

        self.ledger.commit(build, waits=self.waits)
        for folder in (DATA_FOLDER, LOG_FOLDER):
            delete_temporaries(self.ledger.store, self._path(folder), now_ms - temporary_age_ms)
        return [*due]

    def forget_inactive(self, *, older_than_ms: int = INACTIVE_AGE_MS) -> Commit | None:
        """Forget the applications and producers that publish no more; None if there are none.

        Both clocks have to say so, the one here and that of the log's latest commit: one that is
        ahead forgets nobody.
        """

        def build(state: TopicState, new: Commit) -> Commit | None:
            seen, partitions = state.last_active, map(state.partition, range(state.partitions))
            present = set().union(*(each.sequences.producers for each in partitions))
            before_ms = min(new.timestamp_ms, seen.latest_ms) - older_than_ms
            applications, producers = seen.inactive(before_ms, present)
            if not (applications or producers):
                return None
            return replace(new, inactive_applications=applications, inactive_producers=producers)

        self.ledger.refresh()
        return self.ledger.commit(build, waits=self.waits)

    def merge_small_files(
        self, *, up_to_bytes: int = MERGED_FILE_BYTES, progress: Progress = no_progress
    ) -> list[Commit]:
        """Copy the rows of small files into larger ones, ids unchanged; one commit for each.

        A merged file takes the place of up to `up_to_bytes`, and of about SMALL_FILE_LEDGERS
        ledgers at most, so memory does not grow with the number of files. Its rows lie by
        partition, in ledger order. A file that is trimmed meanwhile is left out. A file inside its
        commit is copied even if it is the only one, so that the log can be cleaned up behind it.
        """
        self.ledger.refresh()
        groups = [
            group
            for group in self._groups(up_to_bytes)
            if len(group) > 1 or any(each.embedded_in is not None for each in chain(*group))
        ]
        messages = sum(each.messages for each in chain(*chain(*groups)))
        advance = progress("merging small files", messages)
        merged = [self._merge(chain(*group), advance) for group in groups]
        return [commit for commit in merged if commit is not None]

    def _merge(
        self, small: Iterable[LedgerInfo], advance: Callable[[int], object]
    ) -> Commit | None:
        ledgers = sorted(small, key=lambda each: (each.partition, each.ledger_id))
        try:
            merged, moved = self._copy(ledgers, advance)
        except ObjectNotFoundError:
            return None  # merged or trimmed by another: the next run sees the rest

        def build(state: TopicState, new: Commit) -> Commit | None:
            if merged in state.tombstones or merged in state.files:
                return None
            still = tuple(
                to
                for each, to in zip(ledgers, moved, strict=True)
                if state.ledgers(each.partition).get(each.ledger_id) == each
            )
            return replace(new, moved=still) if still else None

        try:
            return self.ledger.commit(build, waits=self.waits)
        except FileReclaimedError:
            return None  # taken for an orphan while this process slept: the next run merges

    def _copy(
        self, ledgers: Sequence[LedgerInfo], advance: Callable[[int], object]
    ) -> tuple[str, list[MovedLedger]]:
        """Write the ledgers' rows into a new file; its path, and each ledger's place in it."""
        ledger = self.ledger
        with (
            ledger.reader() as reader,
            LedgerFileWriter(ledger.store, ledger.folder) as writer,
        ):
            first_rows = []
            for each in ledgers:
                first_rows.append(writer.write(_rows(reader, each), each.partition))
                advance(each.messages)
            seal = writer.close()
        return writer.path, [
            MovedLedger(each.partition, each.ledger_id, writer.path, first_row, seal)
            for each, first_row in zip(ledgers, first_rows, strict=True)
        ]

    def _groups(self, up_to_bytes: int) -> Iterator[list[list[LedgerInfo]]]:
        """The ledgers of each small file, oldest first, in groups that fill a merged file."""
        state = self.ledger.state
        sizes = {file: item.size_bytes for file, item in self._data_files().items()}
        files: dict[str, list[LedgerInfo]] = {}
        for partition in range(state.partitions):
            for each in state.ledgers(partition):
                if each.embedded_in is not None and each.seal is not None:
                    sizes[each.file] = each.seal.size_bytes
                if sizes.get(each.file, inf) <= SMALL_FILE_BYTES:
                    files.setdefault(each.file, []).append(each)
        group: list[list[LedgerInfo]] = []
        size_bytes = number = 0
        small = [its for its in files.values() if len(its) < SMALL_FILE_LEDGERS]
        for ledgers in sorted(small, key=lambda its: min(e.ledger_id for e in its)):
            size_bytes += sizes[ledgers[0].file]
            if size_bytes > up_to_bytes or number >= SMALL_FILE_LEDGERS:
                yield group
                group, size_bytes, number = [], sizes[ledgers[0].file], 0
            group.append(ledgers)
            number += len(ledgers)
        yield group

    def _data_files(self) -> dict[str, ObjectInfo]:
        """The files that writers have finished, by their path in the topic's folder."""
        files = self.ledger.store.files(self._path(DATA_FOLDER))
        return {join(DATA_FOLDER, item.name): item for item in files if not _is_temporary(item)}

    def _path(self, file: str) -> str:
        return join(self.ledger.folder, file)


def sweep_deleted(store: ObjectStore, folder: str, topic: str) -> int:
    """Delete all files of a topic that was deleted; how many there were.

    Its log stays, so that no message id comes again: one snapshot, as small as it gets. Files that
    no commit had named are given up first, so that none that comes late is ever named. May stop
    anywhere and run again; if the topic is made again meanwhile, that one's housekeeping does it.
    """
    ledger = ManagedLedger.open_log(store, folder, topic, grace_ms=0)
    deleted: list[str] = []
    with suppress(TopicDeletedError):
        if ledger.state.is_deleted:
            keeping = LedgerStore(ledger, grace_ms=0)
            ledger.write_snapshot()
            keeping.reclaim_orphans(older_than_ms=-ORPHAN_AGE_MS)  # whatever their clocks say
            deleted = keeping.sweep()
            ledger.write_snapshot()
    return len(deleted)


def _rows(reader: LedgerFileReader, ledger: LedgerInfo) -> pa.Table:
    """All rows of a ledger. CorruptFileError if they are not those that were published."""
    rows = reader.read_table(ledger, MESSAGE_SCHEMA.names)
    if ledger.digest not in (None, content_digest(rows)):
        why = f"the rows of ledger {ledger.ledger_id} are not those that were published"
        raise FILE_FORMAT.damaged(ledger.file, why)
    return rows


def delete_temporaries(store: ObjectStore, folder: str, before_ms: int) -> None:
    """Delete the temporary files of killed writers in the folder, if they are that old."""
    for item in list(store.files(folder)):
        if _is_temporary(item) and item.modified_ms <= before_ms:
            store.delete(item.path)


def _is_temporary(item: ObjectInfo) -> bool:
    return item.name.startswith(TEMPORARY_PREFIX)
