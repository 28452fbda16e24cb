"""Subscriptions as streaming sources on real Spark; the broker runs in a thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from pulsar_spark.broker.protocol.commands import Rejection, Report, Seek
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.state.broker_query import standalone
from tests.connector.plain_broker import PlainBroker
from tests.connector.spark_query import SparkQuery
from tests.connector.topics import numbers, send
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from tests.connector.conftest import MakeQuery

TYPES = ["Exclusive", "Failover", "Shared", "Key_Shared"]
ABOUT = TopicPartition("persistent://public/default/t", 0)

Consume = Callable[..., SparkQuery]


@pytest.fixture
def broker(root: Path, tmp_path: Path) -> Iterator[PlainBroker]:
    with PlainBroker(root, "_broker/broker") as running:
        yield running


@pytest.fixture
def consume(query: MakeQuery) -> Consume:
    """Makes a consumer of subscription `s` of topic `t`, from the earliest message on."""

    def make(checkpoint: str = "checkpoint", **given: object) -> SparkQuery:
        options: dict[str, object] = {
            "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"
        }  # fmt: skip
        said = {name: each for name, each in (options | given).items() if each is not None}
        return query(checkpoint, **said)

    return make


def values(rows: list[Row]) -> list[str]:
    return [row.value.decode() for row in rows]


def delivered(query: SparkQuery) -> list[str]:
    """By all micro-batches so far."""
    return [value for _, rows in sorted(query.batches.items()) for value in values(rows)]


def tell(root: Path, command: Any) -> None:
    """As another client of the broker would."""
    place = Root(str(root), {})
    SystemTopic(place, COMMANDS).append([Record.of(ABOUT, "s", command)])


@pytest.mark.parametrize("kind", TYPES)
def test_a_run_of_available_now_delivers_all_and_acknowledges_its_last_batch(
    broker: PlainBroker, consume: Consume, root: Path, kind: str
) -> None:
    send(root, "t", numbers(0, 20), columns={"key": [f"k{n % 3}" for n in range(20)]})
    first = consume(subscriptionType=kind, maxMessagesPerTrigger=8)
    assert [len(rows) for rows in first.run()] == [8, 8, 4]
    assert sorted(delivered(first), key=int) == numbers(0, 20)
    send(root, "t", numbers(20, 23))
    # A new checkpoint takes up at the subscription's own position.
    assert consume("another", subscriptionType=kind).values() == numbers(20, 23)
    assert first.values() == [], "and so does the old one"


def test_a_batch_that_was_not_committed_is_repeated_to_the_byte(
    broker: PlainBroker, consume: Consume, root: Path
) -> None:
    send(root, "t", numbers(0, 10))
    query = consume(subscriptionType="Shared", maxMessagesPerTrigger=4)
    query.fails_at = last = 2
    with pytest.raises(StreamingQueryException, match="as it was told to"):
        query.run()
    seen, query.fails_at = query.batches[last], -1
    assert values(seen) == numbers(4, 8)
    send(root, "t", numbers(10, 12))
    query.run()
    assert query.batches[last] == seen, "the same rows, columns and order"
    new = [rows for number, rows in sorted(query.batches.items()) if number > last and rows]
    assert [value for rows in new for value in values(rows)] == numbers(8, 12)


def test_a_stopped_query_goes_on_from_its_checkpoint_and_nothing_comes_again(
    broker: PlainBroker, consume: Consume, root: Path
) -> None:
    send(root, "t", numbers(0, 5))
    query = consume(subscriptionType="Shared")
    running = query.start()
    query.wait_for(set(numbers(0, 5)))
    running.stop()
    send(root, "t", numbers(5, 9))
    running = query.start()
    query.wait_for(set(numbers(0, 9)))
    running.stop()
    assert query.offsets()[-1]["subscription"] == "s"


def test_the_progress_of_each_micro_batch_tells_the_backlog_of_each_topic(
    broker: PlainBroker, consume: Consume, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(root, "t", numbers(0, 10), batchingEnabled=False)
    send(root, "u", numbers(10, 13), batchingEnabled=False)
    query = consume(topic=None, topics="t,u", maxMessagesPerTrigger=5, consumerName="c")
    keep, done = query._keep, 0

    def wait(batch: Any, number: int) -> None:
        """Until the broker knows that the micro-batch before is done."""
        nonlocal done
        keep(batch, number)
        if query.batches[number]:
            eventually(lambda: sum(_backlogs(root).values()) == 13 - done)
            done += len(query.batches[number])

    monkeypatch.setattr(query, "_keep", wait)
    running = query.start(availableNow=True)
    try:
        assert running.awaitTermination(120)
    finally:
        running.stop()
    reported = [
        (each["batchId"], json.loads(each["sources"][0]["latestOffset"]))
        for each in running.recentProgress if query.batches.get(each["batchId"])
    ]  # fmt: skip
    batches = [query.batches[number] for number, _ in reported]
    assert [len(rows) for rows in batches] == [5, 5, 3]
    # What is planned is told before the micro-batch before it is: two micro-batches back.
    left = {"t": 10, "u": 3}
    expected = [dict(left), dict(left)]
    for row in batches[0]:
        left[row.topic.split("/")[-1]] -= 1
    expected.append(left)
    full = "persistent://public/default/"
    for _, value in reported:
        for topic in value["topics"].values():
            assert topic["0"].pop("oldestBacklogMessageAgeSeconds") >= 0
    assert [value for _, value in reported] == [
        {
            "subscription": "s", "version": 1,
            "topics": {
                f"{full}t": {"0": {"backlog": each["t"], "last": "0:9"}},
                f"{full}u": {"0": {"backlog": each["u"], "last": "0:2"}},
            },
        }
        for each in expected
    ]  # fmt: skip
    assert _backlogs(root) == {f"{full}t": 0, f"{full}u": 0}
    last = query.offsets()[-1]
    assert (last["subscription"], last["consumer"]) == ("s", "c")
    assert set(last["topics"]) == {f"{full}t", f"{full}u"}


def _backlogs(root: Path) -> dict[str, int]:
    return {each.topic_partition.topic: each.backlog for each in subscriptions(Root(str(root), {}))}


def test_two_queries_share_a_subscription_and_each_message_comes_to_one(
    broker: PlainBroker, consume: Consume, root: Path
) -> None:
    send(root, "t", ["first"])
    one = consume("one", subscriptionType="Shared", consumerName="one")
    other = consume("other", subscriptionType="Shared", consumerName="other")
    running = [one.start(), other.start()]
    try:
        both = [one, other]
        eventually(lambda: all(query.checkpoint.joinpath("commits/1").exists() for query in both))
        for number in range(4):
            send(root, "t", [f"{number}-{n}" for n in range(60)], batchingMaxMessages=1)
        eventually(
            lambda: sum(len(each) for query in both for each in query.batches.values()) >= 240
        )
        seen = [
            value for query in both for rows in query.batches.values() for value in values(rows)
        ]
        assert len(set(seen)) == len(seen) == 241
        assert all(sum(map(len, query.batches.values())) for query in both), "both had some"
    finally:
        for each in running:
            each.stop()


def test_a_rejected_message_comes_again_with_its_attempt_and_count_and_so_in_a_repetition(
    broker: PlainBroker, consume: Consume, root: Path
) -> None:
    send(root, "t", numbers(0, 6))
    query = consume(
        subscriptionType="Shared", ackMode="manual", consumerName="c",
        negativeAckRedeliveryDelay="1ms",
    )  # fmt: skip
    running = query.start()
    query.fails_at = 2
    try:
        query.wait_for(set(numbers(0, 6)))
        rejected = PositionSet.of_batch((0, 0), 6, 0b000110)
        tell(root, Report("s", rejected=(Rejection(0, rejected),)))
        with pytest.raises(StreamingQueryException, match="as it was told to"):
            running.awaitTermination(120)
    finally:
        running.stop()
    again = query.batches.pop(2)
    found = [(row.value.decode(), row.attempt, row.redelivery_count) for row in again]
    assert found == [("1", 1, 1), ("2", 1, 1)]
    query.fails_at = -1
    running = query.start()
    try:
        assert eventually(lambda: query.batches.get(2)) == again, "a repetition has the same"
    finally:
        running.stop()


def test_a_seek_reaches_a_query_that_runs(
    broker: PlainBroker, consume: Consume, root: Path
) -> None:
    send(root, "t", numbers(0, 3))
    query = consume()
    running = query.start()
    try:
        query.wait_for(set(numbers(0, 3)))
        tell(root, Seek("s", EARLIEST))
        twice = sorted(numbers(0, 3) * 2)
        eventually(lambda: sorted(delivered(query)) == twice)
    finally:
        running.stop()


def test_a_key_stays_in_one_task_and_in_order(
    broker: PlainBroker, consume: Consume, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"key-{n % 50}" for n in range(30_000)]
    send(root, "t", numbers(0, 30_000), columns={"key": keys})
    query = consume(subscriptionType="Key_Shared", minPartitions=3, maxMessagesPerTrigger=30_000)
    tasks: list[list[tuple[str, int]]] = []

    def keep(batch: Any, number: int) -> None:
        from pyspark.sql.functions import spark_partition_id

        rows = batch.select("key", "value", spark_partition_id().alias("task")).collect()
        numbers_ = sorted({row.task for row in rows})
        tasks.extend([(r.key, int(r.value)) for r in rows if r.task == n] for n in numbers_)

    monkeypatch.setattr(query, "_keep", keep)
    query.run()
    assert len(tasks) == 3
    owners = {key: {n for n, rows in enumerate(tasks) if (key in dict(rows))} for key in set(keys)}
    assert all(len(each) == 1 for each in owners.values())
    for rows in tasks:
        for key in dict(rows):
            mine = [value for each, value in rows if each == key]
            assert mine == sorted(mine)
    assert sum(map(len, tasks)) == 30_000


def test_available_now_without_a_broker_says_what_to_start(consume: Consume, root: Path) -> None:
    send(root, "t", ["a"])
    with pytest.raises(StreamingQueryException, match=r"BROKER_ABSENT.*pulsarlite standalone"):
        consume(drainTimeout="500ms").run()


def test_a_second_consumer_of_an_exclusive_subscription_is_refused(
    broker: PlainBroker, consume: Consume, root: Path
) -> None:
    send(root, "t", ["a"])
    first = consume("one")
    running = first.start()
    try:
        first.wait_for({"a"})
        with pytest.raises(StreamingQueryException, match=r"CONSUMER_BUSY.*ConsumerBusy"):
            consume("two").run()
        with pytest.raises(StreamingQueryException, match="Subscription is of different type"):
            consume("three", subscriptionType="Shared").run()
        assert running.isActive
    finally:
        running.stop()


def test_an_older_run_under_the_same_name_stops_with_an_error(
    broker: PlainBroker, consume: Consume, root: Path
) -> None:
    send(root, "t", ["a"])
    first = consume("one", consumerName="c")
    running = first.start()
    first.wait_for({"a"})
    newer = consume("two", consumerName="c").start()
    try:
        with pytest.raises(StreamingQueryException, match=r"CONSUMER_REPLACED.*newer run"):
            running.awaitTermination(120)
        assert newer.isActive
    finally:
        newer.stop()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingOffsets": "earliest"}, "startingOffsets is a Reader's"),
        (
            {"subscriptionType": "shared", "keySharedMode": "STICKY"},
            "needs subscriptionType",
        ),
        ({"ackTimeout": "5s"}, "ackTimeout needs ackMode manual"),
        ({"subscriptionName": " "}, "subscriptionName can't be"),
        ({"topic": "nowhere", "allowAutoTopicCreation": False}, "TOPIC_NOT_FOUND"),
    ],
)
def test_bad_input_is_an_error_when_the_frame_is_made(
    consume: Consume, root: Path, given: dict[str, object], text: str
) -> None:
    send(root, "t", ["a"])
    with pytest.raises(AnalysisException, match=text):
        consume(**given).frame()


def test_the_broker_query_serves_consumers_of_the_same_session(
    spark: SparkSession, consume: Consume, root: Path
) -> None:
    send(root, "t", numbers(0, 9), numPartitions=2)
    with standalone(spark, str(root)):
        query = consume(subscriptionType="Shared")
        running = query.start()
        try:
            query.wait_for(set(numbers(0, 9)), 150)  # a broker's first micro-batch takes long
            send(root, "t", numbers(9, 14))
            query.wait_for(set(numbers(0, 14)), 60)
        finally:
            running.stop()
        repeated = consume(subscriptionType="Shared").values()
        assert set(repeated) <= set(numbers(9, 14)), "at most what `stop` has cut off"
        assert consume("another", subscriptionType="Shared").values() == [], "all is acknowledged"
