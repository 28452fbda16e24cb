"""Redrive: dead letters go back to where they came from, all of them or those that match.

    done = Admin("root").topics.redrive("orders-billing-DLQ", error="Timeout")

Invariants: a letter is published again and acknowledged for the redriving subscription in one
transaction, so it goes back once, wherever a redrive is killed; a newer redrive of a subscription
fences older ones; letters of one key go back in the order in which they were published first; a
letter that can't go back stays. Pulsar has nothing of the kind; Amazon's SQS has, and sends, as
this does, to the source for all that read it: docs/decisions/0026.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.broker.protocol.commands import CreateSubscription, InitialPosition
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.dead_letter import (
    REDRIVE_SUBSCRIPTION,
    REPUBLICATION_PROPERTIES,
    Reason,
)
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import fold
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_writer import records_of
from pulsar_spark.connector.runtime.publishing.message_writer import (
    LARGEST,
    WrittenTopic,
    write_messages,
)
from pulsar_spark.connector.runtime.publishing.publishing import commit_as_one
from pulsar_spark.connector.runtime.reading.dead_letters import dead_letters_of
from pulsar_spark.connector.runtime.reading.message_reader import read_positions
from pulsar_spark.connector.runtime.schema.schema_registration import SinkSchema, check_validation
from pulsar_spark.connector.runtime.system_topics.hosted_topics import hosted_states
from pulsar_spark.connector.runtime.system_topics.subscription_admin import ask
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, SystemTopic
from pulsar_spark.connector.runtime.topics.ledger_store import Progress, no_progress
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.message_columns import IDS, READ_COLUMNS
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import (
    DataLossError,
    IncompatibleSchemaError,
    InvalidOptionError,
    InvalidTopicNameError,
    MessageTooBigError,
    PulsarliteError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import (
    TopicName,
    TopicPartition,
    check_subscription_name,
    check_user_topic,
)
from pulsar_spark.options.options import Options

DEAD_LETTERS_A_TRANSACTION: Final = 10_000
BYTES_AT_ONCE: Final = 64 << 20
"""At most so many letters, and about so many bytes, are one transaction."""
TRANSACTION_TIMEOUT_MS: Final = 30_000
"""After a redrive was killed, other writers of its topics may wait so long for it."""
PARTS: Final = 1 << 20
"""At most so many transactions are one redrive: the next one's numbers are above all of them."""

_ORIGIN: Final = ("origin_partition", "origin_ledger", "origin_entry", "origin_index")
_ORDER: Final = ("target", *_ORIGIN, "partition", "ledger_id", "entry_id", "batch_index")
_LOOKED_AT: Final = (*IDS, "topic", "key", "properties", "publish_time", "deliver_at")
_COPIED: Final = ("key", "ordering_key", "value", "event_time")
_TAKEN: Final = (*IDS, *_COPIED, "properties", "schema_version")
_NO_WAY_BACK: Final = (
    IncompatibleSchemaError, InvalidTopicNameError, MessageTooBigError, TopicNotFoundError,
    TopicTerminatedError,
)  # fmt: skip
"""Faults of one topic that letters are to go back to: the others go on."""


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A filter of dead letters: a message goes back if it passes all conditions given here."""

    origin_topic: str | None = None
    dead_lettered_by: str | None = None
    """The subscription that gave them up."""
    reason: str | None = None
    """A `Reason`."""
    error: str | None = None
    """Text that their error has."""
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    since: datetime | None = None
    """When they became letters, this instant included."""
    until: datetime | None = None
    message_ids: tuple[MessageId, ...] = ()
    """The ids of the dead letters themselves; one without batch index is a whole entry."""

    def __post_init__(self) -> None:
        reasons = [each.value for each in Reason]
        if self.reason is not None and self.reason not in reasons:
            raise InvalidOptionError(f"No reason {self.reason!r}: there is {', '.join(reasons)}.")
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise InvalidOptionError(f"{name} {time} has no time zone: give one, such as UTC.")

    def chosen(self, dead_letters: pa.RecordBatch) -> pa.RecordBatch:
        """The dead letters of these that go back."""
        masks: list[Any] = []
        for name, text in (
            ("origin_topic", self.origin_topic), ("subscription", self.dead_lettered_by),
            ("reason", self.reason), ("key", self.key),
        ):  # fmt: skip
            if text is not None:
                masks.append(pc.equal(dead_letters.column(name), text))
        if self.error is not None:
            masks.append(pc.match_substring(dead_letters.column("error"), self.error))
        for name, text in self.properties.items():
            held = pc.map_lookup(dead_letters.column("properties"), pa.scalar(name), "first")
            masks.append(pc.equal(held, text))
        times = dead_letters.column("publish_time")
        if self.since is not None:
            masks.append(pc.greater_equal(times, pa.scalar(self.since, times.type)))
        if self.until is not None:
            masks.append(pc.less(times, pa.scalar(self.until, times.type)))
        if self.message_ids:
            masks.append(reduce(pc.or_, (_is(dead_letters, each) for each in self.message_ids)))
        return dead_letters.filter(reduce(pc.and_kleene, masks)) if masks else dead_letters


@dataclass(slots=True)
class Redriven:
    """The result of a redrive, or of a dry run."""

    topic: str
    subscription: str
    dry_run: bool
    dead_letters: int = 0
    """That matched, and had not gone back before."""
    redriven: dict[str, int] = field(default_factory=dict)
    """Topic -> how many went there."""
    left: dict[str, int] = field(default_factory=dict)
    """Why letters stay -> how many."""


class Redrive:
    """One redrive of one dead letter topic."""

    def __init__(
        self,
        root: Root,
        topic: TopicName,
        requested: DeadLetterFilter,
        to: str | None = None,
        subscription: str = REDRIVE_SUBSCRIPTION,
    ) -> None:
        """TopicNotFoundError if there is no such topic, nor one to send to."""
        check_subscription_name(subscription)
        self._root, self._requested, self._subscription = root, requested, subscription
        self._log = root.open(check_user_topic(topic, "redriven"))
        self._to = None if to is None else check_user_topic(TopicName.parse(to), "redriven to")
        if self._to is not None:
            root.open(self._to)
        self._partitions = [
            TopicPartition(self._log.topic, each) for each in range(self._log.state.partitions)
        ]
        self._options = Options.parse({**root.options, "maxMessageSize": str(LARGEST)})

    def look(self) -> Redriven:
        """The result that it would have, as far as the broker has reported. Needs no broker."""
        done = Redriven(self._log.topic, self._subscription, dry_run=True)
        for part in self._parts(self._dead_letters(), done):
            for target in part["target"].to_pylist():
                done.redriven[target] = done.redriven.get(target, 0) + 1
        return done

    def run(self, progress: Progress = no_progress) -> Redriven:
        """Do it, part by part."""
        done = Redriven(self._log.topic, self._subscription, dry_run=False)
        if not (self._is_subscribed() or len(self._dead_letters())):
            return done  # a subscription that is not needed would keep all that is published
        number = self._take_over()
        # Answered behind all that earlier redrives have said, so the broker's state has that.
        create = CreateSubscription(self._subscription, InitialPosition.EARLIEST)
        ask(self._root, dict.fromkeys(self._partitions, create))
        self._log.refresh()
        parts = self._parts(self._dead_letters(), done)
        advance = progress("redriving", sum(map(len, parts)))
        for place, part in enumerate(parts, 1):
            self._send(part, number + place, done)
            advance(len(part))
        return done

    def _is_subscribed(self) -> bool:
        states = hosted_states(self._root, self._partitions.__contains__).values()
        return any(self._subscription in each.subscriptions for each in states)

    # -- which letters -------------------------------------------------------------------------

    def _dead_letters(self) -> pa.Table:
        """Ids and origins of those that match, a row each, in the order in which they go back."""
        schema = pa.schema([each.field for each in READ_COLUMNS if each.name in _LOOKED_AT])
        found = [_DEAD_LETTERS.empty_table()]
        for topic_partition, messages in self._not_redriven().items():
            for batch in self._read({topic_partition: messages}, schema):
                dead_letters = self._requested.chosen(dead_letters_of(batch, None))
                found.append(_with_origins(dead_letters, self._to))
        table = pa.concat_tables(found)
        return table.sort_by([(name, "ascending") for name in _ORDER])

    def _not_redriven(self) -> dict[TopicPartition, PositionSet]:
        """The unacknowledged messages by partition; all where the subscription is new."""
        states, found = hosted_states(self._root, self._partitions.__contains__), {}
        for topic_partition in self._partitions:
            state = states.get(topic_partition)
            messages = not_redriven(self._log, topic_partition.partition, state, self._subscription)
            held = None if state is None else state.subscriptions.get(self._subscription)
            if state is not None and held is not None:
                if held.consumers:
                    raise InvalidOptionError(
                        f"Subscription {self._subscription} of {self._log.topic} has consumers, "
                        f"which are given these letters: {', '.join(sorted(held.consumers))}. Stop "
                        "them, or name another subscription."
                    )
                messages = messages.up_to(state.last_position)
            found[topic_partition] = messages
        return found

    def _parts(self, dead_letters: pa.Table, done: Redriven) -> list[pa.Table]:
        """The messages that go back together; those that can't are noted and left out."""
        done.dead_letters = len(dead_letters)
        for target in dead_letters["target"].unique().to_pylist():
            if (fault := self._fault_of(target)) is not None:
                mask = pc.equal(dead_letters["target"], target)
                _leave(done, fault, pc.sum(mask).as_py())
                dead_letters = dead_letters.filter(pc.invert(mask))
        states = [self._log.state.partition(each.partition) for each in self._partitions]
        size = sum(s.size_bytes for s in states) // max(sum(s.messages for s in states), 1)
        rows = max(1, min(DEAD_LETTERS_A_TRANSACTION, BYTES_AT_ONCE // max(size, 1)))
        return [dead_letters.slice(first, rows) for first in range(0, len(dead_letters), rows)]

    def _fault_of(self, target: str) -> PulsarliteError | None:
        """Why nothing can go there."""
        try:
            log = self._root.open(check_user_topic(TopicName.parse(target), "redriven to"))
            log.state.check_takes_messages()
        except _NO_WAY_BACK as error:
            return error
        return None

    # -- going back ----------------------------------------------------------------------------

    def _take_over(self) -> int:
        """A number above those of all earlier redrives, which can't go on from here."""
        log = SystemTopic(self._root, COMMANDS).open()
        while True:
            log.refresh()
            last = log.state.applications.get(self._application, -1)
            number = max(last // PARTS + 1, self._root.clock.wall_ms()) * PARTS
            if isinstance(log.append([], application=(self._application, number)), Commit):
                return number

    @property
    def _application(self) -> str:
        return f"redrive/{self._log.topic}/{self._subscription}"

    def _send(self, part: pa.Table, number: int, done: Redriven) -> None:
        """Publish these letters and acknowledge them, as one."""
        dead_letters = self._with_values(part)
        written: list[WrittenTopic] = []
        sent: list[pa.Table] = []
        for target, run in _runs(dead_letters):
            try:
                written += self._write(TopicName.parse(target), run)
            except _NO_WAY_BACK as error:
                _leave(done, error, len(run))
                continue
            sent.append(run.select(IDS))
            done.redriven[target] = done.redriven.get(target, 0) + len(run)
        if sent:
            ids = pa.concat_tables(sent)
            folded_ids = fold(ids.to_batches(), self._root, self._log.topic)
            records = records_of(self._root, self._subscription, [folded_ids])
            commit_as_one(
                self._root, written, records, None, TRANSACTION_TIMEOUT_MS,
                fence=(self._application, number),
            )  # fmt: skip

    def _with_values(self, part: pa.Table) -> pa.Table:
        """The same letters, in the same order, with all that goes back."""
        ids = part.select(IDS).to_batches()
        messages = {
            topic_partition: folded_ids.individual[None]
            for topic_partition, folded_ids in fold(ids, self._root, self._log.topic).items()
        }
        schema = pa.schema([each.field for each in READ_COLUMNS if each.name in _TAKEN])
        whole = pa.Table.from_batches(list(self._read(messages, schema)), schema)
        by_id = [(name, "ascending") for name in IDS]
        ordered = pc.sort_indices(part, by_id)
        if len(whole) != len(part):
            raise DataLossError(
                f"Letters of {self._log.topic} were trimmed while they were redriven. Run it again."
            )
        whole = whole.take(pc.sort_indices(whole, by_id))
        back = pc.sort_indices(ordered)
        return whole.take(back).append_column("target", part["target"])

    def _write(self, target: TopicName, run: pa.Table) -> list[WrittenTopic]:
        """Write files that nobody sees yet; an error of `_NO_WAY_BACK` if the topic refuses."""
        log = self._root.open(target)
        version = run["schema_version"][0].as_py()
        info = None if version is None else self._log.state.schemas.get(version)
        schema = None if info is None else SinkSchema(info, encoded=True)
        if schema is None:
            check_validation(log, target)
        columns = {name: run[name].combine_chunks() for name in _COPIED}
        columns["properties"] = _as_they_were(run["properties"])
        columns["topic"] = pa.repeat(str(target), len(run))
        batch = pa.RecordBatch.from_pydict(columns)
        return write_messages([batch], self._options, self._root, schema, enforced=False)

    def _read(
        self, messages: Mapping[TopicPartition, PositionSet], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for topic_partition, held in messages.items():
            yield from read_positions(
                self._root, self._log, topic_partition.partition, held, schema
            )


# -- inside --------------------------------------------------------------------------------------

_DEAD_LETTERS: Final = pa.schema(
    [
        ("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("partition", pa.int32()),
        ("batch_index", pa.int32()), ("target", pa.string()),
        *((name, pa.int64()) for name in _ORIGIN),
    ]
)  # fmt: skip
_MESSAGE_ID: Final = (
    r"^(?P<ledger>-?\d{1,18}):(?P<entry>-?\d{1,18}):(?P<partition>-?\d{1,9})"
    r"(?::(?P<index>-?\d{1,9}))?"
)


def not_redriven(
    log: ManagedLedger, partition: int, state: BrokerState | None, subscription: str
) -> PositionSet:
    """The messages of a partition that the subscription has not acknowledged; all if it is new."""
    held = None if state is None else state.subscriptions.get(subscription)
    ledgers, hidden = log.ledgers(partition), log.state.partition(partition).hidden
    messages = (Cursor() if held is None else held.cursor).unread(ledgers)
    return messages.difference(hidden.of(each.ledger_id for each in ledgers))


def _is(dead_letters: pa.RecordBatch, message_id: MessageId) -> pa.Array:
    """The rows that have that id."""
    requested = {
        "ledger_id": message_id.ledger_id,
        "entry_id": message_id.entry_id,
        "partition": max(message_id.partition, 0),
    }
    if message_id.batch_index >= 0:
        requested["batch_index"] = message_id.batch_index
    return reduce(
        pc.and_, (pc.equal(dead_letters.column(k), number) for k, number in requested.items())
    )


def _with_origins(dead_letters: pa.RecordBatch, to: TopicName | None) -> pa.Table:
    """A row each: its id, where it goes, and where it was; without a readable id there, nulls."""
    columns = {name: dead_letters.column(name) for name in IDS}
    columns["target"] = dead_letters.column("origin_topic")
    if to is not None:
        columns["target"] = pa.repeat(str(to), dead_letters.num_rows)
    parts = pc.extract_regex(dead_letters.column("origin_message_id"), _MESSAGE_ID)
    for name in _ORIGIN:
        text = pc.struct_field(parts, name.removeprefix("origin_"))
        columns[name] = pc.if_else(pc.equal(text, ""), None, text).cast(pa.int64())
    return pa.Table.from_pydict(columns).cast(_DEAD_LETTERS)


def _runs(dead_letters: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """(topic, the letters that go there), in order, cut where the schema version changes too."""
    places = zip(
        dead_letters["target"].to_pylist(), dead_letters["schema_version"].to_pylist(), strict=True
    )
    first = 0
    for (target, _), run in groupby(places):
        count = sum(1 for _ in run)
        yield target, dead_letters.slice(first, count)
        first += count


def _as_they_were(properties: pa.ChunkedArray) -> pa.Array:
    """Without those that letters have beside the message's own."""
    rows = [
        [(name, text) for name, text in row or () if name not in REPUBLICATION_PROPERTIES]
        for row in properties.to_pylist()
    ]
    return pa.array(rows, pa.map_(pa.string(), pa.string()))


def _leave(done: Redriven, error: PulsarliteError, dead_letters: int) -> None:
    done.left[error.message] = done.left.get(error.message, 0) + dead_letters
