"""An object store on the loopback: as much of S3's and of Google's XML interface as obstore calls.

It decides conditions as the services do: S3 by `If-None-Match` and `If-Match`, Google by generation
alone. A test tells it when to answer with something else, or to cut the line.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "pulsarlite"


@dataclass
class Answer:
    """To requests of this method for such a path: a status, after doing it or not; 0: hang up."""

    method: str
    suffix: str
    status: int
    code: str = ""
    applied: bool = False
    times: int = 1


@dataclass(frozen=True)
class Stored:
    data: bytes
    generation: int
    modified: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    @property
    def e_tag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}-{self.generation}"'


@dataclass
class ObjectService:
    """The buckets' contents, and what is to go wrong."""

    address: str
    dialect: str
    """s3 or gs."""
    objects: dict[str, Stored] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    before: list[tuple[str, str, Callable[[], object]]] = field(default_factory=list)
    """(method, suffix, what to do first, once)."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)
    """Conditions, by the names of their headers, that it does not look at."""
    is_of_bucket: bool = False
    """Its address is that of the bucket: whatever a path begins with is part of the key."""
    _generations: Iterator[int] = field(default_factory=lambda: itertools.count(1_000_001))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, str]:
        """Options of a store that asks this service, and gives up soon."""
        common = {"allow_http": "true", "max_retries": "2", "retry_timeout": "5s"}
        if self.dialect == "gs":
            account = {
                "gcs_base_url": self.address, "disable_oauth": True, "client_email": "",
                "private_key": "", "private_key_id": "",
            }  # fmt: skip
            return {**common, "google_service_account_key": json.dumps(account)}
        return {
            **common, "aws_endpoint": self.address, "aws_access_key_id": "test",
            "aws_secret_access_key": "test", "aws_region": "us-east-1",
        }  # fmt: skip

    def root(self, bucket: str = BUCKET) -> str:
        return f"{self.dialect}://{bucket}/root"

    def answer(
        self, method: str, suffix: str, status: int, code: str = "", *, applied: bool = False,
        times: int = 1,
    ) -> None:  # fmt: skip
        """So many requests of that method for a path with that end are answered so."""
        self.answers.append(Answer(method, suffix, status, code, applied, times))

    def planned(self, method: str, path: str) -> Answer | None:
        with self._lock:
            self.requests.append((method, path))
            for each in self.answers:
                if each.method == method and path.endswith(each.suffix) and each.times > 0:
                    each.times -= 1
                    return each
        return None

    def do_first(self, method: str, path: str) -> None:
        for each in list(self.before):
            if each[0] == method and path.endswith(each[1]):
                self.before.remove(each)
                each[2]()

    def put(self, key: str, data: bytes, headers: dict[str, str]) -> tuple[int, Stored | None]:
        """What the service does about it: 200, 404 or 412."""
        with self._lock:
            there = self.objects.get(key)
            headers = {name: each for name, each in headers.items() if name not in self.ignored}
            if self.dialect == "gs":
                requested = headers.get("x-goog-if-generation-match")
                refused = requested is not None and requested != str(
                    there.generation if there else 0
                )
            else:
                refused = headers.get("if-none-match") == "*" and there is not None
                if (match := headers.get("if-match")) is not None:
                    if there is None:
                        return 404, None
                    refused = there.e_tag != match
            if refused:
                return 412, None
            self.objects[key] = stored = Stored(data, next(self._generations))
            return 200, stored


@contextmanager
def serving(dialect: str) -> Iterator[ObjectService]:
    """A service of its own, as long as the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    service = ObjectService(f"http://127.0.0.1:{server.server_address[1]}", dialect)
    server.service = service  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def do_POST(self) -> None:
        self._serve("POST")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is printed."""

    @property
    def _service(self) -> ObjectService:
        service: ObjectService = self.server.service  # type: ignore[attr-defined]
        return service

    def _serve(self, method: str) -> None:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if self._service.is_of_bucket:
            bucket, key = BUCKET, unquote(url.path).lstrip("/")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self._service.do_first(method, key or bucket)
        answer = self._service.planned(method, key or bucket)
        if answer is not None and not answer.applied:
            self._fail(answer)
            return
        reply = self._done(method, bucket, key, query, body)
        if answer is not None:
            self._fail(answer)
            return
        self._reply(*reply)

    def _done(
        self, method: str, bucket: str, key: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes, Stored | None]:
        service = self._service
        if bucket != BUCKET:
            return 404, _error("NoSuchBucket"), None
        if method == "POST":  # S3 deletes so
            keys = [part.partition("</Key>")[0] for part in body.decode().split("<Key>")[1:]]
            for each in keys:
                service.objects.pop(each, None)
            deleted = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in keys)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), None
        if not key:
            return 200, _listing(service.objects, query), None
        if method == "PUT":
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, stored = service.put(key, body, headers)
            return status, b"" if stored else _error("PreconditionFailed"), stored
        there = service.objects.get(key)
        if method == "DELETE":
            service.objects.pop(key, None)
            return (204, b"", None) if there else (404, _error("NoSuchKey"), None)
        return (404, _error("NoSuchKey"), None) if there is None else (200, there.data, there)

    def _fail(self, answer: Answer) -> None:
        if not answer.status:
            self.close_connection = True
            return
        self._reply(answer.status, _error(answer.code), None)

    def _reply(self, status: int, body: bytes, stored: Stored | None) -> None:
        requested = self.headers.get("range")
        headers = {}
        if self.command == "GET" and stored is not None and requested and status == 200:
            first, _, last = requested.removeprefix("bytes=").partition("-")
            stop = min(int(last) + 1 if last else len(body), len(body))
            headers["content-range"] = f"bytes {first}-{stop - 1}/{len(body)}"
            status, body = 206, body[int(first) : stop]
        if stored is not None:
            headers["etag"] = stored.e_tag
            headers["last-modified"] = format_datetime(stored.modified, usegmt=True)
            if self._service.dialect == "gs":
                headers["x-goog-generation"] = str(stored.generation)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()


def _listing(objects: dict[str, Stored], query: dict[str, str]) -> bytes:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    found, folders = [], set()
    for key, each in sorted(objects.items()):
        if key.startswith(prefix):
            name, cut, _ = key[len(prefix) :].partition(delimiter or "\0")
            if cut and delimiter:
                folders.add(prefix + name + delimiter)
            else:
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(each.data)}</Size>"
                    f"<LastModified>{each.modified:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified>"
                    f"<ETag>{escape(each.e_tag)}</ETag></Contents>"
                )
    found += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in
              sorted(folders)]  # fmt: skip
    return (
        f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>"
    ).encode()
