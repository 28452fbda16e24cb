"""The sink on real Spark, streaming and batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from pulsar_spark.log.producing.hashing import java_string_hash
from tests.connector.reading import Run
from tests.connector.topics import files_below, ledger_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ALL = """
    select cast(id as string) as value, concat('k', id % 13) as key,
    encode('o', 'utf-8') as ordering_key, map('n', cast(id as string)) as properties,
    timestamp_micros(1700000000000000 + id) as event_time,
    cast(null as timestamp) as deliver_at, 'me' as producer_name, id as sequence_id from range(5000)
"""


def read(spark: SparkSession, root: Path, topic: str = "t", **given: str) -> DataFrame:
    reader = spark.read.format("pulsarlite").option("topic", topic)
    return reader.options(**given).load(str(root))


def values(root: Path, topic: str = "t") -> list[str]:
    return Run(root, topic=topic, startingOffsets="earliest").values()


def write(frame: DataFrame, root: Path, mode: str = "append", **given: object) -> None:
    options = {"topic": "t", **{name: str(value) for name, value in given.items()}}
    frame.write.format("pulsarlite").mode(mode).options(**options).save(str(root))


def stream(
    spark: SparkSession, source: Path, root: Path, checkpoint: Path, **given: str
) -> StreamingQuery:
    """What stands in the JSON files of a folder, into a topic; runs to its end."""
    frame = spark.readStream.schema("value string, topic string").json(str(source))
    writer = frame.writeStream.format("pulsarlite").option("checkpointLocation", str(checkpoint))
    writer = writer.options(serviceUrl=str(root), **{"topic": "t", **given})
    return writer.trigger(availableNow=True).start()


def add_input(source: Path, name: str, *rows: dict[str, str]) -> None:
    source.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (source / f"{name}.json").write_text(text, encoding="utf-8")


def test_a_dataframe_is_written_and_read_back(spark: SparkSession, root: Path) -> None:
    write(spark.sql(ALL), root, numPartitions=4)
    found = read(spark, root, includeProperties="true").collect()
    assert sorted(int(row.value) for row in found) == list(range(5000))
    for row in found:
        number = int(row.value)
        assert row.partition == java_string_hash(row.key) % 4
        assert (row.key, row.properties) == (f"k{number % 13}", {"n": str(number)})
        assert (row.ordering_key, row.producer_name, row.sequence_id) == (b"o", "me", number)
        assert row.event_time.microsecond == number
        assert row.deliver_at is None


def test_a_stream_is_written_once_across_a_checkpoint_restart(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for number in range(2):
        add_input(
            source, str(number), {"value": f"{number}a"}, {"value": f"{number}b", "topic": "u"}
        )
        assert stream(spark, source, root, checkpoint).awaitTermination(120)
    assert (values(root), values(root, "u")) == (["0a", "1a"], ["0b", "1b"])
    # As if the process had been killed after the sink's commit and before Spark's own.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    add_input(source, "2", {"value": "2a"})
    assert stream(spark, source, root, checkpoint).awaitTermination(120)
    assert (values(root), values(root, "u")) == (["0a", "1a", "2a"], ["0b", "1b"])


def test_an_interval_delays_a_message(spark: SparkSession, root: Path) -> None:
    for interval, seconds in (("5 minutes", 300), ("1 day 0.5 seconds", 86400.5)):
        frame = spark.sql(f"select '{seconds}' value, interval {interval} deliver_after")
        write(frame, root)
    for row in read(spark, root).collect():
        assert str((row.deliver_at - row.publish_time).total_seconds()) in (
            f"{row.value.decode()}",
            f"{row.value.decode()}.0",
        )


def test_a_stream_with_another_checkpoint_is_another_query(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    add_input(tmp_path / "in", "0", {"value": "a"})
    for number in range(2):
        assert stream(spark, tmp_path / "in", root, tmp_path / f"{number}").awaitTermination(120)
    assert values(root) == ["a", "a"]


def test_a_write_with_the_same_application_and_version_is_published_once(
    spark: SparkSession, root: Path
) -> None:
    frame = spark.sql("select 'a' as value")
    for version in (0, 1, 1, 0, 2):
        write(frame, root, txnAppId="job", txnVersion=version)
    assert values(root) == ["a"] * 3


def test_a_dataframe_without_rows_or_without_partitions_writes_nothing(
    spark: SparkSession, root: Path
) -> None:
    write(spark.sql("select 'a' as value where false"), root)
    write(spark.createDataFrame(spark.sparkContext.emptyRDD(), "value string"), root)
    assert files_below(root) == {}


def test_a_task_that_fails_publishes_nothing_of_its_job(spark: SparkSession, root: Path) -> None:
    write(spark.sql("select 'first' as value"), root)
    bad = "select if(id = 999, raise_error('the test fails this row'), cast(id as string)) as value"
    with pytest.raises(PySparkException, match="the test fails this row"):
        write(spark.sql(f"{bad} from range(0, 1000, 1, 4)"), root)
    assert values(root) == ["first"]


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_only_append_mode_is_taken(
    spark: SparkSession, root: Path, tmp_path: Path, mode: str
) -> None:
    add_input(tmp_path / "in", "0", {"value": "a"})
    frame = spark.readStream.schema("value string").json(str(tmp_path / "in"))
    counted = frame.groupBy("value").count().select("value")
    writer = counted.writeStream.format("pulsarlite").outputMode(mode)
    writer = writer.options(serviceUrl=str(root), topic="t", checkpointLocation=str(tmp_path / "c"))
    with pytest.raises(PySparkException) as caught:
        writer.trigger(availableNow=True).start().awaitTermination(120)
    assert "append" in str(caught.value).lower()
    assert files_below(root) == {}


def test_overwriting_is_refused_and_harms_nothing(spark: SparkSession, root: Path) -> None:
    write(spark.sql("select 'a' as value"), root)
    before = files_below(root)
    with pytest.raises(PySparkException) as caught:
        write(spark.sql("select 'b' as value"), root, mode="overwrite")
    assert 'mode("append")' in str(caught.value)
    assert files_below(root) == before


def test_a_topic_is_copied_to_another_in_several_micro_batches(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    write(spark.sql(ALL), root, numPartitions=3)
    source = spark.readStream.format("pulsarlite").option("startingOffsets", "earliest")
    source = source.options(topic="t", maxMessagesPerTrigger="1700", includeProperties="true")
    frame = source.load(str(root)).select("value", "key", "properties", "event_time")
    writer = frame.writeStream.format("pulsarlite").options(topic="copy", numPartitions="2")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert writer.start(str(root)).awaitTermination(120)
    assert sorted(map(int, values(root, "copy"))) == list(range(5000))
    assert ledger_of(root, "copy").state.number >= 3, "a commit for each micro-batch"
    assert ledger_of(root, "copy").state.partitions == 2


ALIKE: dict[str, dict[str, object]] = {
    "by count": {"batchingMaxMessages": 7},
    "by bytes and key": {"batcherBuilder": "KEY_BASED", "batchingMaxBytes": 200},
    "chunked": {"batchingEnabled": False, "chunkingEnabled": True, "maxMessageSize": 100},
    "murmur": {"numPartitions": 3, "hashingScheme": "Murmur3_32Hash"},
    "routed": {
        "numPartitions": 3,
        "messageRouter": "tests.connector.sink.test_spark_sink:by_length",
    },
    "delayed": {"deliverAt": "2030-01-01T00:00:00Z"},
    "deduplicated": {"enableDeduplication": True, "producerName": "me"},
    "exclusive": {"accessMode": "ExclusiveWithFencing"},
    "together": {"transactional": True},
    "typed": {"schemaType": "STRING"},
}


def by_length(messages: pa.Table, partitions: int) -> list[int]:
    return [len(each["value"]) % partitions for each in messages.to_pylist()]


@pytest.mark.parametrize("name", ALIKE)
def test_both_sinks_take_the_same_options_and_publish_the_same(
    spark: SparkSession, root: Path, tmp_path: Path, name: str
) -> None:
    rows = "select repeat(cast(id as string), id % 60) value, cast(id % 3 as string) key"
    query = f"{rows}, if(id = 7, 6, id) sequence_id from range(40)"
    spark.sql(query).coalesce(1).write.json(str(tmp_path / "in"))
    options = {option: str(value) for option, value in ALIKE[name].items()}
    schema = "value string, key string, sequence_id bigint"
    frame = spark.read.schema(schema).json(str(tmp_path / "in"))
    write(frame, root, **{**options, "topic": "batch"})
    frame = spark.readStream.schema(schema).json(str(tmp_path / "in"))
    writer = frame.writeStream.format("pulsarlite").options(topic="stream", **options)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert writer.start(str(root)).awaitTermination(120)
    found = []
    for topic in ("batch", "stream"):
        messages = Run(root, topic=topic, startingOffsets="earliest", includeProperties=True).all()
        left_out = ("topic", "publish_time")
        found.append(
            [
                {column: each[column] for column in each if column not in left_out}
                for batch in messages
                for each in batch.messages
            ]
        )
    batch, stream_ = found
    assert len(batch) == (39 if name == "deduplicated" else 40)
    assert batch == stream_
