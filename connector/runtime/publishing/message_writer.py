"""The task's side of a sink: rows become messages in entries, in data files, not yet committed.

Invariants: a message is checked before anything of its batch is kept; rows of one key keep their
order; a task buffers at most `BUFFERED_BYTES` and one batch of Spark's, then writes a file for
all the partitions that it feeds; nothing is visible before the driver's commit names the files.
Follows Pulsar's `ProducerImpl` and `PartitionedProducerImpl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.publishing.message_batching import in_entries
from pulsar_spark.connector.runtime.publishing.message_chunking import chunk_runs, in_chunks
from pulsar_spark.connector.runtime.publishing.message_routing import MessageRouting
from pulsar_spark.connector.runtime.publishing.outgoing_messages import (
    PAYLOAD_SIZE,
    as_messages,
    check_delays,
    check_rows,
)
from pulsar_spark.connector.runtime.schema.schema_codec import encoder
from pulsar_spark.connector.runtime.schema.schema_registration import (
    SinkSchema,
    check_validation,
    register,
)
from pulsar_spark.connector.runtime.topics.non_persistent import check_publishing
from pulsar_spark.connector.runtime.topics.policies import (
    check_domain,
    deduplicates,
    max_delivery_delay_ms,
    open_or_create,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.content_digest import content_digest
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileWriter
from pulsar_spark.connector.storage.data_files.sequence_ids import sequence_ranges
from pulsar_spark.errors import InvalidMessageError
from pulsar_spark.log.publication import NewLedger
from pulsar_spark.model.topic_name import TopicName, check_user_topic
from pulsar_spark.options.options import Options

BUFFERED_BYTES = 64 << 20
"""The buffered bytes of one topic at which a task writes a file."""
LARGEST: Final = 1 << 31
"""As `maxMessageSize`: what was published once may be published again, however large."""


@dataclass(frozen=True, slots=True)
class WrittenTopic:
    """One task's ledgers of one topic, without ids. Pickles."""

    topic: str
    ledgers: tuple[NewLedger, ...]
    deduplicate: bool = False
    incarnation: int = 0
    """The incarnation of the topic for which they were written."""


def write_messages(
    batches: Iterable[pa.RecordBatch],
    options: Options,
    root: Root,
    schema: SinkSchema | None = None,
    *,
    enforced: bool = True,
    routing: MessageRouting | None = None,
    incarnation: int | None = None,
) -> list[WrittenTopic]:
    """Write the rows of one task; returns the files for the driver to commit.

    InvalidMessageError if a row can't be a message, IncompatibleSchemaError if its topic refuses
    the values' `schema`: nothing of its batch is kept, and files that the task has written before
    are left to the clean-up of orphans. Not `enforced`, as for messages that were published before,
    texts need not be UTF-8, and no topic demands a schema. `routing` goes on where an earlier
    write of the same topic left it. With an `incarnation` the topic is that one: it is not made,
    and TopicDeletedError says that it is gone.
    """
    writers: dict[TopicName, _TopicWriter] = {}
    encode = encoder(schema.info) if schema and not schema.encoded else None
    for batch in batches:
        if not batch.num_rows:
            continue
        if enforced:
            check_rows(batch)
        if encode:
            place = batch.schema.get_field_index("value")
            batch = batch.set_column(place, "value", encode(batch.column(place)))  # noqa: PLW2901
        for topic, rows in _by_topic(batch, options["topic"]):
            name = TopicName.parse(topic)
            whole = name.partitioned_topic
            messages = as_messages(rows, options, str(whole), root.clock.wall_ms())
            if whole not in writers:
                writers[whole] = _TopicWriter(
                    whole, options, root, schema, enforced=enforced, routing=routing,
                    incarnation=incarnation,
                )  # fmt: skip
            writers[whole].add(messages, name.partition_index)
    return root.store.all_of(_TopicWriter.close, writers.values())


class _TopicWriter:
    """Buffers and writes one task's messages for one topic."""

    def __init__(
        self,
        topic: TopicName,
        options: Options,
        root: Root,
        schema: SinkSchema | None,
        *,
        enforced: bool,
        routing: MessageRouting | None,
        incarnation: int | None,
    ) -> None:
        check_publishing(str(topic), options)
        self._options, self._root, self._topic = options, root, topic
        settings = {"deduplication": True} if options["enableDeduplication"] else None
        if incarnation is None:
            self._ledger = open_or_create(root, topic, options, settings)
        else:
            check_domain(root, topic)
            self._ledger = root.known(topic) or root.open(topic)
            self._ledger.check_incarnation(incarnation)
        self._ledger.state.check_takes_messages()
        self._enforced = enforced
        if schema is None and enforced:
            check_validation(self._ledger, topic)
        self._schema_version = None if schema is None else register(self._ledger, topic, schema)
        self._partitions = self._ledger.state.partitions
        self._router = routing or MessageRouting(options, self._partitions, str(topic))
        self._deduplicate = deduplicates(self._ledger, topic, options["enableDeduplication"])
        self._records_sequences = self._deduplicate or self._ledger.state.records_sequences
        self._buffers: dict[int, list[pa.Table]] = {}
        self._buffered_bytes = 0
        self._written: list[NewLedger] = []

    def add(self, messages: pa.Table, partition: int = -1) -> None:
        """Take in messages for a partition; -1 lets the router choose."""
        if partition >= self._partitions:
            raise InvalidMessageError(
                f"A row names {self._topic}-partition-{partition}, and the topic has "
                f"{self._partitions} partitions, numbered from 0."
            )
        if self._enforced and "deliver_at" in messages.column_names:
            most_ms = max_delivery_delay_ms(self._ledger, self._topic)
            check_delays(messages, most_ms, str(self._topic))
        if self._schema_version is not None:
            version = pa.scalar(self._schema_version, pa.int64())
            messages = messages.append_column("schema_version", pa.repeat(version, len(messages)))
        chosen = self._router.partitions(messages) if partition < 0 else partition
        for number, rows in _split(messages, chosen):
            part = in_chunks(rows, self._options) if self._options["chunkingEnabled"] else rows
            self._buffers.setdefault(number, []).append(part)
        self._buffered_bytes += messages.nbytes
        if self._buffered_bytes >= BUFFERED_BYTES:
            self._flush()

    def close(self) -> WrittenTopic:
        if self._buffers:
            self._flush()
        incarnation = self._ledger.state.incarnation
        return WrittenTopic(str(self._topic), tuple(self._written), self._deduplicate, incarnation)

    def _flush(self) -> None:
        tables = _with_same_columns(self._buffers)
        self._buffers.clear()
        self._buffered_bytes = 0
        with LedgerFileWriter(
            self._ledger.store, self._ledger.folder,
            compression=self._options["compressionType"],
            embedded_bytes=self._options["embeddedBytes"],
        ) as file:  # fmt: skip
            ledgers = [self._write(file, partition, table) for partition, table in tables.items()]
            seal = file.close()
        self._written += (replace(each, seal=seal, embedded=file.embedded) for each in ledgers)

    def _write(self, file: LedgerFileWriter, partition: int, messages: pa.Table) -> NewLedger:
        ordered, batch_sizes = in_entries(messages, self._options)
        stored = ordered.drop_columns([PAYLOAD_SIZE])
        times = pc.min_max(stored["publish_time"])
        delayed = stored["deliver_at"].drop_null() if "deliver_at" in stored.column_names else ()
        return NewLedger(
            partition=partition,
            file=file.path,
            first_row=file.write(stored, partition),
            batch_sizes=batch_sizes,
            size_bytes=pc.sum(messages[PAYLOAD_SIZE]).as_py(),
            min_publish_time_ms=_ms(times["min"]),
            max_publish_time_ms=_ms(times["max"]),
            max_deliver_at_ms=_ms(pc.max(delayed)) if len(delayed) else None,
            sequences=sequence_ranges(stored) if self._records_sequences else None,
            chunks=chunk_runs(stored),
            digest=content_digest(stored),
        )


def _with_same_columns(parts: Mapping[int, list[pa.Table]]) -> dict[int, pa.Table]:
    """One table a partition, all with the columns that have a value in any part, and `value`."""
    every = [part for of_one in parts.values() for part in of_one]
    plan = pa.unify_schemas([part.schema for part in every])
    kept = [
        name
        for name in plan.names
        if name == "value"
        or any(name in part.column_names and part[name].null_count < len(part) for part in every)
    ]
    none = plan.empty_table()
    return {
        partition: pa.concat_tables([none, *of_one], promote_options="default").select(kept)
        for partition, of_one in sorted(parts.items())
    }


def _by_topic(batch: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order; all names are checked before the first is yielded."""
    if "topic" not in batch.schema.names:
        assert default is not None
        check_user_topic(TopicName.parse(default), "written")
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
    found = topics.dictionary_encode()
    distinct = found.dictionary.to_pylist()
    for topic in distinct:
        check_user_topic(TopicName.parse(topic), "written")
    if len(distinct) == 1:
        yield distinct[0], rest
        return
    for number, rows in _split(rest, found.indices.to_numpy()):
        yield distinct[number], rows


def _split(
    rows: pa.Table | pa.RecordBatch, parts: NDArray[np.int32] | int
) -> Iterator[tuple[int, pa.Table | pa.RecordBatch]]:
    """(partition, or topic, its rows in order), for each that has any."""
    if isinstance(parts, int):
        yield parts, rows
        return
    narrow = parts.astype(np.uint16) if parts.max() < 1 << 16 else parts
    order = np.argsort(narrow, kind="stable")  # a radix sort, as the numbers are narrow
    ordered = rows.take(pa.array(order))
    numbers, firsts = np.unique(parts[order], return_index=True)
    ends = [*firsts[1:].tolist(), rows.num_rows]
    for number, first, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True):
        yield number, ordered.slice(first, end - first)


def _ms(time_scalar: pa.Scalar) -> int:
    return int(time_scalar.cast(pa.int64()).as_py()) // 1000
