"""OpenTelemetry's metrics of clients, by its conventions for messaging.

Invariants: OpenTelemetry is used if the process has imported it, and never imported otherwise;
what is counted is counted by the flush or the fetch, not by the message. Names, units and
attributes are those of the semantic conventions (`messaging.client.*`, `messaging.process.*`).
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final

SYSTEM: Final = "pulsarlite"
"""The attribute `messaging.system`."""
INSTRUMENTS: Final = {
    "messaging.client.sent.messages": ("counter", "{message}", "messages that were published"),
    "messaging.client.consumed.messages": ("counter", "{message}", "messages that were received"),
    "messaging.client.operation.duration": (
        "histogram", "s", "how long a publication took, of one message or of many"
    ),
    "messaging.process.duration": ("histogram", "s", "how long the processing of a message took"),
}  # fmt: skip
"""Name -> kind, unit, meaning."""


def sent(topic: str, messages: int, seconds: float, error: str | None = None) -> None:
    """Messages were published together, or failed together, in that time."""
    if is_on():
        topic_partition = {
            **subject_of(topic, "send"),
            **({} if error is None else {"error.type": error}),
        }
        _instrument("messaging.client.sent.messages").add(messages, topic_partition)
        _instrument("messaging.client.operation.duration").record(seconds, topic_partition)


def consumed(topic: str, subscription: str | None, messages: int) -> None:
    """Messages were taken in."""
    if is_on():
        topic_partition = subject_of(topic, "receive")
        if subscription is not None:
            topic_partition["messaging.destination.subscription.name"] = subscription
        _instrument("messaging.client.consumed.messages").add(messages, topic_partition)


def processed(topic: str | None, seconds: float, error: str | None) -> None:
    """A function or a listener has had a message for that time."""
    if is_on():
        topic_partition = {
            **subject_of(topic, "process"),
            **({} if error is None else {"error.type": error}),
        }
        _instrument("messaging.process.duration").record(seconds, topic_partition)


def is_on() -> bool:
    """True if this process has imported OpenTelemetry's metrics."""
    return "opentelemetry.metrics" in sys.modules


@cache
def _instrument(name: str) -> Any:
    meter = sys.modules["opentelemetry.metrics"].get_meter("pulsar_spark")
    kind, unit, meaning = INSTRUMENTS[name]
    return getattr(meter, f"create_{kind}")(name, unit=unit, description=meaning)


def subject_of(topic: str | None, operation: str) -> dict[str, Any]:
    """The attributes of an operation on messages of that topic, if it is known."""
    found = {"messaging.system": SYSTEM, "messaging.operation.name": operation}
    return found if topic is None else {**found, "messaging.destination.name": topic}
