"""Copies of messages to other topics: dead letters, and retries with their time.

Invariants: a copy has the message's value, key, ordering key, event time and properties, and
properties that name its origin; a copy is written like any other message and seen by the commit
alone; a letter topic keeps its messages though nobody has subscribed to it yet.
Does what Pulsar's `ConsumerImpl` does with a producer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.broker.protocol.ready import Republication
from pulsar_spark.broker.subscriptions.dead_letter import republication_properties
from pulsar_spark.connector.runtime.publishing.message_writer import (
    LARGEST,
    WrittenTopic,
    write_messages,
)
from pulsar_spark.connector.runtime.reading.message_reader import read_positions
from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.message_columns import IDS, READ_COLUMNS
from pulsar_spark.connector.runtime.topics.policies import KEPT, SchemaPolicies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import StorageError
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.schema.schema_registry import SchemaCompatibilityStrategy
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.option_values import LAST_TIME_MS
from pulsar_spark.options.options import Options

ANY_SCHEMA: Final = SchemaPolicies(SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE)
"""A letter topic takes letters of whatever topic and version, so that none is lost."""

_COPIED: Final = ("key", "ordering_key", "value", "event_time", "properties")
_VERSION: Final = "schema_version"
_READ: Final = (*IDS, *_COPIED, _VERSION)
_SCHEMA: Final = pa.schema([each.field for each in READ_COLUMNS if each.name in _READ])


def write_republications(
    root: Root, topic_partition: TopicPartition, republications: Iterable[Republication]
) -> list[WrittenTopic]:
    """Write the copies of a partition's messages, which nobody sees before their commit."""
    written: list[WrittenTopic] = []
    for republication in republications:
        name = TopicName.parse(republication.topic)
        log = root.open_or_create(name, 1, KEPT)
        if log.is_undecided and not log.settle(managed_ledger.BROKERS_PATIENCE_MS):
            raise StorageError(
                f"The log of {log.topic} ends in an open transaction: copies of {topic_partition} "
                "are "
                "published there once it is decided, and no other topic waits for it."
            )
        given = {**root.options, "topic": republication.topic, "maxMessageSize": str(LARGEST)}
        options = Options.parse(given)
        for schema, copies in _by_schema(root, topic_partition, republication):
            written += write_messages(copies, options, root, schema, enforced=False)
    return written


def _by_schema(
    root: Root, topic_partition: TopicPartition, republication: Republication
) -> Iterator[tuple[SinkSchema | None, Iterator[pa.RecordBatch]]]:
    """The copies by runs of one schema version, in order, with the schema; values as they are.

    Pulsar's dead letter producer has `AutoProduceBytesSchema` of the message's own schema.
    """
    topic = root.open(TopicName.parse(topic_partition.topic))
    read = read_positions(root, topic, topic_partition.partition, republication.messages, _SCHEMA)
    runs = (run for batch in read for run in _runs(batch))
    ledgers = topic.state.partition(topic_partition.partition).ledgers_left()
    for version, batches in groupby(runs, key=lambda run: run.column(_VERSION)[0].as_py()):
        info = None if version is None else topic.state.schemas.get(version)
        schema = None if info is None else SinkSchema(info, ANY_SCHEMA, encoded=True)
        yield schema, (_copy(batch, republication, ledgers) for batch in batches)


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, cut where the schema version changes."""
    ends = pc.run_end_encode(batch.column(_VERSION)).run_ends.to_pylist()
    for first, stop in pairwise([0, *ends]):
        yield batch.slice(first, stop - first)


def _copy(
    batch: pa.RecordBatch, republication: Republication, ledgers: LedgerList
) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in _COPIED}
    ids = zip(*(batch.column(name).to_pylist() for name in IDS), strict=True)
    held = batch.column("properties").to_pylist()
    properties = [
        list(republication_properties(republication, _id(ledgers, *each), dict(mine or ())).items())
        for each, mine in zip(ids, held, strict=True)
    ]
    columns["properties"] = pa.array(properties, pa.map_(pa.string(), pa.string()))
    if republication.deliver_at_ms is not None:
        at_ms = min(republication.deliver_at_ms, LAST_TIME_MS)
        at = pa.scalar(at_ms * 1000, pa.timestamp("us", "UTC"))
        columns["deliver_at"] = pa.repeat(at, batch.num_rows)
    return pa.RecordBatch.from_pydict(columns)


def _id(
    ledgers: LedgerList, ledger_id: int, entry_id: int, partition: int, batch_index: int
) -> MessageId:
    """The id as Pulsar writes it: a message that is an entry of its own has no batch index."""
    ledger = ledgers.get(ledger_id)
    size = 1 if ledger is None else ledger.batch_sizes.size_of(entry_id)
    place = () if size == 1 else (batch_index, size)
    return MessageId(ledger_id, entry_id, partition, *place)
