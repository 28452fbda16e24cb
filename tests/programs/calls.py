"""Programs written by hand: ids, messages, what is closed, deleted or compacted, asyncio's calls.

Invariant: this module needs nothing of this repository.
"""

from __future__ import annotations

from tests.programs.argument_values import PRODUCER, READER, SEND, SUBSCRIBE
from tests.programs.steps import EARLIEST, Program, Step, bytes_of, enum, new, ref, topic


def _message_ids() -> list[Step]:
    of = Program()
    of.subscribe("c")
    of.producer("p")
    for number in range(3):
        of.call("p.send", f"s{number}", content=bytes_of(f"{number}"))
    for number in range(3):
        of.receive("c", f"m{number}")
        of.call(f"m{number}.message_id", f"i{number}")
        of.do("text", of=ref(f"i{number}"))
        of.do("compare", left=ref(f"i{number}"), right=ref(f"s{number}"))
        for method in ("partition", "batch_index", "serialize"):
            of.call(f"i{number}.{method}")
        of.call("MessageId.deserialize", "d", message_id_bytes={"$serialized": f"m{number}"})
        of.do("compare", left=ref("d"), right=ref(f"i{number}"))
    for left, right in (("i0", "i1"), ("i2", "i1"), ("i1", "i1")):
        of.do("compare", left=ref(left), right=ref(right))
    for edge in ("earliest", "latest"):
        of.do("text", of={"$edge": edge})
        of.do("compare", left={"$edge": edge}, right=ref("i1"))
    own = new("MessageId", partition=1, ledger_id=2, entry_id=3, batch_index=4)
    of.do("text", of=own)
    of.do("text", of=new("MessageId"))
    of.call("pulsar.MessageId", "own", partition=1, ledger_id=2, entry_id=3, batch_index=4)
    for method in ("partition", "ledger_id", "entry_id", "batch_index", "serialize"):
        of.call(f"own.{method}")
    of.call("MessageId.deserialize", message_id_bytes={"$serialized": "m0"}, topic=topic("t"))
    of.call("MessageId.wrap", "wrapped", msg_id=ref("i0"))
    of.do("compare", left=ref("wrapped"), right=ref("s0"))
    of.call("MessageId.deserialize", message_id_bytes=bytes_of("nonsense"))
    of.call("MessageId.deserialize", message_id_bytes="text")
    return of.steps


def _messages() -> list[Step]:
    of = Program()
    of.subscribe("c")
    of.producer("p", producer_name="named")
    of.call(
        "p.send", content=bytes_of("all"), properties={"a": "b"}, partition_key="k",
        ordering_key="o", event_timestamp=5,
    )  # fmt: skip
    of.receive("c", "m")
    for method in (
        "data", "value", "properties", "partition_key", "ordering_key", "event_timestamp",
        "topic_name", "redelivery_count", "schema_version", "producer_name", "has_null_value",
        "encryption_context", "message_id", "publish_timestamp",
    ):  # fmt: skip
        of.call(f"m.{method}")
    of.do("type_of", of=ref("m"))
    return of.steps


def _closed() -> list[Step]:
    of = Program()
    of.subscribe("c")
    of.producer("p")
    of.call("p.send", "sent", content=bytes_of("x"))
    of.receive("c", "m")
    of.call("client.create_reader", "r", topic=topic("t"), start_message_id={"$edge": "earliest"})
    for name in ("c", "p", "r"):
        of.call(f"{name}.close")
        of.call(f"{name}.close")
        of.call(f"{name}.is_connected")
        of.call(f"{name}.topic")
    of.call("c.receive", timeout_millis=100)
    of.call("c.batch_receive")
    for method in ("acknowledge", "acknowledge_cumulative", "negative_acknowledge"):
        of.call(f"c.{method}", message=ref("m"))
    of.call("c.seek", messageid={"$edge": "earliest"})
    for method in (
        "redeliver_unacknowledged_messages", "unsubscribe", "get_last_message_id",
        "pause_message_listener", "resume_message_listener", "subscription_name", "consumer_name",
    ):  # fmt: skip
        of.call(f"c.{method}")
    of.call("r.has_message_available")
    of.call("r.seek", messageid={"$edge": "earliest"})
    for method in ("flush", "last_sequence_id", "producer_name"):
        of.call(f"p.{method}")
    of.call("p.send_async", content=bytes_of("x"), callback={"$callback": "sent"})
    return of.steps


def _closed_client() -> list[Step]:
    of = Program()
    for ending in ("close", "shutdown"):
        of.call("pulsar.Client", "k", service_url={"$url": ""})
        of.call("k.subscribe", "c", topic=topic("t"), subscription_name=ending)
        of.call("k.create_producer", "p", topic=topic("t"))
        of.call(f"k.{ending}")
        of.call("p.send", content=bytes_of("x"))
        of.call("c.receive", timeout_millis=100)
        of.call("p.is_connected")
        of.call("c.is_connected")
        of.call("k.create_producer", topic=topic("t"))
        of.call("k.subscribe", topic=topic("t"), subscription_name="s")
        of.call("k.get_topic_partitions", topic=topic("t"))
        of.call("k.close")
        of.call("k.shutdown")
    return of.steps


def _subscriptions() -> list[Step]:
    """Subscriptions that are refused, taken over and deleted."""
    of = Program()
    of.subscribe("c", consumer_name="one")
    of.subscribe("d")
    of.subscribe("d", consumer_type=enum("ConsumerType", "Shared"))
    of.producer("p")
    of.call("p.send", content=bytes_of("one"))
    of.call("c.unsubscribe")
    of.call("c.unsubscribe")
    of.call("c.receive", timeout_millis=100)
    of.call("client.subscribe", "c", topic=topic("t"), subscription_name="s")
    of.drain("c")
    shared = enum("ConsumerType", "Shared")
    of.subscribe("e", subscription_name="other", consumer_type=shared)
    of.subscribe("f", subscription_name="other", consumer_type=shared)
    of.call("e.unsubscribe")
    of.call("f.close")
    of.call("e.unsubscribe")
    of.subscribe("g", subscription_name="other", consumer_type=shared)
    of.drain("g")
    of.receive("g", "none", timeout_millis=100)
    of.call("p.send", "sent", content=bytes_of("two"))
    of.call("g.acknowledge_cumulative", message=ref("sent"))
    of.call("g.acknowledge", message=ref("sent"))
    of.call("g.acknowledge", message="text")
    of.call("g.negative_acknowledge", message=ref("sent"))
    of.call("g.negative_acknowledge", message="text")
    of.call("g.acknowledge_cumulative", message=5)
    of.call("g.seek", messageid="text")
    of.call("g.receive", timeout_millis="1")
    of.call("g.receive", timeout_millis=-1)
    of.call("g.pause_message_listener")
    of.call("g.resume_message_listener")
    of.call("g.get_last_message_id")
    return of.steps


def _terminated() -> list[Step]:
    of = Program()
    of.subscribe("c")
    of.producer("p")
    of.call("p.send", content=bytes_of("one"))
    of.do("terminate", topic="t")
    of.call("p.send", content=bytes_of("two"))
    of.producer("q")
    of.call("q.send", content=bytes_of("three"))
    of.drain("c", then="acknowledge")
    of.call("client.create_reader", "r", topic=topic("t"), start_message_id={"$edge": "earliest"})
    of.drain("r")
    return of.steps


def _deleted() -> list[Step]:
    of = Program()
    of.subscribe("c")
    of.producer("p")
    of.call("p.send", content=bytes_of("one"))
    of.call("c.close")
    of.call("p.close")
    of.do("delete", topic="t")
    of.subscribe("c")
    of.producer("p")
    of.call("p.send", content=bytes_of("two"))
    of.drain("c")
    return of.steps


def _compacted() -> list[Step]:
    of = Program()
    of.producer("p")
    for number in range(6):
        of.call("p.send", content=bytes_of(f"{number}"), partition_key=f"{number % 2}")
    of.call("p.send", content=bytes_of(""), partition_key="1")
    of.call("p.send", content=bytes_of("no key"))
    of.do("compact", topic="t")
    of.call("p.send", content=bytes_of("later"), partition_key="0")
    for compacted in (True, False):
        of.call("client.create_reader", "r", topic=topic("t"), is_read_compacted=compacted,
                start_message_id={"$edge": "earliest"})  # fmt: skip
        of.drain("r")
        of.subscribe("c", subscription_name=f"{compacted}", is_read_compacted=compacted)
        of.drain("c")
    return of.steps


def _clients() -> list[Step]:
    of = Program()
    for url in ("", "nonsense", "http://a b", 5, None):
        of.call("pulsar.Client", "k", service_url=url)
    of.call("client.get_topic_partitions", topic=topic("t"))
    of.call("client.get_topic_partitions", topic="a://b://c")
    of.call("client.get_topic_partitions", topic=5)
    of.call("client.create_table_view", topic=5)
    of.call("client.create_table_view", topic=topic("t"), subscription_name=5)
    of.call("client.create_table_view", "v", topic=topic("t"), schema={"$schema": "StringSchema"})
    of.producer("p", schema={"$schema": "StringSchema"})
    of.call("p.send", content="value", partition_key="key")
    of.pause(500)
    of.call("v.get", key="key")
    of.call("v.get", key="none")
    of.call("v.close")
    return of.steps


def _asyncio_arguments() -> list[Step]:
    """Each argument of asyncio's calls, all of them at once."""
    of = Program()
    of.call("asyncio.Client", "a", service_url={"$url": ""})
    values = {name: each[0] for name, each in SUBSCRIBE.items() if name not in (
        "message_listener", "pattern_auto_discovery_period", "topic", "key_shared_policy",
        "max_pending_chunked_message", "batch_receive_policy", "is_read_compacted", "consumer_type",
    )}  # fmt: skip
    for name, given in values.items():
        args = {"topic": topic("t"), "subscription_name": name, "initial_position": EARLIEST}
        of.call("a.subscribe", "c", **{**args, name: given})
        of.call("c.close")
    more = {name: SUBSCRIBE[name][0] for name in (
        "is_read_compacted", "batch_receive_policy", "max_pending_chunked_message")}  # fmt: skip
    of.call("a.subscribe", "c", topic=topic("t"), subscription_name="s", **more)
    of.call("a.subscribe", "d", topic=topic("t"), subscription_name="k",
            consumer_type=enum("ConsumerType", "KeyShared"),
            key_shared_policy=new("ConsumerKeySharedPolicy"))  # fmt: skip
    of.call("a.subscribe", "e", topic={"$pattern": "t.*", "compiled": False},
            subscription_name="pattern", is_pattern_topic=True)  # fmt: skip
    of.call("e.close")
    for name, each in PRODUCER.items():
        if name not in ("topic", "access_mode"):
            of.call("a.create_producer", "p", **{"topic": topic("t"), name: each[0]})
    of.call("a.create_producer", "x", topic=topic("x"),
            access_mode=enum("ProducerAccessMode", "Exclusive"))  # fmt: skip
    of.call("a.create_producer", "p", topic=topic("t"), batching_enabled=False)
    said = {name: each[0] for name, each in SEND.items() if name != "deliver_at"}
    of.call("p.send", **said)
    of.call("p.send", "sent", content=bytes_of("y"), deliver_at=5)
    of.drain("c", expected=2, then="acknowledge")
    for name, each in READER.items():
        if name != "reader_listener":
            args = {"topic": topic("t"), "start_message_id": {"$edge": "earliest"}}
            of.call("a.create_reader", "r", **{**args, name: each[0]})
    of.call("r.has_message_available")
    of.call("r.read_next", "m")
    of.call("d.receive", "m")
    of.call("d.negative_acknowledge", message=ref("m"))
    of.call("d.acknowledge_cumulative", message=ref("m"))
    of.call("d.acknowledge", message=ref("m"))
    of.call("d.acknowledge", message="text")
    of.call("d.seek", messageid="text")
    of.call("d.seek", messageid={"$id": "m"})
    of.call("d.seek", messageid=ref("sent"))
    of.call("p.send", content="text")
    of.call("p.send", content=5)
    of.do("cancel", of={"call": "r.read_next"})
    of.do("cancel", of={"call": "c.receive"})
    of.call("c.unsubscribe")
    of.call("a.close")
    return of.steps


def _chunks() -> list[Step]:
    of = Program()
    of.subscribe("c")
    of.producer("p", chunking_enabled=True)
    of.call("p.send", content={"$noise": [3, 11_000_000]}, partition_key="k")
    of.call("p.send", content=bytes_of("small"))
    of.drain("c", expected=2, then="acknowledge", **{"as": "m"})
    of.call("c.seek", messageid={"$id": "m0"})
    of.drain("c", expected=0, quiet_ms=800)
    of.call("client.create_reader", "r", topic=topic("t"), start_message_id={"$edge": "earliest"})
    of.drain("r", expected=2)
    of.producer("q", chunking_enabled=True, batching_enabled=True)
    of.producer("q")
    of.call("q.send", content={"$noise": [3, 6_000_000]})
    return of.steps


def _key_partitions() -> list[Step]:
    of = Program()
    of.do("create_partitioned", topic="t", partitions=4)
    of.producer("p")
    for number in range(6):
        of.call("p.send", content=bytes_of(f"{number}"), partition_key=f"key {number}")
    return of.steps


def _written_records() -> list[Step]:
    of = Program()
    for kind in ("JsonSchema", "AvroSchema"):
        schema = {"$schema": kind, "record": "Person"}
        of.producer("p", topic=topic(kind), schema=schema)
        of.call("p.send", content={"$record": "Person", "args": {"name": "anna", "age": 5}})
        of.subscribe("c", topic=topic(kind))
        of.drain("c")
    return of.steps


CALLS = {
    "key-partitions": _key_partitions, "written-records": _written_records,
    "message-ids": _message_ids, "messages": _messages, "closed": _closed,
    "closed-client": _closed_client, "subscriptions": _subscriptions, "terminated": _terminated,
    "deleted": _deleted, "compacted": _compacted, "clients": _clients,
    "asyncio-arguments": _asyncio_arguments, "chunks": _chunks,
}  # fmt: skip
