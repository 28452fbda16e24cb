"""`pulsarlite standalone`: the broker of one root, until it is told to stop.

Invariants: it says when it serves, and what ended it; SIGTERM and Ctrl-C end it in order; one that
was killed takes up where it was at its next start. On standby it waits as long as another serves,
before it serves and after it was taken over.
"""

from __future__ import annotations

import os
import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.session import session, submitted_to
from pulsar_spark.connector.tools.command_line.noun import (
    SERVICE_URL,
    STORAGE,
    argument,
    at_least,
    pairs,
    root_of,
)
from pulsar_spark.errors import (
    BrokerBusyError,
    BrokerFencedError,
    PulsarliteError,
    StaleCheckpointError,
    StorageError,
)
from pulsar_spark.state.broker_query import Broker, standalone

_print_line = partial(print, flush=True)


def cores(text: str) -> str:
    """For `argument(type=...)`: how many, or * for all."""
    return text if text == "*" else str(at_least(1)(text))


ARGUMENTS = (
    SERVICE_URL,
    STORAGE,
    argument(
        "--checkpoint", metavar="FOLDER",
        help="where Spark keeps the broker's state (default: below a local root, else in the home "
        "folder; a lost one is rebuilt)",
    ),
    argument(
        "--master", metavar="URL",
        help="of a cluster, such as spark://host:7077 (default: this machine; under spark-submit, "
        "its own)",
    ),
    argument(
        "--cores", type=cores, default="2", metavar="N",
        help="on this machine; * for all (default: %(default)s)",
    ),
    argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of Spark's, such as spark.cores.max=2; may be given several times",
    ),
    argument(
        "--state-partitions", type=at_least(1), default=1, metavar="N",
        help="tasks of a micro-batch, fixed for a checkpoint's life; more than one is for "
        "thousands of busy topic partitions (default: %(default)s)",
    ),
    argument(
        "--embedded", action="store_true",
        help="in this process alone, without Spark and Java: each message comes sooner, for one "
        "core's work at most",
    ),
    argument(
        "--standby", action="store_true",
        help="wait while another broker serves, and take over once it is gone, or has shown no "
        "life for ten seconds; as many as you like may wait",
    ),
)  # fmt: skip


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Run the broker of the topics below a root, until Ctrl-C. One broker serves a root; "
        "killed at any point, it takes up where it was. Pulsar: bin/pulsar standalone."
    )
    for each in ARGUMENTS:
        each(parser)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Serve until a signal; the exit status. PulsarliteError if it can't be started."""
    root = root_of(arguments)
    spark = None if arguments.embedded else _session(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        while not stop.is_set():
            _serve_once(spark, root, arguments, stop)
    finally:
        if spark is not None:
            spark.stop()
    return 0


def _session(arguments: Namespace) -> Any:
    master = arguments.master or submitted_to() or f"local[{arguments.cores}]"
    settings: dict[str, Any] = pairs("--conf", arguments.conf)
    return session("pulsarlite broker", master, **settings)


def _serve_once(spark: Any, root: Root, arguments: Namespace, stop: threading.Event) -> None:
    """Serve; on standby say why not any more."""
    try:
        _serve(spark, root, arguments, stop)
    except (BrokerBusyError, BrokerFencedError) as error:
        if stop.is_set():
            return
        if not arguments.standby:
            raise
        _print_line(error.message)


def _serve(spark: Any, root: Root, arguments: Namespace, stop: threading.Event) -> None:
    reported = False

    def waits() -> bool:
        nonlocal reported
        if not reported:
            _print_line(f"Another broker serves {root.service_url}: this one stands by.")
            reported = True
        return not stop.is_set()

    with standalone(
        spark,
        root.service_url,
        storage=root.storage,
        checkpoint=arguments.checkpoint,
        state_partitions=arguments.state_partitions,
        embedded=arguments.embedded,
        standby=waits if arguments.standby else False,
        is_over=stop.is_set,
    ) as broker:
        _print_line(
            f"The broker of {root.service_url} runs (process {os.getpid()}, term {broker.term}). "
            "Ctrl-C stops it."
        )
        watch(broker, stop)
        _print_line("Stopping. Consumers that read by an open grant go on; others wait.")


def watch(
    broker: Broker,
    stop: threading.Event,
    print_line: Callable[[str], None] = _print_line,
    every_s: float = 2.0,
) -> None:
    """Say what becomes of the broker until `stop`. PulsarliteError if it ends by itself."""
    reported: Mapping[str, Any] = {"restarts": 0, "quarantined": {}}
    is_known = True
    while not stop.wait(every_s):
        status, is_known = _status_of(broker, print_line, is_known=is_known)
        if status is None:
            continue
        if not status["is_active"]:
            text = status["error"] or "the query ended"
            if BrokerFencedError.condition in text:
                raise BrokerFencedError(
                    f"Another broker has taken over {broker.root.service_url}: this one stops."
                )
            if StaleCheckpointError.condition in text:
                raise StaleCheckpointError(f"The broker ended: {text}")
            raise PulsarliteError(f"The broker ended: {text}")
        if status["restarts"] > reported["restarts"]:
            first_line = status["restart_error"].strip().partition("\n")[0]
            times = f"{status['restarts']} times so far"
            print_line(f"The query failed and has begun again, {times}: {first_line}")
        for topic_partition, error in status["quarantined"].items():
            if topic_partition not in reported["quarantined"]:
                print_line(
                    f"Set aside, and tried again from time to time: {topic_partition}: {error}"
                )
        for topic_partition in reported["quarantined"].keys() - status["quarantined"].keys():
            print_line(f"No longer set aside: {topic_partition}")
        reported = status


def _status_of(
    broker: Broker, print_line: Callable[[str], None], *, is_known: bool
) -> tuple[Mapping[str, Any] | None, bool]:
    """(its status, whether it could be read); a store that is away for a while ends no broker."""
    try:
        return broker.status(), True
    except (StorageError, OSError) as error:
        broker.await_termination(0)  # it raises what has ended the broker
        if is_known:
            print_line(f"The broker's state can't be read for now, and is looked at again: {error}")
        return None, False
