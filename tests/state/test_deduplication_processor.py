"""Duplicates dropped in a state store, in front of a sink."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_spark.errors import InvalidMessageError
from pulsar_spark.state.deduplication_processor import deduplicate
from tests.connector.reading import messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "value string, producer_name string, sequence_id long, properties map<string,string>"
SCHEMA += ", event_time timestamp, deliver_after long"


def add(folder: Path, name: str, rows: Iterable[tuple[str | None, int | None]]) -> None:
    """A file, so a micro-batch, of messages (producer, sequence id)."""
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps(
            {
                "value": f"{producer}{number}",
                "producer_name": producer,
                "sequence_id": number,
                "properties": {"n": str(number)},
                "event_time": "2999-01-01T00:00:00.123456Z",
                "deliver_after": 2**40 + 1 if number == 1 else None,
            }
        )
        for producer, number in rows
    ]
    (folder / f"{name}.json").write_text("\n".join(lines), encoding="utf-8")


def publish(spark: SparkSession, folder: Path, root: Path) -> None:
    """Each file a micro-batch, through `deduplicate`, into the topic."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    frame = deduplicate(reader.json(str(folder)))
    assert frame.columns == [field.split()[0] for field in SCHEMA.split(", ")]
    writer = frame.writeStream.format("pulsarlite").option("topic", "t")
    writer = writer.option("checkpointLocation", str(folder.parent / "checkpoint"))
    assert writer.trigger(availableNow=True).start(str(root)).awaitTermination(120)


def test_each_message_passes_once_in_any_order_across_micro_batches_and_restarts(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    lot = random.Random(5)
    sent = [(producer, number * 7001 - 9) for producer in "pq" for number in range(40)] * 2
    lot.shuffle(sent)
    for part in range(3):
        add(tmp_path / "in", str(part), sent[part::4])
    publish(spark, tmp_path / "in", root)
    add(tmp_path / "in", "3", [*sent[3::4], *sent[:9], ("p", None), (None, 1), ("p", None)])
    publish(spark, tmp_path / "in", root)
    found = messages(root)
    values = [message["value"].decode() for message in found]
    expected = [f"{producer}{number}" for producer, number in set(sent)]
    assert sorted(values) == sorted([*expected, "pNone", "pNone", "None1"])
    for message in found:
        number = message["sequence_id"]
        assert message["properties"] == [("n", str(number))]
        assert (message["event_time"].year, message["event_time"].microsecond) == (2999, 123456)
        assert (message["deliver_at"] is not None) == (number == 1)


def test_rows_without_producer_and_sequence_id_are_refused(spark: SparkSession) -> None:
    frame: DataFrame = spark.sql("select 'a' as value, 1 as sequence_id")
    with pytest.raises(InvalidMessageError, match="There is no column producer_name"):
        deduplicate(frame)
