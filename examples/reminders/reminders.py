"""Reminders that are sent later, unless they are cancelled before."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from datetime import timedelta

from pulsar_spark import pulsar

TOPIC, SUBSCRIPTION = "reminders", "mailer"


def remind(client: pulsar.Client, text: str, after: timedelta) -> str:
    """Have the text delivered after that time; the reminder's id, for `cancel`."""
    producer = client.create_producer(TOPIC)
    try:
        return producer.send(text.encode(), deliver_after=after).serialize().hex()
    finally:
        producer.close()


def cancel(client: pulsar.Client, reminder: str) -> None:
    """Acknowledge the reminder before it is delivered; returns when the broker has it."""
    consumer = subscribe(client, receiver_queue_size=1, ack_receipt_enabled=True)
    try:
        consumer.acknowledge(pulsar.MessageId.deserialize(bytes.fromhex(reminder)))
    finally:
        consumer.close()


def subscribe(
    client: pulsar.Client, *, receiver_queue_size: int = 100, ack_receipt_enabled: bool = False
) -> pulsar.Consumer:
    """The reminders' subscription: its consumers share them."""
    return client.subscribe(
        TOPIC,
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=receiver_queue_size,
        ack_receipt_enabled=ack_receipt_enabled,
    )


def run(
    consumer: pulsar.Consumer, send: Callable[[str], object], timeout_millis: int | None = None
) -> None:
    """Send each reminder when it is due; until none has come for that time, if one is given."""
    while True:
        try:
            message = consumer.receive(timeout_millis)
        except pulsar.Timeout:
            return
        try:
            send(message.data().decode())
        except OSError as error:  # such as a mail server that does not answer
            consumer.negative_acknowledge(message, error=error)
        else:
            consumer.acknowledge(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service-url", required=True, help="a folder, or s3://bucket/prefix")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("remind", help="prints the reminder's id")
    command.add_argument("text")
    command.add_argument("--seconds", type=float, required=True, help="from now")
    commands.add_parser("cancel").add_argument("reminder", help="the id")
    commands.add_parser("run", help="prints reminders when they are due, until it is stopped")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with pulsar.Client(arguments.service_url) as client:
        if arguments.command == "remind":
            print(remind(client, arguments.text, timedelta(seconds=arguments.seconds)))
        elif arguments.command == "cancel":
            cancel(client, arguments.reminder)
        else:
            run(subscribe(client), lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
