"""Duplicates dropped in a state store, in whatever order messages come: for a query before a sink.

A message is a duplicate if one with its producer name and sequence id came before, in this
micro-batch or in an earlier one, whatever partition it went to. Invariants: a message that never
came is never dropped, though a higher sequence id was there before it; the state is one bit for
each sequence id, in values of at most 8 KB, and knows of no trimming.

Takes the place of Pulsar's `MessageDeduplication` where ids come in any order, and for messages
without a key, which the sink deduplicates by partition only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, StructField, StructType

from pulsar_spark.errors import InvalidMessageError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, ValueState

BUCKET_BITS: Final = 16
"""A state value holds the sequence ids that agree in all but so many bits: at most 8 KB."""

_LOW_BITS, _ROW = "low_bits", "row"


def deduplicate(messages: DataFrame) -> DataFrame:
    """The messages without those whose producer_name and sequence_id came before, in any order.

    For a streaming DataFrame, in front of `writeStream`; rows without either of the two pass. The
    state is in the query's checkpoint. InvalidMessageError if there are no such columns.
    """
    missing = {"producer_name", "sequence_id"} - set(messages.columns)
    if missing:
        raise InvalidMessageError(
            f"There is no column {' and no '.join(sorted(missing))}, by which duplicates are told: "
            f"the rows have {messages.columns}."
        )
    sequence_id = sf.col("sequence_id").cast("long")
    numbered = sf.col("producer_name").isNotNull() & sequence_id.isNotNull()
    keyed = messages.select(
        sf.col("producer_name"),
        numbered.alias("numbered"),
        sf.coalesce(sf.shiftright(sequence_id, BUCKET_BITS), sf.lit(0)).alias("bucket"),
        sf.coalesce(sequence_id.bitwiseAND((1 << BUCKET_BITS) - 1), sf.lit(0)).alias(_LOW_BITS),
        # As one struct the rest passes through pandas unchanged: numbers with nulls stay whole.
        sf.struct(*messages.columns).alias(_ROW),
    )
    kept = keyed.groupBy("producer_name", "numbered", "bucket").transformWithStateInPandas(
        DeduplicationProcessor(), StructType([keyed.schema[_ROW]]), "Append", "None"
    )
    return kept.select(f"{_ROW}.*")


class DeduplicationProcessor(StatefulProcessor):
    """Keeps, for each key, a bitmap of the low bits of the sequence ids that came."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        schema = StructType([StructField("seen", BinaryType())])
        self._seen: ValueState = handle.getValueState("seen", schema)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        _, numbered, _ = key
        if not numbered:
            yield from (some[[_ROW]] for some in rows)
            return
        stored = self._seen.get()
        seen = BitMap.deserialize(bytes(stored[0])) if stored else BitMap()
        for some in rows:
            fresh = _fresh(seen, some[_LOW_BITS].to_numpy())
            if fresh.any():
                yield some.loc[fresh, [_ROW]]
        seen.run_optimize()
        self._seen.update((seen.serialize(),))

    def close(self) -> None:
        """Nothing is held."""


def _fresh(seen: BitMap, low_bits: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The rows whose values are neither in `seen` nor earlier among them; `seen` takes them in."""
    numbers, firsts = np.unique(low_bits, return_index=True)
    activity = BitMap(numbers.astype(np.uint32)) - seen
    fresh = np.zeros(len(low_bits), np.bool_)
    fresh[firsts[np.isin(numbers, np.array(activity, np.int64))]] = True
    seen.update(activity)
    return fresh
