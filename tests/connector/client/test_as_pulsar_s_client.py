"""Small things that programs of Pulsar's client rely on: ends, patterns, interrupts."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from pulsar_spark import aio, pulsar
from pulsar_spark.testing import Place
from tests.connector.client.clients import python, received, subscribe

Mode = pulsar.RegexSubscriptionMode


def test_a_timeout_s_text_is_pulsar_s() -> None:
    program = """
from pulsar_spark import pulsar
client = pulsar.Client("memory://here")
try:
    client.subscribe("t", "s").receive(1)
except pulsar.Timeout as error:
    print(error)
client.close()
"""
    assert python(program).stdout == "Pulsar error: TimeOut\n"


@pytest.mark.parametrize("call", ["consumer.receive()", "consumer.receive(60_000)",
                                  "client.create_reader('t', EARLIEST).read_next()"])  # fmt: skip
def test_ctrl_c_while_a_program_receives_is_an_interrupted(call: str) -> None:
    program = f"""
import os, signal, threading
from pulsar_spark import pulsar
EARLIEST = pulsar.MessageId.earliest
client = pulsar.Client("memory://here")
consumer = client.subscribe("t", "s")
os_kill = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
os_kill.start()
try:
    {call}
except pulsar.Interrupted as error:
    print(error, error.result)
consumer.close()
client.close()
"""
    done = python(program)
    assert done.stdout == "Pulsar error: Interrupted Result.Interrupted\n", done.stderr


def test_what_a_handler_of_the_program_raises_is_its_own() -> None:
    program = """
import os, signal, threading
from pulsar_spark import pulsar
class Ended(KeyboardInterrupt): pass
def end(*_): raise Ended
signal.signal(signal.SIGINT, end)
client = pulsar.Client("memory://here")
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    client.subscribe("t", "s").receive()
except Ended:
    print("ended")
client.close()
"""
    assert python(program).stdout == "ended\n"


def test_a_closed_producer_flushes_nothing_and_a_closed_consumer_rejects_nothing(
    client: pulsar.Client,
) -> None:
    consumer, producer = subscribe(client), client.create_producer("t")
    producer.send(b"a")
    message = consumer.receive(1000)
    producer.close()
    with pytest.raises(pulsar.AlreadyClosed):
        producer.flush()
    consumer.close()
    consumer.negative_acknowledge(message)
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.acknowledge(message)


def test_an_inclusive_reader_seeks_to_the_last_message(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    reader = client.create_reader("t", pulsar.MessageId.earliest, start_message_id_inclusive=True)
    reader.seek(pulsar.MessageId.latest)
    producer.send(b"a")
    producer.send(b"b")
    assert received(reader) == [b"a", b"b"]
    reader.seek(pulsar.MessageId.latest)
    assert received(reader) == [b"b"]


@pytest.mark.parametrize(
    "pattern", ["o.*", "persistent://public/default/o.*", "public/default/o.*"]
)
@pytest.mark.parametrize(
    ("mode", "found"),
    [
        (Mode.PersistentOnly, [b"kept"]),
        (Mode.NonPersistentOnly, [b"passing"]),
        (Mode.AllTopics, [b"kept", b"passing"]),
    ],
)
def test_a_mode_decides_which_topics_a_pattern_finds(
    client: pulsar.Client, pattern: str, mode: pulsar.RegexSubscriptionMode, found: list[bytes]
) -> None:
    kept = client.create_producer("orders")
    passing = client.create_producer("non-persistent://public/default/others")
    consumer = subscribe(client, re.compile(pattern), regex_subscription_mode=mode)
    kept.send(b"kept")
    passing.send(b"passing")
    assert sorted(received(consumer)) == found


def test_a_second_producer_of_a_name_is_refused_until_the_first_is_closed(
    client: pulsar.Client, url: str
) -> None:
    first = client.create_producer("t", producer_name="p")
    client.create_producer("t")
    client.create_producer("t", producer_name="q")
    client.create_producer("u", producer_name="p")
    with (
        pulsar.Client(url) as other,
        pytest.raises(
            pulsar.ProducerBusy, match="Producer with name 'p' is already connected to topic"
        ),
    ):
        other.create_producer("t", producer_name="p")
    first.send(b"a")
    with client.new_transaction() as transaction:
        first.add(transaction, b"b")
    first.close()
    client.create_producer("t", producer_name="p").send(b"c")
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    assert received(reader) == [b"a", b"b", b"c"]


def test_a_producer_that_lapsed_comes_again_unless_another_has_its_name(
    pulsarlite: Place,
) -> None:
    client = pulsarlite.client
    first = client.create_producer("t", producer_name="p")
    pulsarlite.clock.advance(301_000)
    client.create_producer("t").send(b"a")
    first.send(b"b")
    pulsarlite.clock.advance(301_000)
    client.create_producer("t", producer_name="p").send(b"c")
    with pytest.raises(pulsar.ProducerBusy):
        first.send(b"d")
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    assert received(reader) == [b"a", b"b", b"c"]


def awaited(work: Any) -> None:
    async def with_client() -> None:
        async with aio.Client("memory://aio-here") as client:
            await asyncio.wait_for(work(client), 60)

    asyncio.run(with_client())


def test_asyncio_batches_by_default_and_finds_topics_by_a_text_s_pattern() -> None:
    async def work(client: aio.Client) -> None:
        consumer = await client.subscribe("orders", "first")
        producer = await client.create_producer("orders")
        found = await client.subscribe("ord.*", "s", is_pattern_topic=True)
        ids = await asyncio.gather(*(producer.send(b"a") for _ in range(5)))
        assert [each.batch_index() for each in ids] == [0, 1, 2, 3, 4]
        assert (await found.receive()).data() == (await consumer.receive()).data() == b"a"
        with pytest.raises(ValueError, match="can't be enabled together"):
            await client.create_producer("orders", chunking_enabled=True)
        alone = await client.create_producer("orders", batching_enabled=False)
        assert (await alone.send(b"b")).batch_index() == -1

    awaited(work)


def test_asyncio_closes_twice_without_an_error() -> None:
    async def work(client: aio.Client) -> None:
        made: list[Any] = [
            await client.create_producer("t"),
            await client.subscribe("t", "s"),
            await client.create_reader("t", pulsar.MessageId.earliest),
        ]
        for each in (*made, *made):
            await each.close()
        client.shutdown()
        await client.close()

    awaited(work)


def test_a_batch_keeps_its_bound_in_bytes_and_what_does_not_fit_comes_next(
    client: pulsar.Client,
) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(-1, 25, 100)
    consumer = client.subscribe(
        "bytes", "s", initial_position=pulsar.InitialPosition.Earliest, batch_receive_policy=policy
    )
    producer = client.create_producer("bytes")
    for letter in b"abcd":
        producer.send(bytes([letter]) * 10)
    producer.send(b"e" * 30)
    batches = [[each.data()[:1] for each in consumer.batch_receive()] for _ in range(3)]
    assert batches == [[b"a", b"b"], [b"c", b"d"], [b"e"]]
