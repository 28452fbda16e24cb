"""The rules for options that go together: each has a condition and an error.

Invariant: what contradicts itself is refused when the DataFrame is made, never resolved in
silence; the text says which option to change. Follows Pulsar's `ConsumerBuilderImpl`,
`ProducerBuilderImpl` and their `ConfigurationData`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any, Final, NamedTuple

from pulsar_spark.broker.subscriptions.dead_letter import check_republication_topics
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import TopicName, check_user_topic
from pulsar_spark.options.consumer_options import GivenOptions, dead_letter_policy

_MIN_TIMEOUT_MS: Final = 1_000
_MIN_TICK_MS: Final = 100


class Rule(NamedTuple):
    """Options are refused with this text, in which `{name}` is an option's value."""

    refuses: Callable[[GivenOptions], Any]
    text: str


def _exclusive(one: str, other: str) -> Rule:
    return Rule(
        lambda options: options.has(one) and options.has(other),
        f"Options {one} and {other} exclude each other.",
    )


def _needs(name: str, other: str, *values: Any, at: Any = None, because: str = "") -> Rule:
    """`name`, given or at that value, needs the other, given or at one of `values`."""

    def refuses(options: GivenOptions) -> bool:
        asked = options.has(name) if at is None else options[name] == at
        return asked and not (options[other] in values if values else options.has(other))

    subject = name if at in (None, True) else f"{name} {at}"
    needed = f"{other} {' or '.join(map(_written, values))}".rstrip()
    return Rule(refuses, f"Option {subject} needs {needed}{because and f': {because}'}.")


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_UNSHARED: Final = ("Exclusive", "Failover")

RULES: Final = (
    *(_exclusive(*pair) for pair in combinations(("topic", "topics", "topicsPattern"), 2)),
    _exclusive("startingOffsets", "startingTime"),
    _exclusive("endingOffsets", "endingTime"),
    _needs("maxTriggerDelay", "minMessagesPerTrigger"),
    Rule(
        lambda options: (options["minMessagesPerTrigger"] or 0)
        > (options["maxMessagesPerTrigger"] or math.inf),
        "minMessagesPerTrigger ({minMessagesPerTrigger}) is above maxMessagesPerTrigger "
        "({maxMessagesPerTrigger}).",
    ),
    *(_needs(name, "view") for name in ("asOf", "includeValue")),
    # what a sink is told
    _exclusive("deliverAt", "deliverAfter"),
    Rule(
        lambda options: options.has("messageRoutingMode")
        and options.has("messageRouter") != (options["messageRoutingMode"] == "CustomPartition"),
        "messageRouter and messageRoutingMode CustomPartition go together: give both, or the "
        "router alone.",
    ),
    _needs("producerLease", "accessMode"),
    _needs("transactionTimeout", "transactional", True),
    _needs(
        "chunkingEnabled", "batchingEnabled", False, at=True,
        because="batching and chunking of messages can't be enabled together",
    ),
    _needs("chunkMaxMessageSize", "chunkingEnabled", True),
    _needs(
        "batcherBuilder", "batchingEnabled", True, at="KEY_BASED",
        because="it says how messages share entries",
    ),
    _needs("schema", "schemaType", "JSON", "AVRO", because="it is the definition of a record"),
    Rule(
        lambda options: options.has("txnAppId") != options.has("txnVersion"),
        "Options txnAppId and txnVersion go together: give both.",
    ),
    # what a consumer is told
    Rule(
        lambda options: options.has("subscriptionName")
        and options.has("startMessageIdInclusive")
        and not options.has("startMessageId"),
        "Option startMessageIdInclusive needs startMessageId.",
    ),
    *(
        _needs(name, "subscriptionType", "Key_Shared")
        for name in ("keySharedMode", "keySharedRanges", "allowOutOfOrderDelivery")
    ),
    Rule(
        lambda options: (options["keySharedMode"] == "STICKY") != bool(options["keySharedRanges"]),
        "keySharedMode STICKY and keySharedRanges go together: give both.",
    ),
    _needs(
        "delayedDelivery", "subscriptionType", *_UNSHARED,
        because="on the others messages always wait for their delivery time",
    ),
    _needs(
        "readCompacted", "subscriptionType", *_UNSHARED, at=True,
        because="where several consumers share a subscription, nobody reads a key's messages one "
        "after the other",
    ),
    Rule(
        lambda options: 0 < options["ackTimeout"] < _MIN_TIMEOUT_MS,
        "Option ackTimeout is too short: give 1s or more, or 0 for none.",
    ),
    Rule(
        lambda options: options["ackTimeout"] and options["ackMode"] == "auto",
        "Option ackTimeout needs ackMode manual: with auto a micro-batch is acknowledged when it "
        "is committed, however long it takes.",
    ),
    Rule(
        lambda options: options.has("ackTimeoutRedeliveryBackoff") and not options["ackTimeout"],
        "Option ackTimeoutRedeliveryBackoff needs ackTimeout.",
    ),
    Rule(
        lambda options: options.has("ackTimeoutTickTime")
        and not _MIN_TICK_MS <= options["ackTimeoutTickTime"] <= options["ackTimeout"],
        "Option ackTimeoutTickTime takes 100ms or more, and no more than ackTimeout, which it "
        "needs.",
    ),
    _needs("ackReceiptEnabled", "subscriptionName", because="only what acknowledges has a receipt"),
    _needs("operationTimeout", "ackReceiptEnabled", True),
    *(
        _needs(name, "ackMode", "manual", because="with auto nothing is rejected")
        for name in ("negativeAckRedeliveryDelay", "negativeAckRedeliveryBackoff")
    ),
    Rule(
        lambda options: options["enableRetry"] and options.has("topicsPattern"),
        "Option enableRetry needs topic or topics: with topicsPattern, give retryLetterTopic, and "
        "a pattern that matches it.",
    ),
    Rule(
        lambda options: options["leaseTimeout"] < _MIN_TIMEOUT_MS,
        "Option leaseTimeout is too short: give 1s or more.",
    ),
    _needs("onSchemaMismatch", "valueSchema"),
    Rule(
        lambda options: options["onSchemaMismatch"] == "deadLetter"
        and dead_letter_policy(options) is None,
        "onSchemaMismatch deadLetter needs a subscription with a dead letter topic: give "
        "subscriptionName, and maxRedeliverCount or deadLetterTopic.",
    ),
)  # fmt: skip


def check_together(options: GivenOptions, consumers: Iterable[str]) -> None:
    """InvalidOptionError, or InvalidTopicNameError, names what contradicts what.

    `consumers` are the options of consumers only.
    """
    if not options.has("subscriptionName"):
        for name in filter(options.has, consumers):
            raise InvalidOptionError(
                f"Option {name} is a consumer's: give subscriptionName too, or leave it out and "
                "read as a Reader."
            )
    else:
        for name in filter(options.has, ("startingOffsets", "startingTime")):
            raise InvalidOptionError(
                f"Option {name} is a Reader's, and a subscription has a position of its own: say "
                "where a new one begins by subscriptionInitialPosition or startMessageId, or "
                "leave out subscriptionName."
            )
    for rule in RULES:
        if rule.refuses(options):
            raise InvalidOptionError(rule.text.format_map(options))
    if options.has("subscriptionName"):
        _check_topics(options)


def _check_topics(options: GivenOptions) -> None:
    """InvalidTopicNameError if a consumer can't read one, or has letters that it can't write."""
    names = [TopicName.parse(text) for text in (options["topic"], *options["topics"]) if text]
    first = names[0].partitioned_topic_name if names else ""
    policy = dead_letter_policy(options, first)
    for name in names:
        check_user_topic(name, "subscribed to")
        check_republication_topics(name.partitioned_topic_name, options["subscriptionName"], policy)
