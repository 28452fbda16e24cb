"""One trace from whoever publishes through whoever processes: W3C context in the properties.

Invariants: OpenTelemetry is used if the process has imported it, and never imported otherwise;
properties that name a context stay as they are; what is not sampled costs a look at its flag: it is
neither written nor continued. Span names and attributes are OpenTelemetry's conventions for
messaging. Follows `traceparent` and `tracestate` of W3C Trace Context, level 2.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Final

from pulsar_spark.connector.telemetry import instruments

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_API: Final = "opentelemetry.trace"
_SAMPLED_AT: Final = 54
"""Where a traceparent has the digit of the flag `sampled`, ..."""
_SAMPLED: Final = "13579bdf"
"""... and the digits that say so."""
_NOTHING: Final = nullcontext(None)

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
    return _spanned(topic, "send", "PRODUCER") if headers() else _NOTHING


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
    return _processed(message, properties, subscription)


def traced(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function within the context of the message that it is given, as `processing` has it."""
    if _API not in sys.modules:
        return function

    def within(message: Any) -> Any:
        if not is_sampled(message.properties):
            return function(message)
        with processing(message):
            return function(message)

    return within


def is_sampled(properties: Mapping[str, str]) -> bool:
    """Whether they name a context that is sampled, at a glance."""
    told = properties.get(TRACEPARENT)
    return told is not None and len(told) > _SAMPLED_AT and told[_SAMPLED_AT] in _SAMPLED


def flush() -> None:
    """Export the spans that ended so far: who runs in a task may be killed after it."""
    if (api := sys.modules.get(_API)) is not None:
        force = getattr(api.get_tracer_provider(), "force_flush", None)
        if force is not None:
            force()


@contextmanager
def _processed(
    message: Any, properties: Mapping[str, str], subscription: str | None
) -> Iterator[Any]:
    if callable(message.properties):
        topic, place = message.received.topic, message.received.place
    else:
        topic = message.topic
        place = message.ledger_id, message.entry_id, message.partition, message.batch_index
    about = {"messaging.message.id": ":".join(map(str, place))}
    if subscription is not None:
        about["messaging.destination.subscription.name"] = subscription
    parent = _propagator().extract(properties)
    begun_s, failed = time.perf_counter(), None
    try:
        with _spanned(topic, "process", "CONSUMER", parent, about) as span:
            yield span
    except BaseException as error:
        failed = type(error).__qualname__
        raise
    finally:
        instruments.processed(topic, time.perf_counter() - begun_s, failed)


@contextmanager
def _spanned(
    topic: str | None,
    operation: str,
    kind: str,
    parent: Any = None,
    more: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    api = sys.modules[_API]
    about = {
        "messaging.system": instruments.SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        **(more or {}),
    }
    if topic is not None:
        about["messaging.destination.name"] = topic
    name = operation if topic is None else f"{operation} {topic}"
    tracer = _tracer(api.get_tracer_provider())
    with tracer.start_as_current_span(name, parent, api.SpanKind[kind], about) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise


@cache
def _tracer(provider: Any) -> Any:
    """Of that provider: making one costs a third of a span."""
    return provider.get_tracer("pulsar_spark")


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
