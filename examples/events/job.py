"""A job that brings events into a Parquet table, each exactly once."""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own docs do

import pulsar_spark

TOPIC = "events"
VERSION = 1
"""Raise it after a bug: the next run makes the whole table anew, beside the old one."""


def rows(events: DataFrame) -> DataFrame:
    """The table's rows. The body of this function is what changes."""
    body = F.from_json(F.col("value").cast("string"), "user string, cents long")
    return events.select("publish_time", body.alias("body")).select(
        "publish_time", "body.user", (F.col("body.cents") / 100).alias("amount")
    )


def run(spark: SparkSession, service_url: str, place: str, version: int = VERSION) -> str:
    """Bring all that was published so far into the table; returns its folder."""
    table = f"{place}/table-{version}"
    events = (
        spark.readStream.format("pulsarlite")
        .option("serviceUrl", service_url)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        rows(events)
        .writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", f"{place}/checkpoint-{version}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service-url", required=True, help="where the topic is")
    parser.add_argument("--place", required=True, help="where table and checkpoint go")
    arguments = parser.parse_args()
    spark = pulsar_spark.session("events")
    table = run(spark, arguments.service_url, arguments.place)
    print(f"{spark.read.parquet(table).count()} rows in {table}")
    spark.stop()


if __name__ == "__main__":
    main()
