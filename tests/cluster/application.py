"""A user's application on a cluster: publishes what it is told to, and consumes all the time.

    python -m tests.cluster.application JSON

Reads lines from its standard input, `publish FIRST LAST`, and answers each with `published`.
Queries are begun one after the other, as Spark gives up on a Python process that does not answer
within ten seconds; one that is given up is begun again from its checkpoint, as an operator would.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar_spark
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_one_begins = threading.Lock()


def main(given: dict[str, Any]) -> None:
    spark = pulsar_spark.session(given["name"], given["master"], **given["settings"])
    topic = {**given["options"], "topic": "orders"}
    for each in given["consumers"]:
        begin = _consumer(spark, topic, each, Path(given["folder"]))
        threading.Thread(target=_keep_up, args=(begin,), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        _, first, last = line.split()
        rows = spark.range(int(first), int(last), numPartitions=2).selectExpr(
            "cast(id % 7 as string) key", "encode(cast(id as string), 'utf-8') value"
        )
        rows.write.format("pulsarlite").options(**topic).mode("append").save()
        print("published", flush=True)


def _consumer(
    spark: SparkSession, topic: dict[str, str], subscription_type: str, folder: Path
) -> Callable[[], StreamingQuery]:
    def begin() -> StreamingQuery:
        rows = (
            spark.readStream.format("pulsarlite")
            .options(
                **topic,
                subscriptionName=f"of-{subscription_type}",
                subscriptionType=subscription_type,
                subscriptionInitialPosition="Earliest",
            )
            .load()
            .selectExpr("key", "cast(decode(value, 'utf-8') as long) number")
        )
        return (
            rows.writeStream.format("json")
            .option("path", str(folder / "out" / subscription_type))
            .option("checkpointLocation", str(folder / "checkpoints" / subscription_type))
            .trigger(processingTime="1 second")
            .start()
        )

    return begin


def _keep_up(begin: Callable[[], StreamingQuery]) -> None:
    while True:
        try:
            _begun(begin).awaitTermination()
        except Exception as error:  # noqa: BLE001, PERF203 - its checkpoint is there
            print(str(error)[:300], file=sys.stderr, flush=True)


def _begun(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    with _one_begins:
        query = begin()
        with suppress(AssertionError):  # a slow one has the next beside it
            eventually(lambda: not query.isActive or query.lastProgress, 60)
    return query


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
