"""The same programs here: a place in memory whose clock is moved, or a root of asyncio's.

Invariant: a program has a root of its own, which is gone with it. One that uses asyncio runs by the
machine's clock, since only the owner of a moved clock moves it, and asyncio waits in other threads.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.inspect.telemetry.client_logs import PACKAGE_LOGGER
from pulsar_spark.connector.runtime.housekeeping import compaction
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.memory_store import MEMORY, MemoryStore
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.pulsar import asyncio, schema
from pulsar_spark.testing import Place
from tests.programs.interpreter import Interpreter, Step


class PulsarliteHost:
    """A root of topics in memory, with the clock of a place if it has one."""

    def __init__(self, url: str, place: Place | None) -> None:
        self.pulsar: Any = pulsar
        self.asyncio: Any = asyncio
        self.schema: Any = schema
        self.url, self._place, self._admin = url, place, Admin(url)

    def sleep(self, seconds: float) -> None:
        if self._place is None:
            time.sleep(seconds)
        else:
            self._place.clock.advance(seconds=seconds)

    def now_ms(self) -> int:
        if self._place is None:
            return time.time_ns() // 1_000_000
        return self._place.clock.wall_ms()

    def create_partitioned(self, topic: str, partitions: int) -> None:
        self._admin.topics.create(topic, partitions)

    def update_partitions(self, topic: str, partitions: int) -> None:
        self._admin.topics.update(topic, partitions)

    def terminate(self, topic: str) -> None:
        self._admin.topics.terminate(topic)

    def delete(self, topic: str) -> None:
        self._admin.topics.delete(topic, force=True)

    def backlog(self, topic: str, subscription: str) -> int:
        self.sleep(0.3)
        found = [
            each for each in self._admin.subscriptions.stats(topic) if each.name == subscription
        ]
        return sum(each.backlog for each in found)

    def compact(self, topic: str) -> None:
        ledger = Root(self.url, {}).open_found(TopicName.parse(topic))
        assert ledger is not None
        compaction.compact(ledger)


@contextmanager
def host(name: str, steps: list[Step]) -> Iterator[PulsarliteHost]:
    if "asyncio." in json.dumps(steps):
        try:
            yield PulsarliteHost(f"{MEMORY}{name}", None)
        finally:
            MemoryStore.forget(name)
    else:
        with Place() as place:
            yield PulsarliteHost(place.service_url, place)


def run(name: str, steps: list[Step]) -> list[Any]:
    """The trace of a program here. A program may set the log of the process, which ends with it."""
    package = logging.getLogger(PACKAGE_LOGGER)
    level, handlers = package.level, package.handlers[:]
    try:
        with host(name, steps) as of:
            found: list[Any] = json.loads(json.dumps(Interpreter(of, name).run(steps)))
            return found
    finally:
        package.setLevel(level)
        package.handlers[:] = handlers
