"""Streaming queries as Spark runs them, a step at a time, so that they can be killed at each.

Invariants: a step is what Spark does between two moments at which something can happen to it; a
query's checkpoint and its sink outlive it; a sink knows a micro-batch that it has had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.acknowledgment_sink import AcknowledgmentSink
from pulsar_spark.connector.spark.stream_writer import MessageSink, PulsarliteStreamWriter
from pulsar_spark.options.options import Scope
from tests.connector.reading import Batch, Message, Offset, Run, through_json
from tests.connector.topics import options_of
from tests.torture.oracle import id_of
from tests.torture.place import Killed

if TYPE_CHECKING:
    from tests.torture.world import World

Rows = list[dict[str, Any]]
POISON = b"poison"
"""Begins a value that ends every query of `s` that reads it."""

ACK_TYPES = {
    "topic": (pa.string(), StringType()),
    "partition": (pa.int32(), IntegerType()),
    "ledger_id": (pa.int64(), LongType()),
    "entry_id": (pa.int64(), LongType()),
    "batch_index": (pa.int32(), IntegerType()),
    "ack_type": (pa.string(), StringType()),
    "delay_ms": (pa.int64(), LongType()),
    "reconsume_times": (pa.int32(), IntegerType()),
    "attempt": (pa.int32(), IntegerType()),
}
MESSAGE_TYPES = {
    "topic": (pa.string(), StringType()),
    "key": (pa.string(), StringType()),
    "value": (pa.binary(), BinaryType()),
    "deliver_at": (pa.timestamp("us", "UTC"), TimestampType()),
    "properties": (pa.map_(pa.string(), pa.string()), MapType(StringType(), StringType())),
}


def record_batch(rows: Rows, types: Mapping[str, tuple[Any, Any]]) -> pa.RecordBatch:
    """Of the columns that some row has."""
    names = [name for name in types if any(row.get(name) is not None for row in rows)]
    return pa.record_batch(
        {name: pa.array([row.get(name) for row in rows], types[name][0]) for name in names}
    )


def schema_of(batch: pa.RecordBatch, types: Mapping[str, tuple[Any, Any]]) -> StructType:
    return StructType([StructField(name, types[name][1]) for name in batch.schema.names])


@dataclass
class Checkpoint:
    """What Spark keeps of a query."""

    query_id: str
    offsets: dict[int, Offset] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    rows: dict[int, Rows] = field(default_factory=dict)
    """Of a publisher, or of a sink that acknowledges: what a micro-batch writes, once drawn."""
    begun: dict[int, int] = field(default_factory=dict)
    """How often a micro-batch was begun."""

    def copy(self) -> Checkpoint:
        """Offsets and rows are never changed, only added."""
        return Checkpoint(
            self.query_id, dict(self.offsets), set(self.committed), dict(self.rows),
            dict(self.begun),
        )  # fmt: skip

    @property
    def last(self) -> int:
        return max(self.offsets, default=-1)


class Query:
    """One query: runs, is killed, and runs again from its checkpoint."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.checkpoint = Checkpoint(f"{name}-query")
        self.steps: Iterator[str] | None = None
        self.stage = "stopped"

    @property
    def is_running(self) -> bool:
        return self.steps is not None

    def start(self) -> None:
        self.steps = self._steps()
        self.stage = "started"

    def step(self) -> None:
        """One step of Spark's; StopIteration at its end."""
        assert self.steps is not None
        with self.world.clock.acting(self.name):
            self.stage = next(self.steps)

    def end(self) -> None:
        """No process of it is left."""
        self.steps = None
        self.stage = "stopped"
        self.world.clock.end(self.name)

    def _steps(self) -> Iterator[str]:
        raise NotImplementedError


class Publisher(Query):
    """Publishes what its source had; each micro-batch once, however often it is begun."""

    def __init__(self, world: World, name: str, given: dict[str, Any]) -> None:
        super().__init__(world, name)
        self.given = given

    def _steps(self) -> Iterator[str]:
        root = self.world.root
        options = options_of(root.service_url, Scope.WRITE, self.given)
        checkpoint = self.checkpoint
        while True:
            number = max(checkpoint.rows, default=0)
            if number in checkpoint.committed or number not in checkpoint.rows:
                number += 1
                checkpoint.rows[number] = self.world.drawn_messages()
                self.world.oracle.sent(checkpoint.rows[number])
            yield "planned"
            batch = record_batch(checkpoint.rows[number], MESSAGE_TYPES)
            schema = schema_of(batch, MESSAGE_TYPES)
            sink = MessageSink(options, root, schema)
            writer = PulsarliteStreamWriter(sink)
            written = []
            for task in (batch.slice(0, len(batch) // 2), batch.slice(len(batch) // 2)):
                message = writer.write(iter([task]))
                written.append(replace(message, query_id=checkpoint.query_id, run_id=self.name))
                yield "written"
            writer.commit([*written], number)
            self.world.oracle.confirmed(checkpoint.rows[number])
            yield "sunk"
            checkpoint.committed.add(number)
            yield "committed"


class Consumer(Query):
    """A consumer, with the sink of its query."""

    def __init__(self, world: World, name: str, subscription: str, given: dict[str, Any]) -> None:
        super().__init__(world, name)
        self.subscription = subscription
        self.given = given | {"subscriptionName": subscription, "consumerName": name}
        self.given["includeProperties"] = True
        self.available_now = False
        self.copies: list[Checkpoint] = []
        self.lost = 0
        self.planned_at: dict[int, int] = {}
        self.planning = False
        self.unread: Callable[[], list[Message]] | None = None
        """Reads the batch that was logged, while no run has read it."""

    @property
    def manual(self) -> bool:
        return self.given.get("ackMode") == "manual"

    def _steps(self) -> Iterator[str]:
        checkpoint, oracle = self.checkpoint, self.world.oracle
        last = checkpoint.last
        run = Run(
            self.world.root.service_url,
            start=checkpoint.offsets.get(last),
            available_now=self.available_now,
            **self.given,
        )
        yield "made"
        if last >= 0 and last not in checkpoint.committed:
            start = checkpoint.offsets.get(last - 1)
            start = through_json(run.reader.initialOffset()) if start is None else start
            yield from self._batch(run, last, Batch(start, checkpoint.offsets[last]))
        while True:
            oracle.settled(self, checkpoint.last)
            self.planning = True
            at, at_ms = oracle.now(), self.world.clock.elapsed_ms
            planned = run.planned()
            self.planning = False
            if planned is None:
                yield "idle"
                if self.available_now:
                    oracle.gone(self)
                    return
                continue
            yield "reported"
            number = checkpoint.last + 1
            checkpoint.offsets[number] = planned.end
            self.planned_at[number] = at
            self.world.moments_ms[checkpoint.query_id, number] = at_ms
            self.unread = partial(run.read, planned)
            yield "logged"
            if number - 1 in checkpoint.offsets:
                run.reader.commit(through_json(checkpoint.offsets[number - 1]))
                yield "told"
            yield from self._batch(run, number, planned)

    def _batch(self, run: Run, number: int, batch: Batch) -> Iterator[str]:
        checkpoint, oracle = self.checkpoint, self.world.oracle
        checkpoint.begun[number] = checkpoint.begun.get(number, 0) + 1
        self.planned_at.setdefault(number, oracle.now())
        oracle.begun(self, number)
        rows = run.read(batch)
        self.unread = None
        oracle.reads(self, number, rows)
        if self.subscription == "s" and any(row["value"].startswith(POISON) for row in rows):
            raise Killed(self.name)
        yield "read"
        oracle.delivered(self, number, rows)
        yield "delivered"
        if self.manual:
            yield from self._acknowledge(number, rows)
        checkpoint.committed.add(number)
        run.offset = batch.end
        self.copies = [*self.copies[-2:], checkpoint.copy()]
        yield "committed"

    def _acknowledge(self, number: int, messages: list[Message]) -> Iterator[str]:
        known = self.checkpoint.rows
        if number not in known:
            known[number] = self.world.drawn_acknowledgments(self, messages)
        there = {id_of(message) for message in messages}
        rows = [row for row in known[number] if id_of(row) in there]
        if rows:
            yield from acknowledge(
                self.world, self.subscription, rows, (self.checkpoint.query_id, number)
            )


def acknowledge(
    world: World, subscription: str, rows: Rows, application: tuple[str, int]
) -> Iterator[str]:
    """What a sink with `subscriptionName` does with these rows."""
    root: Root = world.root
    options = options_of(root.service_url, Scope.WRITE, {"subscriptionName": subscription})
    batch = record_batch(rows, ACK_TYPES)
    schema = schema_of(batch, ACK_TYPES)
    writer = PulsarliteStreamWriter(AcknowledgmentSink(options, root, schema))
    folded = writer.write(iter([batch]))
    yield "folded"
    asked = world.oracle.acknowledging(subscription, rows)
    writer.commit([replace(folded, query_id=application[0])], application[1])
    end = world.commands_end()
    for each in asked:
        each.commands = end
    yield "acknowledged"
