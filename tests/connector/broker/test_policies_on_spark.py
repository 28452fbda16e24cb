"""Policies that a broker on real Spark carries out, in one run, and in the one that follows it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from pulsar_spark import Admin
from pulsar_spark.broker.protocol.commands import CreateSubscription
from pulsar_spark.connector.client.message_consumer import MessageConsumer
from pulsar_spark.connector.runtime.housekeeping import housekeeper
from pulsar_spark.connector.runtime.system_topics.subscription_admin import ask
from pulsar_spark.connector.runtime.topics.backlog_quota import EXCEEDED
from pulsar_spark.errors import ConsumerBusyError
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.state.broker_query import standalone
from tests.connector.reading import messages
from tests.connector.subscriber import await_backlog, backlog
from tests.connector.topics import ledger_of, send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TOPICS = ("old", "full", "few", "prices", "evicted")


def test_a_broker_on_spark_carries_out_policies_and_its_successor_what_was_said_since(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeper, "EVERY_S", 0.5)
    url = str(root)
    for name in TOPICS:
        send(root, name, ["first"], columns={"key": ["k"]})
    of = {name: Admin(url).policies(name) for name in TOPICS}
    of["old"].set(message_ttl="3s")
    of["full"].set(backlog_quota_limit=10, backlog_quota_policy="producer_exception")
    of["evicted"].set(backlog_quota_limit=10, backlog_quota_policy="consumer_backlog_eviction")
    of["few"].set(max_consumers_per_subscription=1)
    of["prices"].set(compaction_threshold=20)

    def publish(topic: str) -> None:
        rows = spark.createDataFrame([("later", topic)], "value string, topic string")
        rows.write.format("pulsarlite").option("serviceUrl", url).mode("append").save()

    def is_marked() -> bool:
        return EXCEEDED in ledger_of(root, "full").state.settings

    def horizon() -> Any:
        compacted = ledger_of(root, "prices").state.partition(0).compacted
        return compacted and compacted.horizon.ledger_id

    with standalone(spark, url) as broker, ExitStack() as consumers:
        ask(broker.root, _subscriptions(), 150)
        for name in TOPICS:
            send(root, name, ["second one"], columns={"key": ["k"]})
        assert is_let_in(consumers, url, "few-1")
        with pytest.raises(ConsumerBusyError, match="max consumers limit"):
            is_let_in(consumers, url, "few-2")
        await_backlog(root, "old", 0)
        await_backlog(root, "evicted", 0)
        eventually(is_marked, what="producers know")
        with pytest.raises(PySparkException, match="PRODUCER_BLOCKED_QUOTA_EXCEEDED"):
            publish("full")
        send(root, "prices", ["a third one"], columns={"key": ["k"]})
        eventually(lambda: horizon() == 2, what="the broker compacts")
        assert [each["value"] for each in messages(root, "prices", readCompacted=True)] == [
            b"a third one"
        ]
    assert b"later" not in {each["value"] for each in messages(root, "full")}
    of["old"].remove("message_ttl")
    of["few"].set(max_consumers_per_subscription=2)
    of["full"].set(backlog_quota_policy="consumer_backlog_eviction")
    send(root, "old", ["stays"])
    send(root, "prices", ["longer than the threshold"], columns={"key": ["k"]})
    with standalone(spark, url), ExitStack() as consumers:
        assert is_let_in(consumers, url, "few-1")
        assert is_let_in(consumers, url, "few-2")
        await_backlog(root, "old", 1)
        publish("full")
        eventually(lambda: not is_marked(), what="nobody is kept out")
        eventually(lambda: horizon() == 3, what="the next broker compacts")
        assert backlog(root, "old") == 1


def is_let_in(consumers: ExitStack, url: str, name: str) -> bool:
    """Subscribe to `few`; ConsumerBusyError if the broker says no."""
    given = {"serviceUrl": url, "topic": "few", "subscriptionName": "s", "consumerName": name}
    consumer = MessageConsumer({**given, "subscriptionType": "Shared"})

    def answered() -> bool:
        consumer.poll()
        return consumer.is_connected()

    consumers.push(consumer)
    return eventually(answered, what=f"{name} is answered")


def _subscriptions() -> dict[TopicPartition, CreateSubscription]:
    return {
        TopicPartition(f"persistent://public/default/{name}", 0): CreateSubscription("s")
        for name in TOPICS
    }
