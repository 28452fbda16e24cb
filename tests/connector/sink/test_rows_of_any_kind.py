"""Rows of a sink, with nulls wherever they may be: each arrives, once, as it was sent."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from pulsar_spark.broker.protocol.policies import DeadLetterPolicy
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.publishing.message_writer import write_messages
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.runtime.topics.transaction_commit import begin
from pulsar_spark.connector.storage.data_files.ledger_file import COMPRESSION_TYPES
from pulsar_spark.options.options import Scope
from tests.connector.ack_sink.test_acknowledging import ids, subscribe, write
from tests.connector.plain_broker import PlainBroker
from tests.connector.reading import messages
from tests.connector.topics import ledger_of, options_of, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]

_TIME = pa.timestamp("us", "UTC")
_MOMENT = dt.datetime(2026, 1, 31, tzinfo=ZoneInfo("UTC"))
COLUMNS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "key": (pa.string(), ["k", "", "schlüssel"]),
    "ordering_key": (pa.binary(), [b"o", b"", b"\xff"]),
    "properties": (pa.map_(pa.string(), pa.string()), [[("a", "b")], [], [("a", None)]]),
    "event_time": (_TIME, [_MOMENT]),
    "deliver_at": (_TIME, [_MOMENT, _MOMENT + dt.timedelta(days=1)]),
    "topic": (pa.string(), ["t", "u", "t-partition-0"]),
    "producer_name": (pa.string(), ["p", "q"]),
    "sequence_id": (pa.int64(), [0, 1 << 62]),
    "value": (pa.binary(), [b"", b"v", b"12345678" * 4]),
}
"""Column of a sink -> its type, and values beside null."""


@st.composite
def tasks(draw: st.DrawFn) -> list[list[list[Row]]]:
    """Tasks, their Arrow batches, and their rows; a batch has a column, in part, or has it not."""
    names = [*draw(st.sets(st.sampled_from(sorted(COLUMNS)))), "value"]
    batches: list[list[list[Row]]] = []
    for _ in range(draw(st.integers(1, 2))):
        batches.append([])
        for _ in range(draw(st.integers(1, 3))):
            nulls = draw(st.sets(st.sampled_from(names)))
            missing = draw(st.sets(st.sampled_from(names))) - {"value"}
            row = st.fixed_dictionaries(
                {
                    name: st.none()
                    if name in nulls
                    else st.one_of(st.none(), st.sampled_from(COLUMNS[name][1]))
                    for name in sorted(set(names) - missing)
                }
            )
            batches[-1].append(draw(st.lists(row, max_size=6)))
    return batches


@st.composite
def sinks(draw: st.DrawFn) -> dict[str, object]:
    """Options of a sink."""
    given: dict[str, object] = {
        "topic": "t",
        "numPartitions": draw(st.sampled_from([1, 3])),
        "compressionType": draw(st.sampled_from(COMPRESSION_TYPES)),
        "transactional": draw(st.booleans()),
    }
    if draw(st.booleans()):
        given |= {"producerName": "mine", "enableDeduplication": False}
    kind = draw(st.sampled_from(["batched", "key based", "single", "chunked"]))
    if kind == "key based":
        given["batcherBuilder"] = "KEY_BASED"
    elif kind != "batched":
        given["batchingEnabled"] = False
    if kind == "chunked":
        given |= {"chunkingEnabled": True, "chunkMaxMessageSize": 10}
    return given


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    names = sorted(rows[0]) if rows else ["value"]
    columns = {name: pa.array([row[name] for row in rows], COLUMNS[name][0]) for name in names}
    return pa.record_batch(columns)


def published(
    root: str, given: Mapping[str, object], sent: Sequence[Sequence[Sequence[Row]]]
) -> None:
    """What the tasks of one job write, committed as a sink does."""
    options = options_of(root, Scope.WRITE, given)
    place = Root.of(options)
    written = [
        topic
        for task in sent
        for topic in write_messages([batch_of(rows) for rows in task], options, place)
    ]
    transaction = begin(place.store, None, 60_000) if options["transactional"] else None
    publish(place, written, None, transaction=transaction)


def topic_of(row: Row) -> str:
    return str(row.get("topic") or "t").removesuffix("-partition-0")


def expected(row: Row, given: Mapping[str, object]) -> Row:
    known = dict.fromkeys(COLUMNS) | row
    known["producer_name"] = known["producer_name"] or given.get("producerName")
    del known["topic"]
    return known


def seen(message: Row) -> Row:
    return {name: message[name] for name in COLUMNS if name != "topic"}


def in_any_order(rows: Sequence[Row]) -> list[str]:
    return sorted(repr([(name, plain(row[name])) for name in sorted(row)]) for row in rows)


def plain(value: Any) -> Any:
    """A time as text: UTC is of several classes."""
    return value.isoformat() if isinstance(value, dt.datetime) else value


def check_read(root: str, sent: Sequence[Row], given: Mapping[str, object]) -> None:
    for topic in {topic_of(row) for row in sent}:
        requested = [expected(row, given) for row in sent if topic_of(row) == topic]
        found = [seen(each) for each in messages(Path(root), topic)]
        assert in_any_order(found) == in_any_order(requested)


@settings(max_examples=40, deadline=None)
@given(sent=tasks(), given=sinks())
@example(
    sent=[[[{"key": None, "value": b"a"}], [{"key": "k", "value": b"b"}]]], given={"topic": "t"}
)
@example(
    sent=[[[{"value": b"a", "deliver_at": _MOMENT}], [{"key": "k", "value": b"b"}]]],
    given={"topic": "t", "numPartitions": 3},
)
def test_rows_arrive_whatever_is_null_or_missing_in_whichever_batch(
    sent: list[list[list[Row]]], given: dict[str, object]
) -> None:
    rows = [row for task in sent for batch in task for row in batch]
    with tempfile.TemporaryDirectory() as root:
        published(root, given, sent)
        check_read(root, rows, given)


@settings(max_examples=40, deadline=None)
@given(first=tasks(), second=tasks(), given=sinks())
def test_what_tidy_has_copied_is_what_was_sent(
    first: list[list[list[Row]]], second: list[list[list[Row]]], given: dict[str, object]
) -> None:
    rows = [row for sent in (first, second) for task in sent for batch in task for row in batch]
    with tempfile.TemporaryDirectory() as root:
        for sent in (first, second):
            published(root, given, sent)
        for topic in {topic_of(row) for row in rows}:
            LedgerStore(ledger_of(root, topic)).merge_small_files()
        check_read(root, rows, given)


@settings(max_examples=40, deadline=None)
@given(sent=tasks(), given=sinks())
def test_what_compaction_has_copied_is_the_latest_of_each_key(
    sent: list[list[list[Row]]], given: dict[str, object]
) -> None:
    given = {**given, "numPartitions": 1}
    rows = [row for task in sent for batch in task for row in batch if topic_of(row) == "t"]
    with tempfile.TemporaryDirectory() as root:
        published(root, given, sent)
        if not rows:
            return
        stored = [seen(each) for each in messages(Path(root))]
        latest = {each["key"]: each for each in stored if each["key"] is not None}
        kept = [each for each in latest.values() if each["value"]]
        note(f"stored {stored}")
        compact(ledger_of(root, "t"))
        found = [seen(each) for each in messages(Path(root), readCompacted=True)]
        assert in_any_order(found) == in_any_order(kept)


@pytest.mark.parametrize("keys", [["k", None], [None, "k"]])
def test_dead_letters_of_one_step_may_differ_in_what_they_have(
    root: Path, keys: list[str | None]
) -> None:
    place = Root(str(root), {})
    for key in keys:
        send(root, "t", ["v"], columns={"key": pa.array([key], pa.string())})
    subscribe(place, dead_letter_policy=DeadLetterPolicy(1))
    broker = PlainBroker(root, "_broker/c")
    broker.until_quiet()
    rejected = ids(0, 0) | {"ledger_id": [0, 1], "ack_type": ["DeadLetter"] * 2}
    write(place, rejected)
    broker.until_quiet()
    assert [letter["key"] for letter in messages(root, "t-s-DLQ")] == keys


@pytest.mark.spark
@pytest.mark.parametrize("keyed", ["last", "others"])
def test_spark_writes_a_column_that_is_null_in_one_of_its_batches(
    spark: SparkSession, root: Path, keyed: str
) -> None:
    rows = 10_001  # One more than Spark gives in a batch.
    heartbeat = "=" if keyed == "last" else "!="
    frame = spark.range(0, rows, 1, 1).selectExpr(
        "cast(id as string) as value", f"if(id {heartbeat} {rows - 1}, 'k', null) as key"
    )
    writer = frame.write.format("pulsarlite").option("topic", "t").mode("append")
    writer.save(str(root))
    found = messages(root)
    assert [int(each["value"]) for each in found] == list(range(rows))
    has_key = [each["key"] == "k" for each in found]
    assert has_key == [(number == rows - 1) == (keyed == "last") for number in range(rows)]
