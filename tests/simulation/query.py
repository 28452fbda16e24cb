"""A streaming query as Spark runs it, over the real source of a consumer, a step at a time.

What is durable is `checkpoint`; the source's process is `reader`, and dies with a kill.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.subscription_reader import SubscriptionStreamReader
from pulsar_spark.errors import ConsumerBusyError, ConsumerReplacedError
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Options, Scope
from tests.simulation.place import Message, Place, in_rows

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Offset = dict[str, Any]
Batch = tuple[str, int, int]
"""Whose, of which of its checkpoints, its number there."""


@dataclass
class Checkpoint:
    """What Spark keeps of a query: offsets, and which of them were committed."""

    offsets: dict[int, str] = field(default_factory=dict)
    committed: int = -1
    batches: dict[int, list[Message]] = field(default_factory=dict)
    """What a micro-batch had when it was begun for the first time."""
    begun: dict[int, int] = field(default_factory=dict)
    """How often a micro-batch was begun."""

    @property
    def last(self) -> int:
        return max(self.offsets, default=-1)

    def offset(self, number: int, initial: Offset) -> Offset:
        text = self.offsets.get(number)
        return initial if text is None else json.loads(text)


class Query:
    """One consumer, under one name."""

    def __init__(self, cluster: Cluster, name: str, topics: str | None, given: Any) -> None:
        self.cluster, self.name = cluster, name
        self.given = {**given, "consumerName": name} | ({"topics": topics} if topics else {})
        self.checkpoint = Checkpoint()
        self.reader: SubscriptionStreamReader | None = None
        self.lives = 1
        """How many checkpoints it has had."""
        self.dead_since_ms = 0
        self.incarnation = -1
        """Of the run that subscribed last."""
        self.given_up: set[int] = set()
        """Its incarnations that lapsed."""

    @property
    def is_running(self) -> bool:
        return self.reader is not None

    @property
    def is_in_batch(self) -> bool:
        return self.checkpoint.last > self.checkpoint.committed

    def batch(self, number: int) -> Batch:
        return self.name, self.lives, number

    @property
    def is_connected(self) -> bool:
        """Whether its present run has subscribed."""
        return self.reader is not None and self.reader._client is not None

    @property
    def was_given_up(self) -> bool:
        return self.incarnation in self.given_up

    @property
    def partitions(self) -> list[TopicPartition]:
        """Where its present run has subscribed."""
        client = self.reader and self.reader._client
        return list(client.consumers) if client else []

    def start(self) -> None:
        options = _options(tuple(sorted(self.given.items())))
        place: Any = self.cluster.place
        self.reader = SubscriptionStreamReader(options, place, _SCHEMA)

    def kill(self) -> None:
        """SIGKILL."""
        client = self.reader and self.reader._client
        if client:
            self.incarnation = client.incarnation
            self.dead_since_ms = self.cluster.clock.elapsed_ms
        self.reader = None
        self.cluster.clock.end(self.name)

    def lose(self) -> None:
        """Its checkpoint is lost."""
        self.kill()
        self.checkpoint = Checkpoint()
        self.lives += 1

    def step(self) -> None:
        """Plan and log a micro-batch, or run and commit the one that is logged."""
        with self.cluster.clock.acting(self.name):
            try:
                if self.is_in_batch:
                    self._run()
                else:
                    self._plan()
            except ConsumerBusyError:
                self._poll()
                self.cluster.oracle.refused(self)
                self.kill()
            except ConsumerReplacedError:
                self.kill()
            finally:
                self._poll()

    # -- inside ----------------------------------------------------------------------------------

    def _poll(self) -> None:
        """At the run that it is now."""
        client = self.reader and self.reader._client
        if client:
            self.incarnation = client.incarnation
            self.cluster.oracle.stepped(self)

    def _plan(self) -> None:
        cluster, checkpoint, reader = self.cluster, self.checkpoint, self.reader
        assert reader is not None
        last = checkpoint.last
        start = checkpoint.offset(last, reader.initialOffset())
        text = json.dumps(reader.latestOffset(start, ReadAllAvailable()))
        if text == json.dumps(start):
            return
        if cluster.may_die_unlogged(self):
            cluster.oracle.died_unlogged.update(self._rows(start, json.loads(text)))
            self.kill()
            return
        checkpoint.offsets[last + 1] = text
        if last >= 0:
            reader.commit(checkpoint.offset(last, {}))
        if cluster.may_die(self):
            self.kill()

    def _rows(self, start: Any, end: Any) -> list[Message]:
        assert self.reader is not None
        return [
            message
            for task in self.reader.partitions(start, end)
            for part in task.value.topics
            for each in part.ranges
            for message in _chosen(part.topic, each)
        ]

    def _run(self) -> None:
        cluster, checkpoint, reader = self.cluster, self.checkpoint, self.reader
        assert reader is not None
        number = checkpoint.last
        start = checkpoint.offset(number - 1, reader.initialOffset())
        rows = self._rows(start, checkpoint.offset(number, {}))
        checkpoint.begun[number] = checkpoint.begun.get(number, 0) + 1
        cluster.oracle.delivered(self, number, rows)
        if cluster.poison.intersection(rows) or cluster.may_die(self):
            self.kill()
            return
        if cluster.setting.manual:
            cluster.place.acknowledge("s", rows)
        checkpoint.committed = number
        cluster.oracle.committed(rows)


def _chosen(topic: str, rows: Any) -> Any:
    selected = rows.selected()
    places = np.arange(rows.rows) if selected is None else np.flatnonzero(selected)
    topic_partition = TopicPartition(topic, rows.ledger.partition)
    return in_rows(topic_partition, rows.ledger, places + rows.first_row)


@cache
def _options(given: tuple[tuple[str, str], ...]) -> Options:
    return Options.parse({"serviceUrl": Place.service_url, **dict(given)}, Scope.STREAM_READ)


_SCHEMA = read_schema(include_properties=False, consumer=True)
