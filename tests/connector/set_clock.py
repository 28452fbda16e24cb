"""A root in memory whose clock the test moves, and whose wall time it sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.connector.topic_log.topics import Root

_numbers = itertools.count()


class SetClock(ManualClock):
    """Its wall time can be set, as an administrator or a time server does."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@pytest.fixture
def clock() -> SetClock:
    return SetClock(1_700_000_000_000)


@pytest.fixture
def place(clock: SetClock) -> Iterator[Root]:
    name = f"test-{next(_numbers)}"
    MemoryStore.named(name, clock)
    yield Root(f"memory://{name}", {})
    MemoryStore.forget(name)
