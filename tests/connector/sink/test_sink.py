"""The sink's tasks and commits, driven as Spark drives them: routing, entries, exactly once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from pulsar_spark import Admin
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import fold
from pulsar_spark.connector.runtime.publishing.publishing import publish
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.stream_writer import MessageSink
from pulsar_spark.errors import (
    DeliveryDelayTooLongError,
    InvalidMessageError,
    InvalidTopicNameError,
)
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.options import Options, Scope
from tests.connector.reading import entries, messages
from tests.connector.topics import files_below, ledger_of, maps, options_of, send, written

pytestmark = pytest.mark.usefixtures("impatient")

TIMES = pa.timestamp("us", tz="UTC")
VALUE = StructType().add("value", "string")


def values(root: Path, topic: str = "t") -> list[str]:
    return [message["value"].decode() for message in messages(root, topic)]


# -- system topics -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["__mine", "pulsar/system/__commands", "__mine-partition-0"])
def test_a_system_topic_is_refused_before_anything_is_stored(root: Path, topic: str) -> None:
    with pytest.raises(InvalidTopicNameError, match="is a system topic, and can't be written"):
        send(root, topic, ["a"])
    options = options_of(root, Scope.WRITE, {"topic": topic})
    with pytest.raises(InvalidTopicNameError, match="is a system topic"):
        MessageSink(options, Root.of(options), VALUE)
    assert not files_below(root)


def test_a_row_for_a_system_topic_fails_its_whole_batch(root: Path) -> None:
    with pytest.raises(InvalidTopicNameError, match="is a system topic"):
        send(root, "t", ["a", "b"], columns={"topic": ["t", "__mine"]})
    assert not files_below(root)


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "__mine"},
        {"topics": "t,pulsar/system/__commands"},
        {"topic": "t", "deadLetterTopic": "__letters"},
        {"topic": "t", "retryLetterTopic": "__letters", "enableRetry": "true"},
    ],
)
def test_a_subscription_names_no_system_topic(root: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidTopicNameError, match="is a system topic"):
        options_of(root, Scope.STREAM_READ, {"subscriptionName": "s", **given})


def test_an_acknowledgement_of_a_system_topic_is_refused(root: Path) -> None:
    topics = Root(str(root), {})
    SystemTopic(topics, COMMANDS).append([Record(TopicPartition("t", 0), "s", b"{}")])
    ids = {"ledger_id": [0], "entry_id": [0], "topic": [str(COMMANDS)]}
    with pytest.raises(InvalidTopicNameError, match="is a system topic"):
        fold([pa.record_batch(ids)], topics, None)


# -- entries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, [1000, 500]),
        ({"batchingMaxMessages": 600}, [600, 600, 300]),
        ({"batchingMaxBytes": 4000}, [400, 400, 400, 300]),
        ({"batchingMaxBytes": 5}, [1] * 1500),
        ({"batchingEnabled": False}, [1] * 1500),
    ],
)
def test_entries_end_where_messages_or_bytes_reach_the_limit(
    root: Path, given: dict[str, Any], sizes: list[int]
) -> None:
    send(root, "t", ["x" * 10] * 1500, **given)
    assert entries(root) == sizes


def test_a_delayed_message_is_an_entry_of_its_own(root: Path) -> None:
    later = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)
    columns = {"deliver_at": pa.array([None, None, later, None, later, later], TIMES)}
    send(root, "t", list("abcdef"), columns=columns)
    assert entries(root) == [2, 1, 1, 1, 1]
    (ledger,) = ledger_of(root, "t").ledgers(0)
    assert ledger.max_deliver_at_ms == int(later.timestamp() * 1000)


def test_a_key_based_entry_holds_one_key_in_its_order(root: Path) -> None:
    columns = {
        "key": pa.array(["a", "b", "a", None, "b", "c", None]),
        "ordering_key": pa.array([None, None, None, None, None, b"o", b"o"], pa.binary()),
    }
    send(root, "t", list("0123456"), columns=columns, batcherBuilder="KEY_BASED")
    assert values(root) == ["0", "2", "3", "1", "4", "5", "6"]
    assert entries(root) == [2, 1, 2, 2]


def test_key_based_entries_go_in_the_order_of_their_highest_sequence_id(root: Path) -> None:
    columns = {"key": list("abab"), "sequence_id": [7, 1, 2, 3]}
    send(root, "t", list("0123"), columns=columns, batcherBuilder="KEY_BASED")
    assert values(root) == ["1", "3", "0", "2"]


def test_a_key_based_container_is_full_at_its_limit_over_all_keys(root: Path) -> None:
    given: dict[str, Any] = {"batcherBuilder": "KEY_BASED", "batchingMaxMessages": 4}
    send(root, "t", list("01234567"), columns={"key": list("abababab")}, **given)
    assert values(root) == ["0", "2", "1", "3", "4", "6", "5", "7"]
    assert entries(root) == [2, 2, 2, 2]


@pytest.mark.parametrize("builder", ["DEFAULT", "KEY_BASED"])
def test_a_delayed_message_is_never_batched_whatever_the_batcher(root: Path, builder: str) -> None:
    columns = {
        "key": list("aaaa"),
        "deliver_after": pa.array([None, None, 5000, None], pa.int64()),
    }
    send(root, "t", list("0123"), columns=columns, batcherBuilder=builder)
    assert values(root) == list("0123")
    assert entries(root) == [2, 1, 1]


# -- when it is delivered ------------------------------------------------------------------------


def delays(root: Path) -> list[float | None]:
    """Seconds from publishing to delivery of each message."""
    return [
        m["deliver_at"] and (m["deliver_at"] - m["publish_time"]).total_seconds()
        for m in messages(root)
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, 1500, 0], pa.int64()),
        pa.array([None, 1500, 0], pa.int32()),
        pa.array([None, dt.timedelta(milliseconds=1500), dt.timedelta()], pa.duration("us")),
    ],
)
def test_deliver_after_counts_from_the_publish_time(root: Path, column: pa.Array) -> None:
    send(root, "t", list("abc"), columns={"deliver_after": column})
    assert delays(root) == [None, 1.5, 0.0]


def test_the_options_fill_in_where_a_row_has_no_delivery_time(root: Path) -> None:
    columns = {"deliver_after": pa.array([1000, None], pa.int64())}
    send(root, "t", list("ab"), columns=columns, deliverAfter="2s")
    assert delays(root) == [1.0, 2.0]
    send(root, "u", ["c"], deliverAt="2030-01-01T00:00:00Z")
    (message,) = messages(root, "u")
    assert message["deliver_at"] == dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"deliver_after": pa.array([-1], pa.int64())}, "deliver_after below zero"),
        ({"deliver_after": pa.array([2**62], pa.int64())}, "beyond all times"),
        (
            {
                "deliver_after": pa.array([1], pa.int64()),
                "deliver_at": pa.array([dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)], TIMES),
            },
            "both deliver_at and deliver_after",
        ),
    ],
)
def test_a_bad_delay_is_refused_and_nothing_is_stored(
    root: Path, columns: dict[str, pa.Array], said: str
) -> None:
    with pytest.raises(InvalidMessageError, match=said):
        send(root, "t", ["a"], columns=columns)
    assert files_below(root) == {}


# -- what is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compression", "codec"),
    [
        ("LZ4", "LZ4"),
        ("ZLIB", "GZIP"),
        ("ZSTD", "ZSTD"),
        ("SNAPPY", "SNAPPY"),
        ("NONE", "UNCOMPRESSED"),
    ],
)
def test_each_compression_is_written_and_read(root: Path, compression: str, codec: str) -> None:
    sent = [f"value {number}" for number in range(3000)]
    send(root, "t", sent, compressionType=compression)
    assert values(root) == sent
    (file,) = (root / "persistent/public/default/t/data").iterdir()
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == codec


def test_all_fields_of_a_message_come_back_as_they_were(root: Path) -> None:
    moment = dt.datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.timezone.utc)
    early = dt.datetime(1969, 7, 20, 20, 17, 40, 1, tzinfo=dt.timezone.utc)
    columns: dict[str, Sequence[Any] | pa.Array] = {
        "key": pa.array(["schlüssel 🛫", "", None, "k"]),
        "ordering_key": pa.array([b"\x00\xff", b"", None, None], pa.binary()),
        "properties": maps([{"a": "1", "": "ä"}, {}, None, {"null": None}]),
        "producer_name": pa.array(["p", "", None, "q"]),
        "sequence_id": pa.array([0, 2**63 - 1, None, -1], pa.int64()),
        "event_time": pa.array([moment, early, None, moment], TIMES),
        "deliver_at": pa.array([None, moment, None, None], TIMES),
    }
    send(root, "t", [b"\x00\xffbytes", b"", None, "träne"], columns=columns)
    found = messages(root)
    assert [m["value"] for m in found] == [b"\x00\xffbytes", b"", None, "träne".encode()]
    for name, column in columns.items():
        expected = column.to_pylist() if isinstance(column, pa.Array) else column
        assert [m[name] for m in found] == expected, name
    for message in found:
        age = dt.datetime.now(dt.timezone.utc) - message["publish_time"]
        assert dt.timedelta(-1) < age < dt.timedelta(minutes=5)
        assert message["topic"] == "persistent://public/default/t"
        assert message["redelivery_count"] == 0


def test_text_and_bytes_may_stand_for_each_other(root: Path) -> None:
    columns = {"value": pa.array(["text"]), "key": pa.array([b"k"], pa.binary())}
    send(root, "t", ["ignored"], columns=columns)
    (message,) = messages(root)
    assert (message["value"], message["key"]) == (b"text", "k")


def test_the_producer_s_name_fills_in_where_a_row_has_none(root: Path) -> None:
    send(root, "t", ["a"], producerName="me")
    columns = {"producer_name": pa.array(["you", None])}
    send(root, "t", ["b", "c"], columns=columns, producerName="me")
    assert [message["producer_name"] for message in messages(root)] == ["me", "you", "me"]


def test_a_topic_is_made_on_first_use_and_keeps_its_partitions(root: Path) -> None:
    send(root, "t", ["a"], numPartitions=3)
    send(root, "t", ["b"], numPartitions=7)
    assert ledger_of(root, "t").state.partitions == 3
    root_of = Root.of(options_of(root))
    root_of.create(TopicName.parse("explicit"), 5)
    send(root, "explicit", ["c"], numPartitions=2)
    assert ledger_of(root, "explicit").state.partitions == 5


# -- one DataFrame, several topics ---------------------------------------------------------------


def test_a_topic_column_spreads_rows_and_a_null_takes_the_default(root: Path) -> None:
    topics = pa.array(["a", None, "acme/eu/b", "a", "default", None])
    send(root, "default", list("123456"), columns={"topic": topics})
    assert values(root, "a") == ["1", "4"]
    assert values(root, "acme/eu/b") == ["3"]
    assert values(root, "default") == ["2", "5", "6"]


def test_a_topic_column_may_name_a_partition(root: Path) -> None:
    send(root, "t", ["x"], numPartitions=3)
    columns = {"topic": pa.array(["t-partition-2", "t-partition-0"])}
    send(root, "other", ["two", "zero"], columns=columns)
    by_partition = {m["value"]: m["partition"] for m in messages(root)}
    assert (by_partition[b"two"], by_partition[b"zero"]) == (2, 0)
    with pytest.raises(InvalidMessageError, match="t-partition-9, and the topic has 3 partitions"):
        send(root, "t-partition-9", ["nine"])


def test_rows_without_a_topic_are_refused_where_there_is_no_default(root: Path) -> None:
    options = options_of(root, Scope.WRITE)
    columns = {"topic": pa.array(["a", None])}
    with pytest.raises(InvalidMessageError, match=r"1 rows of 2 have no topic: fill the column"):
        written(options, ["1", "2"], columns)


def test_a_bad_topic_in_a_row_is_named(root: Path) -> None:
    with pytest.raises(InvalidTopicNameError, match="a/b"):
        written(options_of(root), ["1"], {"topic": pa.array(["a/b"])})


# -- once ----------------------------------------------------------------------------------------


def test_the_same_query_and_batch_is_published_once(root: Path) -> None:
    for _ in range(3):
        send(root, "t", ["a", "b"], application=("query", 0))
    send(root, "t", ["c"], application=("query", 1))
    send(root, "t", ["d"], application=("other", 0))
    assert values(root) == ["a", "b", "c", "d"]
    send(root, "t", ["late"], application=("query", 0))
    assert values(root) == ["a", "b", "c", "d"]


def test_a_batch_half_committed_over_several_topics_is_finished_by_its_replay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(root, Scope.WRITE)
    columns = {"topic": pa.array(["a", "b", "c"])}
    begun: list[str] = []
    append = ManagedLedger.append

    def fail_at_the_second(self: ManagedLedger, *given: Any, **named: Any) -> Any:
        begun.append(self.topic)
        if len(begun) == 2:
            raise OSError("killed here")
        return append(self, *given, **named)

    files = written(options, "123", columns)
    monkeypatch.setattr(ManagedLedger, "append", fail_at_the_second)
    with pytest.raises(OSError, match="killed here"):
        publish(Root.of(options), files, ("query", 0))
    monkeypatch.undo()
    assert [ledger_of(root, topic).state.partition(0).messages for topic in "abc"] == [1, 0, 0]
    for _ in range(2):
        publish(Root.of(options), written(options, "123", columns), ("query", 0))
    assert [values(root, topic) for topic in "abc"] == [["1"], ["2"], ["3"]]


def test_committing_the_same_files_again_without_an_application_is_harmless(root: Path) -> None:
    options = options_of(root, Scope.WRITE, {"topic": "t"})
    files = written(options, "ab")
    for _ in range(2):
        publish(Root.of(options), files, None)
    assert values(root) == ["a", "b"]


def dedup(
    root: Path, sequence_ids: Sequence[int | None], producer: str = "p", **given: Any
) -> None:
    columns = {
        "producer_name": pa.array([producer] * len(sequence_ids)),
        "sequence_id": pa.array(sequence_ids, pa.int64()),
    }
    send(root, "t", [f"{producer}{n}" for n in sequence_ids], columns=columns, **given)


def test_a_sequence_id_that_was_used_before_is_dropped(root: Path) -> None:
    dedup(root, [0, 1, 1, 2, None, None], enableDeduplication=True)
    dedup(root, [2, 3])  # The topic keeps the setting that it was made with.
    dedup(root, [0, 1], "q")
    dedup(root, [1, 0], "q")
    assert values(root) == ["p0", "p1", "p2", "pNone", "pNone", "p3", "q0", "q1"]


def test_without_deduplication_sequence_ids_mean_nothing(root: Path) -> None:
    for _ in range(2):
        dedup(root, [0, 1])
    assert values(root) == ["p0", "p1"] * 2


def test_deduplication_is_by_partition_for_producer_and_id(root: Path) -> None:
    keys = [f"k{n}" for n in range(20)]
    for _ in range(2):
        columns = {
            "key": keys,
            "producer_name": ["p"] * 20,
            "sequence_id": np.arange(20).tolist(),
        }
        given: dict[str, Any] = {"numPartitions": 3, "enableDeduplication": True}
        send(root, "t", keys, columns=columns, **given)
    assert sorted(values(root)) == sorted(keys)


# -- what is refused -----------------------------------------------------------------------------


def test_an_oversize_message_is_refused_and_nothing_is_published(root: Path) -> None:
    send(root, "t", ["a"])
    before = files_below(root)
    with pytest.raises(InvalidMessageError) as caught:
        send(root, "t", ["ok", "x" * 101], maxMessageSize=100, compressionType="NONE")
    for part in ("101 bytes", "maxMessageSize is 100", "persistent://public/default/t", "raise"):
        assert part in str(caught.value)
    assert files_below(root) == before
    send(root, "t", ["x" * 100], maxMessageSize=100)


def test_a_row_that_is_to_come_later_than_its_topic_allows_is_refused(root: Path) -> None:
    send(root, "t", ["a"])
    Admin(str(root)).policies("public/default").set(delayed_delivery_max_delay="1h")
    send(root, "t", ["b"], deliverAfter="1h")
    before = files_below(root)
    with pytest.raises(DeliveryDelayTooLongError, match=r"more than 3,600,000 ms .*--maxDelay"):
        send(root, "t", ["c"], deliverAfter="61m")
    assert files_below(root) == before
    Admin(str(root)).policies("t").set(delayed_delivery_max_delay=0)
    send(root, "t", ["c"], deliverAfter="61m")


def test_the_largest_message_by_default_is_5_mib(root: Path) -> None:
    send(root, "t", [b"x" * (5 << 20)])
    with pytest.raises(InvalidMessageError, match="5242881 bytes"):
        send(root, "t", [b"x" * ((5 << 20) + 1)], compressionType="NONE")


def test_text_that_is_no_key_is_refused_by_name(root: Path) -> None:
    said = "Column key in row 0 .* can't be published: 'utf-8'"
    with pytest.raises(InvalidMessageError, match=said):
        send(root, "t", ["a"], columns={"key": pa.array([b"\xff\xfe"], pa.binary())})


def test_no_rows_make_no_topic_and_no_commit(root: Path) -> None:
    options: Options = options_of(root, Scope.WRITE, {"topic": "t"})
    publish(Root.of(options), written(options, []), ("query", 0))
    assert files_below(root) == {}
