"""`pulsarlite metrics`: metrics of all topics as Prometheus has them, once or on a port.

Invariants: no Spark; nothing is changed; without `--port` it prints and ends. Who scrapes gets what
there is at that moment.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

from pulsar_spark.connector.inspect.statistics.prometheus_text import (
    CONTENT_TYPE,
    STANDALONE,
    prometheus_text,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.noun import Command, argument, port
from pulsar_spark.errors import InvalidOptionError, PulsarliteError

PATHS: Final = ("/metrics", "/metrics/")
"""Pulsar's broker has the one with the stroke at its end."""
PATIENCE_S: Final = 10.0
"""Seconds that a client may take to send its request."""


def add_to(parser: ArgumentParser) -> None:
    """Declare `pulsarlite metrics`."""
    METRICS.add_to(parser)


def _metrics(root: Root, arguments: Namespace) -> Iterator[str]:
    if arguments.port is None:
        yield prometheus_text(root, arguments.cluster).rstrip("\n")
        return
    try:
        server = HTTPServer((arguments.host, arguments.port), _handler(root, arguments.cluster))
    except OSError as error:
        raise InvalidOptionError(
            f"--host {arguments.host} --port {arguments.port}: {error.strerror}. Name another."
        ) from error
    with server:
        host, port = server.server_address[:2]
        yield f"Metrics of {root.service_url}: http://{host!s}:{port}{PATHS[0]} (Ctrl-C ends this)"
        with suppress(KeyboardInterrupt):
            server.serve_forever()


METRICS: Final = Command(
    "Print metrics of all topics in Prometheus's text format, with the names and labels of "
    "Pulsar's broker; with --port, serve them. Pulsar: http://BROKER:8080/metrics.",
    (
        argument(
            "--port", type=port, metavar="PORT",
            help="serve http://HOST:PORT/metrics until Ctrl-C; 0 for any free one",
        ),
        argument(
            "--host", default="127.0.0.1",
            help="the address to serve at (default: %(default)s, for this machine only)",
        ),
        argument(
            "--cluster", default=STANDALONE,
            help="the label `cluster` of each metric (default: %(default)s)",
        ),
    ),
    _metrics,
)  # fmt: skip


def _handler(root: Root, cluster: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers with the metrics of now."""

        timeout = PATIENCE_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in PATHS:
                self.send_error(404, f"Only {PATHS[0]} is here")
                return
            try:
                body = prometheus_text(root, cluster).encode()
            except (PulsarliteError, OSError) as error:
                print(f"pulsarlite: {error}", file=sys.stderr, flush=True)
                self.send_error(503, "The root can't be read now")
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Scrapes are not worth a line each."""

    return Handler
