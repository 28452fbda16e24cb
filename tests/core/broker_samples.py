"""Ledgers, commands and states that the broker's tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    CreateSubscription,
    InitialPosition,
    LedgerAdded,
    Rejection,
    Report,
    Seek,
    Subscribe,
    SubscriptionType,
    Unsubscribe,
)
from pulsar_spark.broker.protocol.policies import (
    ConsumerOptions,
    DeadLetterPolicy,
    MultiplierRedeliveryBackoff,
    TopicPolicies,
)
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.subscriptions.breaker import Breaker
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.delivery_counts import DeliveryCounts
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.model.positions.position import LATEST
from pulsar_spark.model.positions.position_set import PositionSet

TOPIC = "persistent://public/default/orders"
SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED
EXCLUSIVE, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER


_KINDS = {
    "sticky_key_hashes": np.int32, "deliver_at_ms": np.int64, "publish_times_ms": np.int64
}  # fmt: skip
"""As they come from a file."""


def ledger(
    ledger_id: int, sizes: Iterable[int] = (1,), at_ms: int = 0, **columns: Any
) -> LedgerAdded:
    """A ledger whose messages have ten bytes each."""
    batch_sizes = BatchSizes.of(sizes)
    size_bytes = 10 * batch_sizes.messages
    info = LedgerInfo(ledger_id, 0, "f", 0, batch_sizes, size_bytes, at_ms, at_ms)
    arrays: dict[str, Any] = {
        name: value if name == "hidden" else np.array(value, _KINDS[name])
        for name, value in columns.items()
    }
    return LedgerAdded(info, at_ms, **arrays)


def subscribe(name: str, kind: SubscriptionType = SHARED, **options: Any) -> Subscribe:
    """A consumer of the subscription `s`, from the earliest message, with a hundred permits."""
    given: dict[str, Any] = {
        "permits": 100,
        "initial_position": InitialPosition.EARLIEST,
        "incarnation": 1,
    }
    return Subscribe("s", name, subscription_type=kind, **(given | options))


def report(name: str, acked: PositionSet | None = None, **options: Any) -> Report:
    """What `name` says in its first incarnation."""
    cursor = Cursor().acknowledge(acked) if acked is not None else Cursor()
    given: dict[str, Any] = {"incarnation": 1, "permits": 100, "acknowledged": cursor}
    return Report("s", name, **(given | options))


def by_sink(acknowledged: Cursor, **options: Any) -> Report:
    """What a sink adds, whoever has the messages."""
    return Report("s", epoch=None, acknowledged=acknowledged, **options)


def is_quiet(ready: Ready) -> bool:
    """Whether the host has nothing to do but to wait."""
    return replace(ready, next_due_ms=None, backlog_quota=None) == Ready()


def entries(ledger_id: int, *entry_ids: int) -> PositionSet:
    return PositionSet.of((ledger_id, entry_id) for entry_id in entry_ids)


def granted_to(ready: Ready, name: str) -> PositionSet:
    """All that a consumer was granted by one step."""
    result = PositionSet()
    for grant in ready.grants:
        if grant.consumer == name:
            result = result.union(grant.messages)
    return result


def run(
    batches: Sequence[Sequence[Command]], policies: TopicPolicies | None = None
) -> tuple[BrokerState, Ready]:
    """One step a millisecond; the last one's result."""
    state, ready = BrokerState(TOPIC, -1, policies or TopicPolicies()), Ready()
    for now_ms, commands in enumerate(batches):
        state, ready = step(state, commands, now_ms)
        state.check()
    return state, ready


def everything() -> BrokerState:
    """A state in which every field has something in it."""
    options = ConsumerOptions(
        negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(1_000, 60_000),
        ack_timeout_ms=10_000,
        ack_timeout_redelivery_backoff=MultiplierRedeliveryBackoff(500, 5_000),
        dead_letter_policy=DeadLetterPolicy(3, "dead", "again", "graveyard"),
    )
    hidden = PositionSet.of_batch((1, 2), 4, 0b1000)
    first = ledger(1, [1, 1, 4, 1, 1], sticky_key_hashes=range(100, 108), hidden=hidden)
    second = ledger(3, [1] * 6, deliver_at_ms=[0, 0, 9_000, 0, 9_000, 0], publish_times_ms=[5] * 6)
    state, _ = step(
        BrokerState(TOPIC, 2, TopicPolicies(message_ttl_ms=600_000)),
        [
            first,
            second,
            subscribe("a", KEY_SHARED, options=options),
            Subscribe(
                "shared/ü", "one", 7, SHARED, initial_position=InitialPosition.EARLIEST, permits=3
            ),
            Subscribe("failover", "x", 1, FAILOVER, permits=5),
            CreateSubscription("gone"),
            Unsubscribe("gone"),
        ],
        10,
    )
    state, _ = step(state, [Seek("failover", LATEST)], 15)
    held = state.subscriptions["s"].consumers["a"].pending[0]
    seen = held.prefix(4, state.ledgers)
    state, _ = step(
        state,
        [
            report(
                "a", entries(1, 0), delivered={0: seen}, rejected=(Rejection(0, entries(1, 1)),)
            ),
            subscribe("b", KEY_SHARED, options=options),
            Subscribe("failover", "w", 1, FAILOVER, permits=5),
            Report("failover", "x", 1, 1, acknowledged=Cursor().acknowledge(entries(9, 0))),
        ],
        20,
    )
    shared = state.subscriptions["shared/ü"]
    trial, tried = shared.held.prefix(1, state.ledgers), entries(1, 3)
    shared.breaker = Breaker((), 10, 2, 30, 20, 4, 1, 1, trial, tried)
    shared.counts = DeliveryCounts(9, 90, 2, 1, 3)
    state.subscriptions["failover"].breaker = Breaker(((7, 0), (5, 2)))
    return state
