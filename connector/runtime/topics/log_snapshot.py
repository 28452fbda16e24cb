"""A topic's state as one Parquet file: a row for each ledger, the small rest as JSON beside it.

Invariants: reading costs a few milliseconds for ten thousand ledgers, since a ledger is built when
it is asked for; a checksum of the whole file, which stands where Parquet leaves room, behind its
first four bytes, is verified before Arrow sees any of it; a snapshot of a newer version, or a
damaged one, is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from zlib_ng import zlib_ng

from pulsar_spark.connector.storage.object_store import MOST_BYTES
from pulsar_spark.log.ledger_commit import LOG_FOLDER
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.positions.ledger_info import BatchSizes, FileSeal, LedgerInfo
from pulsar_spark.model.records.stored_record import StoredFormat

MOST_SNAPSHOT_BYTES: Final = MOST_BYTES
"""The greatest size of a snapshot: several million ledgers."""
SNAPSHOT_FORMAT: Final = StoredFormat("Snapshot", checked=True, most_bytes=MOST_SNAPSHOT_BYTES)
REMAINDER_KEY: Final = "pulsarlite.topic"
_MAGIC: Final = b"PLSN"
_PLACE: Final = 4
"""The length of the magic; behind it stands the CRC-32 of all other bytes of the file."""
_CHECKSUM: Final = struct.Struct("<I")
_SUM_PLACE: Final = _PLACE + len(_MAGIC)
_BEHIND: Final = _SUM_PLACE + _CHECKSUM.size

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
        "file_bytes": pa.int64(),
        "footer_crc32": pa.int64(),
        "digest": pa.int64(),
        "embedded_in": pa.int64(),
    }
)
_NUMBERS: Final = {*_SCHEMA.names, "batch_sizes.list.element"} - {"file", "batch_sizes"}
"""The columns of numbers, stored as differences: smaller than compressed ones, and quicker."""


def snapshot_file(number: int) -> str:
    """The place of the snapshot after a commit, relative to its topic's folder."""
    return f"{LOG_FOLDER}/{number:020d}.snapshot.parquet"


def encode_snapshot(state: TopicState) -> bytes:
    """The bytes of the state's snapshot."""
    ledgers, rest = state.to_snapshot()
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        _SCHEMA,
        compression={**dict.fromkeys(_NUMBERS, "none"), "file": "zstd"},
        use_dictionary=["file"],
        column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        sink.write(_MAGIC + bytes(_CHECKSUM.size))
        writer.write_table(_table(ledgers))
        writer.add_key_value_metadata({REMAINDER_KEY: SNAPSHOT_FORMAT.encode(rest).decode()})
    data = bytearray(sink.getvalue())
    _CHECKSUM.pack_into(data, _SUM_PLACE, _checksum(data))
    return bytes(data)


def decode_snapshot(data: bytes, topic: str, name: str, number: int) -> TopicState:
    """The state out of the snapshot file `name`, which stands for commit `number`.

    CorruptFileError if it is damaged, FutureVersionError if a newer version wrote it.
    """
    named = f"{name} of topic {topic}"
    SNAPSHOT_FORMAT.check_length(data, named)
    if data[_PLACE:_SUM_PLACE] != _MAGIC:
        raise SNAPSHOT_FORMAT.damaged(named, "its checksum is missing")
    if data[_SUM_PLACE:_BEHIND] != _CHECKSUM.pack(_checksum(data)):
        raise SNAPSHOT_FORMAT.damaged(named, "its checksum differs")
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        metadata: dict[bytes, bytes] = file.metadata.metadata or {}
        rest = SNAPSHOT_FORMAT.decode(metadata.get(REMAINDER_KEY.encode(), b""), named)
        table = file.read(use_threads=False)
        SNAPSHOT_FORMAT.check_fields(table.column_names, _SCHEMA.names, named)
        ids = table.column("ledger_id").to_pylist()
        counted = table.column("file").value_counts().flatten()
        files = dict(zip(*(each.to_pylist() for each in counted), strict=True))
        state = TopicState.from_snapshot(topic, ids, files, rest, _rows(table))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SNAPSHOT_FORMAT.damaged(named, error) from error
    if state.number != number:
        raise SNAPSHOT_FORMAT.damaged(named, f"it says that it is number {state.number}")
    return state


def _table(ledgers: Sequence[LedgerInfo]) -> pa.Table:
    runs, seals = [each.batch_sizes.runs for each in ledgers], [each.seal for each in ledgers]
    ends = 2 * np.cumsum([0, *map(len, runs)], dtype=np.int32)
    numbers = np.fromiter(chain.from_iterable(chain.from_iterable(runs)), np.int64)
    columns = {
        "batch_sizes": pa.ListArray.from_arrays(ends, numbers),
        "file_bytes": [seal and seal.size_bytes for seal in seals],
        "footer_crc32": [seal and seal.footer_crc32 for seal in seals],
    }
    for name in set(_SCHEMA.names).difference(columns):
        columns[name] = [*map(attrgetter(name), ledgers)]
    return pa.table(columns, schema=_SCHEMA)


def _checksum(data: bytes | bytearray) -> int:
    """The CRC-32 of the file without the four bytes in which it stands."""
    view = memoryview(data)
    return zlib_ng.crc32(view[_BEHIND:], zlib_ng.crc32(view[:_SUM_PLACE]))


def _rows(table: pa.Table) -> Callable[[int], LedgerInfo]:
    """Builds the ledgers; all turn into Python's values when the first is asked for."""
    held: list[Any] = [table]
    del table

    def row(number: int) -> LedgerInfo:
        rows = held[0]
        if isinstance(rows, pa.Table):  # two threads may find it, and turn it into the same
            lists = (rows.column(name).to_pylist() for name in _SCHEMA.names)
            rows = held[0] = list(zip(*lists, strict=True))
        *given, sizes, length, crc32, digest, embedded_in = rows[number]
        *place, size_bytes, earliest, latest, due = given
        batch_sizes = BatchSizes(tuple(zip(sizes[::2], sizes[1::2], strict=True)))
        seal = None if length is None else FileSeal(length, crc32)
        more = [batch_sizes, size_bytes, earliest, latest, due, seal, digest, embedded_in]
        return LedgerInfo(*place, *more)

    return row
