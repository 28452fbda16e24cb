"""A client of a store in memory, whose clock moves when it is waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.storage.memory_store import MemoryStore
from tests.connector.client.clients import numbers


@pytest.fixture
def url() -> Iterator[str]:
    name = f"client-{next(numbers)}"
    MemoryStore.named(name, ManualClock(1_000_000))
    yield f"memory://{name}"
    MemoryStore.forget(name)


@pytest.fixture
def client(url: str) -> Iterator[pulsar.Client]:
    with pulsar.Client(url) as made:
        yield made
