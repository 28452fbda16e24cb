"""The rows of one batch of the broker query, read from `__commands`, topics' logs and leases.

Invariants: rows follow from the batch's two offsets and from files that don't change; a command
about a topic partition goes to that key alone; every key that is touched or due has rows, all
with the batch's `now_ms`; a topic that can't be read stops no other. A ledger's columns for the
broker (sticky key hashes, times) are read here, in the task, and never its payloads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from pulsar_spark.connector.ledger_files.ledger_file import LedgerFileReader
from pulsar_spark.connector.system.broker_offset import NO_COMMIT, BrokerOffset, last_shards
from pulsar_spark.connector.system.lease import Lease, read_lease
from pulsar_spark.connector.system.system_topics import COMMANDS, DISPATCH, SystemTopic
from pulsar_spark.connector.topic_log.ledger_columns import columns_of
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.errors import TopicNotFoundError
from pulsar_spark.hosting import broker_rows
from pulsar_spark.hosting.broker_rows import InputRow, Phase
from pulsar_spark.hosting.hosted_broker import OFFSET_KEY, described
from pulsar_spark.positions.ledger_info import LedgerInfo
from pulsar_spark.protocol import wire_format
from pulsar_spark.protocol.commands import (
    CreateSubscription,
    InitialPosition,
    LeaseLapsed,
    LedgersTrimmed,
    SetPolicies,
)
from pulsar_spark.protocol.policies import hosted_policies
from pulsar_spark.topic_log.ledger_commit import Commit
from pulsar_spark.topic_name import TopicName, TopicPartition

ASIDE_RECORD = "\x00aside"
"""The record of `__dispatch` that says why a topic partition was set aside in that batch."""

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("phase", pa.int32()),
        ("place", pa.int64()), ("row", pa.int32()), ("kind", pa.string()),
        ("now_ms", pa.int64()), ("text", pa.string()), ("data", pa.binary()),
        ("sticky_key_hashes", pa.binary()), ("deliver_at_ms", pa.binary()),
        ("publish_times_ms", pa.binary()),
    ]
)  # fmt: skip
_log = logging.getLogger(__name__)


def batches_of(root: Root, start: BrokerOffset, end: BrokerOffset) -> Iterator[pa.RecordBatch]:
    """The rows of the batch from one offset to the next, as Spark takes them."""
    for row in rows_of(root, start, end):
        columns = [pa.array([value], field.type) for value, field in zip(row, _SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def rows_of(root: Root, start: BrokerOffset, end: BrokerOffset) -> Iterator[InputRow]:
    """The rows of the batch, in no particular order: each says where it stands."""
    now_ms = end.now_ms
    offset = end.to_json()
    yield InputRow(OFFSET_KEY, 0, Phase.TICK, 0, 0, broker_rows.OFFSET, now_ms, data=offset)
    ticked = end.hosted if end.snapshot or end.restored is not None else end.due
    if end.restored is not None:
        yield from _restored(root, end.restored, now_ms)
    elif end.dispatched and (aside := {*start.aside, *end.aside} & {*ticked}):
        # The store may hold a step of theirs that did not count, for want of its letters.
        yield from _restored(root, end.dispatched, now_ms, aside)
    for about, number in end.hosted.items():
        before = start.hosted.get(about, NO_COMMIT)
        if number > before:
            yield from _read_log(root, about, before, number, now_ms)
    for about, names in end.created.items():
        for row, name in enumerate(names):
            data = wire_format.encode(CreateSubscription(name, InitialPosition.EARLIEST))
            yield InputRow(*about, Phase.CREATED, 0, row, broker_rows.COMMAND, now_ms, data=data)
    yield from _command_rows(root, start, end)
    yield from _lapsed(root, end, now_ms)
    for about in ticked:
        again = about in start.aside and about not in end.aside
        kind = broker_rows.SNAPSHOT if end.snapshot or again else broker_rows.TICK
        yield InputRow(*about, Phase.TICK, 0, 0, kind, now_ms)
        if end.snapshot and about in end.aside:  # a snapshot writes its shards, no more
            error = end.aside[about].error
            yield InputRow(*about, Phase.TICK, 0, 1, broker_rows.FAILED, now_ms, error)


def _command_rows(root: Root, start: BrokerOffset, end: BrokerOffset) -> Iterator[InputRow]:
    """The new commands, and those that were kept for partitions no longer set aside."""
    again = {about: each for about, each in start.aside.items() if about not in end.aside}
    first = min((each.commands for each in again.values()), default=start.commands)
    if first >= end.commands:
        return
    commands = SystemTopic(root, COMMANDS)
    commands.refresh()
    since = {about: each.commands for about, each in again.items()}

    def is_new(about: TopicPartition, _subscription: str) -> bool:
        return about not in end.aside

    for stored in commands.read(first, end.commands, keep=is_new):
        about = stored.record.about
        if stored.ledger_id >= since.get(about, start.commands):
            yield InputRow(
                *about, Phase.COMMANDS, stored.ledger_id, stored.row, broker_rows.COMMAND,
                end.now_ms, data=stored.record.data,
            )  # fmt: skip


def _read_log(
    root: Root, about: TopicPartition, before: int, last: int, now_ms: int
) -> list[InputRow]:
    """The new commits of a topic as rows; or one row that says why it can't be read."""
    try:
        return list(_log_rows(root, about, before, last, now_ms))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other topics go on
        _log.exception("The log of %s can't be read", about.topic)
        failed = described(error)
        return [InputRow(*about, Phase.LOG, 0, 0, broker_rows.FAILED, now_ms, failed)]


def _restored(
    root: Root, stop_ledger: int, now_ms: int, only: Collection[TopicPartition] | None = None
) -> Iterator[InputRow]:
    dispatch = SystemTopic(root, DISPATCH)
    dispatch.refresh()
    for about, shards in last_shards(dispatch, stop_ledger)[1].items():
        if only is not None and about not in only:
            continue
        for row, (key, data) in enumerate(shards.items()):
            yield InputRow(*about, Phase.RESTORED, 0, row, broker_rows.SHARD, now_ms, key, data)


def _lapsed(root: Root, end: BrokerOffset, now_ms: int) -> Iterator[InputRow]:
    for place, named in enumerate(end.lapsed):
        lease = named if isinstance(named, Lease) else read_lease(root.store, named)
        if lease is None:
            continue
        command = LeaseLapsed(lease.subscription, lease.consumer, lease.incarnation)
        for row, about in enumerate(lease.partitions):
            yield InputRow(
                *about, Phase.LEASES, place, row, broker_rows.COMMAND, now_ms,
                data=wire_format.encode(command),
            )  # fmt: skip


# -- the log -------------------------------------------------------------------------------------


def _log_rows(
    root: Root, about: TopicPartition, before: int, last: int, now_ms: int
) -> Iterator[InputRow]:
    """The rows of one partition, from the topic's commits after `before` up to `last`."""
    try:
        ledger = root.open(TopicName.parse(about.topic))
    except TopicNotFoundError:
        return
    commits = ledger.commits(before + 1, last) if before >= 0 else None
    reader = LedgerFileReader(ledger.store, ledger.folder, about.topic)
    try:
        if commits is None:
            yield from _state_rows(ledger, about, reader, last, now_ms)
            if before >= 0 and about.partition < ledger.state.partitions:
                yield _command(about, last, 1 << 30, _all_trimmed(ledger, about), now_ms)
            return
        for commit in commits:
            yield from _commit_rows(ledger, about, commit, reader, now_ms)
    finally:
        reader.close()


def _state_rows(
    ledger: ManagedLedger, about: TopicPartition, reader: LedgerFileReader, last: int, now_ms: int
) -> Iterator[InputRow]:
    """All ledgers of the topic at its commit `last`: the broker leaves out those that it knows.

    Later ledgers are left out: a repeated batch must not decide on more than it did.
    """
    state, partition = ledger.state, about.partition
    yield _command(about, last, 0, SetPolicies(hosted_policies(state.settings)), now_ms)
    if partition >= state.partitions:
        return
    since = ledger.commits(last + 1, state.number) or ()
    newer = {each.ledger_id for commit in since for each in commit.ledgers}
    ledgers = [each for each in state.ledgers(partition) if each.ledger_id not in newer]
    hidden = state.hidden(partition).of(each.ledger_id for each in ledgers)
    for row, each in enumerate(ledgers, 1):
        told = hidden if each.ledger_id == ledgers[-1].ledger_id else None
        json_of = broker_rows.messages_json(told) if told else None
        yield _ledger_row(ledger, about, each, reader, (last, row), now_ms, json_of)
    compacted = state.compacted(partition)
    if compacted is not None and newer:
        compacted = compacted.before(min(newer), state.ledgers(partition))
    if compacted is not None:
        yield _compacted_row(about, (last, len(ledgers) + 1), compacted.to_json_value(), now_ms)


def _commit_rows(
    ledger: ManagedLedger,
    about: TopicPartition,
    commit: Commit,
    reader: LedgerFileReader,
    now_ms: int,
) -> Iterator[InputRow]:
    partition, number = about.partition, commit.number
    if commit.settings is not None:
        yield _command(about, number, 0, SetPolicies(hosted_policies(commit.settings)), now_ms)
    added = [each for each in commit.ledgers if each.partition == partition]
    for row, each in enumerate(added, 1):
        hidden = commit.hidden.get(partition) if row == len(added) else None
        yield _ledger_row(ledger, about, each, reader, (number, row), now_ms, hidden)
    if partition in commit.compacted:
        yield _compacted_row(about, (number, len(added) + 1), commit.compacted[partition], now_ms)
    trimmed = tuple(commit.trimmed.get(partition, ()))
    if trimmed:
        yield _command(about, number, len(added) + 2, LedgersTrimmed(trimmed), now_ms)


def _all_trimmed(ledger: ManagedLedger, about: TopicPartition) -> LedgersTrimmed:
    """A trim of all that is gone by now: nobody remembers which commit trimmed what."""
    newest = ledger.state.trimmed_up_to(about.partition).ledger_id
    present = {each.ledger_id for each in ledger.ledgers(about.partition)}
    return LedgersTrimmed(tuple(each for each in range(newest + 1) if each not in present))


def _command(about: TopicPartition, place: int, row: int, command: Any, now_ms: int) -> InputRow:
    data = wire_format.encode(command)
    return InputRow(*about, Phase.LOG, place, row, broker_rows.COMMAND, now_ms, data=data)


def _compacted_row(
    about: TopicPartition, where: tuple[int, int], compacted: Any, now_ms: int
) -> InputRow:
    data = json.dumps(compacted).encode()
    return InputRow(*about, Phase.LOG, *where, broker_rows.COMPACTED, now_ms, data=data)


def _ledger_row(
    ledger: ManagedLedger,
    about: TopicPartition,
    info: LedgerInfo,
    reader: LedgerFileReader,
    where: tuple[int, int],
    now_ms: int,
    hidden: Any,
) -> InputRow:
    columns = columns_of(ledger, info, reader)
    return InputRow(
        *about, Phase.LOG, *where, broker_rows.LEDGER, now_ms,
        data=broker_rows.ledger_data(info, info.max_publish_time_ms, hidden),
        sticky_key_hashes=columns.get("sticky_key_hash"),
        deliver_at_ms=columns.get("deliver_at"),
        publish_times_ms=columns.get("publish_time"),
    )  # fmt: skip
