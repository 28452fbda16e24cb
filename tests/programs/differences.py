"""Where the programs end otherwise here, on purpose, with a sentence in the docs.

`differences.json` has for each reason the programs and the numbers of their steps:

    {"sequence-ids": {"producing-03": [5, 9]}}

    python -m tests.programs            compares all programs, and prints what no reason explains
    python -m tests.programs --prune    and leaves out of the file what is alike now

Invariants: a reason is a sentence of docs/from-pulsar-client.md. A step that is listed differs, and
each that differs is listed, so no entry outlives its reason. A reason about fields of a message
(`FIELDS`) explains those only: without them the step is alike. A step may have several reasons.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs.record import Recorded, read
from tests.programs.trace import ABSENT

FILE = Path(__file__).resolve().parent / "differences.json"
SENTENCES: dict[str, str] = {
    "asyncio-seek": "`seek` of `pulsar_spark.aio` takes every id",
    "ack-timeout": "`unacked_messages_timeout_ms` may be less than ten seconds",
    "batch-index-acks": "Each message of a batch is acknowledged by itself",
    "batch-of-one": "A batch of one message is an ordinary entry",
    "closed-twice": "A second `close` raises `AlreadyClosed`",
    "counts": "Redeliveries are counted on Exclusive and Failover too",
    "dead-letters": "Dead letters have the properties that Pulsar's Java client gives them",
    "event-times": "Event times before 1970 are taken.",
    "exact-delays": "Messages are delivered no earlier than their `deliver_at`",
    "folder": "A `service_url` without a scheme is a folder",
    "handover": "When a partition moves to another Failover consumer",
    "json-bytes": "In JSON bytes are base64",
    "json-one-line": "Records are written as JSON of one line.",
    "key-hash": "The partition of a key is that of Pulsar's Java client",
    "last-of-several": "`get_last_message_id` of a consumer of several topics answers",
    "name-of-several": "`Consumer.topic` of several topics is the subscription's name",
    "no-cluster": "There is no network, no login and no replication.",
    "one-id-class": "`send`, `message_id()` and `MessageId.wrap` give ids of one class",
    "one-partition": "`send` to a single partition (`orders-partition-1`) returns an id with its",
    "producers": "Producers register if they want the topic for themselves or were given",
    "queue-first": "`redeliver_unacknowledged_messages` delivers in order",
    "refused": "`encryption_key` is refused if given, as the classes",
    "refused-at-once": "What can't be called or is below 0, no topics, what is no policy",
    "schema-none": "A `schema` of `None` is `BytesSchema()`",
    "send-async-raises": "A message that can't be sent raises in `send_async`",
    "sequence-ids": "A producer that was told a `sequence_id` counts on behind the highest",
    "sequence-zero": "An `initial_sequence_id` of 0 counts, where Pulsar's client passes over it.",
    "unsubscribed": "`receive` of a consumer that unsubscribed raises `AlreadyClosed`",
    "zero-queue": "A `receiver_queue_size` of 0 or less counts as 1",
}
"""Reasons have these sentences, or their beginnings, in docs/from-pulsar-client.md."""
FIELDS = {
    "batch-of-one": {"batch_index"},
    "counts": {"redelivered"},
    "dead-letters": {"batch_index", "event_timestamp", "producer", "properties"},
    "key-hash": {"partition"},
    "one-partition": {"partition"},
}
"""Reasons that explain these fields of messages, and no more."""
Table = dict[str, dict[str, list[int]]]
"""Reason -> program -> the numbers of its steps."""
_, PROGRAMS = read()


@dataclass(frozen=True, slots=True)
class Difference:
    """One step whose result is another one here."""

    program: str
    step: int
    said: dict[str, Any]
    there: Any
    here: Any

    def __str__(self) -> str:
        step, there, here = (json.dumps(each) for each in (self.said, self.there, self.here))
        return f"{self.program} {self.step} {step}\n   Pulsar: {there}\n   here:   {here}"


def compared(program: Recorded, trace: list[Any]) -> list[Difference]:
    """The steps of a program whose results differ."""
    steps, there = program["steps"], program["trace"]
    return [
        Difference(program["name"], number, *each)
        for number, each in enumerate(zip(steps, there, trace, strict=True))
        if each[1] != each[2] and ABSENT not in each[1:]
    ]


def is_explained(difference: Difference, reasons: list[str]) -> bool:
    """True if the reasons of its step explain all of it."""
    if not reasons or not FIELDS.keys() >= {*reasons}:
        return bool(reasons)
    fields = set[str]().union(*(FIELDS[each] for each in reasons))
    is_set = difference.said.get("order") == "set"
    there, here = (_without(each, fields, is_set) for each in (difference.there, difference.here))
    return bool(there == here)


def _without(held: Any, fields: set[str], is_set: bool) -> Any:
    if isinstance(held, dict):
        kept = {name: each for name, each in held.items() if name not in fields}
        return {name: _without(each, fields, is_set) for name, each in kept.items()}
    if isinstance(held, list):
        found = [_without(each, fields, is_set) for each in held]
        return sorted(found, key=json.dumps) if is_set else found
    return held


def listed() -> Table:
    """Reason -> program -> steps."""
    found: Table = json.loads(FILE.read_text("utf-8"))
    return found


def expected(program: str) -> dict[int, list[str]]:
    """The steps of a program that differ, each with its reasons."""
    found: dict[int, list[str]] = {}
    for reason, programs in listed().items():
        for step in programs.get(program, ()):
            found.setdefault(step, []).append(reason)
    return found


def write(table: Table) -> None:
    """One line for each program of a reason."""
    blocks = []
    for reason, programs in sorted(table.items()):
        rows = [f"  {json.dumps(name)}: {steps}" for name, steps in sorted(programs.items())]
        if rows:
            blocks.append(f" {json.dumps(reason)}: {{\n" + ",\n".join(rows) + "\n }")
    FILE.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")
