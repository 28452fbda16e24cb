"""Chunked messages through the sink's tasks, the log and the Reader."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pulsar_spark.connector.runtime.publishing.message_chunking import chunk_runs
from pulsar_spark.connector.runtime.topics import managed_ledger
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.stream_reader import PulsarliteReader, PulsarliteStreamReader
from pulsar_spark.connector.spark.typed_values import read_values
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileWriter
from pulsar_spark.connector.storage.data_files.row_groups import CUT_ROW_GROUP_BYTES
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.errors import (
    CorruptFileError,
    DataLossError,
    InvalidMessageError,
    InvalidOptionError,
)
from pulsar_spark.log.publication import NewLedger
from pulsar_spark.model.positions.ledger_info import BatchSizes
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.options import Scope
from tests.connector.reading import Run
from tests.connector.topic_log.state_check import check_state
from tests.connector.topics import files_below, ledger_of, maps, options_of, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.connector.conftest import MakeQuery

pytestmark = pytest.mark.usefixtures("impatient")

CHUNKED: dict[str, Any] = {
    "chunkingEnabled": True, "batchingEnabled": False, "maxMessageSize": 10,
}  # fmt: skip
NOW_US = 1_700_000_000_000_000
EVERYTHING = StructType([*read_schema(include_properties=True).fields]).add(
    "first_chunk_message_id", "string"
)


def reader(root: Path, **given: Any) -> Run:
    return Run(root, topic="t", schema=EVERYTHING, startingOffsets="earliest", **given)


def values(root: Path, **given: Any) -> list[str]:
    return reader(root, **given).values()


def send_rows(
    root: Path | str, *rows: tuple[str, int, int, str], at_ms: int = 0, key: str | None = None
) -> None:
    """Publish one ledger of chunks (uuid, chunk id, of how many, value) as some client would.

    A chunk id below 0 is a message in one piece.
    """
    ledger = Root.of(options_of(root)).open_or_create(TopicName.parse("t"), 1)
    chunked = [row[1] >= 0 for row in rows]
    times = pa.array([NOW_US + at_ms * 1000] * len(rows), pa.int64())
    total = {row[0]: sum(len(each[3]) for each in rows if each[0] == row[0]) for row in rows}
    table = pa.table(
        {
            "value": pa.array([row[3].encode() for row in rows], pa.binary()),
            "key": pa.array([key] * len(rows), pa.string()),
            "publish_time": times.cast(pa.timestamp("us", tz="UTC")),
            "uuid": pa.array(
                [row[0] if yes else None for row, yes in zip(rows, chunked, strict=True)]
            ),
            "chunk_id": pa.array([row[1] if row[1] >= 0 else None for row in rows], pa.int32()),
            "num_chunks_from_msg": pa.array(
                [row[2] if yes else None for row, yes in zip(rows, chunked, strict=True)],
                pa.int32(),
            ),
            "total_chunk_msg_size": pa.array(
                [TOTALS.get(row[0], total[row[0]]) if row[1] >= 0 else None for row in rows],
                pa.int64(),
            ),
        }
    )
    with LedgerFileWriter(ledger.store, ledger.folder) as file:
        file.write(table)
        file.close()
    now_ms = NOW_US // 1000 + at_ms
    size = sum(len(row[3]) for row in rows)
    sizes = BatchSizes.of([1] * len(rows))
    new = NewLedger(0, file.path, 0, sizes, size, now_ms, now_ms, chunks=chunk_runs(table))
    ledger.append([new])


TOTALS = {"w": 2, "x": 3, "y": 3}


# -- sink to source --------------------------------------------------------------------------------


def test_a_large_message_is_cut_and_comes_back_whole(root: Path) -> None:
    sent = ["small", "y" * 10, "0123456789abcdefghijK", "", "end"]
    send(root, "t", [*sent, None], **CHUNKED)
    found = [message for batch in reader(root).all() for message in batch.messages]
    assert [m["value"] for m in found] == [*map(str.encode, sent), None]
    assert [m["entry_id"] for m in found] == [0, 1, 4, 5, 6, 7]
    assert [m["first_chunk_message_id"] for m in found] == [None, None, "0:2:0", *[None] * 3]
    assert ledger_of(root, "t").state.partition(0).messages == 8


def test_the_fields_of_a_chunked_message_come_back(root: Path) -> None:
    columns = {
        "key": ["k"],
        "properties": maps([{"a": "1"}]),
        "producer_name": ["p"],
        "sequence_id": [7],
    }
    send(root, "t", ["x" * 25], columns=columns, numPartitions=3, **CHUNKED)
    (batch,) = reader(root).all()
    (message,) = batch.messages
    assert message["value"] == b"x" * 25
    assert (message["key"], message["properties"]) == ("k", [("a", "1")])
    assert (message["producer_name"], message["sequence_id"]) == ("p", 7)
    (runs,) = (
        run
        for partition in range(3)
        for run in ledger_of(root, "t").state.partition(partition).chunks.values()
    )
    assert [(run.uuid, run.num_chunks, run.total_bytes) for run in runs] == [("p-7", 3, 25)]


def test_a_chunk_may_be_smaller_than_a_message(root: Path) -> None:
    send(root, "t", ["x" * 10, "y" * 11], **CHUNKED, chunkMaxMessageSize=4)
    assert values(root) == ["x" * 10, "y" * 11]
    assert ledger_of(root, "t").state.partition(0).messages == 6


def test_keys_and_round_robin_send_all_chunks_of_a_message_to_one_partition(root: Path) -> None:
    sent = [f"{n:03}" * 20 for n in range(40)]
    keys = pa.array([f"k{n}" if n % 2 else None for n in range(40)])
    send(root, "t", sent, columns={"key": keys}, numPartitions=4, **CHUNKED)
    assert sorted(values(root)) == sorted(sent)


def test_a_batch_reads_what_a_stream_reads(root: Path) -> None:
    sent = ["a" * 25, "b", "c" * 31]
    send(root, "t", sent, **CHUNKED)
    options = options_of(root, Scope.BATCH_READ, {"topic": "t"})
    batch = PulsarliteReader(options, Root.of(options), EVERYTHING)
    found = [
        row["value"].decode()
        for task in batch.partitions()
        for each in batch.read(task)
        for row in each.to_pylist()
    ]
    assert found == sent == values(root)


def test_without_the_column_value_no_chunk_is_read(root: Path) -> None:
    send(root, "t", ["a" * 25, "b"], **CHUNKED)
    schema = StructType().add("entry_id", "long", nullable=False)
    run = Run(root, topic="t", startingOffsets="earliest", schema=schema)
    assert [m["entry_id"] for batch in run.all() for m in batch.messages] == [2, 3]


def test_a_chunked_message_s_id_is_pulsar_s_and_reading_can_start_at_it(root: Path) -> None:
    send(root, "t", ["a" * 25, "b" * 25, "c"], **CHUNKED)
    message_id = MessageId.parse("0:3:0;0:5:0")
    assert message_id == MessageId(0, 5, 0)
    for given, requested in ((True, ["b" * 25, "c"]), (False, ["c"])):
        where = json.dumps({"t": {"0": str(message_id)}})
        run = Run(root, topic="t", startingOffsets=where, startMessageIdInclusive=given)
        assert run.values() == requested


def test_merging_files_keeps_chunked_messages(root: Path) -> None:
    for letter in "abc":
        send(root, "t", [letter * 25], **CHUNKED)
    LedgerStore(ledger_of(root, "t")).merge_small_files()
    assert len(ledger_of(root, "t").state.files) == 1
    assert values(root) == ["a" * 25, "b" * 25, "c" * 25]


def test_a_file_merged_away_between_planning_and_reading_is_found_again(root: Path) -> None:
    for letter in "ab":
        send(root, "t", [letter * 25], **CHUNKED)
    run = reader(root)
    batch = run.planned()
    assert batch is not None
    tasks = run.reader.partitions(batch.start, batch.end)
    keeper = LedgerStore(ledger_of(root, "t"), grace_ms=0)
    keeper.merge_small_files()
    keeper.sweep()
    found = [row for task in tasks for each in read_values(task.value, EVERYTHING, None)
             for row in each.to_pylist()]  # fmt: skip
    assert [row["value"] for row in found] == [b"a" * 25, b"b" * 25]


def test_a_duplicate_of_a_chunked_message_is_dropped(root: Path) -> None:
    columns = {"producer_name": ["p", "p"], "sequence_id": [0, 1]}
    for _ in range(2):
        send(root, "t", ["a" * 25, "b"], columns=columns, enableDeduplication=True, **CHUNKED)
    send(root, "t", ["c" * 25] * 2, columns={"producer_name": ["p"] * 2, "sequence_id": [2, 2]},
         **CHUNKED)  # fmt: skip
    assert values(root) == ["a" * 25, "b", "c" * 25]


def test_peek_tells_chunks_apart(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    send_rows(root, ("x", 0, 2, "12"), ("x", 1, 2, "3"))
    assert main(["topics", "peek", "t", "--service-url", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "uuid x  chunk_id 1  num_chunks_from_msg 2" in lines[2]


def test_the_log_s_snapshot_keeps_the_chunks(root: Path) -> None:
    send(root, "t", ["a" * 25], **CHUNKED)
    send_rows(root, ("x", 0, 3, "1"))
    ledger = ledger_of(root, "t")
    ledger.write_snapshot()
    managed_ledger._cache.clear()
    again = ledger_of(root, "t")
    assert again.state.partition(0).chunks == ledger.state.partition(0).chunks
    check_state(again.state)
    send_rows(root, ("x", 1, 3, "2"), ("x", 2, 3, "3"))
    assert values(root) == ["a" * 25, "123"]


# -- interleaved, and micro-batches ------------------------------------------------------------


def interleaved(root: Path) -> list[str]:
    send_rows(root, ("x", 0, 3, "1"), ("plain", -1, 0, "p"), ("y", 0, 3, "a"))
    send_rows(root, ("y", 1, 3, "b"), ("x", 1, 3, "2"))
    send_rows(root, ("q", -1, 0, "q"), ("y", 2, 3, "c"), ("x", 2, 3, "3"), ("z", -1, 0, "z"))
    return ["p", "q", "abc", "123", "z"]


@pytest.mark.parametrize("most", [None, 1, 2, 3])
def test_interleaved_producers_are_told_apart_across_micro_batches(
    root: Path, most: int | None
) -> None:
    expected = interleaved(root)
    given = {} if most is None else {"maxMessagesPerTrigger": most}
    batches = [batch.values for batch in reader(root, **given).all()]
    size = most or 5
    assert batches == [expected[at : at + size] for at in range(0, 5, size)]


def test_a_micro_batch_repeats_though_its_chunks_lie_in_earlier_ones(root: Path) -> None:
    interleaved(root)
    run = reader(root, maxMessagesPerTrigger=1)
    for batch in run.all():
        managed_ledger._cache.clear()
        assert reader(root).read(batch) == batch.messages


def test_a_restart_between_the_chunks_loses_nothing(root: Path) -> None:
    send_rows(root, ("x", 0, 3, "1"), ("p", -1, 0, "p"))
    run = reader(root)
    (batch,) = run.all()
    assert batch.values == ["p"], "the cursor stands behind the first chunk"
    send_rows(root, ("x", 1, 3, "2"))
    assert Run(root, topic="t", start=run.offset).all() == []
    send_rows(root, ("x", 2, 3, "3"))
    assert Run(root, topic="t", start=run.offset).values() == ["123"]


def test_available_now_ends_before_a_message_in_the_making(root: Path) -> None:
    send_rows(root, ("x", 0, 3, "1"))
    assert values(root, available_now=True) == []


def test_bytes_are_those_of_the_whole_message(root: Path) -> None:
    send(root, "t", ["a" * 50, "b" * 50], **CHUNKED)
    batches = reader(root, maxBytesPerTrigger=60).all()
    assert [batch.values for batch in batches] == [["a" * 50], ["b" * 50]]


def test_an_incomplete_message_expires(root: Path) -> None:
    for at_ms, row in (
        (0, ("x", 0, 3, "1")),
        (60_001, ("x", 1, 3, "2")),
        (60_002, ("x", 2, 3, "3")),
    ):
        send_rows(root, row, at_ms=at_ms)
    send_rows(root, ("p", -1, 0, "p"))
    assert values(root) == ["p"]
    assert values(root, expireTimeOfIncompleteChunkedMessage="2m") == ["123", "p"]


def test_the_oldest_of_too_many_in_the_making_is_given_up_on_request(root: Path) -> None:
    send_rows(root, ("x", 0, 3, "1"), ("y", 0, 3, "a"))
    send_rows(root, ("x", 1, 3, "2"), ("x", 2, 3, "3"), ("y", 1, 3, "b"), ("y", 2, 3, "c"))
    given = {"maxPendingChunkedMessage": 1}
    assert values(root, **given) == ["123", "abc"]
    assert values(root, **given, autoAckOldestChunkedMessageOnQueueFull=True) == ["abc"]


# -- what goes wrong -------------------------------------------------------------------------------


def test_without_chunking_a_large_message_is_refused_before_anything_is_stored(root: Path) -> None:
    with pytest.raises(InvalidMessageError, match="set chunkingEnabled to true"):
        send(root, "t", ["a", "x" * 11], maxMessageSize=10)
    assert files_below(root) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"chunkingEnabled": True}, "can't be enabled together"),
        ({"chunkMaxMessageSize": 5}, "needs chunkingEnabled"),
    ],
)
def test_options_that_exclude_chunking_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        options_of("somewhere", Scope.WRITE, given)


def test_chunks_that_were_trimmed_are_a_loss_that_is_told(root: Path) -> None:
    send_rows(root, ("x", 0, 3, "1"), ("p", -1, 0, "p"))
    run = reader(root)
    assert run.values() == ["p"]
    send_rows(root, ("x", 1, 3, "2"), ("x", 2, 3, "3"), ("q", -1, 0, "q"))
    batch = run.planned()
    assert batch is not None
    ledger_of(root, "t").commit(lambda _, new: replace(new, trimmed={0: (0,)}))
    assert isinstance(run.reader, PulsarliteStreamReader)
    run.reader._topics.refresh()
    with pytest.raises(DataLossError, match=r"Chunks of the message at 1:1 of .*/t were trimmed"):
        run.read(batch)
    patient = reader(root, failOnDataLoss=False)
    patient.offset = batch.start
    assert patient.values() == ["q"]


def test_chunks_that_don_t_add_up_name_their_files(root: Path) -> None:
    send_rows(root, ("x", 0, 2, "1234"), ("x", 1, 2, "5"))
    with pytest.raises(CorruptFileError, match=r"more than 3 bytes together.*data/.*restore"):
        values(root)


# -- memory --------------------------------------------------------------------------------------

LARGE = 256 << 20
SPARE = 6 * CUT_ROW_GROUP_BYTES
"""Beyond the message, whatever its size: some row groups, read, decoded, in the making."""

MEASURE = """
import resource, sys
import pyarrow as pa
from pyspark.sql.types import StructType
from tests.connector.reading import Run
from tests.connector.topics import send
root, what, size = sys.argv[1], sys.argv[2], int(sys.argv[3])

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

if what == "write":
    buffer = pa.py_buffer(b"0123456789abcdef" * (size // 16))
    offsets = pa.array([0, size], pa.int32()).buffers()[1]
    value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, buffer])
    before = peak()
    send(root, "t", columns={"value": value}, chunkingEnabled=True, batchingEnabled=False,
         compressionType="NONE")
    print(peak() - before)
else:
    run = Run(root, topic="t", startingOffsets="earliest",
              schema=StructType().add("value", "binary"))
    batch = run.planned()
    from pulsar_spark.connector.spark.typed_values import read_values
    before = peak()
    for task in run.reader.partitions(batch.start, batch.end):
        for each in read_values(task.value, run.schema, None):
            data = each.column(0).buffers()[2]
            assert data.size == size
            assert data[-32:].to_pybytes() == b"0123456789abcdef" * 2
    print(peak() - before)
"""


@pytest.mark.slow
def test_a_message_of_256_mib_passes_in_bounded_memory(root: Path) -> None:
    def extra(what: str) -> int:
        command = [sys.executable, "-c", MEASURE, str(root), what, str(LARGE)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(ran.stdout)

    written, read = extra("write"), extra("read")
    assert written <= SPARE, "the sink holds the message that it was given, and a row group"
    assert read <= LARGE + SPARE, "the source holds the message, and a row group"


def test_a_message_of_32_mib_passes_through_spark(
    spark: SparkSession, root: Path, query: MakeQuery
) -> None:
    size = 32 << 20
    text = f"repeat('0123456789abcdef', cast({size // 16} + id as int))"
    chunked: dict[str, Any] = {"topic": "t", "chunkingEnabled": True, "batchingEnabled": False}
    frame = spark.sql(f"select {text} as value from range(1)").write.format("pulsarlite")
    frame.mode("append").options(serviceUrl=str(root), **chunked).save()
    ((row,),) = query(topic="t", startingOffsets="earliest").run()
    assert (len(row.value), row.entry_id) == (size, 6)
