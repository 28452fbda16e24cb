"""The options of `format("pulsarlite")`, declared once.

Invariants: parsing, docs/options.md and the errors come from the one table below; names are
compared without regard to case, as Spark's are; what is unknown is refused with the nearest name.
Follows Kafka's `ConfigDef`; names are Pulsar's client's, or those of Spark's Kafka source.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag
from typing import Any, Final, NamedTuple

from pulsar_spark.errors import InvalidOptionError, PulsarliteError
from pulsar_spark.log.chunked_messages import DEFAULT_EXPIRE_MS, DEFAULT_MAX_PENDING
from pulsar_spark.log.producer_registry import DEFAULT_LEASE_MS
from pulsar_spark.log.transaction_attempt import (
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    MAX_TRANSACTION_TIMEOUT_MS,
)
from pulsar_spark.model.schema.schema_info import SCHEMA_TYPES
from pulsar_spark.model.topic_name import MAX_PARTITIONS
from pulsar_spark.options import option_values as values
from pulsar_spark.options.option_rules import check_together

STORAGE_PREFIX: Final = "storage."
"""Options `storage.NAME` go to the object store as they are."""
SERVICE_URL_VARIABLE: Final = "PULSARLITE_SERVICE_URL"
"""The environment's serviceUrl, where none is given."""

VIEWS: Final = (
    "messages", "backlog", "unacknowledged", "delayed", "dead-letters", "acknowledgements",
    "subscriptions", "cursors", "consumers", "producers", "ledgers", "stats", "batches",
)  # fmt: skip
"""The states of a queue that can be read as tables: docs/views.md."""


class Scope(Flag):
    """The operations for which an option has a meaning."""

    STREAM_READ = 1
    BATCH_READ = 2
    STREAM_WRITE = 4
    BATCH_WRITE = 8
    READ = STREAM_READ | BATCH_READ
    WRITE = STREAM_WRITE | BATCH_WRITE
    ANY = READ | WRITE


class Option(NamedTuple):
    """One option."""

    name: str
    kind: values.Kind
    default: Any
    scope: Scope
    meaning: str


OPTIONS: Final = (
    Option("serviceUrl", values.text("a folder, file://, memory://, s3://, gs:// or az://"),
           None, Scope.ANY,
           "The root below which the topics lie. Without it, the environment's "
           "`PULSARLITE_SERVICE_URL`."),
    Option("path", values.text("as serviceUrl"), None, Scope.ANY,
           "The same as `serviceUrl`, for `load(path)` and `start(path)`."),
    Option("topic", values.text("a topic's name"), None, Scope.ANY,
           "The topic: `flights`, `tenant/namespace/flights` or "
           "`persistent://tenant/namespace/flights`; to read one partition of it, "
           "`flights-partition-3`. A writer's rows may name another in a column `topic`."),
    Option("topics", values.TOPIC_NAMES, (), Scope.READ, "Several topics."),
    Option("topicsPattern", values.PATTERN, None, Scope.READ,
           "All topics whose whole name `persistent://tenant/namespace/name` matches; a pattern "
           "without `://` is taken in the namespace `public/default`, as Pulsar takes it; one "
           "that begins with `non-persistent://` finds such topics. System topics never match. "
           "New topics are found while the query runs."),
    Option("startingOffsets", values.message_ids("earliest", "latest"), "latest", Scope.READ,
           'Where a new query begins (a batch: `earliest` by default). As JSON: `{"flights": '
           '{"0": "7:12:0", "1": "earliest"}}`; the message named is the first that is read, '
           "unless startMessageIdInclusive is false. Partitions not named begin at the earliest."),
    Option("startMessageIdInclusive", values.BOOLEAN, True, Scope.READ,
           "Whether a message id in startingOffsets is itself read."),
    Option("startingTime", values.TIME, None, Scope.READ,
           "Begin at the first entry that was published at this time or later."),
    Option("endingOffsets", values.message_ids("latest"), "latest", Scope.BATCH_READ,
           "Where a batch ends; the message named is the last that is read. Partitions not named "
           "end at the latest."),
    Option("endingTime", values.TIME, None, Scope.BATCH_READ,
           "End before the first entry that was published at this time or later."),
    Option("maxMessagesPerTrigger", values.count(1), None, Scope.STREAM_READ,
           "Most messages of a micro-batch, over all partitions. It may end inside an entry."),
    Option("maxBytesPerTrigger", values.BYTES, None, Scope.STREAM_READ,
           "About how many payload bytes a micro-batch may have; one message always passes."),
    Option("minMessagesPerTrigger", values.count(1), None, Scope.STREAM_READ,
           "Wait until so many messages are there, but at most maxTriggerDelay. "
           "Trigger.AvailableNow does not wait."),
    Option("maxTriggerDelay", values.DURATION, 15 * 60_000, Scope.STREAM_READ,
           "Longest wait for minMessagesPerTrigger."),
    Option("minPartitions", values.count(1), None, Scope.READ,
           "At least so many tasks for a batch that is worth splitting; by default the processors "
           "of the driver's machine. With Key_Shared each of them reads all rows, so a consumer "
           "that has a third of the messages then takes a third of the processors."),
    Option("includeProperties", values.BOOLEAN, False, Scope.READ,
           "Whether the column `properties` is among those of a source without a user schema."),
    Option("view", values.one_of(*VIEWS), None, Scope.BATCH_READ,
           "Read a state of the queue as a table, in place of the messages of a topic: see "
           "[views](views.md). Without a topic it is that of all persistent topics of the root."),
    Option("asOf", values.AS_OF, None, Scope.BATCH_READ,
           "A view as it was at that time, or after that batch, as long as `__dispatch` has it."),
    Option("includeValue", values.BOOLEAN, False, Scope.BATCH_READ,
           "Whether the payload `value` is among the columns of a view without a user schema."),
    Option("statsIntervalSeconds", values.count(0), 0, Scope.STREAM_READ | Scope.STREAM_WRITE,
           "How often a source or sink logs what it did (0: never), as Pulsar's clients do, for "
           "the logger `pulsar_spark.stats`: [monitoring](monitoring.md)."),
    Option("tracing", values.IMPORT_PATH, None, Scope.WRITE,
           "A function without arguments that sets up OpenTelemetry in each of Spark's Python "
           "workers: then each task's rows name a span of theirs: [traces](monitoring.md#traces)."),
    Option("failOnDataLoss", values.BOOLEAN, True, Scope.READ,
           "Whether a query stops when messages that it has not read were trimmed away, or one of "
           "several topics that are named was deleted; otherwise it goes on behind them, and "
           "without that one, and says so in its log."),
    Option("readCompacted", values.BOOLEAN, False, Scope.READ,
           "Whether of a compacted topic (`pulsarlite topics compact`) only the latest message of "
           "each key is read, up to the compaction's horizon, and all that was published since. A "
           "consumer may do so with subscriptionType Exclusive or Failover."),
    Option("topicDiscoveryInterval", values.DURATION, 10_000, Scope.STREAM_READ,
           "How often topicsPattern looks for new topics (Pulsar: patternAutoDiscoveryPeriod)."),
    Option("subscriptionName", values.SUBSCRIPTION_NAME, None, Scope.STREAM_READ | Scope.WRITE,
           "Read as a consumer of this subscription, with a broker (`pulsarlite standalone`); "
           "without it, as a Reader. A sink with it does not publish its rows: each acknowledges "
           "a message (see the columns below)."),
    Option("subscriptionType", values.one_of("Exclusive", "Failover", "Shared", "Key_Shared"),
           "Exclusive", Scope.STREAM_READ,
           "How the consumers of a subscription share its messages."),
    Option("subscriptionMode", values.one_of("Durable", "NonDurable"), "Durable", Scope.STREAM_READ,
           "Whether the subscription stays when its last consumer has gone."),
    Option("subscriptionInitialPosition", values.one_of("Latest", "Earliest"), "Latest",
           Scope.STREAM_READ, "Where a subscription begins that is new."),
    Option("startMessageId", values.MESSAGE_ID, None, Scope.STREAM_READ,
           "Where a new subscription begins in the partition that the id names, or in all. "
           "startMessageIdInclusive says whether it is itself delivered."),
    Option("consumerName", values.text("a name"), None, Scope.STREAM_READ,
           "The consumer's name in the subscription. Without it one is made up, and kept in the "
           "checkpoint. A newer run under the same name replaces an older, which stops."),
    Option("priorityLevel", values.count(0), 0, Scope.STREAM_READ,
           "Lower ones are served first (Shared), or become active first (Failover)."),
    Option("keySharedMode", values.one_of("AUTO_SPLIT", "STICKY"), "AUTO_SPLIT", Scope.STREAM_READ,
           "Key_Shared: whether the broker deals out the keys, or each consumer names its own by "
           "keySharedRanges."),
    Option("keySharedRanges", values.HASH_RANGES, (), Scope.STREAM_READ,
           "Key_Shared with STICKY: the hash ranges of this consumer, both ends included."),
    Option("allowOutOfOrderDelivery", values.BOOLEAN, False, Scope.STREAM_READ,
           "Key_Shared: whether a key may go to another consumer before what of it is in process "
           "was acknowledged."),
    Option("delayedDelivery", values.BOOLEAN, False, Scope.STREAM_READ,
           "Exclusive and Failover: whether a message with a delivery time waits for it, as on "
           "Shared and Key_Shared. Pulsar has no such option, and delivers at once."),
    Option("ackMode", values.one_of("auto", "manual"), "auto", Scope.STREAM_READ,
           "auto: what a micro-batch delivered is acknowledged once it is committed. manual: the "
           "user acknowledges, by rows that a sink takes."),
    Option("ackTimeout", values.DURATION, 0, Scope.STREAM_READ,
           "With ackMode manual: what was not acknowledged for so long is delivered again; 0 for "
           "never, else 1s or more."),
    Option("ackTimeoutTickTime", values.DURATION, None, Scope.STREAM_READ,
           "ackTimeout counts in such steps, so that many messages time out together: 100ms or "
           "more, and no more than ackTimeout. Without it, to the millisecond."),
    Option("ackTimeoutRedeliveryBackoff", values.BACKOFF, None, Scope.STREAM_READ,
           "Added to ackTimeout, by how often a message was delivered before."),
    Option("negativeAckRedeliveryDelay", values.DURATION, 60_000, Scope.STREAM_READ,
           "When a negatively acknowledged message is delivered again."),
    Option("negativeAckRedeliveryBackoff", values.BACKOFF, None, Scope.STREAM_READ,
           "In place of negativeAckRedeliveryDelay: by how often it was delivered before."),
    Option("maxRedeliverCount", values.count(1), 16, Scope.STREAM_READ,
           "Gives the subscription a dead letter topic: where a message goes that was delivered "
           "so many times again."),
    Option("deadLetterTopic", values.text("a topic's name"), None, Scope.STREAM_READ,
           "By default TOPIC-SUBSCRIPTION-DLQ. Gives the subscription a dead letter topic too."),
    Option("retryLetterTopic", values.text("a topic's name"), None, Scope.STREAM_READ,
           "Where messages wait that are to be consumed later; with enableRetry by default "
           "TOPIC-SUBSCRIPTION-RETRY. Without either they stay, and are delivered again."),
    Option("initialSubscriptionName", values.text("a name"), None, Scope.STREAM_READ,
           "A subscription that the dead letter topic gets when it is made."),
    Option("enableRetry", values.BOOLEAN, False, Scope.STREAM_READ,
           "Whether the retry letter topic is read too; it is made if it is not there."),
    Option("maxBatchAttempts", values.count(1), 3, Scope.STREAM_READ,
           "With maxRedeliverCount: how often a micro-batch may be begun whose query ends before "
           "it does. Then its messages are tried apart, and the one that ends the query every "
           "time becomes a dead letter."),
    Option("receiverQueueSize", values.count(1), None, Scope.STREAM_READ,
           "Most messages of a partition that are granted to this consumer and not acknowledged. "
           "By default twice maxMessagesPerTrigger, so that one micro-batch is granted while "
           "another runs. Without either, a Shared or Key_Shared consumer begins with 1000 a "
           "micro-batch, and goes on with what it does in two seconds, up to 1000000."),
    Option("maxTotalReceiverQueueSizeAcrossPartitions", values.count(1), None, Scope.STREAM_READ,
           "The same over all partitions: each has its share of it at most. By default four times "
           "receiverQueueSize."),
    Option("leaseTimeout", values.DURATION, 30_000, Scope.STREAM_READ,
           "How long the consumer may show no life before what it holds goes to others; 1s or "
           "more."),
    Option("drainTimeout", values.DURATION, 60_000, Scope.STREAM_READ,
           "How long a Trigger.AvailableNow run waits for a broker that is silent."),
    Option("maxPendingChunkedMessage", values.count(1), DEFAULT_MAX_PENDING, Scope.READ,
           "How many chunked messages may be in the making at one place of a partition; matters "
           "with autoAckOldestChunkedMessageOnQueueFull."),
    Option("autoAckOldestChunkedMessageOnQueueFull", values.BOOLEAN, False, Scope.READ,
           "Whether the oldest chunked message that is not complete is given up when there are "
           "more than maxPendingChunkedMessage. Otherwise it stays: no chunk is held in memory."),
    Option("expireTimeOfIncompleteChunkedMessage", values.DURATION, DEFAULT_EXPIRE_MS, Scope.READ,
           "A message is given up whose next chunk was published longer than this after its "
           "first; 0 for never."),
    Option("valueSchema", values.one_of("auto"), None, Scope.READ,
           "auto: `value` is of the type of the topic's newest schema, a struct for JSON and "
           "AVRO, decoded by the schema of each message's version. Without it `value` is bytes."),
    Option("onSchemaMismatch", values.one_of("fail", "null", "deadLetter"), "fail", Scope.READ,
           "With valueSchema: a message that does not fit ends the query, is null with its reason "
           "in the column `schema_error`, or becomes a dead letter of the subscription."),
    Option("ackReceiptEnabled", values.BOOLEAN, False, Scope.WRITE,
           "With subscriptionName: whether a write, or a micro-batch, waits until the broker has "
           "what it acknowledges. Otherwise that is durable, and the broker has it later."),
    Option("operationTimeout", values.DURATION, 30_000, Scope.WRITE,
           "With ackReceiptEnabled: how long the broker may take; then the write fails with "
           "BROKER_ABSENT. What it said stands, and is done when a broker comes."),
    Option("numPartitions", values.count(1, MAX_PARTITIONS), 1, Scope.WRITE,
           "Partitions of a topic that the first write creates; without it the policy "
           "`auto_topic_partitions` of its namespace counts. A topic that exists keeps its."),
    Option("allowAutoTopicCreation", values.BOOLEAN, True, Scope.STREAM_READ | Scope.WRITE,
           "Whether a topic that is not there is made, as the policy `auto_topic_creation` of its "
           "namespace says; a batch that reads makes none. false: TOPIC_NOT_FOUND names the topic "
           "that is most like it."),
    Option("messageRoutingMode",
           values.one_of("RoundRobinPartition", "SinglePartition", "CustomPartition"),
           "RoundRobinPartition", Scope.WRITE,
           "Where messages without a key go: in turn, batch by batch; to one partition; or, as "
           "those with a key then, where messageRouter says. Those with a key go by its hash."),
    Option("messageRouter", values.IMPORT_PATH, None, Scope.WRITE,
           "A function of (messages, partitions), an Arrow table with the columns of a message "
           "and a number, that gives each message's partition: `[len(m['key']) % partitions for m "
           "in messages.to_pylist()]`."),
    Option("hashingScheme", values.one_of("JavaStringHash", "Murmur3_32Hash"),
           "JavaStringHash", Scope.WRITE, "How the key chooses the partition."),
    Option("batchingEnabled", values.BOOLEAN, True, Scope.WRITE,
           "Whether messages share entries. Without it each is an entry of its own."),
    Option("batchingMaxMessages", values.count(1), 1000, Scope.WRITE, "Most messages of an entry."),
    Option("batchingMaxBytes", values.BYTES, 128 * 1024, Scope.WRITE,
           "Most payload bytes of an entry, unless a single message has more."),
    Option("batcherBuilder", values.one_of("DEFAULT", "KEY_BASED"), "DEFAULT", Scope.WRITE,
           "Which messages share an entry: any, or only those of one ordering key, else key, as "
           "Key_Shared consumers of Pulsar need it."),
    Option("deliverAt", values.TIME, None, Scope.WRITE,
           "When messages are delivered that have neither deliver_at nor deliver_after. A message "
           "with a delivery time is an entry of its own."),
    Option("deliverAfter", values.DURATION, None, Scope.WRITE,
           "The same, as a time after the message's publish_time."),
    Option("maxMessageSize", values.BYTES, 5 * 1024 * 1024, Scope.WRITE,
           "Most bytes of a message's value, as its compressionType makes it; a larger one is "
           "refused. Values of which chunkingEnabled makes chunks count uncompressed."),
    Option("chunkingEnabled", values.BOOLEAN, False, Scope.WRITE,
           "Whether a message over maxMessageSize is cut into chunks, each an entry, which "
           "readers put together again. Needs batchingEnabled false."),
    Option("chunkMaxMessageSize", values.BYTES, None, Scope.WRITE,
           "Most bytes of a chunk, where that is less than maxMessageSize."),
    Option("compressionType", values.one_of("ZSTD", "LZ4", "ZLIB", "SNAPPY", "NONE"), "ZSTD",
           Scope.WRITE, "Compression of the data files."),
    Option("embeddedBytes", values.BYTES_OR_NONE, 0, Scope.WRITE,
           "Most bytes of a data file that is stored inside the commit that publishes it: one "
           "write fewer, and one request fewer to read it. 32k suits single messages. 0: each file "
           "is stored by itself."),
    Option("schemaType", values.one_of(*SCHEMA_TYPES), "BYTES", Scope.WRITE,
           "What the values are. All but BYTES are registered with the topic, and `value` is of "
           "the type: for JSON and AVRO (with pulsarlite[avro]) a struct."),
    Option("schema", values.text("an Avro definition of a record, as JSON"), None, Scope.WRITE,
           "schemaType JSON or AVRO: the definition to write by. Without it, it is derived from "
           "the type of `value`."),
    Option("producerName", values.text("a name"), None, Scope.WRITE,
           "producer_name of rows that have none of their own."),
    Option("accessMode",
           values.one_of("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"),
           "Shared", Scope.WRITE,
           "How this query, as a producer, shares its topic with others. The topic's log knows "
           "who has it, and refuses every commit of one who was fenced out. An Exclusive producer "
           "is refused while one that says Shared is there, not for sinks that say nothing."),
    Option("producerLease", values.DURATION, DEFAULT_LEASE_MS, Scope.WRITE,
           "After so long without a commit a query that said its accessMode counts as gone, and "
           "others may have the topic. Longer than the trigger's interval."),
    Option("enableDeduplication", values.BOOLEAN, None, Scope.WRITE,
           "Whether a message is dropped whose sequence_id its producer_name has used before in "
           "that partition, in whatever order they come. Without it the topic's setting holds, "
           "else the policy of its namespace or root; off if none says."),
    Option("txnAppId", values.text("any text"), None, Scope.BATCH_WRITE,
           "With txnVersion: a write with the same two is published once, however often it runs."),
    Option("txnVersion", values.count(0), None, Scope.BATCH_WRITE,
           "Rises with each write of one txnAppId, for instance foreachBatch's batch id."),
    Option("transactional", values.BOOLEAN, False, Scope.WRITE,
           "Whether all topics that a write, or a micro-batch, publishes to show it at the same "
           "instant, or never. Otherwise each topic shows its part as soon as it has it."),
    Option("transactionTimeout", values.duration(MAX_TRANSACTION_TIMEOUT_MS, "1h"),
           DEFAULT_TRANSACTION_TIMEOUT_MS, Scope.WRITE,
           "After so long a transaction that is not decided may be aborted by whoever waits for "
           "its topics."),
)  # fmt: skip

_NAMES: Final = tuple(option.name for option in OPTIONS)
CONSUMERS: Final = _NAMES[_NAMES.index("subscriptionName") : _NAMES.index("drainTimeout") + 1]
"""Options that a consumer has, and a Reader has not."""
OF_VIEWS: Final = frozenset({
    "serviceUrl", "path", "topic", "topics", "topicsPattern", "view", "asOf", "includeProperties",
    "includeValue", "minPartitions",
})  # fmt: skip
"""Options that a view takes."""
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
            lower = name.lower()
            if lower.startswith(STORAGE_PREFIX):
                storage[lower.removeprefix(STORAGE_PREFIX)] = value
            elif option := _BY_NAME.get(lower):
                given[option.name] = _parse(option, value)
            elif lower not in {"checkpointlocation", "queryname"}:  # Spark's own, handed on to all
                raise InvalidOptionError(_unknown(name))
        given["serviceUrl"] = _service_url(given, environment or {})
        options = Options(given, storage)
        options.check_scope(scope)
        if options.has("view"):
            for name in given.keys() - OF_VIEWS:
                raise InvalidOptionError(f"Option {name} has no meaning with view: leave it out.")
        check_together(options, CONSUMERS)
        return options

    def __getitem__(self, name: str) -> Any:
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


def markdown_table() -> str:
    """The rows of docs/options.md."""
    lines = ["| option | default | where | value | meaning |", "| --- | --- | --- | --- | --- |"]
    for option in OPTIONS:
        default = "" if option.default in (None, ()) else str(option.default)
        default = default.lower() if isinstance(option.default, bool) else default
        cells = (f"`{option.name}`", default, _scope_text(option.scope), option.kind.expects)
        lines.append(f"| {' | '.join(cells)} | {option.meaning} |")
    return "\n".join(lines) + "\n"


def _service_url(given: dict[str, Any], environment: Mapping[str, str]) -> Any:
    """The service url, whichever way it is given; takes `path` out."""
    if "path" in given and "serviceUrl" in given:
        raise InvalidOptionError("Options serviceUrl and path mean the same: give one of them.")
    url = (
        given.pop("path", None) or given.get("serviceUrl") or environment.get(SERVICE_URL_VARIABLE)
    )
    if not url:
        raise InvalidOptionError(
            "Option serviceUrl is missing: say below which folder or object store the topics "
            'lie, as in .option("serviceUrl", "/data/pulsarlite") or '
            '.option("serviceUrl", "s3://bucket/prefix"), or set PULSARLITE_SERVICE_URL.'
        )
    return url


def _parse(option: Option, value: str) -> Any:
    try:
        return option.kind.parse(str(value))
    except ValueError as error:
        detail = f" ({error.message})" if isinstance(error, PulsarliteError) else ""
        raise InvalidOptionError(
            f"Option {option.name} can't be {value!r}{detail}: it takes {option.kind.expects}."
        ) from None


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.5)
    if near:
        return f"Option {name} is not known. Did you mean {_BY_NAME[near[0]].name}?"
    known = ", ".join(option.name for option in OPTIONS)
    return f"Option {name} is not known. Known are {known}, and {STORAGE_PREFIX}*."


def _scope_text(scope: Scope) -> str:
    return {
        Scope.ANY: "everywhere",
        Scope.READ: "reading",
        Scope.WRITE: "writing",
        Scope.STREAM_READ: "readStream",
        Scope.BATCH_READ: "read",
        Scope.BATCH_WRITE: "write",
        Scope.STREAM_READ | Scope.WRITE: "readStream and writing",
        Scope.STREAM_READ | Scope.STREAM_WRITE: "readStream and writeStream",
    }[scope]
