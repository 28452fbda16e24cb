"""A streaming source driven as Spark drives it: offsets through JSON, tasks through pickles."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.stream_reader import PulsarliteStreamReader
from pulsar_spark.connector.spark.subscription_reader import SubscriptionStreamReader
from pulsar_spark.options.options import Scope
from tests.connector.topics import ledger_of, options_of

Offset = dict[str, Any]
Message = dict[str, Any]


@dataclass
class Batch:
    """One micro-batch: its offsets as Spark's log has them, and its messages."""

    start: Offset
    end: Offset
    messages: list[Message] = field(default_factory=list)
    tasks: int = 0

    @property
    def values(self) -> list[str]:
        return [message["value"].decode() for message in self.messages]


class Run:
    """One run of a query, from its first batch or from the last committed offset of another."""

    def __init__(
        self,
        root: Path | str,
        *,
        start: Offset | None = None,
        schema: StructType | None = None,
        available_now: bool = False,
        **given: object,
    ) -> None:
        options = options_of(root, Scope.STREAM_READ, given)
        consumer = options.has("subscriptionName")
        self.schema = schema or read_schema(
            include_properties=options["includeProperties"], consumer=consumer
        )
        kind = SubscriptionStreamReader if consumer else PulsarliteStreamReader
        self.reader = kind(options, Root.of(options), self.schema)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self.offset = through_json(self.reader.initialOffset()) if start is None else start

    def next(self) -> Batch | None:
        """The next micro-batch, committed; None if there is none."""
        batch = self.planned()
        if batch is not None:
            self.read(batch)
            self.commit(batch)
        return batch

    def planned(self) -> Batch | None:
        """The next micro-batch, planned only."""
        start = through_json(self.offset)
        end = self.reader.latestOffset(start, ReadAllAvailable())
        if json.dumps(end) == json.dumps(self.offset):  # Spark compares the texts
            return None
        return Batch(self.offset, through_json(end))

    def read(self, batch: Batch) -> list[Message]:
        """Its messages, task by task; also of a batch that another run has planned."""
        tasks = self.reader.partitions(through_json(batch.start), through_json(batch.end))
        batch.tasks = len(tasks)
        batch.messages = []
        for task in tasks:
            for each in self.reader.read(pickle.loads(pickle.dumps(task))):
                assert isinstance(each, pa.RecordBatch)
                batch.messages += rows_of(each)
        return batch.messages

    def commit(self, batch: Batch) -> None:
        self.offset = batch.end
        self.reader.commit(through_json(batch.end))

    def all(self) -> list[Batch]:
        """All micro-batches that there are, without empty ones."""
        batches = []
        while (batch := self.next()) is not None:
            if batch.messages:
                batches.append(batch)
        return batches

    def values(self) -> list[str]:
        """The values of all micro-batches that there are."""
        return [value for batch in self.all() for value in batch.values]


def rows_of(batch: pa.RecordBatch) -> list[Message]:
    """Its rows; one with a time that Python does not have, after the year 9999, as texts."""
    try:
        rows: list[Message] = batch.to_pylist()
    except (ValueError, OverflowError):
        if batch.num_rows > 1:
            return [row for number in range(len(batch)) for row in rows_of(batch.slice(number, 1))]
        columns = zip(batch.schema.names, batch.columns, strict=True)
        rows = [{name: str(each) if each[0].is_valid else None for name, each in columns}]
    return rows


def through_json(offset: Offset) -> Offset:
    """The offset as it comes back from Spark's log."""
    value: Offset = json.loads(json.dumps(offset))
    return value


def messages(root: Path | str, topic: str = "t", **given: Any) -> list[Message]:
    """All messages of a topic, properties too."""
    run = Run(root, topic=topic, startingOffsets="earliest", includeProperties=True, **given)
    return [message for batch in run.all() for message in batch.messages]


def entries(root: Path | str, topic: str = "t") -> list[int]:
    """Messages in each entry, by partition and order."""
    ledger = ledger_of(root, topic)
    return [
        int(size)
        for partition in range(ledger.state.partitions)
        for each in ledger.ledgers(partition)
        for size in each.batch_sizes.array()
    ]
