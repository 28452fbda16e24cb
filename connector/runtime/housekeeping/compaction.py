"""Compaction: of each key the latest message stays, up to a horizon; the topic itself is untouched.

Invariants: what is kept is a new file, durable before one commit names it with the horizon, so a
compaction that is killed anywhere leaves a file that no commit names, and the next begins again;
it starts from the compaction before and what was published since, so it needs nothing that was
trimmed; of two at once one is given up. Memory: the keys and their positions, and a row group.
Follows Pulsar's `TwoPhaseCompactor`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.publishing.outgoing_messages import payload_sizes
from pulsar_spark.connector.runtime.reading.chunk_reading import PartitionChunks, put_together
from pulsar_spark.connector.runtime.reading.input_partition import RowRange
from pulsar_spark.connector.runtime.reading.partition_view import kept_rows
from pulsar_spark.connector.runtime.topics.ledger_store import Progress, no_progress
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.content_digest import ContentDigest
from pulsar_spark.connector.storage.data_files.ledger_file import (
    MESSAGE_SCHEMA,
    LedgerFileReader,
    LedgerFileWriter,
)
from pulsar_spark.errors import ObjectNotFoundError
from pulsar_spark.log.compacted_ledgers import CompactedLedgers
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.positions.ledger_info import FileSeal, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.options.options import Options

MOVED_AWAY_RETRIES: Final = 5
"""The number of times that a partition is begun again after its files were merged or compacted."""
CHUNKS_AWAITED_MS: Final = 10 * 60 * 1000
"""A chunked message that is not complete holds the horizon before its first chunk for so long."""
_OF_CHUNKS: Final = ("uuid", "chunk_id", "num_chunks_from_msg", "total_chunk_msg_size")


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of compacting one partition."""

    partition: int
    horizon: Position
    read: int
    kept: int


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows to compact: what to read, and which messages of a ledger the selected ones are."""

    ledger: LedgerInfo
    numbers: NDArray[np.int64]
    rows: RowRange


@dataclass(slots=True)
class _Kept:
    """The kept rows of one ledger, in order."""

    ledger: LedgerInfo
    first_row: int
    size_bytes: int = 0
    numbers: list[NDArray[np.int64]] = field(default_factory=list)
    digest: ContentDigest = field(default_factory=ContentDigest)


@dataclass(frozen=True, slots=True)
class _Way:
    """The settings of a compaction: see `compact`."""

    retain_null_key: bool
    waits: bool
    progress: Progress


def compact(
    ledger: ManagedLedger,
    partitions: Collection[int] | None = None,
    *,
    retain_null_key: bool = False,
    waits: bool = True,
    progress: Progress = no_progress,
) -> list[Compacted]:
    """Compact these partitions (all) up to their ends as of now; those with nothing new stay out.

    A message without a key is dropped, unless `retain_null_key` (Pulsar:
    topicCompactionRetainNullKey); an empty value removes its key. Without `waits` a partition stays
    as it is behind an open transaction. What `progress` raises ends the compaction, and nothing has
    happened.
    """
    ledger.refresh()
    way, done = _Way(retain_null_key, waits, progress), []
    for partition in range(ledger.state.partitions) if partitions is None else sorted(partitions):
        for attempt in range(MOVED_AWAY_RETRIES):
            try:
                found = _compact(ledger, partition, way)
            except ObjectNotFoundError:
                if attempt == MOVED_AWAY_RETRIES - 1:
                    raise
                ledger.refresh()
                continue
            if found is not None:
                done.append(found)
            break
    return done


def backlog_bytes(state: TopicState, partition: int) -> int:
    """Bytes of the partition's messages that no compaction has seen."""
    part = state.partition(partition)
    if part.compacted is None:
        return part.size_bytes
    seen = part.compacted.horizon.ledger_id
    return sum(each.size_bytes for each in part.ledgers.between(seen + 1, state.next_ledger_id))


def _compact(ledger: ManagedLedger, partition: int, way: _Way) -> Compacted | None:
    before, ledgers = ledger.state.partition(partition).compacted, ledger.ledgers(partition)
    if not len(ledgers):
        return None
    options = Options.parse({"serviceUrl": ".", "failOnDataLoss": "false"})
    chunks = PartitionChunks(ledger, partition, options)
    horizon = _horizon(ledger, partition, chunks)
    if horizon <= (before.horizon if before is not None else EARLIEST):
        return None
    sources = _sources(ledger, partition, before, horizon, chunks)
    read = sum(len(each.numbers) for each in sources)
    advance = way.progress(f"compacting partition {partition}", 2 * read)
    with (
        ledger.reader() as reader,
        LedgerFileWriter(ledger.store, ledger.folder) as writer,
    ):
        latest = _latest(reader, sources, advance)
        kept = _copy(reader, sources, latest, writer, partition, way, advance)
        seal = writer.close() if writer.rows else None
    compacted = _compacted(horizon, kept, writer.path, seal)

    def build(state: TopicState, new: Commit) -> Commit | None:
        now = state.partition(partition).compacted
        if (now and now.to_json_value()) != (before and before.to_json_value()):
            return None  # Another compaction was quicker, and its horizon is as good.
        value = {partition: compacted.to_json_value()}
        return replace(new, compacted=value)

    if ledger.commit(build, waits=way.waits) is None:
        return None
    return Compacted(partition, horizon, read, writer.rows)


def _horizon(ledger: ManagedLedger, partition: int, chunks: PartitionChunks) -> Position:
    """The end of the last ledger before which no message has chunks that are still to come.

    So no chunk of a message that may yet be complete is trimmed because its ledger is compacted.
    """
    ledgers, known = ledger.ledgers(partition), chunks.known()
    pending = None if known is None else known.first_pending(ledger.clock() - CHUNKS_AWAITED_MS)
    last = ledgers[-1] if pending is None else ledgers.last_before(pending.ledger_id)
    return EARLIEST if last is None else last.last


def _sources(
    ledger: ManagedLedger,
    partition: int,
    before: CompactedLedgers | None,
    horizon: Position,
    chunks: PartitionChunks,
) -> list[_Source]:
    """The rows of the last compaction, and all messages since, as published."""
    found = []
    if before is not None:
        found += [_Source(each, *kept_rows(before, each)) for each in before.ledgers]
    ledgers = ledger.ledgers(partition)
    new = PositionSet.between(ledgers, before.horizon if before else EARLIEST, horizon)
    new = new.difference(ledger.state.partition(partition).hidden.of(new.ledger_ids))
    for rows in chunks.row_ranges(new):
        selected = rows.selected()
        inside = np.arange(rows.rows) if selected is None else np.flatnonzero(selected)
        found.append(_Source(rows.ledger, rows.first_row + inside, rows))
    return found


def _latest(
    reader: LedgerFileReader, sources: Iterable[_Source], advance: Callable[[int], object]
) -> NDArray[np.int64]:
    """The first pass: the numbers of the messages that are the latest of their key and not empty.

    Messages are numbered through all sources, from 0.
    """
    latest: dict[bytes | None, int] = {}
    at = 0
    for source in sources:
        for batch in _read(reader, source, ("key", "value")):
            numbers = np.arange(at, at + batch.num_rows)
            empty = payload_sizes(batch.column("value")) == 0
            keys = batch.column("key").cast(pa.binary()).to_pylist()
            latest.update(zip(keys, np.where(empty, -1, numbers).tolist(), strict=True))
            at += batch.num_rows
            advance(batch.num_rows)
    latest.pop(None, None)
    numbers = np.fromiter(latest.values(), np.int64, len(latest))
    return np.sort(numbers[numbers >= 0])


def _copy(
    reader: LedgerFileReader,
    sources: Iterable[_Source],
    latest: NDArray[np.int64],
    writer: LedgerFileWriter,
    partition: int,
    way: _Way,
    advance: Callable[[int], object],
) -> list[_Kept]:
    """The second pass: write what is kept; by ledger, which messages those are."""
    kept: list[_Kept] = []
    at = 0
    for source in sources:
        done = 0
        for batch in _read(reader, source, MESSAGE_SCHEMA.names):
            mask = np.zeros(batch.num_rows, np.bool_)
            first, stop = np.searchsorted(latest, (at, at + batch.num_rows))
            mask[latest[first:stop] - at] = True
            if way.retain_null_key:
                mask |= pc.is_null(batch.column("key")).to_numpy(zero_copy_only=False)
            if mask.any():
                rows = batch.filter(pa.array(mask))
                first_row = writer.write(rows, partition)
                if not kept or kept[-1].ledger.ledger_id != source.ledger.ledger_id:
                    kept.append(_Kept(source.ledger, first_row))
                kept[-1].numbers.append(source.numbers[done : done + batch.num_rows][mask])
                kept[-1].size_bytes += int(payload_sizes(rows.column("value")).sum())
                kept[-1].digest.add(rows)
            at += batch.num_rows
            done += batch.num_rows
            advance(batch.num_rows)
    return kept


def _read(
    reader: LedgerFileReader, source: _Source, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The source's messages, one row each; a chunked one as if it had been published whole."""
    rows, done = source.rows, 0
    selected = rows.selected()
    for batch in reader.read(rows.ledger, columns, rows.first_row, rows.rows):
        size = batch.num_rows
        if rows.chunks:
            yield _in_one_piece(batch, reader, rows)
        elif selected is None:
            yield batch
        else:
            yield batch.filter(pa.array(selected[done : done + size]))
        done += size


def _in_one_piece(
    batch: pa.RecordBatch, reader: LedgerFileReader, rows: RowRange
) -> pa.RecordBatch:
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in columns:
        if name in _OF_CHUNKS:
            columns[name] = pa.nulls(1, batch.schema.field(name).type)
    columns["value"] = put_together(reader, rows.chunks)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


def _compacted(
    horizon: Position, kept: Sequence[_Kept], file: str, seal: FileSeal | None
) -> CompactedLedgers:
    ledgers, messages = [], PositionSet()
    for each in kept:
        ledger, numbers = each.ledger, np.concatenate(each.numbers)
        messages = messages.union(PositionSet.of_messages(ledger, numbers))
        ledgers.append(
            replace(
                ledger, file=file, first_row=each.first_row, size_bytes=each.size_bytes,
                seal=seal, digest=each.digest.value,
            )
        )  # fmt: skip
    return CompactedLedgers(horizon, LedgerList(ledgers), messages)
