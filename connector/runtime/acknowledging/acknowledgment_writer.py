"""The driver's half of sinks that acknowledge: it reports their acknowledgements to the brokers.

Invariants: one report for each topic partition, all of them in one commit of `__commands`, which
takes effect once for each (query, micro-batch), or (txnAppId, txnVersion); nobody is told of a
subscription that is not there. Takes the place of what Pulsar's `ConsumerImpl` sends: Ack, and
redeliverUnacknowledgedMessages.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from itertools import chain

from pulsar_spark.broker.protocol.commands import Report, SubscriptionType
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Acknowledgments, Folded
from pulsar_spark.connector.runtime.system_topics.subscription_admin import Receipts, subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.errors import BrokerRefusedError, ServerError
from pulsar_spark.log.publication import AlreadyCommitted

_log = logging.getLogger(__name__)

KNOWN_WITHIN_S = 5.0
"""Seconds until a subscription that was just made has to be known."""
_known: set[tuple[str, str, str]] = set()
"""(service url, topic, subscription) that this process has found."""


def tell(
    root: Root,
    subscription: str,
    found: Iterable[Folded],
    application: tuple[str, int] | None,
    receipt_within_ms: int | None = None,
) -> None:
    """Send the commands to the brokers: one commit, or none if there are none.

    With a time, return when the brokers have them: BrokerAbsentError if they take longer,
    BrokerRefusedError if one refuses.
    """
    receipts = None if receipt_within_ms is None else Receipts(root)
    records = records_of(root, subscription, found, receipts)
    if not records:
        return
    reported = SystemTopic(root, COMMANDS).append(records, application=application)
    if receipts is not None and receipt_within_ms is not None:
        if isinstance(reported, AlreadyCommitted):  # what was said then has no answer for us
            await_receipts(root, records, receipt_within_ms)
        else:
            receipts.wait(receipt_within_ms / 1000)
    if application is not None and isinstance(reported, AlreadyCommitted):
        _log.warning(
            "What was to be said to subscription %s is taken for a repetition, as %s has said "
            "number %s or a later one before. After a crash that is as it should be; a new "
            "checkpoint needs a new application.", subscription, *application,
        )  # fmt: skip


def await_receipts(root: Root, reported: Iterable[Record], within_ms: int) -> None:
    """Return when the brokers have all that was told them so far. Errors as from `tell`.

    They answer in the order in which they are told: so they are told something more, of no
    consequence.
    """
    receipts = Receipts(root)
    places = sorted({(each.topic_partition, each.subscription) for each in reported})
    if not places:
        return
    behind = [
        receipts.asked(topic_partition, Report(name, epoch=None))
        for topic_partition, name in places
    ]
    SystemTopic(root, COMMANDS).append(behind)
    receipts.wait(within_ms / 1000)


def records_of(
    root: Root, subscription: str, found: Iterable[Folded], receipts: Receipts | None = None
) -> list[Record]:
    """The commands to the brokers. BrokerRefusedError as `check_subscription`."""
    joined: Folded = {}
    for topic_partition, acknowledgments in chain.from_iterable(part.items() for part in found):
        joined.setdefault(topic_partition, Acknowledgments()).join(acknowledgments)
    check_subscription(root, subscription, joined)
    return [
        receipts.asked(topic_partition, command)
        if receipts
        else Record.of(topic_partition, subscription, command)
        for topic_partition, acknowledgments in sorted(joined.items(), key=lambda item: item[0])
        for command in acknowledgments.reports(subscription)
    ]


def check_subscription(root: Root, subscription: str, joined: Folded) -> None:
    """BrokerRefusedError if there is no such subscription, or others' messages would be touched.

    That is as far as the broker has told: it looks again itself. Of a topic of which it has told
    no subscription at all, it may just not know yet.
    """
    cumulative = {
        topic_partition.topic
        for topic_partition, acknowledgments in joined.items()
        if acknowledgments.cumulative
    }
    for topic in sorted({topic_partition.topic for topic_partition in joined}):
        place = (root.service_url, topic, subscription)
        if place in _known and topic not in cumulative:
            continue
        if (kind := _type_of(root, topic, subscription)) is None:
            continue
        _known.add(place)
        if topic in cumulative and kind.is_shared:
            raise BrokerRefusedError(
                ServerError.NOT_ALLOWED_ERROR,
                f"Cumulative acknowledgement is not allowed on subscription {subscription} of "
                f"{topic}, which is {kind.value}: all up to a message is other consumers' work "
                "too. Acknowledge the messages themselves (ack_type Individual). Nothing was "
                "acknowledged.",
            )


def _type_of(root: Root, topic: str, name: str) -> SubscriptionType | None:
    """None if the broker has told of no subscription of that topic."""
    begun_s = root.clock.monotonic_s()
    while True:
        types = {each.name: each.type for each in subscriptions(root, topic)}
        if not types or name in types:
            return SubscriptionType(types[name]) if types else None
        waited_s = root.clock.monotonic_s() - begun_s
        if waited_s >= KNOWN_WITHIN_S:
            near = difflib.get_close_matches(name, types, n=1, cutoff=0.6)
            offer = f"Did you mean {near[0]}?" if near else f"There is {', '.join(sorted(types))}."
            raise BrokerRefusedError(
                ServerError.SUBSCRIPTION_NOT_FOUND,
                f"Topic {topic} has no subscription {name}. {offer} Nothing was acknowledged.",
            )
        root.clock.sleep(pause_s(waited_s, remote=root.store.remote))
