"""Metrics of topics in Prometheus's text format, by the names and labels of Pulsar's exporter.

Invariants: every metric that Pulsar 4.2.4 has of a topic is in the table, with its value or with
why it is not there (a test compares with a recording); a value comes from the view `stats`; one
that is not known has no line. What Pulsar has no name for begins with `pulsarlite_`.
Follows Pulsar's `TopicStats.printTopicStats`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pulsar_spark.connector.inspect.statistics.pulsar_stats import (
    BREAKERS,
    Stats,
    stats_by_partition,
)
from pulsar_spark.connector.runtime.broker.broker_heartbeat import is_alive
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import TopicName, TopicPartition

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STANDALONE: Final = "standalone"
"""The cluster's name in Pulsar's standalone."""
AGE: Final = "backlogAgeSeconds"
"""A field of a subscription that only metrics have."""

SUBSCRIPTION: Final = "subscription"
ROOT: Final = "root"

Value = Callable[[Stats], Any]


class Metric(NamedTuple):
    """A metric of Pulsar's: what it is, or (no value) why it is not there; of what it is."""

    name: str
    meaning: str
    value: Value | None
    topic_partition: str = "topic"
    kind: str = "gauge"


def _field(name: str) -> Value:
    return lambda stats: stats.get(name)


def _topic(name: str, meaning: str, value: Value | str, kind: str = "gauge") -> Metric:
    found = _field(value) if isinstance(value, str) else value
    return Metric(f"pulsar_{name}", meaning, found, kind=kind)


def _subscription(
    name: str, meaning: str, value: Value | str, kind: str = "gauge", prefix: str = "subscription_"
) -> Metric:
    found = _field(value) if isinstance(value, str) else value
    return Metric(f"pulsar_{prefix}{name}", meaning, found, SUBSCRIPTION, kind)


def _subject(name: str) -> str:
    return SUBSCRIPTION if name.startswith("subscription_") else "topic"


def _missing(why: str, *names: str) -> tuple[Metric, ...]:
    return tuple(Metric(f"pulsar_{each}", why, None, _subject(each)) for each in names)


def _sum(name: str) -> Value:
    return lambda stats: sum(each[name] for each in stats["subscriptions"].values())


_BUCKETS: Final = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
_SIZES: Final = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb", "overflow")
_LATENCY: Final = (*(f"le_{each}" for each in _BUCKETS), "overflow", "count", "sum")

METRICS: Final = (
    _topic("subscriptions_count", "subscriptions", lambda stats: len(stats["subscriptions"])),
    _topic("producers_count", "producers that said their access mode",
           lambda stats: len(stats["publishers"])),
    _topic("consumers_count", "connected consumers",
           lambda stats: sum(len(each["consumers"]) for each in stats["subscriptions"].values())),
    _topic("rate_in", "messages a second that were published in the last minute", "msgRateIn"),
    _topic("throughput_in", "their bytes a second", "msgThroughputIn"),
    _topic("in_messages_total", "messages ever published", "msgInCounter", "counter"),
    _topic("average_msg_size", "bytes of a message", "averageMsgSize"),
    _topic("msg_backlog", "messages that are not acknowledged, of all subscriptions",
           _sum("msgBacklog")),
    _topic("storage_size", "payload bytes before compression", "storageSize"),
    _topic("storage_logical_size", "the same", "storageSize"),
    _topic("storage_backlog_size", "bytes of the subscription that has most of them not "
           "acknowledged", "backlogSize"),
    _topic("storage_backlog_age_seconds", "age of the oldest message that a subscription has not "
           "acknowledged; -1 if there is none",
           lambda stats: stats.get("oldestBacklogMessageAgeSeconds", -1)),
    _topic("storage_backlog_quota_limit", "bytes; -1 for none", "backlogQuotaLimitSize"),
    _topic("storage_backlog_quota_limit_time", "seconds; -1 for none", "backlogQuotaLimitTime"),
    _topic("delayed_message_index_size_bytes", "what the broker keeps of delayed messages",
           "delayedMessageIndexSizeInBytes"),
    _subscription("back_log", "messages that are not acknowledged", "msgBacklog"),
    _subscription("back_log_no_delayed", "those that no producer delayed", "msgBacklogNoDelayed"),
    _subscription("delayed", "those that a producer delayed", "msgDelayed"),
    _subscription("in_replay", "those that go out again next", "msgInReplay"),
    _subscription("unacked_messages", "those that consumers hold", "unackedMessages"),
    _subscription("blocked_on_unacked_messages", "1 if nothing is granted until some of these are "
                  "acknowledged", lambda stats: int(stats["blockedSubscriptionOnUnackedMsgs"])),
    _topic("rate_out", "messages a second that were delivered in the last minute, of all "
           "subscriptions", "msgRateOut"),
    _topic("throughput_out", "their bytes a second", "msgThroughputOut"),
    _subscription("msg_rate_out", "messages a second that were delivered in the last minute",
                  "msgRateOut"),
    _subscription("msg_throughput_out", "their bytes a second", "msgThroughputOut"),
    _subscription("msg_ack_rate", "messages a second that were acknowledged in the last minute",
                  "messageAckRate"),
    _subscription("last_acked_timestamp", "milliseconds since 1970", "lastAckedTimestamp"),
    _subscription("last_consumed_timestamp", "milliseconds since 1970", "lastConsumedTimestamp"),
    _subscription("last_mark_delete_advanced_timestamp", "milliseconds since 1970",
                  "lastMarkDeleteAdvancedTimestamp"),
    _subscription("consumers_count", "connected consumers", lambda stats: len(stats["consumers"])),
    _subscription("out_messages_total", "messages that were delivered, each time that they were",
                  "msgOutCounter", "counter", ""),
    _subscription("out_bytes_total", "their bytes", "bytesOutCounter", "counter", ""),
    _subscription("msg_rate_redeliver", "messages a second that were given back in the last "
                  "minute, to come again", "msgRateRedeliver"),
    _subscription("msg_rate_expired", "messages a second that expired in the last minute",
                  "msgRateExpired"),
    _subscription("total_msg_expired", "messages that expired", "totalMsgExpired", "counter"),
    _subscription("last_expire_timestamp", "milliseconds since 1970", "lastExpireTimestamp"),
    *_missing("nobody counts it", "subscription_msg_drop_rate"),
    *_missing("nothing counts the bytes of what is gone", "in_bytes_total"),
    *_missing("no such time is kept", "subscription_last_consumed_flow_timestamp"),
    *_missing("producers write files themselves, and no broker measures them",
              *(f"entry_size_le_{each}" for each in _SIZES), "entry_size_count", "entry_size_sum",
              *(f"storage_write_latency_{each}" for each in _LATENCY),
              *(f"storage_ledger_write_latency_{each}" for each in _LATENCY),
              "storage_read_cache_misses_rate", "storage_read_rate", "storage_write_rate"),
    *_missing("there is no such thing here", "publish_rate_limit_times", "storage_offloaded_size",
              "subscription_dispatch_throttled_bytes_events",
              "subscription_dispatch_throttled_msg_events",
              "subscription_filter_accepted_msg_count", "subscription_filter_processed_msg_count",
              "subscription_filter_rejected_msg_count",
              "subscription_filter_rescheduled_msg_count"),
    *_missing("the log does not keep it", "txn_tb_aborted_total", "txn_tb_active_total",
              "txn_tb_committed_total", "storage_backlog_quota_exceeded_evictions_total"),
    *_missing("the delayed are the topic's, for all subscriptions",
              "subscription_delayed_message_index_size_bytes"),
)  # fmt: skip
OWN: Final = (
    Metric(
        "pulsarlite_subscription_backlog_age_seconds",
        "age of the oldest message that the subscription has not acknowledged; -1 if there is none",
        _field(AGE), SUBSCRIPTION,
    ),
    Metric(
        "pulsarlite_subscription_breaker", "0 closed, 1 half-open, 2 open: delivery pauses",
        lambda stats: BREAKERS.index(stats["breaker"]), SUBSCRIPTION,
    ),
    Metric("pulsarlite_broker_up", "1 if a broker of this root shows life", _field("up"), ROOT),
)  # fmt: skip
"""The metrics for which Pulsar has no name."""


class Sample(NamedTuple):
    """A value of a metric, and what it is of."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


def prometheus_text(root: Root, cluster: str = STANDALONE) -> str:
    """The metrics of all topics but the system's, as Prometheus scrapes them."""
    lines: dict[Metric, list[str]] = {}
    for metric, labels, value in samples(root):
        reported = {"cluster": cluster, **labels}
        pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in reported.items())
        lines.setdefault(metric, []).append(f"{metric.name}{{{pairs}}} {value}")
    parts = []
    for metric, reported_of in lines.items():
        head = f"# HELP {metric.name} {metric.meaning}\n# TYPE {metric.name} {metric.kind}"
        parts += [head, *reported_of]
    return "\n".join(parts) + "\n"


def samples(root: Root) -> Iterator[Sample]:
    """All that is known, in the order of the table."""
    now_ms, found = root.clock.wall_ms(), stats_by_partition(root)
    names = _names(found)
    for metric in (*METRICS, *OWN):
        if metric.value is None:
            continue
        if metric.topic_partition == ROOT:
            yield Sample(metric, {}, int(is_alive(root)))
            continue
        for topic_partition, stats in found.items():
            topic = TopicName.parse(topic_partition.topic)
            labels = {"namespace": str(topic.namespace), "topic": names[topic_partition]}
            if metric.topic_partition != SUBSCRIPTION:
                yield from _sample(metric, labels, stats)
                continue
            for name, held in stats["subscriptions"].items():
                first_ms = held.get("earliestMsgPublishTimeInBacklog")
                age = -1 if first_ms is None else max(now_ms - first_ms, 0) / 1000
                yield from _sample(metric, {**labels, "subscription": name}, {**held, AGE: age})


def _sample(metric: Metric, labels: Mapping[str, str], stats: Stats) -> Iterator[Sample]:
    assert metric.value is not None
    if (value := metric.value(stats)) is not None:
        yield Sample(metric, labels, value)


def _names(found: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """As Pulsar labels them: one that is not partitioned has its own name."""
    counts = Counter(topic_partition.topic for topic_partition in found)
    return {
        topic_partition: topic_partition.topic
        if counts[topic_partition.topic] == 1
        else f"{topic_partition.topic}-partition-{topic_partition.partition}"
        for topic_partition in found
    }


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
