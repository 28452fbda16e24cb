"""`pulsarlite standalone`: the broker of one root, until it is told to stop.

Invariants: it says when it serves, and what ended it; SIGTERM and Ctrl-C end it in order; one that
was killed takes up where it was at its next start.
"""

from __future__ import annotations

import os
import signal
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from pulsar_spark.connector.broker.broker_query import Broker, standalone
from pulsar_spark.connector.session import session
from pulsar_spark.errors import BrokerFencedError, InvalidOptionError, PulsarliteError

CHECK_EVERY_S = 2.0


def run(arguments: Namespace, say: Callable[[str], None]) -> int:
    """Serve until a signal; the exit status. PulsarliteError if it can't be started."""
    options = dict(_pair(each) for each in arguments.storage)
    spark = session("pulsarlite broker", f"local[{arguments.cores}]")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _setter(stop))
    try:
        with standalone(
            spark,
            arguments.service_url,
            checkpoint=arguments.checkpoint,
            state_partitions=arguments.state_partitions,
            **options,
        ) as broker:
            say(
                f"The broker of {broker.root.service_url} runs (process {os.getpid()}, term "
                f"{broker.term}). Ctrl-C stops it."
            )
            _serve(broker, stop, say)
            say("Stopping. Consumers that read by an open grant go on; others wait.")
    finally:
        spark.stop()
    return 0


def _serve(broker: Broker, stop: threading.Event, say: Callable[[str], None]) -> None:
    told: Mapping[str, Any] = {"restarts": 0, "set_aside": {}}
    while not stop.wait(CHECK_EVERY_S):
        status = broker.status()
        if not status["is_active"]:
            text = status["error"] or "the query ended"
            if BrokerFencedError.condition in text:
                raise BrokerFencedError(
                    f"Another broker has taken over {broker.root.service_url}: this one stops."
                )
            raise PulsarliteError(f"The broker ended: {text}")
        if status["restarts"] > told["restarts"]:
            say(
                f"The query failed and has begun again, {status['restarts']} times so far: "
                f"{_first_line(status['restart_error'])}"
            )
        for about, error in status["set_aside"].items():
            if about not in told["set_aside"]:
                say(f"Set aside, and tried again from time to time: {about}: {error}")
        for about in told["set_aside"].keys() - status["set_aside"].keys():
            say(f"No longer set aside: {about}")
        told = status


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _setter(stop: threading.Event) -> Callable[[int, FrameType | None], None]:
    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    return handle


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidOptionError(f"--storage {text}: it takes NAME=VALUE.")
    return f"storage.{name}", value
