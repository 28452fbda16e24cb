"""The sinks that acknowledge, with the broker in a loop; and the functions that write to them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import pulsar_spark
from pulsar_spark.broker.protocol.commands import (
    InitialPosition,
    ReconsumeLater,
    Rejection,
    Report,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import ConsumerOptions, DeadLetterPolicy
from pulsar_spark.broker.protocol.ready import Grant, Stepped
from pulsar_spark.broker.subscriptions.dead_letter import LONGEST_ERROR
from pulsar_spark.connector.runtime.acknowledging import acknowledgment_writer
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import (
    MOST_ERRORS,
    OTHER_ERRORS,
    fold,
)
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.acknowledgment_sink import AcknowledgmentSink
from pulsar_spark.connector.spark.data_source import PulsarliteDataSource
from pulsar_spark.connector.spark.stream_writer import (
    PulsarliteStreamWriter,
    PulsarliteWriter,
    TaskDone,
)
from pulsar_spark.errors import (
    BrokerRefusedError,
    InvalidCursorPositionError,
    InvalidMessageError,
    InvalidOptionError,
    PulsarliteError,
    TopicNotFoundError,
)
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from tests.connector.reading import Run
from tests.connector.topics import maps, numbers, options_of, send, trim
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FULL = "persistent://public/default/t"
ABOUT = TopicPartition(FULL, 0)
Columns = Mapping[str, Sequence[Any] | pa.Array]


@pytest.fixture
def place(root: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    return Root(str(root), {})


def batch_of(columns: Columns) -> pa.RecordBatch:
    return pa.record_batch(
        {
            name: each if isinstance(each, pa.Array) else pa.array(each)
            for name, each in columns.items()
        }
    )


def write(place: Root, columns: Columns, tasks: int = 1, **given: object) -> None:
    """As Spark writes a DataFrame: the rows dealt out to tasks, then the commit."""
    options = options_of(place.service_url, given={"topic": "t", "subscriptionName": "s", **given})
    batch = batch_of(columns)
    sink = AcknowledgmentSink(options, place, from_arrow_schema(batch.schema))
    writer = PulsarliteWriter(sink)
    messages = []
    for number in range(tasks):
        part = batch.take(pa.array(np.arange(number, batch.num_rows, tasks)))
        messages.append(pickle.loads(pickle.dumps(writer.write(iter([part])))))
    writer.commit(messages)


def ids(*entries: int, ledger_id: int = 0, **more: Sequence[Any] | pa.Array) -> dict[str, Any]:
    count = len(entries)
    return {"ledger_id": [ledger_id] * count, "entry_id": list(entries),
            "partition": [0] * count, **more}  # fmt: skip


def said(place: Root) -> list[tuple[TopicPartition, Any]]:
    commands = SystemTopic(place, COMMANDS)
    stop = commands.refresh()
    return [(each.record.topic_partition, each.record.item()) for each in commands.read(0, stop)]


def reported(place: Root, kind: type) -> list[Any]:
    dispatch = SystemTopic(place, DISPATCH)
    stop = dispatch.refresh()
    found = dispatch.read(0, stop, keep=lambda _, name: not name.startswith("\x00"))
    return [item for each in found if isinstance(item := each.record.item(), kind)]


def backlog(place: Root) -> int:
    return int(dict(reported(place, Stepped)[-1].backlogs)["s"])


def subscribe(place: Root, kind: SubscriptionType = SubscriptionType.SHARED, **o: Any) -> None:
    command = Subscribe(
        "s", "c", 1, kind, initial_position=InitialPosition.EARLIEST, permits=10_000,
        options=ConsumerOptions(**o),
    )  # fmt: skip
    SystemTopic(place, COMMANDS).append([Record.of(ABOUT, "s", command)])


def messages(*entries: int, ledger_id: int = 0) -> PositionSet:
    return PositionSet.of((ledger_id, entry) for entry in entries)


# -- what rows become ------------------------------------------------------------------------------


def test_rows_become_one_report_a_topic_partition_in_one_commit(place: Root) -> None:
    send(place.service_url, "t", "abc", batchingEnabled=False)
    send(place.service_url, "u", "ab", batchingEnabled=False)
    write(place, ids(0, 2, 1, 0, topic=[None, "t", "u", "u"]), tasks=2)
    assert SystemTopic(place, COMMANDS).refresh() == 1
    (first, report), (second, other) = said(place)
    assert (first.topic, second.topic) == (FULL, "persistent://public/default/u")
    assert report == Report("s", epoch=None, acknowledged=report.acknowledged)
    assert report.acknowledged.individually_deleted == messages(0, 2)
    assert other.acknowledged.individually_deleted == messages(0, 1)


def test_batch_indexes_get_their_batch_sizes_from_the_topics_log(place: Root) -> None:
    send(place.service_url, "t", numbers(0, 25), batchingMaxMessages=10)
    indexes = pa.array([3, -1, None, 4, 4, 0, 9], pa.int32())
    write(place, ids(0, 1, 1, 2, 0, 0, 0, batch_index=indexes), tasks=3)
    ((_, report),) = said(place)
    found = report.acknowledged.individually_deleted
    expected = PositionSet.of_batch((0, 0), 10, 1 << 3 | 1 << 4 | 1 | 1 << 9)
    expected = expected.union(messages(1)).union(PositionSet.of_batch((0, 2), 5, 1 << 4))
    assert found == expected


def test_every_type_and_detail_goes_to_the_broker_as_it_was_given(place: Root) -> None:
    send(place.service_url, "t", numbers(0, 9), batchingEnabled=False)
    columns = ids(
        *range(9),
        ack_type=["negative", "NEGATIVE", "Negative", "Negative", "reconsumelater",
                  "ReconsumeLater", "individual", None, "CUMULATIVE"],
        attempt=pa.array([2, 2, None, 0, 1, 1, 5, 5, 5], pa.int32()),
        delay_ms=pa.array([None, None, 700, None, 5000, None, 3, 3, 3], pa.int64()),
        reconsume_times=pa.array([None, None, None, None, 2, None, 7, 7, 7]),
        properties=maps([{"a": "1"}, {"a": "1"}, None, {}, {"b": "2", "c": None}, {"a": "1"},
                         {"x": "y"}, {"x": "y"}, {"x": "y"}]),
        error=["boom", "boom", "boom", None, None, None, "no", "no", "no"],
    )  # fmt: skip
    write(place, columns, tasks=2)
    (_, cumulative), (_, report) = said(place)
    up_to = Cursor(Position(0, 8))
    assert cumulative == Report("s", epoch=None, acknowledged_attempts={5: up_to})
    assert report.acknowledged_attempts == {5: Cursor().acknowledge(messages(6, 7))}
    rejected = {str(each.messages): each for each in report.rejected}
    assert rejected == {
        "0:0-1": Rejection(2, messages(0, 1), None, (("a", "1"), ("ERROR", "boom"))),
        "0:2": Rejection(None, messages(2), 700, (("ERROR", "boom"),)),
        "0:3": Rejection(0, messages(3)),
    }
    later = {str(each.messages): each for each in report.reconsume_later}
    assert later == {
        "0:4": ReconsumeLater(1, messages(4), 5000, 2, (("b", "2"),)),
        "0:5": ReconsumeLater(1, messages(5), 0, 0, (("a", "1"),)),
    }


@pytest.mark.parametrize(
    "delays",
    [
        pa.array(["5s", "100", None]),
        pa.array([5_000, 100, None], pa.int32()),
        pa.array([5_000_000, 100_000, None], pa.duration("us")),
    ],
)
def test_a_delay_is_a_text_an_interval_or_milliseconds(place: Root, delays: pa.Array) -> None:
    send(place.service_url, "t", "abc", batchingEnabled=False)
    kinds = ["Negative", "Negative", "DeadLetter"]
    write(place, ids(0, 1, 2, ack_type=kinds, delay=delays, error=[None, None, "hopeless"]))
    ((_, report),) = said(place)
    assert sorted(report.rejected, key=lambda each: str(each.messages)) == [
        Rejection(None, messages(0), 5_000),
        Rejection(None, messages(1), 100),
        Rejection(None, messages(2), None, (("ERROR", "hopeless"),), to_dead_letter=True),
    ]


def test_of_many_different_errors_the_last_keep_their_kind_alone(place: Root) -> None:
    send(place.service_url, "t", numbers(0, MOST_ERRORS + 9), batchingEnabled=False)
    count = MOST_ERRORS + 9
    texts = [f"ValueError: {number}" for number in range(count)]
    write(place, ids(*range(count), ack_type=["Negative"] * count, error=texts))
    ((_, report),) = said(place)
    assert len(report.rejected) == MOST_ERRORS + 1
    assert report.rejected[-1].properties == (("ERROR", "ValueError"),)
    assert report.rejected[-1].messages == messages(*range(MOST_ERRORS, count))


def test_errors_that_name_their_message_make_no_rejection_each(place: Root) -> None:
    count = 3 * MOST_ERRORS
    send(place.service_url, "t", numbers(0, count), batchingEnabled=False)
    texts = [f"row {number} failed" + "!" * 5_000 for number in range(count)]
    write(place, ids(*range(count), ack_type=["Negative"] * count, error=texts))
    ((_, report),) = said(place)
    assert len(report.rejected) == 2 * MOST_ERRORS + 1
    assert report.rejected[-1].properties == (("ERROR", OTHER_ERRORS),)
    assert {len(each.properties[0][1]) for each in report.rejected[:-1]} == {LONGEST_ERROR}
    everything = PositionSet.union_of(each.messages for each in report.rejected)
    assert everything == messages(*range(count))


def test_of_cumulative_acknowledgements_the_furthest_counts_up_to_its_batch_index(
    place: Root,
) -> None:
    send(place.service_url, "t", numbers(0, 20), batchingMaxMessages=10)
    columns = ids(0, 1, 1, 0, ack_type=["Cumulative"] * 4, batch_index=[-1, 2, 6, 9])
    write(place, columns, tasks=2)
    ((_, command),) = said(place)
    up_to = Cursor().acknowledge_cumulative(Position(0, 1), 6, 10)
    assert command == Report("s", epoch=None, acknowledged=up_to)
    write(place, ids(1, ack_type=["Cumulative"], batch_index=[9]))
    assert said(place)[1][1].acknowledged == Cursor(Position(0, 1))


def test_a_micro_batch_without_rows_tells_nothing(place: Root) -> None:
    send(place.service_url, "t", "a")
    write(place, {name: pa.array([], pa.int64()) for name in ("ledger_id", "entry_id")})
    assert not SystemTopic(place, COMMANDS).exists()


def test_many_rows_in_any_order_are_folded_without_looking_at_each(place: Root) -> None:
    send(place.service_url, "t", numbers(0, 5_000), batchingEnabled=False, numPartitions=3)
    options = options_of(place.service_url, given={"topic": "t"})
    read = Run(place.service_url, topic="t", startingOffsets="earliest").all()
    found = [message for batch in read for message in batch.messages]
    order = np.random.default_rng(1).permutation(len(found))
    batch = batch_of(
        {
            name: np.array([each[name] for each in found])[order]
            for name in ("ledger_id", "entry_id", "partition", "batch_index")
        }
    )
    folded = fold([batch.slice(0, 1234), batch.slice(1234)], place, options["topic"])
    counted = {topic_partition.partition: len(list(each.individual[None].entries()))
               for topic_partition, each in folded.items()}  # fmt: skip
    assert sorted(counted) == [0, 1, 2]
    assert sum(counted.values()) == 5_000


def test_a_task_takes_rows_of_what_was_published_since_its_process_looked(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.store, "remote", True)
    send(place.service_url, "t", "a")
    write(place, ids(0))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getpid", lambda: 1)
        send(place.service_url, "t", "b")
    write(place, ids(0, ledger_id=1))
    assert [each.acknowledged.contains(Position(1, 0)) for _, each in said(place)] == [False, True]


# -- what can't be right ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        (ids(3), InvalidCursorPositionError, "0:3 .* never published: .* entries are 0 to 2"),
        (ids(-1), InvalidCursorPositionError, "0:-1 .* never published"),
        (ids(0, ledger_id=9), InvalidCursorPositionError, "9:0 .*: there is no such ledger"),
        (ids(0, batch_index=[1]), InvalidCursorPositionError, "has 1 messages, .* batch index 1"),
        (ids(0, 1, topic=["t", "nowhere"]), TopicNotFoundError, "nowhere does not exist"),
        ({"ledger_id": [0], "entry_id": [0], "partition": [1]}, InvalidCursorPositionError,
         "partition 1 of topic .*, which has 1"),
        (ids(0, topic=["t-partition-1"]), InvalidCursorPositionError, "another partition, 0"),
        ({"ledger_id": pa.array([None], pa.int64()), "entry_id": [0]}, InvalidMessageError,
         "ledger_id is null in 1 rows of 1"),
        ({"ledger_id": [0]}, InvalidMessageError, "no column entry_id"),
        (ids(0, ack_type=["maybe"]), InvalidMessageError, "ack_type has 'maybe', and takes"),
        (ids(0, ack_type=[1]), InvalidMessageError, "ack_type is bigint and has to be string"),
        (ids(0, delay_ms=[-5]), InvalidMessageError, "delay_ms has values below 0"),
        (ids(0, delay_ms=[2**53]), InvalidMessageError, "above 100 years"),
        (ids(0, delay=["soon"]), InvalidMessageError, "no duration, .*: soon"),
        (ids(0, delay=[-5]), InvalidMessageError, "delay has values below 0"),
        (ids(0, delay=[5], delay_ms=[5]), InvalidMessageError, "mean the same: give one"),
        (ids(0, atempt=[1]), InvalidMessageError, "Did you mean attempt"),
        (ids(0, value=[b"x"]), InvalidMessageError, "value is none of an acknowledgement's"),
    ],
)  # fmt: skip
def test_what_can_not_be_right_is_an_error_and_nothing_is_stored(
    place: Root, columns: Columns, error: type[PulsarliteError], text: str
) -> None:
    send(place.service_url, "t", "abc", batchingEnabled=False)
    with pytest.raises(error, match=text):
        write(place, columns)
    assert not SystemTopic(place, COMMANDS).exists()


def test_options_of_publishing_and_a_missing_topic_are_refused(place: Root) -> None:
    send(place.service_url, "t", "a")
    with pytest.raises(InvalidOptionError, match="numPartitions has no meaning here"):
        write(place, ids(0), numPartitions=2)
    options = options_of(place.service_url, given={"subscriptionName": "s"})
    schema = from_arrow_schema(batch_of(ids(0)).schema)
    with pytest.raises(InvalidOptionError, match="Messages of which topic"):
        AcknowledgmentSink(options, place, schema)
    source = PulsarliteDataSource({"serviceUrl": place.service_url, "subscriptionName": "s"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(InvalidOptionError, match="only ever appended"):
            writer(schema, overwrite=True)
    with pytest.raises(InvalidMessageError, match="Some rows name no topic"):
        fold([batch_of(ids(0, topic=pa.array([None], pa.string())))], place, None)


def test_messages_whose_ledger_was_trimmed_are_done_with(place: Root) -> None:
    for value in "ab":
        send(place.service_url, "t", value)
    trim(place.service_url, "t", 1)
    columns = {"ledger_id": [0, 1], "entry_id": [0, 0], "partition": [0, 0]}
    write(place, columns)
    ((_, report),) = said(place)
    assert report.acknowledged.individually_deleted == messages(0, ledger_id=1)


# -- once ------------------------------------------------------------------------------------------


def test_a_repeated_micro_batch_or_write_is_told_once(place: Root, caplog: Any) -> None:
    send(place.service_url, "t", "ab", batchingEnabled=False)
    options = options_of(place.service_url, given={"topic": "t", "subscriptionName": "s"})
    rows = batch_of(ids(0))
    schema = from_arrow_schema(rows.schema)
    sink = AcknowledgmentSink(options, place, schema)
    writer = PulsarliteStreamWriter(sink)
    task = replace(writer.write(iter([rows])), query_id="query")
    for number in (0, 0, 1, 1, 0):
        writer.commit([task, None], number)
    assert len(said(place)) == 2
    for version in (5, 5, 6):
        write(place, ids(1), txnAppId="me", txnVersion=version)
    assert len(said(place)) == 4
    assert caplog.text.count("is taken for a repetition") == 4
    with pytest.raises(InvalidOptionError, match="did not say which query"):
        writer.commit([replace(task, query_id=None)], 2)
    writer.commit([TaskDone({})], 3)
    writer.abort([], 3)


# -- with the broker -------------------------------------------------------------------------------


def test_what_a_sink_acknowledges_is_acknowledged(place: Root, tmp_path: Path) -> None:
    send(place.service_url, "t", numbers(0, 30), batchingMaxMessages=10)
    subscribe(place)
    loop = EmbeddedBroker(place, "_broker/c")
    loop.until_quiet()
    write(place, ids(0, 1, 1, batch_index=[-1, 0, 9]))
    loop.until_quiet()
    assert backlog(place) == 18


def test_a_sink_acknowledges_cumulatively_within_a_batch(place: Root, tmp_path: Path) -> None:
    send(place.service_url, "t", numbers(0, 30), batchingMaxMessages=10)
    subscribe(place, SubscriptionType.FAILOVER)
    loop = EmbeddedBroker(place, "_broker/c")
    loop.until_quiet()
    write(place, ids(1, ack_type=["Cumulative"], batch_index=[4]))
    loop.until_quiet()
    assert backlog(place) == 15


@pytest.mark.parametrize(
    ("name", "kind", "reported"),
    [
        ("s", "Cumulative", r"which is Shared: .* Nothing was acknowledged"),
        ("ss", "Individual", r"no subscription ss\. Did you mean s\? Nothing"),
        ("other", "Individual", r"no subscription other\. There is s\."),
    ],
)
def test_what_a_topic_has_not_or_a_subscription_does_not_allow_is_refused(
    place: Root,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
    reported: str,
) -> None:
    monkeypatch.setattr(acknowledgment_writer, "KNOWN_WITHIN_S", 0.0)
    send(place.service_url, "t", "ab", batchingEnabled=False)
    subscribe(place)
    EmbeddedBroker(place, "_broker/c").until_quiet()
    before = len(said(place))
    with pytest.raises(BrokerRefusedError, match=reported):
        write(place, ids(0, 1, ack_type=["Individual", kind]), subscriptionName=name)
    assert len(said(place)) == before


def test_a_rejected_message_comes_again_and_its_error_is_in_its_dead_letter(
    place: Root, tmp_path: Path
) -> None:
    send(place.service_url, "t", "ab", batchingEnabled=False)
    subscribe(place, dead_letter_policy=DeadLetterPolicy(1))
    loop = EmbeddedBroker(place, "_broker/c")
    loop.until_quiet()
    write(place, ids(1, ack_type=["Negative"], delay_ms=[200], error=["first"]))
    loop.until_quiet()
    eventually(
        lambda: loop.run_once() or reported(place, Grant)[1:], what="the rejected message comes due"
    )
    loop.until_quiet()
    assert [(each.attempt, each.messages) for each in reported(place, Grant)][1:] == [
        (1, messages(1))
    ]
    late = ids(1, ack_type=["Negative"], attempt=[0], delay_ms=[0], error=["late"])
    write(place, late)
    write(place, ids(1, ack_type=["Negative"], attempt=[1], error=["second"]))
    loop.until_quiet()
    dead = Run(place.service_url, topic="t-s-DLQ", startingOffsets="earliest",
               includeProperties="true").all()  # fmt: skip
    ((letter,),) = [each.messages for each in dead]
    assert letter["value"] == b"b"
    assert dict(letter["properties"])["ERROR"] == "second"
    assert backlog(place) == 1


def test_messages_to_reconsume_later_go_to_the_retry_letter_topic(
    place: Root, tmp_path: Path
) -> None:
    send(place.service_url, "t", "ab", batchingEnabled=False)
    subscribe(place, dead_letter_policy=DeadLetterPolicy(3, retry_letter_topic="t-s-RETRY"))
    loop = EmbeddedBroker(place, "_broker/c")
    loop.until_quiet()
    columns = ids(0, 1, ack_type=["ReconsumeLater"] * 2, delay_ms=[1000, 1000],
                  reconsume_times=[0, 3], properties=maps([{"why": "busy"}] * 2))  # fmt: skip
    write(place, columns)
    loop.until_quiet()
    for topic, value, times in (("t-s-RETRY", b"a", "1"), ("t-s-DLQ", b"b", "4")):
        read = Run(place.service_url, topic=topic, startingOffsets="earliest",
                   includeProperties="true").all()  # fmt: skip
        ((letter,),) = [each.messages for each in read]
        assert letter["value"] == value
        properties = dict(letter["properties"])
        assert (properties["RECONSUMETIMES"], properties["why"]) == (times, "busy")
    assert backlog(place) == 0


# -- on Spark --------------------------------------------------------------------------------------


def read(spark: SparkSession, root: Path, *, stream: bool = False) -> DataFrame:
    reader: Any = spark.readStream if stream else spark.read
    options = {"topic": "t", "startingOffsets": "earliest", "includeProperties": "true"}
    frame: DataFrame = reader.format("pulsarlite").options(serviceUrl=str(root), **options).load()
    return frame


def test_dataframes_are_acknowledged_rejected_and_reconsumed(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Root(str(root), {})
    send(root, "t", numbers(0, 12), batchingMaxMessages=4,
         columns={"properties": maps([{"RECONSUMETIMES": "2"}] * 12)})  # fmt: skip
    frame = read(spark, root)
    pulsar_spark.acknowledge(frame.where("entry_id = 0"), "s", service_url=str(root))
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    for _ in range(2):
        pulsar_spark.acknowledge_cumulative(
            frame.where("entry_id < 2"), "s", batch_id=7, application="me"
        )
    rejected = frame.where("batch_index = 3").selectExpr("*", "5 as attempt").drop("topic")
    pulsar_spark.negative_acknowledge(rejected, "s", delay="2s", topic="t")
    pulsar_spark.reconsume_later(frame.where("entry_id = 2"), "s", 1500, properties={"why": "x"})
    (_, first), (_, second), (_, third), (_, fourth) = said(place)
    assert first.acknowledged.individually_deleted == messages(0)
    assert second.acknowledged == Cursor(Position(0, 1))
    fourths = PositionSet.from_arrays(*(np.array(each) for each in (
        [0] * 3, [0, 1, 2], [3] * 3, [4] * 3)))  # fmt: skip
    assert third.rejected == (Rejection(5, fourths, 2000),)
    assert fourth.reconsume_later == (ReconsumeLater(None, messages(2), 1500, 2, (("why", "x"),)),)


def test_what_a_stream_acknowledges_and_what_foreach_batch_does_is_told_once(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    place = Root(str(root), {})
    send(root, "t", numbers(0, 8), batchingMaxMessages=4)
    rows = pulsar_spark.acknowledgements(read(spark, root, stream=True))
    options = {"checkpointLocation": str(tmp_path / "a"), "subscriptionName": "s",
               "serviceUrl": str(root)}  # fmt: skip
    query = rows.writeStream.format("pulsarlite").options(**options)
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert [each.acknowledged.individually_deleted for _, each in said(place)] == [messages(0, 1)]

    def twice(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            pulsar_spark.negative_acknowledge(batch, "s", service_url=str(root), batch_id=batch_id)

    writer = read(spark, root, stream=True).writeStream.foreachBatch(twice)
    writer = writer.option("checkpointLocation", str(tmp_path / "b"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert [each.rejected for _, each in said(place)[1:]] == [(Rejection(None, messages(0, 1)),)]


def test_what_a_dataframe_lacks_is_said(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULSARLITE_SERVICE_URL", raising=False)
    send(root, "t", "a")
    frame, stream = read(spark, root), read(spark, root, stream=True)
    with pytest.raises(InvalidMessageError, match="no column ledger_id"):
        pulsar_spark.acknowledge(frame.drop("ledger_id"), "s")
    with pytest.raises(InvalidMessageError, match="no column topic"):
        pulsar_spark.acknowledge(frame.drop("topic"), "s")
    with pytest.raises(InvalidMessageError, match="no column properties"):
        pulsar_spark.reconsume_later(frame.drop("properties"), "s", "1s")
    with pytest.raises(InvalidOptionError, match="application needs batch_id"):
        pulsar_spark.acknowledge(frame, "s", application="me")
    with pytest.raises(InvalidOptionError, match="give application="):
        pulsar_spark.acknowledge(frame, "s", batch_id=1, service_url=str(root))
    with pytest.raises(InvalidOptionError, match=r"its own query.*acknowledgements"):
        pulsar_spark.acknowledge(stream, "s", batch_id=1)
    with pytest.raises(InvalidOptionError, match="No ack_type 'Negativ': there is Individual"):
        pulsar_spark.acknowledgements(stream, "Negativ")
    with pytest.raises(InvalidOptionError, match="ReconsumeLater needs a delay"):
        pulsar_spark.acknowledgements(stream, "ReconsumeLater")
    for wrong in ("soon", -1):
        with pytest.raises(InvalidOptionError, match="A delay can't be"):
            pulsar_spark.negative_acknowledge(frame, "s", delay=wrong)
    with pytest.raises(Exception, match="serviceUrl is missing"):
        pulsar_spark.acknowledge(frame, "s")
