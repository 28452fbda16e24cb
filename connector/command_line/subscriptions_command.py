"""`pulsarlite subscriptions ...`: what each of these commands does, as the lines that it prints.

Invariants: no Spark; `list` only looks; the others wait for the broker's answer.
Follows pulsar-admin's `CmdTopics` (subscriptions, create-subscription, reset-cursor, unsubscribe).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from pulsar_spark.connector.command_line.noun import (
    TOPIC,
    Noun,
    argument,
    one_of,
    opened,
    table,
    time_ms,
)
from pulsar_spark.connector.system.subscription_admin import ask, request_id, subscriptions
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.positions.position import EARLIEST, LATEST
from pulsar_spark.protocol.commands import CreateSubscription, InitialPosition, Seek, Unsubscribe
from pulsar_spark.topic_name import TopicPartition, check_subscription_name

HEADS = [
    "subscription", "partition", "type", "mark-delete", "backlog", "waiting", "delayed", "consumers"
]  # fmt: skip


SUBSCRIPTIONS: Final = Noun(
    "List, create, move and delete subscriptions. All but list need a broker."
)
add_to = SUBSCRIPTIONS.add_to
_SUBSCRIPTION: Final = argument("subscription", metavar="SUBSCRIPTION")


@SUBSCRIPTIONS.command("list", "Show positions, backlogs and consumers. Pulsar: stats.", TOPIC)
def _list(root: Root, arguments: Namespace) -> Iterator[str]:
    topic = opened(root, arguments, "subscribed to")
    rows = [
        [
            each.name, str(each.topic_partition.partition),
            each.type if each.durable else f"{each.type}, non-durable",
            each.mark_delete_position, f"{each.backlog:,}", f"{each.waiting:,}",
            f"{each.delayed:,}",
            ", ".join(
                f"{one.name} (reads)" if one.has_open_grant
                else f"{one.name} ({one.unacked_messages:,} unacked)"
                for one in each.consumers
            ) or "-",
        ]
        for each in subscriptions(root, topic.topic)
    ]  # fmt: skip
    if rows:
        yield from table(HEADS, sorted(rows))
    else:
        yield f"{topic.topic} has no subscription that a broker knows of."


@SUBSCRIPTIONS.command(
    "create",
    "Create a durable subscription. Pulsar: create-subscription.",
    TOPIC,
    _SUBSCRIPTION,
    argument("--latest", action="store_true", help="at the end, not at the beginning"),
)
def _create(root: Root, arguments: Namespace) -> Iterator[str]:
    topic = opened(root, arguments, "subscribed to")
    check_subscription_name(arguments.subscription)
    where = InitialPosition.LATEST if arguments.latest else InitialPosition.EARLIEST
    name = arguments.subscription
    ask(root, {at: CreateSubscription(name, where, request_id()) for at in _partitions(topic)})
    yield f"Created {name} on {topic.topic}, at the {where.value.lower()}."


@SUBSCRIPTIONS.command(
    "seek",
    "Go on from somewhere else. Pulsar: reset-cursor.",
    TOPIC,
    _SUBSCRIPTION,
    one_of(
        argument("--to", metavar="ID", help="earliest, latest, or LEDGER:ENTRY:PARTITION"),
        argument("--to-time", metavar="TIME", help="the first that was published since"),
    ),
)
def _seek(root: Root, arguments: Namespace) -> Iterator[str]:
    topic = opened(root, arguments, "subscribed to")
    commands = {each: _seek_of(each, arguments) for each in _partitions(topic)}
    ask(root, {each: command for each, command in commands.items() if command is not None})
    where = arguments.to or arguments.to_time
    yield f"{arguments.subscription} on {topic.topic} goes on from {where}."


@SUBSCRIPTIONS.command(
    "delete",
    "Delete a subscription that nobody is connected to. Pulsar: unsubscribe.",
    TOPIC,
    _SUBSCRIPTION,
)
def _delete(root: Root, arguments: Namespace) -> Iterator[str]:
    topic = opened(root, arguments, "subscribed to")
    name = arguments.subscription
    ask(root, {at: Unsubscribe(name, request_id=request_id()) for at in _partitions(topic)})
    yield f"Deleted {name} on {topic.topic}."


def _seek_of(about: TopicPartition, arguments: Namespace) -> Seek | None:
    """What to tell one partition; None if the message id is of another."""
    name, number = arguments.subscription, request_id()
    if arguments.to_time:
        at_ms = time_ms("--to-time", arguments.to_time)
        return Seek(name, timestamp_ms=at_ms, request_id=number)
    if arguments.to in ("earliest", "latest"):
        seek = Seek(name, EARLIEST if arguments.to == "earliest" else LATEST)
        return Seek(name, seek.position, request_id=number)
    try:
        message_id = MessageId.parse(arguments.to)
    except ValueError as error:
        raise InvalidOptionError(
            f"--to {arguments.to}: it takes earliest, latest, or a message id "
            "LEDGER:ENTRY:PARTITION[:INDEX] as peek prints it."
        ) from error
    if message_id.partition not in (-1, about.partition):
        return None
    return Seek(name, message_id.position, message_id.batch_index, request_id=number)


def _partitions(topic: ManagedLedger) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, number) for number in range(topic.state.partitions)]
