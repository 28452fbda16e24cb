"""The rows of the views that are no messages: of the broker's states, and of the topics' logs.

Invariants: a row has its view's own columns, times in milliseconds; what costs by message or by
hole is counted on bitmaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from pulsar_spark.broker.subscriptions.breaker import Breaker
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.inspect.views.dispatch_history import Batch
from pulsar_spark.connector.inspect.views.message_sets import LeaseEnds, delayed_of, unread
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.log.producer_registry import ProducerRegistry
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition

Row = dict[str, Any]
Rows = Callable[[BrokerState, Subscription, LeaseEnds], Iterator[Row]]


def subscriptions(state: BrokerState, held: Subscription, _ends: LeaseEnds) -> Iterator[Row]:
    rest = unread(state, held)
    oldest = state.ledgers.get(rest.ledger_ids[0]) if rest else None
    policy = held.key_shared_policy
    count = _counter(state, rest)
    yield {
        "subscription_type": held.subscription_type.value,
        "is_durable": held.durable,
        "msg_backlog": count(rest),
        "unacked_messages": sum(
            held.unacked_messages_of(each, state.ledgers) for each in held.consumers.values()
        ),
        "msg_delayed": count(delayed_of(state, held)),
        "msg_waiting": count(held.waiting.messages),
        "msg_in_replay": count(held.replay),
        "earliest_msg_publish_time_in_backlog": oldest and oldest.min_publish_time_ms,
        "active_consumer_name": held.active or None,
        "consumers": len(held.consumers),
        "blocked_subscription_on_unacked_msgs": held.is_blocked,
        "allow_out_of_order_delivery": policy.allow_out_of_order_delivery,
        "key_shared_mode": policy.mode.value,
        "read_compacted": held.read_compacted,
        "epoch": held.epoch,
        **_breaker(held.breaker, state.now_ms),
    }


def _breaker(breaker: Breaker, now_ms: int) -> Row:
    if breaker.is_closed:
        return {"breaker": breaker.phase(now_ms).value}
    return {
        "breaker": breaker.phase(now_ms).value,
        "breaker_opened": breaker.opened_ms,
        "breaker_failed_trials": breaker.failed_trials,
        "breaker_next_trial": None if breaker.trial else breaker.next_trial_ms,
    }


def cursors(state: BrokerState, held: Subscription, _ends: LeaseEnds) -> Iterator[Row]:
    cursor = held.cursor
    deleted = cursor.individually_deleted
    yield {
        "mark_delete_position": str(cursor.mark_delete_position),
        "read_position": str(held.read_position),
        "individually_deleted_messages": str(deleted) if deleted else "",
        "total_non_contiguous_deleted_messages_range": _stretches(deleted),
        "holes": _holes(cursor, state.ledgers),
        "cursor_bytes": len(cursor.to_bytes()),
    }


def consumers(state: BrokerState, held: Subscription, ends: LeaseEnds) -> Iterator[Row]:
    rest = unread(state, held)
    slots = {} if held.selector is None else held.selector.ranges_of_all()
    for each in held.consumers.values():
        delivered = each.delivered.intersection(rest).count(state.ledgers)
        yield _consumer(each, ends(Lease(held.name, each.name, each.incarnation))) | {
            "unacked_messages": held.unacked_messages_of(each, state.ledgers),
            "delivered_messages": delivered if each.reports_delivered else None,
            "key_hash_ranges": [f"{low}-{high}" for low, high in slots.get(each.name, ())],
        }


OF_SUBSCRIPTIONS: Final[dict[str, Rows]] = {
    "subscriptions": subscriptions, "cursors": cursors, "consumers": consumers,
}  # fmt: skip


def ledgers(topic_partition: TopicPartition, known: Iterable[LedgerInfo]) -> Iterator[Row]:
    for each in known:
        yield {
            "topic": topic_partition.topic,
            "partition": topic_partition.partition,
            "ledger_id": each.ledger_id,
            "entries": each.entries,
            "messages": each.messages,
            "size": each.size_bytes,
            "min_publish_time": each.min_publish_time_ms,
            "max_publish_time": each.max_publish_time_ms,
            "max_deliver_at": each.max_deliver_at_ms,
            "file": each.file,
            "first_row": each.first_row,
        }


def producers(log: ManagedLedger, requested: Callable[[TopicPartition], bool]) -> Iterator[Row]:
    registry = ProducerRegistry.from_json_value(log.state.producers)
    waiting = {each.name for each in registry.waiting}
    claimed: Mapping[str, Row] = {
        name: {
            "access_mode": each.access_mode.value,
            "is_waiting": name in waiting,
            "producer_epoch": each.epoch,
            "topic_epoch": each.topic_epoch,
            "lease_ends": each.lapses_ms,
        }
        for name, each in registry.present.items()
    }
    seen = set()
    for partition, sequence_ids in sorted(log.state.sequence_ids.items()):
        if requested(TopicPartition(log.topic, partition)):
            for name, last in sorted(sequence_ids.items()):
                seen.add(name)
                row = {"topic": log.topic, "partition": partition, "producer_name": name}
                yield row | {"last_sequence_id": last} | claimed.get(name, {})
    for name, claim in claimed.items():
        if name not in seen:
            yield {"topic": log.topic, "producer_name": name} | claim


def batches(known: Iterable[Batch]) -> Iterator[Row]:
    for each in known:
        yield {
            "batch": each.number,
            "time": each.offset.now_ms,
            "written": each.written_ms,
            "commands_up_to": each.offset.commands[1],
            "topic_partitions": each.topic_partitions,
            "quarantined": each.quarantine,
            "written_anew": sum(part.is_renewed for part in each.offset.parts.values()),
        }


def _consumer(consumer: Consumer, lease_ends_ms: int | None) -> Row:
    options = consumer.options
    dead = options.dead_letter_policy
    return {
        "consumer_name": consumer.name,
        "incarnation": consumer.incarnation,
        "priority_level": consumer.priority_level,
        "is_active": consumer.has_open_grant,
        "available_permits": consumer.permits,
        "blocked_consumer_on_unacked_msgs": consumer.is_blocked,
        "ack_timeout_ms": options.ack_timeout_ms,
        "negative_ack_redelivery_delay_ms": options.negative_ack_redelivery_delay_ms,
        "max_redeliver_count": dead and dead.max_redeliver_count,
        "dead_letter_topic": (dead and dead.dead_letter_topic) or None,
        "lease_ends": lease_ends_ms,
    }


def _counter(state: BrokerState, rest: PositionSet) -> Callable[[PositionSet], int]:
    """A function that counts the messages of the backlog in a set."""
    return lambda messages: messages.intersection(rest).count(state.ledgers)


def _stretches(deleted: PositionSet) -> int:
    """Runs of entries, of which some may be acknowledged in part only."""
    total = 0
    for ledger_id in deleted.ledger_ids:
        held = [*deleted.whole_entries(ledger_id), *deleted.partial_entries(ledger_id)]
        entries = np.sort(np.array(held, np.int64))
        total += 1 + int(np.count_nonzero(np.diff(entries) != 1))
    return total


def _holes(cursor: Cursor, known: LedgerList) -> int:
    """Messages before the last entry of which some are acknowledged, that are not."""
    deleted = cursor.individually_deleted
    if not deleted:
        return 0
    newest = deleted.ledger_ids[-1]
    whole, parts = deleted.whole_entries(newest), deleted.partial_entries(newest)
    last = Position(newest, max([*parts, *([whole.max()] if whole else [])]))
    return cursor.unread(known).up_to(last).count(known)
