"""`topics stats-internal` of Pulsar: a partition's ledgers, and the cursors on them.

Invariants: every field of Pulsar's `PersistentTopicInternalStats`, `LedgerInfo` and `CursorStats`
is in a table here, with what it is or with why it is not there (a test compares with a recording
of Pulsar 4.2.4). A ledger is a range of rows of a data file, and is closed once it is there.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, NamedTuple

from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.inspect.views import state_rows
from pulsar_spark.connector.inspect.views.message_sets import unread
from pulsar_spark.connector.runtime.system_topics.hosted_topics import hosted_states
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root, partitions_of
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.topic_name import TopicName, TopicPartition

Stats = dict[str, Any]


class InternalField(NamedTuple):
    """A field of Pulsar's, and what it is here, or why it is not."""

    name: str
    meaning: str
    exists: bool = True


def _missing(why: str, *names: str) -> tuple[InternalField, ...]:
    return tuple(InternalField(name, why, exists=False) for name in names)


_NO_CURRENT: Final = "a ledger is closed once it is published: none is being written"
_NO_NODES: Final = "there are no storage nodes, and no requests that wait"
_NO_CURSOR_LEDGER: Final = "a cursor is stored in `__dispatch`"

TOPIC: Final = (
    InternalField("entriesAddedCounter", "entries of the ledgers that are there"),
    InternalField("numberOfEntries", "the same: nothing is counted of what is gone"),
    InternalField("totalSize", "payload bytes before compression"),
    InternalField("lastLedgerCreatedTimestamp", "the last publish time of the last ledger"),
    InternalField("lastConfirmedEntry", "ledger:entry of the last message"),
    InternalField("state", "LedgerOpened"),
    InternalField("ledgers", "see below"),
    InternalField("cursors", "by subscription, see below"),
    InternalField("compactedLedger", "what compaction has kept; ledger id -1 if it never ran"),
    InternalField("schemaLedgers", "empty: schemas are in the topic's log"),
    InternalField("properties", "the topic's settings, as text"),
    *_missing(_NO_CURRENT, "currentLedgerEntries", "currentLedgerSize"),
    *_missing(
        _NO_NODES, "waitingCursorsCount", "pendingAddEntriesCount",
        "lastLedgerCreationFailureTimestamp",
    ),
)  # fmt: skip
LEDGER: Final = (
    InternalField("ledgerId", "unique within the topic"),
    InternalField("entries", "batches of messages"),
    InternalField("size", "payload bytes before compression"),
    InternalField("offloaded", "false: it lies where all lie"),
    InternalField("metadata", "the data file, and its first row there"),
    *_missing(_NO_NODES, "underReplicated"),
)
CURSOR: Final = (
    InternalField("markDeletePosition", "ledger:entry; all up to it is acknowledged"),
    InternalField("readPosition", "ledger:entry; all up to it was granted once"),
    InternalField("individuallyDeletedMessages", "what is acknowledged after the mark-delete "
                  "position, as `3:0-5,7` (docs/views.md, `cursors`)"),
    InternalField("totalNonContiguousDeletedMessagesRange", "stretches of entries among those"),
    InternalField("messagesConsumedCounter", "messages that are there and acknowledged"),
    InternalField("numberOfEntriesSinceFirstNotAckedMessage", "entries behind the mark-delete "
                  "position"),
    InternalField("active", "whether somebody is connected"),
    InternalField("state", "Open"),
    *_missing(_NO_NODES, "waitingReadOp", "pendingReadOps", "subscriptionHavePendingRead",
              "subscriptionHavePendingReplayRead"),
    *_missing(_NO_CURSOR_LEDGER, "cursorLedger", "cursorLedgerLastEntry",
              "lastLedgerSwitchTimestamp", "properties"),
)  # fmt: skip


def internal_stats(root: Root, name: TopicName) -> Stats:
    """The fields of `topics stats-internal` for one partition.

    TopicNotFoundError if it is missing.
    """
    log = root.open(name.partitioned_topic)
    return _partition(log, partitions_of(log, name)[0], _states(root, log))


def partitioned_internal_stats(root: Root, name: TopicName) -> Stats:
    """The fields of `topics partitioned-stats-internal` for a topic."""
    log = root.open(name.partitioned_topic)
    states, count = _states(root, log), log.state.partitions
    partitions = {str(name.partition(each)): _partition(log, each, states) for each in range(count)}
    return {"metadata": {"partitions": count, "deleted": False}, "partitions": partitions}


def _states(root: Root, log: ManagedLedger) -> dict[TopicPartition, BrokerState]:
    return hosted_states(root, lambda topic_partition: topic_partition.topic == log.topic)


def _partition(
    log: ManagedLedger, partition: int, states: dict[TopicPartition, BrokerState]
) -> Stats:
    part, ledgers = log.state.partition(partition), log.ledgers(partition)
    entries = sum(each.entries for each in ledgers)
    state = states.get(TopicPartition(log.topic, partition))
    compacted = part.compacted
    kept = [] if compacted is None else [*compacted.ledgers]
    newest = ledgers[-1] if len(ledgers) else None
    return {
        "entriesAddedCounter": entries,
        "numberOfEntries": entries,
        "totalSize": part.size_bytes,
        **({} if newest is None else {"lastLedgerCreatedTimestamp": _created(newest)}),
        "lastConfirmedEntry": str(EARLIEST if newest is None else newest.last),
        "state": "LedgerOpened",
        "ledgers": list(map(_ledger, ledgers)),
        "cursors": {}
        if state is None
        else {name: _cursor(state, held) for name, held in sorted(state.subscriptions.items())},
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": kept[-1].ledger_id if kept else -1,
            "entries": sum(each.entries for each in kept) if kept else -1,
            "size": sum(each.size_bytes for each in kept) if kept else -1,
            "offloaded": False,
        },
        "properties": {key: str(value) for key, value in sorted(log.state.settings.items())},
    }


def _ledger(ledger: LedgerInfo) -> Stats:
    return {
        "ledgerId": ledger.ledger_id,
        "entries": ledger.entries,
        "size": ledger.size_bytes,
        "offloaded": False,
        "metadata": f"{ledger.file} from row {ledger.first_row}",
    }


def _cursor(state: BrokerState, held: Subscription) -> Stats:
    (row,) = state_rows.cursors(state, held, lambda _: None)
    ledgers, mark = state.ledgers_that_stay(), held.cursor.mark_delete_position
    behind = (
        each.entries - (mark.entry_id + 1 if each.ledger_id == mark.ledger_id else 0)
        for each in ledgers
        if each.ledger_id >= mark.ledger_id
    )
    messages = sum(each.messages for each in ledgers)
    return {
        "markDeletePosition": row["mark_delete_position"],
        "readPosition": row["read_position"],
        "individuallyDeletedMessages": row["individually_deleted_messages"],
        "totalNonContiguousDeletedMessagesRange": row[
            "total_non_contiguous_deleted_messages_range"
        ],
        "messagesConsumedCounter": messages - unread(state, held).count(state.ledgers),
        "numberOfEntriesSinceFirstNotAckedMessage": sum(behind),
        "active": bool(held.consumers),
        "state": "Open",
    }


def _created(ledger: LedgerInfo) -> str:
    moment = dt.datetime.fromtimestamp(ledger.max_publish_time_ms / 1000, dt.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
