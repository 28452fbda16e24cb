"""Offsets that are too large for the checkpoint lie in files of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_spark.connector.source import offset_store
from pulsar_spark.connector.source.offset_store import OffsetStore
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.planning.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.position import Position
from pulsar_spark.topic_name import TopicPartition
from tests.connector.reading import Batch, Run
from tests.connector.topics import numbers, send

pytestmark = pytest.mark.usefixtures("impatient")
GOLDEN = Path(__file__).parents[2] / "golden"
FOLDER = "persistent/public/default/orders/offsets"


def many_topics(root: Path, count: int) -> None:
    for number in range(count):
        send(root, f"topic-with-a-rather-long-name-{number:04d}", [f"{number}"])


def test_a_large_offset_is_spilled_and_a_restart_reads_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_store, "LARGEST_INLINE_BYTES", 2000)
    many_topics(root, 30)
    run = Run(root, topicsPattern=".*", startingOffsets="earliest", maxMessagesPerTrigger=20)
    batches = run.all()
    assert sorted(int(v) for batch in batches for v in batch.values) == list(range(30))
    assert all(len(json.dumps(batch.end)) < 2300 for batch in batches)
    again = Run(root, topicsPattern=".*", start=batches[0].end)
    replay = Batch(batches[0].end, batches[1].end)
    assert again.read(replay) == batches[1].messages
    again.commit(replay)
    assert again.values() == []


def test_spilled_offsets_that_nobody_asks_for_are_deleted_after_restarts_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_store, "LARGEST_INLINE_BYTES", 10)
    monkeypatch.setattr(offset_store, "SPILLED_KEPT", 3)
    send(root, "t", numbers(0, 12))
    folder = root / "persistent/public/default/t/offsets"
    options: dict[str, Any] = {"topic": "t", "startingOffsets": "earliest"}
    options["maxMessagesPerTrigger"] = 1
    run = Run(root, **options)
    offset = None
    for count in range(12):
        run = Run(root, start=offset, **options)
        batch = run.next()
        assert batch is not None, count
        offset = run.offset
        assert len(list(folder.iterdir())) <= 4
    other = Run(root, **options)
    assert len(other.all()) == 12, "another query has files of its own"
    assert run.reader.latestOffset(run.offset, ReadAllAvailable()) is run.offset
    fresh = Run(root, start=run.offset, **options)
    send(root, "t", ["new"])
    assert fresh.values() == ["new"]


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_spilled_offset_that_is_gone_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(offset_store, "LARGEST_INLINE_BYTES", 10)
    send(root, "t", ["a"])
    run = Run(root, topic="t", startingOffsets="earliest")
    run.next()
    path = root / run.offset["spilled"]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match=rf"{path.name}.* is {damage}.*new checkpoint"):
        Run(root, topic="t", start=run.offset).next()


def test_an_offset_of_a_newer_version_is_refused(root: Path) -> None:
    send(root, "t", ["a"])
    for start in ({"version": 5}, {"spilled": "x/y.json", "version": 3}):
        with pytest.raises(FutureVersionError, match="Update"):
            Run(root, topic="t", start=start).next()


def test_what_changed_since_a_spilled_offset_has_a_golden_file(
    place: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = StreamOffset.from_json_value(json.loads((GOLDEN / "offset-v3.json").read_text()))
    about, before = next(iter(whole.items()))
    again = TopicPartition("persistent://public/default/made-again", 0)
    planned = PartitionOffset.beginning(Cursor(Position(2, 7)))
    later = replace(
        whole.with_changes({again: planned}), incarnation=1_795_000_001, incarnations={again[0]: 3}
    )
    monkeypatch.setattr(offset_store, "WHOLE_PARTITIONS", 0)
    data = json.dumps(whole.to_json_value(), separators=(",", ":")).encode()
    path = offset_store.write_hashed(place.store, f"{FOLDER}/me-", data)
    text = (GOLDEN / "offset-spilled-v2.json").read_text()
    store = OffsetStore(place)
    assert store.load({"spilled": path, "version": 1}) == whole
    assert json.dumps(store.save(later)) + "\n" == text
    read = OffsetStore(place).load(json.loads(text))
    assert read == later
    assert read.get(about) == before
    without = OffsetStore(place)
    without.load(json.loads(text))
    assert without.load(without.save(replace(later, incarnations={}))).incarnations == {}
