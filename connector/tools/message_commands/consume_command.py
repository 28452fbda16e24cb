"""`pulsarlite consume TOPIC -s SUBSCRIPTION`: the messages of a subscription.

Invariants: a message is acknowledged once it is written out; those that were taken ahead go back
when the command ends, however it ends. Options and output follow pulsar-client's `CmdConsume` 4.0.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from pulsar_spark.connector.client.client_settings import ConsumerType, InitialPosition
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.noun import (
    Command,
    Printed,
    argument,
    at_least,
    parsed,
)
from pulsar_spark.connector.tools.message_commands import received_messages
from pulsar_spark.connector.tools.message_commands.connection import BROKER, Signals, connected
from pulsar_spark.connector.tools.message_commands.received_messages import (
    Received,
    queue_size,
    schema_of,
)
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.log.chunked_messages import DEFAULT_MAX_PENDING
from pulsar_spark.options.option_values import MOST_COUNT, PATTERN

TYPES: Final = {
    "Exclusive": ConsumerType.Exclusive,
    "Shared": ConsumerType.Shared,
    "Failover": ConsumerType.Failover,
    "Key_Shared": ConsumerType.KeyShared,
}
POSITIONS: Final = {each.name: each for each in InitialPosition}
_ARGUMENTS: Final = (
    argument("name", metavar="TOPIC", help="the topic's name, or a pattern with --regex"),
    argument(
        "-s", "--subscription-name", required=True, metavar="NAME",
        help="the subscription; made now if there is none",
    ),
    argument(
        "-t", "--subscription-type", choices=TYPES, default="Exclusive",
        help="default: %(default)s",
    ),
    argument(
        "-m", "--subscription-mode", choices=("Durable", "NonDurable"), default="Durable",
        help="whether a new subscription outlives this command (default: %(default)s)",
    ),
    argument(
        "-p", "--subscription-position", choices=POSITIONS, default="Latest",
        help="where a new subscription begins (default: %(default)s)",
    ),
    argument("--regex", action="store_true", help="all topics whose names match"),
    argument(
        "-stp", "--start-timestamp", type=at_least(0), default=0, metavar="MS",
        help="go to the first message published since, in milliseconds since 1970; all consumers "
        "of the subscription do",
    ),
    argument(
        "-etp", "--end-timestamp", type=at_least(0), default=MOST_COUNT, metavar="MS",
        help="end at the first message published after that",
    ),
    *received_messages.ARGUMENTS,
    BROKER,
    argument("-rs", "--replicated", action="store_true", help="has no effect"),
)  # fmt: skip


def _consume(root: Root, arguments: Namespace) -> Iterator[Printed]:
    if arguments.end_timestamp < arguments.start_timestamp:
        raise InvalidOptionError("--end-timestamp is before --start-timestamp.")
    received = Received(root, arguments, "consumed")
    return received.printed_lines(_received(root, arguments, received))


def _received(root: Root, arguments: Namespace, received: Received) -> Iterator[Printed]:
    topic = arguments.name
    if arguments.regex:
        topic = re.compile(parsed("TOPIC", topic, PATTERN))
    with Signals() as signals, connected(root, signals, arguments.broker) as client:
        with signals.waiting():
            consumer = client.subscribe(
                topic,
                arguments.subscription_name,
                TYPES[arguments.subscription_type],
                schema_of(arguments),
                receiver_queue_size=queue_size(arguments),
                initial_position=POSITIONS[arguments.subscription_position],
                max_pending_chunked_message=arguments.max_chunked_msg or DEFAULT_MAX_PENDING,
                auto_ack_oldest_chunked_message_on_queue_full=arguments.auto_ack_chunk_q_full,
                options={"subscriptionMode": arguments.subscription_mode},
            )
            if arguments.start_timestamp:
                consumer.seek(arguments.start_timestamp)
        until_ms = arguments.end_timestamp
        yield from received.shown(consumer, signals, until_ms=until_ms)


CONSUME: Final = Command(
    "Print the messages of a subscription, and acknowledge them. Pulsar: pulsar-client consume.",
    _ARGUMENTS,
    _consume,
)
add_to = CONSUME.add_to
