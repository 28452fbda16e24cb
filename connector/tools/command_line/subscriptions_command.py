"""`pulsarlite subscriptions ...`: what each of these commands does, as the lines that it prints.

Invariants: no Spark; `list` only looks; the others wait for the broker's answer.
Follows pulsar-admin's `CmdTopics` (subscriptions, create-subscription, reset-cursor, unsubscribe).
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from pulsar_spark.broker.subscriptions.breaker import BreakerPhase
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.admin.subscriptions import ENDS, Subscriptions
from pulsar_spark.connector.tools.command_line.admin_commands import FORCE, JSON, created, printed
from pulsar_spark.connector.tools.command_line.noun import (
    TOPIC,
    Noun,
    argument,
    one_of,
    opened,
    parsed,
    table,
)
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.option_values import TIME, Kind

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


@SUBSCRIPTIONS.command(
    "list", "Show positions, backlogs and consumers. Pulsar: stats.", TOPIC, JSON
)
def _list(root: Root, arguments: Namespace) -> Iterator[str]:
    topic = opened(root, arguments, "subscribed to")
    known = subscriptions(root, topic.topic)
    if arguments.json:
        yield json.dumps([each.to_json_value() for each in known])
        return
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
    JSON,
)
def _create(root: Root, arguments: Namespace) -> Iterator[str]:
    where = "latest" if arguments.latest else "earliest"
    return _done(arguments, created(Subscriptions(root), arguments, where))


@SUBSCRIPTIONS.command(
    "seek",
    "Go on from somewhere else. Pulsar: reset-cursor.",
    TOPIC,
    _SUBSCRIPTION,
    one_of(
        argument("--to", metavar="ID", help="earliest, latest, or LEDGER:ENTRY:PARTITION"),
        argument("--to-time", metavar="TIME", help="the first that was published since"),
    ),
    JSON,
)
def _seek(root: Root, arguments: Namespace) -> Iterator[str]:
    time_ms = arguments.to_time and parsed("--to-time", arguments.to_time, TIME)
    if arguments.to not in (None, *ENDS):
        parsed("--to", arguments.to, _SEEKS_TO)
    Subscriptions(root).reset_cursor(
        arguments.name, arguments.subscription, arguments.to, timestamp_ms=time_ms
    )
    text = f"{_named(arguments)} goes on from {arguments.to or arguments.to_time}."
    return _done(arguments, text)


@SUBSCRIPTIONS.command(
    "delete",
    "Delete a subscription. Pulsar: unsubscribe.",
    TOPIC,
    _SUBSCRIPTION,
    FORCE(help="also if consumers are connected, which are thrown out"),
    JSON,
)
def _delete(root: Root, arguments: Namespace) -> Iterator[str]:
    Subscriptions(root).delete(arguments.name, arguments.subscription, force=arguments.force)
    return _done(arguments, f"Deleted {_named(arguments)}.")


def _done(arguments: Namespace, text: str) -> Iterator[str]:
    topic = str(TopicName.parse(arguments.name))
    return printed(arguments, {"topic": topic, "subscription": arguments.subscription}, text)


def _named(arguments: Namespace) -> str:
    return f"{arguments.subscription} on {TopicName.parse(arguments.name)}"
