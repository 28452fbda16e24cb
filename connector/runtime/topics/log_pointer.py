"""The log's pointer: which snapshot is the newest, and up to where the log may be gone.

Invariants: both numbers only rise, moved by compare-and-swap; no log file is removed before
`removed` is at or beyond it. So a process that has read or created the file of commit N, and then
reads a pointer with `removed` below N, knows that this file is the one that everybody sees: its
place was never emptied.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from pulsar_spark.connector.storage.object_store import ObjectStore, join
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.log.ledger_commit import LOG_FOLDER
from pulsar_spark.model.records.stored_record import MOST_SMALL_RECORD_BYTES, StoredFormat, readable

POINTER_FORMAT: Final = StoredFormat(
    "Log file", checked=True, fields=frozenset({"snapshot", "removed", "marks"}),
    most_bytes=MOST_SMALL_RECORD_BYTES,
)  # fmt: skip
POINTER_FILE = f"{LOG_FOLDER}/pointer.json"
LOG_GRACE_MS = 10 * 60 * 1000
MARKS_IN_GRACE = 8
"""The greatest number of moves of the pointer that are remembered for each grace period."""

_NUMBERED = re.compile(r"(\d{20})\.(json|snapshot\.parquet)")


@dataclass(frozen=True, slots=True)
class LogPointer:
    """`snapshot`: its commit's number. `removed`: log files up to it may be gone; -1: none.

    `marks` are (snapshot, time) of earlier moves, oldest first: once a snapshot has stood for the
    grace period, the log files up to it are removed.
    """

    snapshot: int
    removed: int = -1
    marks: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> bytes:
        return POINTER_FORMAT.encode(asdict(self))

    @staticmethod
    def from_json(data: bytes, name: str) -> LogPointer:
        """CorruptFileError if it is damaged; FutureVersionError if a newer version wrote it."""
        record = POINTER_FORMAT.decode(data, name)
        try:
            marks = ((int(number), int(since_ms)) for number, since_ms in record["marks"])
            return LogPointer(int(record["snapshot"]), int(record["removed"]), tuple(marks))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise POINTER_FORMAT.damaged(name, repr(error)) from error

    def moved(
        self, snapshot: int, now_ms: int, grace_ms: int, held: int | None = None
    ) -> LogPointer:
        """The pointer at a newer snapshot; log files superfluous for the grace period are given up.

        Those from the commit `held` on stay: data files are embedded in them. A mark of the future,
        from a writer whose clock is ahead, counts from now on.
        """
        marks = tuple((number, min(since_ms, now_ms)) for number, since_ms in self.marks)
        if not marks or now_ms - marks[-1][1] >= grace_ms // MARKS_IN_GRACE:
            marks = (*marks, (snapshot, now_ms))
        old = [
            number
            for number, since_ms in marks
            if number < snapshot and now_ms - since_ms >= grace_ms
        ]
        superfluous = max(old, default=-1)
        stays = superfluous if held is None else min(superfluous, held - 1)
        removed = max(self.removed, stays)
        kept = (mark for mark in marks if mark[0] > removed and mark[0] >= superfluous)
        return LogPointer(snapshot, removed, tuple(kept))


NO_POINTER = LogPointer(-1)


class PointerFile:
    """Reads and moves one topic's pointer."""

    def __init__(self, store: ObjectStore, folder: str, grace_ms: int = LOG_GRACE_MS) -> None:
        """`grace_ms`: how long log files stay after a snapshot has made them superfluous."""
        self._store, self._folder, self._grace_ms = store, folder, grace_ms
        self.path = join(folder, POINTER_FILE)
        self._seen: tuple[bytes | None, LogPointer] = (None, NO_POINTER)

    def read(self) -> LogPointer:
        """The pointer as of now; NO_POINTER before the first snapshot."""
        return self.parse(self._store.get(self.path))

    def move(self, snapshot: int, now_ms: int, held: int | None = None) -> LogPointer:
        """Move it to a snapshot that exists, unless it is there or beyond; then clean up.

        Commits from number `held` on stay.
        """
        before = after = NO_POINTER

        def moved(data: bytes | None) -> bytes | None:
            nonlocal before, after
            before = after = self.parse(data)
            if before.snapshot >= snapshot:
                return None
            after = before.moved(snapshot, now_ms, self._grace_ms, held)
            return readable(after.to_json, LogPointer.from_json, self.path)

        self._store.replace(self.path, moved)
        if after.removed > before.removed:
            with suppress(PulsarliteError):
                self._remove(after.removed)
        return after

    def _remove(self, removed: int) -> None:
        """Delete commits and snapshots up to a number that the pointer has given up."""
        there = [
            (numbered, item.path)
            for item in self._store.files(join(self._folder, LOG_FOLDER))
            if (numbered := _NUMBERED.fullmatch(item.name))
        ]
        gone = (path for numbered, path in there if int(numbered[1]) <= removed)
        for _ in self._store.answers(self._store.delete, gone):
            pass

    def parse(self, data: bytes | None) -> LogPointer:
        """The pointer that is stored as `data`. Threads may call it beside each other."""
        if data is None:
            return NO_POINTER
        seen = self._seen
        if data != seen[0]:
            seen = self._seen = (data, LogPointer.from_json(data, self.path))
        return seen[1]


def log_numbers(store: ObjectStore, folder: str) -> tuple[set[int], set[int]]:
    """The numbers of the commits and of the snapshots that lie in the topic's log."""
    found: tuple[set[int], set[int]] = (set(), set())
    for item in store.files(join(folder, LOG_FOLDER)):
        if numbered := _NUMBERED.fullmatch(item.name):
            found[numbered[2] != "json"].add(int(numbered[1]))
    return found
