"""A folder as an object store, durable on a local disk.

Invariants: a name appears only by `os.link` of a file that was fsynced, so no reader ever sees a
part of one, and of several that create a name exactly one succeeds; the folder is fsynced before
a call returns, and so are those above it, whoever made them: a folder that has a file was durable
before it got it. What a killed process leaves behind are files called `.tmp-*`, which nobody reads.
Of non-persistent topics nothing is fsynced but what their logs can't be opened without: a machine
that stops may lose their messages, and only these.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pulsar_spark.connector.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    Output,
    Versioned,
    checked_path,
)
from pulsar_spark.errors import ObjectNotFoundError, StorageError
from pulsar_spark.topic_name import NON_PERSISTENT

TEMPORARY_PREFIX = ".tmp-"
_OPENS_A_LOG = re.compile(r"/_log/(0{20}\.json|pointer\.json|\d{20}\.snapshot\.parquet)$")


class LocalStore(ObjectStore):
    """Files under a folder, which is made when something is first written to it."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._durable: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    @property
    def remote(self) -> bool:
        return False

    def get(self, path: str) -> bytes | None:
        try:
            descriptor = os.open(self._full(path), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _refused("read", path, error) from error
        try:
            return _read_all(descriptor)
        except OSError as error:
            raise _refused("read", path, error) from error
        finally:
            os.close(descriptor)

    def get_versioned(self, path: str) -> Versioned | None:
        data = self.get(path)
        return None if data is None else Versioned(data, hashlib.sha256(data).hexdigest())

    def create(self, path: str, data: bytes) -> bool:
        full = self._full(path)
        try:
            if os.path.exists(full):
                return False
            durable = _is_durable(path)
            folder = os.path.dirname(full)
            self._have(folder)
            temporary = _write_temporary(folder, data, durable=durable)
            return _link(temporary, full, durable=durable)
        except OSError as error:
            raise _refused("write", path, error) from error

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        full = self._full(path)
        folder = os.path.dirname(full)
        try:
            self._have(folder)
            lock = os.open(full + ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                there = self.get_versioned(path)
                if (there.token if there else None) != token:
                    return False
                durable = _is_durable(path)
                _replace(_write_temporary(folder, data, durable=durable), full)
                if durable:
                    _sync_folder(folder)
                return True
            finally:
                os.close(lock)
        except OSError as error:
            raise _refused("replace", path, error) from error

    def check(self) -> None:
        """Nothing to check: a folder is made when it is first needed."""

    def touch(self, path: str, data: bytes) -> None:
        full = self._full(path)
        try:
            folder = os.path.dirname(full)
            self._have(folder)
            _replace(_write_temporary(folder, data, durable=False), full)
        except OSError as error:
            raise _refused("touch", path, error) from error

    def size(self, path: str) -> int | None:
        try:
            return os.stat(self._full(path)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _refused("look at", path, error) from error

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        for entry in self._entries(folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file():
                    stat = entry.stat()
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    yield ObjectInfo(path, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def folders(self, folder: str) -> list[str]:
        return sorted(entry.name for entry in self._entries(folder) if entry.is_dir())

    def delete(self, path: str) -> None:
        try:
            os.unlink(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _refused("delete", path, error) from error

    def open_input(self, path: str) -> Any:
        try:
            return pa.OSFile(self._full(path), "rb")
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"File {path} is not there (any more).") from error
        except OSError as error:
            raise _refused("open", path, error) from error

    def open_output(self, path: str) -> Output:
        try:
            full = self._full(path)
            self._have(os.path.dirname(full))
            return _LocalOutput(full, path)
        except OSError as error:
            raise _refused("create", path, error) from error

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
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            with contextlib.suppress(PermissionError):  # above the root it may be another user's
                _sync_folder(parent)
        self._durable.add(folder)

    def _full(self, path: str) -> str:
        return f"{self.root}/{checked_path(path)}"

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        full = self._full(folder) if folder else self.root
        try:
            with os.scandir(full) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _refused("list", folder, error) from error


class _LocalOutput(Output):
    """A temporary file beside its place, linked into it at the end."""

    def __init__(self, full: str, path: str) -> None:
        self._full, self._path = full, path
        folder = os.path.dirname(full)
        self._temporary: str | None = os.path.join(folder, TEMPORARY_PREFIX + uuid.uuid4().hex)
        self._sink = pa.OSFile(self._temporary, "wb")

    @property
    def sink(self) -> Any:
        return self._sink

    def close(self) -> int:
        temporary, self._temporary = self._temporary, None
        if temporary is None:
            raise StorageError(f"File {self._path} was closed or given up before.")
        try:
            self._sink.close()
            durable = _is_durable(self._path)
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                if durable:
                    os.fsync(descriptor)
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            created = _link(temporary, self._full, durable=durable)
        except OSError as error:
            _discard(temporary)
            raise _refused("write", self._path, error) from error
        if not created:
            raise StorageError(f"File {self._path} exists already; a data file is written once.")
        return size

    def abort(self) -> None:
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            with contextlib.suppress(OSError):  # the disk may be full
                self._sink.close()
            _discard(temporary)


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


def _write_temporary(folder: str, data: bytes, *, durable: bool = True) -> str:
    """A new temporary file in the folder, fsynced if it is to be durable; its full path."""
    temporary = f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
    except OSError:
        _discard(temporary)
        raise
    finally:
        os.close(descriptor)
    return temporary


def _replace(temporary: str, full: str) -> None:
    """Put the temporary file in the place of another."""
    try:
        os.replace(temporary, full)
    except OSError:
        _discard(temporary)
        raise


def _discard(temporary: str) -> None:
    with contextlib.suppress(OSError):
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


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _refused(verb: str, path: str, error: OSError) -> StorageError:
    return StorageError(f"Could not {verb} {path}: {error}. Check the disk and the rights on it.")
