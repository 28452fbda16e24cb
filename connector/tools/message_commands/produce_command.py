"""`pulsarlite produce TOPIC`: messages from the command line, from files or from standard input.

Invariants: what is counted as produced is durable; after an error nothing more is read, and what
was read before it is published. Options and output follow pulsar-client's `CmdProduce` 4.0.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO, Final

from pulsar_spark.connector.client.producer import Producer, refusal_of
from pulsar_spark.connector.client.records import BYTES, Schema
from pulsar_spark.connector.runtime.schema.schema_records import (
    fastavro,
    record_decoder,
    record_encoder,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.noun import (
    TOPIC,
    Command,
    Printed,
    argument,
    at_least,
)
from pulsar_spark.connector.tools.message_commands.connection import (
    RateLimiter,
    Signals,
    connected,
    counted,
    printed_lines,
)
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType

STDIN: Final = "-"
_ARGUMENTS: Final = (
    TOPIC,
    argument(
        "-m", "--messages", action="append", default=[], metavar="TEXT",
        help="messages, split at the separator; may be given several times",
    ),
    argument(
        "-f", "--files", action="append", default=[], metavar="FILES",
        help="files, split at commas, each of which is one message; - is standard input",
    ),
    argument("--lines", action="store_true", help="each line of the files is a message"),
    argument(
        "-n", "--num-produce", type=at_least(1), default=1, metavar="N",
        help="how often all of it is sent (default: %(default)s)",
    ),
    argument(
        "-r", "--rate", type=float, default=0.0, metavar="RATE",
        help="at most so many messages a second; 0, the default, is any number",
    ),
    argument(
        "-s", "--separator", default=",", metavar="TEXT",
        help="splits --messages (default: a comma); an empty one does not",
    ),
    argument(
        "-p", "--properties", action="append", default=[], metavar="NAME=VALUE",
        help="properties of each message, split at commas",
    ),
    argument("-k", "--key", help="the key of each message"),
    argument(
        "-vs", "--value-schema", default="bytes", metavar="SCHEMA",
        help="bytes (the default), string, json:DEFINITION or avro:DEFINITION, as Avro defines a "
        "record; --messages and --lines are JSON then, and files are as avro has them",
    ),
    argument("-db", "--disable-batching", action="store_true", help="an entry for each message"),
    argument(
        "-c", "--chunking", action="store_true",
        help="cut messages that are too large in chunks; they are not batched then",
    ),
    argument("-dr", "--disable-replication", action="store_true", help="has no effect"),
    argument("--json", action="store_true", help="print each message's id, as a line of JSON"),
)  # fmt: skip


class _Sent:
    """The outcome of the messages so far."""

    def __init__(self) -> None:
        self.count = 0
        self._ids: list[str] = []
        self._refusal: Exception | None = None

    def answered(self, producer: Producer, answer: MessageId | Exception) -> None:
        if isinstance(answer, Exception):
            self._refusal = self._refusal or refusal_of(answer)
        else:
            self.count += 1
            self._ids.append(producer.id_of(answer).core.text())

    def check(self) -> None:
        """The first error of a message, if there was any."""
        if self._refusal is not None:
            raise self._refusal

    def ids(self) -> Iterator[str]:
        """The ids that have come since."""
        while self._ids:
            yield json.dumps({"messageId": self._ids.pop(0)})


def _produce(root: Root, arguments: Namespace) -> Iterator[Printed]:
    schema, sent = _schema_of(arguments.value_schema), _Sent()
    properties = dict(_property(pair) for each in arguments.properties for pair in each.split(","))
    message_arguments = {"properties": properties or None, "partition_key": arguments.key}
    _check(arguments)
    lines = _produced(root, arguments, schema, message_arguments, sent)
    return printed_lines(lines, lambda: counted(arguments, sent.count, "produced"))


def _produced(
    root: Root,
    arguments: Namespace,
    schema: EncodedSchema,
    message_arguments: Mapping[str, Any],
    sent: _Sent,
) -> Iterator[Printed]:
    with Signals() as signals, connected(root, signals) as client:
        producer = client.create_producer(
            arguments.name,
            schema=schema,
            batching_enabled=not (arguments.disable_batching or arguments.chunking),
            chunking_enabled=arguments.chunking,
        )
        limiter = RateLimiter(arguments.rate, root.clock)
        try:
            for body in _bodies(arguments, schema, signals):
                limiter.acquire(signals)
                if producer.is_full():
                    producer.flush()
                producer.enqueue(partial(sent.answered, producer), body, **message_arguments)
                sent.check()
                if arguments.json:
                    yield from sent.ids()
        finally:
            producer.flush()
        if arguments.json:
            yield from sent.ids()
        sent.check()


PRODUCE: Final = Command("Publish messages. Pulsar: pulsar-client produce.", _ARGUMENTS, _produce)
add_to = PRODUCE.add_to


def _check(arguments: Namespace) -> None:
    if not arguments.messages and not arguments.files:
        raise InvalidOptionError("There is nothing to send: give --messages or --files.")
    if arguments.num_produce > 1 and any(STDIN in each.split(",") for each in arguments.files):
        raise InvalidOptionError("Standard input is read once: leave --num-produce out.")


def _property(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise InvalidOptionError(f"--properties {pair}: it takes NAME=VALUE.")
    return name, value


# -- values ------------------------------------------------------------------------------------


class EncodedSchema(Schema):
    """A schema whose values are given as bytes, which are checked."""

    def __init__(self, info: SchemaInfo) -> None:
        super().__init__(info)
        self._check: Callable[[bytes], Any] = lambda _: None
        if info.type is SchemaType.STRING:
            self._check = bytes.decode
        elif info.type.has_definition:
            self._check = record_decoder(info, info)

    def encode(self, obj: bytes, /) -> bytes:
        with _fitting(obj):
            self._check(obj)
        return obj

    def decode(self, data: bytes) -> bytes:
        return data

    def of_text(self, text: bytes) -> bytes:
        """The bytes of a value that is written as text, which is JSON for a record."""
        if self.info.type is not SchemaType.AVRO:
            return text
        avro = fastavro()
        with _fitting(text):
            (value,) = avro.json_reader(StringIO(text.decode()), json.loads(self.info.definition))
            return record_encoder(self.info)(value)


@contextmanager
def _fitting(value: bytes) -> Iterator[None]:
    """A context in which an error means that the value is not of the schema."""
    try:
        yield
    except Exception as error:
        shown = value[:60].decode(errors="backslashreplace")
        text = f"{shown!r} is no value of --value-schema: {error}."
        raise InvalidMessageError(text) from error


def _schema_of(text: str) -> EncodedSchema:
    kind, colon, definition = text.partition(":")
    if text == "bytes":
        return EncodedSchema(BYTES.info)
    if text == "string":
        return EncodedSchema(SchemaInfo(SchemaType.STRING))
    if not colon or kind not in ("json", "avro"):
        raise InvalidOptionError(
            f"--value-schema {text}: it takes bytes, string, json:DEFINITION or avro:DEFINITION."
        )
    return EncodedSchema(SchemaInfo(SchemaType[kind.upper()], definition))


# -- bodies ------------------------------------------------------------------------------------


def _bodies(arguments: Namespace, schema: EncodedSchema, signals: Signals) -> Iterator[bytes]:
    """The messages in turn."""
    texts = [part for each in arguments.messages for part in _parts(each, arguments.separator)]
    files = [name for each in arguments.files for name in each.split(",")]
    for _ in range(arguments.num_produce):
        for text in texts:
            yield schema.of_text(text.encode(errors="surrogateescape"))
        for name in files:
            for content in _contents(name, signals, lines=arguments.lines):
                yield schema.of_text(content) if arguments.lines else content


def _parts(text: str, separator: str) -> list[str]:
    """As Java splits: without empty parts at the end."""
    parts = text.split(separator) if separator else [text]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def _contents(name: str, signals: Signals, *, lines: bool) -> Iterator[bytes]:
    with ExitStack() as closing:
        file: BinaryIO = sys.stdin.buffer
        if name != STDIN:
            try:
                file = closing.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise InvalidOptionError(f"--files {name}: {error.strerror}.") from error
        while True:
            with signals.waiting():
                content = file.readline() if lines else file.read()
            if not lines:
                yield content
                return
            if not content:
                return
            yield content.rstrip(b"\r\n")
