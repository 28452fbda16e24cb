"""Messages as they come, counted, and shown as pulsar-client shows them.

Invariants: a message counts once it is written out, and is acknowledged after that; what goes into
a pipe or a file has a message's bytes as they are, and a terminal gets no control characters.
Follows pulsar-client's `AbstractCmdConsume` 4.0.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from pulsar_spark.connector.client.consumer import Consumer
from pulsar_spark.connector.client.message import Message
from pulsar_spark.connector.client.reader import Reader
from pulsar_spark.connector.client.records import BYTES, Schema
from pulsar_spark.connector.runtime.broker.broker_heartbeat import DEAD_AFTER_MS, is_alive
from pulsar_spark.connector.runtime.schema.schema_records import record_decoder
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.memory_store import MEMORY
from pulsar_spark.connector.tools.command_line.noun import Printed, argument, at_least
from pulsar_spark.connector.tools.message_commands.connection import (
    RateLimiter,
    Signals,
    counted,
    note,
    printed_lines,
)
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.options.option_values import MOST_COUNT

BOUNDARY: Final = b"----- got message -----"
REPORT_EVERY: Final = 1000
"""Messages, where their content is hidden."""
RECEIVER_QUEUE_SIZE: Final = 1000
ARGUMENTS: Final = (
    argument(
        "-n", "--num-messages", type=at_least(0), default=1, metavar="N",
        help="end after so many (default: %(default)s); 0 is never",
    ),
    argument("--hex", action="store_true", help="show content as a hex dump"),
    argument("--hide-content", action="store_true", help="only count"),
    argument(
        "-r", "--rate", type=float, default=0.0, metavar="RATE",
        help="at most so many messages a second; 0, the default, is any number",
    ),
    argument(
        "-q", "--queue-size", type=at_least(0), default=0, metavar="N",
        help="messages that are taken ahead (default: 1000, or --num-messages if that is less)",
    ),
    argument(
        "-mc", "--max_chunked_msg", type=at_least(0), default=0, metavar="N",
        help="messages that may be incomplete at a time, of those in chunks (default: 10)",
    ),
    argument(
        "-ac", "--auto_ack_chunk_q_full", action="store_true",
        help="acknowledge the oldest of those that are too many",
    ),
    argument(
        "-st", "--schema-type", choices=("bytes", "auto_consume"), default="bytes",
        help="show content as bytes (the default), or by the topic's schema",
    ),
    argument("-mp", "--print-metadata", action="store_true", help="show all that is known of it"),
    argument("--json", action="store_true", help="show each message as a line of JSON"),
    argument("-pm", "--pool-messages", metavar="BOOLEAN", help="has no effect"),
    argument("-ca", "--crypto-failure-action", metavar="ACTION", help="has no effect"),
)  # fmt: skip


def queue_size(arguments: Namespace) -> int:
    """The number of messages that are prefetched."""
    if arguments.queue_size > 0:
        return int(arguments.queue_size)
    return min(arguments.num_messages or RECEIVER_QUEUE_SIZE, RECEIVER_QUEUE_SIZE)


def schema_of(arguments: Namespace) -> Schema:
    return _AutoConsume() if arguments.schema_type == "auto_consume" else BYTES


class Received:
    """The messages of one command, written out one by one."""

    def __init__(self, root: Root, arguments: Namespace, did: str) -> None:
        self._root, self._arguments, self._did = root, arguments, did
        self.count = 0
        self._broker_missed = False

    def shown(
        self,
        source: Consumer | Reader,
        signals: Signals,
        *,
        until_ms: int = MOST_COUNT,
    ) -> Iterator[Printed]:
        """The messages' text, up to one that was published behind `until_ms`."""
        limiter = RateLimiter(self._arguments.rate, self._root.clock)
        requested: int = self._arguments.num_messages
        while not requested or self.count < requested:
            limiter.acquire(signals)
            message = self._next(source, signals)
            if message.publish_timestamp() > until_ms:
                return
            if not self._arguments.hide_content:
                yield from self._text(message)
            elif (self.count + 1) % REPORT_EVERY == 0:
                yield f"Received {self.count + 1} messages"
            self.count += 1
            if isinstance(source, Consumer):
                source.acknowledge(message)

    def printed_lines(self, lines: Iterator[Printed]) -> Iterator[Printed]:
        """The lines, and then the count, however they end."""
        return printed_lines(lines, lambda: counted(self._arguments, self.count, self._did))

    def _next(self, source: Consumer | Reader, signals: Signals) -> Message:
        clock = self._root.clock
        begun_s = looked_s = clock.monotonic_s()
        while True:
            if source.fetch() and (message := source.receive_now()) is not None:
                return message
            now_s = clock.monotonic_s()
            if isinstance(source, Consumer) and now_s - looked_s > DEAD_AFTER_MS / 1000:
                looked_s = now_s
                self._check_broker()
            with signals.waiting():
                clock.sleep(source.pause_s(now_s - begun_s))

    def _check_broker(self) -> None:
        url = self._root.service_url
        if not (self._broker_missed or url.startswith(MEMORY) or is_alive(self._root)):
            self._broker_missed = True
            note(
                f"The broker of {url} shows no life: waiting for one (pulsarlite standalone "
                f"--service-url {url})."
            )

    def _text(self, message: Message) -> Iterator[Printed]:
        if self._arguments.json:
            yield json.dumps(_as_json(message), ensure_ascii=False)
            return
        line = _line(
            message, hex_dump=self._arguments.hex, all_of_it=self._arguments.print_metadata
        )
        yield b"\n".join((BOUNDARY, line))


# -- one message -------------------------------------------------------------------------------


def _line(message: Message, *, hex_dump: bool, all_of_it: bool) -> bytes:
    pairs = ", ".join(f"{name}={value}" for name, value in message.properties().items())
    key = message.received.key
    text = (
        f"publishTime:[{message.publish_timestamp()}], eventTime:[{message.event_timestamp()}], "
        f"key:[{'null' if key is None else key}], properties:[{pairs}], content:"
    )
    value = message.value()
    content = value if isinstance(value, bytes) else _java(value, hex_dump).encode()
    if hex_dump and isinstance(value, bytes):
        content = hex_dumped(value).encode()
    more = ""
    if all_of_it:
        more = "".join(f", {name}:{each}" for name, each in _metadata(message).items())
    line = text.encode(errors="surrogateescape") + content + more.encode(errors="surrogateescape")
    return printable(line).encode() if sys.stdout.isatty() else line


def _metadata(message: Message) -> dict[str, Any]:
    version = message.received.schema_version
    return {
        "event-time": _time(message.event_timestamp()),
        "message-id": message.message_id().core.text(),
        "producer-name": message.producer_name(),
        "sequence-id": message.received.sequence_id,
        "replicated-from": "null",
        "redelivery-count": message.redelivery_count(),
        "ordering-key": message.ordering_key(),
        "schema-version": "" if version is None else version,
    }


def _as_json(message: Message) -> dict[str, Any]:
    held = message.received
    value = message.value()
    shown: dict[str, Any] = {
        "messageId": message.message_id().core.text(),
        "topic": message.topic_name(),
        "publishTime": message.publish_timestamp(),
        "eventTime": message.event_timestamp() or None,
        "key": held.key,
        "properties": message.properties(),
        "producerName": held.producer_name,
        "sequenceId": held.sequence_id,
        "redeliveryCount": held.redelivery_count,
    }
    if not isinstance(value, bytes):
        return shown | {"content": _jsonable(value)}
    try:
        return shown | {"content": value.decode()}
    except UnicodeDecodeError:
        return shown | {"contentBase64": base64.b64encode(value).decode()}


def printable(line: bytes) -> str:
    """For a terminal: line ends and tabs as they are, other control characters escaped."""
    text = line.decode(errors="replace")
    return "".join(
        each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text
    )


def hex_dumped(data: bytes) -> str:
    """As `hexdump` of Apache Commons writes it, with a newline behind each line.

    >>> hex_dumped(b"hello")
    '00000000 68 65 6C 6C 6F                                  hello\\n'
    """
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        numbers = "".join(f"{each:02X} " for each in row).ljust(48)
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{start:08X} {numbers}{text}\n")
    return "".join(lines)


def _time(since_1970_ms: int) -> str:
    """The text of a time of any year, which Python's own times do not cover."""
    return str(np.datetime64(since_1970_ms, "ms")).removesuffix(".000") + "Z"


# -- values by the topic's schema --------------------------------------------------------------

_NUMBERS: Final[Mapping[SchemaType, tuple[str, str]]] = {
    SchemaType.BOOLEAN: (">?", "Boolean"),
    SchemaType.INT8: (">b", "Byte"),
    SchemaType.INT16: (">h", "Short"),
    SchemaType.INT32: (">i", "Integer"),
    SchemaType.INT64: (">q", "Long"),
    SchemaType.FLOAT: (">f", "Float"),
    SchemaType.DOUBLE: (">d", "Double"),
}


class _Primitive:
    """A value that is no record, and Java's name of its class."""

    def __init__(self, value: Any, kind: str) -> None:
        self.value, self.kind = value, kind


class _AutoConsume(Schema):
    """Values by the schema that they were published with: dicts of records, or _Primitives."""

    def __init__(self) -> None:
        super().__init__(BYTES.info)

    def encode(self, obj: Any, /) -> bytes:
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        return self.decode_written(data, None)

    def decode_written(self, data: bytes, written_with: SchemaInfo | None) -> Any:
        kind = SchemaType.BYTES if written_with is None else written_with.type
        if written_with is not None and kind.has_definition:
            return record_decoder(written_with, written_with)(data)
        if kind in _NUMBERS:
            layout, name = _NUMBERS[kind]
            (number,) = struct.unpack(layout, data)
            return _Primitive(number, name)
        return _Primitive(data.decode(errors="replace"), "String")


def _java(value: Any, hex_dump: bool) -> str:
    """As Java prints a map."""
    if isinstance(value, _Primitive):
        return f"{{value={_java(value.value, hex_dump)}, type=class java.lang.{value.kind}}}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={_field(each, hex_dump)}" for k, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_java(each, hex_dump) for each in value) + "]"
    if isinstance(value, bytes):
        return hex_dumped(value) if hex_dump else value.decode(errors="replace")
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _field(value: Any, hex_dump: bool) -> str:
    return "NULL" if value is None else _java(value, hex_dump)


def _jsonable(value: Any) -> Any:
    if isinstance(value, _Primitive):
        return _jsonable(value.value)
    if isinstance(value, dict):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
