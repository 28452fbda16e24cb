"""What the broker is told of a consumer's options: all of them, as docs/options.md has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import pytest

from pulsar_spark.broker.protocol.commands import InitialPosition, Subscribe, SubscriptionType
from pulsar_spark.broker.protocol.policies import (
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
)
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.position import Position
from pulsar_spark.options.consumer_options import permits_of, subscribe_command
from pulsar_spark.options.options import Options, Scope

FULL = "persistent://public/default/"
DEAD, RETRY = f"{FULL}first-s-DLQ", f"{FULL}first-s-RETRY"


def parsed(given: Mapping[str, object]) -> Options:
    raw = {"serviceUrl": "/data", "topic": "t", "subscriptionName": "s"}
    return Options.parse(raw | {name: str(each) for name, each in given.items()}, Scope.STREAM_READ)


def reported(given: Mapping[str, object], *, retries: bool = False) -> Subscribe:
    """Of partition 0."""
    return subscribe_command(
        parsed(given), "c", 7, 0, 100, first_topic=f"{FULL}first", retries=retries
    )


MANUAL: dict[str, object] = {"ackMode": "manual"}
KEYS: dict[str, object] = {"subscriptionType": "Key_Shared"}
CASES: list[tuple[dict[str, object], str, object]] = [
    ({}, "subscription", "s"),
    ({"subscriptionName": "x/y"}, "subscription", "x/y"),
    ({}, "consumer", "c"),
    ({}, "incarnation", 7),
    ({}, "permits", 100),
    ({}, "subscription_type", SubscriptionType.EXCLUSIVE),
    ({"subscriptionType": "Exclusive"}, "subscription_type", SubscriptionType.EXCLUSIVE),
    ({"subscriptionType": "failover"}, "subscription_type", SubscriptionType.FAILOVER),
    ({"subscriptionType": "SHARED"}, "subscription_type", SubscriptionType.SHARED),
    ({"subscriptionType": "key_shared"}, "subscription_type", SubscriptionType.KEY_SHARED),
    ({}, "durable", True),
    ({"subscriptionMode": "Durable"}, "durable", True),
    ({"subscriptionMode": "NonDurable"}, "durable", False),
    ({}, "initial_position", InitialPosition.LATEST),
    ({"subscriptionInitialPosition": "Latest"}, "initial_position", InitialPosition.LATEST),
    ({"subscriptionInitialPosition": "Earliest"}, "initial_position", InitialPosition.EARLIEST),
    ({}, "start_message_id", None),
    ({"startMessageId": "7:12:0:3"}, "start_message_id", (Position(7, 12), 3)),
    ({"startMessageId": "7:12:-1"}, "start_message_id", (Position(7, 12), -1)),
    ({"startMessageId": "7:12:1"}, "start_message_id", None),
    ({"startMessageId": "7:12:0"}, "start_message_id_inclusive", True),
    (
        {"startMessageId": "7:12:0", "startMessageIdInclusive": "false"},
        "start_message_id_inclusive", False,
    ),
    ({}, "priority_level", 0),
    ({"priorityLevel": 3}, "priority_level", 3),
    ({}, "key_shared_policy", KeySharedPolicy()),
    (KEYS, "key_shared_policy", KeySharedPolicy(KeySharedMode.AUTO_SPLIT)),
    (
        {**KEYS, "keySharedMode": "STICKY", "keySharedRanges": "0-999,2000-65535"},
        "key_shared_policy",
        KeySharedPolicy(KeySharedMode.STICKY, ranges=((0, 999), (2000, 65535))),
    ),
    (
        {**KEYS, "allowOutOfOrderDelivery": "true"},
        "key_shared_policy", KeySharedPolicy(allow_out_of_order_delivery=True),
    ),
    ({}, "read_compacted", False),
    ({"readCompacted": "true"}, "read_compacted", True),
    ({}, "options", ConsumerOptions(60_000, None, 0, None, None)),
    (
        {**MANUAL, "negativeAckRedeliveryDelay": "5s"},
        "options", ConsumerOptions(negative_ack_redelivery_delay_ms=5_000),
    ),
    (
        {**MANUAL, "negativeAckRedeliveryBackoff": "1s,60s,3"},
        "options",
        ConsumerOptions(
            negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(1_000, 60_000, 3)
        ),
    ),
    ({**MANUAL, "ackTimeout": "90s"}, "options", ConsumerOptions(ack_timeout_ms=90_000)),
    (
        {**MANUAL, "ackTimeout": "1s", "ackTimeoutRedeliveryBackoff": "2s,8s"},
        "options",
        ConsumerOptions(
            ack_timeout_ms=1_000,
            ack_timeout_redelivery_backoff=MultiplierRedeliveryBackoff(2_000, 8_000, 2),
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name", "value"), CASES)
def test_each_option_of_a_consumer_goes_to_its_field_of_the_subscribe_command(
    given: dict[str, object], name: str, value: object
) -> None:
    assert getattr(reported(given), name) == value


def test_what_the_client_fills_in_is_left_open_and_no_field_lacks_a_case() -> None:
    command = reported({})
    assert (command.resumes, command.request_id) == (False, None)
    assert (command.begins_behind, command.partitions) == (None, None)
    covered = {name for _, name, _ in CASES}
    covered |= {"resumes", "request_id", "begins_behind", "partitions", "topic_incarnation"}
    assert covered == {each.name for each in fields(Subscribe)}


LETTERS: list[tuple[dict[str, object], DeadLetterPolicy | None]] = [
    ({}, None),
    ({"enableRetry": "false"}, None),
    ({"maxRedeliverCount": 4}, DeadLetterPolicy(4)),
    ({"deadLetterTopic": "dead"}, DeadLetterPolicy(16, f"{FULL}dead")),
    ({"deadLetterTopic": "a/b/dead"}, DeadLetterPolicy(16, "persistent://a/b/dead")),
    ({"retryLetterTopic": "again"}, DeadLetterPolicy(16, "", f"{FULL}again")),
    ({"initialSubscriptionName": "look"}, DeadLetterPolicy(16, "", "", "look")),
    ({"enableRetry": "true"}, DeadLetterPolicy(16, DEAD, RETRY)),
    ({"enableRetry": "true", "deadLetterTopic": "d"}, DeadLetterPolicy(16, f"{FULL}d", RETRY)),
    ({"enableRetry": "true", "retryLetterTopic": "r"}, DeadLetterPolicy(16, DEAD, f"{FULL}r")),
]


@pytest.mark.parametrize(("given", "policy"), LETTERS)
def test_letter_topics_have_full_names_and_with_retries_are_named_after_the_first_topic(
    given: dict[str, object], policy: DeadLetterPolicy | None
) -> None:
    for retries in (False, True):
        assert reported(given, retries=retries).options.dead_letter_policy == policy


def test_the_retry_topic_is_shared_whatever_the_subscription_is() -> None:
    ranges = {"keySharedMode": "STICKY", "keySharedRanges": "0-9"}
    sticky = reported({**KEYS, **ranges, "enableRetry": "true"}, retries=True)
    assert sticky.subscription_type is SubscriptionType.SHARED
    assert sticky.key_shared_policy == KeySharedPolicy()
    compacted = reported({"readCompacted": "true", "enableRetry": "true"}, retries=True)
    assert compacted.subscription_type is SubscriptionType.SHARED
    assert not compacted.read_compacted


@pytest.mark.parametrize(
    ("given", "partitions", "expected"),
    [
        ({}, 1, 1_000_000),
        ({"maxMessagesPerTrigger": 50}, 1, 100),
        ({"maxMessagesPerTrigger": 50, "receiverQueueSize": 7}, 1, 7),
        ({"receiverQueueSize": 7}, 4, 7),
        ({"receiverQueueSize": 7}, 8, 3),
        ({"maxTotalReceiverQueueSizeAcrossPartitions": 10}, 5, 2),
        ({"maxTotalReceiverQueueSizeAcrossPartitions": 10}, 20, 1),
    ],
)
def test_permits_follow_from_the_queue_sizes(
    given: dict[str, object], partitions: int, expected: int
) -> None:
    assert permits_of(parsed(given), partitions) == expected


@pytest.mark.parametrize("partition", [-5, -2, 1 << 63])
def test_a_message_id_of_a_partition_that_no_topic_has_is_refused(partition: int) -> None:
    with pytest.raises(InvalidOptionError, match="startMessageId can't be '7:12:"):
        parsed({"startMessageId": f"7:12:{partition}"})
