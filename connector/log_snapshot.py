"""A topic's state as one Parquet file: a row for each ledger, the small rest as JSON beside it.

Invariants: reading costs a few milliseconds for ten thousand ledgers, since no ledger is built
before somebody asks for it; a snapshot of a newer version, or a damaged one, is refused.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsar_spark.errors import CorruptFileError
from pulsar_spark.ledger_commit import LOG_FOLDER, canonical_json, check_version, read_json
from pulsar_spark.ledger_info import BatchSizes, LedgerInfo
from pulsar_spark.ledger_log import TopicState

SNAPSHOT_VERSION = 3
"""Of one with a field of _SINCE_VERSION_3; 2 with one of _SINCE_VERSION_2, else 1: an older
Pulsarlite must not overlook what it does not know."""
_SINCE_VERSION_2 = {"chunks", "producers", "sequence_ranges", "sequence_floors"}
_SINCE_VERSION_3 = {"compacted", "schemas"}
REST_KEY = "pulsarlite.topic"

_SCHEMA = pa.schema(
    {
        "ledger_id": pa.int64(),
        "partition": pa.int32(),
        "file": pa.string(),
        "first_row": pa.int64(),
        "size_bytes": pa.int64(),
        "min_publish_time_ms": pa.int64(),
        "max_publish_time_ms": pa.int64(),
        "max_deliver_at_ms": pa.int64(),
        "batch_sizes": pa.list_(pa.int64()),
    }
)


def snapshot_file(number: int) -> str:
    """The place of the snapshot after a commit, relative to its topic's folder."""
    return f"{LOG_FOLDER}/{number:020d}.snapshot.parquet"


def encode_snapshot(state: TopicState) -> bytes:
    """The bytes of the state's snapshot."""
    columns, rest = state.to_snapshot()
    table = pa.table(columns, schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        _SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=["partition", "file"],
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table)
        record = canonical_json({"version": _version_of(rest), **rest})
        writer.add_key_value_metadata({REST_KEY: record.decode()})
    return bytes(sink.getvalue())


def decode_snapshot(data: bytes, topic: str, name: str, number: int) -> TopicState:
    """The state out of the snapshot file `name`, which stands for commit `number`.

    CorruptFileError if it is damaged, FutureVersionError if a newer version wrote it.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        metadata: dict[bytes, bytes] = file.metadata.metadata or {}
        rest = read_json(metadata.get(REST_KEY.encode(), b""), name)
        check_version(rest, SNAPSHOT_VERSION, name)
        table = file.read(use_threads=False)
        rows = _Rows(table)
        ids = table.column("ledger_id").to_pylist()
        state = TopicState.from_snapshot(topic, ids, _counts(table.column("file")), rest, rows.row)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CorruptFileError):
            raise
        raise CorruptFileError(
            f"Snapshot {name} of topic {topic} is damaged: {error}. Restore the file from a copy."
        ) from error
    if state.number != number:
        raise CorruptFileError(
            f"Snapshot {name} of topic {topic} is damaged: it says that it is number "
            f"{state.number}. Restore the file from a copy."
        )
    return state


def _version_of(rest: dict[str, Any]) -> int:
    fields = set(rest).union(*rest["partitions"])
    if fields & _SINCE_VERSION_3:
        return SNAPSHOT_VERSION
    return 2 if fields & _SINCE_VERSION_2 else 1


class _Rows:
    """The ledgers of a snapshot, turned into Python's values when the first is asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table: pa.Table | None = table
        self._rows: list[tuple[Any, ...]] = []

    def row(self, number: int) -> LedgerInfo:
        if self._table is not None:
            columns = [self._table.column(name).to_pylist() for name in _SCHEMA.names]
            self._rows = list(zip(*columns, strict=True))
            self._table = None
        (ledger_id, partition, file, first_row, size_bytes, earliest, latest, deliver_at, sizes) = (
            self._rows[number]
        )
        return LedgerInfo(
            ledger_id,
            partition,
            file,
            first_row,
            BatchSizes(tuple(zip(sizes[::2], sizes[1::2], strict=True))),
            size_bytes,
            earliest,
            latest,
            deliver_at,
        )


def _counts(files: pa.ChunkedArray) -> dict[str, int]:
    counted = pc.value_counts(files)
    return dict(
        zip(
            counted.field("values").to_pylist(),
            counted.field("counts").to_pylist(),
            strict=True,
        )
    )
