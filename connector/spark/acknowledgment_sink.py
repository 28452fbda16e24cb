"""The sinks that acknowledge: with `subscriptionName`, rows of message ids become commands.

Invariants: tasks store nothing; a row that can't be right fails the task, and then nothing is
stored. Spark's shell around `acknowledgment_rows` and `acknowledgment_writer`, which need no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Folded, fold
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_writer import tell
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import check_columns
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError
from pulsar_spark.options.options import Options

_NUMBERS: Final = (LongType(), IntegerType())
ACK_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "ledger_id": _NUMBERS,
    "entry_id": _NUMBERS,
    "partition": _NUMBERS,
    "batch_index": _NUMBERS,
    "topic": (StringType(),),
    "ack_type": (StringType(),),
    "attempt": _NUMBERS,
    "delay": (StringType(), DayTimeIntervalType(), *_NUMBERS),
    "delay_ms": _NUMBERS,
    "reconsume_times": _NUMBERS,
    "properties": (MapType(StringType(), StringType()),),
    "error": (StringType(),),
}
"""Column of a row that acknowledges -> the types that it may have."""
_OPTIONS: Final = frozenset({
    "serviceUrl", "topic", "subscriptionName", "txnAppId", "txnVersion", "ackReceiptEnabled",
    "operationTimeout",
})  # fmt: skip


class AcknowledgmentSink:
    """Rows acknowledge messages."""

    def __init__(self, options: Options, root: Root, schema: StructType) -> None:
        """InvalidOptionError or InvalidMessageError if rows of this schema can't acknowledge."""
        _check(options, schema)
        self.options, self._root = options, root

    def write(self, batches: Iterable[pa.RecordBatch], numbering: object = None) -> Folded:  # noqa: ARG002 - of messages
        return fold(batches, self._root, self.options["topic"])

    def commit(
        self, found: Sequence[Folded], application: tuple[str, int] | None, run_id: str | None
    ) -> None:
        subscription = self.options["subscriptionName"]
        if application is not None and run_id is None:
            # Subscriptions share the log of `__commands`: the name keeps their versions apart.
            application = (f"{application[0]}/{subscription}", application[1])
        timeout_ms = self.options["operationTimeout"] if self.options["ackReceiptEnabled"] else None
        tell(self._root, subscription, found, application, timeout_ms)


def _check(options: Options, schema: StructType) -> None:
    if foreign := [name for name in options.given if name not in _OPTIONS]:
        raise InvalidOptionError(
            f"Option {foreign[0]} has no meaning here: with subscriptionName a sink acknowledges "
            "messages, and publishes none. Leave one of the two out."
        )
    check_columns(schema, ACK_COLUMNS, "an acknowledgement", "rename the column, or drop it")
    if {"delay", "delay_ms"} <= set(schema.fieldNames()):
        raise InvalidMessageError("Columns delay and delay_ms mean the same: give one of them.")
    if missing := [name for name in ("ledger_id", "entry_id") if name not in schema.fieldNames()]:
        raise InvalidMessageError(
            f"There is no column {missing[0]}. With subscriptionName a sink takes rows that "
            f"acknowledge: {', '.join(ACK_COLUMNS)}; the rows have {schema.fieldNames()}."
        )
    if not options["topic"] and "topic" not in schema.fieldNames():
        raise InvalidOptionError(
            'Messages of which topic? Give .option("topic", "flights"), or a column named topic.'
        )
