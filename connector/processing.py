"""A function on each message, whose failures become retries and dead letters: `process`.

    outcomes = pulsar_spark.process(messages, charge_the_card, timeout="30s")
    outcomes.writeStream.format("pulsarlite").option("subscriptionName", "billing").start()

Invariants: every message has one outcome row, whatever its function does; outcome rows are what a
sink with `subscriptionName` takes; the function runs in the workers, in a child process of its
task, so no message ends the query. Follows Pulsar Functions, with its retries and dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pulsar_spark.connector.function_process import FunctionProcess, Work
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError
from pulsar_spark.outcome import Delay, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ID_COLUMNS: Final = ("ledger_id", "entry_id", "partition", "batch_index", "topic")
RESULT: Final = "result"
_SAID: Final = (
    StructField("ack_type", StringType(), False),
    StructField("delay_ms", LongType()),
    StructField("error", StringType()),
)


def process(
    df: DataFrame,
    function: Callable[..., Any],
    *,
    result: DataType | str | None = None,
    by_batch: bool = False,
    timeout: Delay | None = None,
) -> DataFrame:
    """Run a function on each message of a DataFrame; a row for each says what became of it.

    The function gets a Row with the DataFrame's columns. Returns it, the message is acknowledged.
    Raises it, or does it end its process (a segmentation fault, `os._exit`, memory) or take longer
    than `timeout`, the message is given back: it comes again after the consumer's delay or
    backoff, and after `maxRedeliverCount` times it is a dead letter whose property ERROR has the
    error's text. `RetryLater(delay)` raised gives it back for that long; `Reject(reason)` makes a
    dead letter of it at once. With `by_batch` the function gets Arrow record batches, and where it
    fails their halves, so it sees messages more than once.

    The rows have the message's id, `topic`, `attempt`, `ack_type`, `delay_ms` and `error`: what a
    sink with `subscriptionName` takes. With a `result` type (`"double"`) there is a column `result`
    too, of what the function returned (by batch: an array or a list): drop it before the sink.
    """
    schema = _schema(df, result)
    timeout_s = None
    if timeout is not None:
        try:
            timeout_s = milliseconds(timeout) / 1000
        except ValueError as error:
            raise InvalidOptionError(f"timeout: {error}") from error
    kept = [field.name for field in schema.fields if field.name in (*ID_COLUMNS, "attempt")]
    type_ = schema[RESULT].dataType if result is not None else None
    arrow_type = None if type_ is None else to_arrow_type(type_)
    task = _Processing(Work(function, by_batch, arrow_type), timeout_s, tuple(kept))
    return df.mapInArrow(task, schema)


@dataclass(frozen=True)
class _Processing:
    """What each task does. Pickles, if the function does."""

    work: Work
    timeout_s: float | None
    kept: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with FunctionProcess(self.work, self.timeout_s) as function:
            for batch in batches:
                if batch.num_rows:
                    yield self._rows(batch, function)

    def _rows(self, batch: pa.RecordBatch, function: FunctionProcess) -> pa.RecordBatch:
        outcomes = function.run(batch)
        columns = {name: batch.column(name) for name in self.kept}
        columns["ack_type"] = pa.array([each.ack_type for each in outcomes], pa.string())
        columns["delay_ms"] = pa.array([each.delay_ms for each in outcomes], pa.int64())
        columns["error"] = pa.array([each.error for each in outcomes], pa.string())
        if self.work.result_type is not None:
            results = [each.result for each in outcomes]
            columns[RESULT] = pa.array(results, self.work.result_type)
        return pa.RecordBatch.from_pydict(columns)


def _schema(df: DataFrame, result: DataType | str | None) -> StructType:
    missing = [name for name in ID_COLUMNS if name not in df.columns]
    if missing:
        raise InvalidMessageError(
            f"The DataFrame has no column {missing[0]}: a message is known by "
            f"{', '.join(ID_COLUMNS)}. Keep these columns of what was read."
        )
    fields = [df.schema[name] for name in ID_COLUMNS]
    if "attempt" in df.columns:
        fields.append(StructField("attempt", IntegerType(), True))
    fields += _SAID
    if result is not None:
        fields.append(StructField(RESULT, _type(result)))
    return StructType(fields)


def _type(text: DataType | str) -> DataType:
    if isinstance(text, DataType):
        return text
    return DataType.fromDDL(text)
