"""`pulsarlite perf produce|consume`: how fast messages go in and come out, as pulsar-perf says it.

Invariants: a message counts as produced when it is durable, and its latency is the time from its
send until then; as received when it came, and its latency is the time since it was published. A
latency is kept to four digits, so that memory stays small however long it runs. Options and output
follow pulsar-perf's `PerformanceProducer` and `PerformanceConsumer` 4.0.
"""

from __future__ import annotations

import math
import random
import sys
import threading
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final

from pulsar_spark.connector.client.client import Client
from pulsar_spark.connector.client.client_settings import CompressionType, ProducerAccessMode
from pulsar_spark.connector.client.consumer import Consumer
from pulsar_spark.connector.client.message import Message
from pulsar_spark.connector.client.producer import Producer
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.clock import Clock
from pulsar_spark.connector.tools.command_line.noun import (
    Argument,
    Noun,
    Printed,
    argument,
    at_least,
)
from pulsar_spark.connector.tools.message_commands.connection import (
    BROKER,
    RateLimiter,
    Signals,
    connected,
    note,
    printed_lines,
)
from pulsar_spark.connector.tools.message_commands.consume_command import POSITIONS, TYPES
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.log.chunked_messages import DEFAULT_EXPIRE_MS, DEFAULT_MAX_PENDING
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.topic_name import TopicName

MEGABIT: Final = 1024 * 1024 / 8
"""Bytes, as pulsar-perf has it."""
DIGITS: Final = 10_000
"""Values below are kept as they are, others to as many digits."""
DONE: Final = "------------------- DONE -----------------------"
PERF: Final = Noun("Measure how fast messages are published and consumed. Pulsar: pulsar-perf.")
add_to = PERF.add_to
_COMPRESSIONS: Final = {each.name.upper(): each for each in CompressionType}
_ACCESS_MODES: Final = {each.name: each for each in ProducerAccessMode}


def _number(*flags: str, default: int = 0, help: str, least: int = 0) -> Argument:  # noqa: A002
    help_text = help if "default" in help else f"{help} (default: %(default)s)"
    return argument(*flags, type=at_least(least), default=default, metavar="N", help=help_text)


def _switch(*flags: str, help: str) -> Argument:  # noqa: A002 - as argparse has it
    return argument(*flags, action="store_true", help=help)


def _delay_range(text: str) -> tuple[int, int]:
    with suppress(ValueError):
        first, end = map(int, text.split(","))
        if 0 <= first < end:
            return first, end
    raise ArgumentTypeError(f"{text} is not FIRST,END, in seconds")


_TOPICS: Final = (
    argument("topics", nargs="+", metavar="TOPIC", help="topics, or one of which -t makes several"),
    _number(
        "-t", "--num-topics", "--num-topic", default=1, least=1,
        help="topics: of one name that is given, NAME-0, NAME-1 ...",
    ),
    _number("-time", "--test-duration", help="end after so many seconds; 0, the default, is never"),
    argument(
        "--report-every", type=float, default=10.0, metavar="SECONDS",
        help="how often a line is printed (default: %(default)s)",
    ),
)  # fmt: skip


def _topics(arguments: Namespace) -> list[str]:
    given: list[str] = arguments.topics
    if len(given) == arguments.num_topics:
        return given
    if len(given) == 1:
        return [f"{TopicName.parse(given[0])}-{each}" for each in range(arguments.num_topics)]
    raise InvalidOptionError(f"There are {len(given)} topics, and --num-topics says otherwise.")


class _Report:
    """A line every few seconds, and two at the end."""

    def __init__(self, measured: Measured, clock: Clock, every_s: float, line: str) -> None:
        self._measured, self._clock, self._every_s, self._line = measured, clock, every_s, line
        self._due_s = clock.monotonic_s() + every_s

    def due(self) -> Iterator[str]:
        """The line, if it is time for it."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            yield self._measured.interval(self._line)


# -- produce -----------------------------------------------------------------------------------


@PERF.command(
    "produce",
    "Publish messages of a given size at a given rate. Pulsar: pulsar-perf produce.",
    *_TOPICS,
    _number("-r", "--rate", default=100, help="messages a second, of all topics; 0 is any number"),
    _number("-s", "--size", default=1024, help="bytes of a message"),
    _number("-n", "--num-producers", default=1, least=1, help="producers of each topic"),
    _number("-m", "--num-messages", help="end after so many; 0, the default, is never"),
    argument("-np", "--partitions", type=at_least(0), metavar="N",
             help="make the topics with so many partitions, unless it is 0"),
    argument(
        "-b", "--batch-time-window", type=float, default=1.0, metavar="MS",
        help="how long a message waits for others (default: %(default)s)",
    ),
    _number("-bm", "--batch-max-messages", default=1000, help="messages of a batch at most"),
    _number("-bb", "--batch-max-bytes", default=4 << 20, help="bytes of a batch at most"),
    _switch("-db", "--disable-batching", help="an entry for each message"),
    _switch("-ch", "--chunking", help="cut messages that are too large in chunks"),
    _number("-o", "--max-outstanding", help="messages that wait; 0, the default, is 64 MiB"),
    argument(
        "-z", "--compression", choices=_COMPRESSIONS, default="NONE",
        help="of payloads (default: %(default)s)",
    ),
    argument("-f", "--payload-file", metavar="FILE", help="take payloads from it, at random"),
    argument(
        "-e", "--payload-delimiter", default="\\n", metavar="TEXT",
        help="between two payloads of the file (default: a newline)",
    ),
    _switch("-fp", "--format-payload", help="replace %%i in them by a number and %%t by the time"),
    argument(
        "-mk", "--message-key-generation-mode", choices=("autoIncrement", "random"),
        help="keys of messages, which have none otherwise",
    ),
    _number("-d", "--delay", help="deliver after so many seconds"),
    argument(
        "-dr", "--delay-range", type=_delay_range, metavar="FIRST,END",
        help="deliver after some seconds of these",
    ),
    _switch("-set", "--set-event-time", help="give messages an event time"),
    argument(
        "-am", "--access-mode", choices=_ACCESS_MODES, default="Shared",
        help="of the producers (default: %(default)s)",
    ),
    argument("-pn", "--producer-name", metavar="NAME", help="names of producers: NAME-0 ..."),
    argument("--separator", default="-", help="in these names (default: %(default)s)"),
    _number("--send-timeout", help="give a message up after so many seconds; 0 is never"),
    _switch("-ef", "--exit-on-failure", help="end at the first message that is not published"),
    argument(
        "--warmup-time", type=float, default=1.0, metavar="SECONDS",
        help="latencies count after that (default: %(default)s)",
    ),
)  # fmt: skip
def _produce(root: Root, arguments: Namespace) -> Iterator[Printed]:
    measured = Measured(root.clock, unit_s=1e-6)
    return printed_lines(_produced(root, arguments, measured), measured.produced)


def _produced(root: Root, arguments: Namespace, measured: Measured) -> Iterator[str]:
    clock = root.clock
    payloads = _payloads(arguments, clock)
    with Signals() as signals, connected(root, signals) as client:
        producers = [
            _producer(client, topic, number, arguments)
            for topic in _topics(arguments)
            for number in range(arguments.num_producers)
        ]
        note(f"Created {len(producers)} producers")
        measured.begin(arguments.warmup_time)
        report = _Report(measured, clock, arguments.report_every, Measured.PRODUCED)
        limiter = RateLimiter(arguments.rate, clock)
        duration_s, requested = arguments.test_duration, arguments.num_messages
        for number, producer in zip(count(), cycle(producers), strict=False):
            if requested and number >= requested:
                yield _reached(f"number: {requested} of production")
                break
            limiter.acquire(signals)
            if duration_s and measured.elapsed_s() > duration_s:
                yield _reached(f"duration: [{duration_s} seconds] of production")
                break
            payload = payloads(number)
            answered = partial(_answered, measured, len(payload), clock.monotonic_s())
            if producer.is_full():
                producer.flush()
            producer.enqueue(answered, payload, **_arguments_of(arguments, number, clock))
            if measured.failed and arguments.exit_on_failure:
                raise measured.failure
            yield from report.due()
        for producer in producers:
            producer.flush()


def _reached(what: str) -> str:
    return f"------------- DONE (reached the maximum {what}) --------------"


def _producer(client: Client, topic: str, number: int, arguments: Namespace) -> Producer:
    name, partitions = arguments.producer_name, arguments.partitions
    most = arguments.batch_max_messages or 1000
    batching = not (arguments.disable_batching or arguments.chunking or most == 1)
    producer = client.create_producer(
        topic,
        producer_name=f"{name}{arguments.separator}{number}" if name else None,
        send_timeout_millis=arguments.send_timeout * 1000,
        compression_type=_COMPRESSIONS[arguments.compression],
        max_pending_messages=arguments.max_outstanding or sys.maxsize,
        batching_enabled=batching,
        batching_max_messages=max(2, most),
        batching_max_allowed_size_in_bytes=arguments.batch_max_bytes or 4 << 20,
        batching_max_publish_delay_ms=math.ceil(arguments.batch_time_window),
        chunking_enabled=arguments.chunking,
        access_mode=_ACCESS_MODES[arguments.access_mode],
        options={"numPartitions": str(partitions)} if partitions else None,
    )
    there = len(client.get_topic_partitions(topic))
    if partitions not in (None, 0, there):
        text = f"--partitions {partitions}: {topic} exists already, and has {there}."
        raise InvalidOptionError(text)
    return producer


def _payloads(arguments: Namespace, clock: Clock) -> Callable[[int], bytes]:
    """The payload of the message of that number."""
    chance = random.Random(0)  # noqa: S311 - nothing is secret about it
    if arguments.payload_file is None:
        payload = bytes(chance.choices(range(65, 91), k=arguments.size))
        return lambda _: payload
    try:
        content = Path(arguments.payload_file).read_bytes()
    except OSError as error:
        raise InvalidOptionError(f"--payload-file {error.filename}: {error.strerror}.") from error
    found = content.split(arguments.payload_delimiter.replace("\\n", "\n").encode())
    if not content:
        raise InvalidOptionError(f"--payload-file {arguments.payload_file} is empty.")

    def chosen(number: int) -> bytes:
        payload = chance.choice(found)
        if arguments.format_payload:
            payload = payload.replace(b"%i", b"%d" % number)
            payload = payload.replace(b"%t", b"%d" % (clock.wall_ms() * 1_000_000))
        return payload

    return chosen


def _arguments_of(arguments: Namespace, number: int, clock: Clock) -> dict[str, Any]:
    """The arguments of a message beside its payload."""
    help_text: dict[str, Any] = {}
    if arguments.message_key_generation_mode is not None:
        help_text["partition_key"] = str(
            number
            if arguments.message_key_generation_mode == "autoIncrement"
            else random.getrandbits(32)
        )
    if arguments.delay:
        help_text["deliver_after"] = timedelta(seconds=arguments.delay)
    elif arguments.delay_range:
        seconds = random.randrange(*arguments.delay_range)  # noqa: S311
        help_text["deliver_after"] = timedelta(seconds=seconds)
    if arguments.set_event_time:
        help_text["event_timestamp"] = clock.wall_ms()
    return help_text


def _answered(measured: Measured, size: int, sent_s: float, answer: MessageId | Exception) -> None:
    if isinstance(answer, Exception):
        measured.fail(answer)
    else:
        measured.record(size, measured.clock.monotonic_s() - sent_s)


# -- consume -----------------------------------------------------------------------------------


@PERF.command(
    "consume",
    "Receive and acknowledge messages. Pulsar: pulsar-perf consume.",
    *_TOPICS,
    argument(
        "-ss", "--subscriptions", default="sub", metavar="NAMES",
        help="subscriptions, split at commas (default: %(default)s)",
    ),
    _number(
        "-ns", "--num-subscriptions", default=1, least=1,
        help="subscriptions of each topic: of one name that is given, NAME-0, NAME-1 ...",
    ),
    _number("-n", "--num-consumers", default=1, least=1, help="consumers of each subscription"),
    argument(
        "-st", "--subscription-type", choices=TYPES, default="Exclusive",
        help="default: %(default)s",
    ),
    argument(
        "-sp", "--subscription-position", choices=POSITIONS, default="Latest",
        help="where a new subscription begins (default: %(default)s)",
    ),
    _number("-m", "--num-messages", help="end after so many; 0, the default, is never"),
    argument(
        "-r", "--rate", type=float, default=0.0, metavar="RATE",
        help="at most so many messages a second; 0, the default, is any number",
    ),
    _number("-q", "--receiver-queue-size", default=1000, least=1, help="messages taken ahead"),
    _number(
        "-p", "--receiver-queue-size-across-partitions", default=50_000, least=1,
        help="of all partitions together",
    ),
    _number("--acks-delay-millis", default=100, help="how long acknowledgements wait for others"),
    _number("-mc", "--max_chunked_msg", help="messages incomplete at a time (default: 10)"),
    _switch("-ac", "--auto_ack_chunk_q_full", help="acknowledge the oldest of those too many"),
    _number(
        "-e", "--expire_time_incomplete_chunked_messages",
        help="milliseconds after which an incomplete message is given up (default: 60000)",
    ),
    BROKER,
    _switch("-rs", "--replicated", help="has no effect"),
    _switch("--batch-index-ack", help="has no effect: it is always so"),
    argument("-pm", "--pool-messages", metavar="BOOLEAN", help="has no effect"),
)  # fmt: skip
def _consume(root: Root, arguments: Namespace) -> Iterator[Printed]:
    measured = Measured(root.clock, unit_s=1e-3)
    return printed_lines(_consumed(root, arguments, measured), measured.received)


def _consumed(root: Root, arguments: Namespace, measured: Measured) -> Iterator[str]:
    topics, names = _topics(arguments), _subscriptions(arguments)
    with Signals() as signals, connected(root, signals, arguments.broker) as client:
        with signals.waiting():
            consumers = [
                _consumer(client, topic, name, arguments)
                for topic in topics
                for name in names
                for _ in range(arguments.num_consumers)
            ]
        note(
            f"Start receiving from {arguments.num_consumers} consumers per subscription on "
            f"{len(topics)} topics"
        )
        measured.begin()
        report = _Report(measured, root.clock, arguments.report_every, Measured.RECEIVED)
        limiter = RateLimiter(arguments.rate, root.clock)
        quiet_s = 0.0
        while not arguments.test_duration or measured.elapsed_s() <= arguments.test_duration:
            before = measured.messages
            for consumer in consumers:
                consumer.fetch()
                while (message := consumer.receive_now()) is not None:
                    _take(consumer, message, measured)
                    if measured.messages == arguments.num_messages:
                        yield DONE
                        return
                    limiter.acquire(signals)
                    yield from report.due()
            yield from report.due()
            quiet_s = 0.0 if measured.messages > before else quiet_s
            pause_s = consumers[0].pause_s(quiet_s) if measured.messages == before else 0.0
            quiet_s += pause_s
            with signals.waiting():
                root.clock.sleep(pause_s)
        yield DONE


def _take(consumer: Consumer, message: Message, measured: Measured) -> None:
    latency_ms = measured.clock.wall_ms() - message.publish_timestamp()
    measured.record(len(message.data()), max(latency_ms, 0) / 1000)
    consumer.acknowledge(message)


def _consumer(client: Client, topic: str, name: str, arguments: Namespace) -> Consumer:
    across = arguments.receiver_queue_size_across_partitions
    expire_ms = arguments.expire_time_incomplete_chunked_messages or DEFAULT_EXPIRE_MS
    return client.subscribe(
        topic,
        name,
        TYPES[arguments.subscription_type],
        receiver_queue_size=arguments.receiver_queue_size,
        max_total_receiver_queue_size_across_partitions=across,
        initial_position=POSITIONS[arguments.subscription_position],
        max_pending_chunked_message=arguments.max_chunked_msg or DEFAULT_MAX_PENDING,
        auto_ack_oldest_chunked_message_on_queue_full=arguments.auto_ack_chunk_q_full,
        acknowledgments_group_time_millis=arguments.acks_delay_millis,
        options={"expireTimeOfIncompleteChunkedMessage": f"{expire_ms}ms"},
    )


def _subscriptions(arguments: Namespace) -> list[str]:
    if arguments.subscription_type == "Exclusive" and arguments.num_consumers > 1:
        raise InvalidOptionError("Only one consumer is allowed when subscriptionType is Exclusive.")
    names: list[str] = arguments.subscriptions.split(",")
    if len(names) == arguments.num_subscriptions:
        return names
    if len(names) == 1:
        return [f"{names[0]}-{each}" for each in range(arguments.num_subscriptions)]
    raise InvalidOptionError("The number of --subscriptions should be --num-subscriptions.")


# -- figures -----------------------------------------------------------------------------------


class Histogram:
    """The number of times that each value was recorded; values are whole and not below 0."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def record(self, value: int) -> None:
        step = 1
        while value >= DIGITS * step:
            step *= 10
        self._counts[value - value % step] += 1

    @property
    def mean(self) -> float:
        total = sum(self._counts.values())
        return sum(value * each for value, each in self._counts.items()) / total if total else 0.0

    @property
    def max(self) -> int:
        return max(self._counts, default=0)

    def percentile(self, percent: float) -> int:
        """The value that so many percent are not above; 0 if there is none."""
        requested, seen = sum(self._counts.values()) * percent / 100, 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            if seen >= requested:
                return value
        return 0


class Measured:
    """Messages, bytes, failures and latencies, altogether and since the last line."""

    PRODUCED: Final = (
        "Throughput produced: {total:7d} msg --- {rate:8.1f} msg/s --- {mbit:8.1f} Mbit/s  "
        "--- failure {failures:8.1f} msg/s --- Latency: mean: {mean:7.3f} ms - med: {p50:7.3f} "
        "- 95pct: {p95:7.3f} - 99pct: {p99:7.3f} - 99.9pct: {p999:7.3f} - 99.99pct: {p9999:7.3f} "
        "- Max: {max:7.3f}"
    )
    RECEIVED: Final = (
        "Throughput received: {total:7d} msg --- {rate:.3f}  msg/s --- {mbit:.3f} Mbit/s  "
        "--- Latency: mean: {mean:.3f} ms - med: {p50:.0f} - 95pct: {p95:.0f} - 99pct: {p99:.0f} "
        "- 99.9pct: {p999:.0f} - 99.99pct: {p9999:.0f} - Max: {max:.0f}"
    )

    def __init__(self, clock: Clock, unit_s: float) -> None:
        """Latencies are kept in that unit."""
        self.clock, self._unit_s = clock, unit_s
        self._lock = threading.Lock()
        self.messages = self.failed = self._bytes = 0
        self.failure: Exception = AssertionError("nothing has failed")
        """The first of those that failed."""
        self._begun_s = self._counts_from_s = clock.monotonic_s()
        self._all, self._latest = Histogram(), Histogram()
        self._before = (self._begun_s, 0, 0, 0)
        """When the last line was made, and the counts then."""

    def begin(self, warmup_s: float = -math.inf) -> None:
        """Time counts from now on, and latencies after the warm-up."""
        self._begun_s = self.clock.monotonic_s()
        self._counts_from_s = self._begun_s + warmup_s
        self._before = (self._begun_s, 0, 0, 0)

    def elapsed_s(self) -> float:
        return self.clock.monotonic_s() - self._begun_s

    def record(self, size: int, latency_s: float) -> None:
        with self._lock:
            self.messages += 1
            self._bytes += size
            if self.clock.monotonic_s() > self._counts_from_s:
                latency = round(latency_s / self._unit_s)
                self._all.record(latency)
                self._latest.record(latency)

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self.failed:
                self.failure = error
            self.failed += 1

    def interval(self, line: str) -> str:
        """PRODUCED or RECEIVED, of what came since the last such line."""
        with self._lock:
            now = (self.clock.monotonic_s(), self.messages, self._bytes, self.failed)
            latest, self._latest = self._latest, Histogram()
            took_s, messages, size, failed = (b - a for a, b in zip(self._before, now, strict=True))
            self._before = now
        took_s = max(took_s, 1e-9)
        return line.format(
            total=self.messages,
            rate=messages / took_s,
            mbit=size / took_s / MEGABIT,
            failures=failed / took_s,
            **self._latency(latest),
        )

    def produced(self) -> Iterator[str]:
        """The two lines of a producer's end."""
        rate, mbit = self._rates()
        yield (
            f"Aggregated throughput stats --- {self.messages} records sent --- {rate:.3f} msg/s "
            f"--- {mbit:.3f} Mbit/s "
        )
        yield self._aggregated("7.3f")

    def received(self) -> Iterator[str]:
        """The two lines of a consumer's end."""
        rate, mbit = self._rates()
        yield (
            f"Aggregated throughput stats --- {self.messages} records received --- {rate:.3f} "
            f"msg/s --- {mbit:.3f} Mbit/s --- AckRate: {rate}  msg/s --- ack failed 0 msg"
        )
        yield self._aggregated(".0f")

    def _rates(self) -> tuple[float, float]:
        took_s = max(self.elapsed_s(), 1e-9)
        return self.messages / took_s, self._bytes / took_s / MEGABIT

    def _aggregated(self, form: str) -> str:
        values = self._latency(self._all)
        mean = format(values["mean"], "7.3f" if form == "7.3f" else ".3f")
        shown = {name: format(each, form) for name, each in values.items()} | {"mean": mean}
        return (
            "Aggregated latency stats --- Latency: mean: {mean} ms - med: {p50} - 95pct: {p95} "
            "- 99pct: {p99} - 99.9pct: {p999} - 99.99pct: {p9999} - 99.999pct: {p99999} "
            "- Max: {max}"
        ).format(**shown)

    def _latency(self, of: Histogram) -> dict[str, float]:
        """In milliseconds."""
        to_ms = self._unit_s * 1000
        return {
            "mean": of.mean * to_ms,
            "max": of.max * to_ms,
            "p50": of.percentile(50) * to_ms,
            "p95": of.percentile(95) * to_ms,
            "p99": of.percentile(99) * to_ms,
            "p999": of.percentile(99.9) * to_ms,
            "p9999": of.percentile(99.99) * to_ms,
            "p99999": of.percentile(99.999) * to_ms,
        }
