"""`pulsarlite COMMAND`: the demo, the broker, messages, and looking after topics.

Invariants: what goes wrong on purpose is one clear line on standard error and exit status 1,
never a traceback; bad usage is status 2, as argparse has it, Ctrl-C 130 and SIGTERM 143; only what
a command needs is imported, and Spark by `demo` and `standalone` alone. Names follow Pulsar's
`pulsar-client`, `pulsar-perf` and `pulsar-admin`, which each help text names.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from pulsar_spark.connector.client.client_errors import Interrupted, PulsarException
from pulsar_spark.errors import PulsarliteError
from pulsar_spark.version import __version__

COMMANDS: Final = {
    "demo": (
        "pulsar_spark.connector.tools.command_line.demo_command",
        "publish 336,776 real flights into a topic and read them all back",
    ),
    "produce": (
        "pulsar_spark.connector.tools.message_commands.produce_command",
        "publish messages",
    ),
    "consume": (
        "pulsar_spark.connector.tools.message_commands.consume_command",
        "print the messages of a subscription, and acknowledge them",
    ),
    "read": (
        "pulsar_spark.connector.tools.message_commands.read_command",
        "print messages from a place of your choice on",
    ),
    "perf": (
        "pulsar_spark.connector.tools.message_commands.perf_command",
        "measure how fast messages are published and consumed",
    ),
    "doctor": (
        "pulsar_spark.connector.tools.command_line.doctor_command",
        "look for what is not well on this machine and with a root",
    ),
    "standalone": (
        "pulsar_spark.connector.tools.command_line.standalone_command",
        "run the broker, which subscriptions need",
    ),
    "topics": (
        "pulsar_spark.connector.tools.command_line.topics_command",
        "list, create, look into and look after topics",
    ),
    "subscriptions": (
        "pulsar_spark.connector.tools.command_line.subscriptions_command",
        "list, create, move and delete subscriptions",
    ),
    "metrics": (
        "pulsar_spark.connector.tools.command_line.metrics_command",
        "print or serve metrics of all topics for Prometheus",
    ),
    "dashboard": (
        "pulsar_spark.connector.tools.dashboard.dashboard_command",
        "show topics, subscriptions and dead letters in a browser of this machine",
    ),
    "topicPolicies": (
        "pulsar_spark.connector.tools.command_line.topic_policies_command",
        "what holds for a topic",
    ),
    "namespaces": (
        "pulsar_spark.connector.tools.command_line.namespaces_command",
        "list, create and delete namespaces, and what holds for all their topics",
    ),
    "tenants": (
        "pulsar_spark.connector.tools.command_line.tenants_command",
        "list, create and delete tenants",
    ),
    "schemas": (
        "pulsar_spark.connector.tools.command_line.schemas_command",
        "look at the schemas of a topic, and add one",
    ),
}
"""Command -> the module whose `add_to` declares the rest, and a summary."""

_EPILOG = """\
examples:
  pulsarlite demo
  pulsarlite produce orders -m hello --service-url pulsarlite-demo
  pulsarlite consume orders -s billing -p Earliest -n 0 --service-url pulsarlite-demo
  pulsarlite standalone --service-url pulsarlite-demo
  pulsarlite topics list --service-url pulsarlite-demo
  pulsarlite topics peek flights -n 3 --service-url pulsarlite-demo
  export PULSARLITE_SERVICE_URL=s3://bucket/prefix; pulsarlite topics create orders -p 4

A topic is called `orders`, `tenant/namespace/orders` or `persistent://tenant/namespace/orders`.
"""


class Parser(argparse.ArgumentParser):
    """Offers the nearest command for one that there is not, and not the list of all."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if not isinstance(action, argparse._SubParsersAction) or value in action.choices:  # noqa: SLF001 - argparse has no other name for it
            super()._check_value(action, value)
            return
        near = difflib.get_close_matches(value, action.choices, n=1)
        offer = f"Did you mean {near[0]}?" if near else f"{self.prog} --help lists them."
        raise argparse.ArgumentError(None, f"there is no command {value}. {offer}")


def main(argv: Sequence[str]) -> int:
    """Run one command; the process's exit status."""
    arguments, unknown = parser_of(argv).parse_known_args(argv)
    if unknown:
        arguments.group.error(_unknown(unknown, arguments.group))
    if "run" not in arguments:
        arguments.group.print_help()
        return 0 if not argv else 2
    try:
        return int(arguments.run(arguments))
    except (KeyboardInterrupt, Interrupted) as error:
        print("\npulsarlite: interrupted; what was done stays done", file=sys.stderr)
        return 128 + getattr(error, "signal_number", signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `... | head` is no error
        return 0
    except Exception as error:
        own = isinstance(error, (PulsarliteError, PulsarException))
        message = str(error) if own else pulsarlite_message(str(error))
        if message is None:
            raise
        print(f"pulsarlite: {message}", file=sys.stderr)
        return 1


def parser_of(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands, of which only the one that `argv` names is filled in."""
    parser = Parser(
        prog="pulsarlite",
        description="Apache Pulsar's messaging for Spark, with nothing to operate.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pulsarlite {__version__}")
    parser.set_defaults(group=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        command.set_defaults(group=command)
        if name in argv[:1]:
            import_module(module).add_to(command)
    return parser


def _unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """The error for words that a command does not know, with the nearest option."""
    known = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001 - argparse has no other list
    text = f"unrecognized arguments: {' '.join(words)}"
    near = difflib.get_close_matches(words[0].partition("=")[0], known, n=1)
    return f"{text}. Did you mean {near[0]}?" if near else text


def pulsarlite_message(text: str) -> str | None:
    """The message of Pulsarlite's error that Spark has wrapped; None if there is none.

    >>> pulsarlite_message("[X] py4j\\n  y\\npulsar_spark.errors.StorageError: [STORAGE] full\\n")
    '[STORAGE] full'
    """
    found = re.findall(r"pulsar_spark\.errors\.\w+: (\[[A-Z_]+\] [^\n]+)", text)
    return found[-1].strip() if found else None
