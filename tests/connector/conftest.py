"""What the connector's tests share: queries on real Spark, short to write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.runtime.system_topics.subscription_admin import ask
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.state.broker_query import Broker, standalone
from pulsar_spark.testing import ManualClock, Place
from tests.connector.s3_server import s3_root, s3_server
from tests.connector.spark_query import SparkQuery
from tests.connector.subscriber import Handle, MakeSubscriber, Subscriber
from tests.connector.topics import send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "MakeQuery", "broker_of_module", "clock", "impatient", "place", "query", "s3_root", "s3_server",
    "served", "subscriber", "topic",
]  # fmt: skip

MakeQuery = Callable[..., SparkQuery]

_numbers = itertools.count()


@pytest.fixture
def clock(pulsarlite_clock: ManualClock) -> ManualClock:
    return pulsarlite_clock


@pytest.fixture
def place(pulsarlite: Place) -> Root:
    """A root in memory, whose time the test moves."""
    return pulsarlite.root


@pytest.fixture
def query(spark: SparkSession, root: Path, tmp_path: Path) -> MakeQuery:
    """Makes a streaming query with a checkpoint of the test's own."""

    def make(
        checkpoint: str = "checkpoint", schema: str | None = None, **given: object
    ) -> SparkQuery:
        return SparkQuery(spark, root, tmp_path / checkpoint, schema, given)

    return make


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for news waits no longer than it has to, where no Spark asks again at once."""
    monkeypatch.setattr(stream_reader, "LONGEST_WAIT_S", 0.0)


@pytest.fixture(scope="module")
def broker_of_module(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """The broker query, with a root that the module's tests share.

    Its first micro-batch, which takes long, is behind it.
    """
    with standalone(spark, str(tmp_path_factory.mktemp("root"))) as broker:
        send(broker.root.service_url, "first", ["a"])
        topic_partition = TopicPartition("persistent://public/default/first", 0)
        ask(broker.root, {topic_partition: CreateSubscription("s")}, 150)
        yield broker


@pytest.fixture
def served(broker_of_module: Broker) -> Path:
    """The root that has the module's broker."""
    return Path(broker_of_module.root.service_url)


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"t{next(_numbers)}"


@pytest.fixture
def subscriber(
    spark: SparkSession, served: Path, topic: str, tmp_path: Path
) -> Iterator[MakeSubscriber]:
    """Makes consumers of subscription `s`, Shared, from the earliest message on; and ends them."""
    made: list[Subscriber] = []

    def make(name: str = "c", handle: Handle | None = None, **given: object) -> Subscriber:
        options: dict[str, object] = {
            "topic": topic, "subscriptionName": "s", "subscriptionType": "Shared",
            "subscriptionInitialPosition": "Earliest", "consumerName": name,
        }  # fmt: skip
        said = {name: each for name, each in (options | given).items() if each is not None}
        made.append(Subscriber(spark, served, tmp_path / name, None, said, handle=handle))
        return made[-1]

    yield make
    for each in made:
        each.stop()
