"""Programs of which each tries one argument of the public calls, with right and wrong values.

Invariant: each argument of `argument_values.py` has a program.
"""

from __future__ import annotations

from typing import Any

from tests.programs import calls
from tests.programs.argument_values import CLIENT, PRODUCER, READER, SEND, SUBSCRIBE
from tests.programs.steps import EARLIEST, Program, Step, bytes_of, enum, topic


def programs() -> dict[str, list[Step]]:
    found = {f"client-{name}": _client(name, values) for name, values in CLIENT.items()}
    found |= {f"subscribe-{name}": _subscribe(name, each) for name, each in SUBSCRIBE.items()}
    found |= {f"producer-{name}": _producer(name, each) for name, each in PRODUCER.items()}
    found |= {f"reader-{name}": _reader(name, each) for name, each in READER.items()}
    found |= {f"send-{name}": _send(name, each) for name, each in SEND.items()}
    found |= {f"call-{name}": make() for name, make in calls.CALLS.items()}
    return found


def _client(argument: str, values: list[Any]) -> list[Step]:
    of = Program()
    for number, value in enumerate(values):
        of.call("pulsar.Client", f"k{number}", service_url={"$url": ""}, **{argument: value})
        of.call(f"k{number}.create_producer", f"p{number}", topic=topic("t"))
        of.call(f"p{number}.send", content=bytes_of("x"))
        of.call(f"k{number}.close")
    return of.steps


def _subscribe(argument: str, values: list[Any]) -> list[Step]:
    of = Program()
    kinds = {"key_shared_policy": "KeyShared", "dead_letter_policy": "Shared"}
    for number, value in enumerate(values):
        name = f"c{number}"
        of.producer("p", topic=topic(f"t{number}"))
        of.call("p.send", content=bytes_of("before"))
        args: dict[str, Any] = {"topic": topic(f"t{number}"), "subscription_name": "s"}
        if argument in kinds:
            args["consumer_type"] = enum("ConsumerType", kinds[argument])
        args["initial_position"] = EARLIEST
        given = value
        if argument == "topic" and isinstance(value, dict):
            given = topic(f"t{number}", value.get("domain"))
        elif argument == "topic" and value == [topic("t")]:
            given = [topic(f"t{number}")]
        elif argument in ("regex_subscription_mode", "pattern_auto_discovery_period"):
            args["topic"] = {"$pattern": f"t{number}.*"}
        of.call("client.subscribe", name, **{**args, argument: given})
        of.call("p.send", content=bytes_of("one"))
        of.call("p.send", content=bytes_of("two"))
        of.call("p.close")
        if isinstance(value, dict) and "$listener" in value:
            of.do("wait", listener="l", count=3)
        elif argument == "batch_receive_policy" and number == 0:
            of.call(f"{name}.batch_receive")
        else:
            of.drain(name, then="acknowledge", quiet_ms=300)
        for method in ("topic", "subscription_name", "consumer_name", "is_connected"):
            of.call(f"{name}.{method}")
        of.call(f"{name}.close")
        of.call(f"{name}.is_connected")
    return of.steps


def _producer(argument: str, values: list[Any]) -> list[Step]:
    of = Program()
    for number, value in enumerate(values):
        given = value
        if argument == "topic" and isinstance(value, dict):
            given = topic(f"t{number}", value.get("domain"))
        at = topic(f"t{number}")
        of.subscribe("c", topic=at)
        name = f"p{number}"
        of.call("client.create_producer", name, **{"topic": at, argument: given})
        content: Any = "text" if given == {"$schema": "StringSchema"} else bytes_of("one")
        of.call(f"{name}.send", content=content)
        of.call(f"{name}.send_async", content=content, callback={"$callback": "sent"})
        of.call(f"{name}.flush")
        of.drain("c", then="acknowledge", quiet_ms=300)
        for method in ("topic", "producer_name", "last_sequence_id", "is_connected", "close"):
            of.call(f"{name}.{method}")
        of.call("c.close")
    return of.steps


def _reader(argument: str, values: list[Any]) -> list[Step]:
    of = Program()
    of.producer("p")
    for text in ("one", "two", "three"):
        of.call("p.send", "sent" if text == "two" else None, content=bytes_of(text))
    for number, value in enumerate(values):
        name = f"r{number}"
        args = {"topic": topic("t"), "start_message_id": {"$edge": "earliest"}}
        of.call("client.create_reader", name, **{**args, argument: value})
        if isinstance(value, dict) and "$listener" in value:
            of.do("wait", listener="l", count=3)
        else:
            of.call(f"{name}.has_message_available")
            of.drain(name, quiet_ms=300)
        of.call(f"{name}.topic")
        of.call(f"{name}.close")
    return of.steps


def _send(argument: str, values: list[Any]) -> list[Step]:
    of = Program()
    of.subscribe("c", consumer_type=enum("ConsumerType", "Shared"))
    of.producer("p")
    for value in values:
        of.call("p.send", **({"content": bytes_of("x")} | {argument: value}))
        of.call("p.last_sequence_id")
        args = {"content": bytes_of("y"), "callback": {"$callback": "sent"}} | {argument: value}
        of.call("p.send_async", **args)
        of.call("p.flush")
    of.do("wait", listener="sent", count=0)
    of.pause(2_500)
    of.drain("c", order="set", then="acknowledge")
    return of.steps
