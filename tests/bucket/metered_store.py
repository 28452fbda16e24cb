"""A bucket that counts requests and takes its time: each takes effect halfway.

What a request costs is by the list prices of Amazon S3 (Standard, us-east-1, 2026); the requests
that `obstore` makes for a call are those of `connector/storage/remote_store.py`.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow as pa

from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.storage.object_store import ObjectInfo, ObjectStore, Output
from pulsar_spark.connector.storage.remote_store import (
    PART_BYTES,
    READ_BUFFER_BYTES,
    REQUESTS_AT_ONCE,
)
from tests.bucket.simulated_clock import SimulatedClock

PUT, LIST, GET, DELETE = "PUT", "LIST", "GET", "DELETE"
PRICES: Final = {PUT: 0.005 / 1000, LIST: 0.005 / 1000, GET: 0.0004 / 1000, DELETE: 0.0}
"""Dollars a request. A HEAD is a GET; a part of an upload, its beginning and its end are PUTs."""
DELAY_S: Final = 0.2

_RequestT = TypeVar("_RequestT")
_Answer = TypeVar("_Answer")


@dataclass
class Meter:
    """What was asked for: kind, path, and when."""

    requests: list[tuple[str, str, float]] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        return Counter(kind for kind, _, _ in self.requests)

    @property
    def dollars(self) -> float:
        return sum(PRICES[kind] * number for kind, number in self.counts.items())

    def table(self) -> str:
        """By kind and folder, the most expensive first."""
        where = Counter((kind, path.rpartition("/")[0] or path) for kind, path, _ in self.requests)
        rows = sorted(where.items(), key=lambda each: -PRICES[each[0][0]] * each[1])
        return "\n".join(f"{number:7} {kind:6} {path}" for (kind, path), number in rows)


class MeteredStore(ObjectStore):
    """One process's client of a bucket in memory."""

    remote = True

    def __init__(self, disk: MemoryStore, clock: SimulatedClock, delay_s: float = DELAY_S) -> None:
        self.root, self.clock = disk.root, clock
        self._disk, self._sim, self.delay_s = disk, clock, delay_s
        self.meter = Meter()

    def get(self, path: str) -> bytes | None:
        return self.ask(GET, path, lambda: self._disk.get(path))

    def answers(
        self, request: Callable[[_RequestT], _Answer], paths: Iterable[_RequestT]
    ) -> Iterator[_Answer]:
        asked = list(paths)
        answers: list[_Answer] = []
        for first in range(0, len(asked), REQUESTS_AT_ONCE):
            answers += self._sim.at_once(request, asked[first : first + REQUESTS_AT_ONCE])
        return iter(answers)

    def in_background(self, action: Callable[[], object]) -> None:
        self._sim.spawn(action)

    def get_versioned(self, path: str) -> tuple[bytes, str] | tuple[None, None]:
        return self.ask(GET, path, lambda: self._disk.get_versioned(path))

    def create(self, path: str, data: bytes) -> bool:
        return self.ask(PUT, path, lambda: self._disk.create(path, data))

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        return self.ask(PUT, path, lambda: self._disk.compare_and_swap(path, token, data))

    def touch(self, path: str, data: bytes) -> None:
        self.ask(PUT, path, lambda: self._disk.touch(path, data))

    def size(self, path: str) -> int | None:
        return self.ask(GET, path, lambda: self._disk.size(path))

    def info(self, path: str) -> ObjectInfo | None:
        return self.ask(GET, path, lambda: self._disk.info(path))

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        return iter(self.ask(LIST, f"{folder}/", lambda: list(self._disk.files(folder))))

    def folders(self, folder: str) -> list[str]:
        return self.ask(LIST, f"{folder}/", lambda: self._disk.folders(folder))

    def delete(self, path: str) -> None:
        self.ask(DELETE, path, lambda: self._disk.delete(path))

    def open_input(self, path: str) -> Any:
        self.ask(GET, path, lambda: None)
        return pa.PythonFile(_Input(self, path, self._disk.open_input(path)), mode="r")

    def open_output(self, path: str) -> Output:
        return _Output(self, self._disk, path)

    def ask(self, kind: str, path: str, effect: Callable[[], _Answer]) -> _Answer:
        """A request: there, its effect, and back."""
        self.meter.requests.append((kind, path, self.clock.monotonic_s()))
        self.clock.sleep(self.delay_s / 2)
        answer = effect()
        self.clock.sleep(self.delay_s / 2)
        return answer


class _Input(io.RawIOBase):
    """Reads through a buffer, as `obstore` does; what is in it costs nothing."""

    def __init__(self, store: MeteredStore, path: str, source: Any) -> None:
        super().__init__()
        self._store, self._path, self._source = store, path, source
        self._buffered: tuple[int, int] = (0, 0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._source.seek(offset, whence))

    def tell(self) -> int:
        return int(self._source.tell())

    def read(self, size: int | None = -1) -> bytes:
        at = self.tell()
        data = bytes(self._source.read(None if size in (None, -1) else size))
        first, stop = self._buffered
        if data and not (first <= at and at + len(data) <= stop):
            self._store.ask(GET, self._path, lambda: None)
            self._buffered = at, at + max(len(data), READ_BUFFER_BYTES)
        return data


class _Output(Output):
    """One PUT, or of a large file an upload in parts, of which two are on their way at once."""

    def __init__(self, store: MeteredStore, disk: MemoryStore, path: str) -> None:
        super().__init__(path, pa.BufferOutputStream())
        self._store, self._disk = store, disk

    def _finish(self) -> int | None:
        data = self.sink.getvalue().to_pybytes()
        if len(data) > PART_BYTES:
            parts = -(-len(data) // PART_BYTES)
            self._store.ask(PUT, self.path, lambda: None)
            list(self._store.answers(lambda p: self._store.ask(PUT, p, bool), [self.path] * parts))
        return len(data) if self._store.create(self.path, data) else None

    def _discard(self) -> None:
        self.sink = None
