"""The sequence ids in a data file, by producer: deduplication needs them where ranges overlap."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.log.sequence_ranges import SequenceRange

SEQUENCE_COLUMNS: Final = ("producer_name", "sequence_id", "chunk_id", "num_chunks_from_msg")
"""The columns that `sequences_of` reads."""
Rows = NDArray[np.int64]


def sequences_of(messages: pa.Table | pa.RecordBatch) -> dict[str, tuple[Rows, Rows]]:
    """(rows, sequence ids) by producer, of messages that have both; shape (n,), int64.

    Of a chunked message the last chunk stands for it, as in Pulsar.
    """
    if not {"producer_name", "sequence_id"} <= set(messages.schema.names):
        return {}
    producers, ids = messages.column("producer_name"), messages.column("sequence_id")
    known = pc.and_(pc.is_valid(producers), pc.is_valid(ids))
    if "chunk_id" in messages.schema.names:
        last = pc.subtract(messages.column("num_chunks_from_msg"), 1)
        known = pc.and_(known, pc.fill_null(pc.equal(messages.column("chunk_id"), last), True))
    places = np.arange(messages.num_rows)
    found = pa.table({"producer": producers, "id": ids, "row": places}).filter(known)
    names = found["producer"].combine_chunks().dictionary_encode()
    rows, values, codes = (array.to_numpy() for array in (found["row"], found["id"], names.indices))
    return {
        name: (rows[codes == code], values[codes == code])
        for code, name in enumerate(names.dictionary.to_pylist())
    }


def sequence_ranges(messages: pa.Table | pa.RecordBatch) -> dict[str, SequenceRange]:
    """The range of sequence ids that a NewLedger brings along, by producer."""
    return {
        producer: SequenceRange.of(ids) for producer, (_, ids) in sequences_of(messages).items()
    }
