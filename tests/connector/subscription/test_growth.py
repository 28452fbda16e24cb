"""A durable subscription loses nothing of what came after it: new partitions, new topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.runtime.broker import broker_source
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.testing import ManualClock
from tests.connector.reading import Run
from tests.connector.topics import ledger_of, send

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def loop(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedBroker:
    return EmbeddedBroker(Root(str(root), {}), "_broker/broker")


def consumer(loop: EmbeddedBroker, name: str, **given: Any) -> Run:
    """New, and interested in what comes from now on."""
    kind = {"subscriptionName": "s", "subscriptionType": "Shared", "consumerName": name}
    where = {} if given.keys() & {"topics", "topicsPattern"} else {"topic": "t"}
    return Run(loop.root.service_url, **(kind | where | given))


def turns(loop: EmbeddedBroker, run: Run) -> list[str]:
    """Consumer and broker by turns until neither has anything to do; what came."""
    values: list[str] = []
    while True:
        batch = run.next()
        values += [] if batch is None else batch.values
        if not loop.until_quiet() and batch is None:
            return sorted(values)


def grow(loop: EmbeddedBroker, partitions: int, values: str) -> None:
    """And publish to all of them."""
    ledger_of(loop.root.service_url, "t").grow(partitions)
    send(loop.root.service_url, "t", values, batchingEnabled=False)


def subscribed(loop: EmbeddedBroker) -> list[tuple[str, int, int]]:
    """(topic, partition, backlog) of subscription s."""
    return [
        (
            each.topic_partition.topic.rpartition("/")[2],
            each.topic_partition.partition,
            each.backlog,
        )
        for each in subscriptions(loop.root)
        if each.name == "s"
    ]


@pytest.mark.parametrize("serves", [True, False])
def test_the_first_consumer_of_a_new_partition_reads_it_from_the_beginning(
    loop: EmbeddedBroker, tmp_path: Path, *, serves: bool
) -> None:
    send(loop.root.service_url, "t", ["old"])
    turns(loop, consumer(loop, "first"))  # and is killed
    grow(loop, 3, "abc")
    if serves:
        loop.until_quiet()
        assert [each[:2] for each in subscribed(loop)] == [("t", 0), ("t", 1), ("t", 2)]
    loop.close()
    again = EmbeddedBroker(loop.root, "_broker/broker")
    second = consumer(loop, "second")
    new = Run(
        loop.root.service_url, topics="t-partition-1,t-partition-2", startingOffsets="earliest"
    ).values()
    assert turns(again, second) == sorted(new)
    assert len(new) == 2, "the third is with the first consumer"


@pytest.mark.parametrize("knows", [True, False])
def test_a_topic_that_grows_before_the_broker_hears_of_a_subscription_loses_nothing(
    loop: EmbeddedBroker, *, knows: bool
) -> None:
    send(loop.root.service_url, "t", "xy", numPartitions=2)
    if knows:  # the topic, and not yet the subscription
        turns(loop, consumer(loop, "other", subscriptionName="other"))
    first = consumer(loop, "first")
    while first.next() is not None:  # its name is written down, then it subscribes; and is killed
        pass
    grow(loop, 4, "abcd")
    loop.until_quiet()
    assert [each[1] for each in subscribed(loop)] == [0, 1, 2, 3]
    new = Run(
        loop.root.service_url, topics="t-partition-2,t-partition-3", startingOffsets="earliest"
    ).values()
    assert new
    assert set(new) <= set(turns(loop, consumer(loop, "second")))


@pytest.mark.parametrize("topic", ["t", "t-partition-1"])
def test_who_is_first_on_a_new_partition_before_the_broker_looks_begins_there_at_the_beginning(
    loop: EmbeddedBroker, topic: str
) -> None:
    send(loop.root.service_url, "t", ["old"])
    for given in ({}, {"topic": topic}):
        new = consumer(loop, "first", **given)
        while new.next() is not None:  # its name is written down, then it subscribes; and is killed
            pass
        if not given:
            grow(loop, 2, "abcd")
    there = Run(loop.root.service_url, topic="t-partition-1", startingOffsets="earliest").values()
    assert there
    assert set(there) <= set(turns(loop, consumer(loop, "first")))


def test_growth_is_noticed_though_the_topic_cannot_be_read_when_the_subscription_is_heard_of(
    place: Root, clock: ManualClock
) -> None:
    loop = EmbeddedBroker(place)
    send(place.service_url, "t", "xy", numPartitions=2)
    first = consumer(loop, "first")
    while first.next() is not None:  # its name is written down, then it subscribes; and is killed
        pass
    log = f"{ledger_of(place.service_url, 't').folder}/_log"
    before = {each.path for each in place.store.files(log)}
    ledger_of(place.service_url, "t").grow(3)
    (path,) = {each.path for each in place.store.files(log)} - before
    held = place.store.get(path)
    assert held is not None
    for data in (b"", held):
        place.store.delete(path)
        place.store.put_if_absent(path, data)
        loop.until_quiet()
        clock.advance(int(broker_source.LONGEST_RETRY_S * 1000))
        loop.until_quiet()
        there = sorted(each for topic, each in loop.brokers if topic.endswith("/t"))
        assert there == ([0, 1, 2] if data else [])
    send(place.service_url, "t", "abcdefg", batchingEnabled=False)
    assert [each[1] for each in subscribed(loop)] == [0, 1, 2]


def test_what_is_published_to_a_new_partition_counts_as_backlog_before_anybody_comes(
    loop: EmbeddedBroker,
) -> None:
    send(loop.root.service_url, "t", ["old"])
    turns(loop, consumer(loop, "first"))
    grow(loop, 2, "abcd")
    loop.until_quiet()
    assert subscribed(loop) == [("t", 0, 2), ("t", 1, 2)]


def test_a_subscription_that_is_not_durable_is_not_made_there(loop: EmbeddedBroker) -> None:
    send(loop.root.service_url, "t", ["old"])
    turns(loop, consumer(loop, "first", subscriptionMode="NonDurable"))
    grow(loop, 2, "ab")
    loop.until_quiet()
    assert [each[1] for each in subscribed(loop)] == [0]


def test_a_subscription_of_one_partition_stays_on_that_until_the_topic_grows(
    loop: EmbeddedBroker,
) -> None:
    send(loop.root.service_url, "t", "ab", numPartitions=2)
    turns(loop, consumer(loop, "first", topic="t-partition-0"))
    send(loop.root.service_url, "t", "cd", batchingEnabled=False)
    loop.until_quiet()
    assert [each[1] for each in subscribed(loop)] == [0]
    grow(loop, 3, "efg")  # as in Pulsar: what the first partition has, the new ones get
    loop.until_quiet()
    assert [each[1] for each in subscribed(loop)] == [0, 2]


def test_a_new_topic_of_a_pattern_is_read_from_the_beginning_by_a_new_consumer(
    loop: EmbeddedBroker,
) -> None:
    send(loop.root.service_url, "t", ["old"])
    turns(loop, consumer(loop, "first", topicsPattern="[tu]"))  # and is killed
    send(loop.root.service_url, "u", "ab")
    assert turns(loop, consumer(loop, "second", topicsPattern="[tu]")) == ["a", "b"]


def test_a_subscription_that_is_new_begins_where_it_is_told_to(loop: EmbeddedBroker) -> None:
    for topic in "tu":
        send(loop.root.service_url, topic, ["old"])
    turns(loop, consumer(loop, "other", topic="t", subscriptionName="other"))
    assert not turns(loop, consumer(loop, "first", topicsPattern="[tu]"))
    send(loop.root.service_url, "v", ["old"])
    assert not turns(loop, consumer(loop, "second", topics="t,v"))


def test_a_topic_is_hosted_with_its_first_subscription_and_not_trimmed_before(
    loop: EmbeddedBroker,
) -> None:
    """Two runs of a consumer speak before the broker looks: the second one saw what the first
    could not, a partition that is made at the look behind."""
    url = loop.root.service_url
    given = {"topicsPattern": "public/default/.*", "subscriptionInitialPosition": "Earliest"}
    send(url, "t", ["t"])
    first = consumer(loop, "a", **given)
    first.next()
    first.next()  # it has said what it subscribes to, and is killed
    for value in "abc":
        send(url, "new", [value])
    ledger_of(url, "t").grow(2)
    second = consumer(loop, "a", start=first.offset, **given)
    second.next()
    second.next()
    loop.run_once()
    send(url, "new", ["d"])
    assert turns(loop, second) == ["a", "b", "c", "d", "t"]
