"""Bad input: a clear error at the earliest moment; nothing that is stored is harmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.activity import ACTIVITY
from pulsar_spark.connector.spark.data_source import PulsarliteDataSource
from pulsar_spark.errors import InvalidTopicNameError, PulsarliteError
from tests.connector.reading import Run
from tests.connector.topic_log.stores import rewrite, rewrite_text
from tests.connector.topics import files_below, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.connector.conftest import MakeQuery

TOPIC = "persistent/public/default/flights"


@pytest.fixture
def root(root: Path) -> Path:
    """A root with something in it that may come to harm."""
    send(root, "flights", ["a", "b"], columns={"key": ["k", "l"]})
    send(root, "flights", ["c"], columns={"key": ["k"]})
    return root


@contextmanager
def refused(root: Path, *said: str) -> Iterator[None]:
    """An error whose text has all of these; the files are what they were."""
    before = files_below(root)
    managed_ledger._cache.clear()  # as in a process that has not seen the topic yet
    with pytest.raises((PySparkException, PulsarliteError)) as caught:
        yield
    for part in said:
        assert part in str(caught.value)
    assert files_below(root) == before


def read(spark: SparkSession, root: Path, topic: str = "flights", **given: str) -> DataFrame:
    reader = spark.read.format("pulsarlite").option("topic", topic)
    return reader.options(**given).load(str(root))


# -- when the DataFrame is made ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topik": "flights"}, "Option topik is not known. Did you mean topic?"),
        ({"serviceUrl": "pulsar://h:6650"}, "'pulsar://h:6650' is a cluster's address"),
        ({"serviceUrl": "s3:bucket/x"}, "'s3:bucket/x' lacks its slashes: s3://bucket/x"),
        ({"failOnDataLoss": "perhaps"}, "Option failOnDataLoss can't be 'perhaps': it takes true"),
        ({"numPartitions": "4"}, "Option numPartitions has no meaning here: it belongs to writing"),
        ({"startingOffsets": "soon"}, "Option startingOffsets can't be 'soon'"),
        ({"startingOffsets": '{"flights": {"0": "x"}}'}, "'x' is no message id"),
        ({"startingOffsets": '{"flights": {"0": "1:2:3"}}'}, "1:2:3 is an id of partition 3"),
        ({"startingOffsets": "[]"}, "can't be '[]' ([] is no JSON object, such as {}): it takes"),
        ({"startingOffsets": '{"flights": [1]}'}, "([1] is no JSON object, such as {}): it takes"),
        ({"endingOffsets": "earliest"}, "Option endingOffsets can't be 'earliest'"),
        (
            {"startingTime": "yesterday"},
            "Option startingTime can't be 'yesterday': it takes millis",
        ),
        (
            {"topic": "flihgts", "allowAutoTopicCreation": "false"},
            "Did you mean persistent://public/default/flights?",
        ),
        ({"topic": "a/b"}, "<tenant>/<namespace>/<topic>"),
        ({"topic": "http://a/b/c"}, "Invalid topic domain: 'http'. It is persistent or"),
        ({"topic": "persistent://a/b"}, "takes all its parts: persistent://TENANT/NAMESPACE/TOPIC"),
        (
            {"topic": "nosuch", "allowAutoTopicCreation": "false"},
            "is false. Create it: pulsarlite topics create",
        ),
        (
            {"topic": "a b", "allowAutoTopicCreation": "false"},
            "create 'persistent://public/default/a b' --partitions 4",
        ),
        ({"topic": "non-persistent://public/default/ticks-partition-1"}, "does not exist in"),
        (
            {"topic": "non-persistent://public/default/t", "startingOffsets": "earliest"},
            "reading begins when the query connects, and startingOffsets can only be latest",
        ),
        (
            {"topic": "non-persistent://public/default/t", "readCompacted": "true"},
            "option readCompacted can't be had of such a topic",
        ),
        ({"topic": "te nant/ns/t"}, "Invalid named entity: te nant"),
        ({"topic": "flights-partition-7"}, "there is no partition 7. Name another"),
    ],
)
def test_a_bad_option_is_refused_when_the_dataframe_is_made(
    root: Path, given: dict[str, str], said: str
) -> None:
    with refused(root, said):
        made({"serviceUrl": str(root), "topic": "flights", **given})


def made(given: dict[str, str], schema: StructType | None = None) -> PulsarliteDataSource:
    """As Spark makes a data source for `load`, in the process `create_data_source`."""
    source = PulsarliteDataSource(given)
    assert schema is not None or source.schema()
    return source


def test_spark_makes_the_data_source_when_the_dataframe_is_made(
    spark: SparkSession, root: Path
) -> None:
    for reader in (spark.read, spark.readStream):
        with refused(root, "Option topik is not known. Did you mean topic?"):
            reader.format("pulsarlite").option("topik", "flights").load(str(root))


def test_a_source_without_a_topic_or_a_root_says_what_to_give(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULSARLITE_SERVICE_URL", raising=False)
    with refused(root, "Which topic?", '.option("topic", "flights")'):
        made({"path": str(root)})
    with refused(root, "Option serviceUrl is missing", "PULSARLITE_SERVICE_URL"):
        made({"topic": "flights"})


def test_a_root_of_an_unknown_kind_is_refused(root: Path) -> None:
    for url in ("ftp://host/path", "file://host/path"):
        with refused(root, f"serviceUrl '{url}'"):
            PulsarliteDataSource({"topic": "flights", "path": url})


def test_a_missing_topic_is_named_with_a_user_s_schema_too(
    spark: SparkSession, root: Path, query: MakeQuery
) -> None:
    said = ("TOPIC_NOT_FOUND", "persistent://public/default/flihgts does not exist", "Did you mean")
    with refused(root, *said):
        spark.read.format("pulsarlite").option("topic", "flihgts").schema("value binary").load(
            str(root)
        ).collect()
    with refused(root, *said):
        query(topic="flihgts", schema="value binary", allowAutoTopicCreation=False).run()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("valeu binary", "The schema's column valeu is none of a message's. Did you mean value?"),
        ("value string", "The schema's column value is string, and Pulsarlite has it as binary"),
        ("value binary, partition long", "column partition is bigint"),
    ],
)
def test_a_schema_that_no_message_has_is_refused_before_the_first_batch(
    spark: SparkSession, root: Path, schema: str, said: str
) -> None:
    requested = StructType.fromDDL(schema)
    assert isinstance(requested, StructType)
    source = made({"serviceUrl": str(root), "topic": "flights"}, requested)
    with refused(root, said):
        source.reader(requested)
    with refused(root, said):
        source.streamReader(requested).initialOffset()


def test_a_stream_with_a_schema_that_no_message_has_says_so(root: Path, query: MakeQuery) -> None:
    with refused(root, "Did you mean value?"):
        query(topic="flights", schema="valeu binary").run()


def test_an_option_of_batches_is_refused_by_a_stream(root: Path, query: MakeQuery) -> None:
    with refused(root, "Option endingOffsets has no meaning here: it belongs to read"):
        query(topic="flights", endingOffsets="latest").run()


# -- what a sink refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "given", "said"),
    [
        ("1 as value", {}, "Column value is int and has to be binary or string: cast it"),
        ("'a' as value, 2 as key", {}, "Column key is int and has to be binary or string"),
        (
            "'a' as value, 'x' as event_time",
            {},
            "Column event_time is string and has to be timestamp",
        ),
        ("'a' as value, 1.5 as sequence_id", {}, "Column sequence_id is decimal(2,1)"),
        ("'a' as payload", {}, "Column payload is none of a message's"),
        ("'a' as valeu", {}, "Did you mean value?"),
        ("'k' as key", {}, "There is no column value, the payload"),
        ("'a' as value", {"includeProperties": "true"}, "belongs to reading"),
        ("'a' as value", {"maxMessagesPerTrigger": "1"}, "belongs to readStream"),
        ("'a' as value", {"compressionType": "GZIP"}, "it takes ZSTD, LZ4, ZLIB, SNAPPY or NONE"),
        ("'a' as value", {"bathcingEnabled": "1"}, "Did you mean batchingEnabled?"),
        ("'a' as value", {"topic": "a/b"}, "<tenant>/<namespace>/<topic>"),
        ("'a' as value, null as topic", {"topic": ""}, "Option topic can't be ''"),
    ],
)
def test_a_sink_refuses_rows_that_are_no_messages(
    spark: SparkSession, root: Path, select: str, given: dict[str, str], said: str
) -> None:
    schema = spark.sql(f"select {select}").schema
    with refused(root, said):
        source = PulsarliteDataSource({"serviceUrl": str(root), "topic": "flights", **given})
        source.writer(schema, overwrite=False)


def test_a_sink_without_a_topic_says_what_to_give(spark: SparkSession, root: Path) -> None:
    with refused(root, "Which topic?", "column named topic"):
        spark.sql("select 'a' value").write.format("pulsarlite").mode("append").save(str(root))


def test_a_sink_refuses_an_oversize_message(spark: SparkSession, root: Path) -> None:
    writer = spark.sql("select repeat('a', 11) value").write.format("pulsarlite").mode("append")
    with refused(root, "MESSAGE_TOO_BIG", "has 11 bytes, and maxMessageSize is 10"):
        writer.options(topic="flights", maxMessageSize="10").save(str(root))


def test_a_streaming_sink_refuses_before_its_first_batch(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"payload": 1}')
    frame = spark.readStream.schema("payload int").json(str(tmp_path / "in"))
    writer = frame.writeStream.format("pulsarlite").option("topic", "flights")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with refused(root, "Column payload is none of a message's", "rename the column"):
        writer.trigger(availableNow=True).start(str(root)).awaitTermination(120)


# -- names that try to lead out of the root ------------------------------------------------------


@pytest.mark.parametrize(
    "topic",
    [
        "..",
        "%2e%2e",
        "../../x",
        "/etc/passwd",
        "persistent://../../x",
        "persistent://a/b/..",
        "a\0b",
    ],
)
def test_no_topic_leads_out_of_the_root(root: Path, tmp_path: Path, topic: str) -> None:
    outside = {path.name for path in tmp_path.iterdir()}
    before = files_below(root)
    with suppress(InvalidTopicNameError):
        send(root, topic, ["a"])
    after = files_below(root)
    assert {path.name for path in tmp_path.iterdir()} == outside
    assert {name: data for name, data in after.items() if name in before} == before
    for name in after.keys() - before.keys():
        parts = Path(name).parts
        if parts[0] == ACTIVITY:
            assert len(parts) == 2, f"{name} announces no topic"
            continue
        assert parts[0] == "persistent"
        assert len(parts) == 6, f"{name} is no file of a topic"


@pytest.mark.parametrize("path", ["../../../../secret.parquet", "data/../../x", "/etc/passwd"])
def test_a_log_that_names_a_file_outside_is_refused(root: Path, path: str) -> None:
    log = root / TOPIC / "_log" / f"{1:020d}.json"
    record = log.read_text()
    (name,) = {word for word in record.split('"') if word.endswith(".parquet")}
    rewrite_text(log, name, path)
    with refused(root, path):
        Run(root, topic="flights", startingOffsets="earliest").all()


# -- damaged files -------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[30] ^= 0xFF  # inside the first page
    path.write_bytes(bytes(data))


def foreign(path: Path) -> None:
    path.write_bytes(b"something else altogether")


@pytest.mark.parametrize("damage", [cut, empty, garble, foreign])
def test_a_damaged_ledger_file_is_named(root: Path, damage: Callable[[Path], None]) -> None:
    file = max((root / TOPIC / "data").iterdir(), key=lambda path: path.stat().st_size)
    damage(file)
    said = ("CORRUPT_FILE", file.name, "persistent://public/default/flights", "Restore")
    with refused(root, *said):
        Run(root, topic="flights", startingOffsets="earliest").all()


def test_a_damaged_ledger_file_is_named_through_spark(
    spark: SparkSession, root: Path, query: MakeQuery
) -> None:
    file = max((root / TOPIC / "data").iterdir(), key=lambda path: path.stat().st_size)
    cut(file)
    with refused(root, "CORRUPT_FILE", file.name, "Restore"):
        read(spark, root).collect()
    with refused(root, "CORRUPT_FILE", file.name, "Restore"):
        query(topic="flights", startingOffsets="earliest").run()


def test_a_ledger_file_that_is_gone_is_named(root: Path) -> None:
    file = max((root / TOPIC / "data").iterdir())
    file.unlink()
    with refused(root, file.name, "is not there"):
        Run(root, topic="flights", startingOffsets="earliest").all()


@pytest.mark.parametrize("damage", [cut, empty, foreign])
def test_a_damaged_log_file_is_named_by_readers_and_writers(
    root: Path, damage: Callable[[Path], None]
) -> None:
    file = root / TOPIC / "_log" / f"{1:020d}.json"
    damage(file)
    with refused(root, "CORRUPT_FILE", file.name, "estore the file from a copy"):
        made({"serviceUrl": str(root), "topic": "flights"})
    with refused(root, "CORRUPT_FILE", file.name):
        send(root, "flights", ["d"])


def test_files_of_a_future_version_are_refused_with_the_remedy(
    root: Path, query: MakeQuery
) -> None:
    log = root / TOPIC / "_log" / f"{2:020d}.json"
    known = log.read_bytes()
    rewrite(log, version=99)
    with refused(root, "FUTURE_VERSION", log.name, "99"):
        made({"serviceUrl": str(root), "topic": "flights"})
    log.write_bytes(known)
    reader = query(topic="flights", startingOffsets="earliest")
    assert reader.values() == ["a", "b", "c"]
    offsets = reader.checkpoint / "offsets"
    for path in offsets.glob(".*"):
        path.unlink()
    (last,) = offsets.iterdir()
    last.write_text(last.read_text().replace('"version": 1', '"version": 99'))
    with refused(root, "FUTURE_VERSION", "version 99", "Update Pulsarlite"):
        reader.run()


def test_a_checkpoint_of_another_source_is_refused(root: Path, query: MakeQuery) -> None:
    reader = query(topic="flights", startingOffsets="earliest")
    reader.run()
    offsets = reader.checkpoint / "offsets"
    for path in offsets.glob(".*"):
        path.unlink()
    lines = (offsets / "0").read_text().split("\n")
    (offsets / "0").write_text("\n".join([*lines[:2], '{"flights":{"0":23}}']))
    with refused(root, "CORRUPT_FILE", "new checkpoint"):
        reader.run()
