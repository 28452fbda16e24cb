"""A reader and a table view need no broker, and nobody waits for them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.client import reader
from pulsar_spark.connector.runtime.reading import received_message
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.errors import StorageError, StorageUnavailableError
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.pulsar import schema as pulsar_schema
from tests.connector.client.clients import all_of, python, received


def send(client: pulsar.Client, *values: bytes, topic: str = "t") -> list[pulsar.MessageId]:
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in values]
    producer.close()
    return ids


def test_a_reader_and_a_table_view_of_a_folder_that_nobody_serves(tmp_path: Path) -> None:
    with pulsar.Client(str(tmp_path)) as client:
        send(client, b"a")
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        view = client.create_table_view("keys")
        late = client.create_reader("t", pulsar.MessageId.latest)
        assert reader.read_next(30_000).data() == b"a"
        ended = python(
            f"""
from pulsar_spark import pulsar
with pulsar.Client({str(tmp_path)!r}) as client:
    client.create_producer("t").send(b"b")
    client.create_producer("keys").send(b"1", partition_key="k")
"""
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert reader.read_next(30_000).data() == late.read_next(30_000).data() == b"b"
        assert not reader.has_message_available()
        assert all_of(reader, 0) == []
        again = client.create_table_view("keys")
        assert (again.get("k"), len(again)) == (b"1", 1)
        for each in (reader, late, view, again):
            each.close()
        with pytest.raises(pulsar.AlreadyClosed):
            reader.read_next(0)
    assert not list(tmp_path.glob("persistent/pulsar"))


def test_what_was_trimmed_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pulsar.Client(str(tmp_path)) as client:
        first, *_ = send(client, b"a", b"b", b"c")
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        root = Root(str(tmp_path), {})
        topic = root.open(TopicName.parse("t"))
        LedgerStore(topic).trim({0: first.ledger_id() + 1})
        assert received(reader, 0) == [b"b", b"c"]
        assert received(client.create_reader("t", first), 0) == [b"b", b"c"]
    assert "trimmed away before they were read" in caplog.text


def test_an_id_moves_its_partition_and_no_other(client: pulsar.Client) -> None:
    client.create_producer("t", options={"numPartitions": "2"}).close()
    zero = send(client, b"a", b"b", topic="t-partition-0")
    one = send(client, b"x", b"y", topic="t-partition-1")
    assert sorted(received(client.create_reader("t", one[0]), 0)) == [b"a", b"b", b"y"]
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    assert sorted(received(reader, 0)) == [b"a", b"b", b"x", b"y"]
    reader.seek(zero[0])
    assert received(reader, 0) == [b"b"]
    reader.seek(pulsar.MessageId.latest)
    assert received(reader, 0) == []
    reader.seek(pulsar.MessageId.earliest)
    assert sorted(received(reader, 0)) == [b"a", b"b", b"x", b"y"]
    assert received(client.create_reader("t-partition-1", one[0]), 0) == [b"y"]
    with pytest.raises(pulsar.InvalidConfiguration, match="is not read here"):
        client.create_reader("t", pulsar.MessageId(7, 0, 0, -1))


def test_a_seek_forgets_what_was_fetched_before_it_and_goes_by_time_too(
    client: pulsar.Client, pulsarlite_clock: ManualClock
) -> None:
    (first,) = send(client, b"a")
    pulsarlite_clock.advance(5_000)
    now_ms = client.root.clock.wall_ms()
    send(client, b"b", b"c")
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    assert reader.fetch()
    reader.seek(now_ms)
    assert received(reader, 0) == [b"b", b"c"]
    reader.seek(first)
    assert received(reader, 0) == [b"b", b"c"]
    with pytest.raises(ValueError, match="invalid seek_arg"):
        reader.seek("yesterday")  # type: ignore[arg-type]


def test_a_seek_while_another_thread_reads_disturbs_neither(tmp_path: Path) -> None:
    every = [str(number).encode() for number in range(5_000)]
    interval_s = sys.getswitchinterval()
    with pulsar.Client(str(tmp_path)) as client:
        producer = client.create_producer("t", batching_enabled=True, block_if_queue_full=True)
        for value in every:
            producer.send_async(value, None)
        producer.flush()
        reader = client.create_reader("t", pulsar.MessageId.earliest, receiver_queue_size=5_000)
        arrived, over = threading.Event(), threading.Event()

        def read() -> None:
            while not over.is_set():
                reader.read_next(30_000)
                arrived.set()

        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(1) as threads:
                reading = threads.submit(read)
                for _ in range(20):
                    arrived.clear()
                    assert arrived.wait(30)  # the queue has messages
                    reader.seek(pulsar.MessageId.earliest)
                over.set()
                reader.seek(pulsar.MessageId.earliest)  # it may wait for a message
                reading.result(30)
        finally:
            sys.setswitchinterval(interval_s)
        reader.seek(pulsar.MessageId.earliest)
        assert received(reader, 0) == every


@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_a_client_that_is_closed_ends_its_table_views_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    client = pulsar.Client(str(tmp_path))
    client.create_producer("t").send(b"1", partition_key="k")
    client.create_table_view("t")
    name = "table view of t"
    (thread,) = (each for each in threading.enumerate() if each.name == name)
    getattr(client, end)()
    thread.join(30)
    assert not thread.is_alive()
    assert not caplog.records


def test_a_reader_does_not_wait_for_a_message_s_delay(client: pulsar.Client) -> None:
    client.create_producer("t").send(b"later", deliver_at=client.root.clock.wall_ms() + 60_000)
    assert received(client.create_reader("t", pulsar.MessageId.earliest), 0) == [b"later"]


def test_what_was_published_twice_or_taken_back_is_not_read(client: pulsar.Client) -> None:
    producer = client.create_producer("t", "p", options={"enableDeduplication": "true"})
    for number in (1, 2, 1):
        producer.send(str(number).encode(), sequence_id=number)
    transaction = client.new_transaction()
    client.create_producer("t").add(transaction, b"never")
    transaction.abort()
    assert received(client.create_reader("t", pulsar.MessageId.earliest), 0) == [b"1", b"2"]


def test_what_could_not_be_read_to_its_end_is_read_again_and_no_message_twice(
    client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, b"a", b"b")
    mine = client.create_reader("t", pulsar.MessageId.earliest)
    read = received_message.read_between

    def broken_off(*given: Any) -> Iterator[Any]:
        yield next(read(*given))
        raise StorageError("The line goes dead.")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_between", broken_off)
        with pytest.raises(pulsar.ReadError):
            mine.read_next(0)
    assert received(mine) == [b"a", b"b"]


def test_a_value_that_does_not_fit_keeps_no_other_out_of_a_table_view(
    client: pulsar.Client,
) -> None:
    class Order(pulsar_schema.Record):
        id = pulsar_schema.String()

    schema = pulsar_schema.JsonSchema(Order)
    producer = client.create_producer("t", schema=schema)
    producer.send(Order(id="1"), partition_key="good")
    vars(schema)["encode"] = bytes  # as a producer that does not look
    client.create_producer("t", schema=schema).send(b"{", partition_key="bad")
    view = client.create_table_view("t", schema=pulsar_schema.JsonSchema(Order))
    assert (view.get("good"), view.get("bad"), len(view)) == (Order(id="1"), None, 1)


def test_a_store_that_fails_while_a_reader_waits_is_no_error_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size(_: LocalStore, path: str) -> int:
        raise StorageUnavailableError(f"{path} is away.")

    with pulsar.Client(str(tmp_path)) as client:
        producer = client.create_producer("t")
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "size", size)
            with pytest.raises(pulsar.Timeout):
                reader.read_next(20)
        producer.send(b"a")
        assert reader.read_next(30_000).data() == b"a"
