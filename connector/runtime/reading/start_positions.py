"""The position where reading begins or ends, as a cursor: earliest, latest, a message id, a time.

Invariants: the cursor holds what is not to be read, so reading it is `end - cursor`; an id in the
middle of a batch begins in the middle of it; a time begins at the entry behind the newest one
that was published earlier, as Pulsar's `seek(timestamp)`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from pulsar_spark.connector.runtime.reading.partition_view import PartitionView, kept_rows
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Options


@dataclass(frozen=True, slots=True)
class StartPosition:
    """A time, or for each partition earliest, latest or an id: `at` where `ids` has none. Pickles.

    An id is itself read if it is `inclusive`.
    """

    at: str = "earliest"
    ids: Mapping[TopicPartition, str] = field(default_factory=dict)
    time_ms: int | None = None
    inclusive: bool = True

    def cursor(self, view: PartitionView) -> Cursor:
        """A cursor that holds everything before the position."""
        if self.time_ms is not None:
            return Cursor(before_time(view, self.time_ms))
        given = self.ids.get(view.topic_partition, self.at)
        if given == "latest":
            return Cursor(view.last_position)
        if given == "earliest":
            return Cursor(view.first_position)
        return before_id(MessageId.parse(given), view, inclusive=self.inclusive)

    def check_topics(self, read: Collection[TopicPartition]) -> None:
        """InvalidOptionError if ids are given for a partition that is not read."""
        for named in self.ids:
            if named not in read:
                raise InvalidOptionError(
                    f"Message ids are given for {named}, which is not read here. Read are "
                    f"{', '.join(str(each) for each in read)}."
                )


def start_position(options: Options, default: str) -> StartPosition:
    """The position at which the options let reading begin."""
    given = options["startingOffsets"] if options.has("startingOffsets") else default
    if isinstance(given, str):
        return StartPosition(given, time_ms=options["startingTime"])
    return StartPosition("earliest", given, inclusive=options["startMessageIdInclusive"])


def end_position(options: Options) -> StartPosition:
    """The position at which the options let a batch end: its cursor holds all up to there."""
    given = options["endingOffsets"]
    if isinstance(given, str):
        return StartPosition(given, time_ms=options["endingTime"])
    return StartPosition("latest", given, inclusive=False)


def before_id(message_id: MessageId, view: PartitionView, *, inclusive: bool) -> Cursor:
    """A cursor that holds all before the message, and the message too unless it is `inclusive`.

    If the message was trimmed, the cursor lies below `trimmed`: that shows the loss.
    """
    position, ledgers = message_id.position, view.ledgers
    if position <= EARLIEST:
        return Cursor(view.first_position)
    ledger = ledgers.get(position.ledger_id)
    if ledger is None or position.entry_id >= ledger.entries:
        before = ledgers.last_before(position.ledger_id + (ledger is not None))
        if before is None:
            return Cursor(min(position.previous if inclusive else position, view.trimmed))
        return Cursor(before.last)
    size = ledger.batch_sizes.size_of(position.entry_id)
    done = message_id.batch_index if inclusive else message_id.batch_index + 1
    if message_id.batch_index < 0:
        done = 0 if inclusive else size
    cursor = Cursor(position.previous)
    if done <= 0:
        return cursor
    return cursor.acknowledge_cumulative(position, min(done, size) - 1, size)


def before_time(view: PartitionView, time_ms: int) -> Position:
    """The newest entry whose first message was published before that time.

    Of a compacted ledger only the kept messages count.
    """
    older = (each for each in reversed(view.ledgers) if each.min_publish_time_ms < time_ms)
    if (newest := next(older, None)) is None:
        return view.first_position
    if newest.max_publish_time_ms < time_ms:
        return newest.last
    ledger = view.ledger
    compacted = ledger.state.partition(newest.partition).compacted
    numbers, rows = np.arange(newest.messages), newest
    if compacted is not None and compacted.ledgers.get(newest.ledger_id) == newest:
        numbers, there = kept_rows(compacted, newest)
        rows = there.ledger
    with ledger.reader() as reader:
        times = reader.read_table(rows, ["publish_time"])["publish_time"]
    entries, firsts = np.unique(newest.batch_sizes.places(numbers)[0], return_index=True)
    micros = pc.cast(times, "int64").to_numpy()[firsts]
    earlier = entries[micros < time_ms * 1000]
    return Position(newest.ledger_id, int(earlier[-1]) if len(earlier) else -1)
