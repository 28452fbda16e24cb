"""`pulsarlite topics redrive`: dead letters go back, and what became of them is printed.

Invariants: no Spark; with `--dry-run` nothing is changed and no broker needed; the exit status is 1
if letters that match had to stay.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Generator
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from pulsar_spark.broker.subscriptions.dead_letter import REDRIVE_SUBSCRIPTION, Reason
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.noun import (
    TOPIC,
    Noun,
    Printed,
    argument,
    parsed,
    progress_bar,
)
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.option_values import TIME, Kind

if TYPE_CHECKING:
    from pulsar_spark.connector.runtime.housekeeping.redrive import DeadLetterFilter, Redriven

_ID: Final = Kind(MessageId.parse, "a message id LEDGER:ENTRY:PARTITION[:INDEX] as peek prints it")
_REASONS: Final = [each.value for each in Reason]


def register_redrive(noun: Noun) -> None:
    """Add the command to a noun."""
    noun.command(
        "redrive",
        "Publish dead letters where they came from, all or those that match. For that topic's "
        "other subscriptions they are new messages too; --to sends them elsewhere. TOPIC is the "
        "dead letter topic; its letters are acknowledged for the subscription of --subscription. "
        "A broker has to run. Exit status 1 if letters had to stay. Not in Pulsar.",
        TOPIC,
        argument("--origin-topic", metavar="TOPIC", help="only letters that came from there"),
        argument("--dead-lettered-by", metavar="SUBSCRIPTION", help="only those that it gave up"),
        argument("--reason", choices=_REASONS, help="only those that were buried for that"),
        argument("--error", metavar="TEXT", help="only those whose error has this text"),
        argument("--key", help="only those with that key"),
        argument(
            "--property", action="append", default=[], metavar="NAME=VALUE",
            help="only those with that property; may be repeated: all of them",
        ),
        argument("--since", metavar="TIME", help="only those that became letters since"),
        argument("--until", metavar="TIME", help="only those that became letters before"),
        argument(
            "--id", action="append", default=[], metavar="ID",
            help="only the letter with that id; may be repeated: one of them",
        ),
        argument("--to", metavar="TOPIC", help="publish them there, not where they came from"),
        argument(
            "--subscription", default=REDRIVE_SUBSCRIPTION,
            help="whose letters go back, and are then acknowledged; it is made if it is missing "
            "(default: %(default)s)",
        ),
        argument("--dry-run", action="store_true", help="print what it would do"),
        argument("--json", action="store_true", help="as one JSON document"),
    )(_redrive)  # fmt: skip


def _redrive(root: Root, arguments: Namespace) -> Generator[Printed, None, int]:
    from pulsar_spark.connector.runtime.housekeeping.redrive import Redrive  # it loads pyspark

    topic = TopicName.parse(arguments.name)
    run = Redrive(root, topic, _requested(arguments), arguments.to, arguments.subscription)
    if arguments.dry_run:
        done = run.look()
    else:
        with progress_bar(" letters") as progress:
            done = run.run(progress)
    if arguments.json:
        yield json.dumps(asdict(done))
    else:
        yield from _lines(done)
    return 1 if done.left else 0


def _lines(done: Redriven) -> Generator[Printed, None, None]:
    if not done.dead_letters:
        yield f"{done.topic} has no letter that {done.subscription} has yet to send back."
    word = "would go to" if done.dry_run else "went to"
    for target, count in sorted(done.redriven.items()):
        yield f"{count:,} {word} {target}"
    for why, count in done.left.items():
        yield f"{count:,} {'would stay' if done.dry_run else 'stayed'}: {why}"


def _requested(arguments: Namespace) -> DeadLetterFilter:
    from pulsar_spark.connector.runtime.housekeeping.redrive import DeadLetterFilter

    pairs = [pair.partition("=") for pair in arguments.property]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise InvalidOptionError(f"--property {wrong[0]}: it takes NAME=VALUE.")
    origin = arguments.origin_topic
    return DeadLetterFilter(
        None if origin is None else str(TopicName.parse(origin)),
        arguments.dead_lettered_by,
        arguments.reason,
        arguments.error,
        arguments.key,
        {name: text for name, _, text in pairs},
        _time("--since", arguments.since),
        _time("--until", arguments.until),
        tuple(parsed("--id", each, _ID) for each in arguments.id),
    )


def _time(flag: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.fromtimestamp(parsed(flag, text, TIME) / 1000, timezone.utc)
