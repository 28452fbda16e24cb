"""`pulsarlite subscriptions ...`: what each of these commands does, as the lines that it prints.

Invariants: no Spark; `list` only looks; the others wait for the broker's answer.
Follows pulsar-admin's `CmdTopics` (subscriptions, create-subscription, reset-cursor, unsubscribe).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping

from pulsar_spark.connector.command_line.topics_command import root_of, table
from pulsar_spark.connector.source.start_positions import StartPosition
from pulsar_spark.connector.system.subscription_admin import ask, request_id, subscriptions
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.protocol.commands import CreateSubscription, InitialPosition, Seek, Unsubscribe
from pulsar_spark.topic_name import (
    TopicName,
    TopicPartition,
    check_subscription_name,
    check_user_topic,
)

HEADS = [
    "subscription", "partition", "type", "mark-delete", "backlog", "waiting", "delayed", "consumers"
]  # fmt: skip


def run(arguments: Namespace) -> Iterator[str]:
    """The lines that a command prints. PulsarliteError if it can't be done."""
    root = root_of(arguments)
    commands: Mapping[str, Callable[[Root, ManagedLedger, Namespace], Iterator[str]]] = {
        "list": _list,
        "create": _create,
        "seek": _seek,
        "delete": _delete,
    }
    topic = root.open(check_user_topic(TopicName.parse(arguments.name), "subscribed to"))
    return commands[arguments.command](root, topic, arguments)


def _list(root: Root, topic: ManagedLedger, _arguments: Namespace) -> Iterator[str]:
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


def _create(root: Root, topic: ManagedLedger, arguments: Namespace) -> Iterator[str]:
    check_subscription_name(arguments.subscription)
    where = InitialPosition.LATEST if arguments.latest else InitialPosition.EARLIEST
    ask(
        root,
        {
            each: CreateSubscription(arguments.subscription, where, request_id())
            for each in _partitions(topic)
        },
    )
    yield f"Created {arguments.subscription} on {topic.topic}, at the {where.value.lower()}."


def _seek(root: Root, topic: ManagedLedger, arguments: Namespace) -> Iterator[str]:
    commands = {}
    for each in _partitions(topic):
        command = _seek_of(each, arguments)
        if command is not None:
            commands[each] = command
    ask(root, commands)
    where = arguments.to or arguments.to_time
    yield f"{arguments.subscription} on {topic.topic} goes on from {where}."


def _delete(root: Root, topic: ManagedLedger, arguments: Namespace) -> Iterator[str]:
    ask(
        root,
        {
            each: Unsubscribe(arguments.subscription, request_id=request_id())
            for each in _partitions(topic)
        },
    )
    yield f"Deleted {arguments.subscription} on {topic.topic}."


def _seek_of(about: TopicPartition, arguments: Namespace) -> Seek | None:
    """What to tell one partition; None if the message id is of another."""
    name, number = arguments.subscription, request_id()
    if arguments.to_time:
        time_ms = StartPosition.parse_time("--to-time", arguments.to_time).time_ms
        return Seek(name, timestamp_ms=time_ms, request_id=number)
    if arguments.to in ("earliest", "latest"):
        seek = Seek.to_earliest(name) if arguments.to == "earliest" else Seek.to_latest(name)
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
