"""Digests of ledgers: they follow the rows and nothing else, and add up."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.content_digest import ContentDigest, content_digest
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.log.ledger_commit import COMMIT_FORMAT
from pulsar_spark.model.positions.ledger_info import LedgerSum
from tests.connector.topic_log.state_check import check_state
from tests.connector.topic_log.stores import FOLDER, publish, rewrite
from tests.connector.topics import ledger_of, send
from tests.golden import ROOT

Row = tuple[str | None, bytes | None]


def table(rows: list[Row]) -> pa.Table:
    keys, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.binary())})


def some_rows(chance: random.Random) -> list[Row]:
    return [
        (
            chance.choice([None, "", "a", "bc"]),
            chance.choice([None, b"", b"xy", chance.randbytes(9)]),
        )
        for _ in range(chance.randrange(2, 30))
    ]


def test_a_digest_does_not_depend_on_how_rows_are_cut_into_batches() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        rows = table(some_rows(chance))
        digest, at = ContentDigest(), 0
        while at < len(rows):
            size = chance.randrange(1, 5)
            digest.add(rows.slice(at, size))
            at += size
        assert digest.value == content_digest(rows) == content_digest(rows.combine_chunks())


def test_a_column_that_is_not_there_is_one_of_nulls() -> None:
    rows = table([(None, b"a"), (None, None)])
    assert content_digest(rows) == content_digest(rows.drop_columns(["key"]))


def test_a_thousand_losses_doublings_and_swaps_are_all_found() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(1000):
        rows = some_rows(chance)
        changed = list(rows)
        first, other = chance.sample(range(len(rows)), 2)
        if number % 3 == 0:
            del changed[first]
        elif number % 3 == 1:
            changed.insert(first, changed[first])
        else:
            changed[first], changed[other] = changed[other], changed[first]
        assert (content_digest(table(changed)) == content_digest(table(rows))) == (changed == rows)


def test_every_ledger_of_a_sink_has_the_digest_of_its_rows_also_when_it_was_merged_or_compacted(
    tmp_path: Path,
) -> None:
    send(tmp_path, "t", ["a", "b", "c"], columns={"key": ["k", None, "l"]}, numPartitions=2)
    send(tmp_path, "t", ["d"], columns={"key": ["k"]})
    ledger = ledger_of(tmp_path, "t")
    digests = digests_of(ledger)
    assert LedgerStore(ledger).merge_small_files()
    assert digests_of(ledger) == digests
    compact(ledger)
    reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
    for part in range(2):
        for each in ledger.ledgers(part):
            assert content_digest(reader.read_table(each, ["key", "value"])) == each.digest
    reader.close()


def digests_of(ledger: ManagedLedger) -> list[int | None]:
    return [each.digest for part in range(ledger.state.partitions) for each in ledger.ledgers(part)]


def test_a_merge_refuses_rows_that_are_not_those_that_were_published(tmp_path: Path) -> None:
    send(tmp_path, "t", ["a"])
    send(tmp_path, "t", ["b"])
    ledger = ledger_of(tmp_path, "t")
    path = tmp_path / ledger.folder / "_log" / f"{1:020d}.json"
    (record,) = COMMIT_FORMAT.decode(path.read_bytes())["ledgers"]
    rewrite(path, ledgers=[record | {"digest": 1}])
    altered = ManagedLedger.open_anew(ledger.store, ledger.folder)
    with pytest.raises(CorruptFileError, match="not those that were published"):
        LedgerStore(altered).merge_small_files()


def test_what_was_published_is_what_is_there_and_what_was_removed(
    tmp_path: Path,
) -> None:
    root = shutil.copytree(ROOT, tmp_path / "root")
    store = open_store(str(root))
    ledger = ManagedLedger.open_anew(store, FOLDER)
    ledger.write_snapshot()
    publish(ledger, "new")
    keeper = LedgerStore(ledger, grace_ms=0)
    keeper.trim({0: 3})
    keeper.merge_small_files()
    check_state(ledger.state)
    there = sum(ledger.state.partition(part).messages for part in range(3))
    for _ in range(2):
        sums = ledger.state.to_snapshot()[1]["partitions"]
        published, removed = (
            sum((LedgerSum.from_json(part[name]) for part in sums), LedgerSum())
            for name in ("published", "removed")
        )
        assert published.messages == there + removed.messages
        assert removed.messages >= 6
        ledger.write_snapshot()
        ledger = ManagedLedger.open_anew(store, FOLDER)
