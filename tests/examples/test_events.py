"""The example `events`: exactly once through a failure, and again after a bug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own docs do

from examples.events import job
from pulsar_spark import pulsar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

right = job.rows


def publish(root: str, first: int, count: int) -> None:
    with pulsar.Client(root) as client:
        producer = client.create_producer(job.TOPIC)
        for number in range(first, first + count):
            body = {"user": f"u{number}", "cents": 100 * number}
            producer.send_async(json.dumps(body).encode(), None)
        producer.flush()


def failing(events: DataFrame) -> DataFrame:
    """The table's rows, of which the last can't be computed."""
    bad = F.col("user") == "u149"
    return right(events).withColumn(
        "user", F.when(bad, F.raise_error(F.lit("!"))).otherwise(F.col("user"))
    )


def buggy(events: DataFrame) -> DataFrame:
    return right(events).withColumn("amount", F.col("amount") * 10)


@pytest.mark.slow
def test_each_event_is_in_the_table_once_and_a_new_version_makes_it_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, place = str(tmp_path / "topics"), str(tmp_path / "events")

    def amounts(table: str) -> dict[str, float]:
        found = spark.read.parquet(table).select("user", "amount").collect()
        assert len({each.user for each in found}) == len(found), "nobody is there twice"
        return {each.user: each.amount for each in found}

    publish(root, 0, 100)
    monkeypatch.setattr(job, "rows", buggy)
    assert len(amounts(job.run(spark, root, place, 1))) == 100
    publish(root, 100, 50)
    monkeypatch.setattr(job, "rows", failing)
    with pytest.raises(StreamingQueryException):
        job.run(spark, root, place, 1)
    monkeypatch.setattr(job, "rows", buggy)
    old = job.run(spark, root, place, 1)
    assert amounts(old) == {f"u{number}": 10.0 * number for number in range(150)}
    monkeypatch.setattr(job, "rows", right)
    assert amounts(job.run(spark, root, place, 2)) == {f"u{n}": float(n) for n in range(150)}
    assert amounts(old)["u7"] == 70.0
