"""A noun of the command line, `pulsarlite NOUN COMMAND`, and how its commands register.

    TOPICS = Noun("topics", "list, create and look after topics", "...")

    @TOPICS.command("create", "Create a topic. Pulsar: create-partitioned-topic.", TOPIC)
    def _create(root: Root, arguments: Namespace) -> Iterator[str]: ...

Invariants: a command is declared where it is done; what it yields is printed line by line; every
command that works on a store takes `--service-url` and `--storage`. The first sentence of a
command's text is its summary in the noun's list.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.options.option_values import TIME, parse_time_ms
from pulsar_spark.options.options import SERVICE_URL_VARIABLE

if TYPE_CHECKING:
    from pulsar_spark.connector.topic_log.topics import Root

Done = Callable[["Root", Namespace], Iterator[str]]


@dataclass(frozen=True)
class Argument:
    """What `ArgumentParser.add_argument` takes."""

    flags: tuple[str, ...]
    options: dict[str, Any]

    def add_to(self, parser: Any) -> None:
        parser.add_argument(*self.flags, **self.options)


@dataclass(frozen=True)
class OneOf:
    """Arguments of which exactly one has to be given."""

    choices: tuple[Argument, ...]
    unsaid: dict[str, Any] = field(default_factory=dict)
    """What stands for «not given» where None is a choice."""

    def add_to(self, parser: ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group(required=True)
        for each in self.choices:
            each.add_to(group)
        parser.set_defaults(**self.unsaid)


def argument(*flags: str, **options: Any) -> Argument:
    return Argument(flags, options)


def one_of(*choices: Argument) -> OneOf:
    return OneOf(choices)


SERVICE_URL = argument(
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


@dataclass(frozen=True)
class Command:
    """One command: what it takes, and the function that does it."""

    name: str
    text: str
    arguments: tuple[Argument | OneOf, ...]
    done: Done

    def add_to(self, commands: Any) -> None:
        summary = self.text.split(". ", maxsplit=1)[0].rstrip(".")
        parser = commands.add_parser(self.name, help=summary, description=self.text)
        for each in (SERVICE_URL, STORAGE, *self.arguments):
            each.add_to(parser)
        parser.set_defaults(run=self._run, command=self.name)

    def _run(self, arguments: Namespace) -> int:
        for line in self.done(root_of(arguments), arguments):
            print(line, flush=True)
        return 0


class Noun:
    """A group of commands about one kind of thing."""

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description
        self.commands: list[Command] = []

    def command(self, name: str, text: str, *arguments: Argument | OneOf) -> Callable[[Done], Done]:
        """Register the function below as `pulsarlite NOUN name`."""

        def register(done: Done) -> Done:
            self.commands.append(Command(name, text, arguments, done))
            return done

        return register

    def add_to(self, parser: ArgumentParser) -> None:
        parser.description = self.description
        parser.set_defaults(group=parser)
        commands = parser.add_subparsers(title="commands", metavar="COMMAND")
        for each in self.commands:
            each.add_to(commands)


def switch() -> OneOf:
    """--enable, --disable or --remove, as pulsar-admin has them."""
    return OneOf(
        tuple(
            argument(
                f"--{name}", dest="enabled", action="store_const", const=value, help=f"{name} it"
            )
            for name, value in (("enable", True), ("disable", False), ("remove", None))
        ),
        {"enabled": "unsaid"},  # argparse compares with the default, and --remove is None
    )


def storage_options(arguments: Namespace) -> dict[str, str]:
    """`--storage NAME=VALUE` as options of the format. InvalidOptionError without a `=`."""
    given = {}
    for pair in arguments.storage:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidOptionError(f"--storage {pair}: it takes NAME=VALUE.")
        given[f"storage.{name}"] = value
    return given


def root_of(arguments: Namespace) -> Root:
    """The root that a command names, or the environment's."""
    from pulsar_spark.connector.topic_log.topics import Root, service_url_of
    from pulsar_spark.options.options import Options

    url = service_url_of(arguments.service_url)
    if not url:
        raise InvalidOptionError(
            "Where do the topics lie? Say --service-url FOLDER (or s3://bucket/prefix), or set "
            f"{SERVICE_URL_VARIABLE}."
        )
    return Root.of(Options.parse({"serviceUrl": url, **storage_options(arguments)}))


def time_ms(name: str, text: str) -> int:
    """The argument's time. InvalidOptionError if it is none."""
    try:
        return parse_time_ms(text)
    except ValueError:
        raise InvalidOptionError(f"{name} can't be {text!r}: it takes {TIME.expects}.") from None


def table(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Columns of equal width: the first to the left, the others to the right."""
    widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
    for row in [heads, *rows]:
        cells = [
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
