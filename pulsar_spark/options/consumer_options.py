"""The meaning of a consumer's options: its Subscribe command and its permits.

Follows Pulsar's `ConsumerBuilderImpl` and `ConsumerConfigurationData`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from pulsar_spark.broker.protocol.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.broker.protocol.policies import (
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
)
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.topic_name import (
    TopicName,
    default_dead_letter_topic,
    default_retry_letter_topic,
)

DEFAULT_RECEIVER_QUEUE_SIZE: Final = 1_000_000
"""The receiver queue of a consumer of retry messages, which nobody shares."""
PARTITIONS_IN_FULL: Final = 4
"""So many partitions have a whole receiver queue each; more of them share."""
DEAD_LETTERS: Final = (
    "maxRedeliverCount", "deadLetterTopic", "retryLetterTopic", "initialSubscriptionName",
)  # fmt: skip


class GivenOptions(Protocol):
    """The interface of `Options` that this module needs."""

    def __getitem__(self, name: str) -> Any:
        """The option's value, or its default."""

    def has(self, name: str) -> bool:
        """True if the user gave it."""


def subscribe_command(
    options: GivenOptions,
    consumer: str,
    incarnation: int,
    partition: int,
    permits: int,
    *,
    first_topic: str = "",
    retries: bool = False,
) -> Subscribe:
    """The Subscribe command for a partition; `resumes` and the request id are still to be set.

    `first_topic`: the full name of the first that the consumer names; empty with a pattern.
    `retries`: it is one of the retry letter topic, which is always Shared, as in Pulsar, so that
    its delays are kept.
    """
    start = None
    given = options["startMessageId"]
    if given is not None and given.partition in (-1, partition):
        start = (Position(given.ledger_id, given.entry_id), given.batch_index)
    keys = KeySharedPolicy(
        KeySharedMode(options["keySharedMode"]),
        options["allowOutOfOrderDelivery"],
        options["keySharedRanges"],
    )
    return Subscribe(
        options["subscriptionName"],
        consumer,
        incarnation,
        SubscriptionType.SHARED if retries else SubscriptionType(options["subscriptionType"]),
        durable=options["subscriptionMode"] == "Durable",
        initial_position=InitialPosition(options["subscriptionInitialPosition"]),
        start_message_id=start,
        start_message_id_inclusive=options["startMessageIdInclusive"],
        priority_level=options["priorityLevel"],
        key_shared_policy=KeySharedPolicy() if retries else keys,
        options=ConsumerOptions(
            options["negativeAckRedeliveryDelay"],
            options["negativeAckRedeliveryBackoff"],
            options["ackTimeout"],
            options["ackTimeoutRedeliveryBackoff"],
            dead_letter_policy(options, first_topic),
            options["ackTimeoutTickTime"] or 0,
        ),
        permits=permits,
        read_compacted=options["readCompacted"] and not retries,
    )


def dead_letter_policy(options: GivenOptions, first_topic: str = "") -> DeadLetterPolicy | None:
    """None unless an option asks for dead letters or retries.

    With enableRetry both letter topics are called after the first topic, whichever topic a message
    is of, the retry letter topic too: or what comes from there would go on to a third.
    """
    retries = bool(options["enableRetry"])
    if not (retries or any(options.has(name) for name in DEAD_LETTERS)):
        return None
    given = (options["deadLetterTopic"], options["retryLetterTopic"])
    dead, retry = (str(TopicName.parse(topic)) if topic else "" for topic in given)
    if retries and first_topic:
        subscription = options["subscriptionName"]
        dead = dead or default_dead_letter_topic(first_topic, subscription)
        retry = retry or default_retry_letter_topic(first_topic, subscription)
    return DeadLetterPolicy(
        options["maxRedeliverCount"], dead, retry, options["initialSubscriptionName"] or ""
    )


def has_pace(options: GivenOptions) -> bool:
    """True if a consumer finds out by itself how many messages its micro-batches have.

    Where others share with it, and no option says how many.
    """
    is_sized = options.has("maxMessagesPerTrigger") or options.has("receiverQueueSize")
    return SubscriptionType(options["subscriptionType"]).is_shared and not is_sized


def permits_of(options: GivenOptions, partitions: int, queue: int | None = None) -> int:
    """The number of messages of each of so many partitions that the consumer may hold.

    `queue` is how many it finds that it needs, where `has_pace`.
    """
    most: int | None = options["maxMessagesPerTrigger"]
    given: int | None = options["receiverQueueSize"] or queue
    queue = given or (DEFAULT_RECEIVER_QUEUE_SIZE if most is None else 2 * most)
    total: int = options["maxTotalReceiverQueueSizeAcrossPartitions"] or PARTITIONS_IN_FULL * queue
    return max(1, min(queue, total // max(1, partitions)))
