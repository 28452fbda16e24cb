"""A folder as an object store, durable on a local disk.

Invariants: a name appears only by `os.link` of a file that was fsynced, so no reader ever sees a
part of one, and of several that create a name exactly one succeeds; the folder is fsynced before
a call returns, and so are those above it, whoever made them: a folder that has a file was durable
before it got it. What a killed process leaves behind are files called `.tmp-*`, which nobody reads.
Of non-persistent topics nothing is fsynced but what their logs can't be opened without: a machine
that stops may lose their messages, and only these.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from pulsar_spark.connector.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    Output,
    Versioned,
    checked_path,
    join,
)
from pulsar_spark.errors import ObjectNotFoundError, PulsarliteError, StorageError
from pulsar_spark.topic_name import NON_PERSISTENT

TEMPORARY_PREFIX = ".tmp-"
_MISSING = FileNotFoundError, NotADirectoryError
_OPENS_A_LOG = re.compile(r"/_log/(0{20}\.json|pointer\.json|\d{20}\.snapshot\.parquet)$")


class LocalStore(ObjectStore):
    """Files under a folder, which is made when something is first written to it."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._durable: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def get(self, path: str) -> bytes | None:
        with _told("read", path), suppress(*_MISSING), io.FileIO(self._full(path)) as file:
            return file.readall()
        return None

    def get_versioned(self, path: str) -> Versioned | None:
        data = self.get(path)
        return None if data is None else Versioned(data, hashlib.sha256(data).hexdigest())

    def create(self, path: str, data: bytes) -> bool:
        full = self._full(path)
        with _told("write", path):
            if os.path.exists(full):
                return False
            return _link(self._temporary(path, data), full, durable=_is_durable(path))

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        full = self._full(path)
        with _told("replace", path):
            self._have(os.path.dirname(full))
            with open(full + ".lock", "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                there = self.get_versioned(path)
                if (there.token if there else None) != token:
                    return False
                _replace(self._temporary(path, data), full)
                if _is_durable(path):
                    _sync_folder(os.path.dirname(full))
                return True

    def touch(self, path: str, data: bytes) -> None:
        with _told("touch", path):
            _replace(self._temporary(path, data, durable=False), self._full(path))

    def size(self, path: str) -> int | None:
        with _told("look at", path), suppress(*_MISSING):
            return os.stat(self._full(path)).st_size
        return None

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        for entry in self._entries(folder):
            with suppress(FileNotFoundError):
                if entry.is_file():
                    stat = entry.stat()
                    path = join(folder, entry.name)
                    yield ObjectInfo(path, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def folders(self, folder: str) -> list[str]:
        return sorted(entry.name for entry in self._entries(folder) if entry.is_dir())

    def delete(self, path: str) -> None:
        with _told("delete", path), suppress(*_MISSING):
            os.unlink(self._full(path))

    def open_input(self, path: str) -> Any:
        with _told("open", path):
            try:
                return pa.OSFile(self._full(path), "rb")
            except FileNotFoundError as error:
                raise ObjectNotFoundError(f"File {path} is not there (any more).") from error

    def open_output(self, path: str) -> Output:
        full = self._full(path)
        with _told("create", path):
            self._have(os.path.dirname(full))
            return _LocalOutput(full, path)

    def _temporary(self, path: str, data: bytes, *, durable: bool = True) -> str:
        """A new temporary file beside that of the path, fsynced if that has to be durable."""
        folder = os.path.dirname(self._full(path))
        self._have(folder)
        temporary = _new_temporary(folder)
        try:
            with io.FileIO(temporary, "x") as file:
                view = memoryview(data)
                while view:
                    view = view[os.write(file.fileno(), view) :]
                if durable and _is_durable(path):
                    os.fsync(file.fileno())
        except OSError:
            _discard(temporary)
            raise
        return temporary

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
                _sync_folder(parent)
        self._durable.add(folder)

    def _full(self, path: str) -> str:
        return f"{self.root}/{checked_path(path)}"

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        full = self._full(folder) if folder else self.root
        with _told("list", folder), suppress(*_MISSING), os.scandir(full) as entries:
            return list(entries)
        return []


class _LocalOutput(Output):
    """A temporary file beside its place, linked into it at the end."""

    def __init__(self, full: str, path: str) -> None:
        self._full, self._temporary = full, _new_temporary(os.path.dirname(full))
        super().__init__(path, pa.OSFile(self._temporary, "wb"))

    def _finish(self) -> int | None:
        with _told("write", self.path):
            try:
                self.sink.close()
                durable = _is_durable(self.path)
                with io.FileIO(self._temporary) as file:
                    if durable:
                        os.fsync(file.fileno())
                    size = os.fstat(file.fileno()).st_size
                return size if _link(self._temporary, self._full, durable=durable) else None
            except OSError:
                _discard(self._temporary)
                raise

    def _discard(self) -> None:
        with suppress(OSError):  # the disk may be full
            self.sink.close()
        _discard(self._temporary)


@contextmanager
def _told(verb: str, path: str) -> Iterator[None]:
    """Turn an error of the disk into ours, which names the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PulsarliteError):
            raise
        raise StorageError(
            f"Could not {verb} {path}: {error}. Check the disk and the rights on it."
        ) from error


def _is_durable(path: str) -> bool:
    return not path.startswith(f"{NON_PERSISTENT}/") or _OPENS_A_LOG.search(path) is not None


def _has_file(folder: str) -> bool:
    """Whether the folder has a finished file."""
    try:
        with os.scandir(folder) as entries:
            return any(
                entry.is_file() and not entry.name.startswith(TEMPORARY_PREFIX) for entry in entries
            )
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # this user can't make it durable either


def _new_temporary(folder: str) -> str:
    return f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"


def _replace(temporary: str, full: str) -> None:
    """Put the temporary file in the place of another."""
    try:
        os.replace(temporary, full)
    except OSError:
        _discard(temporary)
        raise


def _discard(temporary: str) -> None:
    with suppress(OSError):
        os.unlink(temporary)


def _link(temporary: str, full: str, *, durable: bool) -> bool:
    """Give the temporary file its name; False if another file has that name."""
    try:
        os.link(temporary, full)
        created = True
    except FileExistsError:
        created = False
    finally:
        _discard(temporary)
    if created and durable:
        _sync_folder(os.path.dirname(full))
    return created


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
