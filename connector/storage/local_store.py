"""A folder as an object store, durable on a local disk.

Invariants: a name appears only by `os.link` of a file that was fsynced, so no reader ever sees a
part of one, and of several that create a name exactly one succeeds; the folder is fsynced before
a call returns, and so are those above it, whoever made them: a folder that has a file was durable
before it got it. A file keeps its temporary name until its folder is durable, so a reader that
comes between sees a file with two names, and makes the folder durable before it returns the
content. Only regular files are read, and nothing waits for the other end of a FIFO. What a killed
process leaves behind are files called `.tmp-*`, which nobody reads. Of non-persistent topics
nothing is fsynced but what their logs can't be opened without: a machine that stops may lose their
messages, and only these.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import pyarrow as pa

from pulsar_spark.connector.storage.object_store import (
    MOST_BYTES,
    ObjectInfo,
    ObjectStore,
    Output,
    checked_path,
    join,
    too_large,
)
from pulsar_spark.errors import (
    ObjectNotFoundError,
    PulsarliteError,
    StorageError,
    UnreadableFileError,
)
from pulsar_spark.model.topic_name import NON_PERSISTENT

TEMPORARY_PREFIX = ".tmp-"
MANY: Final = 8
"""From so many items on `all_of` uses threads."""
AT_ONCE: Final = 8
"""So many threads wait for the disk together, which then makes durable what all of them wrote."""
_MISSING = FileNotFoundError, NotADirectoryError
_READING = "read", "look at", "list", "open"
LACKING = errno.EMFILE, errno.ENFILE, errno.ENOMEM
"""Errors of a process or machine that lacks something: the file that is read is not damaged."""
_RequestT = TypeVar("_RequestT")
_Answer = TypeVar("_Answer")
_OPENS_A_LOG = re.compile(r"/_log/(0{20}\.json|pointer\.json|\d{20}\.snapshot\.parquet)$")


class LocalStore(ObjectStore):
    """Files under a folder, which is made when something is first written to it."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._durable: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def local_folder(self, path: str) -> str | None:
        return self._full(path)

    def all_of(
        self, work: Callable[[_RequestT], _Answer], items: Iterable[_RequestT]
    ) -> list[_Answer]:
        asked = list(items)
        if len(asked) < MANY:
            return list(map(work, asked))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(work, asked))

    def get(self, path: str) -> bytes | None:
        with _reported("read", path):
            full = self._full(path)
            try:
                descriptor = os.open(full, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
            except _MISSING:
                return None
            try:
                status = os.fstat(descriptor)
                _check_regular(status, path)
                if status.st_nlink > 1 and _is_durable(path):
                    _sync(os.path.dirname(full))  # its writer may not have got there yet
                return _content(descriptor, status.st_size, path)
            finally:
                os.close(descriptor)

    def create(self, path: str, data: bytes) -> bool:
        full = self._full(path)
        with _reported("write", path):
            if os.path.exists(full):
                return False
            durable = _is_durable(path)
            with self._temporary(full, data, durable=durable) as temporary:
                made = _link(temporary, full)
                if made and durable:
                    _sync(os.path.dirname(full))
            return made

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        full = self._full(path)
        with _reported("replace", path):
            self._have(os.path.dirname(full))
            with open(full + ".lock", "ab", opener=_open_at_once) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self.get_versioned(path)[1] != token:
                    return False
                durable = _is_durable(path)
                with self._temporary(full, data, durable=durable) as temporary:
                    os.replace(temporary, full)
                if durable:
                    _sync(os.path.dirname(full))
                return True

    def touch(self, path: str, data: bytes) -> None:
        full = self._full(path)
        with _reported("touch", path), self._temporary(full, data, durable=False) as temporary:
            os.replace(temporary, full)

    def size(self, path: str) -> int | None:
        with _reported("look at", path), suppress(*_MISSING):
            return os.stat(self._full(path)).st_size
        return None

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        for entry in self._entries(folder):
            path = join(folder, entry.name)
            with _reported("look at", path), suppress(FileNotFoundError):
                if entry.is_file():
                    status = entry.stat()
                    yield ObjectInfo(path, status.st_size, status.st_mtime_ns // 1_000_000)

    def folders(self, folder: str) -> list[str]:
        return sorted(entry.name for entry in self._entries(folder) if _is_folder(entry))

    def delete(self, path: str) -> None:
        with _reported("delete", path), suppress(*_MISSING):
            os.unlink(self._full(path))

    def open_input(self, path: str) -> Any:
        with _reported("open", path):
            full = self._full(path)
            try:
                _check_regular(os.stat(full), path)
                return pa.OSFile(full, "rb")
            except FileNotFoundError as error:
                raise ObjectNotFoundError(f"File {path} is not there (any more).") from error

    def open_output(self, path: str) -> Output:
        full = self._full(path)
        with _reported("create", path):
            self._have(os.path.dirname(full))
            return _LocalOutput(full, path)

    @contextmanager
    def _temporary(self, full: str, data: bytes, *, durable: bool) -> Iterator[str]:
        """A temporary file beside that of the full path, fsynced if it is to be durable."""
        folder = os.path.dirname(full)
        self._have(folder)
        temporary = _new_temporary(folder)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
        finally:
            _discard(temporary)

    def _have(self, folder: str) -> None:
        """Make the folder and those above it, durable before anything is in it.

        This process looks once. A folder without a file may not be durable: its maker may have died
        before that.
        """
        if folder in self._durable and os.path.isdir(folder):
            return
        if not _has_file(folder):
            parent = os.path.dirname(folder)
            if len(folder) > len(self.root) or not os.path.isdir(parent):
                self._have(parent)
            with suppress(FileExistsError):
                os.mkdir(folder)
            with suppress(PermissionError):  # above the root it may be another user's
                _sync(parent)
        self._durable.add(folder)

    def _full(self, path: str) -> str:
        return f"{self.root}/{checked_path(path)}"

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        full = self._full(folder) if folder else self.root
        with _reported("list", folder), suppress(*_MISSING), os.scandir(full) as entries:
            return list(entries)
        return []


class _LocalOutput(Output):
    """A temporary file beside its place, linked into it at the end."""

    def __init__(self, full: str, path: str) -> None:
        self._full, self._temporary = full, _new_temporary(os.path.dirname(full))
        super().__init__(path, pa.OSFile(self._temporary, "wb"))

    def _finish(self) -> int | None:
        with _reported("write", self.path):
            try:
                self.sink.close()
                durable = _is_durable(self.path)
                if durable:
                    _sync(self._temporary)
                size = os.stat(self._temporary).st_size
                made = _link(self._temporary, self._full)
            finally:
                _discard(self._temporary)
            if made and durable:
                _sync(os.path.dirname(self._full))
            return size if made else None

    def _discard(self) -> None:
        with suppress(OSError):  # the disk may be full
            self.sink.close()
        _discard(self._temporary)


class _reported:  # noqa: N801 - reads as a function
    """Turns an error of the disk into ours, which names the file. A class, as `get` is quick."""

    __slots__ = ("_path", "_verb")

    def __init__(self, verb: str, path: str) -> None:
        self._verb, self._path = verb, path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, PulsarliteError):
            is_its_own = self._verb in _READING and error.errno not in LACKING
            raise (UnreadableFileError if is_its_own else StorageError)(
                f"Could not {self._verb} {self._path}: {error}. Check the disk and the rights on "
                "it."
            ) from error


def _open_at_once(full: str, flags: int) -> int:
    """Open a file, and not wait for the other end of a FIFO in its place."""
    return os.open(full, flags | os.O_NONBLOCK, 0o666)


def _check_regular(status: os.stat_result, path: str) -> None:
    """UnreadableFileError if it is something else: reading it might never end."""
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError(
            f"{path} is no regular file ({stat.filemode(status.st_mode)}), and is not read: "
            "something other than Pulsarlite has put it there. Restore the file from a copy."
        )


def _content(descriptor: int, size_bytes: int, path: str) -> bytes:
    """The bytes of an open file. UnreadableFileError if there are more than MOST_BYTES."""
    if size_bytes > MOST_BYTES:
        raise too_large(path)
    parts, left = [], MOST_BYTES + 1
    while part := os.read(descriptor, min(max(size_bytes, 1 << 20), left)):
        parts.append(part)
        left -= len(part)
        if not left:
            raise too_large(path)
    return b"".join(parts)


def _is_durable(path: str) -> bool:
    return not path.startswith(f"{NON_PERSISTENT}/") or _OPENS_A_LOG.search(path) is not None


def _has_file(folder: str) -> bool:
    """True if the folder has a finished file."""
    try:
        with os.scandir(folder) as entries:
            finished = (each for each in entries if not each.name.startswith(TEMPORARY_PREFIX))
            return any(each.is_file() for each in finished)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # this user can't make it durable either


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link in a loop, say, is none
        return entry.is_dir()
    return False


def _new_temporary(folder: str) -> str:
    return f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"


def _discard(temporary: str) -> None:
    with suppress(OSError):
        os.unlink(temporary)


def _link(temporary: str, full: str) -> bool:
    """Give the temporary file its name; False if another file has that name."""
    try:
        os.link(temporary, full)
    except FileExistsError:
        return False
    return True


def _sync(full: str) -> None:
    """Make a file, or a folder's names, durable."""
    descriptor = os.open(full, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
