"""The options of a consumer as the command by which it subscribes.

Invariants: Pulsar's defaults, but for the receiver queue, which is a micro-batch's; a dead letter
policy is there if any option of it is. Follows Pulsar's `ConsumerConfigurationData`.
"""

from __future__ import annotations

from pulsar_spark.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.options import Options
from pulsar_spark.policies import (
    DEFAULT_MAX_REDELIVER_COUNT,
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
)


def subscribe_command(options: Options, consumer: str, incarnation: int) -> Subscribe:
    """The command, without what its sender adds: permits, request, whether it resumes."""
    return Subscribe(
        options["subscriptionName"],
        consumer,
        incarnation,
        SubscriptionType(options["subscriptionType"]),
        durable=options["subscriptionMode"] == "Durable",
        initial_position=InitialPosition(options["subscriptionInitialPosition"]),
        priority_level=options["priorityLevel"],
        key_shared_policy=KeySharedPolicy(
            KeySharedMode(options["keySharedMode"]),
            options["allowOutOfOrderDelivery"],
            options["keySharedRanges"],
        ),
        options=ConsumerOptions(
            negative_ack_redelivery_delay_ms=options["negativeAckRedeliveryDelay"],
            negative_ack_redelivery_backoff=options["negativeAckRedeliveryBackoff"],
            ack_timeout_ms=options["ackTimeout"],
            ack_timeout_redelivery_backoff=options["ackTimeoutRedeliveryBackoff"],
            dead_letter_policy=dead_letter_policy(options),
        ),
    )


def permits_of(options: Options, partitions: int) -> int:
    """How many messages of one partition the consumer may hold, of so many partitions."""
    total: int = options["maxTotalReceiverQueueSizeAcrossPartitions"]
    each: int = options["receiverQueueSize"]
    return max(1, min(each, total // max(1, partitions)))


def dead_letter_policy(options: Options) -> DeadLetterPolicy | None:
    """None unless an option asks for dead letters or retries."""
    named = ("maxRedeliverCount", "deadLetterTopic", "retryLetterTopic", "initialSubscriptionName")
    if not options["enableRetry"] and not any(options.has(name) for name in named):
        return None
    most = options["maxRedeliverCount"]
    return DeadLetterPolicy(
        DEFAULT_MAX_REDELIVER_COUNT if most is None else most,
        options["deadLetterTopic"] or "",
        options["retryLetterTopic"] or "",
        options["initialSubscriptionName"] or "",
    )
