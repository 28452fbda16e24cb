"""A producer of the client: what it sends, when, and what it tells."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any

import pytest

from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.runtime.schema.schema_records import record_decoder, record_encoder
from pulsar_spark.connector.storage.memory_store import MemoryStore
from pulsar_spark.errors import StorageError
from pulsar_spark.pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Float,
    Integer,
    JsonSchema,
    Map,
    Record,
    String,
    StringSchema,
)
from pulsar_spark.testing import ManualClock
from tests.connector.client.clients import (
    all_of,
    received,
    shared,
    subscribe,
)
from tests.connector.reading import entries


def test_all_that_is_said_of_a_message_comes_with_it(client: pulsar.Client) -> None:
    consumer = subscribe(client)
    producer = client.create_producer("t", producer_name="p")
    sent = producer.send(
        b"a", properties={"x": "1"}, partition_key="k", ordering_key="o", sequence_id=7,
        event_timestamp=1234,
    )  # fmt: skip
    message = consumer.receive(1000)
    assert (message.data(), message.value(), message.properties()) == (b"a", b"a", {"x": "1"})
    assert (message.partition_key(), message.ordering_key()) == ("k", "o")
    assert (message.event_timestamp(), message.producer_name()) == (1234, "p")
    assert message.publish_timestamp() >= 1_000_000
    assert (message.topic_name(), message.redelivery_count()) == (
        "persistent://public/default/t",
        0,
    )
    assert (message.schema_version(), message.encryption_context()) == ("", None)
    assert message.message_id() == sent == pulsar.MessageId(-1, 0, 0, -1)
    assert pulsar.MessageId.deserialize(sent.serialize()) == sent
    assert producer.last_sequence_id() == 7
    assert (str(sent), repr(message)) == ("(0,0,-1,-1)", "Message((0,0,-1,-1), 'k', b'a')")


def test_a_message_without_a_value_is_a_tombstone(client: pulsar.Client) -> None:
    consumer = subscribe(client)
    client.create_producer("t").send(None, partition_key="k")
    message = consumer.receive(1000)
    assert message.has_null_value()
    assert (message.data(), message.value()) == (b"", None)


def test_messages_sent_without_waiting_are_told_of_in_order(
    client: pulsar.Client, pulsarlite_clock: ManualClock
) -> None:
    producer = client.create_producer("t", batching_enabled=True)
    reported: list[tuple[pulsar.Result, Any]] = []
    for number in range(5):
        producer.send_async(b"%d" % number, lambda *each: reported.append(each))
    assert reported == []
    pulsarlite_clock.advance(10)
    assert [(result, str(each)) for result, each in reported] == [
        (pulsar.Result.Ok, f"(0,0,-1,{number})") for number in range(5)
    ]
    assert entries(client.root.service_url) == [5]


def test_flush_returns_when_all_is_told(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    reported: list[Any] = []
    producer.send_async(b"a", lambda _, message_id: reported.append(message_id))
    producer.send_async(b"b", None)
    producer.flush()
    assert reported == [pulsar.MessageId(-1, 0, 0, -1)]
    assert entries(client.root.service_url) == [1, 1]


def test_a_full_queue_refuses_or_blocks(client: pulsar.Client) -> None:
    reported: list[pulsar.Result] = []
    refuses = client.create_producer("t", max_pending_messages=2)
    blocks = client.create_producer("t", max_pending_messages=2, block_if_queue_full=True)
    for producer in (refuses, blocks):
        for _ in range(3):
            producer.send_async(b"x", lambda result, _: reported.append(result))
    full = pulsar.Result.ProducerQueueIsFull
    assert reported == [full, pulsar.Result.Ok, pulsar.Result.Ok]
    refuses.flush()
    blocks.flush()
    assert len(reported) == 6


def test_a_message_that_a_full_queue_refuses_is_not_lost_in_silence(client: pulsar.Client) -> None:
    producer = client.create_producer("t", max_pending_messages=1)
    producer.send_async(b"a", None)
    with pytest.raises(pulsar.ProducerQueueIsFull, match="block_if_queue_full=True"):
        producer.send_async(b"b", None)


def test_a_callback_that_fails_keeps_no_other_from_being_called(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    reported: list[Any] = []

    def fail(_: pulsar.Result, __: Any) -> None:
        raise ValueError("the callback's own fault")

    producer.send_async(b"a", fail)
    producer.send_async(b"b", lambda _, message_id: reported.append(message_id))
    producer.flush()
    assert reported == [pulsar.MessageId(-1, 0, 1, -1)]


def test_a_message_that_is_to_come_later_than_its_topic_allows_is_refused_alone(
    client: pulsar.Client, url: str
) -> None:
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=10)
    policies = Admin(url).policies("t")
    policies.set(delayed_delivery_max_delay="1m")
    reported: list[Any] = []
    for minutes in (1, 60):
        delay = timedelta(minutes=minutes)
        producer.send_async(b"a", lambda *each: reported.append(each[0]), deliver_after=delay)
    producer.flush()
    assert reported == [pulsar.Result.NotAllowedError, pulsar.Result.Ok]
    with pytest.raises(pulsar.NotAllowedError, match=r"more than 60,000 ms after.*--maxDelay"):
        producer.send(b"c", deliver_after=timedelta(seconds=61))
    policies.set(delayed_delivery=False)
    producer.send(b"d", deliver_after=timedelta(seconds=61))


def test_a_callback_learns_why_a_message_was_refused(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    reported: list[Any] = []
    producer.send_async(b"x" * (6 << 20), lambda *each: reported.append(each))
    assert reported == [(pulsar.Result.MessageTooBig, None)]
    with pytest.raises(pulsar.MessageTooBig, match="maxMessageSize is 5242880"):
        producer.send(b"x" * (6 << 20))
    with pytest.raises(TypeError, match="bytes"):
        producer.send("text")


@pytest.mark.parametrize("kind", [each for each in pulsar.CompressionType if each.value])
def test_a_message_is_too_big_if_it_is_so_compressed(
    client: pulsar.Client, kind: pulsar.CompressionType
) -> None:
    large, random = b"x" * (6 << 20), os.urandom(6 << 20)
    producer = client.create_producer("t", compression_type=kind)
    producer.send(large)
    with pytest.raises(pulsar.MessageTooBig, match=r"maxMessageSize is 5242880 \(.* leaves"):
        producer.send(random)
    assert received(client.create_reader("t", pulsar.MessageId.earliest)) == [large]


def test_a_store_that_fails_is_asked_again_until_the_time_is_up(
    client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.create_producer("t", send_timeout_millis=5_000)
    create, failures = MemoryStore.create, itertools.count()

    def failing(most: int) -> Callable[..., bool]:
        def fail(self: MemoryStore, path: str, data: bytes) -> bool:
            if "/t/" in path and next(failures) < most:
                raise StorageError("the disk is full")
            return create(self, path, data)

        return fail

    with monkeypatch.context() as broken:
        broken.setattr(MemoryStore, "create", failing(2))
        assert producer.send(b"a") == pulsar.MessageId(-1, 0, 0, -1)
        broken.setattr(MemoryStore, "create", failing(1 << 30))
        before_ms = client.root.clock.wall_ms()
        with pytest.raises(pulsar.Timeout, match="the disk is full"):
            producer.send(b"b")
        assert 5_000 <= client.root.clock.wall_ms() - before_ms < 6_000
    assert received(subscribe(client)) == [b"a"]


def test_sequence_ids_go_on_and_a_duplicate_has_no_id(client: pulsar.Client) -> None:
    options = {"enableDeduplication": "true"}
    with pytest.raises(pulsar.InvalidConfiguration, match="Did you mean enableDeduplication"):
        client.create_producer("t", options={"enableDeduplicatio": "true"})
    first = client.create_producer("t", "p", initial_sequence_id=4, options=options)
    assert first.last_sequence_id() == 4
    first.send(b"a")
    assert first.send(b"a", sequence_id=5) == pulsar.MessageId()
    first.close()
    again = client.create_producer("t", "p", options=options)
    assert again.last_sequence_id() == 5
    again.send(b"b")
    assert received(subscribe(client)) == [b"a", b"b"]


def test_of_messages_published_together_a_duplicate_has_no_id_and_the_others_theirs(
    client: pulsar.Client,
) -> None:
    producer = client.create_producer("t", "p", options={"enableDeduplication": "true"})
    reported: dict[bytes, Any] = {}
    for number in (0, 1, 1, 2):
        data = b"%d of %d" % (number, len(reported))
        producer.send_async(data, partial(keep, reported, data), sequence_id=number)
        reported[data] = None
    producer.flush()
    assert list(map(str, reported.values())) == [
        "(0,0,-1,-1)", "(0,1,-1,-1)", "(-1,-1,-1,-1)", "(0,3,-1,-1)",
    ]  # fmt: skip


def test_what_is_published_and_can_not_be_read_back_is_told_as_an_error(
    client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.create_producer("t", options={"numPartitions": "2"})
    reported: list[pulsar.Result] = []

    def fail(*_: Any, **__: Any) -> Any:
        raise StorageError("the disk is gone")

    for _ in range(3):
        producer.send_async(b"x", lambda result, _: reported.append(result))
    with monkeypatch.context() as broken:
        broken.setattr(MemoryStore, "open_input", fail)
        producer.flush()
    assert reported == [pulsar.Result.Timeout] * 3
    assert received(subscribe(client)) == [b"x"] * 3


@pytest.mark.parametrize("chosen", [4, -1, 1.5, "1", 1 << 40])
def test_a_router_that_names_no_partition_fails_its_own_message_alone(
    client: pulsar.Client, chosen: Any
) -> None:
    producer = client.create_producer(
        "t",
        batching_enabled=True,
        batching_max_publish_delay_ms=10_000,
        message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, _: chosen if message.data() == b"b" else 0,
        options={"numPartitions": "4"},
    )
    reported: list[pulsar.Result] = []
    for value in (b"a", b"b", b"c"):
        producer.send_async(value, lambda result, _: reported.append(result))
    producer.flush()
    assert reported == [pulsar.Result.UnknownError, pulsar.Result.Ok, pulsar.Result.Ok]
    assert received(subscribe(client)) == [b"a", b"c"]


def test_keys_a_router_or_turns_choose_the_partition(client: pulsar.Client) -> None:
    four = {"numPartitions": "4"}
    turns = client.create_producer("t", options=four)
    assert {turns.send(b"x").partition() for _ in range(4)} == {0, 1, 2, 3}
    assert len({turns.send(b"x", partition_key="k").partition() for _ in range(4)}) == 1
    custom = pulsar.PartitionsRoutingMode.CustomPartition
    routed = client.create_producer(
        "t",
        message_routing_mode=custom,
        message_router=lambda message, count: int(message.properties()["to"]) % count,
    )
    assert [routed.send(b"x", properties={"to": str(n)}).partition() for n in (3, 1, 6)] == [
        3,
        1,
        2,
    ]
    single = client.create_producer(
        "t", message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition
    )
    assert len({single.send(b"x").partition() for _ in range(5)}) == 1
    name = "persistent://public/default/t"
    assert client.get_topic_partitions("t") == [f"{name}-partition-{n}" for n in range(4)]
    assert client.get_topic_partitions("u") == ["persistent://public/default/u"]
    of_one = subscribe(client, "t-partition-3")
    assert {each.topic_name() for each in all_of(of_one)} == {f"{name}-partition-3"}


def keep(reported: dict[bytes, Any], data: bytes, _: pulsar.Result, message_id: Any) -> None:
    reported[data] = message_id


def test_messages_to_several_partitions_each_get_their_own_id(client: pulsar.Client) -> None:
    producer = client.create_producer("t", options={"numPartitions": "3"})
    reported: dict[bytes, Any] = {}
    for number in range(20):
        data = b"%d" % number
        key = str(number)
        producer.send_async(data, partial(keep, reported, data), None, key)
    producer.flush()
    consumer = subscribe(client)
    assert {each.data(): each.message_id() for each in all_of(consumer)} == reported


def test_a_large_message_is_cut_into_chunks(client: pulsar.Client) -> None:
    with pytest.raises(ValueError, match="can't be enabled together"):
        client.create_producer("t", chunking_enabled=True, batching_enabled=True)
    consumer = subscribe(client)
    producer = client.create_producer("t", chunking_enabled=True, options={"maxMessageSize": "4"})
    sent = producer.send(b"0123456789")
    message = consumer.receive(1000)
    assert (message.data(), message.message_id()) == (b"0123456789", sent)


def test_an_exclusive_producer_keeps_others_out_and_can_be_fenced(client: pulsar.Client) -> None:
    modes = pulsar.ProducerAccessMode
    first = client.create_producer("t", access_mode=modes.Exclusive)
    with pytest.raises(pulsar.ProducerFenced, match="existing exclusive producer"):
        client.create_producer("t", access_mode=modes.Exclusive)
    with pytest.raises(pulsar.ProducerBusy, match="existing exclusive producer"):
        client.create_producer("t", options={"accessMode": "Shared"})
    client.create_producer("t", access_mode=modes.ExclusiveWithFencing).send(b"b")
    with pytest.raises(pulsar.ProducerFenced):
        first.send(b"a")
    assert received(subscribe(client)) == [b"b"]


class Colour(Enum):
    red = 1
    green = 2


class Part(Record):
    name = String(required=True)
    weight = Integer(default=1)


class Order(Record):
    number = Integer(required=True)
    paid = Boolean()
    note = String(default="none", required_default=True)
    raw = Bytes()
    colour = Colour
    part = Part()
    parts = Array(Part())
    counts = Map(Integer())


ORDER = Order(
    number=5, paid=True, raw=b"r", colour=Colour.green, part=Part(name="bolt"),
    parts=[Part(name="nut", weight=2)], counts={"a": 1},
)  # fmt: skip


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_a_record_comes_back_as_it_was_sent(client: pulsar.Client, kind: Any) -> None:
    consumer = subscribe(client, schema=kind(Order))
    client.create_producer("t", schema=kind(Order)).send(ORDER)
    message = consumer.receive(1000)
    assert message.value() == ORDER
    assert (message.value().part.weight, message.value().note) == (1, "none")
    assert message.schema_version() == "\0" * 8


class Sample(Record):
    raw = Bytes()
    raws = Array(Bytes())
    by_name = Map(Bytes())
    ratio = Float()
    exact = Double()


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
@pytest.mark.parametrize("raw", [b"abcd", b"\xff\0", b""])
@pytest.mark.parametrize("number", [1.5, math.inf, -math.inf])
def test_a_sink_and_the_client_read_each_others_records(
    kind: Any, raw: bytes, number: float
) -> None:
    schema = kind(Sample)
    values = {"raw": raw, "raws": [raw], "by_name": {"k": raw}, "ratio": number, "exact": number}
    sent = Sample(**values)  # type: ignore[arg-type]
    read = record_decoder(schema.info, schema.info)(schema.encode(sent))
    assert read | {"by_name": dict(read["by_name"])} == values
    assert schema.decode(record_encoder(schema.info)(values)) == sent


def test_bytes_of_json_may_be_the_text_that_the_client_wrote_once() -> None:
    assert JsonSchema(Sample).decode(b'{"raw": "no base64"}').raw == b"no base64"  # type: ignore[attr-defined]


def test_a_record_within_another_begins_as_it_was_declared() -> None:
    class Box(Record):
        part = Part(name="lid", required=True)
        other = Part(default=Part(name="base"), required_default=True)
        colour = CustomEnum(Colour, default=Colour.red, required_default=True)

    one, two = Box(), Box()
    one.part.name = "cover"
    assert (two.part.name, two.colour, one == two) == ("lid", Colour.red, False)
    fields = Box.schema()["fields"]
    assert [each["type"] for each in fields][:2] == [
        {"type": "record", "name": "Part", "fields": Part.schema()["fields"]},
        ["null", "Part"],
    ]
    assert fields[1]["default"] == {"name": "base", "weight": 1}
    assert fields[2]["default"] == "red"


def test_a_record_refuses_what_it_has_not() -> None:
    with pytest.raises(AttributeError, match="no field numbr"):
        Order(numbr=1)
    with pytest.raises(TypeError, match="number can't be 'five'"):
        Order(number="five")
    with pytest.raises(TypeError, match="takes one of red, green"):
        Order(colour="blue")


def test_a_definition_is_that_of_pulsar_s_client() -> None:
    part = {
        "type": "record", "name": "Part",
        "fields": [
            {"name": "name", "type": "string"}, {"name": "weight", "type": ["null", "int"]},
        ],
    }  # fmt: skip
    assert Order.schema()["fields"] == [
        {"name": "number", "type": "int"},
        {"name": "paid", "type": ["null", "boolean"]},
        {"name": "note", "default": "none", "type": ["null", "string"]},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "colour", "type": ["null", {
            "type": "enum", "name": "Colour", "symbols": ["red", "green"]}]},
        {"name": "part", "type": ["null", part]},
        {"name": "parts", "type": ["null", {"type": "array", "items": "Part"}]},
        {"name": "counts", "type": ["null", {"type": "map", "values": "int"}]},
    ]  # fmt: skip


def test_an_older_message_is_read_by_a_newer_schema(client: pulsar.Client) -> None:
    old = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]}
    wider = {"name": "b", "type": "int", "default": 7}
    new = {"type": "record", "name": "A", "fields": [*old["fields"], wider]}
    client.create_producer("t", schema=AvroSchema(None, old)).send({"a": 1})
    consumer = subscribe(client, schema=AvroSchema(None, new))
    assert consumer.receive(1000).value() == {"a": 1, "b": 7}


@pytest.mark.parametrize(
    "kind", [["null", "string"], {"type": "enum", "name": "E", "symbols": ["a"]}]
)
def test_an_avro_value_with_an_index_below_0_is_refused(kind: Any) -> None:
    schema = AvroSchema(
        None, {"type": "record", "name": "A", "fields": [{"name": "a", "type": kind}]}
    )
    with pytest.raises((ValueError, KeyError), match="-1"):
        schema.decode(b"\1\2a")


def test_a_schema_that_the_topic_refuses_is_refused_at_once(client: pulsar.Client) -> None:
    client.create_producer("t", schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema, match="exists schema type STRING"):
        client.create_producer("t", schema=JsonSchema(Order))


def test_a_transaction_takes_effect_as_a_whole(client: pulsar.Client) -> None:
    one, two = (client.create_producer(topic) for topic in ("one", "two"))
    source = client.create_producer("t")
    source.send(b"in")
    consumer = shared(client)
    message = consumer.receive(1000)
    with client.new_transaction() as transaction:
        one.add(transaction, b"a", "key", properties={"x": "1"})
        two.add(transaction, b"b")
        consumer.acknowledge_in(transaction, message)
        assert received(client.create_reader("one", pulsar.MessageId.earliest)) == []
    (found,) = all_of(client.create_reader("one", pulsar.MessageId.earliest))
    assert (found.data(), found.partition_key(), found.properties()) == (b"a", "key", {"x": "1"})
    assert received(client.create_reader("two", pulsar.MessageId.earliest)) == [b"b"]
    consumer.redeliver_unacknowledged_messages()
    assert received(consumer) == []
    with pytest.raises(pulsar.InvalidTxnStatusError, match="begin another"):
        transaction.commit()


@pytest.mark.parametrize("timeout", [0, -1, 3_600_001, 1.5, "1s"])
def test_a_transaction_takes_a_time_that_writers_may_wait(
    client: pulsar.Client, timeout: Any
) -> None:
    with pytest.raises(ValueError, match="timeout_millis"):
        client.new_transaction(timeout)


def publish_and_fail(producer: pulsar.Producer, transaction: pulsar.Transaction) -> None:
    producer.add(transaction, b"a")
    raise ZeroDivisionError


def test_a_transaction_that_fails_or_is_aborted_changes_nothing(client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    failing = client.new_transaction()
    with pytest.raises(ZeroDivisionError), failing:
        publish_and_fail(producer, failing)
    aborted = client.new_transaction()
    producer.add(aborted, b"b")
    aborted.abort()
    assert received(subscribe(client)) == []
