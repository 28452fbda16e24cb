"""The broker query without Spark: the same source, brokers and sink, in Spark's order.

Invariants: an offset is logged before its batch runs, the state of a batch is kept with its
number, and its commit is logged last, so a loop that is made anew repeats the batch that was under
way; what is under way is what Spark would have under way.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_spark import broker_rows
from pulsar_spark.broker_rows import InputRow, OutputRow
from pulsar_spark.connector.broker_input import rows_of
from pulsar_spark.connector.broker_sink import commit_batch, write_rows
from pulsar_spark.connector.broker_source import BrokerInputPartition, BrokerStreamReader
from pulsar_spark.connector.topics import Root
from pulsar_spark.hosted_broker import OFFSET_KEY, HostedBroker, run

Shards = dict[tuple[str, int], dict[str, bytes]]


class BrokerLoop:
    """One run of a broker query; `checkpoint` outlives it."""

    def __init__(self, root: Root, checkpoint: Path, *, query_id: str = "q", term: int = 1) -> None:
        self.root, self.checkpoint, self.query_id, self.term = root, checkpoint, query_id, term
        self.reader = BrokerStreamReader(root)
        checkpoint.mkdir(parents=True, exist_ok=True)
        self.batch_id = -1
        self.offset = self.reader.initialOffset()
        self._resume()

    def turn(self) -> bool:
        """One look, and one batch if there is anything to do; whether there was."""
        end = self.reader.latestOffset(self.offset, ReadAllAvailable())
        if end == self.offset:
            return False
        number = self.batch_id + 1
        self._put(f"{number}.offset", json.dumps(end).encode())
        self._batch(number, self.offset, end)
        return True

    def until_quiet(self) -> int:
        """Turns until there is nothing to do; how many batches that were."""
        batches = 0
        while self.turn():
            batches += 1
        return batches

    def _resume(self) -> None:
        number = 0
        while (logged := self._get(f"{number}.offset")) is not None:
            end = json.loads(logged)
            if self._get(f"{number}.commit") is None:
                self._batch(number, self.offset, end)
            self.batch_id, self.offset = number, end
            number += 1

    def _batch(self, number: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        held = self._get(f"{number - 1}.state")
        shards: Shards = {} if held is None else pickle.loads(held)
        out: list[OutputRow] = []
        (partition,) = self.reader.partitions(start, end)
        assert isinstance(partition, BrokerInputPartition)
        rows = list(rows_of(partition.root, partition.start, partition.end))
        for about in sorted({(row.topic, row.partition) for row in rows}):
            mine = [row for row in reversed(rows) if (row.topic, row.partition) == about]
            out += self._step(about, mine, shards)
        task = write_rows(self.root, out, self.query_id)
        commit_batch(self.root, [task], (self.query_id, number), self.term)
        self._put(f"{number}.state", pickle.dumps(shards))
        self._put(f"{number}.commit", b"v1")
        self.batch_id, self.offset = number, end

    @staticmethod
    def _step(about: tuple[str, int], rows: list[InputRow], shards: Shards) -> Iterator[OutputRow]:
        if about[0] == OFFSET_KEY:
            for row in rows:
                yield OutputRow(*about, broker_rows.OFFSET, "", row.data)
            return
        batch = run(HostedBroker.stored(shards.get(about, {})), rows)
        kept = {**shards.get(about, {}), **batch.written}
        for key in batch.deleted:
            del kept[key]
        assert kept == batch.broker.shards
        shards[about] = kept
        yield from batch.rows

    def _put(self, name: str, data: bytes) -> None:
        temporary = self.checkpoint / f".{name}"
        temporary.write_bytes(data)
        temporary.rename(self.checkpoint / name)

    def _get(self, name: str) -> bytes | None:
        path = self.checkpoint / name
        return path.read_bytes() if path.exists() else None


def impatient(patch: pytest.MonkeyPatch) -> None:
    """A look for news waits no longer than it has to."""
    patch.setattr("pulsar_spark.connector.broker_source.LONGEST_WAIT_S", 0.0)
