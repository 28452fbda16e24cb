"""The settings of a topic's and a consumer's owners: every bound has its name here.

Invariants: values only, with Pulsar's defaults; 0 switches a limit off unless it says otherwise.
Follows `TopicPolicies`, `ServiceConfiguration` and `ConsumerConfigurationData`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from pulsar_spark.errors import InvalidOptionError

INFINITE: Final = -1
DEFAULT_MAX_REDELIVER_COUNT: Final = 16
ALL_SUBSCRIPTION_TYPES: Final = "Exclusive,Shared,Failover,Key_Shared"

_MAX_INT: Final = 2**31 - 1
_INTS: Final = 2**32


class BacklogQuotaPolicy(str, Enum):
    """The effect of an exceeded backlog quota."""

    PRODUCER_REQUEST_HOLD = "producer_request_hold"
    PRODUCER_EXCEPTION = "producer_exception"
    CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"


class InactiveTopicDeleteMode(str, Enum):
    """The condition of an inactive topic: no subscriptions, or all of them caught up."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    SUBSCRIPTIONS_CAUGHT_UP = "delete_when_subscriptions_caught_up"


class KeySharedMode(str, Enum):
    """The owner of the choice of keys: the broker, or the consumer."""

    AUTO_SPLIT = "AUTO_SPLIT"
    STICKY = "STICKY"


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """`ranges`, (low, high) both included, are given with STICKY only."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    allow_out_of_order_delivery: bool = False
    ranges: tuple[tuple[int, int], ...] = ()

    def matches(self, other: KeySharedPolicy) -> bool:
        """True if two consumers with these can share a subscription."""
        return replace(self, ranges=other.ranges) == other


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """A message is delivered `max_redeliver_count` + 1 times.

    No dead letter topic: the default one. No retry letter topic: messages to consume later are
    delivered again after their delay. InvalidOptionError if the count is below 1.
    """

    max_redeliver_count: int = DEFAULT_MAX_REDELIVER_COUNT
    dead_letter_topic: str = ""
    retry_letter_topic: str = ""
    initial_subscription_name: str = ""

    def __post_init__(self) -> None:
        if self.max_redeliver_count < 1:
            raise InvalidOptionError("MaxRedeliverCount must be > 0.")


@dataclass(frozen=True, slots=True)
class MultiplierRedeliveryBackoff:
    """`min_delay_ms` times `multiplier` to the power of the count, `max_delay_ms` at most.

    Follows Pulsar's to the millisecond: in doubles, with Java's casts, so that nothing overflows
    whatever the count. InvalidOptionError if a bound is out of order.
    """

    min_delay_ms: int = 10_000
    max_delay_ms: int = 600_000
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        if self.min_delay_ms < 0:
            raise InvalidOptionError("min delay time must be >= 0")
        if self.max_delay_ms < self.min_delay_ms:
            raise InvalidOptionError("maxDelayMs must be >= minDelayMs")
        if not self.multiplier > 1:
            raise InvalidOptionError("multiplier must be > 1")

    def next(self, redelivery_count: int) -> int:
        """The delay in milliseconds after so many redeliveries; 0 before the first."""
        if redelivery_count <= 0 or self.min_delay_ms <= 0:
            return self.min_delay_ms
        if redelivery_count > self._greatest_power():
            return self.max_delay_ms
        delay = self.min_delay_ms * math.pow(self.multiplier, redelivery_count)
        return self.max_delay_ms if delay >= self.max_delay_ms else int(delay)

    def _greatest_power(self) -> int:
        """The exponent that reaches the longest delay. As in Java, one beyond 2**31 - 1 wraps."""
        ratio = float(self.max_delay_ms) / self.min_delay_ms
        power = math.log(ratio) / math.log(self.multiplier)
        return (min(int(power), _MAX_INT) + 1 + _INTS // 2) % _INTS - _INTS // 2


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The settings with which a consumer subscribes; times in milliseconds."""

    negative_ack_redelivery_delay_ms: int = 60_000
    negative_ack_redelivery_backoff: MultiplierRedeliveryBackoff | None = None
    ack_timeout_ms: int = 0
    ack_timeout_redelivery_backoff: MultiplierRedeliveryBackoff | None = None
    dead_letter_policy: DeadLetterPolicy | None = None
    ack_timeout_tick_ms: int = 0
    """Timeouts come at multiples of it; 0: at their own moments."""
    prefetches: bool = False
    """Messages are delivered before a report names them: `delivered` of its reports adds to what
    earlier ones named, and what nobody named may have been delivered too if the consumer lapses."""


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """A topic's policies, and the broker's settings that bear on it."""

    retention_time_ms: int = 0
    retention_size_bytes: int = 0
    message_ttl_ms: int = 0
    backlog_quota_bytes: int = INFINITE
    backlog_quota_time_ms: int = INFINITE
    backlog_quota_policy: BacklogQuotaPolicy = BacklogQuotaPolicy.PRODUCER_REQUEST_HOLD
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_producers_per_topic: int = 0
    batch_index_acknowledgment: bool = True
    delayed_delivery: bool = True
    delayed_delivery_tick_ms: int = 1_000
    delayed_delivery_strict: bool = True
    dispatcher_max_round_robin_batch_size: int = 20
    key_shared_consistent_hashing: bool = True
    key_shared_look_ahead_per_consumer: int = 2_000
    key_shared_look_ahead: int = 20_000
    failover_consistent_hashing: bool = False
    auto_subscription_creation: bool = True
    subscription_types_enabled: str = ALL_SUBSCRIPTION_TYPES
    """With commas between, in that order."""
    breaker_threshold: int = 0
    """Per cent of a subscription's latest outcomes; 0: it has no breaker."""
    breaker_window: int = 20
    breaker_delay_ms: int = 1_000
    breaker_max_delay_ms: int = 300_000
    keep_without_subscription: bool = False
    """For a dead-letter topic: it keeps its messages until somebody subscribes durably."""
    keep_acknowledged: bool = False
    """For a topic that a client made, unless a retention is set: a seek back finds what was
    acknowledged lately (`retention.KEPT_FOR_SEEKS_MS`)."""

    @property
    def delayed_delivery_ahead_ms(self) -> int:
        """Milliseconds by which a delayed message may come before its time."""
        return 0 if self.delayed_delivery_strict else self.delayed_delivery_tick_ms

    @property
    def has_backlog_quota(self) -> bool:
        return max(self.backlog_quota_bytes, self.backlog_quota_time_ms) != INFINITE
