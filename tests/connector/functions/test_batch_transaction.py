"""`pulsar_spark.transaction`: what a block publishes and acknowledges takes effect together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pulsar_spark
from pulsar_spark.broker.protocol.commands import (
    InitialPosition,
    Report,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import ConsumerOptions, DeadLetterPolicy
from pulsar_spark.broker.protocol.ready import Stepped
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.publishing.publishing import commit_as_one
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_decisions import TransactionDecisions
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError
from pulsar_spark.log.transaction_attempt import Transaction, TxnStatus
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Scope
from pulsar_spark.testing import ManualClock
from tests.connector.reading import Run
from tests.connector.topics import (
    files_below,
    ledger_of,
    numbers,
    options_of,
    send,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ABOUT = TopicPartition("persistent://public/default/t", 0)


class Died(BaseException):
    """Stands for a process that is gone."""


def values(root: Path | str, topic: str) -> list[str]:
    return Run(root, topic=topic, startingOffsets="earliest").values()


def said(root: Path) -> list[Any]:
    commands = SystemTopic(Root(str(root), {}), COMMANDS)
    stop = commands.refresh()
    return [each.record.item() for each in commands.read(0, stop)] if stop else []


def acknowledged(root: Path) -> list[PositionSet]:
    """What each report acknowledges, one by one."""
    return [
        each.acknowledged.individually_deleted for each in said(root) if isinstance(each, Report)
    ]


def messages(*entries: int) -> PositionSet:
    return PositionSet.of((0, entry) for entry in entries)


def backlog(root: Path | str, of: TopicPartition = ABOUT) -> int:
    dispatch = SystemTopic(Root(str(root), {}), DISPATCH)
    stop = dispatch.refresh()
    found = dispatch.read(0, stop, keep=lambda _, name: not name.startswith("\x00"))
    stepped = [
        item
        for each in found
        if each.record.topic_partition == of and isinstance(item := each.record.item(), Stepped)
    ]
    return int(dict(stepped[-1].backlogs)["s"])


def subscribe(root: Path | str, **options: Any) -> None:
    command = Subscribe(
        "s", "c", 1, SubscriptionType.SHARED, initial_position=InitialPosition.EARLIEST,
        permits=100, options=ConsumerOptions(**options),
    )  # fmt: skip
    SystemTopic(Root(str(root), {}), COMMANDS).append([Record.of(ABOUT, "s", command)])


def publish_and_acknowledge(root: Path, batch: int = 0) -> None:
    """One micro-batch: a result, and its source acknowledged."""
    options = options_of(root, Scope.WRITE, {"topic": "results"})
    report = Report("s", epoch=None, acknowledged=Cursor(individually_deleted=messages(batch)))
    records = [Record.of(ABOUT, "s", report)]
    tasks = written(options, [f"result{batch}"])
    commit_as_one(Root.of(options), tasks, records, ("query", batch), 60_000)


def test_a_dead_sink_does_not_stop_the_broker(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Root(str(root), {})
    send(root, "t", numbers(0, 4), batchingEnabled=False)
    subscribe(root)
    loop = EmbeddedBroker(place, "_broker/broker")
    loop.until_quiet()
    assert backlog(root) == 4

    def dying(*_: object) -> TxnStatus:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(TransactionDecisions, "commit", dying)
        patch.setattr(TransactionDecisions, "abort", lambda *_: TxnStatus.OPEN)
        with pytest.raises(Died):
            publish_and_acknowledge(root)
    assert values(root, "results") == []
    loop.until_quiet()
    assert backlog(root) == 3
    assert values(root, "results") == ["result0"]
    publish_and_acknowledge(root)
    loop.until_quiet()
    assert (backlog(root), values(root, "results")) == (3, ["result0"])


def test_a_transaction_that_is_open_on_one_topic_holds_the_broker_up_for_none(
    place: Root, clock: ManualClock
) -> None:
    root = place.service_url
    for value in numbers(0, 3):
        send(root, "t", [value])
    send(root, "other", ["x"])
    subscribe(root)
    loop = EmbeddedBroker(place, "_broker/broker")
    loop.until_quiet()
    options = options_of(root, Scope.WRITE, {"topic": "t"})
    timeout_ms = 60_000
    open_ = Transaction.of(("query", 0), "a try", timeout_ms)
    (topic,) = written(options, ["open"])
    Root.of(options).open(TopicName.parse("t")).append(topic.ledgers, transaction=open_)
    done = PositionSet.of([(0, 0), (1, 0)])
    report = Report("s", "c", 1, acknowledged=Cursor().acknowledge(done), permits=100)
    command = Subscribe("s", "c", 1, initial_position=InitialPosition.EARLIEST, permits=100)
    topic_partition = ABOUT._replace(topic="persistent://public/default/other")
    commands = SystemTopic(place, COMMANDS)
    commands.append([Record.of(ABOUT, "s", report), Record.of(topic_partition, "s", command)])
    begun_ms = clock.wall_ms()
    loop.until_quiet()
    assert clock.wall_ms() < begun_ms + timeout_ms, "the broker waited for the transaction"
    assert (backlog(root), backlog(root, topic_partition)) == (1, 1)
    clock.advance(timeout_ms)
    assert len(ledger_of(root, "t").ledgers(0)) == 3, "they are trimmed with the next ones"


def test_the_broker_waits_less_than_others_where_it_publishes_letters(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(root, "letters", ["first"])
    options = options_of(root, Scope.WRITE, {"topic": "letters"})
    (topic,) = written(options, ["prepared"])
    open_ = Transaction.of(("query", 0), "a try", 3_600_000)
    ledger_of(root, "letters").append(topic.ledgers, transaction=open_)
    monkeypatch.setattr(managed_ledger, "BROKERS_PATIENCE_MS", 0)
    (topic,) = written(options, ["letter"])
    ledger_of(root, "letters").append(topic.ledgers, is_brokers=True)
    assert values(root, "letters") == ["first", "letter"]


def test_a_sink_that_died_earlier_has_told_the_broker_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ManagedLedger.append

    def dying(self: ManagedLedger, *args: Any, **named: Any) -> Any:
        if self.topic == str(COMMANDS):
            raise Died
        return real(self, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(ManagedLedger, "append", dying)
        patch.setattr(TransactionDecisions, "abort", lambda *_: TxnStatus.OPEN)
        with pytest.raises(Died):
            publish_and_acknowledge(root)
    assert (said(root), values(root, "results")) == ([], [])
    publish_and_acknowledge(root)
    assert (acknowledged(root), values(root, "results")) == ([messages(0)], ["result0"])


# -- on Spark --------------------------------------------------------------------------------------


def read(spark: SparkSession, root: Path, *, stream: bool = False, **given: str) -> DataFrame:
    reader: Any = spark.readStream if stream else spark.read
    options = {"topic": "t", "startingOffsets": "earliest", **given}
    frame: DataFrame = reader.format("pulsarlite").options(serviceUrl=str(root), **options).load()
    return frame


def test_foreach_batch_publishes_and_acknowledges_once(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    send(root, "t", numbers(0, 8), batchingEnabled=False)

    def twice(batch: DataFrame, batch_id: int) -> None:
        for reported in (0, 2):
            with pulsar_spark.transaction(batch_id=batch_id, service_url=str(root)) as txn:
                txn.write(batch.selectExpr("value"), topic="results")
                txn.write(batch.selectExpr("value", "'other' as topic"))
                txn.write(batch.where("entry_id = 1").selectExpr("value"), topic="results")
                txn.acknowledge(batch.where("entry_id > 2"), "s")
                txn.acknowledge_cumulative(batch.where("entry_id = 2"), "s2")
                assert len(said(root)) == reported

    writer = read(spark, root, stream=True).writeStream.foreachBatch(twice)
    writer = writer.option("checkpointLocation", str(tmp_path / "c"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(values(root, "results")) == sorted([*numbers(0, 8), "1"])
    assert sorted(values(root, "other")) == numbers(0, 8)
    first, second = said(root)
    assert first.acknowledged.individually_deleted == messages(3, 4, 5, 6, 7)
    assert second.acknowledged.mark_delete_position == Position(0, 2)


def test_a_block_that_fails_shows_nothing(spark: SparkSession, root: Path) -> None:
    send(root, "t", numbers(0, 3), batchingEnabled=False)
    frame = read(spark, root)

    def fail() -> None:
        with pulsar_spark.transaction(service_url=str(root)) as txn:
            txn.write(frame.selectExpr("value"), topic="results")
            txn.acknowledge(frame, "s")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (values(root, "results"), said(root)) == ([], [])


def test_what_is_rejected_and_reconsumed_later_is_so_with_the_rest_or_not_at_all(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Root(str(root), {})
    send(root, "t", numbers(0, 4), batchingEnabled=False)
    subscribe(root, dead_letter_policy=DeadLetterPolicy(3, retry_letter_topic="t-s-RETRY"))
    loop = EmbeddedBroker(place, "_broker/broker")
    loop.until_quiet()
    frame = read(spark, root, includeProperties="true")

    def work(fails: bool) -> None:
        with pulsar_spark.transaction(service_url=str(root)) as txn:
            txn.write(frame.where("entry_id = 0").selectExpr("value"), topic="results")
            txn.acknowledge(frame.where("entry_id = 0"), "s")
            txn.negative_acknowledge(frame.where("entry_id = 1"), "s", delay="1m")
            later = frame.where("entry_id > 1")
            txn.reconsume_later(later, "s", "1s", properties={"why": "busy"}, topic="t")
            assert len(said(root)) == 1
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work(fails=True)
    loop.until_quiet()
    assert (len(said(root)), backlog(root), values(root, "results")) == (1, 4, [])
    work(fails=False)
    report = said(root)[-1]
    assert report.acknowledged.individually_deleted == messages(0)
    ((rejected,), (later,)) = report.rejected, report.reconsume_later
    assert (rejected.messages, rejected.delay_ms) == (messages(1), 60_000)
    assert (later.messages, later.delay_ms, later.reconsume_times) == (messages(2, 3), 1000, 0)
    loop.until_quiet()
    assert (backlog(root), values(root, "results")) == (1, ["0"])
    assert values(root, "t-s-RETRY") == ["2", "3"]


def test_bad_input_is_refused_and_nothing_is_stored(spark: SparkSession, root: Path) -> None:
    send(root, "t", numbers(0, 3), batchingEnabled=False)
    frame, stream = read(spark, root), read(spark, root, stream=True)
    rows = frame.selectExpr("value")
    before = files_below(root)
    begin = pulsar_spark.transaction
    with pytest.raises(InvalidOptionError, match="application needs batch_id"):
        begin(application="me", service_url=str(root))
    with pytest.raises(InvalidOptionError, match="batch_id is a whole number"):
        begin(batch_id=-1, service_url=str(root))
    with pytest.raises(InvalidOptionError, match="transactionTimeout"):
        begin(transaction_timeout="soon", service_url=str(root))
    with pytest.raises(InvalidOptionError, match="not open"):
        begin(service_url=str(root)).write(rows, topic="results")
    with begin(service_url=str(root)) as txn:
        for name in ("accessMode", "txnAppId"):
            with pytest.raises(InvalidOptionError, match=f"Option.* {name}|{name}"):
                txn.write(rows, topic="x", options={name: "Exclusive"})
        with pytest.raises(InvalidOptionError, match="Which topic"):
            txn.write(rows)
        with pytest.raises(InvalidOptionError, match="takes batch DataFrames"):
            txn.write(stream, topic="results")
        with pytest.raises(InvalidMessageError, match="no column ledger_id"):
            txn.acknowledge(rows, "s")
        with pytest.raises(InvalidMessageError, match="no column properties"):
            txn.reconsume_later(frame, "s", "1s")
        with pytest.raises(InvalidOptionError, match="A delay can't be 'soon'"):
            txn.negative_acknowledge(frame, "s", delay="soon")
    with pytest.raises(InvalidOptionError, match="not open"):
        txn.negative_acknowledge(frame, "s")
    with (
        pytest.raises(InvalidOptionError, match="give application="),
        begin(batch_id=1, service_url=str(root)) as txn,
    ):
        txn.write(rows, topic="results")
    assert files_below(root) == before
