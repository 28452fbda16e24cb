"""The options of a consumer as the command by which it subscribes.

Invariants: Pulsar's defaults, but for the receiver queue, which is a micro-batch's; a dead letter
policy is there if any option of it is. Follows Pulsar's `ConsumerConfigurationData`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pulsar_spark.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.policies import (
    DEFAULT_MAX_REDELIVER_COUNT,
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
)

if TYPE_CHECKING:
    from pulsar_spark.options import Options

MIN_ACK_TIMEOUT_MS: Final = 1_000
MIN_LEASE_MS: Final = 1_000


def check_consumer_options(options: Options, consumers_own: Iterable[str]) -> None:
    """InvalidOptionError where they don't go together; `consumers_own` need a subscriptionName."""
    if not options.has("subscriptionName"):
        for name in consumers_own:
            if options.has(name):
                raise InvalidOptionError(
                    f"Option {name} belongs to a consumer: give subscriptionName too, or leave "
                    "it out to read as a Reader."
                )
        return
    for name in ("startingOffsets", "startingTime", "startMessageIdInclusive"):
        if options.has(name):
            raise InvalidOptionError(
                f"Option {name} is a Reader's, and a subscription has a position of its own: give "
                "subscriptionInitialPosition for a new one, or leave out subscriptionName."
            )
    _check_key_shared(options)
    if 0 < options["ackTimeout"] < MIN_ACK_TIMEOUT_MS:
        raise InvalidOptionError("Option ackTimeout has to be 1 s or more, or 0 for none.")
    if options["leaseTimeout"] < MIN_LEASE_MS:
        raise InvalidOptionError("Option leaseTimeout has to be 1 s or more.")


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
            dead_letter_policy=_dead_letter_policy(options),
        ),
    )


def permits_of(options: Options, partitions: int) -> int:
    """How many messages of one partition the consumer may hold, of so many partitions."""
    total: int = options["maxTotalReceiverQueueSizeAcrossPartitions"]
    each: int = options["receiverQueueSize"]
    return max(1, min(each, total // max(1, partitions)))


def _check_key_shared(options: Options) -> None:
    for name in ("keySharedMode", "keySharedRanges", "allowOutOfOrderDelivery"):
        if options.has(name) and options["subscriptionType"] != "Key_Shared":
            raise InvalidOptionError(f"Option {name} needs subscriptionType Key_Shared.")
    if (options["keySharedMode"] == "STICKY") != bool(options["keySharedRanges"]):
        raise InvalidOptionError("keySharedMode STICKY and keySharedRanges go together.")


def _dead_letter_policy(options: Options) -> DeadLetterPolicy | None:
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
