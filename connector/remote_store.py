"""S3, Google Cloud Storage and Azure as an object store, through `obstore`.

Invariants: a file is created with «only if absent» and replaced with «only if the e-tag is
this», both decided by the service; a client never crosses a fork (`open_store` keeps one for each
process), and a process forked from one that had used a client is told so, where `obstore` would
hang. The service must honour conditional writes: S3 does, and MinIO, R2 and moto.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from pulsar_spark.connector.object_store import (
    ObjectInfo,
    ObjectStore,
    Output,
    Versioned,
    checked_path,
)
from pulsar_spark.errors import (
    InvalidOptionError,
    MissingPackageError,
    ObjectNotFoundError,
    StorageError,
)

REQUESTS_AT_ONCE = 16
READ_BUFFER_BYTES = 1 << 20
PART_BYTES = 8 << 20
"""A file of more is uploaded in parts of so many bytes; S3 takes 10,000 of them."""
PARTS_AT_ONCE = 2
"""Parts on their way: a writer holds these, and one that it fills."""

_used_in: set[int] = set()
"""The process that has used a client; after a fork, its parent."""


class RemoteStore(ObjectStore):
    """Objects under a prefix of a bucket."""

    def __init__(self, root: str, options: dict[str, str]) -> None:
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
        config, client = _split_options(options)
        from_url: Any = stores.from_url
        try:
            self._store: Any = from_url(self.root, config=config, client_options=client)
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

    @property
    def remote(self) -> bool:
        return True

    def get(self, path: str) -> bytes | None:
        there = self.get_versioned(path)
        return None if there is None else there.data

    def get_many(self, paths: Iterable[str]) -> Iterator[bytes | None]:
        wanted = list(paths)
        if not wanted:
            return iter(())
        with ThreadPoolExecutor(min(len(wanted), REQUESTS_AT_ONCE)) as threads:
            return iter(list(threads.map(self.get, wanted)))

    def get_versioned(self, path: str) -> Versioned | None:
        try:
            result = self._obstore.get(self._store, checked_path(path))
            return Versioned(bytes(result.bytes()), result.meta["e_tag"] or "")
        except FileNotFoundError:
            return None
        except self._module.exceptions.BaseError as error:
            raise _refused("read", path, error) from error

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return self._put(path, data, "create")

    def compare_and_swap(self, path: str, token: str | None, data: bytes) -> bool:
        return self._put(path, data, "create" if token is None else {"e_tag": token})

    def touch(self, path: str, data: bytes) -> None:
        self._put(path, data, "overwrite")

    def size(self, path: str) -> int | None:
        try:
            return int(self._obstore.head(self._store, checked_path(path))["size"])
        except FileNotFoundError:
            return None
        except self._module.exceptions.BaseError as error:
            raise _refused("look at", path, error) from error

    def sizes(self, paths: Iterable[str]) -> dict[str, int | None]:
        wanted = list(paths)
        if len(wanted) < 2:
            return super().sizes(wanted)
        with ThreadPoolExecutor(min(len(wanted), REQUESTS_AT_ONCE)) as threads:
            return dict(zip(wanted, threads.map(self.size, wanted), strict=True))

    def files(self, folder: str) -> Iterator[ObjectInfo]:
        for item in self._listing(folder)["objects"]:
            modified_ms = int(item["last_modified"].timestamp() * 1000)
            yield ObjectInfo(item["path"], item["size"], modified_ms)

    def folders(self, folder: str) -> list[str]:
        prefixes = self._listing(folder)["common_prefixes"]
        return sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)

    def delete(self, path: str) -> None:
        try:
            self._obstore.delete(self._store, checked_path(path))
        except FileNotFoundError:
            return
        except self._module.exceptions.BaseError as error:
            raise _refused("delete", path, error) from error

    def open_input(self, path: str) -> Any:
        try:
            reader = self._obstore.open_reader(
                self._store, checked_path(path), buffer_size=READ_BUFFER_BYTES
            )
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"File {path} is not there (any more).") from error
        except self._module.exceptions.BaseError as error:
            raise _refused("open", path, error) from error
        return pa.PythonFile(_Readable(reader), mode="r")

    def open_output(self, path: str) -> Output:
        return _RemoteOutput(self.new_writer(checked_path(path)), path)

    def new_writer(self, path: str) -> Any:
        """Uploads a file whose name is new by its making (a uuid); in parts if it is large."""
        try:
            return self._obstore.open_writer(
                self._store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
        except self._module.exceptions.BaseError as error:
            raise _refused("write", path, error) from error

    def _put(self, path: str, data: bytes, mode: Any) -> bool:
        failures = self._module.exceptions
        try:
            self._obstore.put(self._store, checked_path(path), data, mode=mode)
        except (failures.AlreadyExistsError, failures.PreconditionError, FileNotFoundError):
            return False
        except failures.BaseError as error:
            raise _refused("write", path, error) from error
        return True

    def _listing(self, folder: str) -> Any:
        try:
            prefix = checked_path(folder) if folder else None
            return self._obstore.list_with_delimiter(self._store, prefix)
        except self._module.exceptions.BaseError as error:
            raise _refused("list", folder, error) from error


class _RemoteOutput(Output):
    """Uploaded while it is written; there once the last part is confirmed."""

    def __init__(self, writer: Any, path: str) -> None:
        self._writer, self._path = writer, path
        self._file = _Writable(writer, path)
        self._sink: Any = pa.PythonFile(self._file, mode="w")
        self._open = True

    @property
    def sink(self) -> Any:
        return self._sink

    def close(self) -> int:
        if not self._open:
            raise StorageError(f"File {self._path} was closed or given up before.")
        self._open = False
        try:
            self._writer.close()
        except OSError as error:
            raise _refused("write", self._path, error) from error
        return self._file.tell()

    def abort(self) -> None:
        if self._open:
            self._open = False
            given_up = StorageError(f"File {self._path} was given up.")
            with contextlib.suppress(OSError):  # parts may stay; the service's rules delete them
                self._writer.__exit__(StorageError, given_up, None)


class _Writable(io.RawIOBase):
    """What pyarrow expects of a Python file, over a writer of obstore."""

    def __init__(self, writer: Any, path: str) -> None:
        super().__init__()
        self._writer, self._path = writer, path
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        try:
            self._writer.write(memoryview(data).cast("B"))
        except OSError as error:
            raise _refused("write", self._path, error) from error
        self._written += len(data)
        return len(data)


class _Readable(io.RawIOBase):
    """What pyarrow expects of a Python file, over a reader of obstore."""

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return bytes(self._reader.readall())
        return bytes(self._reader.read(size))


def _split_options(options: dict[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Options of the service, and those of the HTTP client below it."""
    of_client = ("allow_http", "timeout", "connect_timeout", "proxy_url", "user_agent")
    config = {name: value for name, value in options.items() if name not in of_client}
    client: dict[str, Any] = {name: options[name] for name in of_client if name in options}
    if "allow_http" in client:
        client["allow_http"] = str(client["allow_http"]).lower() == "true"
    return config, client


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]


def _refused(verb: str, path: str, error: BaseException) -> StorageError:
    return StorageError(
        f"Could not {verb} {path}: {_first_line(error)}. Check the credentials, the bucket and "
        "the network, then try again."
    )
