"""Which of a consumer's options go together, and what the broker is told of them.

Invariant: what contradicts itself is refused when the DataFrame is made, never resolved in
silence; the text says which option to change. Follows Pulsar's `ConsumerBuilderImpl` and
`ConsumerConfigurationData`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from pulsar_spark.errors import InvalidOptionError, InvalidTopicNameError
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.positions.position import Position
from pulsar_spark.protocol.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.protocol.policies import (
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
)
from pulsar_spark.subscriptions.dead_letter import check_letter_topics
from pulsar_spark.topic_name import (
    TopicName,
    check_subscription_name,
    check_user_topic,
    default_dead_letter_topic,
    default_retry_letter_topic,
)

MIN_ACK_TIMEOUT_MS: Final = 1_000
MIN_LEASE_TIMEOUT_MS: Final = 1_000
DEFAULT_RECEIVER_QUEUE_SIZE: Final = 1_000_000
"""Without maxMessagesPerTrigger: a few seconds' worth, since a micro-batch takes what it gets."""
PARTITIONS_IN_FULL: Final = 4
"""So many partitions have a whole receiver queue each; more of them share."""
GREATEST_HASH: Final = 65_535
READERS: Final = ("startingOffsets", "startingTime")
DEAD_LETTERS: Final = (
    "maxRedeliverCount", "deadLetterTopic", "retryLetterTopic", "initialSubscriptionName",
)  # fmt: skip


class GivenOptions(Protocol):
    """What `Options` offers."""

    def __getitem__(self, name: str) -> Any:
        """The option's value, or its default."""

    def has(self, name: str) -> bool:
        """Whether the user gave it."""


def check_consumer_options(options: GivenOptions, consumers: Iterable[str]) -> None:
    """InvalidOptionError names what contradicts what. `consumers` are options of consumers only."""
    if not options.has("subscriptionName"):
        for name in consumers:
            if options.has(name):
                raise InvalidOptionError(
                    f"Option {name} is a consumer's: give subscriptionName too, or leave it out "
                    "and read as a Reader."
                )
        return
    for name in READERS:
        if options.has(name):
            raise InvalidOptionError(
                f"Option {name} is a Reader's, and a subscription has a position of its own: say "
                "where a new one begins by subscriptionInitialPosition or startMessageId, or "
                "leave out subscriptionName."
            )
    try:
        check_subscription_name(options["subscriptionName"])
    except InvalidTopicNameError as error:
        raise InvalidOptionError(f"Option subscriptionName: {error.message}.") from error
    _check_topics(options)
    _check_start(options)
    _check_key_shared(options)
    if options.has("delayedDelivery") and options["subscriptionType"] in ("Shared", "Key_Shared"):
        raise InvalidOptionError(
            f"Option delayedDelivery is for subscriptionType Exclusive and Failover: on "
            f"{options['subscriptionType']} messages always wait for their delivery time."
        )
    if options["readCompacted"] and options["subscriptionType"] in ("Shared", "Key_Shared"):
        raise InvalidOptionError(
            "Option readCompacted needs subscriptionType Exclusive or Failover: where several "
            "consumers share a subscription, nobody reads a key's messages one after the other."
        )
    _check_acknowledging(options)
    _check_letters(options)
    if options["leaseTimeout"] < MIN_LEASE_TIMEOUT_MS:
        raise InvalidOptionError("Option leaseTimeout is too short: give 1s or more.")


def check_schema_options(options: GivenOptions) -> None:
    """InvalidOptionError if `onSchemaMismatch` says what can't be."""
    if not options.has("onSchemaMismatch"):
        return
    if not options["valueSchema"]:
        raise InvalidOptionError("Option onSchemaMismatch needs valueSchema.")
    dead_letters = options.has("subscriptionName") and dead_letter_policy(options) is not None
    if options["onSchemaMismatch"] == "deadLetter" and not dead_letters:
        raise InvalidOptionError(
            "onSchemaMismatch deadLetter needs a subscription with a dead letter topic: give "
            "subscriptionName, and maxRedeliverCount or deadLetterTopic."
        )


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
    """What the broker of a partition is told; `resumes` and the request id are still to be set.

    `first_topic`: the full name of the first that the consumer names; empty with a pattern.
    `retries`: it is one of the retry letter topic, which is always Shared, as in Pulsar, so that
    its delays are kept.
    """
    start = None
    if options.has("startMessageId"):
        given = MessageId.parse(options["startMessageId"])
        if given.partition in (-1, partition):
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
        options=consumer_options(options, first_topic),
        permits=permits,
        read_compacted=options["readCompacted"] and not retries,
    )


def consumer_options(options: GivenOptions, first_topic: str = "") -> ConsumerOptions:
    """What a consumer says of itself when it subscribes."""
    return ConsumerOptions(
        options["negativeAckRedeliveryDelay"],
        options["negativeAckRedeliveryBackoff"],
        options["ackTimeout"],
        options["ackTimeoutRedeliveryBackoff"],
        dead_letter_policy(options, first_topic),
    )


def dead_letter_policy(options: GivenOptions, first_topic: str = "") -> DeadLetterPolicy | None:
    """None unless an option asks for dead letters or retries.

    With enableRetry both letter topics are called after the first topic, whichever topic a message
    is of, the retry letter topic too: or what comes from there would go on to a third.
    """
    retries = bool(options["enableRetry"])
    if not (retries or any(options.has(name) for name in DEAD_LETTERS)):
        return None
    dead, retry = _full_name(options["deadLetterTopic"]), _full_name(options["retryLetterTopic"])
    if retries and first_topic:
        subscription = options["subscriptionName"]
        dead = dead or default_dead_letter_topic(first_topic, subscription)
        retry = retry or default_retry_letter_topic(first_topic, subscription)
    return DeadLetterPolicy(
        options["maxRedeliverCount"], dead, retry, options["initialSubscriptionName"] or ""
    )


def permits_of(options: GivenOptions, partitions: int) -> int:
    """How many messages of each of so many partitions the consumer may hold."""
    most: int | None = options["maxMessagesPerTrigger"]
    given: int | None = options["receiverQueueSize"]
    queue = given or (DEFAULT_RECEIVER_QUEUE_SIZE if most is None else 2 * most)
    total: int = options["maxTotalReceiverQueueSizeAcrossPartitions"] or PARTITIONS_IN_FULL * queue
    return max(1, min(queue, total // max(1, partitions)))


def retry_topic(options: GivenOptions, first_topic: str) -> TopicName | None:
    """The topic that `enableRetry` reads besides; its default name is made of the first topic's."""
    if not options.has("subscriptionName") or not options["enableRetry"]:
        return None
    default = default_retry_letter_topic(first_topic, options["subscriptionName"])
    return TopicName.parse(options["retryLetterTopic"] or default)


def _check_topics(options: GivenOptions) -> None:
    for text in (options["topic"], *options["topics"]):
        if text:
            check_user_topic(TopicName.parse(text), "subscribed to")


def _check_start(options: GivenOptions) -> None:
    if not options.has("startMessageId"):
        if options.has("startMessageIdInclusive"):
            raise InvalidOptionError("Option startMessageIdInclusive needs startMessageId.")
        return
    try:
        MessageId.parse(options["startMessageId"])
    except ValueError as error:
        raise InvalidOptionError(f"Option startMessageId: {error}.") from error


def _check_key_shared(options: GivenOptions) -> None:
    for name in ("keySharedMode", "keySharedRanges", "allowOutOfOrderDelivery"):
        if options.has(name) and options["subscriptionType"] != "Key_Shared":
            raise InvalidOptionError(f"Option {name} needs subscriptionType Key_Shared.")
    sticky, ranges = options["keySharedMode"] == "STICKY", options["keySharedRanges"]
    if sticky != bool(ranges):
        raise InvalidOptionError("keySharedMode STICKY and keySharedRanges go together: give both.")
    end = -1
    for low, high in sorted(ranges):
        if not end < low <= high <= GREATEST_HASH:
            raise InvalidOptionError(
                f"Option keySharedRanges can't have {low}-{high}: ranges lie in 0 to "
                f"{GREATEST_HASH}, the lower end first, and don't overlap."
            )
        end = high


def _check_acknowledging(options: GivenOptions) -> None:
    timeout_ms = options["ackTimeout"]
    if 0 < timeout_ms < MIN_ACK_TIMEOUT_MS:
        raise InvalidOptionError("Option ackTimeout is too short: give 1s or more, or 0 for none.")
    if timeout_ms and options["ackMode"] == "auto":
        raise InvalidOptionError(
            "Option ackTimeout needs ackMode manual: with auto a micro-batch is acknowledged when "
            "it is committed, however long it takes."
        )
    if options.has("ackTimeoutRedeliveryBackoff") and not timeout_ms:
        raise InvalidOptionError("Option ackTimeoutRedeliveryBackoff needs ackTimeout.")
    for name in ("negativeAckRedeliveryDelay", "negativeAckRedeliveryBackoff"):
        if options.has(name) and options["ackMode"] == "auto":
            raise InvalidOptionError(
                f"Option {name} needs ackMode manual: with auto nothing is rejected."
            )


def _check_letters(options: GivenOptions) -> None:
    named = [text for text in (options["topic"], *options["topics"]) if text]
    first = TopicName.parse(named[0]).partitioned_topic_name if named else ""
    policy = dead_letter_policy(options, first)
    for text in named:
        topic = TopicName.parse(text).partitioned_topic_name
        check_letter_topics(topic, options["subscriptionName"], policy)
    if options["enableRetry"] and options.has("topicsPattern"):
        raise InvalidOptionError(
            "Option enableRetry needs topic or topics: with topicsPattern, give retryLetterTopic, "
            "and a pattern that matches it."
        )


def _full_name(topic: str | None) -> str:
    """Empty for the default."""
    return "" if topic is None else str(TopicName.parse(topic))
