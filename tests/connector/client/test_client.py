"""The client itself: its broker, its end, forks, threads, and Spark, which it does not load."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import PulsarliteError
from tests.connector.client.clients import (
    all_of,
    python,
    shared,
    subscribe,
)


def test_an_address_of_a_cluster_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(pulsar.InvalidUrl, match="Name a folder"):
        pulsar.Client("pulsar://localhost:6650")
    with pytest.raises(pulsar.OperationNotSupported, match="nobody to log in to"):
        pulsar.Client(str(tmp_path), authentication=pulsar.AuthenticationToken("token"))


def test_an_argument_that_means_nothing_is_refused_where_it_is_given(url: str) -> None:
    with pytest.raises(ValueError, match="Argument broker is 'embeded'"):
        pulsar.Client(url, broker="embeded")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Argument operation_timeout_seconds is expected"):
        pulsar.Client(url, operation_timeout_seconds="9")  # type: ignore[arg-type]
    with pulsar.Client(url) as client:
        with pytest.raises(ValueError, match="start_message_id is expected to be of type"):
            client.create_reader("t", "earliest")  # type: ignore[arg-type]
        with pytest.raises(pulsar.InvalidConfiguration, match="Empty subscription name"):
            client.subscribe("t", "")
        with pytest.raises(TypeError, match=r"Encode it, or .* StringSchema"):
            client.create_producer("t").send("text")


def test_what_is_closed_says_so(url: str) -> None:
    client = pulsar.Client(url)
    producer, consumer = client.create_producer("t"), subscribe(client)
    producer.close()
    with pytest.raises(pulsar.AlreadyClosed):
        producer.send(b"a")
    client.close()
    for call in (consumer.receive, client.close, lambda: client.create_producer("t")):
        with pytest.raises(pulsar.AlreadyClosed):
            call()


def test_without_a_broker_a_subscription_says_what_to_start(tmp_path: Path) -> None:
    with pulsar.Client(str(tmp_path), operation_timeout_seconds=0) as client:
        client.create_producer("t").send(b"a")
        with pytest.raises(pulsar.Timeout, match="pulsarlite standalone"):
            subscribe(client)


def test_where_another_broker_has_served_since_its_states_are_taken_over(tmp_path: Path) -> None:
    def serve() -> bytes:
        with pulsar.Client(str(tmp_path), broker="embedded") as client:
            consumer = subscribe(client)
            client.create_producer("t").send(b"x")
            message = consumer.receive(30_000)
            consumer.acknowledge(message)
            return message.data()

    assert serve() == b"x"
    with EmbeddedBroker(Root(str(tmp_path), {})) as other:  # it leaves no checkpoint
        other.until_quiet()
    assert serve() == b"x"


def test_two_clients_of_a_folder_share_its_broker_and_another_process_is_refused(
    tmp_path: Path,
) -> None:
    with (
        pulsar.Client(str(tmp_path), broker="embedded") as one,
        pulsar.Client(str(tmp_path), broker="embedded") as two,
    ):
        consumer = subscribe(one)
        two.create_producer("t").send(b"a")
        assert consumer.receive(30_000).data() == b"a"
        code = (
            f"from pulsar_spark import pulsar; pulsar.Client({str(tmp_path)!r}, broker='embedded')"
        )
        run = python(code)
        assert "ServiceUnitNotReady" in run.stderr
        assert "Stop that one, or use it" in run.stderr
    assert not list(tmp_path.glob("_broker/alive.json"))


def test_a_folder_s_broker_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    for expected in ([b"a"], []):
        with pulsar.Client(str(tmp_path), broker="embedded") as client:
            if expected:
                client.create_producer("t").send(b"a")
            consumer = subscribe(client)
            messages = all_of(consumer, 200 if not expected else 10_000)[:1]
            assert [each.data() for each in messages] == expected
            for each in messages:
                consumer.acknowledge(each)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_is_told_to_make_a_client_of_its_own(tmp_path: Path) -> None:
    run = python(
        f"""
import os, sys
from pulsar_spark import pulsar
client = pulsar.Client({str(tmp_path)!r}, broker="embedded")
producer = client.create_producer("t")
consumer = client.subscribe("t", "s")
child = os.fork()
if not child:
    for call in (lambda: producer.send(b"a"), lambda: consumer.receive(1), client.new_transaction):
        try:
            call()
        except pulsar.OperationNotSupported as error:
            assert "make another" in str(error)
        else:
            os._exit(1)
    with pulsar.Client({str(tmp_path)!r}) as mine:
        mine.create_producer("t").send(b"from the child")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(consumer.receive(30_000).data())
client.close()
"""
    )
    assert (run.stdout, run.returncode) == ("b'from the child'\n", 0), run.stderr


def test_threads_share_a_producer_and_a_consumer(tmp_path: Path) -> None:
    with pulsar.Client(str(tmp_path), broker="embedded") as client:
        consumer, producer = shared(client), client.create_producer("t")
        found: list[bytes] = []
        failed: list[BaseException] = []

        def guarded(work: Callable[[int], None], number: int) -> None:
            try:
                work(number)
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                failed.append(error)

        def send(number: int) -> None:
            for each in range(20):
                producer.send(b"%d-%d" % (number, each))

        def receive(_: int) -> None:
            for _ in range(20):
                message = consumer.receive(60_000)
                found.append(message.data())
                consumer.acknowledge(message)

        threads = [
            threading.Thread(target=guarded, args=(work, number))
            for number in range(3)
            for work in (send, receive)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert sorted(found) == sorted(b"%d-%d" % (n, each) for n in range(3) for each in range(20))


def test_nothing_on_the_client_s_way_imports_spark(tmp_path: Path) -> None:
    run = python(
        f"""
import sys
class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j"):
            raise AssertionError("Spark is imported: " + name)
sys.meta_path.insert(0, NoSpark())
from pulsar_spark import aio, pulsar
from pulsar_spark.pulsar.schema import AvroSchema, Record, String
class Name(Record):
    text = String()
with pulsar.Client({str(tmp_path)!r}, broker="embedded") as client:
    policy = pulsar.ConsumerDeadLetterPolicy(1)
    consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared, AvroSchema(Name),
        negative_ack_redelivery_delay_ms=1, dead_letter_policy=policy)
    client.create_producer("t", schema=AvroSchema(Name)).send(Name(text="a"))
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(30_000))
    dead = client.create_reader("t-s-DLQ", pulsar.MessageId.earliest, AvroSchema(Name))
    print(dead.read_next(30_000).value())
"""
    )
    assert (run.stdout, run.returncode) == ("{'text': 'a'}\n", 0), run.stderr


def test_an_error_has_pulsarlite_s_own_as_its_cause(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.InvalidTopicName) as caught:
        client.create_producer("a/b")
    assert isinstance(caught.value.__cause__, PulsarliteError)
    assert caught.value.error() is pulsar.Result.InvalidTopicName
