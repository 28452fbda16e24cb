"""`pulsarlite subscriptions ...`: what each of these commands does, as the lines that it prints.

Invariants: no Spark; `list` only looks; the others wait for the broker's answer.
Follows pulsar-admin's `CmdTopics` (subscriptions, create-subscription, reset-cursor, unsubscribe).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

from pulsar_spark.connector.command_line.noun import (
    TOPIC,
    Noun,
    argument,
    one_of,
    opened,
    parsed,
    table,
)
from pulsar_spark.connector.system.subscription_admin import ask, subscriptions
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.option_values import TIME, Kind
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.positions.position import EARLIEST, LATEST
from pulsar_spark.protocol.commands import CreateSubscription, InitialPosition, Seek, Unsubscribe
from pulsar_spark.subscriptions.breaker import BreakerPhase
from pulsar_spark.topic_name import TopicPartition, check_subscription_name

HEADS = [
    "subscription", "partition", "type", "mark-delete", "backlog", "waiting", "delayed", "consumers"
]  # fmt: skip

SUBSCRIPTIONS: Final = Noun(
    "List, create, move and delete subscriptions. All but list need a broker."
)
add_to = SUBSCRIPTIONS.add_to
_SUBSCRIPTION: Final = argument("subscription", metavar="SUBSCRIPTION")
_SEEKS_TO: Final = Kind(
    MessageId.parse,
    "earliest, latest, or a message id LEDGER:ENTRY:PARTITION[:INDEX] as peek prints it",
)


@SUBSCRIPTIONS.command("list", "Show positions, backlogs and consumers. Pulsar: stats.", TOPIC)
def _list(root: Root, arguments: Namespace) -> Iterator[str]:
    topic = opened(root, arguments, "subscribed to")
    known = subscriptions(root, topic.topic)
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
        for each in known
    ]  # fmt: skip
    if rows:
        yield from table(HEADS, sorted(rows))
        for each in known:
            if each.breaker != BreakerPhase.CLOSED.value:
                place = f"{each.name}, partition {each.topic_partition.partition}"
                yield f"breaker of {place}: {each.breaker}"
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
    check_subscription_name(arguments.subscription)
    where = InitialPosition.LATEST if arguments.latest else InitialPosition.EARLIEST
    done = _ask(root, arguments, CreateSubscription(arguments.subscription, where))
    yield f"Created {done}, at the {where.value.lower()}."


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
    name, only = arguments.subscription, -1
    if arguments.to_time:
        seek = Seek(name, timestamp_ms=parsed("--to-time", arguments.to_time, TIME))
    elif arguments.to == "earliest":
        seek = Seek(name, EARLIEST)
    elif arguments.to == "latest":
        seek = Seek(name, LATEST)
    else:
        message_id = parsed("--to", arguments.to, _SEEKS_TO)
        only = message_id.partition
        seek = Seek(name, message_id.position, message_id.batch_index)
    done = _ask(root, arguments, seek, only)
    yield f"{done} goes on from {arguments.to or arguments.to_time}."


@SUBSCRIPTIONS.command(
    "delete",
    "Delete a subscription that nobody is connected to. Pulsar: unsubscribe.",
    TOPIC,
    _SUBSCRIPTION,
)
def _delete(root: Root, arguments: Namespace) -> Iterator[str]:
    yield f"Deleted {_ask(root, arguments, Unsubscribe(arguments.subscription))}."


def _ask(root: Root, arguments: Namespace, command: Any, only: int = -1) -> str:
    """Have it done on the topic, or on one partition of it; to what it was done."""
    ledger = opened(root, arguments, "subscribed to")
    partitions = range(ledger.state.partitions)
    if only not in (-1, *partitions):
        raise InvalidOptionError(
            f"--to {arguments.to} names no partition of {ledger.topic}, which has "
            f"{len(partitions)}."
        )
    chosen = partitions if only == -1 else [only]
    ask(root, {TopicPartition(ledger.topic, each): command for each in chosen})
    return f"{arguments.subscription} on {ledger.topic}"
