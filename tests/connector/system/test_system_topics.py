"""Records of the two system topics: their order, and what is read of a file for a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.connector.runtime.system_topics import system_topics
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    APART_BYTES,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.errors import CorruptFileError, ObjectNotFoundError
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.topic_name import TopicPartition

ABOUT = TopicPartition("persistent://public/default/t", 0)
SAID = [Record(ABOUT, name, name.encode()) for name in ("a", "b", "c")]


@pytest.fixture(autouse=True, params=["its writer reads it", "another reads it"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads what a test wrote: a process remembers the last files that it wrote itself."""
    if request.param == "another reads it":
        monkeypatch.setattr(system_topics, "MOST_WRITTEN", 0)


def shards(size: int) -> list[Record]:
    """Four that make so many bytes, and don't get smaller."""
    return [Record(ABOUT, f"\x00shard/{n}", bytes([n]) * (size // 4)) for n in range(4)]


@pytest.mark.parametrize("size", [400, 4 * APART_BYTES])
def test_all_records_come_back_those_aside_last(root: Path, size: int) -> None:
    topic = SystemTopic(Root(str(root), {}), DISPATCH)
    topic.open().append(topic.write(SAID, shards(size)))
    found = list(topic.read(0, topic.refresh()))
    assert [each.record for each in found] == SAID + shards(size)
    assert [each.row for each in found] == list(range(7))


@pytest.mark.parametrize("size", [400, 4 * APART_BYTES])
@pytest.mark.parametrize(
    "requested", [{"a"}, {"b", "c"}, {"c", "\x00shard/1"}, {"\x00shard/3"}, {"x"}]
)
def test_records_are_chosen_by_name(root: Path, size: int, requested: set[str]) -> None:
    topic = SystemTopic(Root(str(root), {}), DISPATCH)
    topic.open().append(topic.write(SAID, shards(size)))
    found = list(topic.read(0, topic.refresh(), keep=lambda _, name: name in requested))
    everything = [*SAID, *shards(size)]
    assert [each.record for each in found] == [r for r in everything if r.subscription in requested]
    assert [each.row for each in found] == [
        row for row, each in enumerate(everything) if each.subscription in requested
    ]


def test_large_records_aside_are_not_read_for_those_before_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = SystemTopic(Root(str(root), {}), DISPATCH)
    topic.open().append(topic.write(SAID, shards(4 * APART_BYTES)))
    read = 0
    original = LedgerFileReader.read_table

    def counted(
        reader: LedgerFileReader, ledger: LedgerInfo, columns: Sequence[str], *rows: int
    ) -> Any:
        nonlocal read
        table = original(reader, ledger, columns, *rows)
        read += table.nbytes
        return table

    monkeypatch.setattr(LedgerFileReader, "read_table", counted)
    assert len(list(topic.read(0, topic.refresh(), keep=lambda _, name: name in "abc"))) == 3
    assert 0 < read < 1_000


def test_who_wrote_small_records_last_does_not_read_them_from_the_disk(root: Path) -> None:
    topic, most = SystemTopic(Root(str(root), {}), DISPATCH), system_topics.MOST_WRITTEN
    for _ in range(most + 1):
        topic.append(SAID)
    topic.open().append(topic.write(SAID, shards(4 * APART_BYTES)))
    stop = topic.refresh()
    for file in (root / topic.open().folder / "data").iterdir():
        file.unlink()
    last = topic.read(stop - 1 - most, stop - 1)
    assert [each.record for each in last] == SAID * most
    for gone in (0, stop - 1):
        with pytest.raises(ObjectNotFoundError):
            list(topic.read(gone, gone + 1))


def test_nothing_is_no_file(root: Path) -> None:
    topic = SystemTopic(Root(str(root), {}), DISPATCH)
    assert not topic.write([], [])
    assert topic.write([], shards(400))[0].batch_sizes.messages == 4


def test_ledgers_that_were_merged_say_what_they_said(root: Path) -> None:
    topic = SystemTopic(Root(str(root), {}), DISPATCH)
    for number in range(40):
        quarantined = shards(4 * APART_BYTES) if number == 20 else shards(400)
        topic.open().append(topic.write(SAID[: number % 3 + 1], quarantined))
    apart = list(topic.read(0, topic.refresh()))
    few = list(topic.read(3, 33, keep=lambda _, name: name == "c"))
    LedgerStore(topic.open()).merge_small_files()
    for number in range(3):
        topic.append(SAID[number:])
    stop = topic.refresh()
    assert list(topic.read(0, stop))[: len(apart)] == apart
    assert [each for each in topic.read(0, stop) if each.ledger_id < 40] == apart
    assert list(topic.read(3, 33, keep=lambda _, name: name == "c")) == few
    assert [each.ledger_id for each in topic.read(39, stop)] == [39] * 5 + [40] * 3 + [41] * 2 + [
        42
    ]


@pytest.mark.parametrize("column", ["key", "ordering_key"])
@pytest.mark.parametrize("value", [None, b"\xff:// \xff"])
def test_keys_that_were_altered_under_right_checksums_are_a_damaged_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, column: str, value: bytes | None
) -> None:
    original = system_topics._table

    def altered(*given: Any) -> pa.Table:
        table = original(*given)
        kind = table.schema.field(column).type
        other = None if value is None else "no://topic" if column == "key" else value
        place = table.schema.get_field_index(column)
        return table.set_column(place, column, pa.array([other] * table.num_rows, kind))

    topic = SystemTopic(Root(str(root), {}), DISPATCH)
    with monkeypatch.context() as written:
        written.setattr(system_topics, "_table", altered)
        written.setattr(system_topics, "MOST_WRITTEN", 0)
        topic.append(SAID)
    with pytest.raises(CorruptFileError, match=r"Data file .* has right checksums, and keys that"):
        list(topic.read(0, topic.refresh()))
