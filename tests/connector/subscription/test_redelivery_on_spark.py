"""Messages that come again, wait, or become letters: real queries, and the broker query."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pulsar_spark
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import TopicNotFoundError
from tests.connector.reading import messages
from tests.connector.subscriber import (
    Delivery,
    Handle,
    MakeSubscriber,
    acknowledging,
    await_backlog,
    await_consumers,
    backlog,
    stats,
)
from tests.connector.topics import send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rejecting(served: Path, times: int = 1, **how: Any) -> Handle:
    """Rejects what was delivered so many times or fewer, and leaves the rest alone."""

    def handle(batch: DataFrame, number: int) -> None:
        pulsar_spark.negative_acknowledge(
            batch.where(f"redelivery_count < {times}"), "s", service_url=str(served), **how
        )

    return handle


def reconsuming(served: Path, delay: str = "100ms", **how: Any) -> Handle:
    """Wants each message again later, every time."""

    def handle(batch: DataFrame, number: int) -> None:
        pulsar_spark.reconsume_later(batch, "s", delay, service_url=str(served), **how)

    return handle


def topics(served: Path) -> list[str]:
    return [each.local_name for each in Root(str(served), {}).find("public", "default")]


def dead_letters(served: Path, topic: str) -> list[tuple[str, dict[str, str]]]:
    """The values and properties of what lies there; nothing while there is no such topic."""
    try:
        found = messages(served, topic)
    except TopicNotFoundError:  # or it is being made at this moment
        return []
    return [(each["value"].decode(), dict(each["properties"])) for each in found]


def counts(deliveries: list[Delivery]) -> list[tuple[str, int]]:
    return [(each.value, each.redelivery_count) for each in deliveries]


def gaps_s(deliveries: list[Delivery]) -> list[float]:
    times = [each.at_s for each in deliveries]
    return [later - before for before, later in pairwise(times)]


def test_what_one_query_rejects_the_other_receives_after_the_delay(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["a", "b"])
    joined = threading.Event()
    rejected_s: list[float] = []

    def reject(batch: DataFrame, number: int) -> None:
        assert joined.wait(240)
        rejected_s.append(time.monotonic())
        rejecting(served)(batch, number)

    given = {"ackMode": "manual", "negativeAckRedeliveryDelay": "2s"}
    first = subscriber("first", reject, priorityLevel=1, **given)
    first.start()
    first.sees(2)
    second = subscriber("second", priorityLevel=0, **given)
    second.start()
    await_consumers(served, topic, "first", "second")
    joined.set()
    found = second.sees(2)
    assert counts(found) == [("a", 1), ("b", 1)]
    assert found[0].at_s - rejected_s[0] >= 2
    assert counts(first.deliveries) == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("given", [{}, {"maxRedeliverCount": 3}], ids=["plain", "dead letters"])
def test_what_is_to_be_consumed_later_without_a_retry_topic_comes_again_after_the_delay(
    subscriber: MakeSubscriber, served: Path, topic: str, given: dict[str, object]
) -> None:
    send(served, topic, ["a"])
    consumer = subscriber(
        handle=reconsuming(served, "1s"), ackMode="manual", includeProperties=True, **given
    )
    consumer.start()
    found = consumer.sees(2)
    assert counts(found)[:2] == [("a", 0), ("a", 1)]
    assert gaps_s(found)[0] >= 1
    assert {each.topic for each in found} == {topic}
    assert not [each for each in topics(served) if each.startswith(f"{topic}-")]


def test_a_message_is_reconsumed_through_the_retry_topic_and_ends_as_a_dead_letter(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["a"])
    consumer = subscriber(
        handle=reconsuming(served), ackMode="manual", includeProperties=True, enableRetry=True,
        maxRedeliverCount=2,
    )  # fmt: skip
    consumer.start()
    dead, retry = f"{topic}-s-DLQ", f"{topic}-s-RETRY"
    consumer.sees(3)
    ((value, properties),) = eventually(lambda: dead_letters(served, dead))
    assert [each.topic for each in consumer.deliveries] == [topic, retry, retry]
    assert value == "a"
    assert properties["RECONSUMETIMES"] == "3"
    assert properties["REAL_TOPIC"] == f"persistent://public/default/{topic}"
    await_backlog(served, topic, 0)
    await_backlog(served, retry, 0)
    assert sorted(each for each in topics(served) if each.startswith(topic)) == [
        topic, dead, retry
    ]  # fmt: skip


def test_of_several_topics_the_first_names_the_letter_topics_of_all(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    first, second = f"{topic}a", f"{topic}b"
    send(served, first, ["a"])
    send(served, second, ["b"])
    consumer = subscriber(
        handle=reconsuming(served), topic=None, topics=f"{first},{second}", ackMode="manual",
        includeProperties=True, enableRetry=True, maxRedeliverCount=1,
    )  # fmt: skip
    consumer.start()
    dead, retry = f"{first}-s-DLQ", f"{first}-s-RETRY"
    found = consumer.sees(4)
    eventually(lambda: len(dead_letters(served, dead)) == 2)
    assert [each.topic for each in found if each.value == "a"] == [first, retry]
    assert [each.topic for each in found if each.value == "b"] == [second, retry]
    names = {v: each["REAL_TOPIC"].split("/")[-1] for v, each in dead_letters(served, dead)}
    assert names == {"a": first, "b": second}
    assert sorted(each for each in topics(served) if each.startswith(topic)) == sorted(
        [first, second, dead, retry]
    )


def test_runs_of_available_now_reconsume_what_has_come_due_on_the_retry_topic(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["a"])
    consumer = subscriber(
        handle=reconsuming(served, "2s"), subscriptionType="Failover", ackMode="manual",
        includeProperties=True, enableRetry=True, maxRedeliverCount=1,
    )  # fmt: skip
    consumer.run()
    dead, retry = f"{topic}-s-DLQ", f"{topic}-s-RETRY"
    assert [each.topic for each in consumer.deliveries] == [topic]
    await_backlog(served, retry, 1)
    eventually(lambda: not stats(served, retry)[0].delayed, what="it has come due")
    consumer.run()
    assert [each.topic for each in consumer.deliveries] == [topic, retry]
    ((value, _),) = eventually(lambda: dead_letters(served, dead))
    assert value == "a"
    await_backlog(served, topic, 0)
    await_backlog(served, retry, 0)


def test_what_is_not_acknowledged_comes_again_after_the_ack_timeout(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["first"])
    consumer = subscriber(
        handle=acknowledging(served, "text = 'first' or redelivery_count > 0"),
        ackMode="manual", ackTimeout="1s",
    )  # fmt: skip
    consumer.start()
    consumer.sees(1)
    await_backlog(served, topic, 0)
    sent_s = time.monotonic()
    send(served, topic, ["a"])
    found = consumer.sees(2, "a")
    await_backlog(served, topic, 0)
    assert counts(found)[:2] == [("a", 0), ("a", 1)]
    assert found[1].at_s - sent_s >= 1


def test_an_ack_timeout_grows_by_its_backoff(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["first"])
    consumer = subscriber(
        handle=acknowledging(served, "text = 'first'"),
        ackMode="manual", ackTimeout="1s", ackTimeoutRedeliveryBackoff="100ms,1m,40",
    )  # fmt: skip
    consumer.start()
    consumer.sees(1)
    await_backlog(served, topic, 0)
    sent_s = time.monotonic()
    send(served, topic, ["a"])
    found = consumer.sees(3, "a")
    assert counts(found)[:3] == [("a", 0), ("a", 1), ("a", 2)]
    assert found[1].at_s - sent_s >= 1.1
    assert found[2].at_s - sent_s >= 1.1 + 5


def test_by_backoff_a_second_redelivery_waits_longer_than_the_first(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["a"])
    consumer = subscriber(
        handle=rejecting(served, 2), ackMode="manual",
        negativeAckRedeliveryBackoff="300ms,1m,10",
    )  # fmt: skip
    consumer.start()
    found = consumer.sees(3)
    assert counts(found) == [("a", 0), ("a", 1), ("a", 2)]
    first_s, second_s = gaps_s(found)
    assert first_s >= 0.3
    assert second_s >= 3


def test_a_message_rejected_too_often_becomes_a_letter_that_its_first_subscription_has(
    subscriber: MakeSubscriber, served: Path, topic: str
) -> None:
    send(served, topic, ["good", "bad"])

    def judge(batch: DataFrame, number: int) -> None:
        acknowledging(served, "text = 'good'")(batch, number)
        bad = batch.where("cast(value as string) = 'bad'")
        pulsar_spark.negative_acknowledge(bad, "s", service_url=str(served))

    consumer = subscriber(
        handle=judge, ackMode="manual", negativeAckRedeliveryDelay="100ms", maxRedeliverCount=1,
        initialSubscriptionName="look",
    )  # fmt: skip
    consumer.start()
    dead = f"{topic}-s-DLQ"
    await_backlog(served, dead, 1, "look")
    assert counts(consumer.deliveries) == [("good", 0), ("bad", 0), ("bad", 1)]
    assert backlog(served, topic) == 0
    reader = subscriber(
        "reader", topic=dead, subscriptionName="look", subscriptionInitialPosition=None,
        includeProperties=True,
    )  # fmt: skip
    ((letter,),) = reader.run()
    assert letter.value == b"bad"
    assert letter.properties["REAL_SUBSCRIPTION"] == "s"
    await_backlog(served, dead, 0, "look")


@pytest.mark.parametrize("delay", ["0", "2s"])
def test_a_run_of_available_now_takes_what_has_come_due_since_the_last(
    subscriber: MakeSubscriber, served: Path, topic: str, delay: str
) -> None:
    send(served, topic, ["a", "b"])
    consumer = subscriber(
        handle=rejecting(served, 99), ackMode="manual", negativeAckRedeliveryDelay=delay
    )
    consumer.run()
    assert counts(consumer.deliveries) == [("a", 0), ("b", 0)]
    eventually(lambda: not stats(served, topic)[0].waiting, what="they come due")
    assert backlog(served, topic) == 2
    consumer.handle = None
    consumer.run()
    assert counts(consumer.deliveries)[2:] == [("a", 1), ("b", 1)]
