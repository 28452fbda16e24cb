"""`pulsarlite dashboard`: pages that show a queue, served to this machine's browser until Ctrl-C.

Invariants: no Spark; nothing is changed without `--allow-changes`; Ctrl-C is how it ends, so the
exit status is 0 then.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Final

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.noun import Command, argument, port
from pulsar_spark.errors import MissingPackageError

PORT: Final = 7780


def add_to(parser: ArgumentParser) -> None:
    """Declare `pulsarlite dashboard`."""
    DASHBOARD.add_to(parser)


def _dashboard(root: Root, arguments: Namespace) -> Iterator[str]:
    try:
        from pulsar_spark.connector.tools.dashboard.web_app import make_dashboard
    except ImportError as error:
        raise MissingPackageError(
            f"The dashboard needs {error.name}, which is not installed. Run: pip install "
            "'pulsarlite[dashboard]'"
        ) from error
    server, url = make_dashboard(root, arguments.port, allow_changes=arguments.allow_changes)
    with server:
        yield f"Dashboard of {root.service_url}: {url} (Ctrl-C ends it)"
        server.serve_forever()  # returns at Ctrl-C


DASHBOARD: Final = Command(
    "Show topics, subscriptions and dead letters on pages for this machine's browser. Open the URL "
    "that it prints, with its key; nobody else can. Ctrl-C ends it. Not in Pulsar, which has "
    "Pulsar Manager.",
    (
        argument(
            "--port", type=port, default=PORT, metavar="PORT",
            help="where it listens, on 127.0.0.1; 0 for any free one (default: %(default)s)",
        ),
        argument(
            "--allow-changes", action="store_true",
            help="dead letters may be redriven from their page; without it, it only looks",
        ),
    ),
    _dashboard,
)  # fmt: skip
