"""What is drawn once for a schedule: how its consumers subscribe, and what the topic allows."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_spark.broker.protocol.commands import InitialPosition, SubscriptionType
from pulsar_spark.broker.protocol.policies import (
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    TopicPolicies,
)
from tests.simulation.lots import Lots

THIRDS = ((0, 20_000), (20_001, 44_000), (44_001, 65_535))
"""Sticky ranges that leave no slot without an owner, once all three are there."""


@dataclass
class Setting:
    """Of one schedule. `kind` changes when all have left, `policies` when an admin says so."""

    kind: SubscriptionType
    calm: bool
    """Nobody rejects, seeks or dies."""
    manual: bool
    """Consumers acknowledge by hand, and not whatever their query has committed."""
    durable: bool
    initial_position: InitialPosition
    mode: KeySharedMode
    allow_out_of_order_delivery: bool
    policies: TopicPolicies
    consumer_options: ConsumerOptions
    has_witness: bool
    """Another subscription, of which nobody acknowledges anything."""
    alone: bool
    """One consumer at a time, which comes again."""

    @property
    def rejects_from(self) -> int:
        """Of ten things that a user may do, the first that is a rejection."""
        return 3 if self.policies.breaker_threshold else 7

    @property
    def is_ordered(self) -> bool:
        """Whether every key comes in order."""
        return self.calm and not self.allow_out_of_order_delivery

    def key_shared_policy(self, third: int) -> KeySharedPolicy:
        ranges = (THIRDS[third],) if self.mode is KeySharedMode.STICKY else ()
        return KeySharedPolicy(self.mode, self.allow_out_of_order_delivery, ranges)


def drawn_setting(lots: Lots) -> Setting:
    calm, manual, durable = lots.one_in(3), lots.one_in(2), not lots.one_in(5)
    policies = _policies(lots)
    if policies.breaker_threshold:  # somebody has to say that messages fail
        calm, manual = False, True
    options = ConsumerOptions() if calm else _consumer_options(lots, manual=manual)
    return Setting(
        kind=lots.draw_from(tuple(SubscriptionType)),
        calm=calm,
        manual=manual,
        durable=durable,
        initial_position=InitialPosition.LATEST if lots.one_in(5) else InitialPosition.EARLIEST,
        mode=KeySharedMode.STICKY if lots.one_in(4) else KeySharedMode.AUTO_SPLIT,
        allow_out_of_order_delivery=lots.one_in(6),
        policies=policies,
        consumer_options=options,
        has_witness=lots.one_in(5),
        alone=not durable and lots.one_in(2),
    )


def _policies(lots: Lots) -> TopicPolicies:
    return TopicPolicies(
        max_unacked_messages_per_consumer=lots.draw_from((50_000, 50_000, 4)),
        max_unacked_messages_per_subscription=lots.draw_from((200_000, 200_000, 6)),
        retention_time_ms=lots.draw_from((-1, 0, 0, 2_000)),
        retention_size_bytes=lots.draw_from((-1, 0, 0, 25)),
        dispatcher_max_round_robin_batch_size=lots.draw_from((20, 1, 2)),
        key_shared_look_ahead=lots.draw_from((20_000, 3)),
        key_shared_consistent_hashing=lots.one_in(2),
        failover_consistent_hashing=lots.one_in(3),
        batch_index_acknowledgment=not lots.one_in(6),
        delayed_delivery_tick_ms=lots.draw_from((1_000, 1_000, 100)),
        message_ttl_ms=50_000 if lots.one_in(8) else 0,
        breaker_threshold=lots.draw_from((0, 0, 0, 1, 30)),
        breaker_window=lots.draw_from((1, 2, 4)),
        breaker_delay_ms=lots.draw_from((100, 1_000)),
        breaker_max_delay_ms=2_000,
    )


def _consumer_options(lots: Lots, *, manual: bool) -> ConsumerOptions:
    backoff = MultiplierRedeliveryBackoff(100, 1_000)
    return ConsumerOptions(
        negative_ack_redelivery_delay_ms=lots.draw_from((0, 1_000)),
        negative_ack_redelivery_backoff=backoff if lots.one_in(3) else None,
        ack_timeout_ms=lots.draw_from((0, 0, 1_500)) if manual else 0,
        ack_timeout_redelivery_backoff=backoff if lots.one_in(3) else None,
        dead_letter_policy=DeadLetterPolicy(lots.draw(1, 2)) if lots.one_in(3) else None,
    )
