"""Families of programs that consume: one consumer, several, by key, rejected, late, by listeners.

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
    new,
    ref,
    topic,
)


def exclusive(draw: random.Random) -> list[Step]:
    """One consumer: receives, acknowledges one by one or up to one, comes again."""
    of = Program()
    kind = draw.choice(["Exclusive", "Failover"])
    of.subscribe("c", consumer_type=enum("ConsumerType", kind), **_delay(draw))
    batched = draw.random() < 0.5
    of.producer("p", **batching(draw, batched=batched))
    number = draw.randrange(4, 12)
    of.send_many("p", number, draw, batched=batched)
    taken = draw.randrange(1, number + 1)
    for each in range(taken):
        of.receive("c", f"m{each}")
    for _ in range(draw.randrange(1, 5)):
        chosen = ref(f"m{draw.randrange(taken)}")
        method = draw.choice(["acknowledge", "acknowledge", "acknowledge_cumulative"])
        of.call(f"c.{method}", message=chosen)
    ending = draw.choice(["redeliver", "close", "close", "nack"])
    if batched and ending == "nack":  # Pulsar sends the whole batch again, now or later
        ending = "redeliver"
    if ending == "redeliver":
        of.pause(300)
        of.call("c.redeliver_unacknowledged_messages")
    elif ending == "nack":
        of.call("c.negative_acknowledge", message=ref(f"m{draw.randrange(taken)}"))
    else:
        of.call("c.close")
        of.subscribe("c", consumer_type=enum("ConsumerType", kind))
    of.drain("c", then="acknowledge")
    of.pause(300)
    of.call("c.close")
    of.subscribe("c", consumer_type=enum("ConsumerType", kind))
    of.drain("c")
    return of.steps


def shared(draw: random.Random) -> list[Step]:
    """Several consumers of one subscription; some reject, some leave."""
    of = Program()
    names = [f"c{each}" for each in range(draw.randrange(1, 4))]
    for name in names:
        queue = draw.choice([1, 2, 100, 1000])
        of.subscribe(
            name, consumer_type=enum("ConsumerType", "Shared"), receiver_queue_size=queue,
            negative_ack_redelivery_delay_ms=3_000,
        )  # fmt: skip
    several = len(names) > 1
    of.producer("p")
    number = draw.randrange(4, 15)
    of.send_many("p", number, draw)
    rejects = draw.random() < 0.5
    of.drain(*names, order="set", expected=number, most=number,
             then="negative_acknowledge" if rejects else None)  # fmt: skip
    for name in names[1:]:
        if draw.random() < 0.5:
            of.call(f"{name}.close")
            names.remove(name)
    if rejects:
        of.pause(4_000)
    elif draw.random() < 0.5:
        of.pause(300)
        for name in names:
            of.call(f"{name}.redeliver_unacknowledged_messages")
    else:
        for name in names:
            of.call(f"{name}.close")
        names = ["again"]
        of.subscribe("again", consumer_type=enum("ConsumerType", "Shared"))
    hidden = ["redelivered"] if several else []  # it goes by who had had a message
    of.drain(*names, order="set", expected=number, then="acknowledge", without=hidden)
    of.do("backlog", topic="t", subscription="s")
    return of.steps


def key_shared(draw: random.Random) -> list[Step]:
    """Keys in order, each at one consumer."""
    of = Program()
    sticky = draw.random() < 0.4
    borders = [0, draw.randrange(1, 65_535), 65_536]
    names = ["c0", "c1"] if sticky else [f"c{each}" for each in range(draw.randrange(1, 4))]
    for number, name in enumerate(names):
        args: dict[str, Any] = {
            "allow_out_of_order_delivery": draw.random() < 0.2,
            "key_shared_mode": enum("KeySharedMode", "Sticky" if sticky else "AutoSplit"),
        }
        if sticky:
            ends = {"$tuple": [borders[number], borders[number + 1] - 1]}
            args["sticky_ranges"] = [ends]
        of.subscribe(
            name, consumer_type=enum("ConsumerType", "KeyShared"),
            key_shared_policy=new("ConsumerKeySharedPolicy", **args),
        )  # fmt: skip
    batched = draw.random() < 0.5
    of.producer("p", **(_key_based() if batched else {}))
    number = draw.randrange(8, 25)
    by = draw.choice(["partition_key", "ordering_key"])
    of.send_many("p", number, draw, keys=by, batched=batched)
    if sticky:
        for name in names:
            of.drain(name, order="key", then="acknowledge")
        return of.steps
    of.drain(*names, order="key", expected=number, then="acknowledge")
    return of.steps


def failover(draw: random.Random) -> list[Step]:
    """Two share the partitions, from the beginning or from when the first has all; it leaves."""
    of = Program()
    of.do("create_partitioned", topic="t", partitions=2)
    kind = enum("ConsumerType", "Failover")
    first, second = draw.choice([("a", "b"), ("b", "a")])
    is_late = draw.random() < 0.5
    of.subscribe("c0", consumer_type=kind, consumer_name=first)
    if not is_late:
        of.subscribe("c1", consumer_type=kind, consumer_name=second)
        of.pause(1_500)
    number = draw.randrange(2, 5)
    for partition in range(2):
        of.producer(f"p{partition}", topic=topic(f"t-partition-{partition}"))
        of.send_many(f"p{partition}", number, draw, start=10 * partition)
    of.drain("c0", order="partition", expected=2 * number if is_late else number)
    if is_late:
        of.subscribe("c1", consumer_type=kind, consumer_name=second)
        of.pause(1_500)
        for partition in range(2):
            of.send_many(f"p{partition}", 1, draw, start=10 * partition + number)
        number += 1
    of.drain("c1", order="partition", expected=number)
    of.call("c0.close")
    of.pause(1_500)
    for partition in range(2):  # a Pulsar may read on only now
        of.send_many(f"p{partition}", 2, draw, start=10 * partition + number)
    of.drain("c1", order="partition", then="acknowledge", expected=number + 4, quiet_ms=1_000)
    return of.steps


def dead_letters(draw: random.Random) -> list[Step]:
    """What is rejected too often goes to the dead letter topic."""
    of = Program()
    most = draw.randrange(1, 4)
    kind = draw.choice(["Shared", "Shared", "KeyShared"])
    policy: dict[str, Any] = {"max_redeliver_count": most}
    named = draw.random() < 0.7
    if named:
        policy["dead_letter_topic"] = topic("dead")
    initial = draw.random() < 0.4
    if initial:
        policy["initial_subscription_name"] = "undertaker"
    dead = topic("dead") if named else topic("t-s-DLQ")
    if not initial:
        of.subscribe("d", topic=dead, subscription_name="undertaker")
    of.subscribe(
        "c", consumer_type=enum("ConsumerType", kind), negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=new("ConsumerDeadLetterPolicy", **policy),
    )  # fmt: skip
    of.producer("p", **batching(draw, batched=False))
    number = draw.randrange(1, 4)
    of.send_many("p", number, draw)
    of.drain("c", then="negative_acknowledge", order="set", quiet_ms=1_500)
    if initial:
        of.subscribe("d", topic=dead, subscription_name="undertaker")
    of.drain("d", order="set", then="acknowledge", expected=number)
    of.drain("c")
    return of.steps


def ack_timeouts(draw: random.Random) -> list[Step]:
    """What is not acknowledged in time comes again."""
    of = Program()
    of.subscribe(
        "c", consumer_type=enum("ConsumerType", draw.choice(["Shared", "Exclusive", "Failover"])),
        unacked_messages_timeout_ms=10_000,
    )  # fmt: skip
    of.producer("p")
    number = draw.randrange(2, 5)
    of.send_many("p", number, draw)
    for each in range(number):
        of.receive("c", f"m{each}")
    done = draw.randrange(number)
    for each in range(done):
        of.call("c.acknowledge", message=ref(f"m{each}"))
    of.pause(12_500)
    of.drain("c", order="set", then="acknowledge", expected=number - done)
    return of.steps


def seeks(draw: random.Random) -> list[Step]:
    """Seek to ids, to times and to the ends, with nothing acknowledged or all."""
    of = Program()
    inclusive = draw.random() < 0.5
    kind = draw.choice(["Exclusive", "Shared", "Failover"])
    of.subscribe(
        "c", consumer_type=enum("ConsumerType", kind), start_message_id_inclusive=inclusive
    )
    batched = draw.random() < 0.3
    of.producer("p", **batching(draw, batched=batched))
    number = draw.randrange(4, 9)
    of.send_many("p", number, draw, batched=batched, pause_ms=0 if batched else 5)
    for each in range(number):
        of.receive("c", f"m{each}")
    if draw.random() < 0.5:
        of.call("c.acknowledge", message=ref(f"m{draw.randrange(number)}"))
    for _ in range(draw.randrange(1, 4)):
        to = f"m{draw.randrange(number)}"
        where: Any = draw.choice([
            {"$id": to}, {"$id": to}, {"$published": to}, {"$edge": "earliest"},
            {"$edge": "latest"},
        ])  # fmt: skip
        of.call("c.seek", messageid=where)
        of.pause(200)
        of.drain("c", expected=0, quiet_ms=600)
    of.send_many("p", 1, draw, start=number)
    of.drain("c", then="acknowledge")
    return of.steps


def several_topics(draw: random.Random) -> list[Step]:
    """One consumer of several topics, or of a pattern."""
    of = Program()
    names = [f"many-{each}" for each in "abc"[: draw.randrange(2, 4)]]
    for name in names:
        of.producer(f"p-{name}", topic=topic(name))
    kind = enum("ConsumerType", draw.choice(["Exclusive", "Shared", "Failover"]))
    if draw.random() < 0.5:
        of.subscribe("c", topic=[topic(each) for each in names], consumer_type=kind)
    else:
        of.subscribe(
            "c", topic={"$pattern": "many-.*"}, consumer_type=kind,
            pattern_auto_discovery_period=1,
        )  # fmt: skip
    total = 0
    for name in names:
        number = draw.randrange(1, 5)
        of.send_many(f"p-{name}", number, draw, start=total)
        total += number
    of.drain("c", expected=total, order="partition", **{"as": "m"})
    some = draw.randrange(total)
    method = draw.choice(["acknowledge", "negative_acknowledge"])
    of.call(f"c.{method}", message=ref(f"m{some}"))
    of.pause(300)
    of.call("c.redeliver_unacknowledged_messages")
    left = total - 1 if method == "acknowledge" else total
    of.drain("c", order="partition", then="acknowledge", expected=left)
    of.call("c.get_last_message_id")
    of.call("c.close")
    return of.steps


def listeners(draw: random.Random) -> list[Step]:
    """A listener acknowledges, fails, is paused and goes on."""
    of = Program()
    then = draw.choice(["acknowledge", "acknowledge", None, "raise"])
    kind = draw.choice(["Exclusive", "Shared", "Failover", "KeyShared"])
    of.subscribe(
        "c", consumer_type=enum("ConsumerType", kind),
        message_listener={"$listener": "l", "then": then},
    )  # fmt: skip
    of.producer("p", **batching(draw, batched=False))
    number = draw.randrange(2, 7)
    of.send_many("p", number, draw)
    of.do("wait", listener="l", count=number)
    of.call("c.pause_message_listener")
    of.pause(200)
    of.send_many("p", 2, draw, start=number)
    of.do("wait", listener="l", count=0, quiet_ms=500)
    of.call("c.resume_message_listener")
    of.do("wait", listener="l", count=2)
    of.call("c.receive", timeout_millis=100)
    of.call("c.close")
    of.subscribe("d", consumer_type=enum("ConsumerType", kind))
    of.drain("d")
    return of.steps


def batch_receives(draw: random.Random) -> list[Step]:
    """Several at once, by number, by bytes and by time."""
    of = Program()
    policy = {
        "max_num_message": draw.choice([-1, 2, 3, 10]),
        "max_num_bytes": draw.choice([-1, 20, 1000]),
        "timeout_ms": draw.choice([100, 300]),
    }
    of.subscribe(
        "c", consumer_type=enum("ConsumerType", draw.choice(["Exclusive", "Shared"])),
        batch_receive_policy=new("ConsumerBatchReceivePolicy", **policy),
    )  # fmt: skip
    of.producer("p")
    number = draw.randrange(3, 9)
    for each in range(number):
        of.call("p.send", content=bytes_of(f"{each:010}"))
    of.pause(500)
    for _ in range(number // 2 + 1):
        of.call("c.batch_receive")
    of.call("c.redeliver_unacknowledged_messages")
    of.drain("c", then="acknowledge", expected=number)
    return of.steps


def delays(draw: random.Random) -> list[Step]:
    """Delayed messages come late to Shared subscriptions, at once to others."""
    of = Program()
    of.subscribe("c", consumer_type=enum("ConsumerType", "Shared"))
    of.subscribe("e", subscription_name="exclusive")
    of.producer("p")
    for each in range(draw.randrange(1, 4)):
        delay = draw.choice([3_000, 5_000])
        how = draw.choice(
            [{"deliver_after": {"$ms": delay}}, {"deliver_at": {"$after": delay}}, {}]
        )
        of.call("p.send", content=bytes_of(f"{each}"), **how)
    of.drain("e")
    of.drain("c", order="set", then="acknowledge")
    of.pause(7_500)
    of.drain("c", order="set", then="acknowledge", quiet_ms=1_000)
    return of.steps


def _delay(draw: random.Random) -> dict[str, Any]:
    return {"negative_ack_redelivery_delay_ms": draw.choice([100, 200])}


def _key_based() -> dict[str, Any]:
    return {
        "batching_enabled": True, "batching_type": enum("BatchingType", "KeyBased"),
        "batching_max_publish_delay_ms": 1_000,
    }  # fmt: skip
