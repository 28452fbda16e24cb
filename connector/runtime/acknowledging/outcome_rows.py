"""Outcomes of messages (acknowledged, rejected, to be consumed later) as rows for a sink's folding.

Invariants: an outcome that no column can hold is refused at once, before it joins others; rows have
the columns of a sink that acknowledges. Follows what Pulsar's `ConsumerImpl` keeps in its trackers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import Acknowledgments, fold
from pulsar_spark.connector.runtime.reading.received_message import ReceivedMessage
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import InvalidMessageError
from pulsar_spark.model.topic_name import TopicPartition

PLACE: Final = {
    "topic": pa.string(), "ledger_id": pa.int64(), "entry_id": pa.int64(),
    "partition": pa.int64(), "batch_index": pa.int64(), "attempt": pa.int64(),
}  # fmt: skip
COLUMNS: Final = {
    **PLACE, "ack_type": pa.string(), "delay_ms": pa.int64(), "reconsume_times": pa.int64(),
    "properties": pa.map_(pa.string(), pa.string()), "delay": pa.string(), "error": pa.string(),
}  # fmt: skip
"""The columns of outcomes are those of a sink that acknowledges."""
Row = tuple[Any, ...]
Outcome = ReceivedMessage | Row
"""A message that is acknowledged, or a row that says something else."""


def folded(
    messages: Sequence[ReceivedMessage], root: Root
) -> dict[TopicPartition, Acknowledgments]:
    """The acknowledgement of these messages, as a sink that acknowledges folds it."""
    return fold([batch_of(messages)], root, None) if messages else {}


def partition_of(outcome: Outcome) -> TopicPartition:
    if isinstance(outcome, ReceivedMessage):
        return outcome.partition
    return TopicPartition(outcome[0], outcome[3])


def _places(messages: Iterable[ReceivedMessage]) -> Iterator[Row]:
    """The places of these messages, in the order of PLACE."""
    for each in messages:
        ledger_id, entry_id, partition, batch_index = each.place
        yield each.topic, ledger_id, entry_id, max(partition, 0), batch_index, each.attempt


def rows_of(
    kind: str,
    messages: Iterable[ReceivedMessage],
    delay_ms: int | None = None,
    reconsume_times: int | None = None,
    properties: list[tuple[str, str]] | None = None,
    error: str | None = None,
) -> list[Row]:
    """The rows for these messages, in the order of COLUMNS."""
    outcome = kind, delay_ms, reconsume_times, properties, None, error
    rows = [(*place, *outcome) for place in _places(messages)]
    if rows and outcome.count(None) < len(outcome) - 1:
        batch_of(rows)  # what can't be said is refused while the caller is here
    return rows


def batch_of(outcome: Sequence[Outcome]) -> pa.RecordBatch:
    """Rows, or messages that are acknowledged. InvalidMessageError: no column holds one's part."""
    done = [each for each in outcome if isinstance(each, ReceivedMessage)]
    rows: Iterable[Row] = _places(done) if done else outcome
    columns = zip(COLUMNS.items(), zip(*rows, strict=True), strict=False)
    try:
        return pa.RecordBatch.from_pydict(
            {
                name: pa.array(values, kind)
                for (name, kind), values in columns
                if values.count(None) < len(values)
            }
        )
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidMessageError(f"That can't be said of a message: {error}") from error
