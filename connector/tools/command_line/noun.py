"""A command, and a noun of the command line, `pulsarlite NOUN COMMAND`, with which some register.

    TOPICS = Noun("List, create and look after topics.")

    @TOPICS.command("create", "Create a topic. Pulsar: create-partitioned-topic.", TOPIC)
    def _create(root: Root, arguments: Namespace) -> Iterator[str]: ...

Invariants: a command is declared where it is done; what it yields is printed line by line, and is
printed before it goes on; what it returns is the exit status, nothing stands for 0; every command
that works on a store takes `--service-url` and `--storage`. The first sentence of a command's text
is its summary in the noun's list.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

from pulsar_spark.connector.runtime.topics.ledger_store import Progress, no_progress
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root, service_url_of
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import TopicName, check_user_topic
from pulsar_spark.options.option_values import Kind
from pulsar_spark.options.options import SERVICE_URL_VARIABLE

Printed = str | bytes
"""A line; bytes are written as they are, with a newline."""
Done = Callable[[Root, Namespace], Iterator[Printed]]
Argument = Callable[[Any], None]
"""Adds itself to a parser, or to a group of one."""


def argument(*flags: str, **options: Any) -> Argument:
    """The arguments of `ArgumentParser.add_argument`."""
    return methodcaller("add_argument", *flags, **options)


def at_least(least: int) -> Callable[[str], int]:
    """For `argument(type=...)`: a whole number that is not below that."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise ArgumentTypeError(f"{text} is below {least}")
        return value

    number.__name__ = "whole number"
    return number


def port(text: str) -> int:
    """For `argument(type=...)`: where to listen, 0 for any free one."""
    if (number := int(text)) not in range(65_536):
        raise ArgumentTypeError(f"{text} is not between 0 and 65535")
    return number


def one_of(*choices: Argument, required: bool = True) -> Argument:
    """Arguments of which exactly one has to be given, or, if none is required, at most one."""

    def add_to(parser: ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for each in choices:
            each(group)

    return add_to


SERVICE_URL = argument(
    "-u",
    "--service-url",
    metavar="URL",
    help="where the topics lie: a folder, file://, s3://, gs:// or az:// "
    f"(default: the environment's {SERVICE_URL_VARIABLE})",
)
STORAGE = argument(
    "--storage",
    action="append",
    default=[],
    metavar="NAME=VALUE",
    help="an option of the object store, such as aws_endpoint=http://127.0.0.1:9000",
)
TOPIC = argument("name", metavar="TOPIC", help="the topic's name")


SHORT_SECONDS = 0.5
"""Work that is done sooner has no bar."""


class Command(NamedTuple):
    """A command: its purpose, its arguments beside the store, and the function that runs it."""

    text: str
    arguments: tuple[Argument, ...]
    done: Done
    is_listed: bool = True

    @property
    def summary(self) -> str:
        return self.text.split(". ", maxsplit=1)[0].rstrip(".")

    def add_to(self, parser: ArgumentParser) -> None:
        parser.description = self.text
        for each in (SERVICE_URL, STORAGE, *self.arguments):
            each(parser)
        parser.set_defaults(run=partial(_run, self.done), group=parser)


class Noun:
    """A group of commands about one kind of thing."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._commands: dict[str, Command] = {}

    def command(
        self, name: str, text: str, *arguments: Argument, is_listed: bool = True
    ) -> Callable[[Done], Done]:
        """Register the function below as `pulsarlite NOUN name`, in the noun's list or not."""

        def register(done: Done) -> Done:
            self._commands[name] = Command(text, arguments, done, is_listed)
            return done

        return register

    def add_to(self, parser: ArgumentParser) -> None:
        parser.description = self._description
        parser.set_defaults(group=parser)
        commands = parser.add_subparsers(title="commands", metavar="COMMAND")
        for name, each in self._commands.items():
            summary: dict[str, Any] = {"help": each.summary} if each.is_listed else {}
            each.add_to(commands.add_parser(name, **summary))


def _run(done: Done, arguments: Namespace) -> int:
    status: list[int] = []
    with closing(_generator(done(root_of(arguments), arguments), status)) as lines:
        for line in lines:
            if isinstance(line, bytes):
                sys.stdout.flush()
                sys.stdout.buffer.write(line + b"\n")
            else:
                print(line)
            sys.stdout.flush()
    return next(iter(status), 0)


def _generator(lines: Any, status: list[int]) -> Generator[Printed, None, None]:
    """The lines of a generator, then its status; if nobody takes them any more, it is ended."""
    if (returned := (yield from lines)) is not None:
        status.append(returned)


def pairs(flag: str, given: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE, as often as that flag was given. InvalidOptionError without a `=`."""
    found = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidOptionError(f"{flag} {pair}: it takes NAME=VALUE.")
        found[name] = value
    return found


def root_of(arguments: Namespace) -> Root:
    """The root that a command names, or the environment's."""
    url = service_url_of(arguments.service_url)
    if not url:
        raise InvalidOptionError(
            "Where do the topics lie? Say --service-url FOLDER (or s3://bucket/prefix), or set "
            f"{SERVICE_URL_VARIABLE}."
        )
    return Root.at(url, pairs("--storage", arguments.storage))


def parsed(flag: str, text: str, kind: Kind) -> Any:
    """The value that a flag was given. InvalidOptionError if it is not of that kind."""
    try:
        return kind.parse(text)
    except ValueError:
        raise InvalidOptionError(f"{flag} {text}: it takes {kind.expects}.") from None


def opened(root: Root, arguments: Namespace, to_be: str = "") -> ManagedLedger:
    """The topic that a command names; with `to_be`, «trimmed» say, no system topic."""
    topic = TopicName.parse(arguments.name)
    return root.open(check_user_topic(topic, to_be) if to_be else topic)


@contextmanager
def progress_bar(unit: str = " messages") -> Iterator[Progress]:
    """For long work: a bar on standard error while it lasts, if that is a terminal.

    It shows one thing that is done at a time, and leaves nothing behind when that is done: print
    then, not before.

        with progress_bar() as progress:
            done = compact(ledger, progress=progress)
    """
    if not sys.stderr.isatty():
        yield no_progress
        return
    from tqdm import tqdm

    with ExitStack() as shown:

        def progress(doing: str, total: int) -> Callable[[int], object]:
            shown.close()
            bar = tqdm(
                desc=doing, total=total, unit=unit, unit_scale=True, dynamic_ncols=True,
                delay=SHORT_SECONDS, leave=False, file=sys.stderr,
            )  # fmt: skip
            shown.enter_context(bar)

            def advance(done: int) -> None:
                bar.update(done)
                if bar.n >= total:
                    shown.close()

            return advance

        yield progress


def table(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Columns of equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for first, *others in [heads, *rows]:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()
