"""A query that publishes obeys its topic's backlog quota, on real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from pulsar_spark import Admin
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from tests.connector.reading import messages
from tests.connector.topics import send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark
SUBSCRIBED = {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}


class Place:
    """A topic with a quota of six bytes, all of which wait to be received; its broker."""

    def __init__(self, root: Path, policy: str) -> None:
        self.url = str(root)
        self.broker = EmbeddedBroker(Root(self.url, {}))
        policies = Admin(self.url).policies("public/default")
        policies.set(backlog_quota_limit=6, backlog_quota_policy=policy)
        send(root, "t", ["a1"])
        self.consumer = MessageConsumer({"serviceUrl": self.url, **SUBSCRIBED})
        self.broker.until_quiet()
        send(root, "t", ["a2", "a3"])
        self.broker.until_quiet()

    def received(self) -> list[str]:
        """All that there is, acknowledged."""
        found: list[str] = []
        while self.broker.until_quiet() or not found:
            while (message := self.consumer.receive()) is not None:
                self.consumer.acknowledge(message)
                found.append((message.value or b"").decode())
            self.consumer.poll()
        return found

    def values(self) -> list[str]:
        return [each["value"].decode() for each in messages(self.url)]


@pytest.fixture
def place(root: Path) -> Iterator[Callable[[str], Place]]:
    made: list[Place] = []

    def make(policy: str) -> Place:
        made.append(Place(root, policy))
        return made[-1]

    yield make
    for each in made:
        each.broker.close()


@pytest.fixture
def stream(spark: SparkSession, root: Path, tmp_path: Path) -> Callable[[], StreamingQuery]:
    """Starts a query that publishes «b», and ends."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "1.json").write_text('{"value": "b"}')

    def start() -> StreamingQuery:
        writer: Any = spark.readStream.schema("value string").json(str(source)).writeStream
        given = {"topic": "t", "checkpointLocation": str(tmp_path / "checkpoint")}
        writer = writer.format("pulsarlite").options(serviceUrl=str(root), **given)
        return writer.trigger(availableNow=True).start()  # type: ignore[no-any-return]

    return start


def test_a_query_fails_and_its_restart_publishes_what_it_could_not(
    place: Callable[[str], Place], stream: Callable[[], StreamingQuery]
) -> None:
    topic = place("producer_exception")
    with pytest.raises(PySparkException, match="PRODUCER_BLOCKED_QUOTA_EXCEEDED"):
        stream().awaitTermination(120)
    assert topic.received() == ["a1", "a2", "a3"]
    assert stream().awaitTermination(120)
    assert topic.values()[-1:] == ["b"]


def test_a_query_waits_until_there_is_room(
    place: Callable[[str], Place], stream: Callable[[], StreamingQuery]
) -> None:
    topic = place("producer_request_hold")
    query = stream()
    eventually(lambda: len([*Path(topic.url).rglob("default/t/data/*.parquet")]) == 3)
    assert "b" not in topic.values()
    assert topic.received()[:3] == ["a1", "a2", "a3"]
    assert query.awaitTermination(120)
    assert "b" in topic.values()


def test_a_query_goes_on_where_the_oldest_messages_are_evicted(
    place: Callable[[str], Place], stream: Callable[[], StreamingQuery]
) -> None:
    topic = place("consumer_backlog_eviction")
    assert stream().awaitTermination(120)
    received = topic.received()
    assert "a1" not in received
    assert received[-1] == "b"
