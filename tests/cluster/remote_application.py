"""A user's application on a Spark Connect server: everything public, from a remote session.

    python -m tests.cluster.remote_application sc://HOST:PORT FOLDER

Says the name of each part that works, and ends with an error at the first that does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pulsar_spark
from pulsar_spark.state.deduplication_processor import deduplicate
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

T = TypeVar("T")
DEADLINE_S = 150
COUNT = 20
NUMBERS = set(range(COUNT))


class Application:
    def __init__(self, server: str, folder: Path) -> None:
        self.spark: SparkSession = pulsar_spark.session("remote", server)
        self.folder, self.root = folder, str(folder / "root")
        self.admin = pulsar_spark.Admin(self.root)

    def publishes_and_reads(self) -> None:
        self.write(self.numbers(), "orders")
        assert self.values(self.read(topic="orders")) == NUMBERS

    def is_told_of_a_typo_when_the_frame_is_made(self) -> None:
        try:
            self.read(topik="orders").count()
        except Exception as error:  # noqa: BLE001 - one of Spark's, with ours in its text
            assert "[INVALID_OPTION] Option topik is not known" in str(error)  # noqa: PT017
        else:
            raise AssertionError("an unknown option was taken")

    def streams_from_topic_to_topic_without_duplicates(self) -> None:
        rows = deduplicate(self.stream(topic="orders", startingOffsets="earliest"))
        writer = self.sink(rows.select("key", "value"), "copies", topic="copies")
        once = writer.trigger(availableNow=True)
        assert patiently(lambda: once.start().awaitTermination(DEADLINE_S))
        assert self.values(self.read(topic="copies")) == NUMBERS

    def publishes_in_a_transaction(self) -> None:
        with pulsar_spark.transaction(service_url=self.root) as txn:
            txn.write(self.numbers(), topic="these")
            txn.write(self.numbers(), topic="those")
        assert self.read(topics="these,those").count() == 2 * COUNT

    def consumes_and_acknowledges(self) -> None:
        """By `process` and a sink, and by `acknowledge` in a micro-batch."""

        def handle(message: pulsar_spark.Message) -> None:
            if int(message.value) == 3:
                raise pulsar_spark.Reject("no three")

        root = self.root

        def done(batch: DataFrame, batch_id: int) -> None:
            pulsar_spark.acknowledge(
                batch, "batches", batch_id=batch_id, application="done", service_url=root
            )

        # Both are there first: what all subscriptions have had is trimmed.
        for subscription in ("handled", "batches", "streamed"):
            self.admin.subscriptions.create("orders", subscription, "earliest")
        handled = pulsar_spark.process(self.consumed("handled", maxRedeliverCount="1"), handle)
        by_sink = self.sink(handled, "handled", subscriptionName="handled")
        self.runs_until(by_sink, lambda: self.backlog("handled") == 0)
        assert self.values(self.read(topic="orders-handled-DLQ")) == {3}
        rows = pulsar_spark.acknowledgements(self.consumed("streamed"))
        by_stream = self.sink(rows, "streamed", subscriptionName="streamed")
        self.runs_until(by_stream, lambda: self.backlog("streamed") == 0)
        by_batch = self.consumed("batches").writeStream.foreachBatch(done)
        by_batch = by_batch.option("checkpointLocation", str(self.folder / "batches"))
        self.runs_until(by_batch, lambda: self.backlog("batches") == 0)

    def looks(self) -> None:
        assert self.admin.subscriptions.list("orders") == ["batches", "handled", "streamed"]
        by = self.read(view="acknowledgements", topic="orders").groupBy("subscription").count()
        assert {row["subscription"]: row["count"] for row in by.collect()} == {
            "handled": COUNT,
            "batches": COUNT,
            "streamed": COUNT,
        }
        assert self.read(view="stats", topic="orders").count() == 1

    def gives_back_asks_for_later_and_acknowledges_all_up_to_one(self) -> None:
        """Each number once more, by a rejection or by the retry letter topic; then all are done."""
        root = self.root
        subscriptions = ("called", "retried", "cumulated")
        self.write(self.numbers(), "calls")
        for name in ("called", "retried"):
            self.admin.topics.create(f"calls-{name}-RETRY", 1)
        for name in subscriptions:
            self.admin.subscriptions.create("calls", name, "earliest")

        def calls(batch: DataFrame, _: int) -> None:
            fresh = "redelivery_count = 0 and topic not like '%RETRY'"
            odd = "cast(decode(value, 'utf-8') as int) % 2 = 1"
            rejected = batch.where(f"{fresh} and {odd}")
            pulsar_spark.negative_acknowledge(rejected, "called", delay="1s", service_url=root)
            later = batch.where(f"{fresh} and not {odd}")
            pulsar_spark.reconsume_later(later, "called", "1s", service_url=root)
            rest = batch.where(f"not ({fresh})")
            pulsar_spark.acknowledge(rest, "called", service_url=root)

        def once_more(message: pulsar_spark.Message) -> None:
            if "RECONSUMETIMES" not in message.properties:
                raise pulsar_spark.RetryLater("1s")

        given = {"topic": "calls", "enableRetry": "true", "includeProperties": "true"}
        by_call = self.consumed("called", **given).writeStream.foreachBatch(calls)
        by_call = by_call.option("checkpointLocation", str(self.folder / "called"))
        self.runs_until(by_call, lambda: self.is_done("called"))
        retried = pulsar_spark.process(self.consumed("retried", **given), once_more)
        by_sink = self.sink(retried, "retried", subscriptionName="retried")
        self.runs_until(by_sink, lambda: self.is_done("retried"))
        everything = self.read(topic="calls")
        pulsar_spark.acknowledge_cumulative(everything, "cumulated", service_url=root)
        eventually(lambda: self.backlog("cumulated", "calls") == 0, DEADLINE_S)

    def is_told_what_a_remote_session_does_not_know(self) -> None:
        """Where a checkpoint may lie, and in a micro-batch which query it is of."""
        reported(lambda: pulsar_spark.standalone(self.spark, "s3://bucket/root"), "--checkpoint")
        batch = self.read(topic="orders")
        reported(lambda: pulsar_spark.acknowledge(batch, "batches", batch_id=1), "application=")

    # -- how ---------------------------------------------------------------------------------------

    def numbers(self) -> DataFrame:
        return self.spark.range(COUNT).selectExpr(
            "cast(id % 3 as string) key", "encode(cast(id as string), 'utf-8') value"
        )

    def write(self, rows: DataFrame, topic: str) -> None:
        options = {"serviceUrl": self.root, "topic": topic}
        rows.write.format("pulsarlite").mode("append").options(**options).save()

    def read(self, **options: str) -> DataFrame:
        given = {"serviceUrl": self.root, **options}
        return self.spark.read.format("pulsarlite").options(**given).load()

    def stream(self, **options: str) -> DataFrame:
        given = {"serviceUrl": self.root, **options}
        return self.spark.readStream.format("pulsarlite").options(**given).load()

    def consumed(self, subscription: str, **options: str) -> DataFrame:
        given = {"topic": "orders", "subscriptionType": "Shared", "ackMode": "manual"}
        given |= {"subscriptionName": subscription, "subscriptionInitialPosition": "Earliest"}
        return self.stream(**{**given, **options})

    def sink(self, rows: DataFrame, name: str, **options: str) -> DataStreamWriter:
        given = {"serviceUrl": self.root, "checkpointLocation": str(self.folder / name), **options}
        return rows.writeStream.format("pulsarlite").options(**given)

    def values(self, rows: DataFrame) -> set[int]:
        found = [int(row.value) for row in rows.select("value").collect()]
        assert len(found) == len(set(found))
        return set(found)

    def backlog(self, subscription: str, topic: str = "orders") -> int | None:
        found = self.admin.subscriptions.stats(topic)
        return next((each.backlog for each in found if each.name == subscription), None)

    def is_done(self, subscription: str) -> bool:
        """With the topic's messages, and those that it copied to its retry letter topic."""
        topics = ("calls", f"calls-{subscription}-RETRY")
        return [self.backlog(subscription, each) for each in topics] == [0, 0]

    def runs_until(self, writer: DataStreamWriter, condition: Callable[[], bool]) -> None:
        """A query that Spark gives up is begun again, from its checkpoint."""
        query = patiently(writer.start)

        def met() -> bool:
            nonlocal query
            if not query.isActive:
                print(query.exception(), file=sys.stderr)
                query = patiently(writer.start)
            return condition()

        eventually(met, DEADLINE_S)
        query.stop()


PARTS = (
    Application.publishes_and_reads,
    Application.is_told_of_a_typo_when_the_frame_is_made,
    Application.streams_from_topic_to_topic_without_duplicates,
    Application.publishes_in_a_transaction,
    Application.consumes_and_acknowledges,
    Application.looks,
    Application.gives_back_asks_for_later_and_acknowledges_all_up_to_one,
    Application.is_told_what_a_remote_session_does_not_know,
)


def patiently(call: Callable[[], T]) -> T:
    """Again, where Spark gave up on a Python process that had not answered in ten seconds."""
    for _ in range(5):
        try:
            return call()
        except Exception as error:  # noqa: PERF203 - it is tried again
            if "failed to connect back" not in str(error):
                raise
    return call()


def reported(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except pulsar_spark.PulsarliteError as error:
        assert what in str(error)  # noqa: PT017
    else:
        raise AssertionError(f"nothing was said of {what}")


def main(server: str, folder: Path) -> None:
    it = Application(server, folder)
    checkpoint = str(folder / "broker")
    with pulsar_spark.standalone(it.spark, it.root, checkpoint=checkpoint) as broker:
        for part in PARTS:
            part(it)
            print(part.__name__, flush=True)
        status = broker.status()
    assert (status["is_active"], status["error"], status["quarantined"]) == (True, None, {}), status
    assert broker.await_termination(1)
    print("all of it", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
