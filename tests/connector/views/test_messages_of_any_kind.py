"""Views of messages that are no plain rows: chunks, parts of batches, duplicates, what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import pulsar_spark
from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.storage.clock import ManualClock
from tests.connector.client.clients import all_of, python, shared, subscribe
from tests.connector.topics import ledger_of, numbers, send, trim


def rows(url: str, view: str, *columns: str, **given: Any) -> list[tuple[Any, ...]]:
    table = pulsar_spark.dataset(url, view=view, **given).to_table(list(columns))
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True))


def observed(client: pulsar.Client, consumer: pulsar.Consumer) -> None:
    clock = client.root.clock
    assert isinstance(clock, ManualClock)
    clock.advance(1000)
    all_of(consumer, 100)


def test_a_chunked_message_is_one_row_with_all_of_its_value(
    url: str, client: pulsar.Client
) -> None:
    values = [b"x" * 1000, b"y"]
    send(url, "t", values, chunkingEnabled=True, batchingEnabled=False, maxMessageSize=300)
    observed(client, subscribe(client))
    for view in ("messages", "backlog", "unacknowledged"):
        assert rows(url, view, "entry_id", "value", "first_chunk_message_id") == [
            (3, b"x" * 1000, "0:0:0"), (4, b"y", None),
        ]  # fmt: skip


def test_parts_of_a_batch_are_rows_of_their_own(url: str, client: pulsar.Client) -> None:
    send(url, "t", numbers(0, 10))
    consumer = shared(client)
    for message in all_of(consumer)[::3]:
        consumer.acknowledge(message)
    observed(client, consumer)
    done = {0, 3, 6, 9}
    assert {index for (index,) in rows(url, "acknowledgements", "batch_index")} == done
    left = [(index, str(index).encode()) for index in range(10) if index not in done]
    assert rows(url, "backlog", "batch_index", "value") == left
    assert rows(url, "cursors", "individually_deleted_messages", "holes") == [
        ("0:0/10[0,3,6,9]", 6)
    ]


def test_duplicates_are_in_no_view(url: str, client: pulsar.Client) -> None:
    for last in (2, 3):
        columns = {"sequence_id": [*range(last)]}
        values = numbers(0, last)
        send(url, "t", values, columns=columns, producerName="p", enableDeduplication=True)
    observed(client, subscribe(client))
    for view in ("messages", "backlog"):
        assert rows(url, view, "value") == [(b"0",), (b"1",), (b"2",)]
    assert rows(url, "acknowledgements", "value") == []


def test_what_compaction_kept_is_read_from_its_file(url: str, client: pulsar.Client) -> None:
    send(url, "t", numbers(0, 6), columns={"key": [f"k{n % 3}" for n in range(6)]})
    send(url, "t", ["last"], columns={"key": ["z"]})
    consumer = subscribe(client, is_read_compacted=True)
    compact(ledger_of(url, "t"))
    observed(client, consumer)
    trim(url, "t", 1)
    observed(client, consumer)
    kept = [(0, 3, b"3"), (0, 4, b"4"), (0, 5, b"5"), (1, 0, b"last")]
    assert rows(url, "backlog", "ledger_id", "batch_index", "value") == kept
    assert rows(url, "messages", "value") == [(b"last",)]


def test_a_dataset_is_what_others_know_as_one(url: str) -> None:
    """What DuckDB and Polars ask of a dataset, in their words."""
    send(url, "t", numbers(0, 9), columns={"key": [f"k{n % 3}" for n in range(9)]})
    found = pulsar_spark.dataset(url)
    assert isinstance(found, ds.Dataset)
    scanner = type(found).scanner
    chosen = scanner(found, columns=["value"], filter=ds.field("key") == pa.scalar("k1"))
    assert chosen.projected_schema.names == ["value"]
    assert chosen.to_reader().read_all()["value"].to_pylist() == [b"1", b"4", b"7"]
    assert found.head(2).num_rows == 2
    assert found.take([1, 4])["value"].to_pylist() == [b"1", b"4"]
    assert found.filter(ds.field("key") == "k1").count_rows() == 3
    assert found.sort_by([("value", "descending")]).head(1)["value"].to_pylist() == [b"8"]


def test_a_dataset_needs_no_spark(root: Path) -> None:
    send(root, "t", ["a"])
    done = python(
        "import sys, pulsar_spark\n"
        "for view in ('messages', 'backlog', 'stats'):\n"
        f"    pulsar_spark.dataset({str(root)!r}, view=view).to_table()\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "use",
    [
        lambda found: next(found.get_fragments()).to_table(),
        lambda found: found.replace_schema(found.schema).to_table(),
        lambda found: ds.Scanner.from_dataset(found).to_table(),
        lambda found: ds.dataset([found, found]).to_table(),
    ],
)
def test_what_pyarrow_does_without_asking_is_an_error_that_says_what_to_do(
    url: str, use: Any
) -> None:
    send(url, "t", ["a"])
    with pytest.raises(OSError, match="read it by to_table, to_batches, head or scanner"):
        use(pulsar_spark.dataset(url))


def test_duckdb_and_polars_read_a_dataset(url: str) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    send(url, "t", numbers(0, 9), columns={"key": [f"k{n % 3}" for n in range(9)]})
    found = pulsar_spark.dataset(url)
    counted = duckdb.sql("SELECT key, count(*) FROM found WHERE key <> 'k0' GROUP BY 1 ORDER BY 1")
    assert counted.fetchall() == [("k1", 3), ("k2", 3)]
    frame = polars.scan_pyarrow_dataset(found).filter(polars.col("key") == "k1").select("value")
    assert frame.collect()["value"].to_list() == [b"1", b"4", b"7"]
