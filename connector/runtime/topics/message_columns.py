"""The columns of a message, read and written, declared once, by their Arrow types.

Invariants: a reader's columns are computed from the log, or stored; Spark's types follow from
Arrow's, so that batches pass unchanged; a user's schema may pick among them, in any order, and is
refused where it names another: `connector/spark/column_types.py` has them as Spark's types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(_TEXT, _TEXT)


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column of a source. `stored` ones come from the data files, others from the log."""

    name: str
    type: pa.DataType
    nullable: bool
    stored: bool
    meaning: str

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, self.nullable)


READ_COLUMNS: Final = (
    ReadColumn("ledger_id", pa.int64(), False, False, "message id: the ledger"),
    ReadColumn("entry_id", pa.int64(), False, False, "message id: the entry in its ledger"),
    ReadColumn("partition", pa.int32(), False, False, "message id: the topic's partition"),
    ReadColumn("batch_index", pa.int32(), False, False, "message id: the place in its entry"),
    ReadColumn("topic", _TEXT, False, False, "full name, without partition"),
    ReadColumn("key", _TEXT, True, True, "partition key; null without one"),
    ReadColumn("ordering_key", pa.binary(), True, True, "key of order, where it is not `key`"),
    ReadColumn("value", pa.binary(), True, True, "payload; null is a tombstone"),
    ReadColumn("properties", _PROPERTIES, True, True, "only with includeProperties or by schema"),
    ReadColumn("producer_name", _TEXT, True, True, "who published it: as was said, or QUERY-TASK"),
    ReadColumn("sequence_id", pa.int64(), True, True, "the producer's number for it, which rises"),
    ReadColumn("publish_time", _TIME, False, True, "when it was published, by its clock"),
    ReadColumn("event_time", _TIME, True, True, "when it happened, if the user said"),
    ReadColumn("deliver_at", _TIME, True, True, "not to be delivered before"),
    ReadColumn("schema_version", pa.int64(), True, True, "version of the topic's schema"),
    ReadColumn("redelivery_count", pa.int32(), False, False, "0 for a Reader"),
    ReadColumn("attempt", pa.int32(), False, False, "which grant of it this is; consumers only"),
    ReadColumn("first_chunk_message_id", _TEXT, True, False,
               "only by schema: the id of a chunked message's first chunk, as text"),
    ReadColumn("schema_error", _TEXT, True, False,
               "with onSchemaMismatch null: why the message does not fit its schema"),
)  # fmt: skip
IDS: Final = ("ledger_id", "entry_id", "partition", "batch_index")
"""The columns by which a message is known, within its topic."""
READ_BY_NAME: Final = {column.name: column for column in READ_COLUMNS}
_STORED: Final = {column.name for column in READ_COLUMNS if column.stored}

_TEXT_OR_BYTES: Final = (pa.binary(), _TEXT)
_INTEGERS: Final = (pa.int64(), pa.int32())

WRITE_COLUMNS: Final[dict[str, tuple[pa.DataType, ...]]] = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "ordering_key": _TEXT_OR_BYTES,
    "properties": (_PROPERTIES,),
    "event_time": (_TIME,),
    "deliver_at": (_TIME,),
    "deliver_after": (pa.duration("us"), pa.int64(), pa.int32()),
    "topic": (_TEXT,),
    "producer_name": (_TEXT,),
    "sequence_id": _INTEGERS,
}
"""Column of a sink -> the types that it may have."""


def read_columns(
    *, include_properties: bool, consumer: bool = False, schema_errors: bool = False
) -> pa.Schema:
    """The columns of a source to which the user gave no schema."""
    chosen = {
        "properties": include_properties,
        "attempt": consumer,
        "schema_error": schema_errors,
        "first_chunk_message_id": False,
    }
    return pa.schema([each.field for each in READ_COLUMNS if chosen.get(each.name, True)])


def stored_columns(schema: pa.Schema) -> list[str]:
    """The columns of the schema that files have; a planner may have given it others to compute."""
    return [name for name in schema.names if name in _STORED]
