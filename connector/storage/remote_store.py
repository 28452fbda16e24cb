"""S3, Google Cloud Storage and Azure as an object store, through `obstore`.

Invariants: a file is created with «only if absent» and replaced with «only if it is still this»
(the e-tag; on Google its generation), both decided by the service; a request that finds no answer
is sent again by `obstore`, with growing pauses, for storage.retry_timeout at most, and then is an
error that says so: nothing above this waits for the network, and a service that has never answered
is given up after FIRST_RETRIES, as its address may be wrong; a client never crosses
a fork (`open_store` keeps one for each process), and a process forked from one that had used a
client is told so, where `obstore` would hang. The service must honour conditional writes, as S3,
Google, Azure, MinIO and R2 do: `check_writes` tries it before a topic is made. It needs no record
of that, since a create that is refused is the proof; what is left is one small file at the root.
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
    CREATE_ATTEMPTS,
    MOST_BYTES,
    ObjectInfo,
    ObjectStore,
    Output,
    checked_path,
    too_large,
)
from pulsar_spark.connector.storage.service_errors import (
    first_line,
    lacks_bucket,
    not_listed,
    service_error,
)
from pulsar_spark.errors import (
    ConditionalWriteError,
    InvalidOptionError,
    MissingPackageError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
)

FIRST_RETRIES: Final = 10
"""The number of retries for a service that has never answered this store."""
REQUESTS_AT_ONCE = 16
READ_BUFFER_BYTES = 1 << 20
PART_BYTES = 8 << 20
"""A file of more is uploaded in parts of so many bytes; S3 takes 10,000 of them."""
PARTS_AT_ONCE = 2
"""Parts on their way: a writer holds these, and the one that it fills."""

CHECKED: Final = "_checked"
"""A file at the root that shows that the store refuses to create it a second time."""
_CHECKED_TEXT: Final = b"Pulsarlite tries with this file whether writes are conditional.\n"
_NO_TOKEN: Final = json.dumps({"e_tag": '"00000000000000000000000000000000"', "version": "1"})
"""No version of a file has this token: a write on its condition has to be refused."""
_BUCKET_PROBE = "~bucket"

_RequestT = TypeVar("_RequestT")
_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)

_used_in: set[int] = set()
"""The ids of processes that have used a client; after a fork, the parent's."""
_in_background: Final = ThreadPoolExecutor(1, "pulsarlite-beside")
"""The pool of the process, as stores are pickled; its thread begins with its first use."""


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
        self._has_bucket = self._has_checked_writes = self._is_answered = False
        from_url: Any = stores.from_url
        retries = settings["retry_config"]
        few = {**retries, "max_retries": min(retries["max_retries"], FIRST_RETRIES)}
        try:
            self._first: Any = from_url(self.root, **{**settings, "retry_config": few})
            self._later: Any = from_url(self.root, **settings)
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise InvalidOptionError(
                f"serviceUrl {root!r} can't be opened: {first_line(error)}. Check the bucket's "
                "name, the credentials in the environment and the options of the store."
            ) from error

    def __repr__(self) -> str:
        return f"RemoteStore({self.root!r})"

    @property
    def _store(self) -> Any:
        """The client that asks long once the service has answered; before, its URL may be wrong."""
        return self._later if self._is_answered else self._first

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
        self, request: Callable[[_RequestT], _Answer], paths: Iterable[_RequestT]
    ) -> Iterator[_Answer]:
        asked = list(paths)
        if len(asked) < 2:
            return map(request, asked)
        with (
            ThreadPoolExecutor(min(len(asked), REQUESTS_AT_ONCE)) as threads,
            suppress(RuntimeError),
        ):
            return threads.map(request, asked)
        return map(request, asked)  # the process ends, and begins no more threads

    def in_background(self, action: Callable[[], object]) -> None:
        try:
            _in_background.submit(_error_text, action)
        except RuntimeError:  # the process ends, and begins no more threads
            _error_text(action)

    def get_versioned(self, path: str) -> tuple[bytes, str] | tuple[None, None]:
        with suppress(FileNotFoundError), self.translated("read", path, FileNotFoundError):
            result = self._obstore.get(self._store, checked_path(path))
            if result.meta["size"] > MOST_BYTES:
                raise too_large(path)
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

    def check_writes(self) -> None:
        """As of ObjectStore, once a process: three requests, and a fourth at a new root."""
        if self._has_checked_writes:
            return

        def lists() -> bool:
            return any(each.path == CHECKED for each in self.files(""))

        is_new = self.create(CHECKED, _CHECKED_TEXT)
        asked: list[Callable[[], object]] = [
            lambda: is_new and self.create(CHECKED, _CHECKED_TEXT),
            lambda: self.compare_and_swap(CHECKED, _NO_TOKEN, _CHECKED_TEXT),
            lists,
        ]
        is_created_twice, is_swapped, is_listed = self.answers(lambda ask: ask(), asked)
        if is_created_twice or is_swapped:
            what = "If-None-Match" if is_created_twice else "If-Match"
            raise ConditionalWriteError(
                f"The service at {self.root} ignores the condition of a write ({what}): of two "
                "writers each would overwrite what the other has confirmed, and messages would be "
                "lost. No topic was made. Take a service that honours conditional writes, as S3, "
                "Google, Azure, MinIO and R2 do, or a version of this one that does."
            )
        if not is_listed:
            self.put_if_absent(CHECKED, _CHECKED_TEXT)  # it may have met a conflict (409)
            if not lists():
                raise not_listed(self.root, f"File {CHECKED} is missing.")
        self._has_checked_writes = True

    def touch(self, path: str, data: bytes) -> None:
        for lost in range(CREATE_ATTEMPTS):
            if self._put(path, data, "overwrite"):
                return
            self.pause(lost)
        raise StorageUnavailableError(
            f"File {path} could not be overwritten in {CREATE_ATTEMPTS} attempts: the service at "
            f"{self.root} always had another write of it under way. Try again later."
        )

    def size(self, path: str) -> int | None:
        found = self.info(path)
        return None if found is None else found.size_bytes

    def info(self, path: str) -> ObjectInfo | None:
        with suppress(FileNotFoundError), self.translated("look at", path, FileNotFoundError):
            return _info(path, self._obstore.head(self._store, checked_path(path)))
        return None

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        for item in self._listing(folder)["objects"]:
            yield _info(item["path"], item)

    def folders(self, folder: str) -> list[str]:
        prefixes = self._listing(folder)["common_prefixes"]
        return sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError), self.translated("delete", path, FileNotFoundError):
            self._obstore.delete(self._store, checked_path(path))

    def open_input(self, path: str) -> Any:
        with self.translated("open", path):
            reader = self._obstore.open_reader(
                self._store, checked_path(path), buffer_size=READ_BUFFER_BYTES
            )
        return pa.PythonFile(_Readable(self, path, reader), mode="r")

    def open_output(self, path: str) -> Output:
        return _RemoteOutput(self, checked_path(path))

    def new_upload(self, path: str) -> Any:
        """An upload in parts of a file whose name is new by its making (a uuid)."""
        return self._obstore.open_writer(
            self._store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    def _put(self, path: str, data: bytes, mode: Any) -> bool:
        failures = self._module.exceptions
        refusals: tuple[Any, ...] = failures.AlreadyExistsError, failures.PreconditionError
        if isinstance(mode, dict):
            refusals = (*refusals, FileNotFoundError)  # what was to be replaced is gone
        with suppress(*refusals), self.translated("write", path, *refusals):
            self._obstore.put(self._store, checked_path(path), data, mode=mode)
            return True
        return False

    def _listing(self, folder: str) -> Any:
        with self.translated("list", folder or "the root"):
            prefix = checked_path(folder) if folder else None
            return self._obstore.list_with_delimiter(self._store, prefix)

    @contextmanager
    def translated(self, verb: str, path: str, *passing: type[BaseException]) -> Iterator[None]:
        """Turn the client's errors into ours; `passing` ones only where the bucket is missing."""
        try:
            yield
            self._is_answered = True
        except (self._module.exceptions.BaseError, OSError) as error:
            if isinstance(error, passing) and not lacks_bucket(error):
                raise
            raise self._failed(verb, path, error) from error

    def _failed(self, verb: str, path: str, error: BaseException) -> StorageError:
        """The client's error as one of ours."""
        is_missing = isinstance(error, FileNotFoundError) and not lacks_bucket(error)
        if is_missing and verb in ("open", "read"):
            return ObjectNotFoundError(f"File {path} is not there (any more).")
        return service_error(self.root, f"Could not {verb} {path}", error)


class _RemoteOutput(Output):
    """A new file: one request, or of a large one an upload in parts while it is written."""

    def __init__(self, store: RemoteStore, path: str) -> None:
        self._file = _Writable(store, path)
        super().__init__(path, pa.PythonFile(self._file, mode="w"))

    def _finish(self) -> int | None:
        self._file.finish()
        return self._file.tell()

    def _discard(self) -> None:
        self._file.discard()


class _Writable(io.RawIOBase):
    """The Python file of a new object that pyarrow writes into."""

    def __init__(self, store: RemoteStore, path: str) -> None:
        super().__init__()
        self._store, self._path = store, path
        self._first = bytearray()
        self._upload: Any = None
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._written += len(view)
        if self._upload is None and self._written <= PART_BYTES:
            self._first += view
            return len(view)
        with self._store.translated("write", self._path):
            if self._upload is None:
                self._upload = self._store.new_upload(self._path)
                self._upload.write(bytes(self._first))
                self._first.clear()
            self._upload.write(view)
        return len(view)

    def finish(self) -> None:
        """Make it durable. A small one is sent again where the service has a conflict (409)."""
        if self._upload is None:
            self._store.touch(self._path, bytes(self._first))  # nobody else has its name
            return
        with self._store.translated("write", self._path):
            self._upload.close()

    def discard(self) -> None:
        if self._upload is None:
            return
        given_up = StorageError(f"File {self._path} was given up.")
        with suppress(OSError):  # parts may stay; the service's rules delete them
            self._upload.__exit__(StorageError, given_up, None)


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
        with self._store.translated("read", self._path):
            return bytes(self._reader.readall() if size in (None, -1) else self._reader.read(size))


def _info(path: str, meta: Any) -> ObjectInfo:
    return ObjectInfo(path, int(meta["size"]), int(meta["last_modified"].timestamp() * 1000))


def _token(meta: Any) -> str:
    """An UpdateVersion of `obstore` as text: the service knows which of its two fields counts."""
    parts = {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
    return json.dumps(parts)


def _error_text(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:  # noqa: BLE001 - nobody hears it
        _log.exception("What was done beside a request has failed")
