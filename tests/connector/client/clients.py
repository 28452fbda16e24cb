"""What the tests of the client do again and again."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

from pulsar_spark import pulsar

EARLIEST = pulsar.InitialPosition.Earliest
REPOSITORY = Path(__file__).resolve().parents[3]
numbers = itertools.count()


def subscribe(client: pulsar.Client, topic: Any = "t", **said: Any) -> pulsar.Consumer:
    return client.subscribe(topic, said.pop("name", "s"), initial_position=EARLIEST, **said)


def shared(client: pulsar.Client, **said: Any) -> pulsar.Consumer:
    return subscribe(client, consumer_type=pulsar.ConsumerType.Shared, **said)


def received(consumer: Any, timeout_millis: int = 1000) -> list[bytes]:
    """The payloads of all messages that come within that time."""
    return [message.data() for message in all_of(consumer, timeout_millis)]


def all_of(consumer: Any, timeout_millis: int = 1000) -> list[pulsar.Message]:
    read = consumer.read_next if isinstance(consumer, pulsar.Reader) else consumer.receive
    found = []
    while True:
        try:
            found.append(read(timeout_millis))
        except pulsar.Timeout:  # noqa: PERF203 - it comes once
            return found


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
