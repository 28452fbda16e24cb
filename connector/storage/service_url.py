"""The store that a service URL names: a folder, memory, or an object store; one a process.

Invariant: the client of an object store is loaded when a URL first asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.storage.memory_store import MEMORY, MemoryStore
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.errors import InvalidOptionError

REMOTE_SCHEMES = ("s3", "s3a", "gs", "az")

_opened: dict[tuple[int, str, tuple[tuple[str, str], ...]], ObjectStore] = {}


def open_store(root: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at a root: a folder, `file://`, `memory://`, `s3://`, `gs://`, `az://`.

    `options` are those of the object store (`aws_endpoint`, `aws_region`, `allow_http`, ...),
    which come on top of the environment's; a folder has none. Stores are kept for each process:
    a client that was used before a fork hangs after it. InvalidOptionError if the root is none
    of these.
    """
    if root.startswith(MEMORY):
        return MemoryStore.named(root.removeprefix(MEMORY))
    given = tuple(sorted((options or {}).items()))
    key = (os.getpid(), root, given)
    if key not in _opened:
        _opened[key] = _open(root, dict(given))
    return _opened[key]


def _open(root: str, options: dict[str, str]) -> ObjectStore:
    if not root.strip():
        raise InvalidOptionError("serviceUrl is empty. Give a folder, or s3://bucket/prefix.")
    if "://" not in root and not root.startswith("file:"):
        return LocalStore(root)
    url = urlsplit(root)
    if url.scheme == "file":
        if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise InvalidOptionError(
                f"serviceUrl {root!r} names the host {url.netloc!r}. A folder is written "
                "file:///absolute/path, with three slashes, or as a plain path."
            )
        return LocalStore(unquote(url.path))
    if url.scheme in REMOTE_SCHEMES:
        from pulsar_spark.connector.storage.remote_store import RemoteStore

        return RemoteStore(root, options)
    raise InvalidOptionError(
        f"serviceUrl {root!r} has the scheme {url.scheme!r}. Known are a folder's path, "
        "file://, memory://, s3://, gs:// and az://."
    )
