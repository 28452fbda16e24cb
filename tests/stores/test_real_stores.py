"""The whole way on servers of three protocols; nothing is lost or comes twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from tests.waiting import eventually

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.stores,
    pytest.mark.skipif(not INSTALLED.is_dir(), reason="make stores installs the servers"),
]
PUBLISHERS = 20
EACH = 10
FIRST = pulsar.InitialPosition.Earliest
TYPES = pulsar.ConsumerType


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path) as running:
        yield running


def received(consumers: list[pulsar.Consumer], count: int) -> list[str]:
    """So many messages, acknowledged; each consumer is asked in turn."""
    found: list[str] = []
    silent = 0
    while len(found) < count and silent < 40 * len(consumers):
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


@pytest.mark.parametrize(
    "kind", [TYPES.Exclusive, TYPES.Failover, TYPES.Shared, TYPES.KeyShared], ids=lambda k: k.name
)
def test_a_subscription_of_each_type_has_each_message_once(
    server: Server, kind: pulsar.ConsumerType
) -> None:
    sent = [str(number) for number in range(100)]
    with pulsar.Client(server.root, storage=server.options, broker="embedded") as client:
        count = 1 if kind is TYPES.Exclusive else 2
        group = [
            client.subscribe("t", "s", kind, initial_position=FIRST, consumer_name=f"{n}")
            for n in range(count)
        ]
        producer = client.create_producer("t")
        for each in sent:
            producer.send_async(each.encode(), None, partition_key=each)
        producer.flush()
        assert sorted(received(group, len(sent))) == sorted(sent)
    assert verify(server, server.options) == 0


def test_dead_letters_and_transactions_on_it(server: Server) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, "dead", "dead-readers")
    with pulsar.Client(server.root, storage=server.options, broker="embedded") as client:
        producers = [client.create_producer(topic) for topic in ("t", "out", "more")]
        for number in range(5):
            producers[0].send(b"%d" % number)
        failing = client.subscribe(
            "t", "failing", TYPES.Shared, initial_position=FIRST, dead_letter_policy=policy,
            negative_ack_redelivery_delay_ms=100,
        )  # fmt: skip
        dead_letters = client.subscribe("dead", "dead-readers", TYPES.Shared)
        found: list[str] = []
        while len(found) < 5:
            try:
                failing.negative_acknowledge(failing.receive(500))
            except pulsar.Timeout:  # noqa: PERF203 - it comes between rounds
                found += received([dead_letters], 1)
        assert sorted(found) == list("01234")
        consumer = client.subscribe("t", "moving", TYPES.Shared, initial_position=FIRST)
        for _ in range(5):
            message = consumer.receive(60_000)
            with client.new_transaction() as txn:
                for producer in producers[1:]:
                    producer.add(txn, message.data())
                consumer.acknowledge_in(txn, message)
        for topic in ("out", "more"):
            moved = client.subscribe(topic, "moved", initial_position=FIRST)
            assert received([moved], 6) == list("01234")
    assert verify(server, server.options) == 0


def test_a_standby_goes_on_when_the_broker_is_killed(server: Server, tmp_path: Path) -> None:
    with ExitStack() as stack:
        outputs = [tmp_path / f"broker-{number}" for number in range(2)]
        brokers = []
        for output in outputs:
            brokers.append(stack.enter_context(serving_broker(server, output)))
            eventually(output.read_text, 120, "it serves, or stands by")
        client = stack.enter_context(pulsar.Client(server.root, storage=server.options))
        consumer = client.subscribe("t", "s", TYPES.Shared, initial_position=FIRST)
        producer = client.create_producer("t")
        found = []
        for number in range(60):
            if number == 30:
                brokers[0].kill()
            producer.send(b"%d" % number)
            found += received([consumer], 1) if number % 3 == 0 else []
        found += received([consumer], 60 - len(found))
        assert "term 2" in outputs[1].read_text()
        assert Counter(found) == Counter(map(str, range(60)))
    assert verify(server, server.options) == 0


@contextmanager
def serving_broker(server: Server, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`pulsarlite standalone` as a process that prints into that file."""
    storage = [f"--storage={name}={value}" for name, value in server.options.items()]
    arguments = ["standalone", "--embedded", "--standby", "--service-url", server.root, *storage]
    with output.open("wb") as stream:
        command = [sys.executable, "-m", "pulsar_spark", *arguments]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=stream)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_twenty_publishers_race_for_one_log_on_a_line_that_fails(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with failing_line(server.port, seed=7) as (port, line):
        options = {**server.behind(port), "max_retries": "20", "timeout": "10s"}
        given = {"root": server.root, "options": options, "topic": "race", "messages": EACH}
        publishers = [publishing({**given, "name": str(name)}) for name in range(PUBLISHERS)]
        printed = [each.communicate(timeout=600)[0] for each in publishers]
        confirmed = [content for each in printed for content in each.split()]
        assert [each.returncode for each in publishers] == [0] * PUBLISHERS
        with pulsar.Client(server.root, storage=options, broker="embedded") as client:
            consumers = [
                client.subscribe("race", "s", TYPES.Shared, initial_position=FIRST) for _ in "ab"
            ]
            found = received(consumers, len(confirmed) + 1)
    assert len(confirmed) == PUBLISHERS * EACH
    assert Counter(found) == Counter(confirmed), "nothing lost, nothing twice"
    assert all(line.counted[fault] for fault in FAULTS), line.counted
    assert verify(server, server.options) == 0
    with capsys.disabled():
        print(f"\n{server.root}: {len(found)} messages once each; {dict(line.counted)}")
