"""One process of the soak of subscriptions: `python -m tests.soak.subscribers ROLE FOLDER ROUND`.

ROLE is publisher, broker, or a consumer's name. Each takes up its checkpoint whenever it is begun
again. Consumers keep each micro-batch in a file of its own, replaced whole: an idempotent sink.
Those of `shared` acknowledge by hand, and reject the flights of one carrier until they are dead
letters. All but the publisher run until they are killed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq

import pulsar_spark
from tests.soak.query import Place, end_with, publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Subscription(NamedTuple):
    """Its type, and how many consumers it has: streaming queries, and processes without Spark."""

    kind: str
    queries: int
    clients: int


SUBSCRIPTIONS: Final = {
    "exclusive": Subscription("Exclusive", 1, 0),
    "failover": Subscription("Failover", 1, 1),
    "shared": Subscription("Shared", 1, 2),
    "key_shared": Subscription("Key_Shared", 1, 2),
    "alone": Subscription("Exclusive", 0, 1),
}
QUERIES: Final = [
    f"{name}-{n}" for name, each in SUBSCRIPTIONS.items() for n in range(each.queries)
]
CLIENTS: Final = [
    f"{name}-client-{n}" for name, each in SUBSCRIPTIONS.items() for n in range(each.clients)
]
CONSUMERS: Final = [*QUERIES, *CLIENTS]
MESSAGES_PER_TRIGGER: Final = 5_000
LEASE_S: Final = 30
"""Who stays away for less is the same consumer, and gets nothing twice; others get what a consumer
held that stays away for longer."""
MAX_REDELIVER_COUNT: Final = 3
"""A flight that nobody rejects outlives so many consumers that die with it."""
FIRST_SEEN: Final = b"first_seen_ns"
"""In a file's metadata: when its micro-batch came first. Wall clock, of this machine."""
REJECTED: Final = '"carrier":"HA"'
"""What the messages of the carrier that is always rejected have in them."""
KEPT: Final = ("topic", "partition", "ledger_id", "entry_id", "batch_index", "key", "value",
               "attempt", "redelivery_count")  # fmt: skip


def subscription_of(consumer: str) -> str:
    return consumer.partition("-")[0]


def members_of(subscription: str) -> list[str]:
    return [each for each in CONSUMERS if subscription_of(each) == subscription]


def seen(place: Place, consumer: str) -> Path:
    return place.round / "seen" / consumer


def broker(spark: SparkSession, place: Place) -> None:
    with pulsar_spark.standalone(spark, str(place.root)) as running:
        while running.query.isActive and running.query.lastProgress is None:
            time.sleep(0.05)  # its first micro-batch starts all of Spark's workers
        place.ready("broker").touch()
        running.await_termination()


def consumer(spark: SparkSession, place: Place, name: str) -> None:
    subscription = subscription_of(name)
    folder = seen(place, name)
    folder.mkdir(parents=True, exist_ok=True)
    manual = subscription == "shared"
    source = spark.readStream.format("pulsarlite").options(
        topic=place.topic,
        subscriptionName=subscription,
        subscriptionType=SUBSCRIPTIONS[subscription].kind,
        subscriptionInitialPosition="Earliest",
        consumerName=name,
        leaseTimeout=f"{LEASE_S}s",
        maxMessagesPerTrigger=str(MESSAGES_PER_TRIGGER),
    )
    if manual:
        source = source.options(
            ackMode="manual",
            maxRedeliverCount=str(MAX_REDELIVER_COUNT),
            negativeAckRedeliveryDelay="1s",
        )

    def keep(batch: DataFrame, number: int) -> None:
        temporary, file = folder / f".{number}", folder / f"{number}.parquet"
        first = pq.read_schema(file).metadata[FIRST_SEEN] if file.exists() else None
        begun = first or str(time.time_ns()).encode()
        table = batch.select(*KEPT).toArrow()
        pq.write_table(table.replace_schema_metadata({FIRST_SEEN: begun}), temporary)
        temporary.replace(file)
        if manual:
            settle(batch, subscription, place, name, number)
        place.ready(name).touch()

    writer = source.load(str(place.root)).writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(place.checkpoint(name)))
    writer.trigger(processingTime="0 seconds").start().awaitTermination()


def settle(batch: DataFrame, subscription: str, place: Place, name: str, number: int) -> None:
    """Acknowledge all but the flights of one carrier; a repeated micro-batch does so once."""
    bad = batch.value.cast("string").contains(REJECTED)
    reported: dict[str, Any] = {
        "service_url": str(place.root),
        "batch_id": number,
        "application": f"{place.topic}/{name}",  # batch ids begin anew in each round
    }
    pulsar_spark.acknowledge(batch.where(~bad), subscription, **reported)
    pulsar_spark.negative_acknowledge(batch.where(bad), subscription, **reported)


def main() -> None:
    role, folder, number = sys.argv[1:]
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    place = Place(Path(folder), int(number))
    settings: dict[str, Any] = {
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(Path(folder) / "local"),
        "spark.driver.memory": "512m",
    }
    spark = pulsar_spark.session(app_name=f"soak-{role}", master="local[1]", **settings)
    if role == "publisher":
        publisher(spark, place)
    elif role == "broker":
        broker(spark, place)
    else:
        consumer(spark, place, role)
    spark.stop()


if __name__ == "__main__":
    main()
