"""S3, Google Cloud Storage and Azure as an object store, through `obstore`.

Invariants: a file is created with «only if absent» and replaced with «only if it is still this»
(the e-tag; on Google its generation), both decided by the service; a request that finds no answer
is sent again by `obstore`, with growing pauses, MAX_RETRIES times and for RETRY_TIMEOUT at most,
and then is an error that says so: nothing above this waits for the network; a client never crosses
a fork (`open_store` keeps one for each process), and a process forked from one that had used a
client is told so, where `obstore` would hang. The service must honour conditional writes: S3,
Google and Azure do, and MinIO, R2 and moto.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import pyarrow as pa

from pulsar_spark.connector.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    Output,
    checked_path,
)
from pulsar_spark.errors import (
    BucketNotFoundError,
    InvalidOptionError,
    MissingPackageError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
)

REQUESTS_AT_ONCE = 16
READ_BUFFER_BYTES = 1 << 20
PART_BYTES = 8 << 20
"""A file of more is uploaded in parts of so many bytes; S3 takes 10,000 of them."""
PARTS_AT_ONCE = 2
"""Parts on their way: a writer holds these, and the one that it fills."""

_BUCKET_PROBE = "~bucket"
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""The codes of S3, Google and those like them, and of Azure, for a missing bucket."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)

_used_in: set[int] = set()
"""The ids of processes that have used a client; after a fork, the parent's."""
_beside: Final = ThreadPoolExecutor(1, "pulsarlite-beside")
"""Of the process, as stores are pickled; its thread begins with its first use."""


class RemoteStore(ObjectStore):
    """Objects under a prefix of a bucket."""

    remote = True

    def __init__(self, root: str, settings: Mapping[str, Any]) -> None:
        """`settings`: of the service, of the HTTP client, of retries, as `obstore` names them."""
        try:
            import obstore
            from obstore import store as stores
        except ImportError as error:
            raise MissingPackageError(
                f"serviceUrl {root!r} needs the package obstore, which is not installed. "
                "Run: pip install 'pulsarlite[obstore]'"
            ) from error
        self.root = root.rstrip("/")
        self._module = obstore
        self._has_bucket = False
        from_url: Any = stores.from_url
        try:
            self._store: Any = from_url(self.root, **settings)
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise InvalidOptionError(
                f"serviceUrl {root!r} can't be opened: {_first_line(error)}. Check the bucket's "
                "name, the credentials in the environment and the options of the store."
            ) from error

    def __repr__(self) -> str:
        return f"RemoteStore({self.root!r})"

    @property
    def _obstore(self) -> Any:
        """The client's module, for a request. StorageError where a request would hang."""
        process = os.getpid()
        if process not in _used_in:
            if _used_in:
                raise StorageError(
                    f"{self.root} can't be reached from this process: it was forked from one "
                    "that had used an object store, and the client does not survive that. "
                    "Start it with the method 'spawn', or fork before the first use."
                )
            _used_in.add(process)
        return self._module

    def get(self, path: str) -> bytes | None:
        return self.get_versioned(path)[0]

    def answers(
        self, request: Callable[[_Asked], _Answer], paths: Iterable[_Asked]
    ) -> Iterator[_Answer]:
        asked = list(paths)
        if len(asked) < 2:
            return map(request, asked)
        with ThreadPoolExecutor(min(len(asked), REQUESTS_AT_ONCE)) as threads:
            return threads.map(request, asked)

    def beside(self, action: Callable[[], object]) -> None:
        _beside.submit(_said_if_it_fails, action)

    def get_versioned(self, path: str) -> tuple[bytes, str] | tuple[None, None]:
        with suppress(FileNotFoundError), self.told("read", path, FileNotFoundError):
            result = self._obstore.get(self._store, checked_path(path))
            return bytes(result.bytes()), _token(result.meta)
        return None, None

    def create(self, path: str, data: bytes) -> bool:
        return self._put(path, data, "create")

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        return self._put(path, data, "create" if token is None else json.loads(token))

    def check(self) -> None:
        if not self._has_bucket:
            self.get(_BUCKET_PROBE)
            self._has_bucket = True

    def touch(self, path: str, data: bytes) -> None:
        self._put(path, data, "overwrite")

    def size(self, path: str) -> int | None:
        found = self.info(path)
        return None if found is None else found.size_bytes

    def info(self, path: str) -> ObjectInfo | None:
        with suppress(FileNotFoundError), self.told("look at", path, FileNotFoundError):
            return _info(path, self._obstore.head(self._store, checked_path(path)))
        return None

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        for item in self._listing(folder)["objects"]:
            yield _info(item["path"], item)

    def folders(self, folder: str) -> list[str]:
        prefixes = self._listing(folder)["common_prefixes"]
        return sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError), self.told("delete", path, FileNotFoundError):
            self._obstore.delete(self._store, checked_path(path))

    def open_input(self, path: str) -> Any:
        with self.told("open", path):
            reader = self._obstore.open_reader(
                self._store, checked_path(path), buffer_size=READ_BUFFER_BYTES
            )
        return pa.PythonFile(_Readable(self, path, reader), mode="r")

    def open_output(self, path: str) -> Output:
        return _RemoteOutput(self, checked_path(path))

    def new_writer(self, path: str) -> Any:
        """Uploads a file whose name is new by its making (a uuid); in parts if it is large."""
        with self.told("write", path):
            return self._obstore.open_writer(
                self._store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def _put(self, path: str, data: bytes, mode: Any) -> bool:
        failures = self._module.exceptions
        refusals: tuple[Any, ...] = failures.AlreadyExistsError, failures.PreconditionError
        if isinstance(mode, dict):
            refusals = (*refusals, FileNotFoundError)  # what was to be replaced is gone
        with suppress(*refusals), self.told("write", path, *refusals):
            self._obstore.put(self._store, checked_path(path), data, mode=mode)
            return True
        return False

    def _listing(self, folder: str) -> Any:
        with self.told("list", folder):
            prefix = checked_path(folder) if folder else None
            return self._obstore.list_with_delimiter(self._store, prefix)

    @contextmanager
    def told(self, verb: str, path: str, *passing: type[BaseException]) -> Iterator[None]:
        """Turn the client's errors into ours; `passing` ones only where the bucket is missing."""
        try:
            yield
        except (self._module.exceptions.BaseError, OSError) as error:
            if isinstance(error, passing) and not _lacks_bucket(error):
                raise
            raise self._failed(verb, path, error) from error

    def _failed(self, verb: str, path: str, error: BaseException) -> StorageError:
        """The client's error as one of ours."""
        what = f"Could not {verb} {path}: {_first_line(error)}."
        is_missing = isinstance(error, FileNotFoundError)
        if is_missing and verb in ("open", "read") and not _lacks_bucket(error):
            return ObjectNotFoundError(f"File {path} is not there (any more).")
        if is_missing or _lacks_bucket(error):
            return BucketNotFoundError(
                f"{what} There is no such bucket as that of {self.root}: create it, or correct "
                "serviceUrl."
            )
        if isinstance(error, (self._module.exceptions.GenericError, OSError)):
            return StorageUnavailableError(
                f"{what} The service at {self.root} did not answer as it should, however often it "
                "was asked. Nothing stored is damaged. Check the network and the service, then "
                "start again where this ended; options storage.max_retries and "
                "storage.retry_timeout say how long to wait for it."
            )
        return StorageError(f"{what} Check the credentials and what they allow, then try again.")


class _RemoteOutput(Output):
    """Uploaded while it is written; there once the last part is confirmed."""

    def __init__(self, store: RemoteStore, path: str) -> None:
        self._store, self._writer = store, store.new_writer(path)
        self._file = _Writable(store, path, self._writer)
        super().__init__(path, pa.PythonFile(self._file, mode="w"))

    def _finish(self) -> int | None:
        with self._store.told("write", self.path):
            self._writer.close()
        return self._file.tell()

    def _discard(self) -> None:
        given_up = StorageError(f"File {self.path} was given up.")
        with suppress(OSError):  # parts may stay; the service's rules delete them
            self._writer.__exit__(StorageError, given_up, None)


class _Writable(io.RawIOBase):
    """A writer of obstore as the Python file that pyarrow expects."""

    def __init__(self, store: RemoteStore, path: str, writer: Any) -> None:
        super().__init__()
        self._store, self._path, self._writer = store, path, writer
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        with self._store.told("write", self._path):
            self._writer.write(memoryview(data).cast("B"))
        self._written += len(data)
        return len(data)


class _Readable(io.RawIOBase):
    """A reader of obstore as the Python file that pyarrow expects. Raises our errors."""

    def __init__(self, store: RemoteStore, path: str, reader: Any) -> None:
        super().__init__()
        self._store, self._path, self._reader = store, path, reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def read(self, size: int | None = -1) -> bytes:
        with self._store.told("read", self._path):
            return bytes(self._reader.readall() if size in (None, -1) else self._reader.read(size))


def _info(path: str, meta: Any) -> ObjectInfo:
    return ObjectInfo(path, int(meta["size"]), int(meta["last_modified"].timestamp() * 1000))


def _token(meta: Any) -> str:
    """An UpdateVersion of `obstore` as text: the service knows which of its two fields counts."""
    parts = {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
    return json.dumps(parts)


def _lacks_bucket(error: BaseException) -> bool:
    return any(name in str(error) for name in _NO_BUCKET)


def _said_if_it_fails(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:  # noqa: BLE001 - nobody hears it
        _log.exception("What was done beside a request has failed")


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]
