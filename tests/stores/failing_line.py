"""A proxy on the loopback that refuses, cuts answers after their effect, and delays, at random.

Invariant: each fault is counted, and which request meets one follows from the seed and the order in
which requests come.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = {"429": 0.03, "503": 0.03, "409": 0.03, "cut": 0.03, "delay": 0.05}
"""How often a request meets each fault; 409 only where something is written."""
DELAY_S = 0.2
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class FailingLine:
    """What the proxy does, and what it has done."""

    def __init__(self, port: int, seed: int) -> None:
        """`port`: of the server behind it."""
        self.port = port
        self.counted: Counter[str] = Counter()
        self._random, self._lock = random.Random(seed), threading.Lock()

    def fault(self, method: str) -> str:
        """The fault of the next request, or "" for none."""
        with self._lock:
            self.counted["requests"] += 1
            drawn = self._random.random()
            for name, share in FAULTS.items():
                drawn -= share
                if drawn < 0:
                    found = "" if name == "409" and method != "PUT" else name
                    self.counted[found or "none"] += 1
                    return found
        return ""


@contextmanager
def failing_line(port: int, seed: int) -> Iterator[tuple[int, FailingLine]]:
    """(the proxy's port, the proxy), as long as the block."""
    line = FailingLine(port, seed)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.line = line  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1], line
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        line: FailingLine = self.server.line  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = line.fault(self.command)
        if fault.isdecimal():
            self._reply(int(fault), [], b"<Error><Code>Injected</Code></Error>")
            return
        if fault == "delay":
            time.sleep(DELAY_S)
        server = HTTPConnection("127.0.0.1", line.port, timeout=60)
        try:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    server.putheader(name, value)
            server.endheaders(body)
            answer = server.getresponse()
            data, headers = answer.read(), answer.getheaders()
        finally:
            server.close()
        if fault == "cut":
            self.close_connection = True
            return
        self._reply(answer.status, headers, data)

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        length = str(len(data))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is printed."""
