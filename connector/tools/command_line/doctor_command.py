"""`pulsarlite doctor`: what is not well on this machine and with a root, and what to do.

Invariant: it comes to an end: a store that does not answer is asked for seconds, not for minutes.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import chain
from typing import Final
from urllib.parse import urlsplit

from pulsar_spark.connector.runtime.topics.topics import Root, service_url_of
from pulsar_spark.connector.storage.service_url import SERVICES
from pulsar_spark.connector.tools.command_line.noun import SERVICE_URL, STORAGE, argument, root_of
from pulsar_spark.connector.tools.doctor.finding import Finding, State, guarded
from pulsar_spark.connector.tools.doctor.root_checks import check_broker, check_root
from pulsar_spark.errors import InvalidOptionError

IMPATIENT: Final = {"max_retries": "2", "retry_timeout": "15s"}
"""Options of an object store, unless others are given."""
_ARGUMENTS: Final = (
    SERVICE_URL,
    STORAGE,
    argument("--deep", action="store_true", help="read every file of every topic"),
    argument(
        "--live", action="store_true",
        help="look for the broker's heartbeat alone: exit status 0 if a broker serves the root, "
        "else 1; two requests, for probes",
    ),
    argument("--json", action="store_true", help="print each finding as a line of JSON"),
)  # fmt: skip


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Look for what is not well: Python, packages, Java, and with --service-url the store's "
        "promises, the broker's sign of life, logs and checksums. Each finding says what to do. "
        "Exit status 1 if there is a problem. Pulsar: brokers healthcheck."
    )
    for each in _ARGUMENTS:
        each(parser)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the findings; 1 if one is a problem."""
    states = []
    for finding in _findings(arguments):
        states.append(finding.state)
        print("\n".join(_lines(finding, as_json=arguments.json)), flush=True)
    if not arguments.json:
        problems, warnings = states.count(State.PROBLEM), states.count(State.WARNING)
        print(f"{len(states)} looked at: {problems} problems, {warnings} warnings", flush=True)
    return int(State.PROBLEM in states)


def _findings(arguments: Namespace) -> Iterator[Finding]:
    remedy = "Look at --service-url and --storage."
    if arguments.live:
        if not service_url_of(arguments.service_url):
            raise InvalidOptionError("--live looks for a root's broker: give --service-url.")
        return guarded("broker", lambda: check_broker(_root(arguments), State.PROBLEM), remedy)
    from pulsar_spark.connector.tools.doctor.machine import check_machine  # it knows of Spark

    machine = guarded("machine", lambda: check_machine(os.environ), "Please report this.")
    if not service_url_of(arguments.service_url):
        return machine
    root = guarded("root", lambda: check_root(_root(arguments), deep=arguments.deep), remedy)
    return chain(machine, root)


def _root(arguments: Namespace) -> Root:
    root = root_of(arguments)
    if urlsplit(root.service_url).scheme not in SERVICES:
        return root
    return Root(root.service_url, IMPATIENT | dict(root.storage))


def _lines(finding: Finding, *, as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(finding._asdict())
        return
    yield f"{finding.state.value:8} {finding.subject}: {finding.text}"
    if finding.remedy:
        yield f"         -> {finding.remedy}"
