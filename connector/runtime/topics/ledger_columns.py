"""The columns of a ledger that decide who gets its messages, and when.

Invariants: payloads are never read; a ledger that was merged into another file is read there; a
ledger that was trimmed has no columns.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.errors import ObjectNotFoundError
from pulsar_spark.model.positions.ledger_info import LedgerInfo

HASHES = "sticky_key_hash"
DELIVERY_TIMES = "deliver_at"
PUBLISH_TIMES = "publish_time"


def columns_of(
    ledger: ManagedLedger, info: LedgerInfo, reader: LedgerFileReader
) -> dict[str, bytes]:
    """The bytes of the columns that have a value, by name; none if the ledger is gone."""
    names = [HASHES]
    if info.max_deliver_at_ms is not None:
        names.append(DELIVERY_TIMES)
    if info.min_publish_time_ms != info.max_publish_time_ms:
        names.append(PUBLISH_TIMES)
    table = _read(ledger, info, reader, names)
    if table is None:
        return {}
    result = {name: _milliseconds(table[name]).tobytes() for name in names[1:]}
    hashes = table[HASHES]
    if hashes.null_count < len(hashes):
        result[HASHES] = _hashes(hashes, info.ledger_id)
    return result


def delivery_times_of(
    ledger: ManagedLedger, info: LedgerInfo, reader: LedgerFileReader
) -> NDArray[np.int64] | None:
    """The time at which each message is due, in ms, 0 for at once; None if the ledger is gone."""
    table = _read(ledger, info, reader, [DELIVERY_TIMES])
    return None if table is None else _milliseconds(table[DELIVERY_TIMES])


def _read(
    ledger: ManagedLedger, info: LedgerInfo, reader: LedgerFileReader, names: Iterable[str]
) -> pa.Table | None:
    place: LedgerInfo | None = info
    while place is not None:
        try:
            return reader.read_table(place, list(names))
        except ObjectNotFoundError:  # noqa: PERF203 - it was merged away, or trimmed
            ledger.refresh()
            found = ledger.ledgers(info.partition).get(info.ledger_id)
            place = found if found != place else None
    return None


def _hashes(hashes: pa.ChunkedArray, ledger_id: int) -> bytes:
    """31 bits each; a message without key gets one from where it lies."""
    values = pc.fill_null(hashes, -1).to_numpy().astype(np.int32)
    rows = np.flatnonzero(values < 0)
    values[rows] = (rows + ledger_id * 31) * 2_654_435_761 & 0x7FFF_FFFF
    return bytes(values.tobytes())


def _milliseconds(times: pa.ChunkedArray) -> NDArray[np.int64]:
    """0 for a null."""
    micros = pc.fill_null(pc.cast(times, pa.int64()), 0).to_numpy()
    return np.asarray(micros // 1000, np.int64)
