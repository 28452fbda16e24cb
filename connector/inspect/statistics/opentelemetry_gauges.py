"""The state of topics as OpenTelemetry's gauges: what Prometheus gets, for who exports otherwise.

Invariants: looking is done when a reader of the meter provider collects, once for all gauges; what
Pulsar's broker exports has its names, and attributes are the conventions' for messaging. Follows
Pulsar's `OpenTelemetryTopicStats`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Final

from pulsar_spark.connector.inspect.statistics.prometheus_text import Sample, samples
from pulsar_spark.connector.inspect.telemetry.instruments import SYSTEM
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import InvalidOptionError

GAUGES: Final = {
    "pulsar_subscriptions_count": ("pulsar.broker.topic.subscription.count", "{subscription}"),
    "pulsar_producers_count": ("pulsar.broker.topic.producer.count", "{producer}"),
    "pulsar_consumers_count": ("pulsar.broker.topic.consumer.count", "{consumer}"),
    "pulsar_in_messages_total": ("pulsar.broker.topic.message.incoming.count", "{message}"),
    "pulsar_out_messages_total": ("pulsar.broker.topic.message.outgoing.count", "{message}"),
    "pulsar_out_bytes_total": ("pulsar.broker.topic.message.outgoing.size", "By"),
    "pulsar_storage_size": ("pulsar.broker.topic.storage.size", "By"),
    "pulsar_storage_logical_size": ("pulsar.broker.topic.storage.logical.size", "By"),
    "pulsar_storage_backlog_size": ("pulsar.broker.topic.storage.backlog.size", "By"),
    "pulsar_storage_backlog_age_seconds": ("pulsar.broker.topic.storage.backlog.age", "s"),
    "pulsar_subscription_back_log": ("pulsarlite.subscription.backlog", "{message}"),
    "pulsar_subscription_delayed": ("pulsarlite.subscription.delayed", "{message}"),
    "pulsar_subscription_unacked_messages": ("pulsarlite.subscription.unacked", "{message}"),
    "pulsarlite_subscription_backlog_age_seconds": ("pulsarlite.subscription.backlog.age", "s"),
    "pulsarlite_broker_up": ("pulsarlite.broker.up", "1"),
}  # fmt: skip
"""The metric of Prometheus -> the gauge's name and unit."""
_ATTRIBUTES: Final = {
    "namespace": "pulsar.namespace",
    "topic": "messaging.destination.name",
    "subscription": "messaging.destination.subscription.name",
}
POLL_EVERY_S: Final = 1.0
"""Gauges that are collected within that time tell of one look."""


def observe(service_url: str, storage: Mapping[str, str] | None = None) -> None:
    """Register gauges of all topics of a root with this process's meter provider.

    `storage` are options of the object store. InvalidOptionError without OpenTelemetry.
    """
    try:
        from opentelemetry.metrics import Observation, get_meter
    except ImportError as error:
        raise InvalidOptionError(
            "Metrics by OpenTelemetry need its package: pip install 'pulsarlite[otel]', and an "
            "exporter of your choice."
        ) from error
    look = _Look(Root.at(service_url, storage))
    meter = get_meter("pulsar_spark")
    for metric, (name, unit) in GAUGES.items():
        meter.create_observable_gauge(name, [_callback(look, metric, Observation)], unit=unit)


class _Look:
    """The samples of one look, for all gauges that are collected with it."""

    def __init__(self, root: Root) -> None:
        self._root, self._lock = root, threading.Lock()
        self._seen_s, self._found = -inf, list[Sample]()

    def of(self, metric: str) -> list[Sample]:
        with self._lock:
            if time.monotonic() - self._seen_s > POLL_EVERY_S:
                self._found = [*samples(self._root)]
                self._seen_s = time.monotonic()
            return [each for each in self._found if each.metric.name == metric]


def _callback(look: _Look, metric: str, observation: Any) -> Callable[[Any], Iterable[Any]]:
    def observed(_options: Any) -> Iterable[Any]:
        return [observation(each.value, _attributes(each.labels)) for each in look.of(metric)]

    return observed


def _attributes(labels: Mapping[str, str]) -> dict[str, str]:
    reported = {_ATTRIBUTES[name]: text for name, text in labels.items()}
    return {"messaging.system": SYSTEM, **reported}
