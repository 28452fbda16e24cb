"""A process with an embedded broker that stood still, and that another has taken over."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.broker.broker_heartbeat import HEARTBEAT_FILE, BrokerHeartbeat
from pulsar_spark.connector.runtime.broker.broker_sink import claim_term
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.testing import ManualClock
from tests.connector.client.clients import REPOSITORY, received, shared
from tests.waiting import eventually

DEADLINE_MS = 60_000


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_process_that_was_taken_over_serves_again_once_the_other_is_gone(
    client: pulsar.Client, caplog: pytest.LogCaptureFixture
) -> None:
    producer = client.create_producer("t")
    consumer = shared(client)
    claim_term(client.root)
    producer.send(b"a")
    assert consumer.receive(DEADLINE_MS).data() == b"a"
    over, again = lines(caplog)
    assert "another broker has taken over" in over
    assert "serves" in again


def test_a_process_that_was_taken_over_is_a_client_of_the_other_broker(
    client: pulsar.Client, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    observed: list[bytes] = []
    producer = client.create_producer("t")
    consumer = shared(client)
    shared(client, name="listening", message_listener=lambda _, each: observed.append(each.data()))
    root = client.root
    root.store.delete(HEARTBEAT_FILE)
    heartbeat = BrokerHeartbeat(root)
    heartbeat.begin()
    heartbeat.keep()
    other = EmbeddedBroker(root, term=claim_term(root))

    def serve() -> None:
        other.until_quiet()

    end = clock.repeat(0.1, serve, "the other broker")
    for value in (b"a", b"b"):
        producer.send(value)
        assert consumer.receive(DEADLINE_MS).data() == value
    clock.advance(minutes=5)
    assert observed == [b"a", b"b"]
    (line,) = lines(caplog)
    assert "another broker has taken over" in line
    end()
    heartbeat.remove()
    clock.advance(minutes=1)
    producer.send(b"c")
    assert received(consumer) == [b"c"], "it serves again"
    assert len(lines(caplog)) == 2


def stopped(process: subprocess.Popen[str]) -> bool:
    """Stop it where it holds no file's lock, for which all others would wait."""
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T")
    locks = Path("/proc/locks").read_text().splitlines()
    if any(str(process.pid) in each.split() for each in locks):
        process.send_signal(signal.SIGCONT)
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it needs /proc")
def test_a_stopped_process_goes_on_with_the_broker_that_took_over(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    code = f"""
from pulsar_spark import pulsar
client = pulsar.Client({root!r}, broker="embedded")
consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared)
print("there", flush=True)
while True:
    message = consumer.receive()
    consumer.acknowledge(message)
    print(message.data().decode(), flush=True)
"""
    with pulsar.Client(root) as client:
        client.create_producer("t").close()
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "there\n"
            eventually(lambda: stopped(process))
            with pulsar.Client(root, broker="embedded") as client:
                producer = client.create_producer("t")
                for number in range(3):
                    producer.send(str(number).encode())
                    if not number:
                        process.send_signal(signal.SIGCONT)
                    assert process.stdout.readline() == f"{number}\n"
            with pulsar.Client(root) as client:
                client.create_producer("t").send(b"served by the first again")
            assert process.stdout.readline() == "served by the first again\n"
        finally:
            os.kill(process.pid, signal.SIGKILL)
        over, again = process.stderr.read().splitlines()
    assert "another broker has taken over" in over
    assert "serves" in again
