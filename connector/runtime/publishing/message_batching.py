"""The entries of a partition's messages, and the order in which they are stored.

Invariants: a message with a delivery time is an entry of its own; the default container keeps the
order of the rows, the key-based one the order within each key. Follows Pulsar's
`BatchMessageContainerImpl` and `BatchMessageKeyBasedContainer`.
"""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.publishing.outgoing_messages import PAYLOAD_SIZE
from pulsar_spark.log.producing.batch_message_container import BatchLimits, key_based_order
from pulsar_spark.model.positions.ledger_info import BatchSizes
from pulsar_spark.options.options import Options


def batch_limits(options: Options) -> BatchLimits:
    """The limits at which an entry is full."""
    return BatchLimits(
        options["batchingMaxMessages"] if options["batchingEnabled"] else 1,
        options["batchingMaxBytes"],
        options["maxMessageSize"],
    )


def in_entries(messages: pa.Table, options: Options) -> tuple[pa.Table, BatchSizes]:
    """The messages in the order in which they are stored, and the sizes of their entries."""
    sizes = _containers(messages, batch_limits(options))
    if options["batcherBuilder"] == "KEY_BASED":
        order, sizes = key_based_order(_key_codes(messages), _sequence_ids(messages), sizes)
        messages = messages.take(pa.array(order))
    return messages, BatchSizes.of(sizes.tolist())


def _containers(messages: pa.Table, limits: BatchLimits) -> NDArray[np.int64]:
    """The sizes of containers of consecutive messages; a delayed message has one to itself."""
    sizes = messages[PAYLOAD_SIZE].to_numpy()
    if "deliver_at" not in messages.column_names:
        return limits.cut(sizes)
    batches: list[int] = []
    start = 0
    for place in np.flatnonzero(pc.is_valid(messages["deliver_at"]).to_numpy()).tolist():
        batches += limits.cut(sizes[start:place]).tolist()
        batches.append(1)
        start = place + 1
    batches += limits.cut(sizes[start:]).tolist()
    return np.array(batches, np.int64)


def _key_codes(messages: pa.Table) -> NDArray[np.int64]:
    """A number for each key: the ordering key, else the key; 0 without either. Shape (rows,)."""
    keys = pa.nulls(len(messages), pa.string())
    if "key" in messages.column_names:
        keys = messages["key"].combine_chunks()
    if "ordering_key" in messages.column_names:
        known = messages["ordering_key"].combine_chunks().dictionary_encode()
        texts = [base64.b64encode(key).decode() for key in known.dictionary.to_pylist()]
        keys = pc.coalesce(pa.array(texts, pa.string()).take(known.indices), keys)
    codes: NDArray[np.int32] = pc.fill_null(keys.dictionary_encode().indices, -1).to_numpy()
    return codes.astype(np.int64) + 1


def _sequence_ids(messages: pa.Table) -> NDArray[np.int64]:
    """The messages' own sequence ids; a message without one gets its row number."""
    if "sequence_id" not in messages.column_names or messages["sequence_id"].null_count:
        return np.arange(len(messages), dtype=np.int64)
    ids: NDArray[np.int64] = messages["sequence_id"].to_numpy()
    return ids
