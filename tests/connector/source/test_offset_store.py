"""Offsets that are too large for the checkpoint lie in files of their own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_spark.connector.runtime.reading import offset_store
from pulsar_spark.connector.runtime.reading.offset_store import OffsetStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from tests.connector.reading import Batch, Run
from tests.connector.topics import numbers, send
from tests.core.planning.test_stream_offset import golden_consumer_offset
from tests.golden import RECORDS
from tests.golden import ROOT as GOLDEN_ROOT
from tests.golden.make import SPILLED
from tests.golden.records import later_offset

pytestmark = pytest.mark.usefixtures("impatient")


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
    for start in ({"version": 2}, {"spilled": "x/y.json", "version": 2}):
        with pytest.raises(FutureVersionError, match="Update"):
            Run(root, topic="t", start=start).next()


def test_what_changed_since_a_spilled_offset_is_the_golden_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(GOLDEN_ROOT, root, dirs_exist_ok=True)
    stored = json.loads((RECORDS / SPILLED).read_text())
    whole = golden_consumer_offset()
    later = later_offset(whole)
    monkeypatch.setattr(offset_store, "WHOLE_PARTITIONS", 0)
    store = OffsetStore(Root(str(root), {}))
    assert store.load({"spilled": stored["spilled"], "version": 1}) == whole
    assert store.save(later) == stored
    without = OffsetStore(Root(str(root), {}))
    without.load(stored)
    assert without.load(without.save(replace(later, incarnations={}))).incarnations == {}
