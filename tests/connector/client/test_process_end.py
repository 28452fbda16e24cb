"""A program that ended without a word, killed or by an error, is in nobody's way when it is back.

Leases are ten minutes here, so only the end of a process can free what it had.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_spark import pulsar
from pulsar_spark.broker.protocol.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.lease import Lease, LeaseKeeper
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.process_identity import is_gone, this_process
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.state.broker_query import Broker, standalone
from tests.connector.client.clients import REPOSITORY, python, subscribe
from tests.waiting import eventually

LONG = {"leaseTimeout": "600s"}
DEADLINE_MS = 60_000
TOPIC = TopicPartition("persistent://public/default/t", 0)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it needs /proc")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with standalone(None, str(tmp_path / "root"), embedded=True) as broker:
        yield broker


def program(root: str, body: str, broker: str | None = None) -> str:
    return f"""
from pulsar_spark import pulsar
client = pulsar.Client({root!r}, broker={broker!r})
{body}
"""


def consuming(kind: pulsar.ConsumerType) -> str:
    return f"""
consumer = client.subscribe(
    "t", "s", pulsar.ConsumerType.{kind.name}, consumer_name="first",
    initial_position=pulsar.InitialPosition.Earliest, options={LONG!r},
)
consumer.receive({DEADLINE_MS})
"""


def killed(code: str) -> None:
    """Run it up to its end, and kill it there."""
    waits = code + "\nprint('there', flush=True)\nimport time\ntime.sleep(600)\n"
    with subprocess.Popen(
        [sys.executable, "-c", waits], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert line == "there\n"


@linux
@pytest.mark.parametrize(
    "kind",
    [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover, pulsar.ConsumerType.Shared],
)
def test_what_a_killed_consumer_held_comes_to_the_next_at_once(
    broker: Broker, kind: pulsar.ConsumerType
) -> None:
    with pulsar.Client(broker.root.service_url) as client:
        client.create_producer("t").send(b"a")
        killed(program(client.root.service_url, consuming(kind)))
        consumer = subscribe(client, consumer_type=kind, consumer_name="second", options=LONG)
        assert consumer.receive(DEADLINE_MS).data() == b"a"


@linux
def test_a_killed_program_with_its_broker_is_there_again_at_once(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    with pulsar.Client(root) as client:
        client.create_producer("t").send(b"a")
    killed(program(root, consuming(pulsar.ConsumerType.Exclusive), "embedded"))
    with pulsar.Client(root, broker="embedded") as client:
        consumer = subscribe(client, consumer_name="second", options=LONG)
        assert consumer.receive(DEADLINE_MS).data() == b"a"


@linux
@pytest.mark.parametrize("mode", list(pulsar.ProducerAccessMode))
def test_a_killed_exclusive_producer_leaves_its_topic_to_the_next(
    tmp_path: Path, mode: pulsar.ProducerAccessMode
) -> None:
    root = str(tmp_path / "root")
    exclusive = "client.create_producer('t', access_mode=pulsar.ProducerAccessMode.Exclusive, "
    killed(program(root, f"producer = {exclusive}options={{'producerLease': '600s'}})"))
    with pulsar.Client(root) as client:
        client.create_producer("t", access_mode=mode).send(b"a")


@linux
def test_a_living_exclusive_producer_keeps_its_topic(tmp_path: Path) -> None:
    exclusive = pulsar.ProducerAccessMode.Exclusive
    with pulsar.Client(str(tmp_path / "root")) as client:
        client.create_producer("t", "first", access_mode=exclusive)
        with pytest.raises(pulsar.ProducerFenced):
            client.create_producer("t", "second", access_mode=exclusive)
        with pytest.raises(pulsar.ProducerBusy):
            client.create_producer("t", "third").send(b"a")


def test_what_a_program_never_closed_is_closed_at_its_end(broker: Broker) -> None:
    root = broker.root.service_url
    body = """
producer = client.create_producer("t", batching_enabled=True,
    batching_max_publish_delay_ms=600_000, access_mode=pulsar.ProducerAccessMode.Exclusive)
producer.send_async(b"a", lambda *_: None)
consumer = client.subscribe("t", "s")
raise RuntimeError("a fault of the program")
"""
    ended = python(program(root, body))
    assert "a fault of the program" in ended.stderr
    assert ended.stderr.count("Traceback") == 1, ended.stderr
    assert not list(broker.root.store.files("_leases"))
    eventually(lambda: [each.consumers for each in subscriptions(broker.root)] == [()])
    with pulsar.Client(root) as client:
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        assert reader.read_next(0).data() == b"a"
        client.create_producer("t", access_mode=pulsar.ProducerAccessMode.Exclusive)


def test_a_listener_that_never_returns_holds_up_no_end_of_a_program(tmp_path: Path) -> None:
    body = """
import threading, time
handed = threading.Event()
def listener(consumer, message):
    handed.set()
    time.sleep(600)
client.create_producer("t").send(b"a")
client.subscribe("t", "s", message_listener=listener,
    initial_position=pulsar.InitialPosition.Earliest)
handed.wait()
"""
    ended = python(program(str(tmp_path / "root"), body, "embedded"))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_root_that_was_deleted_is_not_made_again_by_the_end_of_a_program(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    body = """
producer = client.create_producer("t", batching_enabled=True,
    batching_max_publish_delay_ms=600_000)
producer.send_async(b"a", lambda *_: None)
import shutil
shutil.rmtree(client.root.store.root)
"""
    ended = python(program(root, body))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not Path(root).exists()


@linux
def test_of_two_that_subscribed_before_the_broker_looked_the_one_that_lives_is_let_in(
    place: Root,
) -> None:
    first, second = Lease("s", "first", 1, process=_ended()), Lease("s", "second", 2)
    for each in (first, second):
        LeaseKeeper(place.store).keep(each)
        command = Subscribe(
            "s", each.consumer, each.incarnation, SubscriptionType.EXCLUSIVE,
            initial_position=InitialPosition.EARLIEST, permits=9,
        )  # fmt: skip
        SystemTopic(place, COMMANDS).append([Record.of(TOPIC, "s", command)])
    with pulsar.Client(place.service_url) as client:
        client.create_producer("t")
    with EmbeddedBroker(place) as broker:
        broker.until_quiet()
        (subscription,) = subscriptions(place)
    assert [each.name for each in subscription.consumers] == ["second"]


@linux
def test_a_process_is_known_to_be_gone_and_no_other_is_taken_for_it() -> None:
    mine = this_process()
    machine, _, process = mine.rpartition("/")
    number, started = map(int, process.split())
    assert not is_gone(mine)
    assert is_gone(_ended())
    assert is_gone(f"{machine}/{number} {started - 1}"), "a process had that number before"
    assert not is_gone(f"another {machine}/{number} {started - 1}"), "of another machine"
    assert not is_gone("")
    assert not is_gone("nothing")


@linux
def test_a_process_for_which_its_parent_never_waits_is_gone() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PRINTS], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        identity = process.stdout.readline().strip()
        eventually(lambda: is_gone(identity), what="it is known to be gone")


_PRINTS = (
    "from pulsar_spark.connector.storage.process_identity import this_process;print(this_process())"
)


def _ended() -> str:
    return python(_PRINTS).stdout.strip()
