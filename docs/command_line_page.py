"""docs/command-line.md, from the parsers of the commands, with what is not as in Pulsar's tools."""

from __future__ import annotations

from argparse import Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator, Sequence
from typing import Final

from pulsar_spark.connector.tools.command_line.command_line import COMMANDS, parser_of
from pulsar_spark.options.topic_policies import POLICIES

HEAD: Final = """\
# The command line

`pulsarlite COMMAND` looks after topics, sends and receives. Only `demo` and `standalone` start
Spark; the others need neither Spark nor Java. This page is made from the
[commands](../connector/tools/command_line/command_line.py).

```sh
export PULSARLITE_SERVICE_URL=/data/pulsarlite  # or --service-url with each
pulsarlite produce orders -m hello
pulsarlite consume orders -s billing -p Earliest -n 0
```

`produce`, `consume` and `read` are those of Pulsar's `pulsar-client`, and `perf` is `pulsar-perf`:
options, defaults and output are those of version 4.0, which tests compare with
[recordings](../tests/recorded/pulsar-client-tools.txt) of them. The other commands have the names
of `pulsar-admin`'s. Those for policies of topics and namespaces are in [policies](policies.md).

When something does not work, `pulsarlite doctor --service-url ...` says what is not well and what
to do: Python and packages here and in Spark's workers, Java, the state store's provider, what the
file system or bucket promises, the broker's sign of life, each topic's log and checksums.
`pulsarlite topics verify` proves that nothing was lost, doubled or altered: [verify](verify.md).
Commands that take long show a bar while they work, if standard error is a terminal.

## Which broker serves
A subscription needs a broker, so `consume` and `perf consume` do. So do commands that make, move or
delete subscriptions, which wait a minute for one that runs; the others do not.

`--broker auto`, the default, uses the one that runs (`pulsarlite standalone`, or a process with an
embedded one). If none does, the command serves the root itself until it ends, and says so;
meanwhile other commands and queries may use it, and none else can be started. `--broker running` is
an error if none runs: say that where a broker belongs to the installation. A broker that goes later
is waited for.

## How a command ends
| exit status | |
| --- | --- |
| 0 | done; also if whoever reads the output wants no more (`pulsarlite consume ... \\| head -2`) |
| 0 | Ctrl-C, of what runs until then: `standalone`, `dashboard`, `metrics --port` |
| 1 | it failed, and one line on standard error says why; `pulsar-client` has 255 |
| 2 | an option is wrong |
| 130, 143 | Ctrl-C, SIGTERM, of any other |

A consumer acknowledges a message once it is written out. Those that it has taken ahead go back to
the subscription when it ends; after `kill -9`, when its lease has lapsed. What `produce` counts is
durable. `produce -f - --lines` publishes while it reads.

A message goes into a pipe or a file as its bytes are; a terminal gets control characters escaped.
With `--json` standard output has a line of JSON for each message, and nothing else.

## What is otherwise than in Pulsar's tools
- Lines come without log4j's columns of time, thread and class.
- `-p` and `-f` split at commas, as Pulsar's help says (Pulsar 4.0 does not). `-s` splits at the
  text itself; there it is a regular expression.
- `--hex` always has an effect; there only with `-pm false`. A record is shown with its fields in
  the order of its schema.
- `produce` takes any number of messages; there it is 1,000. Those that are sent without a `--rate`
  share entries, so their ids have a batch index.
- `perf` ends when the last message has come or the time is over; there up to ten seconds later,
  which its rates include. `--report-every` says how often it prints a line. Latencies are kept to
  four digits.

## Not here
A test compares this table with version 4.0.

| option | why |
| --- | --- |
"""
NO_NETWORK: Final = "there is no network, and nobody to log in to"
NO_ENCRYPTION: Final = "messages are not encrypted: encrypt the disk or the bucket"
NO_TRANSACTIONS: Final = "it measures messages outside of transactions only"
NO_KEY_VALUE: Final = "Pulsarlite has no KEY_VALUE schemas: `-k` sets a message's key"
MISSING: Final = (
    ("-v, --version", "of the whole command: `pulsarlite --version`"),
    ("-ks, -kvet, -kvk, -kvkf", NO_KEY_VALUE),
    ("-ekn, -ekv", NO_ENCRYPTION),
    ("--encryption-key-name, --encryption-key-value-file", NO_ENCRYPTION),
    ("--auth-params, --auth-plugin, --auth_plugin", NO_NETWORK),
    ("--listener-name, --proxy-protocol, --proxy-url, --trust-cert-file", NO_NETWORK),
    ("--ssl-factory-plugin, --ssl-factory-plugin-params", NO_NETWORK),
    ("--tls-allow-insecure, --tls-enable-hostname-verification", NO_NETWORK),
    ("--max-connections, --max-lookup-request, --num-io-threads, --busy-wait", NO_NETWORK),
    ("--admin-url", "`-np` needs no other address"),
    ("--memory-limit", "64 MiB of messages wait at most"),
    ("--max-outstanding-across-partitions", "`-o` is of a whole topic"),
    ("--num-listener-threads, --num-test-threads", "one thread sends or receives: start several"),
    ("--stats-interval-seconds", "the client keeps no statistics: see `--report-every`"),
    ("--histogram-file", "the lines have the percentiles"),
    ("--format-class", "`-fp` has one format"),
    ("-txn, -tto, -nmt, -ntxn, -abort", NO_TRANSACTIONS),
    ("--auto-scaled-receiver-queue-size", "`-q` is the size"),
    ("--subscriber-name", "hidden in Pulsar: `-ss` is the prefix"),
)
"""(options, why)."""


def page() -> str:
    """The whole page, but for the line that says who made it."""
    missing = "".join(f"| {_code(names.split(', '))} | {why} |\n" for names, why in MISSING)
    commands = "".join(f"| `{name}` | {summary} |\n" for name, (_, summary) in COMMANDS.items())
    return "".join(
        (
            HEAD, missing, "\n## All commands\n| command | |\n| --- | --- |\n", commands,
            *(_section(name, parser) for name, parser in parsers() if not _is_policys(name)),
        )
    )  # fmt: skip


def _is_policys(name: str) -> bool:
    """Whether the command is for one policy: docs/policies.md tells of those."""
    names = [each for policy in POLICIES for each in (policy.name, *policy.also)]
    verb, _, policy = name.rsplit(" ", maxsplit=1)[-1].partition("-")
    return verb in ("set", "get", "remove") and policy in names


def parsers() -> Iterator[tuple[str, ArgumentParser]]:
    """Each command, as it is typed, and its parser."""
    for name in COMMANDS:
        parser = _below(parser_of([name]))[name]
        below = _below(parser)
        if not below:
            yield name, parser
        yield from ((f"{name} {each}", command) for each, command in below.items())


def options_of(command: str) -> list[Action]:
    """The options and arguments of a command."""
    return _actions(dict(parsers())[command])


def _below(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    for action in _actions(parser):
        if isinstance(action, _SubParsersAction):
            return dict(action.choices)
    return {}


def _actions(parser: ArgumentParser) -> list[Action]:
    return list(parser._actions)  # noqa: SLF001 - argparse tells nobody else


def _section(name: str, parser: ArgumentParser) -> str:
    rows = "".join(map(_row, (each for each in _actions(parser) if each.dest != "help")))
    return f"\n### {name}\n{parser.description}\n\n| | |\n| --- | --- |\n{rows}"


def _row(action: Action) -> str:
    named = action.option_strings or [str(action.metavar or action.dest)]
    takes = ""
    if action.option_strings and action.nargs != 0:
        choices = "\\|".join(map(str, action.choices)) if action.choices else None
        takes = f" `{choices or action.metavar or action.dest.upper()}`"
    values = {"default": _default(action.default)}
    said = str(action.help or "") % values
    if action.required and action.option_strings:
        said += "; has to be given"
    return f"| {_code(named)}{takes} | {said} |\n"


def _default(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) else str(value)


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
