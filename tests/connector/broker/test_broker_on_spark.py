"""The broker query itself: idle, woken, without its checkpoint, in a bare session, and fenced."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

import pulsar_spark
from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.runtime.broker.broker_sink import claim_term
from pulsar_spark.connector.runtime.system_topics.subscription_admin import ask
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.standalone_command import watch
from pulsar_spark.errors import BrokerFencedError
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.state.broker_query import EMPTY_CHECKPOINT, SETTINGS, Broker, standalone
from tests.connector.spark_query import killed_at_its_first_offset
from tests.connector.subscriber import (
    MakeSubscriber,
    Subscriber,
    acknowledging,
    await_backlog,
    stats,
)
from tests.connector.topics import numbers, send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDLE_S = 3.0


def unchanged_for(seconds: float, value: Callable[[], object]) -> Callable[[], bool]:
    """A condition: that the value has been the same for so long, as far as it was looked at."""
    seen, since_s = value(), time.monotonic()

    def is_so() -> bool:
        nonlocal seen, since_s
        if (now := value()) != seen:
            seen, since_s = now, time.monotonic()
        return time.monotonic() - since_s >= seconds

    return is_so


def checkpoint_of(broker: Broker) -> Path:
    return Path(broker.root.store.root) / "_broker" / "checkpoint"


def micro_batches(broker: Broker) -> int:
    """By its checkpoint: `status` tells the number of the next one while the broker is idle."""
    folder = checkpoint_of(broker) / "commits"
    return len([path for path in folder.iterdir() if path.name.isdecimal()])


def everything(consumer: Subscriber) -> DataFrame:
    """All messages of its topic, read without a subscription."""
    url = consumer.given.get("serviceUrl", consumer.root)
    reader = consumer.spark.read.format("pulsarlite").option("serviceUrl", str(url))
    return reader.option("topic", str(consumer.given["topic"])).load()


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[dict[str, str | None]]:
    """The session's own, without what the broker needs; put back at the end."""
    names = [*SETTINGS, "spark.sql.shuffle.partitions"]
    before = {name: spark.conf.get(name, None) for name in names}
    for name in SETTINGS:
        spark.conf.unset(name)
    yield {name: spark.conf.get(name, None) for name in names}
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def test_an_idle_broker_runs_no_micro_batch_until_a_message_comes_due(
    subscriber: MakeSubscriber, served: Path, topic: str, broker_of_module: Broker
) -> None:
    send(served, topic, ["a"])
    consumer = subscriber(ackMode="manual")
    consumer.start()
    consumer.sees(1)

    def batches() -> tuple[int, object]:
        return micro_batches(broker_of_module), broker_of_module.status()["batch_id"]

    eventually(unchanged_for(IDLE_S, batches), what="the broker is idle")
    before = micro_batches(broker_of_module)
    rejected_s = time.monotonic()
    pulsar_spark.negative_acknowledge(
        everything(consumer), "s", delay="1500ms", service_url=str(served)
    )
    _, again = consumer.sees(2)
    assert again.redelivery_count == 1
    assert again.at_s - rejected_s >= 1.5
    eventually(unchanged_for(IDLE_S, batches), what="the broker is idle again")
    assert 2 <= micro_batches(broker_of_module) - before <= 5, "rejected, due, planned, committed"


def test_the_status_of_an_idle_broker_names_the_last_micro_batch_that_it_ran(
    broker_of_module: Broker,
) -> None:
    def is_told_of_idleness() -> bool:
        progress = broker_of_module.query.lastProgress
        return progress is not None and not progress["numInputRows"]

    eventually(is_told_of_idleness)  # Spark's report of an idle query has the next number
    assert broker_of_module.status()["batch_id"] == micro_batches(broker_of_module) - 1


def test_a_broker_that_lost_its_checkpoint_delivers_nothing_twice_and_loses_nothing(
    spark: SparkSession, subscriber: MakeSubscriber, root: Path
) -> None:
    send(root, "t", numbers(0, 4))

    def handle(batch: DataFrame, number: int) -> None:
        acknowledging(root, "text = '0'")(batch, number)
        rejected = batch.where("cast(value as string) = '1' and redelivery_count = 0")
        pulsar_spark.negative_acknowledge(rejected, "s", delay="4s", service_url=str(root))

    given: dict[str, object] = {"serviceUrl": root, "topic": "t", "ackMode": "manual"}
    consumer = subscriber(handle=handle, **given)
    alone = subscriber("f", subscriptionName="f", subscriptionType="Failover", **given)
    with standalone(spark, str(root)) as broker:
        consumer.start()
        alone.start()
        consumer.sees(4)
        alone.sees(4)
        await_backlog(root, "t", 3)
        eventually(lambda: stats(root, "t")[0].waiting, what="the rejection was taken in")
    shutil.rmtree(checkpoint_of(broker))
    send(root, "t", ["4"])
    with standalone(spark, str(root)):
        consumer.sees(6)
        alone.sees(5)
        for name in "sf":
            pulsar_spark.acknowledge(everything(consumer), name, service_url=str(root))
            await_backlog(root, "t", 0, name)
    found = [(each.value, each.redelivery_count) for each in consumer.deliveries]
    assert found[:4] == [(number, 0) for number in numbers(0, 4)]
    assert sorted(found[4:]) == [("1", 1), ("4", 0)]
    assert alone.seen == numbers(0, 5)


def test_a_session_without_the_brokers_settings_gets_a_broker_and_keeps_its_own(
    spark: SparkSession, root: Path, settings: dict[str, str | None]
) -> None:
    assert "RocksDB" not in str(settings["spark.sql.streaming.stateStore.providerClass"])
    spark.conf.set(EMPTY_CHECKPOINT, "true")
    killed_at_its_first_offset(root / "_broker" / "checkpoint")
    with standalone(spark, str(root)) as broker:
        assert {name: spark.conf.get(name, None) for name in settings} == settings
        send(root, "t", ["a"])
        topic_partition = TopicPartition("persistent://public/default/t", 0)
        ask(broker.root, {topic_partition: CreateSubscription("s")})
        await_backlog(root, "t", 1)
    assert {name: spark.conf.get(name, None) for name in settings} == settings


def test_what_ended_a_broker_is_raised_where_it_is_waited_for(
    spark: SparkSession, root: Path
) -> None:
    send(root, "t", ["a"])
    with standalone(spark, str(root)) as broker:
        assert not broker.await_termination(0.01)
        newer = claim_term(Root(str(root), {}))
        assert newer == broker.term + 1
        send(root, "t", ["b"])
        with pytest.raises(StreamingQueryException, match="has taken over") as caught:
            broker.await_termination()
        assert BrokerFencedError.condition in str(caught.value)
        assert "has taken over" in broker.status()["error"]
        with pytest.raises(StreamingQueryException, match="has taken over"):
            broker.await_termination(1)
        with pytest.raises(BrokerFencedError, match=r"Another broker has taken over .*root"):
            watch(broker, threading.Event(), every_s=0.05)
    assert not broker.status()["is_active"]
