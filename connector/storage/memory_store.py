"""An object store in this process's memory: the promises of the others, without a disk.

Invariants: a name appears whole and at once; of several that create a name, or replace the same
content, exactly one succeeds; a file's time is the clock's when it was written. Another process
sees nothing of it, and it is gone with this one. `memory://NAME` is the store of that name, one a
process, whoever asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pulsar_spark.connector.storage.clock import SYSTEM_CLOCK, Clock
from pulsar_spark.connector.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    Output,
    checked_path,
    join,
)
from pulsar_spark.errors import ObjectNotFoundError, StorageError

MEMORY = "memory://"


class MemoryStore(ObjectStore):
    """Files in a dictionary. Safe for several threads."""

    def __init__(self, root: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.root, self.clock = root, clock
        self._files: dict[str, tuple[bytes, int]] = {}
        self._folders: dict[str, dict[str, None]] = {}
        self._lock = threading.Lock()

    @classmethod
    def named(cls, name: str, clock: Clock | None = None) -> MemoryStore:
        """The process's store of that name; made now, with that clock, if there was none.

        StorageError if there is one, and a clock is given that is not its own.
        """
        with _lock:
            store = _stores.get(name)
            if store is None:
                store = _stores[name] = cls(MEMORY + name, clock or SYSTEM_CLOCK)
            elif clock is not None and clock is not store.clock:
                raise StorageError(
                    f"{store.root} has a clock already: give it before the store is used, or "
                    "choose another name."
                )
            return store

    @staticmethod
    def forget(name: str) -> None:
        """Drop the store of that name, with all its files."""
        with _lock:
            _stores.pop(name, None)

    def __repr__(self) -> str:
        return f"MemoryStore({self.root!r})"

    def get(self, path: str) -> bytes | None:
        found = self._files.get(checked_path(path))
        return None if found is None else found[0]

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            if checked_path(path) in self._files:
                return False
            self._put(path, data)
            return True

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        with self._lock:
            if self.get_versioned(path)[1] != token:
                return False
            self._put(path, data)
            return True

    def touch(self, path: str, data: bytes) -> None:
        with self._lock:
            self._put(checked_path(path), data)

    def size(self, path: str) -> int | None:
        data = self.get(path)
        return None if data is None else len(data)

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        for path in self._paths(folder):
            if found := self._files.get(path):
                yield ObjectInfo(path, len(found[0]), found[1])

    def folders(self, folder: str) -> list[str]:
        found = (path for path in self._paths(folder) if path in self._folders)
        return sorted(path.rpartition("/")[2] for path in found)

    def delete(self, path: str) -> None:
        with self._lock:
            if self._files.pop(checked_path(path), None) is not None:
                folder, _, name = path.rpartition("/")
                self._folders[folder].pop(name)

    def open_input(self, path: str) -> Any:
        data = self.get(path)
        if data is None:
            raise ObjectNotFoundError(f"File {path} is not there (any more).")
        return pa.BufferReader(data)

    def open_output(self, path: str) -> Output:
        return _MemoryOutput(self, checked_path(path))

    def _paths(self, folder: str) -> list[str]:
        """The paths of the files and folders directly in the folder."""
        if folder:
            checked_path(folder)
        return [join(folder, name) for name in tuple(self._folders.get(folder, ()))]

    def _put(self, path: str, data: bytes) -> None:
        """Store the file under the lock. A folder stays when its last file goes, as on a disk."""
        self._files[path] = (bytes(data), self.clock.wall_ms())
        inner = path
        while inner:
            folder, _, name = inner.rpartition("/")
            held = self._folders.setdefault(folder, {})
            if name in held:
                return
            held[name] = None
            inner = folder


class _MemoryOutput(Output):
    """A buffer, stored whole at the end."""

    def __init__(self, store: MemoryStore, path: str) -> None:
        super().__init__(path, pa.BufferOutputStream())
        self._store = store

    def _finish(self) -> int | None:
        data = self.sink.getvalue().to_pybytes()
        return len(data) if self._store.create(self.path, data) else None

    def _discard(self) -> None:
        self.sink = None


_stores: dict[str, MemoryStore] = {}
_lock = threading.Lock()
