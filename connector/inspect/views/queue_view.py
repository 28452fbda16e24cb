"""One view of a queue: planned once, on one batch of the broker, then read task by task.

    view = QueueView(options, root)
    for task in view.tasks():
        for batch in read(task, schema): ...

Invariants: all rows of a plan are of one batch of the broker, named in `Snapshot`; a task pickles,
and reads of the messages' files only the columns of the schema that it is given; a message whose
ledger was trimmed keeps its row, without what lay in the file.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.inspect.views import state_rows, topic_stats
from pulsar_spark.connector.inspect.views.acknowledgements import acknowledgements
from pulsar_spark.connector.inspect.views.dispatch_history import DispatchHistory
from pulsar_spark.connector.inspect.views.message_sets import SETS, Group, MessageSet
from pulsar_spark.connector.inspect.views.recent_deliveries import RecentDeliveries
from pulsar_spark.connector.inspect.views.view_columns import MESSAGE, TIME, VIEWS, View
from pulsar_spark.connector.runtime.reading.dead_letters import (
    NEEDED,
    dead_letters_of,
    may_have_dead_letters,
)
from pulsar_spark.connector.runtime.reading.input_partition import (
    MessageInputPartition,
    TopicRows,
    row_ranges,
)
from pulsar_spark.connector.runtime.reading.message_reader import read_messages
from pulsar_spark.connector.runtime.reading.micro_batch import Ranges, dealt
from pulsar_spark.connector.runtime.reading.partition_view import PartitionView, numbered, rows_left
from pulsar_spark.connector.runtime.reading.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.runtime.system_topics.lease import Lease, leases, read_lease
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root, root_options
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Options

Partitions = Mapping[TopicPartition, PartitionView]
GROUPED: Final = frozenset({*SETS, "acknowledgements"})
"""Views of messages whose own columns are those of groups."""
ALL: Final = "persistent://.*"
"""The topics without a choice."""
GROUP: Final = pa.field("group", pa.int32())
"""The group of its view to which a message belongs, from 1."""


@dataclass(frozen=True, slots=True)
class ViewTask:
    """A share of a view's rows: a table, or messages with the columns of their groups.

    No file of `trimmed` messages is left. Dead letters are those of `topics`, if given.
    """

    view: str
    table: pa.Table | None = None
    messages: MessageInputPartition | None = None
    groups: pa.RecordBatch | None = None
    trimmed: bool = False
    topics: frozenset[str] | None = None


def view_options(
    view: str,
    service_url: str | None,
    topic: str | None,
    topics: Iterable[str] | None,
    topics_pattern: str | None,
    as_of: str | int | dt.datetime | None,
    storage: Mapping[str, str] | None,
) -> dict[str, str]:
    """The options that name a view, from what a function of Python is given."""
    moment = as_of.isoformat() if isinstance(as_of, dt.datetime) else as_of
    given = {
        "view": view, "topic": topic, "topicsPattern": topics_pattern,
        "topics": None if topics is None else ",".join(topics),
        "asOf": None if moment is None else str(moment),
    }  # fmt: skip
    texts = {name: text for name, text in given.items() if text is not None}
    return texts | root_options(service_url, storage)


class QueueView:
    """The view that the options name; nothing is opened before it is asked for."""

    def __init__(self, options: Options, root: Root) -> None:
        """InvalidOptionError if the view can't be had as of another time."""
        self.view: View = VIEWS[options["view"]]
        self._options, self._root = options, root
        self._as_of = options["asOf"]
        if self._as_of is not None and not self.view.has_as_of:
            raise InvalidOptionError(
                f"Option asOf: view {self.view.name} is of the topics' logs as they are now, which "
                "do not keep what it was. Leave it out."
            )

    @property
    def shown(self) -> pa.Schema:
        """Its columns, where the user named none."""
        given = self._options
        return self.view.shown(value=given["includeValue"], properties=given["includeProperties"])

    def check(self) -> None:
        """TopicNotFoundError if a topic is not there; InvalidOptionError for asOf."""
        _Plan(self._options, self._root)

    def tasks(self) -> list[ViewTask]:
        """The plan; raises what `check` does."""
        plan = _Plan(self._options, self._root)
        if not self.view.of_messages:
            rows = plan.rows(self.view.name)
            return [ViewTask(self.view.name, table=_table(self.view, rows))]
        return [*plan.message_tasks(self.view)] or [ViewTask(self.view.name, _table(self.view, ()))]


def read(task: ViewTask, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The task's rows, as batches of that schema, whose columns are some of the view's."""
    if task.messages is None:
        assert task.table is not None
        yield from task.table.select(schema.names).cast(schema).to_batches()
        return
    stored = {each.name for each in VIEWS[task.view].columns if each.stored}
    absent = [each for each in schema if each.name in stored] if task.trimmed else []
    requested = _requested(task, schema.names, {each.name for each in absent})
    for found in read_messages(task.messages, requested):
        batch = found
        if task.groups is not None:
            own = task.groups.take(pc.subtract(batch.column(GROUP.name), 1))
            for name, column in zip(own.schema.names, own.columns, strict=True):
                batch = batch.append_column(name, column)
        for each in absent:
            batch = batch.append_column(each, pa.nulls(batch.num_rows, each.type))
        if task.view == "dead-letters":
            batch = dead_letters_of(batch, task.topics)
        if task.view == "delayed" and "due" in schema.names and not task.trimmed:
            due = pc.coalesce(batch.column("due"), batch.column("deliver_at"))
            batch = batch.set_column(batch.schema.get_field_index("due"), "due", due)
        yield batch.select(schema.names).cast(schema)


def _requested(task: ViewTask, names: list[str], absent: set[str]) -> pa.Schema:
    """The columns to read of the messages."""
    chosen = [*names, *(NEEDED if task.view == "dead-letters" else ())]
    if task.view == "delayed" and not task.trimmed:
        chosen.append("deliver_at")
    if task.groups is not None:
        chosen.append(GROUP.name)
    known = {**{each.name: pa.field(each.name, each.type) for each in MESSAGE}, GROUP.name: GROUP}
    fields = [known[name] for name in dict.fromkeys(chosen) if name in known and name not in absent]
    return pa.schema(fields or [known["ledger_id"]])


class _Plan:
    """The input of one plan: the topics, and one batch of the broker."""

    def __init__(self, options: Options, root: Root) -> None:
        self._root, self._options = root, options
        self._has_choice = any(map(options.has, ("topic", "topics", "topicsPattern")))
        self._topics = SubscribedTopics(options if self._has_choice else _of_all(options), root)
        self._topics.refresh()
        self._partitions: Partitions = self._topics.partitions()
        self._history = DispatchHistory(root)
        self._batch = self._history.batch(options["asOf"])

    @cached_property
    def _states(self) -> dict[TopicPartition, BrokerState]:
        if self._options["view"] == "stats":
            return {topic_partition: each.state for topic_partition, each in self._recent.items()}
        return self._history.states(self._batch, self._is_requested)

    @cached_property
    def _recent(self) -> dict[TopicPartition, RecentDeliveries]:
        steps = self._history.steps_up_to(self._batch, self._is_requested)
        return {
            topic_partition: RecentDeliveries(held, self._now_ms)
            for topic_partition, held in steps.items()
        }

    @property
    def _now_ms(self) -> int:
        if self._options["asOf"] is not None and self._batch is not None:
            return self._batch.offset.now_ms
        return self._root.clock.wall_ms()

    def _is_requested(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions

    # -- rows --------------------------------------------------------------------------------

    def rows(self, view: str) -> Iterator[state_rows.Row]:
        """The rows of a view that is not of messages."""
        if (made := state_rows.OF_SUBSCRIPTIONS.get(view)) is not None:
            for topic_partition, state in self._states.items():
                for name, subscription in sorted(state.subscriptions.items()):
                    place = {**topic_partition._asdict(), "subscription": name}
                    for row in made(state, subscription, self._lease_ends):
                        yield place | row
        elif view == "producers":
            logs = {
                topic_partition.topic: view.ledger
                for topic_partition, view in self._partitions.items()
            }
            for log in logs.values():
                yield from state_rows.producers(log, self._is_requested)
        elif view == "ledgers":
            for topic_partition in self._partitions:
                yield from state_rows.ledgers(topic_partition, self._published(topic_partition)[0])
        elif view == "stats":
            yield from map(self._stats, self._partitions)
        else:
            newest = self._batch.number if self._batch else -1
            known = (each for each in self._history.batches if each.number <= newest)
            yield from state_rows.batches(known)

    def _stats(self, topic_partition: TopicPartition) -> state_rows.Row:
        (ledgers, hidden), state = (
            self._published(topic_partition),
            self._states.get(topic_partition),
        )
        now_ms, recent = self._now_ms, self._recent.get(topic_partition)
        if self._options["asOf"] is not None and self._batch is not None:
            return topic_stats.topic_row(topic_partition, ledgers, state, now_ms, recent=recent)
        row = topic_stats.topic_row(topic_partition, ledgers, state, now_ms, hidden, recent)
        return row | topic_stats.log_row(
            self._topics.view(topic_partition).ledger, topic_partition.partition
        )

    # -- messages ----------------------------------------------------------------------------

    def message_tasks(self, view: View) -> Iterator[ViewTask]:
        there: Ranges = {}
        trimmed: Ranges = {}
        values: list[Group] = []
        for each in self._message_sets(view.name):
            topic_partition, log = (
                each.topic_partition,
                self._topics.view(each.topic_partition).ledger,
            )
            first = len(values) + 1
            values += [group for group, _ in each.groups]
            sets = {number: messages for number, (_, messages) in enumerate(each.groups, first)}
            messages, numbers = PositionSet.union_of(sets.values()), {GROUP.name: sets}
            key = (topic_partition.topic, log.folder)
            left = rows_left(messages, log, topic_partition.partition, numbers)
            there.setdefault(key, []).extend(left)
            gone = _gone(messages, log, topic_partition.partition)
            known = LedgerList(each.ledgers[ledger_id] for ledger_id in gone.ledger_ids)
            trimmed.setdefault(key, []).extend(numbered(row_ranges(gone, known), numbers))
        groups = _record_batch(view, values) if view.name in GROUPED else None
        topics = None
        if view.name == "dead-letters" and self._has_choice:
            topics = frozenset(topic_partition.topic for topic_partition in self._partitions)
        for ranges, is_trimmed in ((there, False), (trimmed, True)):
            for share in dealt(ranges, self._options["minPartitions"]):
                rows = tuple(TopicRows(*key, tuple(each)) for key, each in share.items())
                part = MessageInputPartition(self._root, rows)
                yield ViewTask(view.name, None, part, groups, is_trimmed, topics)

    def _message_sets(self, view: str) -> Iterator[MessageSet]:
        if view == "acknowledgements":
            yield from acknowledgements(self._root, self._history, self._batch, self._is_requested)
        elif view in SETS:
            for topic_partition, state in self._states.items():
                ledgers = {each.ledger_id: each for each in state.ledgers}
                for name in sorted(state.subscriptions):
                    groups = SETS[view](state, state.subscriptions[name], self._lease_ends)
                    yield MessageSet(topic_partition, [*groups], ledgers)
        else:
            partitions = self._partitions
            if view == "dead-letters":
                partitions = {**self._dead_letter_partitions(), **partitions}
            for topic_partition in partitions:
                there, hidden = self._published(topic_partition, as_of_log=view == "dead-letters")
                messages = Cursor().unread(there).difference(hidden)
                yield MessageSet(
                    topic_partition, [((), messages)], {each.ledger_id: each for each in there}
                )

    def _dead_letter_partitions(self) -> Partitions:
        """The partitions of topics made for dead letters, wherever these come from."""
        if self._has_choice:
            every = SubscribedTopics(_of_all(self._options), self._root)
            every.refresh()
        else:
            every = self._topics
        found = {
            a: view for a, view in every.partitions().items() if may_have_dead_letters(view.ledger)
        }
        self._topics.open_all(topic_partition.topic for topic_partition in found)
        return found

    def _published(
        self, topic_partition: TopicPartition, *, as_of_log: bool = False
    ) -> tuple[LedgerList, PositionSet]:
        """(the ledgers of a partition, its duplicates), as of the batch if one is asked for.

        Without a broker there, or `as_of_log`: those that were published by then and still exist.
        """
        log = self._topics.view(topic_partition).ledger
        ledgers = log.ledgers(topic_partition.partition)
        if self._options["asOf"] is not None and self._batch is not None:
            if topic_partition in self._states and not as_of_log:
                state = self._states[topic_partition]
                return state.ledgers_that_stay(), state.hidden
            by_ms = self._batch.written_ms
            ledgers = LedgerList(each for each in ledgers if each.min_publish_time_ms <= by_ms)
        hidden = log.state.partition(topic_partition.partition).hidden
        return ledgers, hidden.of(each.ledger_id for each in ledgers)

    def _lease_ends(self, lease: Lease) -> int | None:
        """The end of a lease by its file, which only tells of now."""
        if self._options["asOf"] is not None:
            return None
        written_ms = self._lease_files.get(lease.path)
        if written_ms is None or (held := read_lease(self._root.store, lease.path)) is None:
            return None
        return written_ms + held.lease_ms

    @cached_property
    def _lease_files(self) -> dict[str, int]:
        return leases(self._root.store)


def _of_all(options: Options) -> Options:
    """The options of the view, of all topics."""
    given = {**options.given, "topicsPattern": ALL}
    for name in ("topic", "topics"):
        given.pop(name, None)
    return replace(options, given=given)


def _gone(messages: PositionSet, log: ManagedLedger, partition: int) -> PositionSet:
    """The messages of these of which nothing is left to read."""
    ledgers, compacted = log.ledgers(partition), log.state.partition(partition).compacted
    gone = messages.of_ledgers(each for each in messages.ledger_ids if ledgers.get(each) is None)
    return gone if compacted is None else gone.difference(compacted.kept)


def _record_batch(view: View, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """The view's own columns; times in milliseconds become instants."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(view.own)
    arrays = [_array(each.type, column) for each, column in zip(view.own, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[each.name for each in view.own])


def _table(view: View, rows: Iterable[state_rows.Row]) -> pa.Table:
    held = [*rows]
    names = view.schema.names
    arrays = [_array(view.schema.field(n).type, [row.get(n) for row in held]) for n in names]
    return pa.Table.from_arrays(arrays, schema=view.schema)


def _array(kind: pa.DataType, values: Iterable[Any]) -> pa.Array:
    if kind == TIME:
        values = [None if each is None else each * 1000 for each in values]
    return pa.array(values, kind)
