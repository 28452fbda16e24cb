"""Statistics of topics by the names, and nested as, Pulsar's `topics stats` has them.

Invariants: every field of Pulsar's `TopicStatsImpl`, `SubscriptionStatsImpl`, `ConsumerStatsImpl`
and `PublisherStatsImpl` is in a table here, with its type or with why it is not known (a test
compares with a recording of Pulsar 4.2.4); what a state says is counted once, in `state_rows`, and
only named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.inspect.views import state_rows
from pulsar_spark.connector.inspect.views.message_sets import LeaseEnds, unread
from pulsar_spark.connector.inspect.views.recent_deliveries import RATE_OVER_MS, RecentDeliveries
from pulsar_spark.connector.inspect.views.state_rows import Row
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import deduplicates
from pulsar_spark.log.producer_registry import ProducerRegistry
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition

LONG: Final = pa.int64()
INT: Final = pa.int32()
TEXT: Final = pa.string()
FLAG: Final = pa.bool_()
REAL: Final = pa.float64()


class StatsField(NamedTuple):
    """A field of Pulsar's: its type and meaning, or (no type) why it is not there."""

    name: str
    type: pa.DataType | None
    meaning: str


def struct(fields: tuple[StatsField, ...]) -> pa.StructType:
    """The type of the fields that are there."""
    return pa.struct([(each.name, each.type) for each in fields if each.type is not None])


def _missing(why: str, *names: str) -> tuple[StatsField, ...]:
    return tuple(StatsField(name, None, why) for name in names)


_RATES: Final = "nobody counts it: count `messages` or `acknowledgements` by time"
_WHOSE: Final = "a subscription has it; whose it was, only `acknowledgements` tells"
_TIMES: Final = "no such time is kept: `batches` and `acknowledgements` have times"
_NOBODY: Final = "nobody is connected to a broker: they meet in files"
_NOT_HERE: Final = "there is no such thing here"
_JOINED: Final = "a key waits for what of it is in process, whoever joined"
_DRAINING: Final = "not kept by hash"
_THROTTLED: Final = "nothing is throttled by a rate"
_OUT: Final = ("msgRateOut", "msgThroughputOut", "msgOutCounter", "bytesOutCounter")

CONSUMER: Final = (
    StatsField("consumerName", TEXT, "name of the consumer"),
    StatsField("availablePermits", LONG, "how many messages it may hold at most"),
    StatsField("unackedMessages", LONG, "messages that it holds by explicit grants"),
    StatsField("blockedConsumerOnUnackedMsgs", FLAG, "whether it is granted nothing until it holds "
               "half of what it may"),
    StatsField("drainingHashesUnackedMessages", LONG, "what it holds of keys that are another's by "
               "now"),
    StatsField("keyHashRanges", pa.list_(TEXT), "its slots, in Key_Shared"),
    *_missing(_RATES, "chunkedMessageRate", "avgMessagesPerEntry"),
    *_missing(_WHOSE, *_OUT, "messageAckRate", "msgRateRedeliver", "lastAckedTimestamp",
              "lastConsumedTimestamp"),
    *_missing(_TIMES, "lastConsumedFlowTimestamp", "lastAckedTime", "lastConsumedTime",
              "firstConsumedFlowTimestamp",
              "firstMessagesSentTimestamp"),
    *_missing(_NOBODY, "appId", "address", "connectedSince", "clientVersion", "metadata"),
    *_missing(_DRAINING, "drainingHashesCount", "drainingHashesClearedTotal",
              "drainingHashesUnackedMessagesByHash", "drainingHashes"),
    *_missing(_JOINED, "readPositionWhenJoining"),
)  # fmt: skip
SUBSCRIPTION: Final = (
    StatsField("type", TEXT, "Exclusive, Failover, Shared or Key_Shared"),
    StatsField("isDurable", FLAG, "whether it stays without consumers"),
    StatsField("msgBacklog", LONG, "messages that are not acknowledged (Pulsar counts entries), "
               "those that the broker has not heard of included"),
    StatsField("msgBacklogNoDelayed", LONG, "those that no producer delayed"),
    StatsField("backlogSize", LONG, "bytes, as if all messages of a ledger had one size"),
    StatsField("earliestMsgPublishTimeInBacklog", LONG, "milliseconds since 1970, of the ledger in "
               "which the backlog begins; null without backlog"),
    StatsField("msgDelayed", LONG, "those whose producers delayed them"),
    StatsField("msgInReplay", LONG, "those that go out again next"),
    StatsField("unackedMessages", LONG, "those that consumers hold by explicit grants"),
    StatsField("blockedSubscriptionOnUnackedMsgs", FLAG, "whether nothing is granted"),
    StatsField("activeConsumerName", TEXT, "who reads all; null where consumers share"),
    StatsField("consumers", pa.list_(struct(CONSUMER)), "see below"),
    StatsField("allowOutOfOrderDelivery", FLAG, "of Key_Shared"),
    StatsField("keySharedMode", TEXT, "of Key_Shared"),
    StatsField("nonContiguousDeletedMessagesRanges", LONG, "stretches of entries that are "
               "acknowledged behind the mark-delete position"),
    StatsField("nonContiguousDeletedMessagesRangesSerializedSize", LONG, "bytes of the cursor"),
    StatsField("msgOutCounter", LONG, "messages that were granted one by one, or read by who reads "
               "all and told to the broker; what came again counts each time. Since the first "
               "batch of a broker that counts (Pulsar: since the topic was loaded)"),
    StatsField("bytesOutCounter", LONG, "their bytes, as if all messages of a ledger had one size"),
    StatsField("msgRateOut", REAL, "the same messages a second, in the last minute"),
    StatsField("msgThroughputOut", REAL, "and their bytes a second"),
    StatsField("msgRateRedeliver", REAL, "messages a second that were given back in the last "
               "minute, to come again: rejected, over their ack timeout, or of a consumer that is "
               "gone and may have delivered them"),
    StatsField("totalMsgExpired", LONG, "messages that the time to live or `expire-messages` "
               "acknowledged; counted likewise"),
    StatsField("msgRateExpired", REAL, "the same a second, in the last minute"),
    StatsField("messageAckRate", REAL, "messages a second that were acknowledged in the last "
               "minute, by the broker too: expired, skipped, or copied to a letter topic"),
    StatsField("lastConsumedTimestamp", LONG, "milliseconds since 1970, of the broker's batch that "
               "delivered last; null if that is longer ago than `__dispatch` goes back"),
    StatsField("lastAckedTimestamp", LONG, "likewise, of the batch that took in the last "
               "acknowledgement"),
    StatsField("lastExpireTimestamp", LONG, "likewise, in which messages expired last"),
    StatsField("lastMarkDeleteAdvancedTimestamp", LONG, "likewise, that moved the mark-delete "
               "position"),
    StatsField("breaker", TEXT, "Pulsar has none: closed, open (delivery pauses), or half-open"),
    StatsField("breakerOpened", LONG, "milliseconds since 1970; null while it is closed"),
    StatsField("breakerFailedTrials", LONG, "that failed since, in a row; null likewise"),
    StatsField("breakerNextTrial", LONG, "until when nothing is granted; null likewise"),
    *_missing(_RATES, "chunkedMessageRate"),
    *_missing(_TIMES, "lastConsumedFlowTimestamp"),
    *_missing(_DRAINING, "drainingHashesCount", "drainingHashesClearedTotal",
              "drainingHashesUnackedMessages"),
    *_missing(_JOINED, "consumersAfterMarkDeletePosition"),
    *_missing("the delayed are the topic's, for all subscriptions",
              "delayedMessageIndexSizeInBytes", "bucketDelayedIndexStats"),
    *_missing("Pulsar says it twice: see `isDurable`, `isReplicated` and `totalMsgExpired`",
              "durable", "replicated", "msgExpired"),
    *_missing(_THROTTLED, *(f"dispatchThrottled{what}EventsBy{whose}Limit"
                            for what in ("Msg", "Bytes")
                            for whose in ("Subscription", "Topic", "Broker"))),
    *_missing(_NOT_HERE, "isReplicated", "subscriptionProperties", "filterProcessedMsgCount",
              "filterAcceptedMsgCount", "filterRejectedMsgCount", "filterRescheduledMsgCount"),
)  # fmt: skip
PUBLISHER: Final = (
    StatsField("producerName", TEXT, "name of a producer that said its access mode"),
    StatsField("accessMode", TEXT, "Shared, Exclusive, ExclusiveWithFencing or WaitForExclusive"),
    *_missing(_RATES, "msgRateIn", "msgThroughputIn", "averageMsgSize", "chunkedMessageRate"),
    *_missing(_NOBODY, "producerId", "address", "connectedSince", "clientVersion", "metadata",
              "supportsPartialProducer"),
)  # fmt: skip
TOPIC: Final = (
    StatsField("msgInCounter", LONG, "messages ever published, dropped duplicates included; null "
               "with asOf"),
    StatsField("averageMsgSize", REAL, "bytes, of those that are there; null if there are none"),
    StatsField("msgChunkPublished", FLAG, "whether a chunked message is there"),
    StatsField("storageSize", LONG, "payload bytes before compression"),
    StatsField("backlogSize", LONG, "of the subscription that has most"),
    StatsField("backlogQuotaLimitSize", LONG, "bytes; -1 for none, null without a broker"),
    StatsField("backlogQuotaLimitTime", LONG, "seconds; -1 for none, null without a broker"),
    StatsField("earliestMsgPublishTimeInBacklogs", LONG, "milliseconds since 1970; null if no "
               "subscription has a backlog"),
    StatsField("oldestBacklogMessageAgeSeconds", LONG, "the same as an age"),
    StatsField("oldestBacklogMessageSubscriptionName", TEXT, "whose that is"),
    StatsField("lastPublishTimeStamp", LONG, "milliseconds since 1970; null if nothing is there"),
    StatsField("publishers", pa.list_(struct(PUBLISHER)), "see below; null with asOf"),
    StatsField("waitingPublishers", INT, "producers that wait for the topic; null with asOf"),
    StatsField("subscriptions", pa.map_(TEXT, struct(SUBSCRIPTION)), "by name, see below"),
    StatsField("deduplicationStatus", TEXT, "Enabled or Disabled; null with asOf"),
    StatsField("topicEpoch", LONG, "of the producer that has it for itself; null without"),
    StatsField("nonContiguousDeletedMessagesRanges", LONG, "of all subscriptions"),
    StatsField("nonContiguousDeletedMessagesRangesSerializedSize", LONG, "of all subscriptions"),
    StatsField("delayedMessageIndexSizeInBytes", LONG, "what the broker keeps of the delayed"),
    StatsField("msgRateIn", REAL, "messages a second that were published in the last minute"),
    StatsField("msgThroughputIn", REAL, "their bytes a second"),
    *(StatsField(name, REAL, "of all subscriptions") for name in _OUT[:2]),
    *(StatsField(name, LONG, "of all subscriptions that there are") for name in _OUT[2:]),
    *_missing(_THROTTLED, "publishRateLimitedTimes"),
    *_missing("no subscription is the system's", "bytesOutInternalCounter"),
    *_missing("nothing counts the bytes of what is gone", "bytesInCounter",
              "systemTopicBytesInCounter"),
    *_missing("the log does not keep it", "topicCreationTimeStamp", "ongoingTxnCount",
              "abortedTxnCount", "committedTxnCount", "compaction"),
    *_missing(_NOT_HERE, "offloadedStorageSize", "lastOffloadLedgerId",
              "lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp", "replication",
              "ownerBroker"),
)  # fmt: skip

_NAMES: Final = {
    "subscription_type": "type",
    "is_durable": "isDurable",
    "total_non_contiguous_deleted_messages_range": "nonContiguousDeletedMessagesRanges",
    "cursor_bytes": "nonContiguousDeletedMessagesRangesSerializedSize",
}
"""Columns of other views whose names are not Pulsar's in this project's spelling."""
_SUMMED: Final = (
    "nonContiguousDeletedMessagesRanges", "nonContiguousDeletedMessagesRangesSerializedSize",
)  # fmt: skip


def topic_row(
    topic_partition: TopicPartition,
    ledgers: LedgerList,
    state: BrokerState | None,
    now_ms: int,
    hidden: PositionSet = NOTHING,
    recent: RecentDeliveries | None = None,
) -> Row:
    """The row of a topic partition, from its ledgers and its broker's state.

    Ledgers of which the broker has not heard are in each backlog, less those of their messages
    that are `hidden`: with no broker at work a backlog grows nevertheless.
    """
    found = {} if state is None else _subscriptions(state, _Pending.of(state, ledgers, hidden))
    if recent is not None:
        found = {name: each | recent.of(name) for name, each in found.items()}
    oldest = {
        name: each["earliestMsgPublishTimeInBacklog"]
        for name, each in found.items()
        if each["earliestMsgPublishTimeInBacklog"] is not None
    }
    whose = min(oldest, key=oldest.__getitem__, default=None)
    first_ms = None if whose is None else oldest[whose]
    size, messages = (sum(getattr(e, n) for e in ledgers) for n in ("size_bytes", "messages"))
    policies = None if state is None else state.policies
    quota_ms = None if policies is None else policies.backlog_quota_time_ms
    groups = () if state is None else state.delayed.groups.values()
    return {
        **topic_partition._asdict(),
        **_rates(ledgers, now_ms),
        "averageMsgSize": size / messages if messages else None,
        "storageSize": size,
        "backlogSize": max((each["backlogSize"] for each in found.values()), default=0),
        "backlogQuotaLimitSize": policies and policies.backlog_quota_bytes,
        "backlogQuotaLimitTime": quota_ms and (quota_ms // 1000 if quota_ms > 0 else quota_ms),
        "earliestMsgPublishTimeInBacklogs": first_ms,
        "oldestBacklogMessageAgeSeconds": first_ms and max(now_ms - first_ms, 0) // 1000,
        "oldestBacklogMessageSubscriptionName": whose,
        "lastPublishTimeStamp": ledgers[-1].max_publish_time_ms if len(ledgers) else None,
        "subscriptions": list(found.items()),
        **{
            name: sum(each[name] for each in found.values())
            for name in (*_SUMMED, *(() if recent is None else _OUT))
        },
        "delayedMessageIndexSizeInBytes": sum(each.rows.nbytes for each in groups),
    }


def log_row(log: ManagedLedger, partition: int) -> Row:
    """The columns that only the present log has."""
    part = log.state.partition(partition)
    registry = ProducerRegistry.from_json_value(log.state.producers)
    return {
        "msgInCounter": part.published.messages,
        "msgChunkPublished": bool(part.chunks),
        "publishers": [
            {"producerName": each.name, "accessMode": each.access_mode.value}
            for each in registry.producers
        ],
        "waitingPublishers": len(registry.waiting),
        "topicEpoch": registry.topic_epoch,
        "deduplicationStatus": "Enabled"
        if deduplicates(log, TopicName.parse(log.topic), None)
        else "Disabled",
    }


class _Pending(NamedTuple):
    """The messages that were published and that the broker has not received."""

    messages: int
    size_bytes: int
    first_ms: int | None

    @staticmethod
    def of(state: BrokerState, ledgers: LedgerList, hidden: PositionSet) -> _Pending:
        marks = (each.cursor.mark_delete_position for each in state.subscriptions.values())
        observed = max((state.last_position, *marks)).ledger_id
        found = [*takewhile(lambda each: each.ledger_id > observed, reversed(ledgers))][::-1]
        gone = hidden.of_ledgers(each.ledger_id for each in found)
        return _Pending(
            sum(each.messages for each in found) - gone.count(ledgers),
            sum(each.size_bytes for each in found) - gone.size_bytes(ledgers),
            found[0].min_publish_time_ms if found else None,
        )


def _rates(ledgers: LedgerList, now_ms: int) -> Row:
    """The publication rates of the last minute, as if even within each ledger's time."""
    since_ms = now_ms - RATE_OVER_MS
    messages = size = 0.0
    for each in takewhile(lambda each: each.max_publish_time_ms > since_ms, reversed(ledgers)):
        first_ms, last_ms = each.min_publish_time_ms, each.max_publish_time_ms
        late_ms = max(since_ms - first_ms, 0)
        share = 1 - late_ms / (last_ms - first_ms) if late_ms else 1.0
        messages, size = messages + each.messages * share, size + each.size_bytes * share
    over_s = RATE_OVER_MS / 1000
    return {"msgRateIn": messages / over_s, "msgThroughputIn": size / over_s}


def _subscriptions(state: BrokerState, unobserved: _Pending) -> dict[str, Row]:
    """The subscriptions by name."""
    ends: LeaseEnds = lambda _: None  # noqa: E731 - of no use here
    rows: dict[str, Row] = {}
    for name, held in sorted(state.subscriptions.items()):
        (row_of_state,) = state_rows.subscriptions(state, held, ends)
        (cursor,) = state_rows.cursors(state, held, ends)
        row = _by_pulsars_names({**row_of_state, **cursor})
        rest = unread(state, held)
        row["msgBacklog"] += unobserved.messages
        row["msgBacklogNoDelayed"] = row["msgBacklog"] - row["msgDelayed"]
        row["backlogSize"] = rest.size_bytes(state.ledgers) + unobserved.size_bytes
        if row["earliestMsgPublishTimeInBacklog"] is None and unobserved.messages:
            row["earliestMsgPublishTimeInBacklog"] = unobserved.first_ms
        row["consumers"] = []
        for consumer, each in zip(
            held.consumers.values(), state_rows.consumers(state, held, ends), strict=True
        ):
            draining = consumer.draining.count(state.ledgers)
            row["consumers"].append(
                {**_by_pulsars_names(each), "drainingHashesUnackedMessages": draining}
            )
        rows[name] = row
    return rows


def _by_pulsars_names(row: Mapping[str, Any]) -> Row:
    found = {}
    for name, value in row.items():
        head, *rest = name.split("_")
        key = _NAMES.get(name) or head + "".join(word.capitalize() for word in rest)
        found[key] = value
    return found
