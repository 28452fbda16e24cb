"""`pulsarlite read TOPIC`: messages from a place of one's own choice, without a subscription.

Invariant: nobody else notices, so it needs no broker. Options and output follow pulsar-client's
`CmdRead` 4.0.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from typing import Final

from pulsar_spark.connector.client.message import MessageId
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.noun import TOPIC, Command, Printed, argument
from pulsar_spark.connector.tools.message_commands import received_messages
from pulsar_spark.connector.tools.message_commands.connection import Signals, connected
from pulsar_spark.connector.tools.message_commands.received_messages import (
    Received,
    queue_size,
    schema_of,
)


def _message_id(text: str) -> MessageId:
    ends = {"earliest": MessageId.earliest, "latest": MessageId.latest}
    if text in ends:
        return ends[text]
    found = re.fullmatch(r"(\d+):(-?\d+)(?::(-?\d+))?(?::(-?\d+))?", text)
    if found is None:
        raise ArgumentTypeError(
            f"{text} is neither latest nor earliest, nor LEDGER:ENTRY[:PARTITION[:INDEX]]"
        )
    ledger_id, entry_id, partition, batch_index = (int(each or -1) for each in found.groups())
    return MessageId(partition, ledger_id, entry_id, batch_index)


_ARGUMENTS: Final = (
    TOPIC,
    argument(
        "-m", "--start-message-id", type=_message_id, default="latest", metavar="ID",
        help="behind which message to begin: latest (the default), earliest, or "
        "LEDGER:ENTRY[:PARTITION[:INDEX]] as --print-metadata shows it",
    ),
    argument(
        "-i", "--start-message-id-inclusive", action="store_true",
        help="begin with that message itself",
    ),
    *received_messages.ARGUMENTS,
)  # fmt: skip


def _read(root: Root, arguments: Namespace) -> Iterator[Printed]:
    received = Received(root, arguments, "read")
    return received.printed_lines(_received(root, arguments, received))


def _received(root: Root, arguments: Namespace, received: Received) -> Iterator[Printed]:
    with Signals() as signals, connected(root, signals) as client:
        with signals.waiting():
            reader = client.create_reader(
                arguments.name,
                arguments.start_message_id,
                schema_of(arguments),
                receiver_queue_size=queue_size(arguments),
                start_message_id_inclusive=arguments.start_message_id_inclusive,
            )
        yield from received.shown(reader, signals)


READ: Final = Command(
    "Print messages from a place of your choice on. Pulsar: pulsar-client read.", _ARGUMENTS, _read
)
add_to = READ.add_to
