"""The whole way on real servers of S3's and Azure's protocols; nothing is lost or comes twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.connector.tools.doctor.finding import State
from pulsar_spark.connector.tools.doctor.root_checks import check_promises
from tests.architecture.sources import REPOSITORY
from tests.stores.failing_line import FAULTS, failing_line
from tests.stores.servers import INSTALLED, SERVERS, Server

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.stores,
    pytest.mark.skipif(not INSTALLED.is_dir(), reason="make stores installs the servers"),
]
PUBLISHERS = 6
EACH = 20


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path) as running:
        yield running


def received(consumers: list[pulsar.Consumer], count: int) -> list[str]:
    """So many messages, acknowledged; each consumer is asked in turn."""
    found: list[str] = []
    silent = 0
    while len(found) < count and silent < 60 * len(consumers):
        for consumer in consumers:
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                silent += 1
                continue
            silent = 0
            found.append(message.data().decode())
            consumer.acknowledge(message)
    return found


def verify(server: Server, options: dict[str, str]) -> int:
    storage = [f"--storage={name}={value}" for name, value in options.items()]
    return main(["topics", "verify", "--deep", "--service-url", server.root, *storage])


def publishing(given: dict[str, Any]) -> subprocess.Popen[str]:
    """A process that publishes so, and prints what was confirmed."""
    command = [sys.executable, "-m", "tests.stores.publisher", json.dumps(given)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def test_the_store_keeps_its_promises(server: Server) -> None:
    store = open_store(server.root, server.options)
    findings = list(check_promises(store))
    assert {each.state for each in findings} == {State.OK}, findings
    store.check_writes()


def test_messages_go_the_whole_way(server: Server) -> None:
    sent = [str(number) for number in range(100)]
    dead = pulsar.ConsumerDeadLetterPolicy(1, "dead", "dead-readers")
    shared, key_shared = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
    with pulsar.Client(server.root, storage=server.options, broker="embedded") as client:
        first = pulsar.InitialPosition.Earliest
        groups = [
            [client.subscribe("t", f"{kind}", kind, initial_position=first, consumer_name=f"{n}")
             for n in range(2)]
            for kind in (shared, key_shared)
        ]  # fmt: skip
        producer = client.create_producer("t")
        for each in sent:
            producer.send_async(each.encode(), None, partition_key=each)
        producer.flush()
        for group in groups:
            assert sorted(received(group, len(sent))) == sorted(sent)
        failing = client.subscribe(
            "t", "failing", shared, initial_position=first, dead_letter_policy=dead,
            negative_ack_redelivery_delay_ms=100,
        )  # fmt: skip
        dead_letters = client.subscribe("dead", "dead-readers", shared, initial_position=first)
        found: list[str] = []
        while len(found) < 5:
            try:
                failing.negative_acknowledge(failing.receive(500))
            except pulsar.Timeout:  # noqa: PERF203 - it comes between rounds
                found += received([dead_letters], 1)
    assert verify(server, server.options) == 0


def test_publishers_race_for_one_log_on_a_line_that_fails(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with failing_line(server.port, seed=7) as (port, line):
        options = {**server.behind(port), "max_retries": "20", "timeout": "10s"}
        given = {"root": server.root, "options": options, "topic": "race", "messages": EACH}
        publishers = [publishing({**given, "name": str(name)}) for name in range(PUBLISHERS)]
        printed = [each.communicate(timeout=600)[0] for each in publishers]
        confirmed = [content for each in printed for content in each.split()]
        assert [each.returncode for each in publishers] == [0] * PUBLISHERS
        with pulsar.Client(server.root, storage=options) as client:
            reader = client.create_reader("race", pulsar.MessageId.earliest)
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(60_000).data().decode())
    assert len(confirmed) == PUBLISHERS * EACH
    assert Counter(found) == Counter(confirmed), "nothing lost, nothing twice"
    assert all(line.counted[fault] for fault in FAULTS), line.counted
    assert verify(server, server.options) == 0
    with capsys.disabled():
        print(f"\n{server.root}: {len(found)} messages once each; {dict(line.counted)}")
