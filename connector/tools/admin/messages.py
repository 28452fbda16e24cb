"""Messages as they are stored, one by one: the oldest, the newest, those of an id.

Invariants: nothing is acknowledged, and no broker is asked; what the log hides (duplicates) is left
out; parts of a chunked message are shown as they lie. Follows Pulsar's `Topics.peekMessages`,
`examineMessage`, `getMessageById` and `getMessageIdByTimestamp`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.data_files.ledger_file import MESSAGE_SCHEMA, LedgerFileReader
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position_set import PositionSet

Place = tuple[LedgerInfo, int]
"""(ledger, row in it)"""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message. `value` None is a tombstone; `columns` has all else that it was given."""

    topic: str
    message_id: MessageId
    value: bytes | None
    columns: dict[str, Any]

    @property
    def publish_time(self) -> datetime:
        found: datetime = self.columns["publish_time"]
        return found

    def to_json_value(self) -> dict[str, Any]:
        """For JSON: times as texts, bytes as texts too where they are UTF-8, else in base 64."""
        held = {"topic": self.topic, "message_id": self.message_id.text(), "value": self.value}
        held |= {name: each for name, each in self.columns.items() if each is not None}
        return {name: _plain(each) for name, each in held.items()}


def in_order(ledger: ManagedLedger, partition: int, *, newest: bool) -> Iterator[Place]:
    """The place of each message of a partition that is shown, from one end to the other."""
    ledgers = ledger.ledgers(partition)
    for each in reversed(ledgers) if newest else ledgers:
        for row in _rows_shown(ledger, each, reverse=newest):
            yield each, row


def oldest(ledger: ManagedLedger, partition: int, count: int) -> list[StoredMessage]:
    """The first messages of a partition."""
    return _read(ledger, islice(in_order(ledger, partition, newest=False), count))


def newest(ledger: ManagedLedger, partition: int, count: int) -> list[StoredMessage]:
    """The last messages of a partition, in their order."""
    chosen = list(islice(in_order(ledger, partition, newest=True), count))
    return _read(ledger, reversed(chosen))


def nth(ledger: ManagedLedger, partition: int, number: int, *, newest: bool) -> list[StoredMessage]:
    """The `number`-th message (1 is the first) from the one end or the other; none: not so many."""
    rows = in_order(ledger, partition, newest=newest)
    return _read(ledger, islice(rows, number - 1, number))


def at(ledger: ManagedLedger, message_id: MessageId) -> list[StoredMessage]:
    """The message of an id; without a batch index all of its entry. None: there are none."""
    info = ledger.ledgers(message_id.partition).get(message_id.ledger_id)
    if info is None or not 0 <= message_id.entry_id < info.entries:
        return []
    first = info.batch_sizes.first_message(message_id.entry_id)
    size = info.batch_sizes.size_of(message_id.entry_id)
    rows: Sequence[int] = range(first, first + size)
    if message_id.batch_index >= 0:
        rows = rows[message_id.batch_index : message_id.batch_index + 1]
    return _read(ledger, ((info, row) for row in rows))


def first_since(ledger: ManagedLedger, partition: int, time_ms: int) -> MessageId | None:
    """The first message behind all that were published before that time; None: there is none."""
    found: Place | None = None
    for info in reversed(ledger.ledgers(partition)):
        if info.max_publish_time_ms < time_ms:
            break
        first = 0
        if info.min_publish_time_ms < time_ms:
            with ledger.reader() as reader:
                times = reader.read_table(info, ["publish_time"])["publish_time"]
            earlier = pc.cast(times, "int64").to_numpy() < time_ms * 1000
            first = int(earlier.nonzero()[0][-1]) + 1
        shown = (row for row in _rows_shown(ledger, info, reverse=False) if row >= first)
        if (row := next(shown, None)) is not None:
            found = info, row
        if first:
            break
    if found is None:
        return None
    info, row = found
    entry_id, batch_index = info.batch_sizes.locate(row)
    return MessageId(info.ledger_id, entry_id, partition, batch_index)


def among(ledger: ManagedLedger, partition: int, messages: PositionSet) -> list[StoredMessage]:
    """These messages, as far as they are there."""
    found = []
    for ledger_id in messages.ledger_ids:
        if (info := ledger.ledgers(partition).get(ledger_id)) is not None:
            found += [(info, int(row)) for row in messages.row_mask(info).nonzero()[0]]
    return _read(ledger, found)


def _rows_shown(ledger: ManagedLedger, info: LedgerInfo, *, reverse: bool) -> Iterable[int]:
    """The rows of its messages that are not hidden."""
    rows: Sequence[int] = range(info.messages)
    if hidden := ledger.state.partition(info.partition).hidden.of([info.ledger_id]):
        mask = hidden.row_mask(info)
        rows = [row for row in rows if not mask[row]]
    return reversed(rows) if reverse else rows


def _read(ledger: ManagedLedger, places: Iterable[Place]) -> list[StoredMessage]:
    with ledger.reader() as reader:
        return [_message(reader, ledger.topic, *each) for each in places]


def _message(reader: LedgerFileReader, topic: str, ledger: LedgerInfo, row: int) -> StoredMessage:
    (batch,) = reader.read(ledger, MESSAGE_SCHEMA.names, row, 1)
    columns = {name: _value(batch.column(name)) for name in batch.schema.names}
    entry_id, batch_index = ledger.batch_sizes.locate(row)
    where = MessageId(ledger.ledger_id, entry_id, ledger.partition, batch_index)
    return StoredMessage(topic, where, columns.pop("value"), columns)


def _value(column: pa.Array) -> Any:
    """The one value of a column. A time that Python does not have, after the year 9999, as text."""
    try:
        return column[0].as_py()
    except OverflowError:
        return f"{np.datetime_as_string(column.to_numpy(zero_copy_only=False)[0], unit='ms')}Z"


def moment_text(moment: datetime | str) -> str:
    """To the millisecond, in UTC; what is text is already."""
    if isinstance(moment, str):
        return moment
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return moment_text(value)
    return dict(value) if isinstance(value, list) else value
