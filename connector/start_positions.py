"""Where reading begins or ends: earliest, latest, a message id, a time; as a cursor.

Invariants: the cursor holds what is not to be read, so reading it is `end - cursor`; an id in the
middle of a batch begins in the middle of it; a time begins at the entry behind the newest one
that was published earlier, as Pulsar's `seek(timestamp)`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from pulsar_spark.connector.ledger_file import LedgerFileReader
from pulsar_spark.connector.managed_ledger import ManagedLedger
from pulsar_spark.cursor import Cursor
from pulsar_spark.errors import InvalidOptionError, PulsarliteError
from pulsar_spark.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.message_id import MessageId
from pulsar_spark.position import EARLIEST, Position
from pulsar_spark.stream_offset import TopicPartition
from pulsar_spark.topic_name import TopicName

Ids = Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class StartPosition:
    """One of: `at` earliest or latest, ids by partition, a time. Pickles."""

    at: str = "earliest"
    ids: Ids | None = None
    time_ms: int | None = None
    inclusive: bool = True

    @staticmethod
    def parse(name: str, text: str, *, inclusive: bool = True) -> StartPosition:
        """Read the option `name`: earliest, latest, or JSON of ids by topic and partition."""
        if text.strip().lower() in ("earliest", "latest"):
            return StartPosition(text.strip().lower())
        try:
            by_topic = json.loads(text)
            ids = {
                TopicPartition(str(TopicName.parse(topic)), int(partition)): str(given)
                for topic, partitions in by_topic.items()
                for partition, given in partitions.items()
            }
            for given in ids.values():
                if given not in ("earliest", "latest"):
                    MessageId.parse(given)
        except PulsarliteError:
            raise
        except (ValueError, AttributeError, TypeError) as error:
            raise InvalidOptionError(
                f"Option {name} can't be {text!r} ({error}). It takes earliest, latest, or JSON "
                'such as {"flights": {"0": "7:12:0", "1": "earliest"}}, ids by partition.'
            ) from None
        return StartPosition(ids=ids, inclusive=inclusive)

    @staticmethod
    def parse_time(name: str, text: str) -> StartPosition:
        """Read the option `name`: milliseconds since 1970, or ISO 8601 (UTC if it names no zone)."""
        if text.strip().lstrip("-").isdecimal():
            return StartPosition(time_ms=int(text))
        try:
            moment = dt.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        except ValueError:
            raise InvalidOptionError(
                f"Option {name} can't be {text!r}: it takes milliseconds since 1970, or a date "
                "and time such as 2026-01-31T12:00:00Z."
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.timezone.utc)
        return StartPosition(time_ms=round(moment.timestamp() * 1000))

    def cursor(self, ledger: ManagedLedger, partition: int) -> Cursor:
        """Everything before the position, in that partition as it is now."""
        ledgers = ledger.ledgers(partition)
        if self.time_ms is not None:
            return Cursor(before_time(ledger, ledgers, self.time_ms))
        given = self.at
        if self.ids is not None:
            given = self.ids.get(TopicPartition(ledger.topic, partition), "earliest")
        if given == "latest":
            return Cursor(last_position(ledgers, ledger.state.trimmed_up_to(partition)))
        if given == "earliest":
            return Cursor(first_position(ledgers, ledger.state.trimmed_up_to(partition)))
        return before_id(MessageId.parse(given), ledgers, inclusive=self.inclusive)

    def check_topics(self, partitions: Callable[[], Mapping[TopicPartition, object]]) -> None:
        """InvalidOptionError if ids are given for a partition that is not read."""
        if self.ids:
            known = partitions()
            for named in self.ids:
                if named not in known:
                    texts = ", ".join(str(each) for each in known)
                    raise InvalidOptionError(
                        f"Message ids are given for {named}, which is not read here. Read are "
                        f"{texts}."
                    )


def first_position(ledgers: LedgerList, trimmed: Position) -> Position:
    """The mark-delete position of a new cursor at the earliest message."""
    return Position(ledgers[0].ledger_id, -1) if len(ledgers) else trimmed


def last_position(ledgers: LedgerList, trimmed: Position) -> Position:
    """The last entry that there is."""
    if not len(ledgers):
        return trimmed
    last = ledgers[-1]
    return Position(last.ledger_id, last.entries - 1)


def before_id(message_id: MessageId, ledgers: LedgerList, *, inclusive: bool) -> Cursor:
    """All before the message, and with it too unless it is `inclusive`."""
    position = message_id.position
    if position <= EARLIEST:
        return Cursor()
    ledger = ledgers.get(position.ledger_id)
    if ledger is None or position.entry_id >= ledger.entries:
        before = ledgers.last_before(position.ledger_id + (ledger is not None))
        return Cursor(EARLIEST if before is None else Position(before.ledger_id, before.entries - 1))
    size = ledger.batch_sizes.size_of(position.entry_id)
    done = message_id.batch_index if inclusive else message_id.batch_index + 1
    if message_id.batch_index < 0:
        done = 0 if inclusive else size
    cursor = Cursor(position.previous)
    if done <= 0:
        return cursor
    return cursor.acknowledge_cumulative(position, min(done, size) - 1, size)


def before_time(ledger: ManagedLedger, ledgers: LedgerList, time_ms: int) -> Position:
    """The newest entry that was published before that time (its first message was)."""
    newest: LedgerInfo | None = None
    for each in reversed(list(ledgers)):
        if each.min_publish_time_ms < time_ms:
            newest = each
            break
    if newest is None:
        return first_position(ledgers, EARLIEST)
    if newest.max_publish_time_ms < time_ms:
        return Position(newest.ledger_id, newest.entries - 1)
    reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
    try:
        times = reader.read_table(newest, ["publish_time"])["publish_time"]
    finally:
        reader.close()
    sizes = newest.batch_sizes.array()
    firsts = sizes.cumsum() - sizes
    micros = pc.cast(times, "int64").to_numpy()[firsts]
    earlier = (micros < time_ms * 1000).nonzero()[0]
    return Position(newest.ledger_id, int(earlier[-1]) if len(earlier) else -1)
