"""Values taken from their pages: what Arrow would read, and nothing that it would refuse."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_spark.connector.storage.data_files.block_checksums import CheckedInput
from pulsar_spark.connector.storage.data_files.row_groups import RowGroups
from pulsar_spark.connector.storage.data_files.value_pages import value_pages

LENGTHS = "DELTA_LENGTH_BYTE_ARRAY"


def written(values: list[bytes | None], **how: Any) -> bytes:
    table = pa.table({"value": pa.array(values, pa.binary()), "number": range(len(values))})
    settings = {
        "compression": "none",
        "use_dictionary": False,
        "column_encoding": {"value": LENGTHS},
        "write_statistics": False,
        "write_page_checksum": True,
        **how,
    }
    output = io.BytesIO()
    pq.write_table(table, output, **settings)
    return output.getvalue()


def pages(file: bytes, group: int = 0) -> list[pa.Array]:
    source = CheckedInput(pa.BufferReader(file), None)
    return list(value_pages(source, footer_of(source).row_group(group).column(0)))


def footer_of(source: CheckedInput) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(source.footer))


def read(file: bytes, first: int, count: int) -> list[tuple[bytes | None, int]]:
    """(value, number) of each row."""
    schema = pa.schema({"value": pa.binary(), "number": pa.int64()})
    source = CheckedInput(pa.BufferReader(file), None)
    groups = RowGroups(source, footer_of(source), remote=False)
    batches = list(groups.rows(schema, first, count, batch_rows=100))
    for batch in batches:
        batch.validate(full=True)
    return [(row["value"], row["number"]) for batch in batches for row in batch.to_pylist()]


def values_of(lengths: list[int]) -> list[bytes | None]:
    return [bytes([length % 251]) * length for length in lengths]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 5), st.integers(0, 300), st.integers(0, 70_000)), min_size=1)
)
def test_lengths_of_every_kind_come_back(lengths: list[int]) -> None:
    values = values_of(lengths)

    found = pages(written(values))

    assert pa.chunked_array(found).to_pylist() == values


@pytest.mark.parametrize("spread", [0, 1, 7, 100, 5_000])
def test_many_values_come_in_several_pages(spread: int) -> None:
    lengths = np.random.default_rng(spread).integers(100, 101 + spread, 20_000)
    values = values_of(lengths.tolist())

    found = pages(written(values))

    assert len(found) > 1
    assert all(page.validate(full=True) is None for page in found)
    assert pa.chunked_array(found).to_pylist() == values


@pytest.mark.parametrize(
    "how",
    [
        {"compression": "zstd"},
        {"column_encoding": {"value": "PLAIN"}},
        {"column_encoding": None, "use_dictionary": True},
        {"data_page_version": "2.0"},
        {"write_page_checksum": False},
    ],
)
def test_other_pages_are_left_to_arrow(how: dict[str, Any]) -> None:
    file = written(values_of(list(range(200))), **how)

    assert pages(file) == []
    assert read(file, 0, 200) == list(zip(values_of(list(range(200))), range(200), strict=True))


def test_from_a_page_with_nulls_on_arrow_reads() -> None:
    values = values_of([1000] * 5_000)
    values[4_000] = None

    file = written(values)

    assert 0 < sum(len(page) for page in pages(file)) <= 4_000
    assert read(file, 0, 5_000) == list(zip(values, range(5_000), strict=True))


def test_a_damaged_page_is_left_to_arrow_which_names_the_checksum() -> None:
    file = bytearray(written(values_of([1000] * 5_000)))
    good = sum(len(page) for page in pages(bytes(file)))
    file[3_000_000] ^= 1

    assert 0 < sum(len(page) for page in pages(bytes(file))) < good == 5_000
    with pytest.raises(OSError, match="could not verify page integrity"):
        read(bytes(file), 0, 5_000)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 12_000), (1, 11_998), (2_500, 2_400), (3_999, 2), (4_100, 7_000)]
)
def test_any_rows_of_several_row_groups(first: int, count: int) -> None:
    values = values_of([500 + row % 17 for row in range(12_000)])

    file = written(values, row_group_size=4_000)

    rows = range(first, first + count)
    assert read(file, first, count) == [(values[row], row) for row in rows]
