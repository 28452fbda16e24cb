"""The task's side of a sink: rows become messages in entries, in data files, not yet committed.

Invariants: a message is checked before anything of its batch is kept; rows of one key keep their
order; a task buffers at most `BUFFERED_BYTES` and one batch of Spark's, then writes a file for
all the partitions that it feeds; nothing is visible before the driver's commit names the files.
Follows Pulsar's `ProducerImpl` and `PartitionedProducerImpl`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.batch_message_container import BatchLimits
from pulsar_spark.connector.ledger_file import MESSAGE_SCHEMA, LedgerFileWriter
from pulsar_spark.connector.managed_ledger import ManagedLedger
from pulsar_spark.connector.sequence_ids import sequence_ranges
from pulsar_spark.connector.topics import Root
from pulsar_spark.connector.worker_process import spare_the_garbage_collector
from pulsar_spark.errors import InvalidMessageError
from pulsar_spark.hashing import java_string_hash_many, murmur3_32_hash_many
from pulsar_spark.ledger_info import BatchSizes
from pulsar_spark.message_router import (
    RoundRobinPartitionMessageRouter,
    SinglePartitionMessageRouter,
    partitions_of_keys,
)
from pulsar_spark.options import Options
from pulsar_spark.publication import NewLedger
from pulsar_spark.topic_name import TopicName

BUFFERED_BYTES = 64 << 20
"""A task that holds so many bytes of messages of one topic writes them to a file."""

_HASH_MANY = {"JavaStringHash": java_string_hash_many, "Murmur3_32Hash": murmur3_32_hash_many}
_TIME = MESSAGE_SCHEMA.field("publish_time").type


@dataclass(frozen=True, slots=True)
class WrittenTopic:
    """What one task has written of one topic: ledgers without ids. Pickles."""

    topic: str
    ledgers: tuple[NewLedger, ...]


def write_messages(
    batches: Iterable[pa.RecordBatch], options: Options, root: Root
) -> list[WrittenTopic]:
    """Write the rows of one task; what the driver then commits.

    InvalidMessageError if a row can't be a message: nothing of its batch is kept, and what the
    task has written before is left to the clean-up of orphans.
    """
    writers: dict[str, _TopicWriter] = {}
    try:
        for batch in batches:
            if batch.num_rows:
                for topic, rows in _by_topic(batch, options["topic"]):
                    name = TopicName.parse(topic)
                    whole = str(name.partitioned_topic)
                    messages = _as_messages(rows, options, whole)
                    if whole not in writers:
                        writers[whole] = _TopicWriter(name.partitioned_topic, options, root)
                    writers[whole].add(messages, name.partition_index)
        written = [writer.close() for writer in writers.values()]
    except BaseException:
        for writer in writers.values():
            writer.abort()
        raise
    spare_the_garbage_collector()
    return written


class _TopicWriter:
    """The messages of one task for one topic."""

    def __init__(self, topic: TopicName, options: Options, root: Root) -> None:
        self._options, self._root, self._topic = options, root, topic
        settings = {"deduplication": True} if options["enableDeduplication"] else None
        self._ledger: ManagedLedger = root.open_or_create(topic, options["numPartitions"], settings)
        self._partitions = self._ledger.state.partitions
        self._router = _Router(options, self._partitions)
        deduplicate = options["enableDeduplication"]
        if deduplicate is None:
            deduplicate = self._ledger.state.settings.get("deduplication", False)
        self._deduplicate = bool(deduplicate)
        self._limits = BatchLimits(
            options["batchingMaxMessages"] if options["batchingEnabled"] else 1,
            options["batchingMaxBytes"],
            options["maxMessageSize"],
        )
        self._buffers: dict[int, list[pa.Table]] = {}
        self._buffered_bytes = 0
        self._written: list[NewLedger] = []
        self._schema: pa.Schema | None = None

    def add(self, messages: pa.Table, partition: int = -1) -> None:
        """Take in messages; `partition` is where they go, -1 lets the router choose."""
        if partition >= self._partitions:
            raise InvalidMessageError(
                f"A row names {self._topic}-partition-{partition}, and the topic has "
                f"{self._partitions} partitions, numbered from 0."
            )
        chosen = self._router.partitions(messages) if partition < 0 else partition
        for number, part in _split(messages, chosen):
            self._buffers.setdefault(number, []).append(part)
        self._buffered_bytes += messages.nbytes
        if self._buffered_bytes >= BUFFERED_BYTES:
            self._flush()

    def close(self) -> WrittenTopic:
        if self._buffers:
            self._flush()
        return WrittenTopic(str(self._topic), tuple(self._written))

    def abort(self) -> None:
        """Files that were written stay for the clean-up of orphans: a commit may name them yet."""
        self._buffers.clear()

    def _flush(self) -> None:
        tables = {
            partition: pa.concat_tables(parts) for partition, parts in sorted(self._buffers.items())
        }
        self._buffers.clear()
        self._buffered_bytes = 0
        empty = [
            name
            for name in next(iter(tables.values())).column_names
            if all(table[name].null_count == len(table) for table in tables.values())
            and name != "value"
        ]
        with LedgerFileWriter(
            self._ledger.store, self._ledger.folder, compression=self._options["compressionType"]
        ) as file:
            ledgers = []
            for partition, table in tables.items():
                kept = table.drop_columns(empty) if empty else table
                first_row = file.write(kept, partition)
                ledgers.append(self._new_ledger(kept, partition, file.path, first_row))
            file.close()
        self._written += ledgers

    def _new_ledger(self, table: pa.Table, partition: int, path: str, first_row: int) -> NewLedger:
        sizes = payload_sizes(table["value"])
        times = pc.min_max(table["publish_time"])
        deliver_at = table["deliver_at"] if "deliver_at" in table.column_names else None
        latest = None if deliver_at is None else pc.max(deliver_at)
        return NewLedger(
            partition=partition,
            file=path,
            first_row=first_row,
            batch_sizes=entries_of(sizes, self._limits, deliver_at),
            size_bytes=int(sizes.sum()),
            min_publish_time_ms=_ms(times["min"]),
            max_publish_time_ms=_ms(times["max"]),
            max_deliver_at_ms=_ms(latest) if latest is not None and latest.is_valid else None,
            sequences=sequence_ranges(table) if self._deduplicate else {},
        )


@dataclass(slots=True)
class _Router:
    """Which partition each message goes to, for the options of one sink."""

    options: Options
    partitions_count: int
    _unkeyed: int = 0
    _start: int = field(default_factory=lambda: random.randrange(1 << 30))  # noqa: S311

    def partitions(self, messages: pa.Table) -> NDArray[np.int32] | int:
        """One partition a row, shape (rows,); a number alone if all go to the same one."""
        if self.partitions_count == 1:
            return 0
        keys = messages["key"] if "key" in messages.column_names else None
        if keys is None or keys.null_count == len(keys):
            return self._without_key(len(messages))
        hashes = _HASH_MANY[self.options["hashingScheme"]](keys.combine_chunks())
        chosen = partitions_of_keys(hashes, self.partitions_count)
        if keys.null_count:
            unkeyed = pc.is_null(keys).to_numpy()
            others = self._without_key(int(unkeyed.sum()))
            chosen[unkeyed] = others
        return chosen

    def _without_key(self, count: int) -> NDArray[np.int32] | int:
        if self.options["messageRoutingMode"] == "SinglePartition":
            single = SinglePartitionMessageRouter(self._start % self.partitions_count)
            return single.choose_partition(self.partitions_count)
        batching = self.options["batchingEnabled"]
        router = RoundRobinPartitionMessageRouter(self._start, batching=False)
        if not batching:
            chosen = router.choose_partitions(
                self.partitions_count, count, message_number=self._unkeyed
            )
            self._unkeyed += count
            return chosen
        # Pulsar stays on a partition for 10 ms, so that a batch fills up. A task has its rows at
        # once: it stays for a batch of the largest size instead.
        most = self.options["batchingMaxMessages"]
        number = (self._start + (self._unkeyed + np.arange(count)) // most) % self.partitions_count
        self._unkeyed += count
        chosen_in_turn: NDArray[np.int32] = number.astype(np.int32)
        return chosen_in_turn


def payload_sizes(values: pa.ChunkedArray) -> NDArray[np.int64]:
    """Bytes of each value, shape (rows,); 0 for a null."""
    lengths = pc.binary_length(values)
    if lengths.null_count:
        lengths = pc.fill_null(lengths, 0)
    sizes: NDArray[np.int64] = lengths.to_numpy().astype(np.int64)
    return sizes


def entries_of(
    sizes: NDArray[np.int64], limits: BatchLimits, deliver_at: pa.ChunkedArray | None
) -> BatchSizes:
    """How consecutive messages form entries; a delayed one is an entry of its own."""
    if deliver_at is None or deliver_at.null_count == len(deliver_at):
        return BatchSizes.of(limits.cut(sizes).tolist())
    delayed = np.flatnonzero(pc.is_valid(deliver_at).to_numpy())
    batches: list[int] = []
    start = 0
    for place in delayed.tolist():
        batches += limits.cut(sizes[start:place]).tolist()
        batches.append(1)
        start = place + 1
    batches += limits.cut(sizes[start:]).tolist()
    return BatchSizes.of(batches)


def _by_topic(batch: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order."""
    if "topic" not in batch.schema.names:
        assert default is not None
        yield default, batch
        return
    topics = batch.column("topic")
    rest = batch.drop_columns(["topic"])
    if topics.null_count and default is None:
        raise InvalidMessageError(
            f"{topics.null_count} rows of {batch.num_rows} have no topic: fill the column topic, "
            "or give the option topic for those that have none."
        )
    if default is not None:
        topics = pc.fill_null(topics, default)
    distinct = topics.unique().to_pylist()
    if len(distinct) == 1:
        yield distinct[0], rest
        return
    for topic in distinct:
        yield topic, rest.filter(pc.equal(topics, topic))


def _as_messages(rows: pa.RecordBatch, options: Options, topic: str) -> pa.Table:
    """The rows with the columns and types of the data files, checked."""
    columns: dict[str, pa.Array] = {}
    for name in rows.schema.names:
        array = rows.column(name)
        wanted = MESSAGE_SCHEMA.field(name).type
        columns[name] = array if array.type == wanted else _cast(array, wanted, name, topic)
    value = columns["value"]
    largest = pc.max(pc.binary_length(value)).as_py() or 0
    if largest > options["maxMessageSize"]:
        raise InvalidMessageError(
            f"A message for {topic} has {largest} bytes, and maxMessageSize is "
            f"{options['maxMessageSize']}. Make it smaller, or raise maxMessageSize."
        )
    now_us = time.time_ns() // 1_000_000 * 1000
    columns["publish_time"] = pa.repeat(pa.scalar(now_us, _TIME), rows.num_rows)
    if options["producerName"]:
        name = columns.get("producer_name")
        if name is None:
            columns["producer_name"] = pa.repeat(options["producerName"], rows.num_rows)
        elif name.null_count:
            columns["producer_name"] = pc.fill_null(name, options["producerName"])
    hashed = columns.get("ordering_key"), columns.get("key")
    sticky = _sticky_key_hashes(*hashed)
    if sticky is not None:
        columns["sticky_key_hash"] = sticky
    return pa.table(columns)


def _sticky_key_hashes(ordering_key: pa.Array | None, key: pa.Array | None) -> pa.Array | None:
    """What Key_Shared hashes, 31 bits: the ordering key, else the key; null without either."""
    keys = key
    if ordering_key is not None and ordering_key.null_count < len(ordering_key):
        keys = ordering_key
        if key is not None and ordering_key.null_count:
            keys = pc.coalesce(ordering_key, key.cast(pa.binary()))
    if keys is None or keys.null_count == len(keys):
        return None
    hashes = murmur3_32_hash_many(keys).astype(np.int32)
    missing = pc.is_null(keys).to_numpy(zero_copy_only=False) if keys.null_count else None
    return pa.array(hashes, pa.int32(), mask=missing)


def _cast(array: pa.Array, wanted: pa.DataType, name: str, topic: str) -> pa.Array:
    try:
        return array.cast(wanted)
    except pa.ArrowException as error:
        raise InvalidMessageError(
            f"Column {name} of a message for {topic} can't be {wanted}: {error}"
        ) from error


def _split(
    messages: pa.Table, partitions: NDArray[np.int32] | int
) -> Iterator[tuple[int, pa.Table]]:
    """(partition, its rows in order), for each partition that has some."""
    if isinstance(partitions, int):
        yield partitions, messages
        return
    narrow = partitions.astype(np.uint16) if partitions.max() < 1 << 16 else partitions
    order = np.argsort(narrow, kind="stable")  # a radix sort, where numbers are narrow
    ordered = messages.take(pa.array(order))
    numbers, firsts = np.unique(partitions[order], return_index=True)
    ends = [*firsts[1:].tolist(), len(messages)]
    for number, first, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True):
        yield number, ordered.slice(first, end - first)


def _ms(time_scalar: pa.Scalar) -> int:
    return int(time_scalar.cast(pa.int64()).as_py()) // 1000
