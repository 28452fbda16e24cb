"""The store of bytes: one narrow interface over a local folder and the object stores.

Invariants: a path is relative to the root and never leaves it; a file is written once and whole,
under a name that did not exist (`put_if_absent`, `open_output`), or replaced only by a caller that
saw its content (`replace`); a confirmed call survives a power cut. A file that could not be created
is taken to exist only if it was seen. Every wait has a bound.

Nothing here knows of topics or logs. Stands where Pulsar has BookKeeper and ZooKeeper.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from pulsar_spark.connector.storage.clock import SYSTEM_CLOCK, Clock
from pulsar_spark.errors import StorageError, StorageUnavailableError, UnreadableFileError
from pulsar_spark.model.records.stored_data import leads_out

CREATE_ATTEMPTS = 10
"""The number of attempts to put a file that was neither created nor found."""
SWAP_ATTEMPTS = 100
"""The number of times that a file is read again after another writer has replaced it."""
MOST_BYTES = 256 << 20
"""A file that is read whole has no more bytes; the largest are snapshots. Messages are streamed."""
LOST_RACE_PAUSE_S = 0.02
"""The longest pause on an object store after each lost race, times the races lost, up to 50."""

_RequestT = TypeVar("_RequestT")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A stored file: its path from the root, its length, when it was last written."""

    path: str
    size_bytes: int
    modified_ms: int

    @property
    def name(self) -> str:
        """Its name in its folder."""
        return self.path.rpartition("/")[2]


class Output(ABC):
    """A data file being written to `sink`. It gets its name at `close`, and then is durable.

    Never closed, it leaves nothing behind under its name.
    """

    def __init__(self, path: str, sink: Any) -> None:
        """`sink`: a pyarrow NativeFile."""
        self.path, self.sink = path, sink
        self._is_open = True

    def close(self) -> int:
        """Make it durable and visible; its size in bytes. StorageError if the name is taken."""
        if not self._is_open:
            raise StorageError(f"File {self.path} was closed or given up before.")
        self._is_open = False
        size = self._finish()
        if size is None:
            raise StorageError(f"File {self.path} exists already; a data file is written once.")
        return size

    def abort(self) -> None:
        """Forget what was written. Harmless after `close`."""
        if self._is_open:
            self._is_open = False
            self._discard()

    @abstractmethod
    def _finish(self) -> int | None:
        """Do what `close` says; None if the name is taken."""

    @abstractmethod
    def _discard(self) -> None:
        """Do what `abort` says."""


class ObjectStore(ABC):
    """Named blobs under one root. Every path is relative to it, with `/` between its parts."""

    root: str
    clock: Clock = SYSTEM_CLOCK
    """The clock of all code that works on this store."""
    remote: bool = False
    """True where a call is a request over the network, and polls should be few."""

    def local_folder(self, path: str) -> str | None:  # noqa: ARG002
        """The folder's path on this machine; None if it is not on a disk of it."""
        return None

    @abstractmethod
    def get(self, path: str) -> bytes | None:
        """The content, or None if there is no such file.

        UnreadableFileError if it is no regular file, or has more than MOST_BYTES.
        """

    def answers(
        self, request: Callable[[_RequestT], _Answer], paths: Iterable[_RequestT]
    ) -> Iterator[_Answer]:
        """A request for each path, in their order; over a network several at once."""
        return map(request, paths)

    def at_once(self, requests: Iterable[Callable[[], object]]) -> None:
        """Do all of these beside each other, over a network; elsewhere none: they are for speed."""
        if self.remote:
            for _ in self.answers(lambda request: request(), requests):
                pass

    def in_background(self, action: Callable[[], object]) -> None:
        """Do it now; over a network beside what follows, where it raises nothing that is heard."""
        action()

    def all_of(
        self, work: Callable[[_RequestT], _Answer], items: Iterable[_RequestT]
    ) -> list[_Answer]:
        """The work for each item, in their order; many wait for the disk or network together.

        At the first error, in that order, it ends; work that was begun beside that is done first.
        """
        return list(self.answers(work, items))

    def get_versioned(self, path: str) -> tuple[bytes, str] | tuple[None, None]:
        """(content, the token by which `compare_and_swap` knows it), or None twice: no file."""
        data = self.get(path)
        return (None, None) if data is None else (data, sha256(data).hexdigest())

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Create the file whole and durable; False if that was refused.

        It may be refused though the name is free, by S3's 409, and a request that was sent again
        may be refused because of itself. `put_if_absent` tells these apart.
        """

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create the file whole and durable; False if it was seen there, with whatever content.

        So after True and after False there is a file. StorageUnavailableError if it is neither
        created nor there.
        """
        for lost in range(CREATE_ATTEMPTS):
            try:
                if self.create(path, data):
                    return True
            except StorageUnavailableError:
                if not self.exists(path):
                    raise
                return False
            if self.exists(path):
                return False
            self.pause(lost)
        raise StorageUnavailableError(
            f"File {path} could not be created in {CREATE_ATTEMPTS} attempts, though it is not "
            f"there. Does the service at {self.root} honour conditional writes? Try again later."
        )

    @abstractmethod
    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        """Replace what `token` names (None: nothing), or return False if that has changed.

        It may have changed by this very call, where a request was sent again.
        """

    def replace(self, path: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Give the file the content that `change` makes of the present one (None: no file).

        `change` is asked again after each lost race, also when only the answer was lost, and
        returns None to leave the file as it is. StorageUnavailableError after SWAP_ATTEMPTS.
        """
        for lost in range(SWAP_ATTEMPTS):
            there, token = self.get_versioned(path)
            data = change(there)
            if data is None or self.compare_and_swap(path, token, data):
                return
            self.pause(lost)
        raise StorageUnavailableError(
            f"File {path} could not be replaced in {SWAP_ATTEMPTS} attempts. Does the service at "
            f"{self.root} honour conditional writes? Try again later."
        )

    def pause(self, lost: int) -> None:
        """Sleep after so many lost races; only on an object store, where a race costs requests."""
        if self.remote:
            pause_s = LOST_RACE_PAUSE_S * min(lost + 1, 50)
            self.clock.sleep(random.random() * pause_s)  # noqa: S311 - no secret

    def check(self) -> None:  # noqa: B027 - a folder, or memory, is made when it is needed
        """BucketNotFoundError if the bucket does not exist, so that nothing can be stored."""

    def check_writes(self) -> None:  # noqa: B027 - a folder and memory keep their promises
        """ConditionalWriteError if the store ignores the condition of a write.

        StorageSettingsError if it does not list what was written. Asked before a topic is made.
        """

    @abstractmethod
    def touch(self, path: str, data: bytes) -> None:
        """Have the file with that content, written now; a power cut may undo it. For heartbeats."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Length in bytes, or None if there is no such file."""

    def info(self, path: str) -> ObjectInfo | None:
        """Its length, and when it was last written; None if there is no such file."""
        folder, _, _ = path.rpartition("/")
        return next((each for each in self.files(folder) if each.path == path), None)

    def exists(self, path: str) -> bool:
        return self.size(path) is not None

    @abstractmethod
    def files(self, folder: str) -> Iterator[ObjectInfo]:
        """The files directly in the folder, in no order; none if there is no such folder."""

    @abstractmethod
    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in the folder, sorted."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the file; one that is not there is fine."""

    @abstractmethod
    def open_input(self, path: str) -> Any:
        """A pyarrow NativeFile for random access. ObjectNotFoundError if there is none."""

    @abstractmethod
    def open_output(self, path: str) -> Output:
        """A new file to stream into, for data too large for `put_if_absent`."""


def too_large(path: str) -> UnreadableFileError:
    """The error of a file that has more than MOST_BYTES."""
    return UnreadableFileError(
        f"File {path} has more than {MOST_BYTES >> 20} MiB, and none that is read whole has: "
        "something other than Pulsarlite has written it. Restore it from a copy."
    )


def checked_path(path: str) -> str:
    """The path itself, or StorageError if it could lead out of the root."""
    if leads_out(path):
        raise StorageError(
            f"Path {path!r} is refused: it has to stay inside the root, as names joined by "
            "single slashes, none of them empty, '.' or '..'."
        )
    return path


def join(*parts: str) -> str:
    """Parts of a path with a slash between them; empty ones are left out."""
    return "/".join(filter(None, parts))
