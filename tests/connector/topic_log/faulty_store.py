"""A store in memory that does what object stores and disks do on a bad day, by the throw of a die.

Requests are refused, or seem to be and took effect, now or later; S3 answers 409; the disk is full;
a file vanishes or the line goes dead while it is read; a process is killed in the middle of a call;
and while a call waits, others get on with their work (`meanwhile`).
"""

from __future__ import annotations

import errno
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pulsar_spark.connector.storage.clock import Clock
from pulsar_spark.connector.storage.object_store import ObjectInfo, ObjectStore, Output
from pulsar_spark.errors import ObjectNotFoundError, StorageError, StorageUnavailableError


class KilledError(BaseException):
    """The process that called is no more."""


@dataclass
class Disk:
    """What is stored; `late` are requests that nobody waits for any more."""

    clock: Clock
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    late: list[Callable[[], object]] = field(default_factory=list)

    def write(self, path: str, data: bytes) -> None:
        self.files[path] = data, self.clock.wall_ms()
        self.versions[path] = self.versions.get(path, 0) + 1

    def create(self, path: str, data: bytes) -> bool:
        if path in self.files:
            return False
        self.write(path, data)
        return True

    def swap(self, path: str, token: str | None, data: bytes) -> bool:
        there = str(self.versions[path]) if path in self.files else None
        if there == token:
            self.write(path, data)
        return there == token


@dataclass
class FaultyStore(ObjectStore):
    """One process's view of a disk. Without a die nothing goes wrong."""

    disk: Disk
    die: random.Random | None = None
    rate: float = 0.0
    """Of calls that go wrong."""
    meanwhile: Callable[[], None] | None = None

    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        self.root, self.clock = "memory", self.disk.clock

    def get(self, path: str) -> bytes | None:
        self._line()
        found = self.disk.files.get(path)
        return None if found is None else found[0]

    def get_versioned(self, path: str) -> tuple[bytes, str] | tuple[None, None]:
        self._line()
        if path not in self.disk.files:
            return None, None
        return self.disk.files[path][0], str(self.disk.versions[path])

    def create(self, path: str, data: bytes) -> bool:
        return self._put(lambda: self.disk.create(path, data))

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        return self._put(lambda: self.disk.swap(path, token, data))

    def touch(self, path: str, data: bytes) -> None:
        self._line()
        self.disk.write(path, data)

    def size(self, path: str) -> int | None:
        self._line()
        found = self.disk.files.get(path)
        return None if found is None else len(found[0])

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        self._line()
        for path, (data, written_ms) in list(self.disk.files.items()):
            if path.rpartition("/")[0] == folder:
                yield ObjectInfo(path, len(data), written_ms)

    def folders(self, folder: str) -> list[str]:
        self._line()
        prefix = f"{folder}/" if folder else ""
        below = (path[len(prefix) :] for path in self.disk.files if path.startswith(prefix))
        return sorted({rest.partition("/")[0] for rest in below if "/" in rest})

    def delete(self, path: str) -> None:
        self._put(lambda: self.disk.files.pop(path, None) is not None)

    def open_input(self, path: str) -> Any:
        self._line()
        if path not in self.disk.files:
            raise ObjectNotFoundError(f"File {path} is not there (any more).")
        return pa.PythonFile(_Input(self, path), mode="r")

    def open_output(self, path: str) -> Output:
        self._line()
        return _MemoryOutput(self, path)

    def throw(self) -> float:
        """Below 1 if the call goes wrong: how."""
        if self.meanwhile is not None:
            self.meanwhile()
        if self.die is None or self.die.random() >= self.rate:
            return 1.0
        return self.die.random()

    def _line(self) -> None:
        how = self.throw()
        if how < 0.2:
            raise KilledError
        if how < 1:
            raise StorageUnavailableError("The line is dead.")

    def _put(self, request: Callable[[], bool]) -> bool:
        how = self.throw()
        if how < 0.1:
            raise KilledError
        if how < 0.2:
            raise StorageError("No space left on the device.")
        if how < 0.3:
            raise StorageUnavailableError("The line is dead, before.")
        if how < 0.5:
            return False  # S3's 409
        if how < 0.6:
            self.disk.late.append(request)
            raise StorageUnavailableError("The line is dead, and the request is on its way.")
        done = request()
        if how < 0.7:
            raise KilledError
        if how < 0.85:
            raise StorageUnavailableError("The line is dead, after.")
        if how < 1:
            return False  # sent again, and refused because of itself
        return done


class _Input(io.BytesIO):
    """Reads; or the line is dead, or the file is gone."""

    def __init__(self, store: FaultyStore, path: str) -> None:
        super().__init__(store.disk.files[path][0])
        self._store, self._path = store, path

    def read(self, size: int | None = -1) -> bytes:
        self._store._line()
        if self._path not in self._store.disk.files:
            raise ObjectNotFoundError(f"File {self._path} is not there (any more).")
        return super().read(size)


class _MemoryOutput(Output):
    def __init__(self, store: FaultyStore, path: str) -> None:
        self._store, self._data = store, io.BytesIO()
        super().__init__(path, pa.PythonFile(self, mode="w"))

    closed = False

    def write(self, data: bytes) -> int:
        if self._store.throw() < 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._data.write(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def _finish(self) -> int | None:
        data = self._data.getvalue()
        if not self._store._put(lambda: self._store.disk.create(self.path, data)):
            raise StorageUnavailableError(f"File {self.path} was perhaps not written.")
        return len(data)

    def _discard(self) -> None:
        self._data = io.BytesIO()
