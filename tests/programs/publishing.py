"""Families of programs that publish and read: routing, batches, schemas, readers, asyncio.

Invariant: see `families.py`.
"""

from __future__ import annotations

import random
from typing import Any

from tests.programs.steps import (
    Program,
    Step,
    batching,
    bytes_of,
    enum,
    random_message,
    ref,
    topic,
)


def readers(draw: random.Random) -> list[Step]:
    """A reader from an id, inclusive or not; what is there, and seeks."""
    of = Program()
    batched = draw.random() < 0.4
    of.producer("p", **batching(draw, batched=batched))
    number = draw.randrange(3, 9)
    of.send_many("p", number, draw, batched=batched, pause_ms=0 if batched else 5)
    of.call("client.create_reader", "all", topic=topic("t"), start_message_id={"$edge": "earliest"})
    of.drain("all", **{"as": "m"})
    start = draw.choice([{"$id": f"m{draw.randrange(number)}"}, {"$edge": "latest"},
                         {"$edge": "earliest"}])  # fmt: skip
    args: dict[str, Any] = {"start_message_id_inclusive": draw.random() < 0.5}
    if draw.random() < 0.4:
        args["reader_name"] = "named"
    if draw.random() < 0.4:
        args["subscription_role_prefix"] = "prefix"
    if draw.random() < 0.4:
        args["receiver_queue_size"] = draw.choice([1, 10])
    of.call("client.create_reader", "r", topic=topic("t"), start_message_id=start, **args)
    of.call("r.has_message_available")
    of.drain("r")
    of.call("r.has_message_available")
    of.call("r.seek", messageid=draw.choice(
        [{"$id": f"m{draw.randrange(number)}"}, {"$edge": "earliest"}, {"$published": "m1"}]
    ))  # fmt: skip
    of.call("r.has_message_available")
    of.drain("r")
    of.send_many("p", 2, draw, start=number)
    of.drain("r", expected=2)
    of.call("r.topic")
    of.call("r.is_connected")
    of.call("r.close")
    of.call("r.read_next", timeout_millis=100)
    return of.steps


def table_views(draw: random.Random) -> list[Step]:
    """The last value of each key."""
    of = Program()
    of.producer("p", **batching(draw, batched=False))
    keys = ["anna", "bert", "carl"]

    def send(number: int) -> None:
        key = draw.choice(keys)
        if draw.random() < 0.2:
            of.call("p.send", content=bytes_of(""), partition_key=key)
        else:
            of.call("p.send", content=bytes_of(f"{number}"), partition_key=key)

    for number in range(draw.randrange(2, 8)):
        send(number)
    of.call("p.send", content=bytes_of("no key"))
    args = {"subscription_name": "view"} if draw.random() < 0.5 else {}
    of.call("client.create_table_view", "v", topic=topic("t"), **args)
    for key in keys:
        of.call("v.get", key=key)
    of.call("v.for_each", callback={"$callback": "each"})
    of.do("wait", listener="each", count=0, order="set")
    of.call("v.for_each_and_listen", callback={"$callback": "listened"})
    for number in range(10, 10 + draw.randrange(1, 5)):
        send(number)
    of.do("wait", listener="listened", count=1, order="key", quiet_ms=800)
    for key in keys:
        of.call("v.get", key=key)
    of.call("v.close")
    return of.steps


def partitions(draw: random.Random) -> list[Step]:
    """A topic of several partitions: routing by key, by a router, to one."""
    of = Program()
    number_of = draw.choice([2, 3, 4])
    of.do("create_partitioned", topic="t", partitions=number_of)
    of.call("client.get_topic_partitions", topic=topic("t"))
    mode = draw.choice(["UseSinglePartition", "RoundRobinDistribution", "router"])
    kind = draw.choice(["Exclusive", "Shared", "Failover", "KeyShared"])
    of.subscribe("c", consumer_type=enum("ConsumerType", kind))
    args: dict[str, Any] = {}
    if mode == "router":
        args = {"message_router": {"$router": draw.randrange(3)}}
    else:
        args = {"message_routing_mode": enum("PartitionsRoutingMode", mode)}
    if draw.random() < 0.4:
        args["lazy_start_partitioned_producers"] = True
    of.producer("p", **args)
    number = draw.randrange(5, 15)
    if mode == "router":
        of.send_many("p", number, draw)
        of.drain("c", expected=number, then="acknowledge", order="partition")
    else:  # Pulsar's clients have several hashes of a key
        for each in range(number):
            key = {"partition_key": f"key {draw.randrange(5)}"}
            said = {"callback": {"$callback": "sent"}, **random_message(draw, each), **key}
            said.pop("ordering_key", None)
            of.call("p.send_async", **said)
        of.call("p.flush")
        of.drain("c", expected=number, then="acknowledge", order="key",
                 without=["partition", "topic"])  # fmt: skip
    if draw.random() < 0.3:
        of.do("update_partitions", topic="t", partitions=number_of + 1)
        of.call("client.get_topic_partitions", topic=topic("t"))
    of.call("c.topic")
    of.call("p.topic")
    of.call("c.close")
    return of.steps


def producing(draw: random.Random) -> list[Step]:
    """Batches, compression, chunks, callbacks and sequence ids; a reader and a consumer see all."""
    of = Program()
    of.subscribe("c")
    batched = draw.random() < 0.5
    args = batching(draw, batched=batched)
    args["compression_type"] = enum("CompressionType", draw.choice(
        ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]
    ))  # fmt: skip
    if draw.random() < 0.5:
        args["initial_sequence_id"] = draw.randrange(100)
    if draw.random() < 0.5:
        args["producer_name"] = "named"
    if not batched and draw.random() < 0.4:
        args["chunking_enabled"] = True
    of.producer("p", **args)
    of.call("p.producer_name")
    of.call("p.last_sequence_id")
    number = draw.randrange(2, 8)
    for each in range(number):
        said = random_message(draw, each)
        if draw.random() < 0.5:
            of.call("p.send_async", callback={"$callback": "sent"}, **said)
            of.call("p.flush")
        else:
            of.call("p.send", **said)
        if draw.random() < 0.3:
            of.call("p.last_sequence_id")
    size = draw.choice([10_000, 200_000])
    of.call("p.send", content={"$noise": [draw.randrange(99), size]})
    of.call("p.flush")
    of.call("p.is_connected")
    of.drain("c", expected=number + 1, then="acknowledge")
    of.call("c.get_last_message_id")
    of.call("p.close")
    of.call("p.is_connected")
    of.call("p.send", content=bytes_of("late"))
    of.call("p.close")
    return of.steps


def schemas(draw: random.Random) -> list[Step]:
    """Values by schema, and which schema may follow which."""
    of = Program()
    kind = draw.choice(["JsonSchema", "AvroSchema"])
    one, other = draw.choice([
        ("Person", "Person"), ("Person", "Renamed"), ("Person", "Grown"), ("Person", "Other"),
        ("Grown", "Person"), ("All", "All"), ("Other", "Other"),
    ])  # fmt: skip
    first = {"$schema": kind, "record": one}
    of.subscribe("c", schema=first)
    of.producer("p", schema=first)
    for each in range(draw.randrange(1, 4)):
        of.call("p.send", content=_record(one, each))
    of.drain("c", then="acknowledge", value=True)
    second = draw.choice([
        {"$schema": kind, "record": other}, {"$schema": kind, "record": other},
        {"$schema": "StringSchema"}, {"$schema": "BytesSchema"},
    ])  # fmt: skip
    of.producer("q", schema=second)
    content: Any = _record(other, 7)
    if second["$schema"] != kind:
        content = "text" if second["$schema"] == "StringSchema" else bytes_of("bytes")
    of.call("q.send", content=content)
    of.drain("c", then="acknowledge", value=True)
    of.subscribe("d", schema=second, subscription_name="other")
    of.drain("d", value=True)
    of.call("q.send", content=5)
    return of.steps


def access(draw: random.Random) -> list[Step]:
    """Producers that want a topic for themselves."""
    of = Program()
    modes = ["Shared", "Exclusive", "ExclusiveWithFencing"]
    names = ["p0", "p1", "p2"]
    for name in names:
        of.producer(name, access_mode=enum("ProducerAccessMode", draw.choice(modes)))
        of.pause(100)
    for name in names:
        of.call(f"{name}.send", content=bytes_of(name))
        of.call(f"{name}.is_connected")
    of.call("p0.close")
    of.producer("p3", access_mode=enum("ProducerAccessMode", draw.choice(modes)))
    of.call("p3.send", content=bytes_of("p3"))
    of.call("client.create_reader", "r", topic=topic("t"), start_message_id={"$edge": "earliest"})
    of.drain("r")
    return of.steps


def asynchronous(draw: random.Random) -> list[Step]:
    """The calls of asyncio, one by one, several at once, cancelled."""
    of = Program()
    of.call("asyncio.Client", "a", service_url={"$url": ""})
    kind = draw.choice(["Exclusive", "Shared", "Failover", "KeyShared"])
    args = {"topic": topic("t"), "subscription_name": "s", "consumer_type": enum(
        "ConsumerType", kind), "initial_position": enum("InitialPosition", "Earliest")}  # fmt: skip
    of.call("a.subscribe", "c", **args)
    of.call("a.create_producer", "p", topic=topic("t"), producer_name="named",
            batching_enabled=False)  # fmt: skip
    number = draw.randrange(2, 7)
    sends = []
    for each in range(number):
        said = random_message(draw, each)
        sends.append({"call": "p.send", "args": said, "as": f"s{each}"})
    if draw.random() < 0.5:
        of.do("gather", calls=sends)
    else:
        of.steps.extend(sends)
    of.call("p.flush")
    of.drain("c", expected=number, most=number, **{"as": "m"})
    of.call("c.acknowledge", message=ref("m0"))
    if kind in ("Exclusive", "Failover"):
        of.call("c.acknowledge_cumulative", message=ref(f"m{draw.randrange(number)}"))
    of.pause(300)
    of.call("c.redeliver_unacknowledged_messages")
    of.drain("c", quiet_ms=600, order="set", **{"as": "n"})
    if draw.random() < 0.5:
        of.call("c.seek", messageid=ref(f"s{draw.randrange(number)}"))
        of.pause(200)
        of.drain("c", quiet_ms=600, order="set")
    for method in ("topic", "subscription_name", "consumer_name", "get_last_message_id"):
        of.call(f"c.{method}")
    for method in ("topic", "producer_name", "last_sequence_id", "is_connected"):
        of.call(f"p.{method}")
    of.call("a.create_reader", "r", topic=topic("t"), start_message_id={"$edge": "earliest"})
    of.call("r.has_message_available")
    of.drain("r", expected=number, most=number)
    of.call("r.has_message_available")
    of.call("r.is_connected")
    of.call("r.topic")
    of.call("a.get_topic_partitions", topic=topic("t"))
    of.call("r.seek", messageid=ref("s0"))
    of.pause(500)
    of.call("r.read_next")
    of.call("r.close")
    of.call(draw.choice(["c.unsubscribe", "c.close"]))
    of.call("c.receive")
    of.call("p.close")
    of.call("p.send", content=bytes_of("late"))
    of.call(draw.choice(["a.close", "a.shutdown"]))
    of.call("a.close")
    return of.steps


def _record(name: str, number: int) -> dict[str, Any]:
    args: dict[str, dict[str, Any]] = {
        "Person": {"name": f"anna {number}", "age": number},
        "Grown": {"name": f"bert {number}", "age": number, "city": "Ulm"},
        "Renamed": {"name": f"carl {number}", "age": number},
        "Other": {"name": number, "weight": number / 2},
        "All": {
            "text": "ä", "number": -number, "long": 1 << 40, "yes": True, "single": 0.5,
            "double": 0.25, "bytes": bytes_of("b"), "numbers": [1, number], "texts": {"a": "b"},
        },
    }  # fmt: skip
    return {"$record": name, "args": args[name]}
