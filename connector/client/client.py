"""The client: what a program of Pulsar's Python client calls, over topics that are files.

    client = Client("/data/pulsarlite", broker="embedded")
    consumer = client.subscribe("orders", "billing")

Invariants: no Spark and no Java; a subscription needs a broker, one that runs elsewhere
(`pulsarlite standalone`) or, embedded, this process; a client belongs to the process that made it.
Names, arguments and defaults are those of Pulsar's Python client 3.13; what is beyond them is given
by keyword.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from weakref import WeakSet

from pulsar_spark.connector.client import client_errors
from pulsar_spark.connector.client.arguments import (
    CLIENT,
    CONSUMER,
    PRODUCER,
    READER,
    TABLE_VIEW,
    check_arguments,
    check_topics,
)
from pulsar_spark.connector.client.client_errors import translated
from pulsar_spark.connector.client.client_settings import (
    DEFAULT_BATCH_RECEIVE,
    Authentication,
    BatchingType,
    CompressionType,
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    CryptoKeyReader,
    InitialPosition,
    KeySharedMode,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    check_type,
)
from pulsar_spark.connector.client.consumer import Consumer, Listener
from pulsar_spark.connector.client.message import MessageId
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.client.message_producer import MessageProducer
from pulsar_spark.connector.client.producer import Producer, Router
from pulsar_spark.connector.client.reader import (
    MessageReader,
    Reader,
    ReaderListener,
    TableView,
    start_at,
)
from pulsar_spark.connector.client.records import BYTES, Schema
from pulsar_spark.connector.client.shared_broker import SharedBroker
from pulsar_spark.connector.client.transaction import Transaction
from pulsar_spark.connector.inspect.telemetry.client_logs import check_logger, set_logger
from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, join
from pulsar_spark.connector.runtime.system_topics.lease import LEASES
from pulsar_spark.connector.runtime.system_topics.subscription_admin import TopicStats, topic_stats
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import (
    KEPT_FOR_SEEKS,
    open_or_create,
    receive_from,
)
from pulsar_spark.connector.runtime.topics.topics import ANY_DOMAIN, Root, whole_pattern
from pulsar_spark.connector.storage.memory_store import MEMORY
from pulsar_spark.connector.storage.service_url import CLUSTERS, a_cluster
from pulsar_spark.errors import InvalidTopicNameError
from pulsar_spark.log.transaction_attempt import (
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    MAX_TRANSACTION_TIMEOUT_MS,
)
from pulsar_spark.model.described import Described
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType
from pulsar_spark.model.topic_name import (
    NON_PERSISTENT,
    TopicName,
    TopicPartition,
    check_subscription_name,
)

_ROUTING: Final = {
    PartitionsRoutingMode.UseSinglePartition: "SinglePartition",
    PartitionsRoutingMode.RoundRobinDistribution: "RoundRobinPartition",
    PartitionsRoutingMode.CustomPartition: "CustomPartition",
}
_BATCHERS: Final = {BatchingType.Default: None, BatchingType.KeyBased: "KEY_BASED"}
_TYPES: Final = {each: each.name for each in ConsumerType} | {ConsumerType.KeyShared: "Key_Shared"}
Topics = str | Sequence[str] | re.Pattern[str]
_log = logging.getLogger(__name__)
Made = TypeVar("Made", Producer, Consumer, Reader)


class _Forks:
    """The number of forks so far. Asking for the process id would be a system call."""

    count = 0

    def add(self) -> None:
        self.count += 1


_forks: Final = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forks.add)


class Client(AbstractContextManager["Client"], Described):
    """Makes producers, consumers and readers of one root. Safe for several threads."""

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        operation_timeout_seconds: int = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50_000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: Any = None,
        connection_timeout_ms: int = 10_000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        *,
        broker: Literal["embedded"] | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        """`service_url`: a folder, `memory://NAME`, `s3://`, `gs://` or `az://`.

        `broker="embedded"` serves the root's subscriptions in this process, as `memory://` always
        does. `storage` are options of the object store. `logger` has the process's log written: a
        `logging.Logger`, ConsoleLogger or FileLogger. What concerns networks and threads has no
        effect. InvalidUrl if that is no root.
        """
        check_arguments(CLIENT, locals())
        check_logger(logger)
        if not service_url:
            raise ValueError("Argument service_url is empty: give a folder, memory:// or s3://.")
        if service_url.startswith(CLUSTERS):
            raise client_errors.InvalidUrl(a_cluster(service_url))
        if broker not in ("embedded", None):
            raise ValueError(
                f'Argument broker is {broker!r}: it takes "embedded", or None for one elsewhere.'
            )
        set_logger(logger)
        with translated():
            self.root = Root.at(service_url, storage)
        self._given = self.root.options | {"statsIntervalSeconds": str(stats_interval_in_seconds)}
        self._timeout_ms = operation_timeout_seconds * 1000
        self._forks = _forks.count
        self._lock = threading.Lock()
        self._made: list[Producer | Consumer | Reader] = []
        self._is_closed = self._is_shut_down = False
        self._broker: SharedBroker | None = None
        _open.add(self)
        if broker == "embedded" or service_url.startswith(MEMORY):
            with translated():
                self._broker = SharedBroker.join(self.root)

    # -- what it makes -------------------------------------------------------------------------

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | None = BYTES,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30_000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50_000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: Mapping[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: CryptoKeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Router | None = None,
        *,
        options: Mapping[str, str] | None = None,
    ) -> Producer:
        """A producer of a topic, which is made, with one partition, if there is none.

        `options` are further ones of a sink (docs/options.md), such as numPartitions or
        enableDeduplication.
        """
        _check_producer(locals())
        self.check_open()
        schema = schema or BYTES
        info = schema.schema_info()
        given = self._given | _texts(
            topic=topic,
            producerName=producer_name,
            compressionType=compression_type.name.upper(),
            batchingEnabled=batching_enabled,
            batchingMaxMessages=batching_max_messages,
            batchingMaxBytes=max(1, batching_max_allowed_size_in_bytes),
            batcherBuilder=_BATCHERS[batching_type] if batching_enabled else None,
            chunkingEnabled=chunking_enabled,
            messageRoutingMode=None if message_router else _ROUTING[message_routing_mode],
            accessMode=None if access_mode is ProducerAccessMode.Shared else access_mode.name,
        )
        with translated():
            engine = MessageProducer(
                given | dict(options or {}),
                publish_delay_ms=max(1, batching_max_publish_delay_ms),
                send_timeout_ms=send_timeout_millis,
                first_sequence_id=None if initial_sequence_id is None else initial_sequence_id + 1,
                schema=None if info.type is SchemaType.BYTES else SinkSchema(info, encoded=True),
                settings=KEPT_FOR_SEEKS,
                is_alone=producer_name is not None and access_mode is ProducerAccessMode.Shared,
            )
        made = Producer(
            engine,
            schema,
            max_pending=max_pending_messages,
            blocks=block_if_queue_full,
            router=message_router,
            check_open=self.check_open,
            closed=self._forget,
        )
        return self._kept(made)

    def subscribe(
        self,
        topic: Topics,
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema | None = BYTES,
        message_listener: Listener | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50_000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30_000,
        negative_ack_redelivery_delay_ms: int = 60_000,
        is_read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        retry_enable: bool = False,
        ack_receipt_enabled: bool = False,
        acknowledgments_group_time_millis: int = 100,
        options: Mapping[str, str] | None = None,
    ) -> Consumer:
        """A consumer of a subscription of one topic, of several, or of all that match a pattern.

        A topic that does not exist is made. With `retry_enable` its retry letter topic is read too;
        with `ack_receipt_enabled` `acknowledge` waits for the broker's receipt. `options` are
        further ones of a source, such as negativeAckRedeliveryBackoff (docs/options.md).
        """
        _check_consumer(locals())
        self.check_open()
        given = self._given | _texts(
            subscriptionName=subscription_name,
            subscriptionType=_TYPES[consumer_type],
            consumerName=consumer_name,
            subscriptionInitialPosition=initial_position.name,
            receiverQueueSize=max(1, receiver_queue_size),
            ackTimeout=unacked_messages_timeout_ms and f"{unacked_messages_timeout_ms}ms",
            negativeAckRedeliveryDelay=f"{negative_ack_redelivery_delay_ms}ms",
            readCompacted=is_read_compacted,
            enableRetry=retry_enable,
        )
        given |= _chunked(
            max_pending_chunked_message, auto_ack_oldest_chunked_message_on_queue_full
        )
        most = max_total_receiver_queue_size_across_partitions
        given |= _texts(maxTotalReceiverQueueSizeAcrossPartitions=most)
        given |= self._topics(topic, pattern_auto_discovery_period, regex_subscription_mode, schema)
        given |= _dead_letters(dead_letter_policy) | _key_shared(consumer_type, key_shared_policy)
        return self._consumer(
            given | dict(options or {}),
            _topic_of(topic) or subscription_name,
            schema,
            batch_receive_policy or DEFAULT_BATCH_RECEIVE,
            inclusive=start_message_id_inclusive,
            receipts=ack_receipt_enabled,
            group_time_ms=acknowledgments_group_time_millis,
            listener=message_listener,
        )

    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema | None = BYTES,
        reader_listener: ReaderListener | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> Reader:
        """A reader of a topic from that message on: behind it, or from it itself if inclusive."""
        check_arguments(READER, locals())
        self.check_open()
        given = self._given | _texts(readCompacted=is_read_compacted)
        given |= self._topics(topic, 60, RegexSubscriptionMode.PersistentOnly, schema)
        name = TopicName.parse(topic)
        with translated():
            number = max(name.partition_index, start_message_id.partition(), 0)
            topic_partition = TopicPartition(name.partitioned_topic_name, number)
            start = start_at(
                start_message_id, [topic_partition], inclusive=start_message_id_inclusive
            )
            engine = MessageReader(given, start, prefetch=max(1, receiver_queue_size))
        made = Reader(
            engine,
            str(name),
            schema or BYTES,
            inclusive=start_message_id_inclusive,
            check_open=self.check_open,
            closed=self._forget,
        )
        if start_message_id_inclusive and start_message_id == MessageId.latest:
            made.seek(start_message_id)
        if reader_listener is not None:
            made.listen(reader_listener)
        return self._kept(made)

    def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: Schema | None = BYTES
    ) -> TableView:
        """The latest value of each key of a topic, kept up to date."""
        check_arguments(TABLE_VIEW, locals())
        reader = self.create_reader(topic, MessageId.earliest, schema, is_read_compacted=True)
        return TableView(reader, topic, subscription_name)

    def new_transaction(self, timeout_millis: int = DEFAULT_TRANSACTION_TIMEOUT_MS) -> Transaction:
        """A transaction, for `Producer.add` and `Consumer.acknowledge_in`.

        One whose commit takes longer than the timeout may be aborted by whoever waits for it.
        ValueError if that is not 1 ms to 1 h.
        """
        self.check_open()
        check_type(int, timeout_millis=timeout_millis)
        if not 0 < timeout_millis <= MAX_TRANSACTION_TIMEOUT_MS:
            text = f"Argument timeout_millis is {timeout_millis}: it takes 1 to 3600000, an hour."
            raise ValueError(text)
        return Transaction(self.root, timeout_millis)

    def topic_stats(self, topic: str) -> TopicStats:
        """The statistics of a topic and its subscriptions: backlog, cursor, consumers.

        Subscriptions are as of the broker's last step; an embedded broker makes one now.
        TopicNotFound if there is no such topic.
        """
        self.check_open()
        with translated():
            if self._broker is not None:
                while self._broker.run_once(waits=True):
                    pass
            return topic_stats(self.root, TopicName.parse(topic).partitioned_topic)

    def get_topic_partitions(self, topic: str) -> list[str]:
        """The names of the topic's partitions; of one that is not partitioned its own."""
        check_type(str, topic=topic)
        self.check_open()
        with translated():
            name = TopicName.parse(topic)
            count = open_or_create(self.root, name, None, KEPT_FOR_SEEKS).state.partitions
        return [str(name)] if count == 1 else [str(name.partition(each)) for each in range(count)]

    # -- its end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all that it made, and the embedded broker if no other client has it.

        After `shutdown` this does nothing.
        """
        if self._is_shut_down:
            return
        self.check_open()
        with ExitStack() as closing:
            closing.callback(self._leave)
            for each in list(self._made):
                closing.callback(each.close)

    def shutdown(self) -> None:
        """Leave at once: what it made reports nothing more."""
        self._is_shut_down = not self._is_closed
        self._leave()

    def _leave(self) -> None:
        _open.discard(self)
        self._is_closed = True
        broker, self._broker = self._broker, None
        if broker is not None:
            with translated():
                broker.leave()

    def end_with_process(self) -> None:
        """Close what the program never closed, and wait for no listener: it may never return."""
        folder = self.root.store.local_folder(LEASES)
        if self._forks != _forks.count or not (folder is None or Path(folder).parent.is_dir()):
            return
        with ExitStack() as closing:
            closing.callback(self._leave)
            for each in list(self._made):
                closing.callback(each.end_with_process)

    def __exit__(self, *_: object) -> None:
        if not self._is_closed and self._forks == _forks.count:
            self.close()

    def check_open(self) -> None:
        """AlreadyClosed, or OperationNotSupported in a fork of the process that made it."""
        if self._is_closed:
            raise client_errors.AlreadyClosed("Pulsar error: AlreadyClosed")
        if self._forks != _forks.count:
            raise client_errors.OperationNotSupported(
                "This client belongs to the process from which this one was forked: make another."
            )

    # -- inside --------------------------------------------------------------------------------

    def _facts(self) -> dict[str, object]:
        with self._lock:
            made = [type(each) for each in self._made]
        return {
            "service_url": self.root.service_url,
            "broker": "embedded" if self._broker else "elsewhere",
            "producers": made.count(Producer),
            "consumers": made.count(Consumer),
            "readers": made.count(Reader),
            "is_closed": self._is_closed,
        }

    def _consumer(
        self,
        given: Mapping[str, str],
        topic: str,
        schema: Schema | None,
        batch_policy: ConsumerBatchReceivePolicy,
        *,
        inclusive: bool,
        receipts: bool = False,
        group_time_ms: int = 100,
        listener: Listener | None = None,
    ) -> Consumer:
        with translated():
            engine = MessageConsumer(
                {"drainTimeout": f"{self._timeout_ms}ms", **given},
                prefetch=int(given["receiverQueueSize"]),
                acknowledgment_group_time_ms=group_time_ms,
            )
        made = Consumer(
            engine,
            topic,
            schema or BYTES,
            batch_policy,
            inclusive=inclusive,
            receipts=receipts,
            broker=self._broker,
            check_open=self.check_open,
            closed=self._forget,
        )
        if listener is not None:
            made.listen(listener)
        return self._kept(made)

    def _topics(
        self, topic: Topics, discovery_s: int, mode: RegexSubscriptionMode, schema: Schema | None
    ) -> dict[str, str]:
        """Options that name the topics, which may be read by the schema; those without are made."""
        info = (schema or BYTES).schema_info()
        if isinstance(topic, re.Pattern):
            pattern = topic.pattern
            if mode is not RegexSubscriptionMode.PersistentOnly:  # the mode decides on the domain
                is_all = mode is RegexSubscriptionMode.AllTopics
                pattern = whole_pattern(pattern, ANY_DOMAIN if is_all else NON_PERSISTENT)
            with translated():
                for found in self.root.matching(pattern):
                    self._join(self.root.open_found(found), found, info)
            return {"topicsPattern": pattern, "topicDiscoveryInterval": f"{discovery_s}s"}
        names = [topic] if isinstance(topic, str) else list(topic)
        with translated():
            for name in names:
                whole = TopicName.parse(name).partitioned_topic
                self._join(receive_from(self.root, whole, None, KEPT_FOR_SEEKS), whole, info)
        return {"topic": names[0]} if len(names) == 1 else {"topics": ",".join(names)}

    def _join(self, ledger: ManagedLedger | None, topic: TopicName, info: SchemaInfo) -> None:
        """Let somebody read by that schema; everything can be read as bytes."""
        if ledger is not None and info.type is not SchemaType.BYTES:
            join(ledger, topic, info)

    def _kept(self, made: Made) -> Made:
        with self._lock:
            self._made.append(made)
        return made

    def _forget(self, closed: Producer | Consumer | Reader) -> None:
        with self._lock, suppress(ValueError):
            self._made.remove(closed)


_open: Final[WeakSet[Client]] = WeakSet()
"""The clients of this process that were not closed."""


@atexit.register
def _end_all() -> None:
    """Leave subscriptions and topics, so that the program's next start finds them free."""
    for client in list(_open):
        try:
            client.end_with_process()
        except Exception as error:  # noqa: BLE001, PERF203 - whatever it is, the process ends
            _log.warning("What a client of %s had open was not closed: %s", client.root, error)


def _check_producer(given: Mapping[str, Any]) -> None:
    check_arguments(PRODUCER, given)
    if given["encryption_key"] is not None:
        raise client_errors.OperationNotSupported("Messages are not encrypted: leave it out.")
    if given["chunking_enabled"] and given["batching_enabled"]:
        raise ValueError("Batching and chunking of messages can't be enabled together.")
    with translated():
        TopicName.parse(given["topic"])


def _check_consumer(given: Mapping[str, Any]) -> None:
    check_arguments(CONSUMER, given)
    if not isinstance(given["topic"], re.Pattern):
        check_topics(given["topic"])
    try:
        check_subscription_name(given["subscription_name"])
    except InvalidTopicNameError as error:  # as Pulsar's client calls it
        raise client_errors.InvalidConfiguration(str(error)) from error


def _topic_of(topic: Topics) -> str | None:
    """The name of one topic, or the pattern; several topics have none."""
    if isinstance(topic, re.Pattern):
        return topic.pattern
    return str(TopicName.parse(topic)) if isinstance(topic, str) else None


def _texts(**options: str | int | None) -> dict[str, str]:
    """Options as texts, without those that say nothing."""
    return {name: str(value) for name, value in options.items() if value or value == 0}


def _chunked(max_pending: int, gives_up: bool) -> dict[str, str]:
    """The options of chunked messages: with a bound of 0 none in the making is given up."""
    return _texts(
        maxPendingChunkedMessage=max_pending or None,
        autoAckOldestChunkedMessageOnQueueFull=gives_up and max_pending > 0,
    )


def _key_shared(kind: ConsumerType, policy: ConsumerKeySharedPolicy | None) -> dict[str, str]:
    if policy is None or kind is not ConsumerType.KeyShared:
        return {}
    given = _texts(allowOutOfOrderDelivery=policy.allow_out_of_order_delivery)
    if policy.key_shared_mode is KeySharedMode.Sticky:
        ranges = ",".join(f"{first}-{end}" for first, end in policy.sticky_ranges)
        given |= _texts(keySharedMode="STICKY", keySharedRanges=ranges)
    return given


def _dead_letters(policy: ConsumerDeadLetterPolicy | None) -> dict[str, str]:
    if policy is None:
        return {}
    return _texts(
        maxRedeliverCount=policy.max_redeliver_count,
        deadLetterTopic=policy.dead_letter_topic,
        initialSubscriptionName=policy.initial_subscription_name,
    )
