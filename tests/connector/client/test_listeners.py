"""Table views and listeners of the client."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.errors import StorageUnavailableError
from pulsar_spark.pulsar.schema import (
    StringSchema,
)
from pulsar_spark.testing import Place
from tests.connector.client.clients import (
    numbers,
    subscribe,
)


def test_a_table_view_has_the_latest_value_of_each_key(url: str) -> None:
    del url
    with pulsar.Client(f"memory://table-{next(numbers)}") as client:  # the machine's clock
        producer = client.create_producer("t", schema=StringSchema())
        for key, value in (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")):
            producer.send(value, partition_key=key)
        producer.send(None, partition_key="c")
        view = client.create_table_view("t", schema=StringSchema())
        assert (len(view), view.get("a"), view.get("b"), view.get("c")) == (2, "3", "2", None)
        seen: dict[str, Any] = {}
        changed = threading.Event()

        def listen(key: str, value: Any) -> None:
            seen[key] = value
            if key == "d":
                changed.set()

        view.for_each_and_listen(listen)
        assert seen == {"a": "3", "b": "2"}
        producer.send("5", partition_key="d")
        assert changed.wait(30)
        assert seen["d"] == view.get("d") == "5"
        view.close()
    assert repr(view) == "TableView(topic=t)"


def test_a_listener_gets_each_message_pauses_and_may_fail(url: str) -> None:
    del url
    with pulsar.Client(f"memory://listener-{next(numbers)}") as client:
        producer = client.create_producer("t")
        got: list[bytes] = []
        arrived = threading.Semaphore(0)

        def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            got.append(message.data())
            consumer.acknowledge(message)
            if message.data() == b"a":
                consumer.pause_message_listener()
            arrived.release()
            raise ValueError("this one can't be taken")

        consumer = subscribe(client, message_listener=listen)
        for value in (b"a", b"b"):
            producer.send(value)
        assert arrived.acquire(timeout=30)
        with pytest.raises(pulsar.InvalidConfiguration, match="message_listener"):
            consumer.receive()
        assert got == [b"a"]
        consumer.resume_message_listener()
        assert arrived.acquire(timeout=30)
        consumer.close()
    assert got == [b"a", b"b"]


@pytest.mark.parametrize("call", ["get", "create", "files", "open_input"])
def test_who_listens_goes_on_when_the_store_answers_again(
    pulsarlite: Place, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    client, consumed, read = pulsarlite.client, list[bytes](), list[bytes]()
    producer = client.create_producer("t")
    producer.send(b"a", partition_key="k")
    subscribe(client, message_listener=lambda _, each: consumed.append(each.data()))
    earliest = pulsar.MessageId.earliest
    client.create_reader("t", earliest, reader_listener=lambda _, each: read.append(each.data()))
    table = client.create_table_view("t")
    pulsarlite.clock.advance(seconds=1)
    producer.send(b"b", partition_key="k")

    def away(*_: object) -> None:
        raise StorageUnavailableError("The store is away for a moment.")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, call, away)
        pulsarlite.clock.advance(seconds=2)
    producer.send(b"c", partition_key="k")
    pulsarlite.clock.advance(seconds=40)
    assert consumed == read == [b"a", b"b", b"c"]
    assert table.get("k") == b"c"
