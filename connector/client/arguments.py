"""The checks of arguments that Pulsar's Python client makes before anything happens.

Invariants: a wrong argument raises what it raises there, ValueError mostly, with its text where
that is Python's (tests/recorded/wrong_arguments.json); nothing is made, and no store is asked,
before all are checked. What Pulsar's client leaves to its C++ part, which says «incompatible
function arguments» and the like, has a sentence of its own here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pulsar_spark.connector.client.client_settings import (
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
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    check_type,
    check_type_or_none,
)
from pulsar_spark.connector.client.message import MessageId
from pulsar_spark.connector.client.records import Schema

LEAST_ACK_TIMEOUT_MS: Final = 1_000
OR_NONE: Final = True
Kinds = Mapping[str, type | tuple[type, bool]]
"""Argument -> its type, or (its type, OR_NONE)."""

CLIENT: Final[Kinds] = {
    "service_url": str, "authentication": (Authentication, OR_NONE),
    "operation_timeout_seconds": int, "connection_timeout_ms": int, "io_threads": int,
    "message_listener_threads": int, "concurrent_lookup_requests": int,
    "log_conf_file_path": (str, OR_NONE), "stats_interval_in_seconds": int, "use_tls": bool,
    "tls_trust_certs_file_path": (str, OR_NONE), "tls_allow_insecure_connection": bool,
    "tls_validate_hostname": bool, "listener_name": (str, OR_NONE),
    "tls_private_key_file_path": (str, OR_NONE), "tls_certificate_file_path": (str, OR_NONE),
}  # fmt: skip
PRODUCER: Final[Kinds] = {
    "topic": str, "producer_name": (str, OR_NONE), "schema": Schema,
    "initial_sequence_id": (int, OR_NONE), "send_timeout_millis": int,
    "compression_type": CompressionType, "max_pending_messages": int,
    "max_pending_messages_across_partitions": int, "block_if_queue_full": bool,
    "batching_enabled": bool, "batching_max_messages": int,
    "batching_max_allowed_size_in_bytes": int, "batching_max_publish_delay_ms": int,
    "chunking_enabled": bool, "properties": (dict, OR_NONE), "batching_type": BatchingType,
    "encryption_key": (str, OR_NONE), "crypto_key_reader": (CryptoKeyReader, OR_NONE),
    "lazy_start_partitioned_producers": bool, "access_mode": ProducerAccessMode,
}  # fmt: skip
CONSUMER: Final[Kinds] = {
    "subscription_name": str, "consumer_type": ConsumerType, "schema": Schema,
    "receiver_queue_size": int, "max_total_receiver_queue_size_across_partitions": int,
    "consumer_name": (str, OR_NONE), "unacked_messages_timeout_ms": (int, OR_NONE),
    "broker_consumer_stats_cache_time_ms": int, "negative_ack_redelivery_delay_ms": int,
    "pattern_auto_discovery_period": int, "is_read_compacted": bool,
    "properties": (dict, OR_NONE), "initial_position": InitialPosition,
    "crypto_key_reader": (CryptoKeyReader, OR_NONE), "max_pending_chunked_message": int,
    "auto_ack_oldest_chunked_message_on_queue_full": bool, "start_message_id_inclusive": bool,
    "batch_receive_policy": (ConsumerBatchReceivePolicy, OR_NONE),
    "key_shared_policy": (ConsumerKeySharedPolicy, OR_NONE), "batch_index_ack_enabled": bool,
    "regex_subscription_mode": RegexSubscriptionMode,
    "dead_letter_policy": (ConsumerDeadLetterPolicy, OR_NONE),
    "crypto_failure_action": ConsumerCryptoFailureAction,
}  # fmt: skip
READER: Final[Kinds] = {
    "topic": str, "start_message_id": MessageId, "schema": Schema,
    "receiver_queue_size": int, "reader_name": (str, OR_NONE),
    "subscription_role_prefix": (str, OR_NONE), "is_read_compacted": bool,
    "crypto_key_reader": (CryptoKeyReader, OR_NONE), "start_message_id_inclusive": bool,
    "crypto_failure_action": ConsumerCryptoFailureAction,
}  # fmt: skip
TABLE_VIEW: Final[Kinds] = {
    "topic": str, "subscription_name": (str, OR_NONE), "schema": Schema,
}  # fmt: skip

_UNSIGNED: Final = frozenset({
    "stats_interval_in_seconds", "batching_max_messages", "batching_max_allowed_size_in_bytes",
    "batching_max_publish_delay_ms", "unacked_messages_timeout_ms", "max_pending_chunked_message",
})  # fmt: skip
"""Numbers that C++ holds without a sign: below 0 they are TypeErrors."""
_AT_LEAST: Final = {
    "max_pending_messages": (0, "maxPendingMessages needs to be >= 0"),
    "max_pending_messages_across_partitions": (0, "maxPendingMessages needs to be >=0"),
    "batching_max_messages": (2, "batchingMaxMessages needs to be greater than 1"),
    "negative_ack_redelivery_delay_ms": (0, "negative_ack_redelivery_delay_ms needs to be >= 0"),
    "pattern_auto_discovery_period": (0, "pattern_auto_discovery_period needs to be >= 0"),
    "operation_timeout_seconds": (0, "operation_timeout_seconds needs to be >= 0"),
    "send_timeout_millis": (0, "send_timeout_millis needs to be >= 0"),
    "initial_sequence_id": (-1, "initial_sequence_id needs to be >= -1"),
}  # fmt: skip
"""(the least, the text of the ValueError below it); where Pulsar's client checks none, it would do
nothing of use."""
_CALLED: Final = ("message_router", "message_listener", "reader_listener")


def check_arguments(kinds: Kinds, given: Mapping[str, Any]) -> None:
    """ValueError or TypeError names the first of the arguments that is wrong."""
    for name, kind in kinds.items():
        if name == "schema" and given[name] is None:  # the default of `pulsar.asyncio`
            continue
        if isinstance(kind, tuple):
            check_type_or_none(kind[0], **{name: given[name]})
        else:
            check_type(kind, **{name: given[name]})
    for name, value in given.items():
        if value is not None:
            _check_value(name, value)


def check_topics(topic: Any) -> None:
    """ValueError if several topics are not a list of texts."""
    names = [topic] if isinstance(topic, str) else topic
    is_list = isinstance(names, Sequence) and not isinstance(names, bytes)
    if not is_list or not names or not all(isinstance(each, str) for each in names):
        raise ValueError(
            "Argument 'topic' is expected to be of a type between (str, list, re.pattern)"
        )


def _check_value(name: str, value: Any) -> None:
    if name in _UNSIGNED and value < 0:
        raise TypeError(f"Argument {name} is {value}: it takes 0 or more.")
    if name in _AT_LEAST and value < _AT_LEAST[name][0]:
        raise ValueError(_AT_LEAST[name][1])
    if name == "replicate_subscription_state_enabled" and not isinstance(value, int):
        raise TypeError(f"Argument {name} is {value!r}: it takes True or False.")
    if name in _CALLED and not callable(value):
        raise ValueError(f"Argument {name} is {value!r}, which can't be called.")
    if name == "unacked_messages_timeout_ms" and 0 < value < LEAST_ACK_TIMEOUT_MS:
        raise ValueError(
            "Consumer Config Exception: Unacknowledged message timeout should be 1 second or more."
        )
    if name == "properties":
        check_texts(value)
    if name == "message_routing_mode" and not isinstance(value, PartitionsRoutingMode):
        raise TypeError(f"Argument {name} is {value!r}: it takes a PartitionsRoutingMode.")


def check_texts(properties: Mapping[Any, Any]) -> None:
    """TypeError if a name or a value of these is no text."""
    for name, value in properties.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"Property {name!r} is {value!r}: names and values are texts.")
