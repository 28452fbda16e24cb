"""The arguments of a step as Python values: what JSON has no type for is `{"$KIND": ...}`.

    {"$bytes": "x"}                     b"x"; {"$repeat": ["x", 9]} repeats; {"$noise": [7, 9]} does
                                        not compress (a seed and a length)
    {"$topic": "a"}                     the topic `a` of this run; "domain" makes it a full name
    {"$pattern": "a-.*"}                a pattern for topics of this run; "compiled" compiles it
    {"$ref": "m"}, {"$id": "m"}         what a step has named, and the id of that message
    {"$edge": "earliest"}               `MessageId.earliest`, or `latest`
    {"$serialized": "m"}                the bytes of that id
    {"$enum": "ConsumerType.Shared"}    a member of an enumeration
    {"$new": "ConsumerDeadLetterPolicy", "args": {}}
    {"$schema": "JsonSchema", "record": "Person"}, {"$record": "Person", "args": {}}
    {"$ms": 5}, {"$after": 5}           a timedelta; a time, so many ms from now
    {"$published": "m", "plus": 1}      when that message was published, in ms
    {"$listener": "l"}, {"$callback": "l"}, {"$router": 2}, {"$tuple": []}
    {"$logger": "l"}, {"$url": ""}

Invariant: this module needs nothing of this repository.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.programs.interpreter import Interpreter


def decoded(value: Any, run: Interpreter) -> Any:
    """The Python value that a step's JSON stands for."""
    if isinstance(value, list):
        return [decoded(each, run) for each in value]
    if not isinstance(value, dict):
        return value
    kind = next((name for name in value if name.startswith("$")), None)
    if kind is None:
        return {name: decoded(each, run) for name, each in value.items()}
    return _KINDS[kind](value[kind], value, run)


def _bytes(text: Any, _value: Any, _run: Interpreter) -> bytes:
    return str(text).encode()


def _repeat(what: Any, _value: Any, _run: Interpreter) -> bytes:
    text, times = what
    return str(text).encode() * int(times)


def _noise(what: Any, _value: Any, _run: Interpreter) -> bytes:
    seed, length = what
    return random.Random(seed).randbytes(length)


def _topic(name: Any, value: Any, run: Interpreter) -> str:
    topic = run.topic(name)
    domain = value.get("domain")
    return f"{domain}://public/default/{topic}" if domain else topic


def _pattern(text: Any, value: Any, run: Interpreter) -> Any:
    domain = value.get("domain", "persistent")
    pattern = (f"{domain}://" if domain else "") + f"public/default/{run.topic(text)}"
    return re.compile(pattern) if value.get("compiled", True) else pattern


def _ref(name: Any, _value: Any, run: Interpreter) -> Any:
    return run.named[name]


def _id(name: Any, _value: Any, run: Interpreter) -> Any:
    return run.id_of(run.named[name])


def _serialized(name: Any, _value: Any, run: Interpreter) -> Any:
    return run.id_of(run.named[name]).serialize()


def _enum(name: Any, _value: Any, run: Interpreter) -> Any:
    kind, member = name.split(".")
    return getattr(getattr(run.host.pulsar, kind), member)


def _new(name: Any, value: Any, run: Interpreter) -> Any:
    args = {each: decoded(held, run) for each, held in value.get("args", {}).items()}
    return run.construct(name, args)


def _schema(name: Any, value: Any, run: Interpreter) -> Any:
    kind = getattr(run.host.schema, name)
    return kind(_record_class(value["record"], run)) if "record" in value else kind()


def _record(name: Any, value: Any, run: Interpreter) -> Any:
    return _record_class(name, run)(**decoded(value.get("args", {}), run))


def _record_class(name: str, run: Interpreter) -> Any:
    """A record of that name: `Person` and others that may or may not follow it."""
    of = run.host.schema
    fields: dict[str, dict[str, Any]] = {
        "Person": {"name": of.String(), "age": of.Integer()},
        "Grown": {"name": of.String(), "age": of.Integer(), "city": of.String(default="-")},
        "Renamed": {"name": of.String(), "age": of.Integer()},
        "Other": {"name": of.Integer(), "weight": of.Double(required=True)},
        "All": {
            "text": of.String(), "number": of.Integer(), "long": of.Long(), "yes": of.Boolean(),
            "single": of.Float(), "double": of.Double(), "bytes": of.Bytes(),
            "numbers": of.Array(of.Integer()), "texts": of.Map(of.String()),
        },
    }  # fmt: skip
    return run.once(f"record {name}", lambda: type(name, (of.Record,), fields[name]))


def _ms(number: Any, _value: Any, _run: Interpreter) -> timedelta:
    return timedelta(milliseconds=number)


def _after(number: Any, _value: Any, run: Interpreter) -> int:
    return run.host.now_ms() + int(number)


def _published(name: Any, value: Any, run: Interpreter) -> int:
    return int(run.named[name].publish_timestamp()) + int(value.get("plus", 0))


def _listener(name: Any, value: Any, run: Interpreter) -> Callable[..., None]:
    return run.listener(name, then=value.get("then"))


def _callback(name: Any, _value: Any, run: Interpreter) -> Callable[..., None]:
    return run.callback(name)


def _router(partition: Any, _value: Any, _run: Interpreter) -> Callable[[Any, int], int]:
    return lambda message, number: (len(message.data()) + int(partition)) % number


def _tuple(values: Any, _value: Any, run: Interpreter) -> tuple[Any, ...]:
    return tuple(decoded(each, run) for each in values)


def _logger(name: Any, _value: Any, _run: Interpreter) -> Any:
    quiet = logging.getLogger(f"programs.{name}")
    quiet.setLevel(logging.CRITICAL)
    return quiet


def _edge(name: Any, _value: Any, run: Interpreter) -> Any:
    return getattr(run.host.pulsar.MessageId, name)


def _url(_nothing: Any, _value: Any, run: Interpreter) -> str:
    return run.host.url


_KINDS: dict[str, Callable[[Any, Any, Interpreter], Any]] = {
    "$bytes": _bytes, "$repeat": _repeat, "$noise": _noise, "$topic": _topic, "$url": _url,
    "$pattern": _pattern, "$ref": _ref, "$id": _id, "$serialized": _serialized, "$enum": _enum,
    "$new": _new, "$schema": _schema, "$record": _record, "$ms": _ms, "$after": _after,
    "$published": _published, "$listener": _listener, "$callback": _callback,
    "$router": _router, "$tuple": _tuple, "$logger": _logger, "$edge": _edge,
}  # fmt: skip
