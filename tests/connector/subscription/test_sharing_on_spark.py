"""Queries that share a subscription, take over from each other, or read several topics."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

import pulsar_spark
from pulsar_spark.log.producing.hashing import murmur3_32_hash, sticky_key_slot
from tests.connector.subscriber import (
    MakeSubscriber,
    await_backlog,
    await_consumers,
    backlog,
)
from tests.connector.topics import numbers, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHORT = {"leaseTimeout": "6s"}
"""A consumer that says nothing is given up after that."""
LOW, HIGH = "0-32767", "32768-65535"


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_cumulative_acknowledgement_leaves_the_rest_to_a_new_checkpoint(
    subscriber: MakeSubscriber, served: Path, topic: str, kind: str
) -> None:
    send(served, topic, numbers(0, 9), batchingMaxMessages=4)

    def acknowledge(batch: DataFrame, number: int) -> None:
        up_to = batch.where("cast(value as string) = '5'")
        pulsar_spark.acknowledge_cumulative(up_to, "s", service_url=str(served))

    given = {"subscriptionType": kind, "ackMode": "manual"}
    first = subscriber("first", acknowledge, **given)
    first.run()
    assert first.seen == numbers(0, 9)
    await_backlog(served, topic, 3)
    second = subscriber("second", **given)
    assert second.values() == numbers(6, 9)
    assert backlog(served, topic) == 3, "nothing was acknowledged by reading"


def test_the_better_priority_is_served_first_while_its_permits_last(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["first"])
    given = {"ackMode": "manual", "receiverQueueSize": 4}
    better = subscriber("better", priorityLevel=1, **given)
    better.start()
    better.sees(1)
    worse = subscriber("worse", priorityLevel=2, **given)
    worse.start()
    await_consumers(served, topic, "better", "worse")
    for number in range(3):  # one by one: each would be another's turn
        send(served, topic, [str(number)])
        better.sees(2 + number)
    send(served, topic, numbers(3, 5))
    worse.sees(2)
    assert better.seen == ["first", *numbers(0, 3)]
    assert worse.seen == numbers(3, 5)


def test_when_the_active_query_fails_the_other_gets_all_that_is_left_in_order(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["first"])
    given = {"subscriptionType": "Failover", "maxMessagesPerTrigger": 2, **SHORT}
    active = subscriber("active", priorityLevel=0, **given)
    running = active.start()
    active.sees(1)
    other = subscriber("other", priorityLevel=1, **given)
    other.start()
    await_consumers(served, topic, "active", "other")
    await_backlog(served, topic, 0)
    active.fails_at = max(active.batches) + 2
    send(served, topic, numbers(0, 6))
    with pytest.raises(StreamingQueryException, match="as it was told to"):
        running.awaitTermination(120)
    assert active.seen == ["first", *numbers(0, 2)]
    assert [row.value for row in active.batches[active.fails_at]] == [b"2", b"3"]
    other.sees(4)
    send(served, topic, numbers(6, 8))
    other.sees(6)
    assert other.seen == numbers(2, 8), "what was not committed comes again"
    await_backlog(served, topic, 0)


def test_when_the_active_query_ends_in_order_the_other_goes_on_at_once(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, numbers(0, 4))
    joined = threading.Event()
    given = {"subscriptionType": "Failover"}
    active = subscriber("active", lambda *_: joined.wait(240), leaseTimeout="5m", **given)
    running = active.start(availableNow=True)
    active.sees(4)
    other = subscriber("other", priorityLevel=1, **given)
    other.start()
    await_consumers(served, topic, "active", "other")
    send(served, topic, numbers(4, 7))
    joined.set()
    assert running.awaitTermination(120)
    other.sees(3)
    assert active.seen == numbers(0, 4), "what was there at its start"
    assert other.seen == numbers(4, 7)
    await_consumers(served, topic, "other")


def test_what_a_query_that_died_has_not_acknowledged_goes_to_another_after_its_lease(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, numbers(0, 3))
    dying = subscriber("dying", ackMode="manual", priorityLevel=0, **SHORT)
    dying.start()
    dying.sees(3)
    other = subscriber("other", priorityLevel=1)
    other.start()
    await_consumers(served, topic, "dying", "other")
    dying.stop()
    found = other.sees(3)
    assert [(each.value, each.redelivery_count) for each in found] == [
        (number, 1) for number in numbers(0, 3)
    ]
    await_consumers(served, topic, "other")
    await_backlog(served, topic, 0)
    assert (len(dying.deliveries), len(other.deliveries)) == (3, 3)


def test_with_sticky_ranges_each_query_gets_the_keys_of_its_own(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    keys = [f"key-{number}" for number in range(12)]
    values = [_half(key) for key in keys]
    assert set(values) == {LOW, HIGH}
    send(served, topic, values, columns={"key": keys})
    given = {"subscriptionType": "Key_Shared", "keySharedMode": "STICKY"}
    both = {each: subscriber(each, keySharedRanges=each, **given) for each in (LOW, HIGH)}
    for each in both.values():
        each.start()
    for half, each in both.items():
        each.sees(values.count(half))
    await_backlog(served, topic, 0)
    for half, each in both.items():
        assert each.seen == [half] * values.count(half)


def _half(key: str) -> str:
    slot = sticky_key_slot(murmur3_32_hash(key), consistent_hashing=False)
    return LOW if slot < 32768 else HIGH


def test_a_subscription_of_several_topics_has_and_acknowledges_all_of_them(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    names = [f"{topic}{letter}" for letter in "abc"]
    for name in names:
        send(served, name, [f"{name} {n}" for n in range(3)], numPartitions=2 - (name == names[0]))
    consumer = subscriber(topic=None, topics=", ".join(names))
    consumer.run()
    assert sorted(consumer.seen) == [f"{name} {n}" for name in names for n in range(3)]
    assert {each.topic for each in consumer.deliveries} == set(names)
    for name in names:
        await_backlog(served, name, 0)
