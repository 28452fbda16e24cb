"""The broker's state as shards, and back.

Invariants: equal states give equal shards; a state steps alike before and after its way through
shards; small values stand in one shard a subscription, large sets in shards of their own, columns
that never change in shards that are written once. The form is versioned by `shards`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from pulsar_spark.errors import CorruptFileError
from pulsar_spark.hosting.delayed_format import delayed_from, delayed_value, sets_from, sets_value
from pulsar_spark.hosting.shards import ShardReader, ShardWriter, packed_array
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.positions.position import Position
from pulsar_spark.protocol.commands import SubscriptionType
from pulsar_spark.protocol.policies import (
    BacklogQuotaPolicy,
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
    TopicPolicies,
)
from pulsar_spark.protocol.redelivery_backoff import MultiplierRedeliveryBackoff
from pulsar_spark.selectors.auto_split_selector import AutoSplitSelector
from pulsar_spark.selectors.consistent_hashing_selector import ConsistentHashingSelector
from pulsar_spark.selectors.failover_selector import FailoverSelector
from pulsar_spark.selectors.shared_dispatch import SharedDispatch
from pulsar_spark.selectors.sticky_range_selector import StickyRangeSelector
from pulsar_spark.subscriptions.broker_state import BrokerState, Compaction, LedgerColumns
from pulsar_spark.subscriptions.consumer import Consumer
from pulsar_spark.subscriptions.due_messages import DueMessages
from pulsar_spark.subscriptions.redelivery_tracker import RedeliveryTracker
from pulsar_spark.subscriptions.subscription import Subscription

LEDGERS_A_BLOCK: Final = 256
_SELECTORS: Final[dict[str, Any]] = {
    "auto_split": AutoSplitSelector,
    "consistent_hashing": ConsistentHashingSelector,
    "sticky_range": StickyRangeSelector,
}
_NO_PRODUCERS: Final[dict[str, Any]] = {
    "producers": [], "waiting": [], "topic_epoch": None, "exclusive_producer": None,
}  # fmt: skip
"""Fields that older versions want to find: access modes are the log's, and not the broker's."""
_PLAIN_OF_CONSUMER: Final = (
    "name", "incarnation", "priority_level", "permits", "open_attempt", "says_delivered",
    "revision", "obeyed", "sequence", "redeliver_sequence", "is_blocked",
)  # fmt: skip


def to_shards(state: BrokerState) -> dict[str, bytes]:
    """Key -> shard, each of at most `shards.MAX_SHARD_BYTES`."""
    writer = ShardWriter()
    blocks: dict[int, list[Any]] = {}
    for ledger in state.ledgers:
        value = [*_ledger_value(ledger), state.columns[ledger.ledger_id].published_at_ms]
        blocks.setdefault(ledger.ledger_id // LEDGERS_A_BLOCK, []).append(value)
        _put_columns(writer, ledger.ledger_id, state.columns[ledger.ledger_id])
    for block, values in blocks.items():
        writer.put_value(f"ledgers/{block}", values)
    for subscription in state.subscriptions.values():
        key = _key_of(subscription.name)
        writer.put_value(key, _subscription_value(writer, key, subscription))
    columns = {
        str(ledger_id): [each.sticky_key_hashes is not None, each.publish_times_ms is not None]
        for ledger_id, each in state.columns.items()
        if each.sticky_key_hashes is not None or each.publish_times_ms is not None
    }
    writer.put_value("columns", columns)
    writer.put_value(
        "topic",
        {
            "topic": state.topic,
            "partition": state.partition,
            "policies": _plain(state.policies),
            "now_ms": state.now_ms,
            "hidden": writer.put_set("hidden", state.hidden),
            **delayed_value(writer, state.delayed),
            "producers": _NO_PRODUCERS,
            "was_subscribed": state.was_subscribed,
            "trimming": sorted(state.trimming),
            "quota_exceeded": state.quota_exceeded,
            "blocks": sorted(blocks),
            "subscriptions": list(state.subscriptions),
            **({"next_epoch": state.next_epoch} if state.next_epoch else {}),
            **({"next_attempt": state.next_attempt} if state.next_attempt else {}),
            **_compaction_value(state.compaction),
        },
    )
    return writer.shards


def from_shards(shards: Mapping[str, bytes]) -> BrokerState:
    """Read `to_shards`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
    reader = ShardReader(shards)
    value = reader.value("topic")
    try:
        policies = value["policies"]
        policies["backlog_quota_policy"] = BacklogQuotaPolicy(policies["backlog_quota_policy"])
        state = BrokerState(
            value["topic"], value["partition"], TopicPolicies(**policies), value["now_ms"]
        )
        ledgers = [each for block in value["blocks"] for each in reader.value(f"ledgers/{block}")]
        state.ledgers = LedgerList(_ledger(each[:-1]) for each in ledgers)
        columns = reader.value("columns")
        for *ledger, published_at_ms in ledgers:
            state.columns[ledger[0]] = _columns(reader, ledger[0], published_at_ms, columns)
        state.hidden = reader.set("hidden", value["hidden"])
        state.delayed = delayed_from(reader, value)
        state.was_subscribed = value["was_subscribed"]
        state.trimming = frozenset(value["trimming"])
        state.quota_exceeded = value["quota_exceeded"]
        state.next_epoch = value.get("next_epoch", 0)
        state.next_attempt = value.get("next_attempt", 0)
        if "compaction" in value:
            horizon, kept, trimmed = value["compaction"]
            state.compaction = Compaction(
                Position.parse(horizon), frozenset(kept), frozenset(trimmed)
            )
        for name in value["subscriptions"]:
            key = _key_of(name)
            state.subscriptions[name] = _subscription(reader, key, reader.value(key))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise CorruptFileError(f"the broker's state is damaged: {error!r}") from error
    return state


def _compaction_value(compaction: Compaction) -> dict[str, Any]:
    if compaction.horizon is None:
        return {}
    held = [sorted(each) for each in (compaction.ledger_ids, compaction.trimmed)]
    return {"compaction": [str(compaction.horizon), *held]}


# -- ledgers -------------------------------------------------------------------------------------


def _ledger_value(ledger: LedgerInfo) -> list[Any]:
    return [
        ledger.ledger_id, ledger.partition, ledger.file, ledger.first_row,
        ledger.batch_sizes.to_json(), ledger.size_bytes, ledger.min_publish_time_ms,
        ledger.max_publish_time_ms, ledger.max_deliver_at_ms,
    ]  # fmt: skip


def _ledger(value: list[Any]) -> LedgerInfo:
    ledger_id, partition, file, first_row, sizes, size_bytes, first_ms, last_ms, deliver_ms = value
    return LedgerInfo(
        ledger_id,
        partition,
        file,
        first_row,
        BatchSizes.from_json(sizes),
        size_bytes,
        first_ms,
        last_ms,
        deliver_ms,
    )


def _put_columns(writer: ShardWriter, ledger_id: int, columns: LedgerColumns) -> None:
    for name in ("sticky_key_hashes", "publish_times_ms"):
        values = getattr(columns, name)
        if values is not None:
            if name not in columns.packed:
                columns.packed[name] = packed_array(values)
            writer.put_packed(f"columns/{ledger_id}/{name}", columns.packed[name])


def _columns(
    reader: ShardReader, ledger_id: int, published_at_ms: int, present: Mapping[str, Any]
) -> LedgerColumns:
    hashes, times = present.get(str(ledger_id), (False, False))
    keys = {
        name: f"columns/{ledger_id}/{name}"
        for name, is_there in (("sticky_key_hashes", hashes), ("publish_times_ms", times))
        if is_there
    }
    return LedgerColumns(
        published_at_ms,
        **{name: reader.array(key) for name, key in keys.items()},
        packed={name: reader.packed(key) for name, key in keys.items()},
    )


# -- subscriptions -------------------------------------------------------------------------------


def _key_of(name: str) -> str:
    return f"subscription/{quote(name, safe='')}"


def _subscription_value(writer: ShardWriter, key: str, held: Subscription) -> dict[str, Any]:
    selector = held.selector
    kind = next((k for k, c in _SELECTORS.items() if isinstance(selector, c)), None)
    return {
        "name": held.name,
        "type": held.subscription_type.value,
        "durable": held.durable,
        "cursor": _cursor_value(writer, f"{key}/cursor", held.cursor),
        "origin": _cursor_value(writer, f"{key}/origin", held.origin),
        "unheard": None
        if held.unheard is None
        else _cursor_value(writer, f"{key}/unheard", held.unheard),
        "key_shared_policy": _plain(held.key_shared_policy),
        "epoch": held.epoch,
        **({"first_attempt": held.first_attempt} if held.first_attempt else {}),
        "read_position": list(held.read_position),
        "announced": list(held.announced),
        "replay": writer.put_set(f"{key}/replay", held.replay),
        "partial_acks": writer.put_set(f"{key}/partial_acks", held.partial_acks),
        "waiting": sets_value(writer, f"{key}/waiting", held.waiting.instants),
        "base_attempt": held.tracker.base_attempt,
        "highest_attempt": held.tracker.highest_attempt,
        "attempts": sets_value(writer, f"{key}/attempts", held.tracker.attempts),
        "counts": sets_value(writer, f"{key}/counts", held.tracker.counts),
        "consumers": [
            _consumer_value(writer, f"{key}/consumer/{quote(each.name, safe='')}", each)
            for each in held.consumers.values()
        ],
        "active": held.active,
        "failover": None if held.failover is None else held.failover.to_json_value(),
        "shared": held.shared.to_json_value(),
        "selector": None if selector is None else [kind, selector.to_json_value()],
        "incarnations": [[name, number] for name, number in held.incarnations.items()],
        "is_blocked": held.is_blocked,
        **({"read_compacted": True} if held.read_compacted else {}),
    }


def _subscription(reader: ShardReader, key: str, value: Mapping[str, Any]) -> Subscription:
    selector = value["selector"]
    failover = value["failover"]
    held = Subscription(
        value["name"],
        SubscriptionType(value["type"]),
        value["durable"],
        _cursor(reader, f"{key}/cursor", value["cursor"]),
        _cursor(reader, f"{key}/origin", value["origin"]),
        _key_shared_policy(value["key_shared_policy"]),
        value["epoch"],
        value.get("first_attempt", 0),
        Position(*value["read_position"]),
        reader.set(f"{key}/replay", value["replay"]),
        DueMessages(sets_from(reader, f"{key}/waiting", value["waiting"])),
        RedeliveryTracker(
            value["base_attempt"],
            value["highest_attempt"],
            sets_from(reader, f"{key}/attempts", value["attempts"]),
            sets_from(reader, f"{key}/counts", value["counts"]),
        ),
        active=value["active"],
        failover=None if failover is None else FailoverSelector.from_json_value(failover),
        shared=SharedDispatch.from_json_value(value["shared"]),
        selector=None if selector is None else _SELECTORS[selector[0]].from_json_value(selector[1]),
        incarnations=dict(value["incarnations"]),
        partial_acks=reader.set(f"{key}/partial_acks", value["partial_acks"]),
        is_blocked=value["is_blocked"],
        announced=Position(*value["announced"]),
        read_compacted=value.get("read_compacted", False),
    )
    if value["unheard"] is not None:
        held.unheard = _cursor(reader, f"{key}/unheard", value["unheard"])
    for each in value["consumers"]:
        consumer = _consumer(reader, f"{key}/consumer/{quote(each['name'], safe='')}", each)
        held.consumers[consumer.name] = consumer
    return held


def _consumer_value(writer: ShardWriter, key: str, held: Consumer) -> dict[str, Any]:
    value = {name: getattr(held, name) for name in _PLAIN_OF_CONSUMER}
    return value | {
        "options": _plain(held.options),
        "committed": list(held.committed),
        "open_from": list(held.open_from),
        "pending": sets_value(writer, f"{key}/pending", held.pending),
        "timeouts": sets_value(writer, f"{key}/timeouts", held.timeouts.instants),
        "delivered": writer.put_set(f"{key}/delivered", held.delivered),
        "revoked": writer.put_set(f"{key}/revoked", held.revoked),
        "draining": writer.put_set(f"{key}/draining", held.draining),
    }


def _consumer(reader: ShardReader, key: str, value: Mapping[str, Any]) -> Consumer:
    return Consumer(
        **{name: value[name] for name in _PLAIN_OF_CONSUMER},
        options=_options(value["options"]),
        committed=Position(*value["committed"]),
        open_from=Position(*value["open_from"]),
        pending=sets_from(reader, f"{key}/pending", value["pending"]),
        timeouts=DueMessages(sets_from(reader, f"{key}/timeouts", value["timeouts"])),
        delivered=reader.set(f"{key}/delivered", value["delivered"]),
        revoked=reader.set(f"{key}/revoked", value["revoked"]),
        draining=reader.set(f"{key}/draining", value["draining"]),
    )


# -- parts ---------------------------------------------------------------------------------------


def _cursor_value(writer: ShardWriter, key: str, cursor: Cursor) -> list[Any]:
    return [str(cursor.mark_delete_position), writer.put_set(key, cursor.individually_deleted)]


def _cursor(reader: ShardReader, key: str, value: list[Any]) -> Cursor:
    return Cursor(Position.parse(value[0]), reader.set(key, value[1]))


@lru_cache(maxsize=1024)
def _plain(policy: TopicPolicies | KeySharedPolicy | ConsumerOptions) -> dict[str, Any]:
    """The JSON of a policy; cached, as the same ones are written again and again."""
    return asdict(policy)


def _key_shared_policy(value: Mapping[str, Any]) -> KeySharedPolicy:
    ranges = tuple((low, high) for low, high in value["ranges"])
    mode = KeySharedMode(value["mode"])
    return KeySharedPolicy(mode, value["allow_out_of_order_delivery"], ranges)


def _options(value: dict[str, Any]) -> ConsumerOptions:
    kinds = {
        "negative_ack_redelivery_backoff": MultiplierRedeliveryBackoff,
        "ack_timeout_redelivery_backoff": MultiplierRedeliveryBackoff,
        "dead_letter_policy": DeadLetterPolicy,
    }
    made = {
        name: kinds[name](**held) if name in kinds and held is not None else held
        for name, held in value.items()
    }
    return ConsumerOptions(**made)


assert {field.name for field in fields(Consumer)} == {
    *_PLAIN_OF_CONSUMER, "options", "committed", "open_from", "pending", "timeouts", "delivered",
    "revoked", "draining",
}, "a field of Consumer is not stored"  # fmt: skip
