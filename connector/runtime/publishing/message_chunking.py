"""A sink's large messages, cut into chunks; and the chunks of a table, as the log has them.

Invariants: all chunks of a message are consecutive rows of one partition, entries of their own;
together their values are the message's, byte for byte, and are never copied to be cut; every
chunk has the message's other fields. Follows Pulsar's `ProducerImpl.serializeAndSendMessage`.
"""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.publishing.outgoing_messages import PAYLOAD_SIZE
from pulsar_spark.connector.storage.data_files.content_digest import offsets_of
from pulsar_spark.connector.storage.data_files.ledger_file import MESSAGE_SCHEMA
from pulsar_spark.log.chunked_messages import ChunkRun
from pulsar_spark.options.options import Options

CHUNK_COLUMNS = ("uuid", "chunk_id", "num_chunks_from_msg", "total_chunk_msg_size")


def in_chunks(messages: pa.Table, options: Options) -> pa.Table:
    """The messages of one partition, each larger one as several rows; with chunk columns."""
    sizes = messages[PAYLOAD_SIZE].to_numpy()
    limit = payload_chunk_size(options["maxMessageSize"], options["chunkMaxMessageSize"])
    counts = np.maximum(1, -(-sizes // limit))
    rows = np.repeat(np.arange(len(sizes)), counts)
    chunk_ids = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    whole = counts[rows] == 1
    columns = {
        name: messages[name].take(pa.array(rows)) if len(rows) > len(sizes) else messages[name]
        for name in messages.column_names
        if name != "value"
    }
    columns["value"] = _cut(messages["value"], counts, chunk_ids * limit)
    columns[PAYLOAD_SIZE] = pa.array(np.minimum(limit, sizes[rows] - chunk_ids * limit))
    known = {number: _uuid(messages, number) for number in np.flatnonzero(counts > 1).tolist()}
    columns["uuid"] = pa.array([known.get(row) for row in rows.tolist()], pa.string())
    numbers = (chunk_ids, counts[rows], sizes[rows])
    for name, values in zip(CHUNK_COLUMNS[1:], numbers, strict=True):
        columns[name] = pa.array(values, MESSAGE_SCHEMA.field(name).type, mask=whole)
    return pa.table(columns)


def payload_chunk_size(room: int, most: int | None) -> int:
    """The payload bytes of a full chunk: a message has room for so many, a chunk at most `most`."""
    return min(room, most or room)


def chunk_runs(messages: pa.Table) -> tuple[ChunkRun, ...]:
    """The chunks among rows that are entries of one message each."""
    if "uuid" not in messages.column_names:
        return ()
    rows = np.flatnonzero(pc.is_valid(messages["uuid"]).to_numpy())
    if not len(rows):
        return ()
    found = messages.select(CHUNK_COLUMNS).take(pa.array(rows))
    uuids = found["uuid"].combine_chunks().dictionary_encode()
    codes, ids = uuids.indices.to_numpy(), found["chunk_id"].to_numpy()
    goes_on = (np.diff(rows) == 1) & (np.diff(ids) == 1) & (np.diff(codes) == 0)
    firsts = np.concatenate(([0], np.flatnonzero(~goes_on) + 1))
    counts = np.diff(np.concatenate((firsts, [len(rows)])))
    uuids, chunk_ids, of, sizes = (each.to_pylist() for each in found.take(pa.array(firsts)))
    entries = rows[firsts].tolist()
    return tuple(map(ChunkRun, entries, uuids, chunk_ids, counts.tolist(), of, sizes))


def _cut(values: pa.ChunkedArray, counts: NDArray[np.int64], within: NDArray[np.int64]) -> pa.Array:
    """Each value cut into so many parts, which begin `within` it: more offsets into its bytes."""
    array = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    offsets = offsets_of(array)
    starts = np.repeat(offsets[:-1].astype(np.int64), counts) + within
    cut = np.concatenate((starts, offsets[-1:])).astype(np.int32)
    valid = None
    if array.null_count:
        present = np.repeat(pc.is_valid(array).to_numpy(zero_copy_only=False), counts)
        valid = pa.array(present).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [valid, pa.py_buffer(cut), array.buffers()[2]]
    )


def _uuid(messages: pa.Table, row: int) -> str:
    """The uuid of a message's chunks: its producer and sequence id, or a new one."""
    if {"producer_name", "sequence_id"} <= set(messages.column_names):
        producer, number = (messages[n][row].as_py() for n in ("producer_name", "sequence_id"))
        if producer is not None and number is not None:
            return f"{producer}-{number}"
    return uuid.uuid4().hex
