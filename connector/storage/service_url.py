"""The store that a service URL names, with its options `storage.NAME`; one a process.

Invariants: the client of an object store is loaded when a URL first asks for it; an option that
is not in these tables is refused, with the nearest name, before the client sees it (some unexpected
names end it with a panic); only the serviceUrl names the bucket. A test compares the tables with
what `obstore` says of itself.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from datetime import timedelta
from functools import reduce
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.storage.memory_store import MEMORY, MemoryStore
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.option_values import count, parse_duration_ms
from pulsar_spark.options.options import STORAGE_PREFIX

MAX_RETRIES: Final = 1000
"""The number of retries of an unanswered request: in effect RETRY_TIMEOUT_MS decides.

Pauses double, from 100 ms to 15 s."""
RETRY_TIMEOUT_MS: Final = 3 * 60_000
"""After so long no request is sent again; a request itself has `timeout`, 30 s by default."""

CLIENT: Final = (
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
    "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host",
    "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses", "read_timeout",
    "root_certificate", "timeout", "user_agent",
)  # fmt: skip
"""Options of the HTTP client, for every service."""
_S3: Final = (
    "access_key_id", "checksum_algorithm", "conditional_put", "container_authorization_token_file",
    "container_credentials_full_uri", "container_credentials_relative_uri", "copy_if_not_exists",
    "default_region", "disable_bulk_delete", "disable_tagging", "endpoint", "endpoint_url",
    "imdsv1_fallback", "metadata_endpoint", "region", "request_payer", "role_arn",
    "role_session_name", "s3_express", "secret_access_key", "server_side_encryption",
    "session_token", "skip_signature", "sse_bucket_key_enabled", "sse_customer_key_base64",
    "sse_kms_key_id", "token", "unsigned_payload", "virtual_hosted_style_request",
    "web_identity_token_file",
)  # fmt: skip
_GOOGLE: Final = (
    "application_credentials", "base_url", "bearer_token", "service_account",
    "service_account_key", "skip_signature",
)  # fmt: skip
_AZURE: Final = (
    "account_key", "account_name", "authority_host", "client_id", "client_secret",
    "credential_type", "disable_tagging", "encryption_key", "endpoint",
    "fabric_cluster_identifier", "fabric_session_token", "fabric_token_service_url",
    "fabric_workload_host", "federated_token_file", "msi_endpoint", "msi_resource_id", "object_id",
    "sas_key", "skip_signature", "tenant_id", "token", "use_azure_cli", "use_emulator",
    "use_fabric_endpoint",
)  # fmt: skip
_URLS: Final = ("endpoint", "endpoint_url", "metadata_endpoint", "base_url")
"""The client aborts on what is none."""
SERVICES: Final = {
    "s3": (_S3, ("aws_",)),
    "s3a": (_S3, ("aws_",)),
    "gs": (_GOOGLE, ("google_",)),
    "az": (_AZURE, ("azure_storage_", "azure_")),
}
"""URL scheme -> the service's names, and the prefixes that they may have."""
CLUSTERS: Final = ("pulsar://", "pulsar+ssl://", "http://", "https://")
"""The beginnings of addresses of Pulsar's own clusters."""

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
    check_url(root)
    is_path = "://" not in root and not root.startswith("file:")
    url = urlsplit("" if is_path else root)
    if url.scheme in SERVICES:
        from pulsar_spark.connector.storage.remote_store import RemoteStore

        if any(part in (".", "..") for part in url.path.split("/")):
            raise InvalidOptionError(
                f"serviceUrl {root!r} has a part '.' or '..', which no object store follows: name "
                "the place without it."
            )
        if any(mark in root for mark in "?#"):
            raise InvalidOptionError(
                f"serviceUrl {root!r} has a '?' or '#', which is no part of a place: give options "
                f"of the store as {STORAGE_PREFIX}NAME."
            )
        return RemoteStore(root, _settings(url.scheme, options))
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


def check_url(root: str) -> None:
    """InvalidOptionError if it is empty, a cluster's address, or lacks a bucket's slashes."""
    if not root.strip():
        raise InvalidOptionError("serviceUrl is empty. Give a folder, or s3://bucket/prefix.")
    if root.startswith(CLUSTERS):
        raise InvalidOptionError(a_cluster(root))
    scheme, colon, place = root.partition(":")
    if colon and scheme in SERVICES and not place.startswith("//"):
        raise InvalidOptionError(
            f"serviceUrl {root!r} lacks its slashes: {scheme}://{place.lstrip('/')}. A folder of "
            f"that name is ./{root}."
        )


def a_cluster(root: str) -> str:
    """The error for the address of a cluster of Pulsar's."""
    return (
        f"{root!r} is a cluster's address, and there is none here: topics are files. Name a "
        "folder, s3://bucket/prefix, or memory://NAME."
    )


def _settings(scheme: str, given: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The options as `obstore` takes them: of the service, of the HTTP client, of its retries."""
    names, prefixes = SERVICES[scheme]
    service: dict[str, str] = {}
    client = {  # obstore reads the environment's other settings by itself
        name: value
        for name in CLIENT
        for prefix in prefixes
        if (value := os.environ.get(f"{prefix}{name}".upper()))
    }
    waits = {"max_retries": str(MAX_RETRIES), "retry_timeout": str(RETRY_TIMEOUT_MS)}
    for name, value in given.items():
        plain = reduce(str.removeprefix, prefixes, name)
        if plain in waits:
            waits[plain] = value
        elif plain in CLIENT:
            client[plain] = value
        elif plain in names:
            if plain in _URLS:
                _check_url(name, value)
            service[plain] = value
        else:
            known = (*names, *CLIENT, *waits)
            near = difflib.get_close_matches(plain, known, n=1, cutoff=0.5)
            offer = f" Did you mean {STORAGE_PREFIX}{near[0]}?" if near else ""
            raise InvalidOptionError(
                f"Option {STORAGE_PREFIX}{name} is none of a store at {scheme}://.{offer} "
                f"Known are {', '.join(STORAGE_PREFIX + each for each in sorted(known))}."
            )
    try:
        retry = {
            "max_retries": count(0, 1000).parse(waits["max_retries"]),
            "retry_timeout": timedelta(milliseconds=parse_duration_ms(waits["retry_timeout"])),
        }
    except ValueError:
        raise InvalidOptionError(
            f"{STORAGE_PREFIX}max_retries is a whole number, 0 to 1000, and "
            f"{STORAGE_PREFIX}retry_timeout a duration, such as 30s: not "
            f"{waits['max_retries']!r} and {waits['retry_timeout']!r}."
        ) from None
    return {"config": service, "client_options": client, "retry_config": retry}


def _check_url(name: str, value: str) -> None:
    try:
        parts = urlsplit(value)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        whole = False
    if not whole:
        raise InvalidOptionError(
            f"Option {STORAGE_PREFIX}{name} is an address, such as http://127.0.0.1:9000: not "
            f"{value!r}."
        )
