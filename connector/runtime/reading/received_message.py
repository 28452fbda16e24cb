"""A message as it is received, read from the data files.

Invariants: what has been planned is read once, in order; a message's id, times and texts are made
of the columns' numbers only when somebody asks, as most are not asked for them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pulsar_spark.connector.runtime.reading.input_partition import MessageInputPartition
from pulsar_spark.connector.runtime.reading.message_reader import read_messages
from pulsar_spark.connector.runtime.reading.micro_batch import plan_tasks
from pulsar_spark.connector.runtime.reading.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.runtime.topics.message_columns import IDS, read_columns
from pulsar_spark.consumer.stream_offset import StreamOffset
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.topic_name import TopicPartition

Place = tuple[int, int, int, int]
"""A message id's ledger, entry, partition and batch index."""


class ReceivedMessage(NamedTuple):
    """A message, who published it and when, and how often it was delivered before.

    A tuple, since each message that a client receives is one.
    """

    value: bytes | None
    place: Place
    topic: str
    key: str | None = None
    ordering_key: bytes | None = None
    properties: Mapping[str, str] | None = None
    publish_time_us: int | None = None
    event_time_us: int | None = None
    producer_name: str | None = None
    sequence_id: int | None = None
    schema_version: int | None = None
    redelivery_count: int = 0
    attempt: int = 0

    @property
    def message_id(self) -> MessageId:
        return MessageId(*self.place)

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, max(self.place[2], 0))


_DESCRIBED: Final = tuple(name.removesuffix("_us") for name in ReceivedMessage._fields[2:])
_COLUMNS: Final = pa.schema(
    [
        column
        for column in read_columns(include_properties=True, consumer=True)
        if column.name in {"value", *IDS, *_DESCRIBED}
    ]
)


def read_between(
    topics: SubscribedTopics, begun: StreamOffset, ended: StreamOffset
) -> Iterator[ReceivedMessage]:
    """The messages between two offsets. DataLossError, at once, if some were trimmed since."""
    return _read(plan_tasks(topics, begun, ended))


def _read(tasks: Iterable[MessageInputPartition]) -> Iterator[ReceivedMessage]:
    for task in tasks:
        for batch in read_messages(task, _COLUMNS):
            yield from _received(batch)


def _received(batch: pa.RecordBatch) -> Iterator[ReceivedMessage]:
    columns = dict(zip(batch.schema.names, map(_values, batch.columns), strict=True))
    places = zip(*(columns[name] for name in IDS), strict=True)
    topic_partition = (columns[name] for name in _DESCRIBED)
    rows = zip(columns["value"], places, *topic_partition, strict=True)
    return map(partial(tuple.__new__, ReceivedMessage), rows)


def _values(column: pa.Array) -> list[Any]:
    """The values, times as microseconds. pyarrow's `to_pylist` makes one object after the other."""
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_map(column.type):
        return [dict(each) if each else None for each in column.to_pylist()]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count and pa.types.is_integer(column.type):
        return list(column.to_pylist())
    return list(column.to_numpy(zero_copy_only=False).tolist())
