"""The tasks of a micro-batch: the difference of two offsets as ranges of rows, dealt out.

Invariants: tasks follow from the two offsets and the log alone, so the same batch gives the same
tasks; rows keep their order within a partition, task by task; a task's work is cut at row group
boundaries, since a row group is decoded whole; with Key_Shared all messages of a key are in one
task, in order; each row has its attempt and its redelivery count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.runtime.reading.input_partition import (
    MessageInputPartition,
    RowRange,
    TopicRows,
)
from pulsar_spark.connector.runtime.reading.partition_view import PartitionView
from pulsar_spark.connector.runtime.reading.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.runtime.system_topics.subscription_admin import acknowledged_up_to
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.consumer.admission import Admission
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.consumer.suspect_messages import SuspectGroup
from pulsar_spark.errors import ObjectNotFoundError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from pulsar_spark.options.options import Options

ROWS_PER_TASK = 1 << 20
"""The greatest number of rows of a task."""
BYTES_PER_TASK = 512 << 20
"""The greatest number of payload bytes of a task."""
ROWS_WORTH_SPLITTING = 20_000
"""A batch of fewer rows is one task: a task costs 20 ms whatever it reads."""
_SPREAD: Final = 2_654_435_761

Sets = Mapping[int, PositionSet]
"""Number -> the messages that have it."""
Ranges = dict[tuple[str, str], list[RowRange]]
"""The rows of each (topic, folder), in order."""


def admission(options: Options, now_s: float) -> Admission:
    return Admission(
        options["maxMessagesPerTrigger"],
        options["maxBytesPerTrigger"],
        options["minMessagesPerTrigger"],
        options["maxTriggerDelay"],
        now_s,
    )


def plan_tasks(
    topics: SubscribedTopics,
    begun: StreamOffset,
    ended: StreamOffset,
    released: SuspectGroup | None = None,
) -> list[MessageInputPartition]:
    """The tasks of the micro-batch between two offsets, and of messages that are tried apart.

    DataLossError if messages of it were trimmed after it was planned.
    """
    changed = ended.changed_since(begun)
    topics.open_all(topic_partition.topic for topic_partition in changed)
    topics.check_incarnations(ended, changed)
    ranges: Ranges = {}

    def add(view: PartitionView, attempts: Sets, counts: Sets) -> None:
        messages = PositionSet.union_of(attempts.values())
        numbers = {"attempt": attempts, "redelivery_count": counts}
        mine = ranges.setdefault((view.topic_partition.topic, view.ledger.folder), [])
        mine.extend(view.row_ranges(messages, numbers))

    if released is not None:
        for topic_partition in filter(topics.is_open, released.partitions):
            counts = {released.failures: released.of(topic_partition)}
            add(topics.view(topic_partition), released.attempts(topic_partition), counts)
    for topic_partition, offset in changed.items():
        if not topics.is_open(topic_partition):
            continue
        view, since = topics.view(topic_partition), begun.get(topic_partition)
        _check_nothing_lost(topics, view, since, offset)
        add(view, offset.attempts_since(since, view.ledgers), offset.redelivery_counts)
    if topics.options["subscriptionType"] == "Key_Shared":
        return _by_key(topics, ranges)
    return _deal(topics, ranges)


def _check_nothing_lost(
    topics: SubscribedTopics,
    view: PartitionView,
    since: PartitionOffset | None,
    offset: PartitionOffset,
) -> None:
    """DataLossError if messages of the micro-batch were trimmed, or a warning, as the option says.

    Acknowledged ones are no loss: others may have had them when a lease had lapsed.
    """
    trimmed, subscription = view.lost_up_to, topics.options["subscriptionName"]
    floor = offset.origin.mark_delete_position if offset.floor is None else offset.floor
    for _, begin, end in offset.steps_since(since):
        done = max(begin.mark_delete_position, floor)
        single = end.individually_deleted.difference(begin.individually_deleted).after(done)
        if done < trimmed and (end.mark_delete_position > done or single.up_to(trimmed)):
            topic_partition = view.topic_partition
            if (
                not subscription
                or acknowledged_up_to(topics.root, topic_partition, subscription) < trimmed
            ):
                view.check_present(Cursor(done))
            return


def _deal(topics: SubscribedTopics, ranges: Ranges) -> list[MessageInputPartition]:
    return [_task(topics, each) for each in dealt(ranges, topics.options["minPartitions"])]


def dealt(ranges: Ranges, min_tasks: int | None = None) -> list[Ranges]:
    """The ranges as shares of tasks: about equal, and in order."""
    pieces = [
        (topic, piece) for topic, each in ranges.items() for one in each for piece in one.pieces()
    ]
    rows = sum(piece.rows for _, piece in pieces)
    size_bytes = sum(piece.size_bytes for _, piece in pieces)
    requested = max(-(-rows // ROWS_PER_TASK), -(-size_bytes // BYTES_PER_TASK), 1)
    if rows > ROWS_WORTH_SPLITTING:
        requested = max(requested, min_tasks or os.cpu_count() or 1)
    goal = max(1, -(-rows // requested))
    tasks: list[Ranges] = []
    filled = goal
    for topic, piece in pieces:
        if filled + piece.rows // 2 >= goal and filled:
            tasks.append({})
            filled = 0
        mine = tasks[-1].setdefault(topic, [])
        if mine and _adjoin(mine[-1], piece):
            mine[-1] = replace(mine[-1], rows=mine[-1].rows + piece.rows)
        else:
            mine.append(piece)
        filled += piece.rows
    return tasks


def _adjoin(one: RowRange, other: RowRange) -> bool:
    same = one.ledger.ledger_id == other.ledger.ledger_id
    whole = one.mask is None and other.mask is None and not one.chunks and not other.chunks
    alike = one.numbers == other.numbers and all(isinstance(n, int) for _, n in one.numbers)
    return same and whole and alike and one.first_row + one.rows == other.first_row


def _task(topics: SubscribedTopics, ranges: Ranges) -> MessageInputPartition:
    rows = tuple(TopicRows(*topic, tuple(each)) for topic, each in ranges.items())
    return MessageInputPartition(topics.root, rows, topics.options["failOnDataLoss"])


def _by_key(topics: SubscribedTopics, ranges: Ranges) -> list[MessageInputPartition]:
    """The ranges again for each task, with a mask of the keys that are dealt to it.

    A key's task follows from its hash alone, whatever the topic and partition. By default there
    are as many tasks as cores, times this consumer's share of the rows: others want cores too.
    """
    pieces = list(chain.from_iterable(ranges.values()))
    chosen = sum(each.messages for each in pieces)
    tasks = 1
    if chosen > ROWS_WORTH_SPLITTING:
        fraction = chosen / sum(each.rows for each in pieces)
        tasks = topics.options["minPartitions"] or round((os.cpu_count() or 1) * fraction)
    if tasks <= 1:
        return [_task(topics, ranges)] if any(ranges.values()) else []
    dealt: list[Ranges] = [{} for _ in range(tasks)]
    for topic, rows in ranges.items():
        for each in rows:
            view = topics.view(TopicPartition(topic[0], each.ledger.partition))
            owner = _hashes(view.ledger, each) % tasks
            selected = each.selected()
            for number, share in enumerate(dealt):
                mine = owner == number
                part = each.selection(mine if selected is None else mine & selected)
                if part is not None:
                    share.setdefault(topic, []).append(part)
    return [_task(topics, share) for share in dealt if share]


def _hashes(ledger: ManagedLedger, rows: RowRange) -> NDArray[Any]:
    """The spread hash of each row's key; a row without key has its row number."""
    span = ("sticky_key_hash",), rows.first_row, rows.rows
    with ledger.reader() as reader:
        try:
            table = reader.read_table(rows.ledger, *span)
        except ObjectNotFoundError:  # merged into another file since the log was looked at
            ledger.refresh()
            found = ledger.ledgers(rows.ledger.partition).get(rows.ledger.ledger_id)
            if found is None or found == rows.ledger:
                raise
            table = reader.read_table(found, *span)
    hashes = np.asarray(pc.fill_null(table[0], -1), np.int64)
    hashes = np.where(hashes < 0, np.arange(len(hashes)), hashes)
    return (hashes * _SPREAD >> 16) & 0xFFFF
