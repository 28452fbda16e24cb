"""Producer names and sequence ids that a Spark task fills in, where rows give none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pulsar_spark.connector.runtime.publishing.outgoing_messages import Numbering
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.stream_writer import (
    MessageSink,
    PulsarliteStreamWriter,
    PulsarliteWriter,
)
from tests.connector.reading import messages
from tests.connector.topics import ledger_of, options_of
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.connector.conftest import MakeQuery

ROWS = StructType().add("value", "string")
NAMED = ROWS.add("producer_name", "string").add("sequence_id", "long")
BATCH = 1 << 32


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The task that runs, as Spark describes it."""
    said = SimpleNamespace(query="q", batch=0, number=0)
    names = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "batch"}

    def local(name: str) -> str | None:
        return str(getattr(said, names[name])) if name in names else None

    context = SimpleNamespace(getLocalProperty=local, partitionId=lambda: said.number)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    return said


def write(
    root: Path, task: SimpleNamespace, tasks: int = 2, batch: pa.RecordBatch | None = None,
    **given: Any,
) -> None:  # fmt: skip
    """A micro-batch of so many tasks with two rows each."""
    sink = MessageSink(options_of(root, given={"topic": "t", **given}), Root(str(root), {}), ROWS)
    writer = PulsarliteStreamWriter(sink)
    done: list[Any] = []
    for task.number in range(tasks):
        rows = batch or pa.record_batch({"value": [b"a", b"b"]})
        done.append(writer.write(iter([rows])))
    writer.commit(done, task.batch)


def shown(root: Path) -> list[tuple[str | None, int | None]]:
    found = [(each["producer_name"], each["sequence_id"]) for each in messages(root)]
    return sorted(found, key=str)


def test_names_are_of_query_and_task_and_ids_rise(root: Path, task: SimpleNamespace) -> None:
    write(root, task)
    task.batch = 1
    write(root, task, 1)
    assert shown(root) == [
        ("q-0", 0), ("q-0", 1), ("q-0", BATCH), ("q-0", BATCH + 1), ("q-1", 0), ("q-1", 1),
    ]  # fmt: skip


def test_a_batch_that_is_repeated_has_the_same_ids_and_another_checkpoint_has_others(
    root: Path, task: SimpleNamespace
) -> None:
    deduplicated = {"enableDeduplication": True}
    write(root, task, **deduplicated)
    ledger_of(root, "t").change_settings(lambda known: known)
    first = shown(root)
    write(root, task, **deduplicated)  # known by the log
    assert shown(root) == first
    task.query = "another"
    write(root, task, **deduplicated)
    assert len(shown(root)) == 2 * len(first)


def test_rows_that_say_one_of_the_two_stay_as_they_are(root: Path, task: SimpleNamespace) -> None:
    batch = pa.record_batch({
        "value": pa.array([b"v"] * 4, pa.binary()),
        "producer_name": pa.array(["me", None, None, "me"], pa.string()),
        "sequence_id": pa.array([7, 8, None, None], pa.int32()),
    })  # fmt: skip
    write(root, task, 1, batch)
    assert shown(root) == sorted([("me", 7), (None, 8), ("q-0", 2), ("me", None)], key=str)
    write(root, SimpleNamespace(number=0, batch=1), 1, producerName="us")
    assert ("us", None) in shown(root)


def test_two_batch_writes_are_two_producers_unless_they_say_that_they_are_one(
    root: Path, task: SimpleNamespace
) -> None:
    for given in ({}, {}, {"txnAppId": "job", "txnVersion": 1_795_370_013_544}):
        sink = MessageSink(
            options_of(root, given={"topic": "t", **given}), Root(str(root), {}), ROWS
        )
        writer = PulsarliteWriter(sink)
        writer.commit([writer.write(iter([pa.record_batch({"value": [b"a"]})]))])
    found = dict(shown(root))
    assert len(found) == 3
    assert found.pop("job-0") == 1_795_370_013_544 % (1 << 31) * BATCH
    assert set(found.values()) == {0}


def test_columns_keep_their_types() -> None:
    batch = pa.record_batch({"value": pa.array([b"a"], pa.large_binary())})
    (filled,) = Numbering("p", 5).filled([batch])
    assert filled.to_pylist() == [{"value": b"a", "producer_name": "p", "sequence_id": 5}]
    assert filled.schema.field("value").type == pa.large_binary()


@pytest.mark.spark
def test_a_query_shows_who_published_and_in_what_order(
    spark: SparkSession, root: Path, tmp_path: Path, query: MakeQuery
) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 6).load()
    writing = (
        source.selectExpr("cast(value as string) value").repartition(2).writeStream
        .format("pulsarlite").options(topic="t", serviceUrl=str(root))
        .option("checkpointLocation", str(tmp_path / "published")).start()
    )  # fmt: skip
    try:
        eventually(lambda: any(each["batchId"] >= 2 for each in writing.recentProgress))
    finally:
        writing.stop()
    seen: dict[str, list[int]] = {}
    for each in messages(root):
        seen.setdefault(each["producer_name"], []).append(each["sequence_id"])
    assert set(seen) <= {f"{writing.id}-0", f"{writing.id}-1"}
    assert all(len({*ids}) == len(ids) for ids in seen.values())
    assert max(max(ids) for ids in seen.values()) >= 2 * BATCH
