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
from pulsar_spark.options.options import STORAGE_PREFIX

REMOTE_SCHEMES = ("s3", "s3a", "gs", "az")

_opened: dict[tuple[int, str, tuple[tuple[str, str], ...]], ObjectStore] = {}


def open_store(root: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at a root: a folder, `file://`, `memory://`, `s3://`, `gs://`, `az://`.

    `options` are those of the object store (`aws_endpoint`, `aws_region`, `allow_http`, ...),
    which come on top of the environment's; a folder has none. Stores are kept for each process:
    a client that was used before a fork hangs after it. InvalidOptionError if the root is none
    of these, or the store does not have an option.
    """
    if root.startswith(MEMORY) and not options:
        return MemoryStore.named(root.removeprefix(MEMORY))
    given = tuple(sorted((options or {}).items()))
    key = (os.getpid(), root, given)
    if key not in _opened:
        _opened[key] = _open(root, dict(given))
    return _opened[key]


def _open(root: str, options: dict[str, str]) -> ObjectStore:
    if not root.strip():
        raise InvalidOptionError("serviceUrl is empty. Give a folder, or s3://bucket/prefix.")
    is_path = "://" not in root and not root.startswith("file:")
    url = urlsplit("" if is_path else root)
    if url.scheme in REMOTE_SCHEMES:
        from pulsar_spark.connector.storage.remote_store import RemoteStore

        if any(part in (".", "..") for part in url.path.split("/")):
            raise InvalidOptionError(
                f"serviceUrl {root!r} has a part '.' or '..', which no object store follows: name "
                "the place without it."
            )
        return RemoteStore(root, options)
    if options:
        raise InvalidOptionError(
            f"Option {STORAGE_PREFIX}{min(options)} is for an object store, and serviceUrl "
            f"{root!r} is none: leave it out, or give s3://, gs:// or az://."
        )
    if is_path:
        return LocalStore(root)
    if url.scheme == "file":
        if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise InvalidOptionError(
                f"serviceUrl {root!r} names the host {url.netloc!r}. A folder is written "
                "file:///absolute/path, with three slashes, or as a plain path."
            )
        return LocalStore(unquote(url.path))
    raise InvalidOptionError(
        f"serviceUrl {root!r} has the scheme {url.scheme!r}. Known are a folder's path, "
        "file://, memory://, s3://, gs:// and az://."
    )
