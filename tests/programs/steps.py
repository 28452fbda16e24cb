"""Steps of a program, written down in order.

Invariant: all of it is JSON; this module needs nothing of this repository.
"""

from __future__ import annotations

import random
from typing import Any

Step = dict[str, Any]
Json = dict[str, Any]


def topic(name: str, domain: str | None = None) -> Json:
    return {"$topic": name} if domain is None else {"$topic": name, "domain": domain}


def bytes_of(text: str) -> Json:
    return {"$bytes": text}


def ref(name: str) -> Json:
    return {"$ref": name}


def enum(kind: str, member: str) -> Json:
    return {"$enum": f"{kind}.{member}"}


def new(name: str, **args: Any) -> Json:
    return {"$new": name, "args": args}


EARLIEST = enum("InitialPosition", "Earliest")


class Program:
    """Collects steps; its topic is `t`, its subscription `s`."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def call(self, called: str, name: str | None = None, /, **args: Any) -> None:
        step: Step = {"call": called}
        if args:
            step["args"] = args
        self.steps.append(step if name is None else {**step, "as": name})

    def do(self, what: str, **given: Any) -> None:
        self.steps.append({"do": what, **given})

    def pause(self, milliseconds: int) -> None:
        self.do("sleep", ms=milliseconds)

    def subscribe(self, name: str, **args: Any) -> None:
        given = {"topic": topic("t"), "subscription_name": "s", "initial_position": EARLIEST}
        self.call("client.subscribe", name, **(given | args))

    def producer(self, name: str, **args: Any) -> None:
        self.call("client.create_producer", name, **({"topic": topic("t")} | args))

    def receive(self, consumer: str, name: str, timeout_millis: int = 4_000) -> None:
        self.call(f"{consumer}.receive", name, timeout_millis=timeout_millis)

    def drain(self, *consumers: str, **given: Any) -> None:
        self.do("drain", **{"from": list(consumers)}, **given)

    def send_many(
        self, producer: str, number: int, draw: random.Random, *,
        batched: bool = False, keys: str = "", start: int = 0, pause_ms: int = 0,
    ) -> None:  # fmt: skip
        """Send messages with all that a message may have; in batches they go together."""
        for each in range(start, start + number):
            said = random_message(draw, each)
            if keys:
                said[keys] = f"key {draw.randrange(6)}"
            if batched:
                self.call(f"{producer}.send_async", callback={"$callback": "sent"}, **said)
            else:
                self.call(f"{producer}.send", **said)
            if pause_ms:
                self.pause(pause_ms)
        if batched:
            self.call(f"{producer}.flush")
            self.do("wait", listener="sent", count=number, order="set", quiet_ms=0)


def random_message(draw: random.Random, number: int) -> Json:
    """The arguments of a `send`: each that is optional now and then."""
    said: Json = {"content": bytes_of(f"message {number}")}
    optional: Json = {
        "properties": {"number": str(number), "ä": "ö"},
        "partition_key": f"key {number % 3}",
        "ordering_key": f"order {number % 2}",
        "event_timestamp": 1_700_000_000_000 + number,
        "disable_replication": True,
        "replication_clusters": ["standalone"],
    }
    for name, value in optional.items():
        if draw.random() < 0.2:
            said[name] = value
    return said


def batching(draw: random.Random, *, batched: bool) -> Json:
    """The arguments of a producer, with or without batches."""
    args: dict[str, Any] = {"batching_enabled": batched}
    if batched:
        args["batching_max_publish_delay_ms"] = 1_000
        args["batching_max_messages"] = draw.choice([2, 3, 1000])
        if draw.random() < 0.3:
            args["batching_max_allowed_size_in_bytes"] = draw.choice([1_000, 131_072])
    if draw.random() < 0.3:
        args["properties"] = {"made": "by a program"}
    return args
