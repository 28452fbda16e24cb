"""Source and sink of real Spark on an object store: a local S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.connector.spark_query import SparkQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.connector.s3_server import S3Root


def test_a_topic_on_s3_is_written_and_read_by_streams_and_batches(
    spark: SparkSession, s3_root: S3Root, tmp_path: Path
) -> None:
    storage = {f"storage.{name}": value for name, value in s3_root.options.items()}
    write = spark.sql(
        "select cast(id as string) value, cast(id % 5 as string) key from range(3000)"
    )
    writer = write.write.format("pulsarlite").mode("append").options(**storage)
    writer.options(topic="flights", numPartitions="2", txnAppId="a", txnVersion="0").save(
        s3_root.root
    )
    writer.options(topic="flights", txnAppId="a", txnVersion="0").save(s3_root.root)
    read = spark.read.format("pulsarlite").options(topic="flights", **storage).load(s3_root.root)
    assert sorted(int(row.value) for row in read.collect()) == list(range(3000))

    given = {"topic": "flights", "startingOffsets": "earliest", "maxMessagesPerTrigger": 1300}
    query = SparkQuery(spark, s3_root.root, tmp_path / "in", None, {**given, **storage})
    assert [len(batch) for batch in query.run()] == [1300, 1300, 400]

    source = (
        query.frame().select("value", "key").writeStream.format("pulsarlite").options(**storage)
    )
    source = source.options(topic="copy", checkpointLocation=str(tmp_path / "copy"))
    for _ in range(2):
        assert source.trigger(availableNow=True).start(s3_root.root).awaitTermination(120)
    copy = spark.read.format("pulsarlite").options(topic="copy", **storage).load(s3_root.root)
    assert sorted(int(row.value) for row in copy.collect()) == list(range(3000))
