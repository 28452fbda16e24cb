"""Data files: what is written is read, by the row, and damage is told."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsar_spark.connector.storage.data_files import ledger_file
from pulsar_spark.connector.storage.data_files.ledger_file import (
    COMPRESSION_TYPES,
    MESSAGE_SCHEMA,
    LedgerFileReader,
    LedgerFileWriter,
)
from pulsar_spark.connector.storage.object_store import ObjectStore
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import (
    CorruptFileError,
    FutureVersionError,
    InvalidMessageError,
    ObjectNotFoundError,
)
from pulsar_spark.model.positions.ledger_info import BatchSizes, FileSeal, LedgerInfo

FOLDER = "persistent/public/default/files"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path))


def rows(count: int, first: int = 0) -> pa.Table:
    times = pa.array(range(first, first + count), pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.table(
        {
            "key": pa.array([f"key-{row % 7}" for row in range(first, first + count)]),
            "value": pa.array([b"value-%d" % row for row in range(first, first + count)]),
            "publish_time": times,
        }
    )


def every_column() -> pa.Table:
    """Three messages with all that a message can have, and one with nothing but a value."""
    full: dict[str, Any] = {
        "key": "k",
        "ordering_key": b"\x00\xff",
        "value": b"v",
        "properties": [("a", "1"), ("b", "2")],
        "producer_name": "p",
        "sequence_id": 2**40,
        "publish_time": 1_700_000_000_000_001,
        "event_time": 1,
        "deliver_at": 2,
        "schema_version": 3,
        "sticky_key_hash": 2**31 - 1,
    }
    bare = {**dict.fromkeys(full), "value": b"bare", "publish_time": 5}
    return pa.Table.from_pylist([full, bare, full, full], schema=MESSAGE_SCHEMA)


class DataFile(NamedTuple):
    path: str
    rows: int
    seal: FileSeal


def write(store: ObjectStore, *parts: pa.Table, compression: str = "ZSTD") -> DataFile:
    with LedgerFileWriter(store, FOLDER, compression=compression) as writer:
        for partition, part in enumerate(parts):
            writer.write(part, partition)
        return DataFile(writer.path, writer.rows, writer.close())


def ledger(file: DataFile, first_row: int = 0, count: int | None = None) -> LedgerInfo:
    messages = file.rows - first_row if count is None else count
    return LedgerInfo(0, 0, file.path, first_row, BatchSizes.of([messages]), 1, 0, 0)


def stored(store: ObjectStore, file: DataFile) -> Path:
    return Path(store.root) / FOLDER / file.path


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
def test_all_fields_come_back_with_every_compression(store: ObjectStore, compression: str) -> None:
    file = write(store, every_column(), compression=compression)
    reader = LedgerFileReader(store, FOLDER, "t")
    assert reader.read_table(ledger(file), MESSAGE_SCHEMA.names).equals(every_column())
    metadata = pq.ParquetFile(stored(store, file)).metadata
    codec = {"ZLIB": "GZIP", "NONE": "UNCOMPRESSED"}.get(compression, compression)
    assert metadata.row_group(0).column(0).compression == codec
    assert metadata.metadata[b"pulsarlite.compression"].decode() == compression


def test_a_column_without_values_is_not_stored_and_reads_as_nulls(store: ObjectStore) -> None:
    table = rows(3).append_column("event_time", pa.nulls(3, MESSAGE_SCHEMA.field(7).type))
    file = write(store, table)
    assert "event_time" not in pq.read_schema(stored(store, file)).names
    reader = LedgerFileReader(store, FOLDER, "t")
    batch = next(iter(reader.read(ledger(file), ["event_time", "value", "properties"])))
    assert batch.schema.names == ["event_time", "value", "properties"]
    assert batch.column(0).null_count == batch.column(2).null_count == 3
    assert [b.num_rows for b in reader.read(ledger(file), ["deliver_at"])] == [3]


@pytest.mark.parametrize(
    ("first", "count"), [(0, 100_000), (0, 1), (32_767, 2), (40_000, 30_000), (99_999, 1), (5, 0)]
)
def test_a_range_of_rows_is_exactly_that(store: ObjectStore, first: int, count: int) -> None:
    file = write(store, rows(100_000))
    reader = LedgerFileReader(store, FOLDER, "t")
    batches = list(reader.read(ledger(file), ["value"], first, count))
    assert all(0 < batch.num_rows <= 10_000 for batch in batches)
    values = [value for batch in batches for value in batch.column(0).to_pylist()]
    assert values == [b"value-%d" % row for row in range(first, first + count)]


def test_a_ledger_is_a_range_of_a_file_of_several_partitions(store: ObjectStore) -> None:
    sizes = [10, 20_000, 3, 70_000, 1]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    file = write(store, *(rows(size, start) for size, start in zip(sizes, starts, strict=True)))
    reader = LedgerFileReader(store, FOLDER, "t")
    for size, start in zip(sizes, starts, strict=True):
        table = reader.read_table(ledger(file, start, size), ["value"])
        assert table["value"].to_pylist() == rows(size, start)["value"].to_pylist()


def test_large_partitions_begin_row_groups_and_small_ones_share(store: ObjectStore) -> None:
    file = write(store, rows(5_000), rows(40_000), rows(10), rows(20), rows(30))
    metadata = pq.ParquetFile(stored(store, file)).metadata
    groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert groups == [5_000, 32_768, 7_232, 60]


def test_rows_outside_of_the_ledger_are_refused(store: ObjectStore) -> None:
    file = write(store, rows(10))
    reader = LedgerFileReader(store, FOLDER, "t")
    for first, count in ((-1, 1), (0, 11), (10, 1), (0, -1)):
        with pytest.raises(IndexError):
            list(reader.read(ledger(file), ["value"], first, count))


def test_a_file_of_few_messages_is_small(store: ObjectStore) -> None:
    file = write(store, rows(1).append_column("sequence_id", pa.array([1], pa.int64())))
    assert file.seal.size_bytes == stored(store, file).stat().st_size < 1_000
    column = pq.ParquetFile(stored(store, file)).metadata.row_group(0).column
    assert [column(index).is_stats_set for index in range(4)] == [False, False, False, True]


def test_few_keys_get_a_dictionary_and_many_do_not(store: ObjectStore) -> None:
    def encodings(table: pa.Table) -> tuple[str, ...]:
        file = pq.ParquetFile(stored(store, write(store, table)))
        return tuple(file.metadata.row_group(0).column(0).encodings)

    few, many = rows(5_000), rows(5_000)
    many = many.set_column(0, "key", pa.array([str(row) for row in range(5_000)]))
    assert "RLE_DICTIONARY" in encodings(few)
    assert "RLE_DICTIONARY" not in encodings(many)


@pytest.mark.parametrize("count", [10, 50_000])
def test_a_flipped_byte_is_found_by_the_checksums(store: ObjectStore, count: int) -> None:
    file = write(store, rows(count))
    path = stored(store, file)
    whole = path.read_bytes()
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    end = column.data_page_offset + column.total_compressed_size
    for place in range(end - 30, end, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        reader = LedgerFileReader(store, FOLDER, "orders")
        with pytest.raises(CorruptFileError, match=f"{file.path} of topic orders is damaged"):
            reader.read_table(ledger(file), ["value"])


@pytest.mark.parametrize("kept", [0, 1, 10, 500, -1])
def test_a_truncated_file_is_named_with_its_topic(store: ObjectStore, kept: int) -> None:
    file = write(store, rows(100))
    path = stored(store, file)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CorruptFileError, match=f"{file.path} of topic orders"):
        LedgerFileReader(store, FOLDER, "orders").read_table(ledger(file), ["value"])


def test_a_file_with_fewer_rows_than_the_log_says_is_damaged(store: ObjectStore) -> None:
    file = write(store, rows(10))
    with pytest.raises(CorruptFileError, match="10 rows, and the log says"):
        LedgerFileReader(store, FOLDER, "t").read_table(ledger(file, 5, 10), ["value"])


def test_a_missing_file_is_told_from_a_damaged_one(store: ObjectStore) -> None:
    file = write(store, rows(10))
    store.delete(f"{FOLDER}/{file.path}")
    with pytest.raises(ObjectNotFoundError, match="of topic orders is not there"):
        LedgerFileReader(store, FOLDER, "orders").read_table(ledger(file), ["value"])


def test_a_file_of_somebody_else_is_refused(store: ObjectStore) -> None:
    file = write(store, rows(10))
    pq.write_table(rows(10), stored(store, file))
    with pytest.raises(CorruptFileError, match="its version is None"):
        LedgerFileReader(store, FOLDER, "t").read_table(ledger(file), ["value"])


def test_a_file_of_a_future_version_is_refused(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = replace(ledger_file.FILE_FORMAT, version=3)
    monkeypatch.setattr(ledger_file, "FILE_FORMAT", future)
    file = write(store, rows(10))
    monkeypatch.undo()
    with pytest.raises(FutureVersionError, match="has format version 3"):
        LedgerFileReader(store, FOLDER, "t").read_table(ledger(file), ["value"])


def test_nothing_is_left_behind_by_a_writer_that_fails(store: ObjectStore) -> None:
    for count in (10, 100_000):
        with LedgerFileWriter(store, FOLDER) as writer:
            writer.write(rows(count))
    with pytest.raises(ValueError, match="at least one message"):
        LedgerFileWriter(store, FOLDER).close()
    assert list(store.files(f"{FOLDER}/data")) == []


def test_a_writer_refuses_what_is_no_message(store: ObjectStore) -> None:
    with LedgerFileWriter(store, FOLDER) as one, LedgerFileWriter(store, FOLDER) as other:
        with pytest.raises(InvalidMessageError, match="colour"):
            one.write(pa.table({"colour": ["red"]}))
        with pytest.raises(InvalidMessageError):
            other.write(pa.table({"sequence_id": ["not a number"]}))


def test_a_writer_refuses_columns_that_its_file_did_not_begin_with(store: ObjectStore) -> None:
    few, more = rows(2), rows(2).append_column("sequence_id", pa.array([1, 2]))
    for first, second in ((few, more), (more, few)):
        with LedgerFileWriter(store, FOLDER) as writer:
            writer.write(first)
            with pytest.raises(InvalidMessageError, match="not those that the file began with"):
                writer.write(second)


def test_other_tools_open_a_data_file(store: ObjectStore) -> None:
    file = write(store, every_column())
    table = pq.read_table(stored(store, file))
    assert table["properties"].to_pylist()[0] == [("a", "1"), ("b", "2")]
    assert str(table.schema.field("publish_time").type) == "timestamp[us, tz=UTC]"


def test_a_reader_keeps_few_files_open(store: ObjectStore) -> None:
    files = [write(store, rows(3, number)) for number in range(6)]
    reader = LedgerFileReader(store, FOLDER, "t", keep_open=2)
    for file in (*files, *files):
        assert reader.read_table(ledger(file), ["value"]).num_rows == 3
    assert len(reader._files) == 2
    reader.close()
    assert not reader._files


def test_a_read_goes_on_where_the_last_ended_and_any_two_do_not_disturb_each_other(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, names = rows(5_000), ("key", "value", "publish_time")
    file = write(store, data)
    decoded: list[object] = []
    original = pq.ParquetFile.iter_batches

    def counted(parquet: pq.ParquetFile, *given: Any, **named: Any) -> Any:
        decoded.append(given)
        return original(parquet, *given, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    info = ledger(file, 0, 5_000)
    with closing(LedgerFileReader(store, FOLDER, "t")) as reader:
        for first in range(0, 5_000, 10):  # as of a file that was merged of 500 ledgers
            assert reader.read_table(info, names, first, 10).equals(data.slice(first, 10))
        assert len(decoded) == 1
        together = zip(
            reader.read(info, names, 100, 2_000), reader.read(info, names, 110, 2_000), strict=True
        )
        one, other = (pa.Table.from_batches([*each]) for each in zip(*together, strict=True))
        assert one.equals(data.slice(100, 2_000))
        assert other.equals(data.slice(110, 2_000))
        draw = random.Random(1)
        for _ in range(50):
            first = draw.randrange(4_990)
            assert reader.read_table(info, names, first, 9).equals(data.slice(first, 9))
