"""The client, the broker, the rate and the end of commands that send and receive.

Invariants: neither Spark nor Java; a consumer is served by the broker that runs, or by this process
if none does and nobody said otherwise. Ctrl-C and SIGTERM are raised as `Stopped` where
a command says that it waits, and only noted elsewhere, so that nothing is broken off half done; a
second one is raised wherever it comes.
"""

from __future__ import annotations

import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any, Final, Literal

from pulsar_spark.connector.client.client import Client
from pulsar_spark.connector.client.client_errors import (
    AlreadyClosed,
    PulsarException,
    ServiceUnitNotReady,
)
from pulsar_spark.connector.runtime.broker.broker_heartbeat import is_alive
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import Clock
from pulsar_spark.connector.storage.memory_store import MEMORY
from pulsar_spark.connector.tools.command_line.noun import Printed, argument
from pulsar_spark.errors import BrokerAbsentError, PulsarliteError

ANSWERED_WITHIN_S: Final = 120
"""A broker that shows life may have begun just now, and Spark's first micro-batch is slow."""
BURST_S: Final = 1.0
"""Seconds of unused rate that may be made up for."""
LEAST_SLEEP_S: Final = 0.001
"""Less is not slept at once, but made up for with what follows."""
BROKER: Final = argument(
    "--broker", choices=("auto", "running", "embedded"), default="auto",
    help="who serves the subscription: the broker that runs, or this process as long as it runs "
    "(embedded); auto, the default, embeds one if none runs",
)  # fmt: skip


class Stopped(KeyboardInterrupt):
    """The process was told to end by this signal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.signal_number = signal_number


class Signals(AbstractContextManager["Signals"]):
    """Handles both signals during its block; of the main thread, as Python has it."""

    def __init__(self) -> None:
        self._noted: int | None = None
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Stopped if a signal has come."""
        if self._noted is not None:
            raise Stopped(self._noted)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context that a signal may break off anywhere."""
        self._waiting = True
        try:
            self.check()
            yield
        finally:
            self._waiting = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        again, self._noted = self._noted is not None, number
        if again or self._waiting:
            self._waiting = False
            raise Stopped(number)


@contextmanager
def connected(root: Root, signals: Signals, broker: str | None = None) -> Iterator[Client]:
    """A client of that root, closed at the end; with `broker`, as BROKER has it, it may subscribe.

    BrokerAbsentError if one has to run and none does; ServiceUnitNotReady if another process
    serves the root that this one was to serve.
    """
    with signals.waiting():
        client = _client(root, broker)
    try:
        yield client
    finally:
        with suppress(AlreadyClosed):
            client.close()


def _client(root: Root, broker: str | None) -> Client:
    def made(broker: Literal["embedded"] | None) -> Client:
        return Client(
            root.service_url,
            operation_timeout_seconds=ANSWERED_WITHIN_S,
            storage=root.storage,
            broker=broker,
        )

    if broker is None or root.service_url.startswith(MEMORY):
        return made(None)
    if broker == "embedded":
        return made("embedded")
    if is_alive(root):
        return made(None)
    if broker == "running":
        raise BrokerAbsentError(
            f"No broker of {root.service_url} shows life. Start one (pulsarlite standalone "
            f"--service-url {root.service_url}), or say --broker embedded."
        )
    try:
        client = made("embedded")
    except ServiceUnitNotReady:  # it does show life, by its own clock
        return made(None)
    note(f"No broker of {root.service_url} runs: this process serves it until it ends.")
    return client


def printed_lines(
    lines: Iterable[Printed], at_end: Callable[[], Iterable[Printed]]
) -> Iterator[Printed]:
    """The lines, and then those of the end, however they end."""
    failure: BaseException | None = None
    try:
        yield from lines
    except (PulsarException, PulsarliteError, OSError, Stopped) as error:
        failure = error
    yield from at_end()
    if failure is not None:
        raise failure


def counted(arguments: Namespace, messages: int, did: str) -> Iterator[Printed]:
    """The number of messages produced, consumed or read; with `--json` as JSON."""
    text = f"{messages} messages successfully {did}"
    if arguments.json:
        note(text)
    else:
        yield text


def note(text: str) -> None:
    """Say this to the person, beside what the command prints."""
    print(f"pulsarlite: {text}", file=sys.stderr, flush=True)


class RateLimiter:
    """Lets so many things a second happen, as Guava's class of that name does; 0: any number."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._every_s = 1 / per_second if per_second > 0 else 0.0
        self._clock = clock
        self._next_s = clock.monotonic_s()

    def acquire(self, signals: Signals) -> None:
        """Return when the next may happen."""
        signals.check()
        if not self._every_s:
            return
        now_s = self._clock.monotonic_s()
        if self._next_s - now_s > LEAST_SLEEP_S:
            with signals.waiting():
                self._clock.sleep(self._next_s - now_s)
        self._next_s = max(self._next_s, now_s - BURST_S) + self._every_s
