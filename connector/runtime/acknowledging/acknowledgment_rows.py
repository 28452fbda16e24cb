"""Rows that acknowledge, folded into commands for one topic partition's broker.

Invariants: rows are folded as Arrow and numpy columns, never one by one; an id that was never
published is an error, one whose ledger was trimmed is left out; the findings of two tasks are
joined by union, and of cumulative acknowledgements the furthest counts. Folding has no effects on
storage. Takes the place of Pulsar's `PersistentAcknowledgmentsGroupingTracker` and
`NegativeAcksTracker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.broker.protocol.commands import ReconsumeLater, Rejection, Report
from pulsar_spark.broker.subscriptions.dead_letter import ERROR, LONGEST_ERROR
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import InvalidCursorPositionError, InvalidMessageError
from pulsar_spark.log.chunked_messages import ChunkedMessages
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicName, TopicPartition, check_user_topic
from pulsar_spark.options.option_values import MOST_DURATION_MS, parse_duration_ms

ROWS_AT_ONCE: Final = 1 << 20
"""The rows gathered at which a task folds."""
KINDS: Final = ("Individual", "Cumulative", "Negative", "ReconsumeLater", "DeadLetter")
INDIVIDUAL, CUMULATIVE, NEGATIVE, RECONSUME_LATER, DEAD_LETTER = range(5)
MOST_ERRORS: Final = 200
"""Distinct errors of one topic partition and commit; of others only the type is kept."""
OTHER_ERRORS: Final = f"one of more than {MOST_ERRORS} errors that were given back together"

_NUMBERS: Final = (
    "ledger_id", "entry_id", "partition", "batch_index", "attempt", "delay_ms", "reconsume_times",
)  # fmt: skip
_REJECTIONS: Final = ("delay_ms", "reconsume_times", "properties")
"""The columns that an acknowledgement lacks."""
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
Numbers = NDArray[np.int64]
Rows = dict[str, Numbers]
"""Columns of rows, each of shape (rows,); -1 stands for null."""
Properties = tuple[tuple[str, str], ...]
Furthest = tuple[Position, int, int]
"""(entry, batch index, batch size)."""
Rejected = dict[tuple[int | None, int | None, Properties, bool], PositionSet]
"""Rejected messages by attempt, delay in milliseconds, properties, and whether they become dead
letters immediately."""
K = TypeVar("K")


@dataclass(slots=True)
class Acknowledgments:
    """The acknowledgements and rejections of one topic partition, each by attempt. Pickles."""

    individual: dict[int | None, PositionSet] = field(default_factory=dict)
    cumulative: dict[int | None, Furthest] = field(default_factory=dict)
    rejected: Rejected = field(default_factory=dict)
    later: dict[tuple[int | None, int, int, Properties], PositionSet] = field(default_factory=dict)
    """Retried messages by delay in milliseconds, times reconsumed so far, and properties."""
    covered: dict[int | None, PositionSet] = field(default_factory=dict)
    """The messages of the rows that acknowledge cumulatively."""
    trimmed: int = 0
    """The number of rows that acknowledge messages which were trimmed, and are left out."""

    def join(self, other: Acknowledgments) -> None:
        _join(self.individual, other.individual)
        for attempt, furthest in other.cumulative.items():
            self.cumulative[attempt] = max(furthest, self.cumulative.get(attempt, furthest))
        _join(self.rejected, other.rejected)
        _join(self.later, other.later)
        _join(self.covered, other.covered)
        self.trimmed += other.trimmed

    @property
    def claims(self) -> bool:
        """True if it acknowledges anything, trimmed messages included."""
        return bool(self.individual or self.covered or self.trimmed)

    @property
    def claimed(self) -> PositionSet:
        """The messages of all rows that acknowledge."""
        return PositionSet.union_of([*self.individual.values(), *self.covered.values()])

    def given_back(self) -> Acknowledgments:
        """Rejections, without a delay, of all messages that it says anything of."""
        back = Acknowledgments()
        by_attempt = [*self.individual.items(), *self.covered.items()]
        by_attempt += [(key[0], messages) for key, messages in self.rejected.items()]
        by_attempt += [(key[0], messages) for key, messages in self.later.items()]
        for attempt, messages in by_attempt:
            rejected: Rejected = {(attempt, 0, (), False): messages}
            _join(back.rejected, rejected)
        return back

    def since(self, first_attempt: int) -> Acknowledgments:
        """The part for messages that were delivered at this attempt, a later or an unknown one."""

        def is_late(attempt: int | None) -> bool:
            return attempt is None or attempt >= first_attempt

        return Acknowledgments(
            {key: each for key, each in self.individual.items() if is_late(key)},
            {key: each for key, each in self.cumulative.items() if is_late(key)},
            {key: each for key, each in self.rejected.items() if is_late(key[0])},
            {key: each for key, each in self.later.items() if is_late(key[0])},
            {key: each for key, each in self.covered.items() if is_late(key)},
            self.trimmed,
        )

    def reports(self, subscription: str) -> Iterator[Report]:
        """The reports for the broker, in order: a shared subscription refuses the first."""
        if self.cumulative:
            up_to = {a: Cursor().acknowledge_cumulative(*it) for a, it in self.cumulative.items()}
            yield _report(subscription, up_to)
        if self.individual or self.rejected or self.later:
            some = {a: Cursor().acknowledge(messages) for a, messages in self.individual.items()}
            yield replace(
                _report(subscription, some),
                rejected=self.rejections,
                reconsume_later=self.to_reconsume_later,
            )

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        few = _with_few_errors(self.rejected)
        return tuple(
            Rejection(attempt, messages, delay_ms, properties, to_dead_letter)
            for (attempt, delay_ms, properties, to_dead_letter), messages in few.items()
        )

    @property
    def to_reconsume_later(self) -> tuple[ReconsumeLater, ...]:
        return tuple(
            ReconsumeLater(attempt, messages, delay_ms, times, properties)
            for (attempt, delay_ms, times, properties), messages in self.later.items()
        )


Folded = dict[TopicPartition, Acknowledgments]


def fold(batches: Iterable[pa.RecordBatch], root: Root, topic: str | None) -> Folded:
    """Fold the rows of one task; `topic` is that of rows which name none.

    InvalidMessageError, TopicNotFoundError or InvalidCursorPositionError: the task has failed, and
    nothing was stored.
    """
    folded: Folded = {}
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_AT_ONCE:
            _fold(pa.Table.from_batches(gathered), root, topic, folded)
            gathered, rows = [], 0
    if rows:
        _fold(pa.Table.from_batches(gathered), root, topic, folded)
    for each in folded.values():
        each.rejected = _with_few_errors(each.rejected)
    return folded


def _report(subscription: str, by_attempt: dict[int | None, Cursor]) -> Report:
    return Report(
        subscription,
        epoch=None,
        acknowledged=by_attempt.get(None, Cursor()),
        acknowledged_attempts={a: each for a, each in by_attempt.items() if a is not None},
    )


def _with_few_errors(rejected: Rejected) -> Rejected:
    """The rejections with few distinct errors: each costs a command, and a dead letter's file.

    The first errors stay as they are, of as many more the type does; all others are one.
    """
    if len(rejected) <= MOST_ERRORS:
        return rejected
    whole, types = set[Properties](), set[Properties]()
    few: Rejected = {}
    for (attempt, delay_ms, properties, to_dead_letter), messages in rejected.items():
        properties_given = properties
        if not _is_among(whole, properties_given):
            properties_given = tuple(
                (k, text.partition(":")[0] if k == ERROR else text) for k, text in properties_given
            )
            if not _is_among(types, properties_given):
                properties_given = ((ERROR, OTHER_ERRORS),)
        _join(few, {(attempt, delay_ms, properties_given, to_dead_letter): messages})
    return few


def _is_among(known: set[Properties], properties_given: Properties) -> bool:
    """True if these are among the first, or there is room for them."""
    if len(known) < MOST_ERRORS:
        known.add(properties_given)
    return properties_given in known


def _join(mine: dict[K, PositionSet], theirs: Mapping[K, PositionSet]) -> None:
    for key, messages in theirs.items():
        mine[key] = mine[key].union(messages) if key in mine else messages


def _fold(table: pa.Table, root: Root, topic: str | None, folded: Folded) -> None:
    rows = {name: _numbers(table, name) for name in _NUMBERS}
    if "delay" in table.column_names:
        rows["delay_ms"] = _delays(table["delay"])
    if (rows["delay_ms"] < -1).any() or (rows["delay_ms"] > MOST_DURATION_MS).any():
        raise InvalidMessageError(
            "Column delay_ms has values below 0 or above 100 years: a delay is in between."
        )
    rows["kind"] = _kinds(table)
    rejecting = rows["kind"] >= NEGATIVE
    rows["properties"], properties_given = _properties(table, np.flatnonzero(rejecting))
    for name in _REJECTIONS:
        rows[name] = np.where(rejecting, rows[name], -1)
    topics, names = _topics(table, topic)
    for chosen in _groups([topics]):
        topic_partition = TopicName.parse(names[int(topics[chosen[0]])])
        check_user_topic(topic_partition, "subscribed to")
        _fold_topic(_taken(rows, chosen), properties_given, topic_partition, root, folded)


def _fold_topic(
    rows: Rows, properties_given: list[Properties], name: TopicName, root: Root, folded: Folded
) -> None:
    topic = name.partitioned_topic
    found = None
    if (known := root.known(topic)) is not None:
        with suppress(InvalidCursorPositionError):  # another process has read what is newer
            found = _fold_partitions(rows, properties_given, name, known.state)
    if found is None:
        found = _fold_partitions(rows, properties_given, name, root.open(topic).state)
    for topic_partition, each in found.items():
        folded.setdefault(topic_partition, Acknowledgments()).join(each)


def _fold_partitions(
    rows: Rows, properties_given: list[Properties], name: TopicName, state: TopicState
) -> Folded:
    partitions = rows["partition"]
    own = max(name.partition_index, 0)
    if name.partition_index >= 0 or state.partitions == 1:
        partitions = np.where(partitions < 0, own, partitions)
    low, high = int(partitions.min()), int(partitions.max())
    if name.partition_index >= 0 and (low, high) != (own, own):
        raise InvalidCursorPositionError(
            f"A row names the topic {name} and another partition, {high if low == own else low}: "
            "leave one of them out."
        )
    if low < 0 or high >= state.partitions:
        wrong = "no partition" if low < 0 else f"partition {high}"
        raise InvalidCursorPositionError(
            f"A row names {wrong} of topic {name}, which has {state.partitions}, numbered from 0. "
            "Nothing was acknowledged."
        )
    folded: Folded = {}
    for chosen in _groups([partitions]):
        topic_partition = TopicPartition(name.partitioned_topic_name, int(partitions[chosen[0]]))
        folded[topic_partition] = _fold_partition(
            _taken(rows, chosen), properties_given, topic_partition, state
        )
    return folded


def _fold_partition(
    rows: Rows,
    properties_given: list[Properties],
    topic_partition: TopicPartition,
    state: TopicState,
) -> Acknowledgments:
    rows["size"] = _batch_sizes(rows, topic_partition, state)
    trimmed = (rows["size"] == 0) & (rows["kind"] < NEGATIVE)
    found = Acknowledgments(trimmed=int(trimmed.sum()))
    rows = _taken(rows, np.flatnonzero(rows["size"]))
    for chosen in _groups([rows[name] for name in ("kind", "attempt", *_REJECTIONS)]):
        _add_group(found, _taken(rows, chosen), properties_given)
    chunks = state.partition(topic_partition.partition).chunks
    for attempt, messages in found.individual.items() if chunks else ():
        rest = ChunkedMessages.of(chunks).chunks_of(messages)  # an id names the last chunk
        found.individual[attempt] = messages.union(rest)
    return found


def _add_group(found: Acknowledgments, rows: Rows, properties_given: list[Properties]) -> None:
    """Add rows of one kind with the same details."""
    places = [rows[name] for name in ("ledger_id", "entry_id", "batch_index", "size")]
    kind, attempt, *details = (int(rows[name][0]) for name in ("kind", "attempt", *_REJECTIONS))
    delay_ms, times, properties = details
    known_attempt = attempt if attempt >= 0 else None
    if kind == CUMULATIVE:
        ledgers, entries, indexes, sizes = places
        last = np.where(indexes < 0, sizes - 1, indexes)
        place = np.lexsort((last, entries, ledgers))[-1]
        position = Position(int(ledgers[place]), int(entries[place]))
        found.cumulative[known_attempt] = (position, int(last[place]), int(sizes[place]))
    messages = PositionSet.from_arrays(*places)
    if kind == CUMULATIVE:
        found.covered[known_attempt] = messages
        return
    if kind == INDIVIDUAL:
        found.individual[known_attempt] = messages
    elif kind == RECONSUME_LATER:
        key = (known_attempt, max(delay_ms, 0), max(times, 0), properties_given[properties])
        found.later[key] = messages
    else:
        wait_ms = delay_ms if delay_ms >= 0 else None
        to_dead_letter = kind == DEAD_LETTER
        found.rejected[known_attempt, wait_ms, properties_given[properties], to_dead_letter] = (
            messages
        )


def _batch_sizes(rows: Rows, topic_partition: TopicPartition, state: TopicState) -> Numbers:
    """The batch size of each row's entry; 0 if trimmed. Checks that each was published."""
    ledger_ids, entries, indexes = rows["ledger_id"], rows["entry_id"], rows["batch_index"]
    sizes = np.zeros(len(ledger_ids), np.int64)
    known = state.partition(topic_partition.partition).ledgers_left()
    trimmed = state.partition(topic_partition.partition).trimmed_up_to
    for chosen in _groups([ledger_ids]):
        ledger_id = int(ledger_ids[chosen[0]])
        ledger = known.get(ledger_id)
        if ledger is None and 0 <= ledger_id <= trimmed.ledger_id:
            continue
        requested = entries[chosen]
        if ledger is None or requested.min() < 0 or requested.max() >= ledger.entries:
            wrong = int(requested.min() if requested.min() < 0 else requested.max())
            there = "there is no such ledger"
            if ledger is not None:
                there = f"that ledger's entries are 0 to {ledger.entries - 1}"
            raise InvalidCursorPositionError(
                f"Message {ledger_id}:{wrong} of {topic_partition} was never published: {there}. "
                "Take "
                "ledger_id, entry_id, partition, batch_index and topic as they were read. Nothing "
                "was acknowledged."
            )
        runs = ledger.batch_sizes.runs
        sizes[chosen] = runs[0][0] if len(runs) == 1 else ledger.batch_sizes.array()[requested]
    beyond = np.flatnonzero((indexes >= sizes) & (sizes > 0))
    if len(beyond):
        row = int(beyond[0])
        raise InvalidCursorPositionError(
            f"Entry {ledger_ids[row]}:{entries[row]} of {topic_partition} has {sizes[row]} "
            "messages, and a "
            f"row names batch index {indexes[row]}. Indexes count from 0. Nothing was acknowledged."
        )
    return sizes


def _numbers(table: pa.Table, name: str) -> Numbers:
    """A column of whole numbers; -1 for a null or a missing column."""
    if name not in table.column_names:
        return np.full(len(table), -1, np.int64)
    column = table[name]
    if column.null_count:
        if name in ("ledger_id", "entry_id"):
            raise InvalidMessageError(
                f"Column {name} is null in {column.null_count} rows of {len(table)}: each row has "
                "to name the message that it is about."
            )
        column = pc.fill_null(column, -1)
    return np.asarray(column.cast(pa.int64()), np.int64)


def _delays(column: pa.ChunkedArray) -> Numbers:
    """Durations as text, intervals, or numbers, in milliseconds; -1 for a null."""
    if pa.types.is_duration(column.type):
        column = pc.divide(column.cast(pa.duration("us")).cast(pa.int64()), 1000)
    elif not pa.types.is_integer(column.type):
        encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
        try:
            known = [parse_duration_ms(text) for text in encoded.dictionary.to_pylist()]
        except ValueError:
            raise InvalidMessageError(
                "Column delay has a text that is no duration, such as 500ms, 30s or 5m: "
                f"{', '.join(encoded.dictionary.to_pylist()[:5])}."
            ) from None
        column = pa.chunked_array([pa.array(known, pa.int64()).take(encoded.indices)])
    given = pc.fill_null(column, -1).cast(pa.int64())
    if pc.any(pc.and_(pc.less(given, 0), column.is_valid())).as_py():
        raise InvalidMessageError("Column delay has values below 0: a delay is 0 or more.")
    return np.asarray(given, np.int64)


def _kinds(table: pa.Table) -> Numbers:
    """Each row's index into KINDS."""
    if "ack_type" not in table.column_names:
        return np.zeros(len(table), np.int64)
    texts = pc.fill_null(table["ack_type"], KINDS[INDIVIDUAL])
    known = pa.array([each.lower() for each in KINDS], pa.string())
    found = pc.index_in(pc.utf8_lower(texts.cast(pa.string())), known)
    if found.null_count:
        wrong = pc.unique(texts.filter(pc.is_null(found))).to_pylist()
        raise InvalidMessageError(
            f"Column ack_type has {', '.join(map(repr, wrong[:5]))}, and takes {', '.join(KINDS)}, "
            "in any case, or null for the first."
        )
    return np.asarray(found, np.int64)


def _topics(table: pa.Table, topic: str | None) -> tuple[Numbers, list[str]]:
    """(each row's index into the names, the names of the topics)."""
    given = table["topic"].combine_chunks() if "topic" in table.column_names else None
    column = pa.nulls(len(table), pa.string()) if given is None else given.cast(pa.string())
    if topic is not None:
        column = pc.fill_null(column, topic)
    if column.null_count:
        raise InvalidMessageError(
            "Some rows name no topic: fill the column topic, or give the option topic for those "
            "that have none."
        )
    encoded = column.dictionary_encode()
    return np.asarray(encoded.indices, np.int64), encoded.dictionary.to_pylist()


def _properties(table: pa.Table, rejecting: Numbers) -> tuple[Numbers, list[Properties]]:
    """(each row's index into the list, -1 unless it is `rejecting`; the distinct properties).

    A row's properties are its map without nulls, its error included.
    """
    codes = np.full(len(table), -1, np.int64)
    distinct: list[Properties] = []
    if not len(rejecting):
        return codes, distinct
    errors = _taken_column(table, "error", rejecting, pa.string())
    maps = _taken_column(table, "properties", rejecting, _PROPERTIES)
    for chosen in _groups([_text_codes(errors), _map_codes(maps)]):
        first = int(chosen[0])
        error = errors[first].as_py()
        error = None if error is None else error[:LONGEST_ERROR]
        properties_given = [*dict(maps[first].as_py() or ()).items(), (ERROR, error)]
        codes[rejecting[chosen]] = len(distinct)
        distinct.append(tuple((name, text) for name, text in properties_given if text is not None))
    return codes, distinct


def _taken_column(table: pa.Table, name: str, rows: Numbers, kind: pa.DataType) -> pa.Array:
    """Some rows of a column; nulls if there is none, or nothing in it."""
    if name not in table.column_names or table[name].null_count == len(table):
        return pa.nulls(len(rows), kind)
    return table[name].take(pa.array(rows)).cast(kind).combine_chunks()


def _text_codes(texts: pa.Array) -> Numbers:
    """Equal numbers for equal texts; -1 for null."""
    return np.asarray(pc.fill_null(texts.dictionary_encode().indices, -1), np.int64)


def _map_codes(maps: pa.Array) -> Numbers:
    """Equal numbers for maps of the same pairs in the same order; null is as empty."""
    flat = maps.fill_null([])
    pairs = _factorized([_text_codes(flat.keys), _text_codes(flat.items)])
    lists = pa.ListArray.from_arrays(flat.offsets, pa.array(pairs).cast(pa.string()))
    return _text_codes(pc.binary_join(lists, ","))


def _taken(rows: Rows, chosen: Numbers) -> Rows:
    if len(chosen) == len(rows["kind"]):
        return rows
    return {name: values[chosen] for name, values in rows.items()}


def _groups(keys: list[Numbers]) -> Iterator[Numbers]:
    """The row numbers of each combination of values, ascending within it; all arrays (rows,)."""
    changing = [key for key in keys if (key != key[:1]).any()]
    if not changing:
        if len(keys[0]):
            yield np.arange(len(keys[0]))
        return
    codes = changing[0] if len(changing) == 1 else _factorized(changing)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for start, stop in pairwise([0, *edges.tolist(), len(order)]):
        yield order[start:stop]


def _factorized(keys: list[Numbers]) -> Numbers:
    """One number for each combination of values, from 0."""
    codes = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        distinct, inverse = np.unique(key, return_inverse=True)
        codes = codes * len(distinct) + inverse.reshape(-1)
        codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    return codes
