"""The dead letter topic and the retry letter topic of a message, and its properties there.

Invariants: the names are Pulsar's; a copy's properties never replace REAL_TOPIC, REAL_SUBSCRIPTION
and ORIGIN_MESSAGE_ID that a message brings along, so they name where it came from first, unless
its consumer gives them other values itself. Follows
Pulsar's `DeadLetterPolicy`, `RetryMessageUtil` and `ConsumerImpl.reconsumeLater`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from pulsar_spark.broker.protocol.commands import ReconsumeLater
from pulsar_spark.broker.protocol.policies import DeadLetterPolicy
from pulsar_spark.broker.protocol.ready import Republication
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.errors import InvalidTopicNameError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, check_user_topic, default_dead_letter_topic

RECONSUMETIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_IDY_TIME: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""Pulsar's old name of it, misspelt, which older consumers look for."""

ERROR: Final = "ERROR"
"""The error of the message's last attempt: an exception, for instance."""
REDRIVE_SUBSCRIPTION: Final = "redrive"
"""The subscription whose letters go back where none is named."""
LONGEST_ERROR: Final = 2_000
"""Characters of an error that go into that property."""
DEAD_LETTER_REASON: Final = "DEAD_LETTER_REASON"
"""The reason why it became a dead letter: a `Reason`."""
DEAD_LETTER_ATTEMPTS: Final = "DEAD_LETTER_ATTEMPTS"
"""The number of times that it may have been delivered, including each time that it was reconsumed.
"""
DEAD_LETTER_CONSUMER: Final = "DEAD_LETTER_CONSUMER"
"""The consumer that had it last."""


class Reason(str, Enum):
    """The reason of a dead letter: the end of its last attempt."""

    REJECTED = "rejected"
    ACK_TIMEOUT = "ack timeout"
    CONSUMER_GONE = "consumer gone"
    """Its lease lapsed, or another run took its name and had nothing written down."""
    REDELIVERY_ASKED = "redelivery asked"
    """The consumer asked for all that it had not acknowledged."""
    RECONSUMED = "reconsumed"
    """Put off to the retry letter topic once too often."""
    DEAD_LETTER_ASKED = "dead letter asked"
    """Not for the number of attempts: a row, or a function, said that it can't be processed."""


REPUBLICATION_PROPERTIES: Final = frozenset(
    {
        RECONSUMETIMES, DELAY_TIME, REAL_TOPIC, REAL_SUBSCRIPTION, ORIGIN_MESSAGE_ID,
        ORIGIN_MESSAGE_IDY_TIME, ERROR, DEAD_LETTER_REASON, DEAD_LETTER_ATTEMPTS,
        DEAD_LETTER_CONSUMER,
    }
)  # fmt: skip
"""All that a letter has beside the properties of its message, and what its consumers added."""
_FIRST_WINS: Final = frozenset(
    {REAL_TOPIC, REAL_SUBSCRIPTION, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_IDY_TIME}
)


def times_reconsumed(properties: Mapping[str, str | None]) -> int:
    """The number of times that a message was reconsumed, by its properties; 0 if they have none.

    They are its producer's to fill, so whatever stands there is read.
    """
    text = properties.get(RECONSUMETIMES) or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def dead_letters(
    state: BrokerState,
    subscription: Subscription,
    consumer: Consumer,
    messages: PositionSet,
    reason: Reason,
    properties: Iterable[tuple[str, str]] = (),
    reconsume_times: int = 0,
) -> Iterator[Republication]:
    """To the dead letter topic of a consumer that has one; a letter for each number of attempts."""
    policy = consumer.options.dead_letter_policy or DeadLetterPolicy()
    topic = policy.dead_letter_topic or default_dead_letter_topic(state.topic, subscription.name)
    for count, part in subscription.tracker.by_count(messages):
        diagnosis = (
            (DEAD_LETTER_REASON, reason.value),
            (DEAD_LETTER_ATTEMPTS, str(count + 1 + reconsume_times)),
            (DEAD_LETTER_CONSUMER, consumer.name),
            (REAL_TOPIC, state.topic),
            (REAL_SUBSCRIPTION, subscription.name),
        )
        yield Republication(
            topic,
            subscription.name,
            part,
            (*properties, *diagnosis),
            initial_subscription=policy.initial_subscription_name,
        )


def retry_messages(
    state: BrokerState,
    subscription: Subscription,
    consumer: Consumer,
    messages: PositionSet,
    request: ReconsumeLater,
) -> Iterator[Republication]:
    """To the retry letter topic; to the dead letter topic if they were there too often."""
    policy = consumer.options.dead_letter_policy or DeadLetterPolicy()
    times = request.reconsume_times + 1
    counted = (
        *request.properties,
        (RECONSUMETIMES, str(times)),
        (DELAY_TIME, str(max(request.delay_ms, 0))),
    )
    if times > policy.max_redeliver_count:
        yield from dead_letters(
            state,
            subscription,
            consumer,
            messages,
            Reason.RECONSUMED,
            counted,
            request.reconsume_times,
        )
        return
    yield Republication(
        policy.retry_letter_topic,
        subscription.name,
        messages,
        (*counted, (REAL_TOPIC, state.topic), (REAL_SUBSCRIPTION, subscription.name)),
        deliver_at_ms=state.now_ms + max(request.delay_ms, 0),
    )


def check_republication_topics(
    topic: str, subscription: str, policy: DeadLetterPolicy | None
) -> None:
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


def republication_properties(
    republication: Republication, message_id: MessageId, properties: Mapping[str, str]
) -> dict[str, str]:
    """The properties of one copy, from those of the message that it is a copy of.

    >>> dead = Republication("t-s-DLQ", "s", PositionSet(), (("REAL_TOPIC", "t"),))
    >>> republication_properties(dead, MessageId(3, 4), {"REAL_TOPIC": "first"})["REAL_TOPIC"]
    'first'
    """
    origin = str(message_id)
    added = (
        *republication.properties,
        (ORIGIN_MESSAGE_ID, origin),
        (ORIGIN_MESSAGE_IDY_TIME, origin),
    )
    result = dict(properties)
    for place, (name, value) in enumerate(added):
        is_given = name in dict(added[place + 1 :])  # by the consumer, before the broker's own
        if is_given or name not in _FIRST_WINS or name not in result:
            result[name] = value
    return result
