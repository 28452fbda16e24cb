"""The source on real Spark, as a Reader."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from tests.connector.spark_query import killed_at_its_first_offset
from tests.connector.topics import ledger_of, maps, numbers, send
from tests.golden import CHECKPOINT, ROOT
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.connector.conftest import MakeQuery


def test_micro_batches_end_inside_entries_and_a_restart_goes_on_at_the_message(
    query: MakeQuery, root: Path
) -> None:
    send(root, "t", numbers(0, 25), batchingMaxMessages=10)
    reader = query(topic="t", startingOffsets="earliest", maxMessagesPerTrigger=7)
    batches = [[row.value.decode() for row in rows] for rows in reader.run()]
    assert batches == [numbers(first, min(first + 7, 25)) for first in range(0, 25, 7)]
    assert reader.values() == []
    send(root, "t", numbers(25, 30))
    assert reader.values() == numbers(25, 30)


def test_the_columns_are_those_of_a_message_with_types_that_spark_knows(
    spark: SparkSession, root: Path
) -> None:
    send(
        root,
        "t",
        ["a"],
        columns={"key": ["k"], "properties": maps([{"p": "1"}])},
        producerName="me",
    )
    frame = spark.read.format("pulsarlite").option("topic", "t").load(str(root))
    assert [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema] == [
        "ledger_id bigint", "entry_id bigint", "partition int", "batch_index int", "topic string",
        "key string", "ordering_key binary", "value binary", "producer_name string",
        "sequence_id bigint", "publish_time timestamp", "event_time timestamp",
        "deliver_at timestamp", "schema_version bigint", "redelivery_count int",
    ]  # fmt: skip
    (row,) = frame.collect()
    assert row.topic == "persistent://public/default/t"
    assert (row.key, row.producer_name, row.ordering_key, row.redelivery_count) == (
        "k",
        "me",
        None,
        0,
    )


def test_properties_come_on_request_or_by_schema(spark: SparkSession, root: Path) -> None:
    properties = [{"a": "1", "b": None}, None, {}]
    send(root, "t", ["x", "y", "z"], columns={"properties": maps(properties)})
    plain = spark.read.format("pulsarlite").option("topic", "t")
    assert "properties" not in plain.load(str(root)).columns
    asked = plain.option("includeProperties", "true").load(str(root))
    assert [row.properties for row in asked.collect()] == properties
    named = (
        spark.read.format("pulsarlite").option("topic", "t").schema("properties map<string,string>")
    )
    assert [row.properties for row in named.load(str(root)).collect()] == properties


def test_a_user_schema_reads_only_its_columns(spark: SparkSession, root: Path) -> None:
    # Large enough for blocks of the file, each with its checksum, that hold payloads alone.
    values = [f"payload-{number:06d}".ljust(200, ".") for number in range(2000)]
    keys = [f"key-{number % 7}" for number in range(2000)]
    options: dict[str, Any] = {"compressionType": "NONE", "batchingMaxBytes": 1 << 20}
    send(root, "t", values, columns={"key": keys}, **options)
    (file,) = (root / "persistent/public/default/t/data").iterdir()
    damaged = file.read_bytes().replace(b"payload-001234", b"payload-XXXXXX")
    file.write_bytes(damaged)
    reader = spark.read.format("pulsarlite").option("topic", "t")
    rows = reader.schema("batch_index int, key string, entry_id long").load(str(root)).collect()
    assert [row.key for row in rows] == keys, "a block that nobody asks for is not looked at"
    assert [(row.entry_id, row.batch_index) for row in rows[998:1001]] == [
        (0, 998),
        (0, 999),
        (1, 0),
    ]
    with pytest.raises(PySparkException) as caught:
        reader.schema("value binary").load(str(root)).collect()
    assert "CORRUPT_FILE" in str(caught.value)
    assert file.name in str(caught.value)


def test_a_user_schema_of_ids_alone_opens_no_file(spark: SparkSession, root: Path) -> None:
    send(root, "t", numbers(0, 5), batchingMaxMessages=2)
    shutil.rmtree(root / "persistent/public/default/t/data")
    frame = (
        spark.read.format("pulsarlite")
        .option("topic", "t")
        .schema("entry_id long, batch_index int")
    )
    assert [tuple(row) for row in frame.load(str(root)).collect()] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0),
    ]  # fmt: skip


def test_a_partition_splits_over_tasks_and_its_rows_stay_in_order(
    spark: SparkSession, root: Path
) -> None:
    send(root, "t", numbers(0, 100_000), compressionType="LZ4")
    reader = spark.read.format("pulsarlite").option("topic", "t").option("minPartitions", "3")
    frame = reader.schema("value binary").load(str(root))
    tasks = frame.rdd.glom().map(lambda rows: [int(row.value) for row in rows]).collect()
    assert len(tasks) >= 3
    assert [number for task in tasks for number in task] == list(range(100_000))
    assert max(len(task) for task in tasks) < 50_000


def test_a_running_query_finds_new_messages_partitions_and_topics(
    query: MakeQuery, root: Path
) -> None:
    send(root, "flights", ["a"])
    reader = query(topicsPattern="fl.*", startingOffsets="earliest", topicDiscoveryInterval="100ms")
    running = reader.start()
    try:
        reader.wait_for({"a"})
        send(root, "flights", ["b"])
        reader.wait_for({"a", "b"})
        ledger_of(root, "flights").grow(2)
        send(root, "flights-partition-1", ["c"])
        reader.wait_for({"a", "b", "c"})
        send(root, "floods", ["d"])
        send(root, "other", ["x"])
        LedgerStore(ledger_of(root, "flights"), grace_ms=0).merge_small_files()
        LedgerStore(ledger_of(root, "flights"), grace_ms=0).sweep()
        reader.wait_for({"a", "b", "c", "d"})
        send(root, "flights", ["e"])
        reader.wait_for({"a", "b", "c", "d", "e"})
    finally:
        running.stop()


def test_an_idle_query_runs_no_batch_and_progress_shows_the_lag(
    query: MakeQuery, root: Path
) -> None:
    send(root, "t", numbers(0, 10), batchingMaxMessages=5)
    reader = query(topic="t", startingOffsets="earliest", maxMessagesPerTrigger=4)
    running = reader.start()
    try:
        reader.wait_for(set(numbers(0, 10)))
        # Spark tells of idleness only after a trigger that found nothing.
        eventually(lambda: running.status["message"] == "Waiting for data to arrive")
        assert len(reader.offsets()) == len(reader.batches) == 3
        assert running.lastProgress is not None
        first = running.recentProgress[0]["sources"][0]
        last = json.loads(first["latestOffset"])
        reported = last["topics"]["persistent://public/default/t"]["0"]
        assert reported.pop("oldestBacklogMessageAgeSeconds") >= 0
        assert reported == {"backlog": 6, "last": "0:1"}
        assert "0:0" not in json.dumps(last)
        assert first["endOffset"] != first["latestOffset"]
        assert first["numInputRows"] == 4
    finally:
        running.stop()


def test_a_batch_that_failed_is_replayed_as_it_was(query: MakeQuery, root: Path) -> None:
    send(root, "t", numbers(0, 9), batchingMaxMessages=4)
    reader = query(topic="t", startingOffsets="earliest", maxMessagesPerTrigger=5)
    seen: list[tuple[int, list[str]]] = []

    def fail_once(batch: DataFrame, number: int) -> None:
        seen.append((number, [row.value.decode() for row in batch.collect()]))
        if len(seen) in (1, 3):
            raise ValueError("the test fails this batch")

    for _ in range(3):
        writer = reader.frame().writeStream.foreachBatch(fail_once)
        writer = writer.option("checkpointLocation", str(reader.checkpoint))
        running = writer.trigger(availableNow=True).start()
        with contextlib.suppress(StreamingQueryException):
            running.awaitTermination(120)
        send(root, "t", ["later"])
    assert seen[:4] == [(0, numbers(0, 5))] * 2 + [(1, [*numbers(5, 9), "later"])] * 2
    assert [value for _, values in seen[4:] for value in values] == ["later"]


def test_latest_stays_what_it_was_when_the_query_began(query: MakeQuery, root: Path) -> None:
    send(root, "t", ["before"])
    reader = query(topic="t")
    assert reader.values() == []
    send(root, "t", ["after"])
    assert reader.values() == ["after"]


def test_a_checkpoint_whose_first_batch_was_never_committed_goes_on(
    query: MakeQuery, root: Path
) -> None:
    send(root, "t", ["before"])
    reader = query(topic="t")
    reader.run()
    for file in (reader.checkpoint / "commits").iterdir():
        file.unlink()
    send(root, "t", ["after"])
    assert reader.values() == ["after"], "latest is where it was when it was logged"
    early = query("early", topic="t", startingOffsets="earliest", maxMessagesPerTrigger=1)
    assert early.values() == ["before", "after"]
    for folder in ("commits", "offsets"):
        for file in (early.checkpoint / folder).iterdir():
            if file.name not in ("0", ".0.crc") or folder == "commits":
                file.unlink()
    early.batches.clear()
    assert early.values() == ["before", "after"]


def test_a_query_killed_while_it_wrote_its_first_offset_begins_again(
    query: MakeQuery, root: Path
) -> None:
    send(root, "t", ["a"])
    reader = query(topic="t", startingOffsets="earliest")
    killed_at_its_first_offset(reader.checkpoint)
    assert reader.values() == ["a"]


def test_the_golden_checkpoint_is_read(query: MakeQuery, root: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT, root, dirs_exist_ok=True)
    reader = query(topic="orders", startingOffsets="earliest", maxMessagesPerTrigger=3)
    shutil.copytree(CHECKPOINT, reader.checkpoint)
    assert sorted(reader.values()) == ["a2", "a3", "a4", "c1"]
    assert min(reader.batches) == 1, "batch 0 is in the golden checkpoint"


def test_messages_that_were_trimmed_stop_a_query_and_the_error_says_how_to_go_on(
    query: MakeQuery, root: Path
) -> None:
    send(root, "t", ["a"])
    reader = query(topic="t", startingOffsets="earliest")
    assert reader.values() == ["a"]
    send(root, "t", ["b"])
    send(root, "t", ["c"])
    LedgerStore(ledger_of(root, "t"), grace_ms=0).trim({0: 2})
    with pytest.raises(PySparkException) as caught:
        reader.run()
    assert "DATA_LOSS" in str(caught.value)
    assert "failOnDataLoss" in str(caught.value)
    assert query(topic="t", failOnDataLoss=False).values() == ["c"]


def test_times_are_right_in_any_session_time_zone(spark: SparkSession, root: Path) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = spark.sql(
            "select cast('x' as binary) value, timestamp'2026-03-08 12:00:00.123456' event_time"
        )
        rows.write.format("pulsarlite").mode("append").option("topic", "t").save(str(root))
        read = spark.read.format("pulsarlite").option("topic", "t").load(str(root))
        (found,) = read.selectExpr("cast(event_time as string)").collect()
        assert found[0] == "2026-03-08 12:00:00.123456"
        (utc,) = read.selectExpr("unix_micros(event_time)").collect()
        assert utc[0] == 1_772_985_600_123_456
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_batch_joins_two_topics_and_an_empty_one_has_no_rows(
    spark: SparkSession, root: Path
) -> None:
    for topic in ("a", "b"):
        send(root, topic, [topic])
    ledger_of(root, "a").grow(3)
    reader = spark.read.format("pulsarlite").option("topics", "a,b")
    assert sorted(row.value for row in reader.load(str(root)).collect()) == [b"a", b"b"]
    nothing = (
        spark.read.format("pulsarlite").option("topic", "a").option("startingOffsets", "latest")
    )
    assert nothing.load(str(root)).count() == 0
