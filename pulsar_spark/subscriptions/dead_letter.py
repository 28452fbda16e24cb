"""Which topic a message is copied to when it failed too often, and with which properties.

Invariants: the names are Pulsar's; a copy's properties never replace REAL_TOPIC, REAL_SUBSCRIPTION
and ORIGIN_MESSAGE_ID that a message brings along, so they name where it came from first, unless
its consumer gives them other values itself. Follows
Pulsar's `DeadLetterPolicy`, `RetryMessageUtil` and `ConsumerImpl.reconsumeLater`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pulsar_spark.errors import InvalidTopicNameError
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.protocol.commands import ReconsumeLater
from pulsar_spark.protocol.policies import DeadLetterPolicy
from pulsar_spark.protocol.ready import Letter
from pulsar_spark.subscriptions.broker_state import BrokerState
from pulsar_spark.subscriptions.subscription import Subscription
from pulsar_spark.topic_name import TopicName, check_user_topic, default_dead_letter_topic

RECONSUMETIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_IDY_TIME: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""Pulsar's old name of it, misspelt, which older consumers look for."""

ERROR: Final = "ERROR"
"""Why the message was given back for the last time, where that was said."""

_FIRST_WINS: Final = frozenset(
    {REAL_TOPIC, REAL_SUBSCRIPTION, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_IDY_TIME}
)


def dead_letter(
    state: BrokerState,
    subscription: Subscription,
    policy: DeadLetterPolicy,
    messages: PositionSet,
    properties: Iterable[tuple[str, str]] = (),
) -> Letter:
    """To the dead letter topic."""
    topic = policy.dead_letter_topic
    return Letter(
        topic or default_dead_letter_topic(state.topic, subscription.name),
        subscription.name,
        messages,
        (*properties, (REAL_TOPIC, state.topic), (REAL_SUBSCRIPTION, subscription.name)),
        initial_subscription=policy.initial_subscription_name,
    )


def retry_letter(
    state: BrokerState,
    subscription: Subscription,
    policy: DeadLetterPolicy,
    messages: PositionSet,
    request: ReconsumeLater,
) -> Letter:
    """To the policy's retry letter topic; to the dead letter topic if it was too often there."""
    times = request.reconsume_times + 1
    counted = (
        *request.properties,
        (RECONSUMETIMES, str(times)),
        (DELAY_TIME, str(max(request.delay_ms, 0))),
    )
    if times > policy.max_redeliver_count:
        return dead_letter(state, subscription, policy, messages, counted)
    return Letter(
        policy.retry_letter_topic,
        subscription.name,
        messages,
        (*counted, (REAL_TOPIC, state.topic), (REAL_SUBSCRIPTION, subscription.name)),
        deliver_at_ms=state.now_ms + max(request.delay_ms, 0),
    )


def check_letter_topics(topic: str, subscription: str, policy: DeadLetterPolicy | None) -> None:
    """InvalidTopicNameError if letters could not be written, which a broker finds out too late."""
    if policy is None:
        return
    dead = policy.dead_letter_topic or default_dead_letter_topic(topic, subscription)
    for text in filter(None, (dead, policy.retry_letter_topic)):
        name = check_user_topic(TopicName.parse(text), "written")
        if name.is_partition:
            raise InvalidTopicNameError(
                f"Topic {text} is one partition: letters go to a whole topic, so name that"
            )
        _ = name.storage_path  # not too long for a folder's name


def letter_properties(
    letter: Letter, message_id: MessageId, properties: Mapping[str, str]
) -> dict[str, str]:
    """The properties of one copy, from those of the message that it is a copy of.

    >>> letter = Letter("t-s-DLQ", "s", PositionSet(), (("REAL_TOPIC", "t"),))
    >>> letter_properties(letter, MessageId(3, 4), {"REAL_TOPIC": "first"})["REAL_TOPIC"]
    'first'
    """
    origin = str(message_id)
    added = (*letter.properties, (ORIGIN_MESSAGE_ID, origin), (ORIGIN_MESSAGE_IDY_TIME, origin))
    result = dict(properties)
    for place, (name, value) in enumerate(added):
        is_given = name in dict(added[place + 1 :])  # by the consumer, before the broker's own
        if is_given or name not in _FIRST_WINS or name not in result:
            result[name] = value
    return result
