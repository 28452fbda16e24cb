"""The values that programs try for each argument of the public calls, first of them a right one.

Invariant: each argument of `Client`, `subscribe`, `create_producer`, `create_reader` and `send` is
here; this module needs nothing of this repository.
"""

from __future__ import annotations

from typing import Any

from tests.programs.steps import EARLIEST, bytes_of, enum, new, topic

_KEYS = new("CryptoKeyReader", public_key_path="/none/public", private_key_path="/none/private")
_BYTES = {"$schema": "BytesSchema"}

CLIENT: dict[str, list[Any]] = {
    "authentication": [None, new("AuthenticationToken", token="t"), "text"],
    "operation_timeout_seconds": [5, "5"],
    "io_threads": [2, "1"],
    "message_listener_threads": [2, None],
    "concurrent_lookup_requests": [10, "1"],
    "log_conf_file_path": [None, 1],
    "stats_interval_in_seconds": [60, "1"],
    "use_tls": [False, "no"],
    "tls_trust_certs_file_path": [None, "/none/certificates", 1],
    "tls_allow_insecure_connection": [True, 1],
    "tls_validate_hostname": [True, 1],
    "logger": [None, {"$logger": "l"}, "text"],
    "connection_timeout_ms": [2_000, "1"],
    "listener_name": [None, 1],
    "tls_private_key_file_path": [None, "/none/key", 1],
    "tls_certificate_file_path": [None, "/none/certificate", 1],
}
SUBSCRIBE: dict[str, list[Any]] = {
    "topic": [topic("t", "persistent"), [topic("t")], "", 5, None, [], "a://b://c"],
    "subscription_name": ["other", "", None, 5, "a/b ä"],
    "consumer_type": [enum("ConsumerType", each) for each in (
        "Exclusive", "Shared", "Failover", "KeyShared"
    )] + ["Shared", None],
    "schema": [_BYTES, {"$schema": "StringSchema"}, None, "text"],
    "message_listener": [None, {"$listener": "l", "then": "acknowledge"}, 5],
    "receiver_queue_size": [0, 1, 10, -1, "1"],
    "max_total_receiver_queue_size_across_partitions": [1, 100, "1"],
    "consumer_name": ["named", "", 5],
    "unacked_messages_timeout_ms": [10_000, None, 9_999, "1"],
    "broker_consumer_stats_cache_time_ms": [100, "1"],
    "negative_ack_redelivery_delay_ms": [100, 1_000, "1"],
    "is_read_compacted": [True, False, "yes"],
    "properties": [{"a": "b"}, {}, None, {"a": 1}, "text"],
    "pattern_auto_discovery_period": [1, "1"],
    "initial_position": [EARLIEST, enum("InitialPosition", "Latest"), "Earliest", None],
    "crypto_key_reader": [None, _KEYS, "text"],
    "replicate_subscription_state_enabled": [True, "yes"],
    "max_pending_chunked_message": [1, 0, "1"],
    "auto_ack_oldest_chunked_message_on_queue_full": [True, "yes"],
    "start_message_id_inclusive": [True, "yes"],
    "batch_receive_policy": [
        new("ConsumerBatchReceivePolicy", max_num_message=2, max_num_bytes=-1, timeout_ms=100),
        new("ConsumerBatchReceivePolicy", max_num_message=-1, max_num_bytes=-1, timeout_ms=-1),
        None, "text",
    ],
    "key_shared_policy": [
        new("ConsumerKeySharedPolicy"),
        new("ConsumerKeySharedPolicy", allow_out_of_order_delivery=True),
        new("ConsumerKeySharedPolicy", key_shared_mode=enum("KeySharedMode", "Sticky"),
            sticky_ranges=[{"$tuple": [0, 65_535]}]),
        new("ConsumerKeySharedPolicy", key_shared_mode=enum("KeySharedMode", "Sticky")),
        new("ConsumerKeySharedPolicy", key_shared_mode=enum("KeySharedMode", "Sticky"),
            sticky_ranges=[{"$tuple": [5, 1]}]),
        "text",
    ],
    "batch_index_ack_enabled": [True, "yes"],
    "regex_subscription_mode": [enum("RegexSubscriptionMode", each) for each in (
        "PersistentOnly", "NonPersistentOnly", "AllTopics"
    )] + ["AllTopics"],
    "dead_letter_policy": [
        new("ConsumerDeadLetterPolicy", max_redeliver_count=2),
        new("ConsumerDeadLetterPolicy", max_redeliver_count=0), "text",
    ],
    "crypto_failure_action": [enum("ConsumerCryptoFailureAction", each) for each in (
        "FAIL", "DISCARD", "CONSUME"
    )] + ["FAIL"],
}  # fmt: skip
PRODUCER: dict[str, list[Any]] = {
    "topic": [topic("t", "persistent"), "", 5, None, "a://b://c"],
    "producer_name": ["named", None, 5],
    "schema": [_BYTES, {"$schema": "StringSchema"}, None, "text"],
    "initial_sequence_id": [0, 41, None, "1"],
    "send_timeout_millis": [1_000, 0, "1"],
    "compression_type": [enum("CompressionType", each) for each in (
        "NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"
    )] + ["LZ4"],
    "max_pending_messages": [1, 10, 0, -1, "1"],
    "max_pending_messages_across_partitions": [10, 0, "1"],
    "block_if_queue_full": [True, "yes"],
    "batching_enabled": [True, "yes"],
    "batching_max_messages": [2, 1, 0, "1"],
    "batching_max_allowed_size_in_bytes": [100, 0, "1"],
    "batching_max_publish_delay_ms": [1, 100, 0, "1"],
    "chunking_enabled": [True, "yes"],
    "message_routing_mode": [enum("PartitionsRoutingMode", each) for each in (
        "UseSinglePartition", "RoundRobinDistribution", "CustomPartition"
    )] + ["RoundRobinDistribution"],
    "lazy_start_partitioned_producers": [True, "yes"],
    "properties": [{"a": "b"}, {}, None, {"a": 1}, "text"],
    "batching_type": [enum("BatchingType", each) for each in ("Default", "KeyBased")] + ["Default"],
    "encryption_key": [None, "key", 5],
    "crypto_key_reader": [None, _KEYS, "text"],
    "access_mode": [enum("ProducerAccessMode", each) for each in (
        "Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"
    )] + ["Shared"],
    "message_router": [{"$router": 1}, None, "text"],
}  # fmt: skip
READER: dict[str, list[Any]] = {
    "topic": [topic("t", "persistent"), "", 5, None, [topic("t")]],
    "start_message_id": [{"$edge": "earliest"}, {"$edge": "latest"}, {"$ref": "sent"}, 5, None],
    "schema": [_BYTES, {"$schema": "StringSchema"}, None, "text"],
    "reader_listener": [None, {"$listener": "l"}, 5],
    "receiver_queue_size": [0, 1, 10, -1, "1"],
    "reader_name": ["named", "", 5],
    "subscription_role_prefix": ["prefix", 5],
    "is_read_compacted": [True, "yes"],
    "crypto_key_reader": [None, _KEYS, "text"],
    "start_message_id_inclusive": [True, "yes"],
    "crypto_failure_action": [enum("ConsumerCryptoFailureAction", "DISCARD"), "FAIL"],
}  # fmt: skip
SEND: dict[str, list[Any]] = {
    "content": [bytes_of("b"), bytes_of(""), "text", 5, None, {"$repeat": ["x", 6_000_000]},
                {"$noise": [1, 6_000_000]}],
    "properties": [{"a": "b"}, {}, None, {"a": 1}, "text", {"": ""}],
    "partition_key": ["key", "", "ä", 5, bytes_of("key")],
    "ordering_key": ["key", "", "ä", 5, bytes_of("key")],
    "sequence_id": [5, 5, 3, 10, "1", -1],
    "replication_clusters": [["standalone"], [], None, "text", [5]],
    "disable_replication": [True, False, "yes"],
    "event_timestamp": [5, 0, "1", -1],
    "deliver_at": [{"$after": 1_000}, 5, "1", -1],
    "deliver_after": [{"$ms": 1_000}, {"$ms": 0}, 5, {"$ms": -5}],
}  # fmt: skip
