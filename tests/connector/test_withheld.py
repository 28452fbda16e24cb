"""A message that ends the whole query: found in a few restarts, and a dead letter in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from pulsar_spark.connector.broker_query import standalone
from tests.connector.reading import Run
from tests.connector.topics import numbers, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DLQ = "t-s-DLQ"


@pytest.mark.slow
def test_what_kills_the_worker_is_found_and_all_else_is_delivered_once(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    send(root, "t", [*numbers(0, 40), "poison", *numbers(41, 60)], batchingMaxMessages=7)
    seen: list[str] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.extend(row.value for row in batch.collect())

    def run() -> bool:
        frame = spark.readStream.format("pulsarlite").options(
            serviceUrl=str(root), topic="t", subscriptionName="s", subscriptionType="Shared",
            subscriptionInitialPosition="Earliest", maxRedeliverCount=2, maxBatchAttempts=1,
        ).load().mapInArrow(_parse, "value string, redelivery_count int")  # fmt: skip
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(90), "the query did not end"
        except StreamingQueryException:
            return False
        return True

    with standalone(spark, str(root)):
        runs = 1
        while not run():
            runs += 1
            assert runs < 12, "the poison was not found"
        assert run(), "nothing is left that kills"
        assert sorted(map(int, seen)) == [number for number in range(60) if number != 40]
        dead = Run(root, topic=DLQ, startingOffsets="earliest", includeProperties=True).all()
    (letter,) = [message for batch in dead for message in batch.messages]
    properties = dict(letter["properties"])
    assert letter["value"] == b"poison"
    assert properties["REAL_SUBSCRIPTION"] == "s"
    assert "in a micro-batch that had this message, the last times by itself" in properties["ERROR"]
    assert runs == 4, "the batch, a part of it, the message by itself; then an end"


def _parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os

    for batch in batches:
        values = [value.decode() for value in batch.column("value").to_pylist()]
        if "poison" in values:
            os._exit(3)
        yield pa.record_batch(
            {"value": pa.array(values), "redelivery_count": batch.column("redelivery_count")}
        )
