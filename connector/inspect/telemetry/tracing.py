"""One trace from whoever publishes through whoever processes: W3C context in the properties.

Invariants: OpenTelemetry is used if the process has imported it, and never imported otherwise;
properties that name a context stay as they are; what is not sampled costs a look at its flag: it is
neither written nor continued; what goes by the batch (a task's rows, messages of one context that a
function is given in a row) has a span by the batch. A span of the SDK costs 22 to 30 µs and a
message in `process` 8 to 15: a span for each message would cost more than the work. Span names and
attributes are OpenTelemetry's conventions for messaging. Follows `traceparent` and `tracestate` of
W3C Trace Context, level 2.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

from pulsar_spark.connector.inspect.telemetry import instruments

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_API: Final = "opentelemetry.trace"
_SAMPLED_AT: Final = 54
"""The place of the digit of the flag `sampled` in a traceparent."""
_SAMPLED: Final = "13579bdf"
"""The hexadecimal digits of a sampled traceparent."""
_NOTHING: Final = nullcontext(None)
SHARED_S: Final = 0.01
"""Messages in a row that name one context share a span until it is so old: one that takes longer
has a span of its own, and those that take less don't pay for one."""

_last: tuple[Any, dict[str, str]] = (None, {})
"""A span's context, and its headers: messages in a row are mostly of one span."""


def headers() -> Mapping[str, str]:
    """The properties that name the active span; empty if there is none, or it is not sampled."""
    global _last  # noqa: PLW0603 - a pair is put there at once, whole
    api = sys.modules.get(_API)
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    known, found = _last
    if context is known:
        return found
    if not (context.is_valid and context.trace_flags.sampled):
        return {}
    flags = context.trace_flags
    found = {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"}
    if state := context.trace_state.to_header():
        found[TRACESTATE] = state
    _last = context, found
    return found


def with_headers(properties: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The properties with the active span's, unless they name another."""
    found = headers()
    if not found or (properties is not None and TRACEPARENT in properties):
        return properties
    return {**(properties or {}), **found}


def sending(topic: str) -> AbstractContextManager[Any]:
    """A span of one message that is sent, below the active one; nothing without that."""
    return _Span(topic, "send", "PRODUCER") if headers() else _NOTHING


def publishing(topic: str | None) -> AbstractContextManager[Any]:
    """A span of many messages that are published together; nothing without OpenTelemetry."""
    return _NOTHING if sys.modules.get(_API) is None else _Span(topic, "send", "PRODUCER")


def count(span: Any, messages: int) -> None:
    """A span is of so many messages."""
    span.set_attribute("messaging.batch.message_count", messages)


def processing(message: Any, subscription: str | None = None) -> AbstractContextManager[Any]:
    """A context in which that message is processed: its span is a child of what it was sent by.

    `message` is a client's, or what a function of `process` is given. What is published meanwhile
    belongs to the span, which the context gives; None if the process has not imported
    OpenTelemetry, or the message names no context that is sampled. An error that leaves the block
    is its status.
    """
    if _API not in sys.modules:
        return _NOTHING
    own = message.properties
    properties = message.received.properties if callable(own) else own
    if properties is None or not is_sampled(properties):
        return _NOTHING
    return _process_span(message, properties, subscription)


class Traced:
    """A function within the context of the message that it is given, as `processing` has it.

    Messages in a row that name one context share a span, up to `close`, or until it is SHARED_S
    old. An error is an event of the span, with the id of its message, and the span's status.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._span: _Span | None = None
        self._reported, self._topic = "", ""

    def __call__(self, message: Any) -> Any:
        reported, span = message.properties.get(TRACEPARENT), self._span
        if (
            span is not None
            and reported == self._reported
            and message.topic == self._topic
            and time.perf_counter() < span.begun_s + SHARED_S
        ):
            span.messages += 1
        else:
            self.close()
            if reported is None or not is_sampled(message.properties):
                return self._function(message)
            self._span = span = _process_span(message, message.properties, None)
            self._reported, self._topic = reported, message.topic
            span.__enter__()
        try:
            return self._function(message)
        except BaseException as error:
            span.failed(error, _id(message))
            raise

    def close(self) -> None:
        """End the span, if one is open."""
        if self._span is not None:
            self._span.end()
            self._span = None


def traced(function: Callable[[Any], Any]) -> Traced | None:
    """None if the process has not imported OpenTelemetry."""
    return Traced(function) if _API in sys.modules else None


def is_sampled(properties: Mapping[str, str]) -> bool:
    """True if they name a context that is sampled, at a glance."""
    reported = properties.get(TRACEPARENT)
    return (
        reported is not None and len(reported) > _SAMPLED_AT and reported[_SAMPLED_AT] in _SAMPLED
    )


def flush() -> None:
    """Export the spans that ended so far: who runs in a task may be killed after it."""
    if (api := sys.modules.get(_API)) is not None:
        force = getattr(api.get_tracer_provider(), "force_flush", None)
        if force is not None:
            force()


class _Span(AbstractContextManager[Any]):
    """A span of one message or of many, which is the active one until it ends.

    OpenTelemetry's own context managers, one in another, cost as much as the span.
    """

    __slots__ = ("_description", "_error", "_kind", "_name", "_parent", "_token", "_topic",
                 "begun_s", "message_id", "messages", "span")  # fmt: skip

    def __init__(
        self,
        topic: str | None,
        operation: str,
        kind: str,
        parent: Any = None,
        topic_partition: Mapping[str, str] | None = None,
    ) -> None:
        self._topic, self._kind, self._parent = topic, kind, parent
        self._name = operation if topic is None else f"{operation} {topic}"
        self._description = {
            **instruments.subject_of(topic, operation),
            "messaging.operation.type": operation,
            **(topic_partition or {}),
        }
        self._error: str | None = None
        self.messages, self.message_id = 1, ""

    def __enter__(self) -> Any:
        api = sys.modules[_API]
        tracer, kind = _tracer(api.get_tracer_provider()), api.SpanKind[self._kind]
        self.begun_s = time.perf_counter()
        self.span = tracer.start_span(self._name, self._parent, kind, self._description)
        self._token = _context().attach(api.set_span_in_context(self.span))
        return self.span

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.failed(error)
        self.end()

    def failed(self, error: BaseException, message_id: str | None = None) -> None:
        """The error is the span's status, and one of its events."""
        self._error = type(error).__qualname__
        api = sys.modules[_API]
        which = {} if message_id is None else {"messaging.message.id": message_id}
        self.span.record_exception(error, which)
        self.span.set_status(api.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self.span.set_attribute("error.type", self._error)

    def end(self) -> None:
        _context().detach(self._token)
        if self.messages > 1:
            count(self.span, self.messages)
        elif self.message_id:
            self.span.set_attribute("messaging.message.id", self.message_id)
        self.span.end()
        if self._kind == "CONSUMER":
            instruments.processed(self._topic, time.perf_counter() - self.begun_s, self._error)


def _process_span(message: Any, properties: Mapping[str, str], subscription: str | None) -> _Span:
    topic = message.received.topic if callable(message.properties) else message.topic
    topic_partition = {}
    if subscription is not None:
        topic_partition["messaging.destination.subscription.name"] = subscription
    span = _Span(topic, "process", "CONSUMER", _propagator().extract(properties), topic_partition)
    span.message_id = _id(message)
    return span


def _id(message: Any) -> str:
    """The id of a client's message, or of one that a function is given."""
    if callable(message.properties):
        return ":".join(map(str, message.received.place))
    return f"{message.ledger_id}:{message.entry_id}:{message.partition}:{message.batch_index}"


@cache
def _tracer(provider: Any) -> Any:
    """The tracer of that provider: making one costs a third of a span."""
    return provider.get_tracer("pulsar_spark")


@cache
def _context() -> Any:
    from opentelemetry import context

    return context


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
