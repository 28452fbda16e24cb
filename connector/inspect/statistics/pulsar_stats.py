"""`topics stats` and `partitioned-stats` of Pulsar: the view `stats` as its JSON.

Invariants: names and nesting are the view's, which are Pulsar's; what is not known is left out, as
Pulsar leaves out a null; a topic's statistics are the sum of its partitions', as Pulsar adds them.
Follows `TopicStatsImpl.add`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.inspect.views.queue_view import ALL, QueueView
from pulsar_spark.connector.inspect.views.topic_stats import log_row, topic_row
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import policies_now
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import DAMAGE
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Options

_log = logging.getLogger(__name__)
Stats = dict[str, Any]
Merge = Callable[[Any, Any], Any]
BREAKERS: Final = ("closed", "half-open", "open")
"""In the order in which one partition's counts for its topic."""


def _first(mine: Any, _other: Any) -> Any:
    return mine


def _joined(mine: list[Stats], other: list[Stats], name: str) -> list[Stats]:
    """The statistics of both, joined where they have one name."""
    rows: dict[str, Stats] = {}
    for each in (*mine, *other):
        held = rows.get(each[name])
        rows[each[name]] = each if held is None else merged(held, each)
    return [*rows.values()]


def _by_name(mine: Mapping[str, Stats], other: Mapping[str, Stats]) -> dict[str, Stats]:
    both = {name: merged(mine[name], other[name]) for name in mine if name in other}
    return {**mine, **other, **both}


_MERGES: Final[dict[str, Merge]] = {
    **dict.fromkeys(
        (
            "type", "keySharedMode", "deduplicationStatus", "topicEpoch", "waitingPublishers",
            "consumerName", "producerName", "accessMode", "activeConsumerName", "isDurable",
            "allowOutOfOrderDelivery", "keyHashRanges", "oldestBacklogMessageSubscriptionName",
            "backlogQuotaLimitSize", "backlogQuotaLimitTime", "averageMsgSize",
        ),
        _first,
    ),
    **dict.fromkeys(
        (
            "earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog",
            "breakerOpened", "breakerNextTrial",
        ),
        min,
    ),
    **dict.fromkeys(
        (
            "oldestBacklogMessageAgeSeconds", "lastPublishTimeStamp", "lastConsumedTimestamp",
            "lastAckedTimestamp", "lastExpireTimestamp", "lastMarkDeleteAdvancedTimestamp",
            "breakerFailedTrials",
        ),
        max,
    ),
    "breaker": lambda *both: max(both, key=BREAKERS.index),
    **dict.fromkeys(
        (
            "msgChunkPublished", "blockedConsumerOnUnackedMsgs",
            "blockedSubscriptionOnUnackedMsgs",
        ),
        lambda mine, other: mine or other,
    ),
    "publishers": lambda mine, other: _joined(mine, other, "producerName"),
    "consumers": lambda mine, other: _joined(mine, other, "consumerName"),
    "subscriptions": _by_name,
}  # fmt: skip
"""The join of two values of a field; other fields are added."""


def merged(mine: Stats, other: Stats) -> Stats:
    """The statistics of both."""
    found = {**mine, **other}
    for name in mine.keys() & other.keys():
        merge = _MERGES.get(name)
        pair = mine[name], other[name]
        found[name] = pair[0] + pair[1] if merge is None else merge(*pair)
    age = "oldestBacklogMessageAgeSeconds"
    if other.get(age, -1) > mine.get(age, -1):
        found["oldestBacklogMessageSubscriptionName"] = other[
            "oldestBacklogMessageSubscriptionName"
        ]
    return found


def topic_stats(root: Root, name: TopicName) -> Stats:
    """The fields of `topics stats` for a topic, or for one partition of it. TopicNotFoundError."""
    return total(_found(root, name).values())


def partitioned_stats(root: Root, name: TopicName, *, per_partition: bool = False) -> Stats:
    """The fields of `topics partitioned-stats` for a topic."""
    found = _found(root, name.partitioned_topic)
    metadata = {"metadata": {"partitions": len(found), "deleted": False}}
    if not per_partition:
        return {**total(found.values()), **metadata}
    return {
        **total(found.values()), **metadata,
        "partitions": {str(topic_partition): stats for topic_partition, stats in found.items()},
    }  # fmt: skip


def total(found: Iterable[Stats]) -> Stats:
    """The statistics of all partitions."""
    every = [*found]
    summed = every[0]
    for each in every[1:]:
        summed = merged(summed, each)
    sizes = [(each["averageMsgSize"], each["storageSize"]) for each in every if each["storageSize"]]
    if sizes:
        messages = sum(size / average for average, size in sizes)
        summed = {**summed, "averageMsgSize": sum(size for _, size in sizes) / messages}
    return summed


def partition_stats(
    log: ManagedLedger, topic_partition: TopicPartition, state: BrokerState | None, now_ms: int
) -> Stats:
    """The same of one partition as of now, for who has its log and its broker's state."""
    part, ledgers = (
        log.state.partition(topic_partition.partition),
        log.ledgers(topic_partition.partition),
    )
    hidden = part.hidden.of(each.ledger_id for each in ledgers)
    row = topic_row(topic_partition, ledgers, state, now_ms, hidden) | log_row(
        log, topic_partition.partition
    )
    row["subscriptions"] = dict(row["subscriptions"])
    found: Stats = _without_nulls(
        {n: each for n, each in row.items() if n not in topic_partition._fields}
    )
    return found


def stats_by_partition(root: Root) -> dict[TopicPartition, Stats]:
    """The statistics of all readable topics but those of the system; the log names the others."""
    try:
        found = _rows(root, {"topicsPattern": ALL})
    except DAMAGE:
        readable = [str(each) for each in root.matching(ALL) if _is_readable(root, each)]
        found = _rows(root, {"topics": ",".join(readable)}) if readable else {}
    return {
        topic_partition: stats
        for topic_partition, stats in found.items()
        if not TopicName.parse(topic_partition.topic).is_system
    }


def _is_readable(root: Root, name: TopicName) -> bool:
    try:
        if (ledger := root.open_found(name)) is None:
            return False
        policies_now(ledger)
    except DAMAGE as error:
        _log.warning("There are no statistics of %s: %s", name, error)
        return False
    return True


def _found(root: Root, name: TopicName) -> dict[TopicPartition, Stats]:
    return _rows(root, {"topic": str(name)})


def _rows(root: Root, given: Mapping[str, str]) -> dict[TopicPartition, Stats]:
    view = QueueView(Options.parse({**root.options, "view": "stats", **given}), root)
    found = {}
    for task in view.tasks():
        assert task.table is not None, "the view is not of messages"
        for row in task.table.to_pylist(maps_as_pydicts="strict"):
            topic_partition = TopicPartition(row.pop("topic"), row.pop("partition"))
            found[topic_partition] = _without_nulls(row)
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
