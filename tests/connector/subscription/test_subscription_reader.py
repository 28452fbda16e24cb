"""The consumer's source, driven as Spark drives it; the broker steps when the test says so."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    LeaseLapsed,
    Rejection,
    Report,
    Subscribe,
)
from pulsar_spark.broker.protocol.policies import DeadLetterPolicy
from pulsar_spark.connector.runtime.consuming import consumer_run, subscription_client
from pulsar_spark.connector.runtime.reading import micro_batch
from pulsar_spark.connector.runtime.system_topics.lease import HEARTBEAT_PATH
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.errors import (
    BrokerAbsentError,
    BrokerRefusedError,
    ConsumerBusyError,
    ConsumerReplacedError,
    DataLossError,
    InvalidOptionError,
    StorageError,
)
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import Batch, Run
from tests.connector.topics import ledger_of, numbers, send, trim

FULL = "persistent://public/default/"
ABOUT = TopicPartition(f"{FULL}t", 0)

pytestmark = pytest.mark.usefixtures("impatient")

Consume = Callable[..., Run]


@pytest.fixture
def broker(root: Path, tmp_path: Path) -> PlainBroker:
    return PlainBroker(root, "_broker/broker")


@pytest.fixture
def consume(root: Path) -> Consume:
    def make(**given: Any) -> Run:
        names = {"topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest"}
        if given.keys() & {"topics", "topicsPattern"}:
            del names["topic"]
        return Run(root, **(names | {"subscriptionType": "Shared"} | given))

    return make


def turns(run: Run, broker: PlainBroker, most: int = 20) -> list[Batch]:
    """The consumer and the broker by turns, until neither has anything to do; its micro-batches."""
    batches = []
    for _ in range(most):
        batch = run.next()
        if batch is not None:
            batches.append(batch)
        before = broker.batches
        broker.until_quiet()
        if batch is None and broker.batches == before:
            return batches
    raise AssertionError("it does not come to rest")


def values(batches: list[Batch]) -> list[str]:
    return [value for batch in batches for value in batch.values]


def said(root: Path, kind: type) -> list[Any]:
    """All commands of that kind so far."""
    commands = SystemTopic(Root(str(root), {}), COMMANDS)
    commands.refresh()
    items = [stored.record.item() for stored in commands.read(0)]
    return [item for item in items if isinstance(item, kind)]


def tell(root: Path, command: Any) -> None:
    commands = SystemTopic(Root(str(root), {}), COMMANDS)
    commands.append([Record.of(ABOUT, "s", command)])


# -- acknowledging -------------------------------------------------------------------------------


def test_the_name_is_in_the_offset_before_anybody_hears_of_it(consume: Consume, root: Path) -> None:
    send(root, "t", ["a"])
    run = consume()
    batch = run.next()
    assert batch is not None
    assert batch.end["subscription"] == "s"
    assert batch.end["consumer"].startswith("s-")
    assert not SystemTopic(Root(str(root), {}), COMMANDS).exists()
    run.next()
    again = consume(start=run.offset)
    again.next()
    names = {command.consumer for command in said(root, Subscribe)}
    assert names == {batch.end["consumer"]}
    first, second = said(root, Subscribe)
    assert second.incarnation > first.incarnation


def test_what_is_delivered_is_reported_before_and_acknowledged_after(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 4))
    run = consume()
    run.next()
    run.next()
    broker.until_quiet()
    batch = run.planned()
    assert batch is not None
    (report,) = said(root, Report)
    assert report.delivered[0].count(ledger_of(root, "t").ledgers(0)) == 4
    assert not report.acknowledged.contains((0, 0))
    run.commit(batch)
    assert run.next() is None
    assert said(root, Report)[-1].acknowledged.contains((0, 0))


def test_a_check_that_failed_is_made_again(
    consume: Consume, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(root, "t", ["a"])
    reader = consume(start={}, enableRetry=True).reader
    with monkeypatch.context() as broken:

        def create(_self: LocalStore, _path: str, _data: bytes, **_: Any) -> bool:
            raise StorageError("the disk is full")

        broken.setattr(LocalStore, "create", create)
        for _ in range(2):
            with pytest.raises(StorageError, match="the disk is full"):
                reader.initialOffset()
    reader.initialOffset()
    assert ledger_of(root, "t-s-RETRY").state.partitions == 1


def test_an_idle_consumer_writes_nothing(consume: Consume, broker: PlainBroker, root: Path) -> None:
    send(root, "t", numbers(0, 4))
    run = consume()
    turns(run, broker)
    before = len(said(root, object))
    for _ in range(5):
        assert run.next() is None
    assert len(said(root, object)) == before


def test_offsets_do_not_grow_with_what_was_delivered(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    run, sizes = None, []
    for run_once in range(12):
        send(root, "t", numbers(0, 40), batchingMaxMessages=7)
        run = run or consume(maxMessagesPerTrigger=16)
        assert values(turns(run, broker)) == numbers(0, 40)
        sizes.append(len(json.dumps(run.offset)))
        assert run_once < 2 or sizes[-1] <= sizes[1] + 20, sizes


def test_manual_acknowledgement_never_acknowledges_by_itself(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 4))
    run = consume(ackMode="manual")
    assert values(turns(run, broker)) == numbers(0, 4)
    assert all(not report.acknowledged.contains((0, 0)) for report in said(root, Report))
    assert values(turns(consume(ackMode="manual", start=run.offset), broker)) == []


# -- the end of an AvailableNow run --------------------------------------------------------------


def test_an_available_now_run_closes_its_consumer_with_its_last_report(
    consume: Consume, root: Path, tmp_path: Path
) -> None:
    send(root, "t", numbers(0, 9))
    with PlainBroker(root, "_broker/b"):
        run = consume(available_now=True, maxMessagesPerTrigger=4)
        send(root, "t", ["later"])
        assert run.values() == numbers(0, 9), "what came after its start is the next run's"
        assert len(said(root, CloseConsumer)) == 1
        assert consume(start=run.offset, available_now=True).values() == ["later"]
    assert not list((root / "_leases").iterdir()), "and takes its lease with it"


def test_an_available_now_run_delivers_a_rejected_message_to_the_next_run(
    consume: Consume, root: Path, tmp_path: Path
) -> None:
    send(root, "t", ["a", "b"])
    given = {"ackMode": "manual", "available_now": True, "negativeAckRedeliveryDelay": "0ms"}
    with PlainBroker(root, "_broker/broker"):
        run = consume(**given)
        found: list[str] = []
        while (batch := run.next()) is not None:
            found += batch.values
            reject(root, batch)
        assert found == ["a", "b"]
        again = consume(start=run.offset, **given)
        assert again.values() == ["a", "b"]


def reject(root: Path, batch: Batch) -> None:
    """As a sink does."""
    for message in batch.messages:
        one = PositionSet.of([(message["ledger_id"], message["entry_id"])])
        tell(root, Report("s", epoch=None, rejected=(Rejection(None, one, 0),)))


def test_an_available_now_run_over_no_topic_ends_at_once(consume: Consume, root: Path) -> None:
    assert consume(topicsPattern="nothing-.*", available_now=True).values() == []


def test_an_available_now_run_without_broker_names_the_command_to_start_one(
    consume: Consume, root: Path
) -> None:
    send(root, "t", ["a"])
    with pytest.raises(BrokerAbsentError, match="pulsarlite standalone --service-url"):
        consume(available_now=True, drainTimeout="100ms").values()


# -- who it is -----------------------------------------------------------------------------------


def test_a_consumer_that_was_given_up_takes_up_from_the_broker_s_view(
    consume: Consume, broker: PlainBroker, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(root, "t", numbers(0, 3))
    run = consume(consumerName="c")
    assert values(turns(run, broker)) == numbers(0, 3)
    (first,) = said(root, Subscribe)
    tell(root, LeaseLapsed("s", "c", first.incarnation))
    broker.until_quiet()
    send(root, "t", numbers(3, 5))
    with caplog.at_level(logging.WARNING):
        assert values(turns(run, broker)) == numbers(3, 5)
    assert "subscribes again" in caplog.text
    assert said(root, Subscribe)[-1].incarnation > first.incarnation


def test_a_non_durable_consumer_that_comes_back_late_goes_on_where_it_was(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    given = {"subscriptionMode": "NonDurable", "consumerName": "c"}
    send(root, "t", numbers(0, 3), batchingMaxMessages=1)
    run = consume(**given)
    assert values(turns(run, broker)) == numbers(0, 3)
    send(root, "t", ["3"])
    assert values(turns(run, broker)) == ["3"]
    tell(root, LeaseLapsed("s", "c", said(root, Subscribe)[-1].incarnation))
    broker.until_quiet()
    send(root, "t", ["4"])
    late = consume(start=run.offset, subscriptionInitialPosition="Latest", **given)
    assert set(values(turns(late, broker))) >= {"4"}, "Latest would pass over it"


def test_an_older_run_learns_that_a_newer_one_has_its_name(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 3))
    older = consume(consumerName="c")
    turns(older, broker)
    newer = consume(consumerName="c")
    newer.next()
    newer.next()
    broker.until_quiet()
    with pytest.raises(ConsumerReplacedError, match="consumer c of subscription s"):
        older.next()
    send(root, "t", ["next"])
    assert values(turns(newer, broker)) == ["next"]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"subscriptionType": "Exclusive"}, ConsumerBusyError, "ConsumerBusy: Subscription is of"),
        ({"subscriptionMode": "NonDurable"}, BrokerRefusedError, "NotAllowedError: Durable subscr"),
    ],
)
def test_a_refusal_names_pulsar_s_error(
    consume: Consume, broker: PlainBroker, root: Path,
    given: dict[str, Any], error: type[Exception], text: str,
) -> None:  # fmt: skip
    send(root, "t", ["a"])
    turns(consume(), broker)
    with pytest.raises(error, match=text):
        turns(consume(**given), broker)


def test_a_consumer_that_is_refused_on_one_topic_leaves_the_others_to_the_next(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    for topic in "tu":
        send(root, topic, [topic])
    one = {"subscriptionType": "Exclusive"}
    assert values(turns(consume(topic="t", **one), broker)) == ["t"]
    with pytest.raises(ConsumerBusyError, match=r"on .*/t-partition-0"):
        turns(consume(topics="t,u", **one), broker)
    assert values(turns(consume(topic="u", **one), broker)) == ["u"]


def test_a_consumer_that_is_refused_later_has_acknowledged_what_its_query_has_committed(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    one = {"subscriptionType": "Exclusive"}
    send(root, "t", ["a"])
    both = consume(topicsPattern="t|u", topicDiscoveryInterval="1ms", **one)
    assert values(turns(both, broker)) == ["a"]
    send(root, "u", ["u"])
    assert values(turns(consume(topic="u", **one), broker)) == ["u"]
    assert both.next() is None, "it finds u, and subscribes"
    send(root, "t", ["b"])
    batch = both.next()
    assert batch is not None
    assert batch.values == ["b"]
    broker.until_quiet()
    with pytest.raises(ConsumerBusyError, match=r"on .*/u-partition-0"):
        both.next()
    assert values(turns(consume(**one), broker)) == []


def test_a_consumer_that_is_refused_has_not_acknowledged_what_was_withheld(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    one = {"subscriptionType": "Exclusive"}
    given = {**one, "topicsPattern": "t|u", "maxBatchAttempts": 1, "maxRedeliverCount": 5}
    send(root, "u", ["u"])
    assert values(turns(consume(topic="u", **one), broker)) == ["u"]
    send(root, "t", ["a"])
    first = consume(**{**given, "topicsPattern": "t"})
    assert values(turns(first, broker)) == ["a"]
    send(root, "t", ["b"])
    batch = first.planned()
    assert batch is not None
    assert [each["value"] for each in first.read(batch)] == [b"b"]  # and it dies of that
    again = consume(start=batch.start, **given)
    assert again.read(batch) == [], "withheld"
    again.offset = batch.end  # Spark says that it is committed when the next one is planned
    broker.until_quiet()
    with pytest.raises(ConsumerBusyError, match=r"on .*/u-partition-0"):
        again.next()
    assert values(turns(consume(topic="t", **one), broker)) == ["b"]


@pytest.mark.parametrize("given", [{"subscriptionName": "other"}, {"consumerName": "other"}])
def test_a_checkpoint_of_somebody_else_is_refused(
    consume: Consume, root: Path, given: dict[str, Any]
) -> None:
    send(root, "t", ["a"])
    run = consume(consumerName="c")
    run.next()
    with pytest.raises(InvalidOptionError, match="new checkpoint"):
        consume(start=run.offset, **given).next()
    with pytest.raises(InvalidOptionError, match="subscription s"):
        Run(root, topic="t", start=run.offset).next()
    reader = Run(root, topic="t")
    reader.next()
    with pytest.raises(InvalidOptionError, match="is of a Reader"):
        consume(start=reader.offset).next()


# -- hearing -------------------------------------------------------------------------------------


def test_a_consumer_that_was_too_far_behind_the_broker_asks_again(
    consume: Consume, broker: PlainBroker, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(root, "t", ["a"])
    run = consume()
    assert values(turns(run, broker)) == ["a"]
    send(root, "t", ["b"])
    broker.until_quiet()
    dispatch = SystemTopic(Root(str(root), {}), DISPATCH)
    last = dispatch.refresh()
    LedgerStore(dispatch.open()).trim({0: last})
    with caplog.at_level(logging.WARNING):
        assert values(turns(run, broker)) == ["b"]
    assert "too far behind" in caplog.text


def test_a_waiting_consumer_says_for_what(
    consume: Consume, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_client, "WARN_AFTER_S", 0.0)
    send(root, "t", ["a"])
    run = consume()
    run.next()
    with caplog.at_level(logging.WARNING):
        run.next()
    assert "waits for the broker" in caplog.text
    assert "pulsarlite standalone --service-url" in caplog.text


def test_a_consumer_waits_in_silence_for_a_broker_that_is_busy_and_shows_life(
    consume: Consume, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_client, "WARN_AFTER_S", 0.0)
    send(root, "t", ["a"])
    run, store = consume(), Root(str(root), {}).store
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            store.touch(HEARTBEAT_PATH, b"")
            os.utime(root / HEARTBEAT_PATH, (number, number))
            run.next()
        assert "waits for the broker" not in caplog.text
        run.next()
    assert "waits for the broker" in caplog.text, "it shows life no more"


def test_an_open_grant_is_read_on_while_no_broker_runs(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", ["a"])
    run = consume(subscriptionType="Failover")
    assert values(turns(run, broker)) == ["a"]
    send(root, "t", ["b"])
    batch = run.next()
    assert batch is not None
    assert batch.values == ["b"]


def test_new_partitions_and_topics_are_subscribed(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t-1", ["a"])
    run = consume(topicsPattern="t-.*", topicDiscoveryInterval="0ms")
    assert values(turns(run, broker)) == ["a"]
    ledger_of(root, "t-1").grow(2)
    send(root, "t-1-partition-1", ["b"])
    send(root, "t-2", ["c"])
    assert sorted(values(turns(run, broker))) == ["b", "c"]
    assert len(said(root, Subscribe)) == 3


def test_what_comes_later_is_read_from_its_beginning_though_a_new_subscription_begins_at_the_end(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    latest = {"subscriptionInitialPosition": "Latest", "topicDiscoveryInterval": "0ms"}
    send(root, "t-1", ["before"])
    run = consume(topicsPattern="t-.*", **latest)
    assert values(turns(run, broker)) == []
    ledger_of(root, "t-1").grow(2)
    send(root, "t-1-partition-1", ["a"])
    send(root, "t-2", ["b"])
    assert sorted(values(turns(run, broker))) == ["a", "b"]
    run.reader.stop()
    send(root, "t-3", ["c"])
    again = consume(topicsPattern="t-.*", start=run.offset, **latest)
    assert values(turns(again, broker)) == ["c"]
    none = consume(topicsPattern="u-.*", **latest)
    assert values(turns(none, broker)) == []
    send(root, "u-1", ["d"])
    assert values(turns(none, broker)) == ["d"]


@pytest.mark.parametrize("retry", [None, "later"])
def test_letters_are_called_after_the_first_topic_wherever_the_message_came_from(
    consume: Consume, broker: PlainBroker, root: Path, retry: str | None
) -> None:
    for topic in ("t", "u"):
        send(root, topic, [topic])
    given = {} if retry is None else {"retryLetterTopic": retry}
    run = consume(topics="t,u", enableRetry=True, **given)
    assert sorted(values(turns(run, broker))) == ["t", "u"]
    policies = [command.options.dead_letter_policy for command in said(root, Subscribe)]
    name = FULL + (retry or "t-s-RETRY")
    assert policies == [DeadLetterPolicy(16, f"{FULL}t-s-DLQ", name)] * 3


def test_the_retry_letter_topic_is_made_and_read_too(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", ["a"])
    run = consume(enableRetry=True)
    assert values(turns(run, broker)) == ["a"]
    send(root, "t-s-RETRY", ["again"])
    assert values(turns(run, broker)) == ["again"]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Key_Shared"])
def test_the_retry_letter_topic_is_always_shared(
    consume: Consume, broker: PlainBroker, root: Path, kind: str
) -> None:
    send(root, "t", ["a"])
    run = consume(enableRetry=True, subscriptionType=kind)
    assert values(turns(run, broker)) == ["a"]
    assert [command.subscription_type.value for command in said(root, Subscribe)] == [
        kind, "Shared"
    ]  # fmt: skip


def test_several_partitions_share_the_receiver_queue(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t-partition-0", ["a"], numPartitions=8)
    run = consume(maxMessagesPerTrigger=100)
    turns(run, broker)
    assert {command.permits for command in said(root, Subscribe)} == {100}


@pytest.mark.parametrize("consumers", [1, 2])
def test_a_key_shared_consumer_takes_the_share_of_tasks_that_it_has_of_the_messages(
    consume: Consume, broker: PlainBroker, root: Path, monkeypatch: pytest.MonkeyPatch,
    consumers: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(micro_batch, "ROWS_WORTH_SPLITTING", 100)
    send(root, "t", ["first"], columns={"key": ["key-0"]})
    given = {"subscriptionType": "Key_Shared", "maxMessagesPerTrigger": 3_000}
    runs = [consume(**given) for _ in range(consumers)]
    for run in runs:
        turns(run, broker)
    keys = [f"key-{number % 500}" for number in range(3_000)]
    send(root, "t", numbers(0, 3_000), columns={"key": keys})
    broker.until_quiet()
    batches = [run.next() for run in runs]
    seen = []
    for batch in batches:
        assert batch is not None
        seen += batch.values
        assert batch.tasks == round(4 * len(batch.values) / 3_000)
    assert sorted(seen, key=int) == numbers(0, 3_000)


# -- data loss -----------------------------------------------------------------------------------


def test_messages_that_were_trimmed_before_they_were_read_are_a_loss(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    for value in "abc":
        send(root, "t", [value])
    run = consume()
    run.next()
    run.next()
    broker.until_quiet()
    trim(root, "t", 2)
    with pytest.raises(DataLossError, match=r"up to 1:0 of .*t-partition-0"):
        run.next()
    patient = consume(start=run.offset, failOnDataLoss=False)
    assert values(turns(patient, broker)) == ["c"]
    assert turns(patient, broker) == []


def test_a_repeated_batch_of_which_a_part_was_trimmed_is_a_loss(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    for value in "ab":
        send(root, "t", [value])
    run = consume()
    run.next()
    run.next()
    broker.until_quiet()
    batch = run.planned()
    assert batch is not None
    trim(root, "t", 1)
    with pytest.raises(DataLossError):
        consume(start=batch.start).read(batch)
    assert [m["value"] for m in consume(start=batch.start, failOnDataLoss=False).read(batch)] == [
        b"b"
    ]


def test_the_floor_alone_is_reported_now_and_then(
    consume: Consume, broker: PlainBroker, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_run, "FLOOR_EVERY_S", 0.0)
    send(root, "t", ["a"])
    run = consume()
    turns(run, broker)
    assert str(said(root, Report)[-1].committed) == "0:0"


def test_a_shared_consumer_that_says_no_number_leaves_work_to_who_comes_later(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 5_000), batchingMaxMessages=100)
    first = consume(consumerName="first")
    assert first.next() is not None  # named
    first.next()
    broker.until_quiet()
    second = consume(consumerName="second")
    for _ in range(2):
        second.next()
    broker.until_quiet()
    batches = [run.next() for run in (first, second)]
    assert [len(each.values) for each in batches if each] == [1_000, 1_000]


def test_alone_it_takes_more_with_each_micro_batch_until_it_has_all(
    consume: Consume, broker: PlainBroker, root: Path
) -> None:
    send(root, "t", numbers(0, 20_000))
    found = [len(each.messages) for each in turns(consume(consumerName="c"), broker, 100)]
    assert sum(found) == 20_000
    assert max(found) > 5_000


@pytest.mark.parametrize(
    ("given", "permits"),
    [
        ({}, 2_000),
        ({"maxMessagesPerTrigger": 10}, 20),
        ({"receiverQueueSize": 7}, 7),
        ({"minMessagesPerTrigger": 5_000}, 10_000),
        ({"subscriptionType": "Exclusive"}, 1_000_000),
    ],
)
def test_what_it_may_hold_follows_from_its_options(
    consume: Consume, root: Path, given: dict[str, Any], permits: int
) -> None:
    send(root, "t", "a")
    run = consume(consumerName="c", **given)
    run.next()
    run.next()
    assert [each.permits for each in said(root, Subscribe)] == [permits]
