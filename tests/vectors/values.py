"""Checks of hashes, routers, ack sets and batches."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from pulsar_spark.connector.runtime.publishing.message_batching import in_entries
from pulsar_spark.connector.runtime.publishing.outgoing_messages import PAYLOAD_SIZE
from pulsar_spark.log.producing import hashing
from pulsar_spark.log.producing.batch_message_container import BatchLimits
from pulsar_spark.log.producing.message_router import (
    RoundRobinPartitionMessageRouter,
    partitions_of_keys,
)
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.options.options import Options
from tests.vectors import ack_set, java
from tests.vectors.case import Case


def check_key_hash(case: Case) -> None:
    kind = case.take("kind")
    if kind == "utf8":
        text = case.take("key", None)
        if text is None:
            unit = case.take("key_repeat_of")
            text = unit * (case.record["byte_len"] // len(unit.encode("utf-8", "replace")))
        key = text.encode("utf-8", "replace")
        _check_text_hash(case, text)
    else:
        key = bytes.fromhex(case.take("key_hex"))
    case.expect("key_hex", key.hex())
    case.expect("byte_len", len(key))
    unsigned = hashing.murmur3_32(key)
    masked = unsigned & hashing.MASK_31
    case.expect("murmur3_raw_unsigned", unsigned)
    case.expect("murmur3_raw_signed", unsigned - 2**32 if unsigned >> 31 else unsigned)
    case.expect("murmur3_masked31", masked)
    many = hashing.murmur3_32_hash_many(pa.array([None, key, key], pa.binary()))
    case.compare("murmur3 of many", [0, masked, masked], many.tolist())
    slot = hashing.sticky_key_slot(masked, consistent_hashing=False)
    case.expect("sticky_slot_auto_split", slot)
    case.expect("sticky_slot_consistent_hashing", hashing.sticky_key_slot(masked))
    case.expect("java_string_hash_from_bytes", hashing.java_string_hash(java.decode_utf8(key)))


def _check_text_hash(case: Case, text: str) -> None:
    murmur, java_hash = hashing.murmur3_32_hash(text), hashing.java_string_hash(text)
    case.expect("murmur3_client_string", murmur)
    raw = case.take("java_string_hashcode_raw")
    case.compare("java_string_hashcode_raw", raw & hashing.MASK_31, java_hash)
    case.expect("java_string_hash_masked31", java_hash)
    if not any("\ud800" <= mark <= "\udfff" for mark in text):  # Arrow holds Unicode only
        many = hashing.java_string_hash_many(pa.array([None, text, "x", text]))
        case.compare("java hash of many", [0, java_hash, ord("x"), java_hash], many.tolist())
    for name, hashed in (("partition_murmur3", murmur), ("partition_javastring", java_hash)):
        recorded = case.take(name, {})
        for partitions, partition in recorded.items():
            found = partitions_of_keys(np.array([hashed]), int(partitions)).tolist()
            case.compare(f"{name} of {partitions}", [partition], found)


def check_router(case: Case) -> None:
    router, partitions = case.take("router"), case.take("partitions")
    sequence = case.take("unkeyed_sequence", [])
    if router == "SinglePartition":
        case.compare("unkeyed_sequence", sequence, [case.take("partition_index")] * len(sequence))
        return
    case.compare("router", router, "RoundRobin")
    robin = RoundRobinPartitionMessageRouter(
        case.take("start_index"),
        case.take("batching"),
        case.take("partition_switch_ms", 10),
    )
    found = [_chosen(robin, partitions, message_number=number) for number in range(len(sequence))]
    case.compare("unkeyed_sequence", sequence, found)
    if not robin.batching:
        many = robin.choose_partitions(partitions, len(sequence)).tolist()
        case.compare("unkeyed_sequence, many", sequence, many)
    for place in case.take("unkeyed_at", []):
        clock_ms = place["clock_ms"]
        found_at = _chosen(robin, partitions, clock_ms=clock_ms)
        recorded = {"clock_ms": clock_ms, "partition": found_at}
        case.compare(f"unkeyed_at {clock_ms}", place, recorded)
        many = robin.choose_partitions(partitions, 2, clock_ms=clock_ms).tolist()
        case.compare(f"unkeyed_at {clock_ms}, many", [place["partition"]] * 2, many)


def _chosen(robin: RoundRobinPartitionMessageRouter, partitions: int, **when: int) -> int:
    (partition,) = robin.choose_partitions(partitions, 1, **when).tolist()
    return int(partition)


_ENTRY = Position(0, 1)


def check_ack_set(case: Case) -> None:
    cursor = Cursor()
    if "and_left" in case.record:
        left, right = (ack_set.from_words(case.take(f"and_{side}")) for side in ("left", "right"))
        batch_size = max(left, right).bit_length() + 1
        for each in (left, right):
            bits = (1 << batch_size) - 1 & ~each
            cursor = cursor.acknowledge(PositionSet.of_batch(_ENTRY, batch_size, bits))
    elif "cumulative_up_to" in case.record:
        batch_size, up_to = case.take("batch_size"), case.take("cumulative_up_to")
        cursor = cursor.acknowledge_cumulative(_ENTRY, up_to, batch_size)
    else:
        batch_size, acked = case.take("batch_size"), case.take("acked")
        for index in range(batch_size) if acked == "all" else acked:
            one = PositionSet.of_batch(_ENTRY, batch_size, 1 << index)
            cursor = cursor.acknowledge(one)
    bits = sum(1 << i for i in range(batch_size) if not cursor.contains(_ENTRY, i))
    if "and_result" in case.record:
        case.expect("and_result", ack_set.to_words(bits))
    case.expect("ack_set", ack_set.to_words(bits))
    case.expect("remaining", bits.bit_count())
    case.expect("empty", bits == 0)
    case.expect("next_set_bit_0", (bits & -bits).bit_length() - 1)


def check_batching(case: Case) -> None:
    container = case.take("container")
    if container == "key_based":
        _check_key_based(case)
        return
    case.compare("container", container, "default")
    limits = BatchLimits(
        case.take("batching_max_messages"),
        case.take("batching_max_bytes"),
        case.take("max_message_size"),
    )
    sizes = case.take("message_sizes")
    plain = _cut_plainly(sizes, limits)
    batches, start = [], 0
    for count in limits.cut(np.array(sizes, np.int64)).tolist():
        batches.append(list(range(start, start + count)))
        start += count
    last = batches[-1] if batches else []
    is_open = bool(last) and not limits.is_full(len(last), sum(sizes[i] for i in last))
    for how, found in (("", (batches[:-1], last) if is_open else (batches, [])), ("plain", plain)):
        case.compare(f"batches {how}", case.take("batches_closed_by_size"), found[0])
        case.compare(f"left open {how}", case.take("left_open"), found[1])


def _cut_plainly(sizes: list[int], limits: BatchLimits) -> tuple[list[list[int]], list[int]]:
    """(closed, open), message by message as Pulsar's producer does it."""
    closed: list[list[int]] = []
    batch: list[int] = []
    held = 0
    for place, size in enumerate(sizes):
        if batch and not _fits(limits, len(batch), held + size):
            closed.append(batch)
            batch, held = [], 0
        batch, held = [*batch, place], held + size
        if limits.is_full(len(batch), held):
            closed.append(batch)
            batch, held = [], 0
    return closed, batch


def _fits(limits: BatchLimits, messages: int, size_bytes: int) -> bool:
    """Whether a message makes a batch of so many bytes that holds so many already."""
    has_room = limits.max_messages <= 0 or messages < limits.max_messages
    return has_room and size_bytes <= limits.bytes_limit


def _check_key_based(case: Case) -> None:
    messages: list[dict[str, Any]] = case.take("messages")
    ordering = [None if m["ordering_key"] is None else m["ordering_key"].encode() for m in messages]
    table = pa.table(
        {
            "value": pa.array([b""] * len(messages), pa.binary()),
            "key": pa.array([m["key"] for m in messages], pa.string()),
            "ordering_key": pa.array(ordering, pa.binary()),
            "sequence_id": pa.array([m["seq"] for m in messages], pa.int64()),
            PAYLOAD_SIZE: pa.repeat(0, len(messages)),
        }
    )
    given = {"serviceUrl": "memory://vectors", "batcherBuilder": "KEY_BASED"}
    stored, sizes = in_entries(table, Options.parse(given))
    left = iter(stored["sequence_id"].to_pylist())
    batches = [list(islice(left, size)) for size in sizes.array().tolist()]
    found = [{"sequence_id_on_wire": max(batch), "seqs": batch} for batch in batches]
    case.expect("batches_in_send_order", found)
