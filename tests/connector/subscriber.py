"""A consumer as a real query that notes when each message came; and what its broker knows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar_spark
from pulsar_spark.connector.runtime.system_topics.subscription_admin import (
    SubscriptionStats,
    subscriptions,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import TopicName
from tests.connector.spark_query import SparkQuery
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

Handle = Callable[["DataFrame", int], object]
MakeSubscriber = Callable[..., "Subscriber"]


@dataclass(frozen=True)
class Delivery:
    """A message as a micro-batch had it."""

    value: str
    topic: str
    redelivery_count: int
    at_s: float


@dataclass
class Subscriber(SparkQuery):
    """`handle` is called with each micro-batch that has messages, once they are noted."""

    handle: Handle | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    running: list[StreamingQuery] = field(default_factory=list)

    @property
    def seen(self) -> list[str]:
        return [each.value for each in self.deliveries]

    def start(self, **trigger: Any) -> StreamingQuery:
        self.running.append(super().start(**trigger))
        return self.running[-1]

    def stop(self) -> None:
        """The broker is told nothing: the lease lapses. A micro-batch that runs is not cut off."""
        for each in self.running:
            eventually(lambda each=each: not _is_processing(each))  # type: ignore[misc]
            each.stop()

    def of(self, value: str) -> list[Delivery]:
        return [each for each in self.deliveries if each.value == value]

    def sees(self, count: int, value: str | None = None) -> list[Delivery]:
        """All deliveries, or those of a value, once there are so many."""

        def enough() -> list[Delivery]:
            if (error := self.running[-1].exception()) is not None:
                raise error
            found = self.deliveries if value is None else self.of(value)
            assert len(found) >= count, f"seen so far: {self.deliveries}"
            return found

        return eventually(enough, what=f"{self.given['consumerName']} sees {count} messages")

    def _keep(self, batch: DataFrame, number: int) -> None:
        super()._keep(batch, number)
        now_s = time.monotonic()
        rows = self.batches[number]
        self.deliveries += [
            Delivery(row.value.decode(), row.topic.split("/")[-1], row.redelivery_count, now_s)
            for row in rows
        ]
        if rows and self.handle is not None:
            self.handle(batch, number)


def acknowledging(root: Path | str, where: str) -> Handle:
    """`where` is a condition on the columns, and on `text`, the value."""

    def handle(batch: DataFrame, number: int) -> None:
        rows = batch.withColumn("text", batch["value"].cast("string")).where(where)
        pulsar_spark.acknowledge(rows, "s", service_url=str(root))

    return handle


def stats(root: Path | str, topic: str, subscription: str = "s") -> list[SubscriptionStats]:
    """What the broker knows of it, by partition; AssertionError while it knows of none."""
    found = subscriptions(Root(str(root), {}), str(TopicName.parse(topic)))
    mine = [each for each in found if each.name == subscription]
    assert mine, f"no subscription {subscription} of {topic}"
    return mine


def backlog(root: Path | str, topic: str, subscription: str = "s") -> int:
    return sum(each.backlog for each in stats(root, topic, subscription))


def await_backlog(root: Path | str, topic: str, expected: int, subscription: str = "s") -> None:
    eventually(
        lambda: _is(backlog(root, topic, subscription), expected),
        what=f"the backlog of {topic} is {expected}",
    )


def await_consumers(root: Path | str, topic: str, *names: str) -> None:
    """Until these are connected to the first partition, and no others."""

    def connected() -> bool:
        found = [each.name for each in stats(root, topic)[0].consumers]
        return _is(sorted(found), sorted(names))

    eventually(connected, what=f"the consumers of {topic} are {names}")


def _is_processing(query: StreamingQuery) -> bool:
    return query.isActive and query.status["message"].startswith("Processing")


def _is(found: object, expected: object) -> bool:
    assert found == expected
    return True
