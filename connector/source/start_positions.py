"""The position where reading begins or ends, as a cursor: earliest, latest, a message id, a time.

Invariants: the cursor holds what is not to be read, so reading it is `end - cursor`; an id in the
middle of a batch begins in the middle of it; a time begins at the entry behind the newest one
that was published earlier, as Pulsar's `seek(timestamp)`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from pulsar_spark.connector.ledger_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.errors import InvalidOptionError, PulsarliteError
from pulsar_spark.options.option_values import parse_time_ms
from pulsar_spark.options.options import Options
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.positions.message_id import MessageId
from pulsar_spark.positions.position import EARLIEST, Position
from pulsar_spark.records.stored_data import parse_json
from pulsar_spark.topic_name import TopicName, TopicPartition

Ids = Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class StartPosition:
    """One of: `at` earliest or latest, ids by partition, a time. Pickles.

    A partition without an id is at `at`.
    """

    at: str = "earliest"
    ids: Ids | None = None
    time_ms: int | None = None
    inclusive: bool = True

    @staticmethod
    def parse(name: str, text: str, *, inclusive: bool = True) -> StartPosition:
        """Read the option `name`: earliest, latest, or JSON of ids by topic and partition."""
        if text.strip().lower() in ("earliest", "latest"):
            return StartPosition(text.strip().lower())
        return StartPosition(
            "earliest", _ids(name, text, "earliest", "latest"), inclusive=inclusive
        )

    @staticmethod
    def parse_end(name: str, text: str) -> StartPosition:
        """Read the option `name`: latest, or JSON of the last ids to read."""
        if text.strip().lower() == "latest":
            return StartPosition("latest")
        return StartPosition("latest", _ids(name, text, "latest"), inclusive=False)

    @staticmethod
    def parse_time(name: str, text: str) -> StartPosition:
        """Read the option `name`: milliseconds since 1970, or ISO 8601 (UTC without a zone)."""
        try:
            return StartPosition(time_ms=parse_time_ms(text))
        except ValueError:
            raise InvalidOptionError(
                f"Option {name} can't be {text!r}: it takes milliseconds since 1970, or a date "
                "and time such as 2026-01-31T12:00:00Z."
            ) from None

    def cursor(
        self,
        ledger: ManagedLedger,
        partition: int,
        ledgers: LedgerList,
        trimmed: Position,
    ) -> Cursor:
        """A cursor that holds everything before the position, in a partition with these ledgers."""
        if self.time_ms is not None:
            return Cursor(before_time(ledger, ledgers, trimmed, self.time_ms))
        given = self.at
        if self.ids is not None:
            given = self.ids.get(TopicPartition(ledger.topic, partition), self.at)
        if given == "latest":
            return Cursor(last_position(ledgers, trimmed))
        if given == "earliest":
            return Cursor(first_position(ledgers, trimmed))
        return before_id(MessageId.parse(given), ledgers, trimmed, inclusive=self.inclusive)

    def check_topics(self, read: Collection[TopicPartition]) -> None:
        """InvalidOptionError if ids are given for a partition that is not read."""
        for named in self.ids or ():
            if named not in read:
                raise InvalidOptionError(
                    f"Message ids are given for {named}, which is not read here. Read are "
                    f"{', '.join(str(each) for each in read)}."
                )


def start_position(options: Options, default: str) -> StartPosition:
    """The position at which the options let reading begin."""
    if options.has("startingTime"):
        return StartPosition.parse_time("startingTime", options["startingTime"])
    text = options["startingOffsets"] if options.has("startingOffsets") else default
    return StartPosition.parse(
        "startingOffsets", text, inclusive=options["startMessageIdInclusive"]
    )


def end_position(options: Options) -> StartPosition:
    """The position at which the options let a batch end: its cursor holds all up to there."""
    if options.has("endingTime"):
        return StartPosition.parse_time("endingTime", options["endingTime"])
    return StartPosition.parse_end("endingOffsets", options["endingOffsets"])


def first_position(ledgers: LedgerList, trimmed: Position) -> Position:
    """The mark-delete position of a new cursor at the earliest message."""
    return Position(ledgers[0].ledger_id, -1) if len(ledgers) else trimmed


def last_position(ledgers: LedgerList, trimmed: Position) -> Position:
    """The last entry that exists; `trimmed` if none does."""
    if not len(ledgers):
        return trimmed
    last = ledgers[-1]
    return Position(last.ledger_id, last.entries - 1)


def before_id(
    message_id: MessageId, ledgers: LedgerList, trimmed: Position, *, inclusive: bool
) -> Cursor:
    """A cursor that holds all before the message, and the message too unless it is `inclusive`.

    If the message was trimmed, the cursor lies below `trimmed`: that shows the loss.
    """
    position = message_id.position
    if position <= EARLIEST:
        return Cursor(first_position(ledgers, trimmed))
    ledger = ledgers.get(position.ledger_id)
    if ledger is None or position.entry_id >= ledger.entries:
        before = ledgers.last_before(position.ledger_id + (ledger is not None))
        if before is None:
            return Cursor(min(position.previous if inclusive else position, trimmed))
        return Cursor(Position(before.ledger_id, before.entries - 1))
    size = ledger.batch_sizes.size_of(position.entry_id)
    done = message_id.batch_index if inclusive else message_id.batch_index + 1
    if message_id.batch_index < 0:
        done = 0 if inclusive else size
    cursor = Cursor(position.previous)
    if done <= 0:
        return cursor
    return cursor.acknowledge_cumulative(position, min(done, size) - 1, size)


def before_time(
    ledger: ManagedLedger, ledgers: LedgerList, trimmed: Position, time_ms: int
) -> Position:
    """The newest entry whose first message was published before that time.

    Of a compacted ledger only the kept messages count.
    """
    newest: LedgerInfo | None = None
    for each in reversed(list(ledgers)):
        if each.min_publish_time_ms < time_ms:
            newest = each
            break
    if newest is None:
        return first_position(ledgers, trimmed)
    if newest.max_publish_time_ms < time_ms:
        return Position(newest.ledger_id, newest.entries - 1)
    compacted = ledger.state.compacted(newest.partition)
    if compacted is not None and compacted.ledgers.get(newest.ledger_id) == newest:
        numbers = np.flatnonzero(compacted.kept.row_mask(newest))
        rows = replace(newest, batch_sizes=BatchSizes(((1, len(numbers)),)))
    else:
        numbers, rows = np.arange(newest.messages), newest
    reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
    try:
        times = reader.read_table(rows, ["publish_time"])["publish_time"]
    finally:
        reader.close()
    entries, firsts = np.unique(newest.batch_sizes.entries_of(numbers), return_index=True)
    micros = pc.cast(times, "int64").to_numpy()[firsts]
    earlier = entries[micros < time_ms * 1000]
    return Position(newest.ledger_id, int(earlier[-1]) if len(earlier) else -1)


def _ids(name: str, text: str, *words: str) -> Ids:
    """Read JSON of ids by topic and partition; one of `words` may stand in place of an id."""
    try:
        ids = {
            TopicPartition(str(TopicName.parse(topic)), int(partition)): str(given)
            for topic, partitions in parse_json(text).items()
            for partition, given in partitions.items()
        }
        for partition, given in ids.items():
            if given not in words:
                _check_partition(MessageId.parse(given), partition)
    except PulsarliteError:
        raise
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidOptionError(
            f"Option {name} can't be {text!r} ({error}). It takes {' or '.join(words)}, or JSON "
            f'such as {{"flights": {{"0": "7:12:0", "1": "{words[0]}"}}}}, by topic and partition.'
        ) from None
    return ids


def _check_partition(message_id: MessageId, partition: TopicPartition) -> None:
    if message_id.partition not in (-1, partition.partition):
        raise ValueError(f"{message_id} is an id of partition {message_id.partition}")
