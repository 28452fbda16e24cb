"""The options of `format("pulsarlite")`, declared once.

Invariants: parsing, docs/options.md and the errors come from the one table below; names are
compared without regard to case, as Spark's are; what is unknown is refused with the nearest name.
Follows Kafka's `ConfigDef`; names are Pulsar's client's, or those of Spark's Kafka source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag
from typing import Any, Final

from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.redelivery_backoff import MultiplierRedeliveryBackoff

STORAGE_PREFIX: Final = "storage."
"""Options `storage.NAME` go to the object store as they are."""
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark reads itself, and hands on to every sink too."""


MIN_ACK_TIMEOUT_MS: Final = 1_000
MIN_LEASE_MS: Final = 1_000


class Scope(Flag):
    """Where an option has a meaning."""

    STREAM_READ = 1
    BATCH_READ = 2
    STREAM_WRITE = 4
    BATCH_WRITE = 8
    READ = STREAM_READ | BATCH_READ
    WRITE = STREAM_WRITE | BATCH_WRITE
    ANY = READ | WRITE


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `parse` raises ValueError, whose text says what is expected."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    scope: Scope
    expects: str
    meaning: str


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError
    return value


def _boolean(value: str) -> bool:
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise ValueError
    return known[value.strip().lower()]


def _count(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value)
        if number < least:
            raise ValueError
        return number

    return parse


def _size(value: str) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", value.lower())
    if not found or not int(found[1]):
        raise ValueError
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]


def parse_duration_ms(value: str) -> int:
    """`500ms`, `30s`, `5m`, `1h`, `2d`, or a number of milliseconds; else ValueError."""
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d|)\s*", value.lower())
    if not found:
        raise ValueError
    unit_ms = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(found[1]) * unit_ms[found[2]]


def _topics(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ValueError
    return names


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(str(error)) from error
    return _text(value)


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        for name in names:
            if value.strip().lower() == name.lower():
                return name
        raise ValueError

    return parse


def _ranges(value: str) -> tuple[tuple[int, int], ...]:
    found = []
    for part in value.split(","):
        low, dash, high = part.strip().partition("-")
        if not dash or int(low) > int(high):
            raise ValueError
        found.append((int(low), int(high)))
    return tuple(found)


def _backoff(value: str) -> MultiplierRedeliveryBackoff:
    shortest, longest, *factor = (part.strip() for part in value.split(","))
    if len(factor) > 1:
        raise ValueError
    return MultiplierRedeliveryBackoff(
        parse_duration_ms(shortest), parse_duration_ms(longest), float(factor[0]) if factor else 2.0
    )


_NUMBER = "a whole number, 1 or more"
_BYTES = "a number of bytes, such as 131072, 128k or 5m"
_DURATION = "a duration, such as 500ms, 30s, 5m or 1h (a number alone counts milliseconds)"
_TIME = "milliseconds since 1970, or a date and time such as 2026-01-31T12:00:00Z"
_BOOLEAN = "true or false"
_BACKOFF = "shortest and longest delay and a factor, such as 1s,60s,2"

OPTIONS: Final[tuple[Option, ...]] = (
    Option("serviceUrl", _text, None, Scope.ANY, "a folder, file://, s3://, gs:// or az://",
           "The root below which the topics lie. Without it, the environment's "
           "`PULSARLITE_SERVICE_URL`."),
    Option("path", _text, None, Scope.ANY, "as serviceUrl", "The same as `serviceUrl`, for "
           "`load(path)` and `start(path)`."),
    Option("topic", _text, None, Scope.ANY, "a topic's name",
           "The topic: `flights`, `tenant/namespace/flights` or "
           "`persistent://tenant/namespace/flights`; to read one partition of it, "
           "`flights-partition-3`. A writer's rows may name another in a column `topic`."),
    Option("topics", _topics, (), Scope.READ, "topic names, separated by commas",
           "Several topics."),
    Option("topicsPattern", _pattern, None, Scope.READ, "a regular expression",
           "All topics whose whole name `persistent://tenant/namespace/name` matches; a pattern "
           "without `://` is taken in the namespace `public/default`, as Pulsar takes it. New "
           "topics are found while the query runs."),
    Option("startingOffsets", _text, "latest", Scope.READ,
           "earliest, latest, or JSON of message ids by topic and partition",
           "Where a new query begins (a batch: `earliest` by default). As JSON: "
           '`{"flights": {"0": "7:12:0", "1": "earliest"}}`; the message named is the first '
           "that is read, unless startMessageIdInclusive is false. Partitions not named begin "
           "at the earliest."),
    Option("startMessageIdInclusive", _boolean, True, Scope.READ, _BOOLEAN,
           "Whether a message id in startingOffsets is itself read."),
    Option("startingTime", _text, None, Scope.READ, _TIME,
           "Begin at the first entry that was published at this time or later."),
    Option("endingOffsets", _text, "latest", Scope.BATCH_READ,
           "latest, or JSON of message ids by topic and partition",
           "Where a batch ends; the message named is the last that is read. Partitions not named "
           "end at the latest."),
    Option("endingTime", _text, None, Scope.BATCH_READ, _TIME,
           "End before the first entry that was published at this time or later."),
    Option("maxMessagesPerTrigger", _count(1), None, Scope.STREAM_READ, _NUMBER,
           "Most messages of a micro-batch, over all partitions. It may end inside an entry."),
    Option("maxBytesPerTrigger", _size, None, Scope.STREAM_READ, _BYTES,
           "About how many payload bytes a micro-batch may have; one message always passes."),
    Option("minMessagesPerTrigger", _count(1), None, Scope.STREAM_READ, _NUMBER,
           "Wait until so many messages are there, but at most maxTriggerDelay. "
           "Trigger.AvailableNow does not wait."),
    Option("maxTriggerDelay", parse_duration_ms, 15 * 60_000, Scope.STREAM_READ, _DURATION,
           "Longest wait for minMessagesPerTrigger."),
    Option("minPartitions", _count(1), None, Scope.READ, _NUMBER,
           "At least so many tasks for a batch that is worth splitting; by default the "
           "processors of the driver's machine."),
    Option("includeProperties", _boolean, False, Scope.READ, _BOOLEAN,
           "Whether the column `properties` is among those of a source without a user schema."),
    Option("failOnDataLoss", _boolean, True, Scope.READ, _BOOLEAN,
           "Whether a query stops when messages that it has not read were trimmed away; "
           "otherwise it goes on behind them, and says so in its log."),
    Option("topicDiscoveryInterval", parse_duration_ms, 10_000, Scope.STREAM_READ, _DURATION,
           "How often topicsPattern looks for new topics (Pulsar: patternAutoDiscoveryPeriod)."),
    Option("subscriptionName", _text, None, Scope.STREAM_READ | Scope.WRITE, "a name",
           "Read as a consumer of this subscription, with a broker (`pulsarlite standalone`); "
           "without it, as a Reader. A sink with it does not publish its rows: each acknowledges "
           "a message (see the columns below)."),
    Option("subscriptionType", _one_of("Exclusive", "Failover", "Shared", "Key_Shared"),
           "Exclusive", Scope.STREAM_READ, "Exclusive, Failover, Shared or Key_Shared",
           "How the consumers of a subscription share its messages."),
    Option("subscriptionMode", _one_of("Durable", "NonDurable"), "Durable", Scope.STREAM_READ,
           "Durable or NonDurable",
           "Whether the subscription stays when its last consumer has gone."),
    Option("subscriptionInitialPosition", _one_of("Latest", "Earliest"), "Latest",
           Scope.STREAM_READ, "Latest or Earliest", "Where a new subscription begins."),
    Option("consumerName", _text, None, Scope.STREAM_READ, "a name",
           "The consumer's name in its subscription. Without it one is made up, and kept in the "
           "checkpoint. A newer run under a name replaces the older."),
    Option("priorityLevel", _count(0), 0, Scope.STREAM_READ, "a whole number, 0 or more",
           "Shared: lower ones are served first. Failover: lower ones are active first."),
    Option("keySharedMode", _one_of("AUTO_SPLIT", "STICKY"), "AUTO_SPLIT", Scope.STREAM_READ,
           "AUTO_SPLIT or STICKY", "Key_Shared: who decides which keys a consumer gets."),
    Option("keySharedRanges", _ranges, (), Scope.STREAM_READ, "ranges such as 0-32767,40000-40999",
           "Key_Shared with STICKY: the hash ranges (0 to 65535) of this consumer."),
    Option("allowOutOfOrderDelivery", _boolean, False, Scope.STREAM_READ, _BOOLEAN,
           "Key_Shared: whether a key may go to another consumer while the first still has some."),
    Option("ackMode", _one_of("auto", "manual"), "auto", Scope.STREAM_READ, "auto or manual",
           "auto: what a micro-batch had is acknowledged once it is committed. manual: by rows "
           "written to a sink with subscriptionName."),
    Option("ackTimeout", parse_duration_ms, 0, Scope.STREAM_READ, _DURATION,
           "Deliver again what was not acknowledged for so long (0: never; else 1 s or more)."),
    Option("ackTimeoutRedeliveryBackoff", _backoff, None, Scope.STREAM_READ, _BACKOFF,
           "Added to ackTimeout, by how often a message was delivered before."),
    Option("negativeAckRedeliveryDelay", parse_duration_ms, 60_000, Scope.STREAM_READ, _DURATION,
           "When a negatively acknowledged message comes again."),
    Option("negativeAckRedeliveryBackoff", _backoff, None, Scope.STREAM_READ, _BACKOFF,
           "The same by how often it was delivered before, in place of the fixed delay."),
    Option("maxRedeliverCount", _count(0), None, Scope.STREAM_READ, "a whole number, 0 or more",
           "Switches dead letters on: a message that was delivered so many times again goes to "
           "the dead letter topic (16 where only a topic is named)."),
    Option("deadLetterTopic", _text, None, Scope.STREAM_READ, "a topic's name",
           "By default `<topic>-<subscription>-DLQ`."),
    Option("retryLetterTopic", _text, None, Scope.STREAM_READ, "a topic's name",
           "By default `<topic>-<subscription>-RETRY`."),
    Option("initialSubscriptionName", _text, None, Scope.STREAM_READ, "a name",
           "A subscription that the dead letter topic gets when it is made."),
    Option("enableRetry", _boolean, False, Scope.STREAM_READ, _BOOLEAN,
           "Whether ReconsumeLater works by a retry letter topic, which is then read too."),
    Option("maxBatchAttempts", _count(1), 3, Scope.STREAM_READ, _NUMBER,
           "With maxRedeliverCount: how often a micro-batch may be begun whose query ends before "
           "it does. Then its messages are tried apart, and the one that ends the query every "
           "time becomes a dead letter."),
    Option("receiverQueueSize", _count(1), 200_000, Scope.STREAM_READ, _NUMBER,
           "Most messages that the broker grants ahead of acknowledgement, of each partition."),
    Option("maxTotalReceiverQueueSizeAcrossPartitions", _count(1), 1_000_000, Scope.STREAM_READ,
           _NUMBER, "The same over all partitions: each gets its part of it at most."),
    Option("leaseTimeout", parse_duration_ms, 30_000, Scope.STREAM_READ, _DURATION,
           "How long a consumer may show no life before others get what it holds (1 s or more)."),
    Option("drainTimeout", parse_duration_ms, 60_000, Scope.STREAM_READ, _DURATION,
           "Trigger.AvailableNow: longest wait for an answer of the broker."),
    Option("numPartitions", _count(1), 1, Scope.WRITE, _NUMBER,
           "Partitions of a topic that the first write creates. A topic that exists keeps its."),
    Option("messageRoutingMode", _one_of("RoundRobinPartition", "SinglePartition"),
           "RoundRobinPartition", Scope.WRITE, "RoundRobinPartition or SinglePartition",
           "Where messages without a key go. Those with a key go by its hash."),
    Option("hashingScheme", _one_of("JavaStringHash", "Murmur3_32Hash"), "JavaStringHash",
           Scope.WRITE, "JavaStringHash or Murmur3_32Hash",
           "How the key chooses the partition."),
    Option("batchingEnabled", _boolean, True, Scope.WRITE, _BOOLEAN,
           "Whether messages share entries. Without it each is an entry of its own."),
    Option("batchingMaxMessages", _count(1), 1000, Scope.WRITE, _NUMBER,
           "Most messages of an entry."),
    Option("batchingMaxBytes", _size, 128 * 1024, Scope.WRITE, _BYTES,
           "Most payload bytes of an entry, unless a single message has more."),
    Option("maxMessageSize", _size, 5 * 1024 * 1024, Scope.WRITE, _BYTES,
           "Most bytes of a message's value; a larger one is refused."),
    Option("compressionType", _one_of("ZSTD", "LZ4", "ZLIB", "SNAPPY", "NONE"), "ZSTD",
           Scope.WRITE, "ZSTD, LZ4, ZLIB, SNAPPY or NONE", "Compression of the data files."),
    Option("producerName", _text, None, Scope.WRITE, "a name",
           "producer_name of rows that have none of their own."),
    Option("enableDeduplication", _boolean, None, Scope.WRITE, _BOOLEAN,
           "Whether a message is dropped whose sequence_id its producer_name has used before "
           "in that partition. Without it the topic's own setting holds (off for a new one)."),
    Option("txnAppId", _text, None, Scope.BATCH_WRITE, "any text",
           "With txnVersion: a write with the same two is published once, however often it runs."),
    Option("txnVersion", _count(0), None, Scope.BATCH_WRITE, "a whole number, 0 or more",
           "Rises with each write of one txnAppId, for instance foreachBatch's batch id."),
)  # fmt: skip

_NAMES: Final = [option.name for option in OPTIONS]
_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options of one source or sink; pickles."""

    given: Mapping[str, Any]
    storage: Mapping[str, str]

    @staticmethod
    def parse(
        raw: Mapping[str, str],
        scope: Scope = Scope.ANY,
        environment: Mapping[str, str] | None = None,
    ) -> Options:
        """Read and check options as a user gave them. InvalidOptionError names what is wrong.

        `environment` stands in for a serviceUrl that was not given.
        """
        given: dict[str, Any] = {}
        storage: dict[str, str] = {}
        for name, value in raw.items():
            if name.lower().startswith(STORAGE_PREFIX):
                storage[name.lower().removeprefix(STORAGE_PREFIX)] = value
                continue
            if name.lower() in SPARKS_OWN:
                continue
            option = _BY_NAME.get(name.lower())
            if option is None:
                raise InvalidOptionError(_unknown(name))
            given[option.name] = _parse(option, value)
        options = Options(given, storage)
        options._check_service_url(environment or {})
        options.check_scope(scope)
        options._check_together()
        return options

    def __getitem__(self, name: str) -> Any:
        """The option's value, or its default."""
        return self.given.get(name, _BY_NAME[name.lower()].default)

    def has(self, name: str) -> bool:
        return name in self.given

    def check_scope(self, scope: Scope) -> None:
        """InvalidOptionError if an option has no meaning there."""
        for name in self.given:
            known = _BY_NAME[name.lower()].scope
            if not known & scope:
                raise InvalidOptionError(
                    f"Option {name} has no meaning here: it belongs to {_scope_text(known)}. "
                    "Leave it out."
                )

    def _check_consumer(self) -> None:
        if not self.has("subscriptionName"):
            for name in self.given:
                if name in _CONSUMERS:
                    raise InvalidOptionError(
                        f"Option {name} belongs to a consumer: give subscriptionName too, or "
                        "leave it out to read as a Reader."
                    )
            return
        for name in ("startingOffsets", "startingTime", "startMessageIdInclusive"):
            if self.has(name):
                raise InvalidOptionError(
                    f"Option {name} is a Reader's, and a subscription has a position of its own: "
                    "give subscriptionInitialPosition for a new one, or leave out subscriptionName."
                )
        self._check_key_shared()
        if 0 < self["ackTimeout"] < MIN_ACK_TIMEOUT_MS:
            raise InvalidOptionError("Option ackTimeout has to be 1 s or more, or 0 for none.")
        if self["leaseTimeout"] < MIN_LEASE_MS:
            raise InvalidOptionError("Option leaseTimeout has to be 1 s or more.")

    def _check_key_shared(self) -> None:
        kind = self["subscriptionType"]
        for name in ("keySharedMode", "keySharedRanges", "allowOutOfOrderDelivery"):
            if self.has(name) and kind != "Key_Shared":
                raise InvalidOptionError(f"Option {name} needs subscriptionType Key_Shared.")
        if (self["keySharedMode"] == "STICKY") != bool(self["keySharedRanges"]):
            raise InvalidOptionError("keySharedMode STICKY and keySharedRanges go together.")

    def _check_service_url(self, environment: Mapping[str, str]) -> None:
        if "path" in self.given and "serviceUrl" in self.given:
            raise InvalidOptionError("Options serviceUrl and path mean the same: give one of them.")
        url = self.given.get("path") or self.given.get("serviceUrl")
        url = url or environment.get("PULSARLITE_SERVICE_URL")
        if not url:
            raise InvalidOptionError(
                "Option serviceUrl is missing: say below which folder or object store the topics "
                'lie, as in .option("serviceUrl", "/data/pulsarlite") or '
                '.option("serviceUrl", "s3://bucket/prefix"), or set PULSARLITE_SERVICE_URL.'
            )
        given = dict(self.given)
        given.pop("path", None)
        object.__setattr__(self, "given", given | {"serviceUrl": url})

    def _check_together(self) -> None:
        chosen = [name for name in ("topic", "topics", "topicsPattern") if self.has(name)]
        if len(chosen) > 1:
            raise InvalidOptionError(f"Options {' and '.join(chosen)} exclude each other.")
        for one, other in (("startingOffsets", "startingTime"), ("endingOffsets", "endingTime")):
            if self.has(one) and self.has(other):
                raise InvalidOptionError(f"Options {one} and {other} exclude each other.")
        if self.has("txnAppId") != self.has("txnVersion"):
            raise InvalidOptionError("Options txnAppId and txnVersion go together: give both.")
        if self.has("maxTriggerDelay") and not self.has("minMessagesPerTrigger"):
            raise InvalidOptionError("Option maxTriggerDelay needs minMessagesPerTrigger.")
        self._check_consumer()
        least, most = self["minMessagesPerTrigger"], self["maxMessagesPerTrigger"]
        if least and most and least > most:
            raise InvalidOptionError(
                f"minMessagesPerTrigger ({least}) is above maxMessagesPerTrigger ({most})."
            )


_CONSUMERS = frozenset(
    option.name
    for option in OPTIONS[_NAMES.index("subscriptionName") + 1 : _NAMES.index("drainTimeout") + 1]
)
"""Options that need a subscriptionName."""


def markdown_table() -> str:
    """The rows of docs/options.md."""
    lines = ["| option | default | where | value | meaning |", "| --- | --- | --- | --- | --- |"]
    for option in OPTIONS:
        default = "" if option.default in (None, ()) else str(option.default)
        default = default.lower() if isinstance(option.default, bool) else default
        cells = (f"`{option.name}`", default, _scope_text(option.scope), option.expects)
        lines.append(f"| {' | '.join(cells)} | {option.meaning} |")
    return "\n".join(lines) + "\n"


def _parse(option: Option, value: str) -> Any:
    try:
        return option.parse(str(value))
    except ValueError as error:
        detail = f" ({error})" if option.parse is _pattern else ""
        raise InvalidOptionError(
            f"Option {option.name} can't be {value!r}{detail}: it takes {option.expects}."
        ) from None


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.5)
    offer = f" Did you mean {_BY_NAME[near[0]].name}?" if near else ""
    known = ", ".join(option.name for option in OPTIONS)
    return f"Option {name} is not known.{offer} Known are {known}, and {STORAGE_PREFIX}*."


def _scope_text(scope: Scope) -> str:
    names = {
        Scope.ANY: "everywhere",
        Scope.READ: "reading",
        Scope.WRITE: "writing",
        Scope.STREAM_READ: "readStream",
        Scope.BATCH_READ: "read",
        Scope.BATCH_WRITE: "write",
        Scope.STREAM_WRITE: "writeStream",
        Scope.STREAM_READ | Scope.WRITE: "readStream and writing",
    }
    return names[scope]
