"""The tasks of a consumer's micro-batch, with each message's attempt and redelivery count.

Invariants: tasks follow from the two offsets and the log alone; with Key_Shared all messages of a
key are in one task, in order; attempts and counts are one number a row range, or bytes by row where
they differ inside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsar_spark.connector.ledger_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.source.compacted_reading import ConsumerView
from pulsar_spark.connector.source.data_loss import check_present
from pulsar_spark.connector.source.micro_batch import (
    ROWS_WORTH_SPLITTING,
    MessageInputPartition,
    RowRange,
    TopicRows,
    deal,
)
from pulsar_spark.connector.source.subscribed_topics import SubscribedTopics
from pulsar_spark.connector.system.subscription_admin import acknowledged_up_to
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import ObjectNotFoundError
from pulsar_spark.options.options import Options
from pulsar_spark.planning.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.planning.suspect_messages import SuspectGroup
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.ledger_info import LedgerInfo
from pulsar_spark.positions.position import Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.topic_name import TopicPartition

_SPREAD: Final = 2_654_435_761


def plan_tasks(
    topics: SubscribedTopics,
    view: ConsumerView,
    begun: StreamOffset,
    ended: StreamOffset,
    options: Options,
    root: Root,
    released: SuspectGroup | None = None,
) -> list[MessageInputPartition]:
    """The tasks of the micro-batch between two offsets, or of messages that are tried apart."""
    ranges: dict[tuple[str, str], list[RowRange]] = {}
    if released is not None:
        for partition, attempts in sorted(released.messages.items()):
            ledger = topics.ledger(partition.topic)
            counts = {released.failures: released.of(partition)}
            rows = list(_ranges(ledger, view, partition, attempts, counts))
            ranges.setdefault((partition.topic, ledger.folder), []).extend(rows)
    for partition, offset in ended.items():
        since = begun.get(partition)
        if since == offset:
            continue
        ledger = topics.ledger(partition.topic)
        number = partition.partition
        trimmed = view.lost_up_to(ledger, number)
        check_nothing_lost(ledger, partition, since, offset, trimmed, options, root)
        parts = offset.attempts_since(since, view.ledgers(ledger, number))
        rows = list(_ranges(ledger, view, partition, parts, offset.redelivery_counts))
        ranges.setdefault((partition.topic, ledger.folder), []).extend(rows)
    fail = options["failOnDataLoss"]
    if options["subscriptionType"] == "Key_Shared":
        tasks = _tasks_by_key(ranges, options["minPartitions"])
        return list(_by_key(topics, ranges, root, tasks, fail_on_data_loss=fail))
    at_least = options["minPartitions"] or os.cpu_count() or 1
    return deal(ranges, root, at_least=at_least, fail_on_data_loss=fail)


def check_nothing_lost(
    ledger: ManagedLedger,
    partition: TopicPartition,
    since: PartitionOffset | None,
    offset: PartitionOffset,
    trimmed: Position,
    options: Options,
    root: Root,
) -> None:
    """DataLossError if messages of the micro-batch were trimmed after it was planned.

    It is no loss if they are acknowledged: others may have had them while this consumer's lease
    had lapsed.
    """
    floor = offset.origin.mark_delete_position if offset.floor is None else offset.floor
    for attempt, end in offset.attempts.items():
        begin = offset.origin
        if since is not None and since.epoch == offset.epoch:
            begin = since.attempts.get(attempt, offset.origin)
        done = max(begin.mark_delete_position, floor)
        single = end.individually_deleted.difference(begin.individually_deleted).after(done)
        if done < trimmed and (end.mark_delete_position > done or single.up_to(trimmed)):
            if acknowledged_up_to(root, partition, options["subscriptionName"]) < trimmed:
                check_present(ledger, partition, Cursor(done), fail=options["failOnDataLoss"])
            return


def _ranges(
    ledger: ManagedLedger,
    view: ConsumerView,
    partition: TopicPartition,
    attempts: Mapping[int, PositionSet],
    counts: Mapping[int, PositionSet],
) -> Iterator[RowRange]:
    """The rows of one partition's part of the micro-batch, with attempt and redelivery count."""
    batch = PositionSet()
    for part in attempts.values():
        batch = batch.union(part)
    numbers = {"attempt": attempts, "redelivery_count": counts}
    yield from view.numbered_ranges(batch, ledger, partition.partition, numbers)


# -- Key_Shared ----------------------------------------------------------------------------------


def _tasks_by_key(ranges: Mapping[tuple[str, str], list[RowRange]], asked: int | None) -> int:
    """How many tasks keys are dealt to; each of them reads all the rows.

    By default the number of cores, times this consumer's share of the rows: the other consumers
    want cores too.
    """
    pieces = [each for rows in ranges.values() for each in rows]
    chosen = sum(each.messages for each in pieces)
    if chosen <= ROWS_WORTH_SPLITTING:
        return 1
    if asked:
        return asked
    return max(1, round((os.cpu_count() or 1) * chosen / sum(each.rows for each in pieces)))


def _by_key(
    topics: SubscribedTopics,
    ranges: Mapping[tuple[str, str], list[RowRange]],
    root: Root,
    tasks: int,
    *,
    fail_on_data_loss: bool,
) -> Iterator[MessageInputPartition]:
    """The ranges again for each task, with a mask of the keys that are dealt to it.

    A key's task follows from its hash alone, whatever the topic and partition.
    """
    dealt: list[list[TopicRows]] = [[] for _ in range(tasks)]
    for (topic, folder), rows in ranges.items():
        shares: list[list[RowRange]] = [[] for _ in range(tasks)]
        for each in rows:
            for number, part in _split(topics.ledger(topic), each, tasks):
                shares[number].append(part)
        for number, share in enumerate(shares):
            if share:
                dealt[number].append(TopicRows(topic, folder, tuple(share)))
    for each_task in dealt:
        if each_task:
            yield MessageInputPartition(root, tuple(each_task), fail_on_data_loss)


def _split(ledger: ManagedLedger, rows: RowRange, tasks: int) -> Iterator[tuple[int, RowRange]]:
    if tasks == 1:
        yield 0, rows
        return
    owner = _hashes(ledger, rows) % tasks
    selected = rows.selected()
    for number in range(tasks):
        mine = owner == number
        if selected is not None:
            mine &= selected
        held = np.flatnonzero(mine)
        if len(held):
            first, stop = int(held[0]), int(held[-1]) + 1
            part = rows.part(rows.first_row + first, rows.first_row + stop)
            inside = mine[first:stop]
            packed = None if inside.all() else np.packbits(inside).tobytes()
            yield number, replace(part, mask=packed)


def _hashes(ledger: ManagedLedger, rows: RowRange) -> NDArray[Any]:
    """The spread hash of each row's key; a row without key has its row number."""
    reader = LedgerFileReader(ledger.store, ledger.folder, ledger.topic)
    try:
        table = _column(reader, rows.ledger, rows)
    except ObjectNotFoundError:  # merged into another file since the log was looked at
        ledger.refresh()
        found = ledger.ledgers(rows.ledger.partition).get(rows.ledger.ledger_id)
        if found is None or found == rows.ledger:
            raise
        table = _column(reader, found, rows)
    finally:
        reader.close()
    hashes = pc.fill_null(table, -1).to_numpy().astype(np.int64)
    missing = np.flatnonzero(hashes < 0)
    hashes[missing] = missing
    spread: NDArray[np.int64] = (hashes * _SPREAD >> 16) & 0xFFFF
    return spread


def _column(reader: LedgerFileReader, ledger: LedgerInfo, rows: RowRange) -> Any:
    batches = list(reader.read(ledger, ["sticky_key_hash"], rows.first_row, rows.rows))
    return pa.chunked_array([batch.column(0) for batch in batches], pa.int32())
