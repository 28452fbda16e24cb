"""The trace of a program: what its calls returned, raised and received, without what is by chance.

Two runs of a program are equivalent if their traces are equal. A trace leaves out:
- ids: an id is the content of its message, its partition and its batch index; its ledger and entry
  are compared only with those that `send` had returned for that content
- names that nobody chose, of producers and consumers; the topics' prefix of the run
- times: a publish time is recent or not; an event time is compared
- empty fields of a message
- order where it is free: a step that receives says which order is kept (`exact`, `partition`,
  `key`; `set` is none), and may leave out fields (`without`). The key is that by which Key_Shared
  goes, the ordering key if there is one. How messages are dealt out to several consumers is left
  out, but no key may be at two of them at once (`key`)
- the texts of errors, but of `Timeout`, which programs compare
- steps about an object that only one of the two could make: its making is what differs

Invariant: this module needs nothing of this repository.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.programs.host import Host

ABSENT = "absent"
"""The result of a step about an object that could not be made."""
LONGEST = 80
RECENT_MS = 120_000
COMPARED_TEXTS = {"Timeout"}
ID_PROPERTIES = {"ORIGIN_MESSAGE_ID"}
"""Properties whose values are ids."""
_NUMBER = re.compile(r"\d+")


def content(data: bytes) -> str:
    """The content of a message; of a long one its length and hash."""
    if len(data) > LONGEST:
        return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:12]}"
    return data.decode("utf-8", "backslashreplace")


def error(raised: BaseException, host: Host) -> dict[str, Any]:
    """The class of an error; of those of asyncio the result."""
    name = type(raised).__name__
    if isinstance(raised, host.asyncio.PulsarException):
        name = str(raised.error().name)
    found = {"error": name}
    if name in COMPARED_TEXTS and type(raised) is getattr(host.pulsar, name):
        found["text"] = str(raised).partition(". The test's clock")[0]
    return found


def shape(text: str) -> str:
    """A text with N for each number."""
    return _NUMBER.sub("N", text)


def ordered(messages: Sequence[tuple[str, dict[str, Any]]], order: str) -> Any:
    """What several consumers received, each by its name, in the order that is kept."""
    if order == "exact":
        return [each for _, each in messages]
    if order == "set":
        return sorted((each for _, each in messages), key=json.dumps)
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    consumers: dict[str, set[str]] = defaultdict(set)
    for consumer, each in messages:
        key = each.get("ordering_key") or each.get("key", "")
        by = str(each.get("topic", "") if order == "partition" else key)
        groups[by].append(each)
        consumers[by].add(consumer)
    found: dict[str, Any] = dict(sorted(groups.items()))
    if order == "key":
        found["keys at several consumers"] = sum(len(each) > 1 for each in consumers.values())
    return found


class Describer:
    """Describes what calls return; it knows the ids that `send` has returned."""

    def __init__(self, prefix: str, now_ms: Callable[[], int]) -> None:
        self.prefix, self.now_ms = prefix, now_ms
        self.given_names: set[str] = set()
        self._ids: dict[tuple[Any, ...], str] = {}

    def sent(self, returned: Any, data: str, topic: str) -> dict[str, Any]:
        """The id that `send` returned for this content."""
        if _is_id(returned) and returned.ledger_id() >= 0:
            self._ids[self._place(returned, topic)] = data
        return self.id(returned, topic)

    def id(self, message_id: Any, topic: str) -> dict[str, Any]:
        if message_id.ledger_id() < 0:
            return {"id": _NUMBER.sub(lambda each: each[0][:3], str(message_id))}
        if message_id.ledger_id() > 1 << 62:
            return {"id": "latest"}
        place = self._place(message_id, topic)
        known = self._ids.get(place)
        if known is None and not topic:  # an id does not always say of which topic it is
            among = [each for held, each in self._ids.items() if held[1:] == place[1:]]
            known = among[0] if len(among) == 1 else None
        return _without_empty({
            "id": "unknown" if known is None else known,
            **_part(message_id),
        })  # fmt: skip

    def message(self, message: Any, value: bool = False) -> dict[str, Any]:
        """All that a received message has."""
        data, message_id = content(message.data()), message.message_id()
        topic = self.topic(message.topic_name())
        place = self._place(message_id, topic)
        known = self._ids.setdefault(place, data)
        published = abs(self.now_ms() - message.publish_timestamp()) < RECENT_MS
        found = {
            "data": data,
            "id": "" if known == data else f"that of {known}",
            **_part(message_id),
            "topic": topic,
            "key": message.partition_key(),
            "ordering_key": message.ordering_key(),
            "properties": self._properties(message.properties()),
            "event_timestamp": message.event_timestamp() or None,
            "published": "" if published else "long ago",
            "redelivered": message.redelivery_count() or None,
            "producer": self.name(message.producer_name()),
            "null": message.has_null_value(),
            "schema_version": _hex(message.schema_version()),
            "encrypted": message.encryption_context() is not None,
        }
        if value:  # how a record is written is compared where `value` is not asked for
            del found["data"]
            found["value"] = self.plain(message.value())
        return _without_empty(found)

    def _properties(self, properties: dict[str, str]) -> dict[str, str]:
        held = {name: self.topic(each) for name, each in sorted(properties.items())}
        for name in held.keys() & ID_PROPERTIES:
            held[name] = shape(held[name])
        return held

    def topic(self, name: str) -> str:
        found = name.replace(self.prefix, "").removeprefix("persistent://public/default/")
        return found.partition("-TopicsConsumerFakeName-")[0]

    def name(self, name: str) -> str:
        return name if name in self.given_names else "generated" if name else ""

    def plain(self, value: Any) -> Any:
        """A value as JSON has it."""
        if isinstance(value, enum.Enum) or type(type(value)).__name__ == "pybind11_type":
            return getattr(value, "name", type(value).__name__)
        if isinstance(value, bytes):
            return {"bytes": content(value)}
        if isinstance(value, str):
            return self.topic(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, (list, tuple)):
            return [self.plain(each) for each in value]
        if isinstance(value, dict):
            return {str(name): self.plain(each) for name, each in sorted(value.items())}
        if hasattr(value, "schema") and hasattr(value, "__dict__"):
            held = {name: each for name, each in vars(value).items() if name[0] != "_"}
            return {"record": type(value).__name__, **self.plain(held)}
        return type(value).__name__

    def _place(self, message_id: Any, topic: str) -> tuple[Any, ...]:
        base = topic.partition("-partition-")[0]
        return (
            base, message_id.ledger_id(), message_id.entry_id(),
            message_id.partition(), message_id.batch_index(),
        )  # fmt: skip


def _is_id(value: Any) -> bool:
    return hasattr(value, "ledger_id") and hasattr(value, "batch_index")


def _hex(version: Any) -> str:
    return (version if isinstance(version, bytes) else str(version).encode("latin-1")).hex()


def _part(message_id: Any) -> dict[str, int | None]:
    """The partition and the batch index, None where there is none."""
    partition, batch_index = message_id.partition(), message_id.batch_index()
    return {
        "partition": None if partition < 0 else partition,
        "batch_index": None if batch_index < 0 else batch_index,
    }


def _without_empty(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: each for name, each in found.items() if each is not None and each is not False
        and each not in ("", {})
    }  # fmt: skip
