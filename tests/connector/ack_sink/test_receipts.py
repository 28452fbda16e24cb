"""Acknowledging that returns when the broker has it; and all that was not acknowledged, again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pulsar_spark
from pulsar_spark import Admin
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import fold
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_writer import tell
from pulsar_spark.connector.runtime.system_topics.subscription_admin import subscriptions
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import (
    BrokerAbsentError,
    BrokerRefusedError,
    InvalidOptionError,
    TopicNotFoundError,
)
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import Run
from tests.connector.topics import numbers, options_of, send
from tests.scenarios.host import Host

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("impatient")
FULL = "persistent://public/default/t"


@pytest.fixture
def broker(root: Path) -> PlainBroker:
    return PlainBroker(root, "_broker/broker")


@pytest.fixture
def mine(root: Path, broker: PlainBroker) -> Run:
    """A consumer of subscription `s` that has had ten messages."""
    send(root, "t", numbers(0, 10))
    run = Run(
        root, topic="t", subscriptionName="s", subscriptionInitialPosition="Earliest",
        subscriptionType="Shared", consumerName="c", ackMode="manual",
    )  # fmt: skip
    assert values(run, broker) == numbers(0, 10)
    return run


def values(run: Run, broker: PlainBroker) -> list[str]:
    """By turns until neither has anything to do; what came."""
    found: list[str] = []
    while True:
        batch, before = run.next(), broker.batches
        found += [] if batch is None else batch.values
        broker.until_quiet()
        if batch is None and broker.batches == before:
            return found


def say(
    root: Path, *entries: int, application: tuple[str, int] | None = None,
    within_ms: int | None = 5_000,
) -> None:  # fmt: skip
    """Acknowledge the messages with these numbers, of the one entry that there is."""
    place = Root(str(root), {})
    tell(place, "s", [fold([rows_of(*entries)], place, "t")], application, within_ms)


def rows_of(*entries: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({
        "ledger_id": [0] * len(entries), "entry_id": [0] * len(entries),
        "batch_index": [*entries], "partition": [0] * len(entries),
    })  # fmt: skip


def backlog(root: Path) -> int:
    return sum(each.backlog for each in subscriptions(Root(str(root), {}), FULL))


@pytest.fixture
def serving(broker: PlainBroker, mine: Run) -> Iterator[PlainBroker]:
    """The broker steps in a thread, until the test is over."""
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.01):
            broker.until_quiet()

    thread = threading.Thread(target=serve)
    thread.start()
    yield broker
    over.set()
    thread.join()


def test_with_a_receipt_the_broker_has_it_when_the_call_returns(
    root: Path, serving: PlainBroker
) -> None:
    say(root, 0, 1, 2)
    assert backlog(root) == 7


def test_a_repeated_micro_batch_waits_for_what_was_said_before(
    root: Path, serving: PlainBroker
) -> None:
    say(root, 0, 1, application=("query", 1), within_ms=None)  # and is killed
    say(root, 0, 1, application=("query", 1))
    assert backlog(root) == 8


def test_without_a_broker_the_deadline_has_a_name_and_what_was_said_stands(
    root: Path, broker: PlainBroker, mine: Run
) -> None:
    for _ in range(2):
        with pytest.raises(BrokerAbsentError, match=r"did not answer within 0\.01 s.*standalone"):
            say(root, 3, application=("query", 1), within_ms=10)
    broker.until_quiet()
    assert backlog(root) == 9


def test_what_the_broker_refuses_is_an_error_with_a_receipt(
    root: Path, serving: PlainBroker
) -> None:
    place = Root(str(root), {})
    rows = pa.RecordBatch.from_pydict({
        "ledger_id": [0], "entry_id": [0], "batch_index": [0], "partition": [0],
        "ack_type": ["Cumulative"],
    })  # fmt: skip
    with pytest.raises(BrokerRefusedError, match="Cumulative acknowledgement is not"):
        tell(place, "s", [fold([rows], place, "t")], None, 5_000)


def test_a_transaction_ends_when_the_broker_has_what_it_acknowledged(
    root: Path, serving: PlainBroker
) -> None:
    commit(root, 0, 1, ack_receipt_enabled=True)
    assert backlog(root) == 8
    commit(root, 2, application="me", batch_id=1)  # and is killed
    commit(root, 2, application="me", batch_id=1, ack_receipt_enabled=True)
    assert backlog(root) == 7


def test_a_transaction_without_a_broker_is_committed_and_says_that_nobody_answered(
    root: Path, broker: PlainBroker, mine: Run
) -> None:
    with pytest.raises(BrokerAbsentError, match=r"did not answer within 0\.01 s.*standalone"):
        commit(root, 3, ack_receipt_enabled=True, operation_timeout="10ms")
    with pytest.raises(InvalidOptionError, match="operation_timeout needs ack_receipt_enabled"):
        commit(root, 4, operation_timeout="1s")
    broker.until_quiet()
    assert backlog(root) == 9


def commit(root: Path, *entries: int, **given: Any) -> None:
    """A transaction that acknowledges these, as `BatchTransaction.acknowledge` does on Spark."""
    place = Root(str(root), {})
    with pulsar_spark.transaction(service_url=str(root), **given) as txn:
        txn._acknowledged_rows["s"] = [fold([rows_of(*entries)], place, "t")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "t", "ackReceiptEnabled": True}, "needs subscriptionName"),
        ({"subscriptionName": "s", "operationTimeout": "5s"}, "needs ackReceiptEnabled true"),
        (
            {"subscriptionName": "s", "ackTimeoutTickTime": "1s", "ackMode": "manual"},
            "no more than ackTimeout",
        ),
        (
            {
                "subscriptionName": "s", "ackTimeoutTickTime": "50ms", "ackTimeout": "1s",
                "ackMode": "manual",
            },
            "takes 100ms or more",
        ),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_say_so(
    root: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        options_of(root, given=given)


# -- what was not acknowledged, again ----------------------------------------------------------


def redeliver(root: Path, topic: str, name: str, **given: Any) -> None:
    Admin(str(root)).subscriptions.redeliver_unacknowledged_messages(topic, name, **given)


@pytest.mark.parametrize("consumer", [None, "c"])
def test_what_was_not_acknowledged_comes_again_when_it_is_asked_for(
    root: Path, serving: PlainBroker, mine: Run, consumer: str | None
) -> None:
    say(root, 0, 1, 2)
    redeliver(root, "t", "s", consumer=consumer)
    again: list[dict[str, Any]] = []
    while len(again) < 7:
        batch = mine.next()
        again += [] if batch is None else batch.messages
    assert [each["value"].decode() for each in again] == numbers(3, 10)
    assert {each["redelivery_count"] for each in again} == {1}
    redeliver(root, "t", "s")
    assert [each for batch in iter(mine.next, None) for each in batch.values] == numbers(3, 10)


def test_a_client_asks_again_behind_what_others_have_asked() -> None:
    with Host() as host:
        with host.producer({"topic": "t"}) as producer:
            producer.send(b"m")
        mine = host.subscribe({
            "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
        })  # fmt: skip
        for count in range(3):
            message = mine.receive()
            assert message is not None
            assert message.redelivery_count == count
            mine.redeliver_unacknowledged_messages()
            host.run()


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"topic": "nowhere"}, TopicNotFoundError, "does not exist"),
        ({"name": "z"}, BrokerRefusedError, "has no subscription z. There is s"),
        ({"consumer": "d"}, BrokerRefusedError, "has no consumer d. There is c"),
        ({"timeout": 10}, BrokerAbsentError, "did not answer within 0.01 s"),
    ],
)
def test_asking_of_what_is_not_there_is_an_error(
    root: Path, mine: Run, given: dict[str, Any], error: type[Exception], said: str
) -> None:
    asked: dict[str, Any] = {"topic": "t", "name": "s", **given}
    with pytest.raises(error, match=said):
        redeliver(root, **asked)


def test_timeouts_come_at_steps_of_their_tick() -> None:
    with Host() as host:
        with host.producer({"topic": "t"}) as producer:
            producer.send(b"m")
        options = {
            "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
            "ackTimeout": "1s", "ackTimeoutTickTime": "700ms",
        }  # fmt: skip
        mine = host.subscribe(options)
        assert mine.receive() is not None
        host.run()
        (topic_partition,) = mine.partitions()
        (due,) = host.state(topic_partition).subscriptions["s"].consumers[mine.name].timeouts
        assert due % 700 == 0
        assert 1_000 <= due - host.state(topic_partition).now_ms < 1_700


@pytest.mark.spark
def test_acknowledge_returns_when_the_broker_has_it(
    spark: SparkSession, root: Path, serving: PlainBroker
) -> None:
    rows = spark.read.format("pulsarlite").option("topic", "t").load(str(root)).limit(4)
    how: dict[str, Any] = {"service_url": str(root), "ack_receipt_enabled": True}
    pulsar_spark.acknowledge(rows, "s", operation_timeout="20s", **how)
    assert backlog(root) == 6
    stream = spark.readStream.format("pulsarlite").option("topic", "t").load(str(root))
    with pytest.raises(InvalidOptionError, match=r"pulsar_spark\.acknowledgements"):
        pulsar_spark.acknowledge(stream, "s", **how)
