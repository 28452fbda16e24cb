"""The broker query's sink: the effects of a batch's steps, once for each batch.

Invariants: letters are published before the batch's commit of `__dispatch`, and trims done after
it, as is the marking of exceeded backlog quotas; each of them takes effect once, however often
Spark repeats the batch; a broker whose term is over writes nothing. The commit of `__dispatch` is
the instant at which a batch has happened for everybody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from pulsar_spark.broker.hosting import broker_rows
from pulsar_spark.broker.hosting.broker_rows import OutputRow
from pulsar_spark.broker.hosting.hosted_broker import described
from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.broker.protocol.commands import CreateSubscription, Report
from pulsar_spark.broker.protocol.policies import INFINITE
from pulsar_spark.broker.protocol.ready import Republication
from pulsar_spark.connector.runtime.broker.broker_input import QUARANTINED_RECORD
from pulsar_spark.connector.runtime.broker.republishing import write_republications
from pulsar_spark.connector.runtime.publishing.message_writer import WrittenTopic
from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    OFFSET_RECORD,
    SHARD_PREFIX,
    BrokerOffset,
    stale_checkpoint,
)
from pulsar_spark.connector.runtime.system_topics.hosted_topics import last_shards
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    Record,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics import backlog_quota
from pulsar_spark.connector.runtime.topics.backlog_quota import Mark
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import policies_now
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import (
    DAMAGE,
    BrokerFencedError,
    CorruptFileError,
    FencedError,
    FutureVersionError,
    PulsarliteError,
    StorageError,
    TopicNotFoundError,
)
from pulsar_spark.log.chunked_messages import ChunkedMessages
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.publication import NewLedger
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.records.stored_data import parse_json
from pulsar_spark.model.topic_name import TopicName, TopicPartition

LEDGERS_KEPT = 500
"""Ledgers of `__dispatch` that stay at least, for consumers that lag."""
COMMANDS_KEPT = 2_000
"""Ledgers of `__commands` that stay: at least a batch's, as the batch may set a partition aside."""
REMOTE_TRIM_LEDGERS, REMOTE_TRIM_BYTES = 64, 64 << 20
"""So many ledgers, or bytes, are trimmed over a network, where a trim is two requests."""
SNAPSHOTS: Final = "snapshots"
"""Setting of `__dispatch`: from where on it is needed, for moments since it begins: `_Snapshot`."""

_log = logging.getLogger(__name__)


@dataclass
class SteppedTask:
    """The files that one task wrote, and the effects that the driver has to do. Pickles."""

    query_id: str | None
    dispatch: list[NewLedger] = field(default_factory=list)
    republications: list[WrittenTopic] = field(default_factory=list)
    commands: list[Record] = field(default_factory=list)
    """Subscriptions of letter topics, and reports for the other chunks of copied messages."""
    trims: list[tuple[TopicPartition, list[int]]] = field(default_factory=list)
    quotas: list[tuple[TopicPartition, Mark | None]] = field(default_factory=list)
    """The partitions that have a backlog quota, and whether each exceeds it."""
    offset: bytes | None = None


def write_rows(root: Root, rows: Iterable[OutputRow], query_id: str | None) -> SteppedTask:
    """The task's side: files that nobody sees yet.

    A topic partition whose letters can't be written, or whose log can't be read where a quota is to
    be marked in it, is set aside, with all that its step said.
    """
    task = SteppedTask(query_id)
    place = attrgetter("topic", "partition")
    records: list[Record] = []
    shards: list[Record] = []
    failed: list[TopicPartition] = []
    for key, each in groupby(sorted(rows, key=place), key=place):
        topic_partition, mine = TopicPartition(*key), list(each)
        republications = [
            wire_format.decode(row.data) for row in mine if row.kind == broker_rows.REPUBLICATION
        ]
        try:
            _check_markable(root, topic_partition, mine)
            written = write_republications(root, topic_partition, republications)
            done = list(_done_with(root, topic_partition, republications)) if republications else []
        except Exception as error:  # noqa: BLE001 - whatever it is, the other topics go on
            _log.exception("What %s is to have can't be written", topic_partition)
            records.append(Record(topic_partition, QUARANTINED_RECORD, described(error).encode()))
            failed.append(topic_partition)
            continue
        task.republications += written
        task.commands += [*_subscriptions(root, republications), *done]
        for row in mine:
            if row.kind == broker_rows.DISPATCH:
                records.append(Record(topic_partition, row.text, row.data))
            elif row.kind == broker_rows.QUARANTINED:
                records.append(Record(topic_partition, QUARANTINED_RECORD, row.data))
            elif row.kind == broker_rows.SHARD:
                shards.append(Record(topic_partition, SHARD_PREFIX + row.text, row.data))
            elif row.kind == broker_rows.TRIM:
                task.trims.append((topic_partition, parse_json(row.data)))
            elif row.kind == broker_rows.QUOTA:
                task.quotas.append((topic_partition, parse_json(row.data)))
            elif row.kind == broker_rows.OFFSET:
                records.append(Record(TopicPartition(str(DISPATCH), 0), OFFSET_RECORD, row.data))
                task.offset = row.data
    dispatch = SystemTopic(root, DISPATCH)
    shards += _last_shards_of(dispatch, failed)
    task.dispatch = dispatch.write(records, shards)
    return task


def _check_markable(root: Root, topic_partition: TopicPartition, rows: Iterable[OutputRow]) -> None:
    """UnreadableFileError if a quota is to be marked in its log, and that can't be read."""
    if not root.store.remote and any(row.kind == broker_rows.QUOTA for row in rows):
        with suppress(TopicNotFoundError, CorruptFileError, FutureVersionError):
            root.open(TopicName.parse(topic_partition.topic))


def _last_shards_of(dispatch: SystemTopic, brokers: list[TopicPartition]) -> Iterator[Record]:
    """The shards in `__dispatch` that are written again, since a snapshot may be in progress."""
    known = last_shards(dispatch, dispatch.refresh())[1] if brokers else {}
    for topic_partition in brokers:
        for key, data in known.get(topic_partition, {}).items():
            yield Record(topic_partition, SHARD_PREFIX + key, data)


def _subscriptions(root: Root, republications: Iterable[Republication]) -> Iterator[Record]:
    """Commands that make the subscriptions which letter topics are to have from their beginning.

    None is made where auto-creation of subscriptions is off.
    """
    for topic, name in {(each.topic, each.initial_subscription) for each in republications}:
        if not name:
            continue
        ledger = root.open(TopicName.parse(topic))
        if policies_now(ledger).auto_subscription_creation:
            topic_partition = TopicPartition(str(TopicName.parse(topic)), 0)
            yield Record.of(topic_partition, name, CreateSubscription(name))


def _done_with(
    root: Root, topic_partition: TopicPartition, republications: Iterable[Republication]
) -> Iterator[Record]:
    """Reports that acknowledge the other chunks of copied messages: a letter has the last."""
    chunks = (
        root.open(TopicName.parse(topic_partition.topic))
        .state.partition(topic_partition.partition)
        .chunks
    )
    for republication in republications:
        done = (
            ChunkedMessages.of(chunks).chunks_of(republication.messages)
            if chunks
            else PositionSet()
        )
        if done:
            acknowledged = Cursor().acknowledge(done)
            report = Report(republication.subscription, epoch=None, acknowledged=acknowledged)
            yield Record.of(topic_partition, republication.subscription, report)


def commit_batch(
    root: Root, tasks: Sequence[SteppedTask], application: tuple[str, int], term: int
) -> None:
    """The driver's side: letters, then the commit of `__dispatch`, then trims."""
    log = SystemTopic(root, DISPATCH).open()
    log.refresh()
    if log.state.term > term:
        raise _fenced(root)
    offsets = [BrokerOffset.from_json(each.offset) for each in tasks if each.offset]
    quarantined: set[TopicPartition] = set()
    planned = {each.dispatched for each in offsets if each.dispatched is not None}
    if log.state.applications.get(application[0], -1) >= application[1]:
        # It has happened, letters included. A topic partition that this repetition could step may
        # have been set aside: its letters and trims come with its next step.
        dispatch = SystemTopic(root, DISPATCH)
        stop = dispatch.refresh()
        first = min(planned, default=stop)
        records = dispatch.read(first, stop, keep=lambda _, to: to == QUARANTINED_RECORD)
        quarantined.update(each.record.topic_partition for each in records)
    else:
        if planned - {log.state.next_ledger_id}:  # the plan misses ledgers of `__dispatch`
            raise stale_checkpoint(root)
        _publish_republications(root, tasks, application)
        try:
            new = [ledger for task in tasks for ledger in task.dispatch]
            log.append(new, application=application, term=term)
        except FencedError as error:
            raise _fenced(root) from error
    for topic_partition, ledger_ids in (trim for task in tasks for trim in task.trims):
        if topic_partition not in quarantined:
            _trim(root, topic_partition, ledger_ids)
    quotas = (each for task in tasks for each in task.quotas if each[0] not in quarantined)
    for topic, marks in groupby(sorted(quotas, key=itemgetter(0)), key=lambda each: each[0].topic):
        _mark(root, topic, {topic_partition.partition: each for topic_partition, each in marks})
    for ended in offsets:
        _forget(root, log, ended)


def claim_term(root: Root) -> int:
    """A term above all that were: whoever had one before is fenced from now on."""
    SystemTopic(root, COMMANDS).open()
    log = SystemTopic(root, DISPATCH).open()
    while True:
        log.refresh()
        term = log.state.term + 1
        with suppress(FencedError):
            if isinstance(log.append([], term=term), Commit):
                return term
        # another broker took that term just now


def _publish_republications(
    root: Root, tasks: Sequence[SteppedTask], application: tuple[str, int]
) -> None:
    republications: dict[str, list[NewLedger]] = {}
    for written in (each for task in tasks for each in task.republications):
        republications.setdefault(written.topic, []).extend(written.ledgers)
    for topic, ledgers in sorted(republications.items()):
        try:
            name = TopicName.parse(topic)
            log = root.known(name) or root.open(name)
            log.append(ledgers, application=application, is_brokers=True)
        except DAMAGE as error:  # noqa: PERF203 - one of them
            raise StorageError(
                f"Letters could be written for {topic}, and not published: {error.message} The "
                "batch is repeated, and sets aside the topic partitions whose letters these are."
            ) from None  # no error that lasts: it would end the broker for all topics
    commands = dict.fromkeys(each for task in tasks for each in task.commands)
    if commands:
        SystemTopic(root, COMMANDS).append(commands, application=application)


def _trim(root: Root, topic_partition: TopicPartition, ledger_ids: Iterable[int]) -> None:
    """Drop these ledgers and all older ones that an earlier trim had to leave.

    With an open transaction in the topic's log all stay: the broker waits for no topic. Over a
    network neither it nor those who read the log here wait for a trim.
    """
    before = max(ledger_ids, default=-1) + 1
    name = TopicName.parse(topic_partition.topic)
    try:
        topic = root.known(name) or root.open(name)
        if not root.store.remote:
            LedgerStore(topic, waits=False).trim({topic_partition.partition: before})
        elif _is_behind(topic, before) or _is_much(topic, topic_partition.partition, before):
            root.store.in_background(
                partial(_trim_in_background, root, name, topic_partition.partition, before)
            )
    except PulsarliteError as error:  # the next trim takes these along
        _log.warning("Ledgers %s of %s were not trimmed: %s", ledger_ids, topic_partition, error)


def _trim_in_background(root: Root, name: TopicName, partition: int, before: int) -> None:
    try:
        known = root.known(name) or root.open(name)
        if _is_behind(known, before):
            known.refresh()
        if not _is_much(known, partition, before):
            return
        topic = ManagedLedger.open_anew(root.store, name.storage_path, name.partitioned_topic_name)
        LedgerStore(topic, waits=False).trim({partition: before})
    except PulsarliteError as error:
        _log.warning("Ledgers of %s were not trimmed: %s", name, error)


def _is_behind(topic: ManagedLedger, before: int) -> bool:
    """True if this process lacks ledgers that are to go: under Spark nobody else reads them."""
    return topic.state.next_ledger_id < before


def _is_much(topic: ManagedLedger, partition: int, before: int) -> bool:
    """True if trimming is worth its requests; else a later trim takes these ledgers along."""
    old = [each for each in topic.ledgers(partition) if each.ledger_id < before]
    size = sum(each.size_bytes for each in old)
    return len(old) >= REMOTE_TRIM_LEDGERS or size >= REMOTE_TRIM_BYTES


def _mark(root: Root, topic: str, marks: Mapping[int, Mark | None]) -> None:
    """Tell those who publish which backlog quotas are exceeded, and which are no more.

    Who waits for a mark to be taken back waits for this batch: it is repeated after what may pass.
    """
    try:
        backlog_quota.mark(root.open(TopicName.parse(topic)), marks)
    except (TopicNotFoundError, CorruptFileError, FutureVersionError) as error:
        _log.warning("Producers of %s do not hear of its backlog quota: %s", topic, error)


def _forget(root: Root, dispatch: ManagedLedger, ended: BrokerOffset) -> None:
    """Trim what of the system topics no state needs any more, once that is worth its commits.

    The housekeeper deletes the files.
    """
    known = [_Snapshot(*each) for each in dispatch.state.settings.get(SNAPSHOTS, ())]
    if not known:  # what follows its first ledger is complete
        first = next((each.ledger_id for each in dispatch.ledgers(0)), 0)
        known = [_Snapshot(first, 0, 0)]
    if ended.since is None or ended.since[0] < known[-1].ledger_id + max(1, LEDGERS_KEPT // 2):
        return
    commands = SystemTopic(root, COMMANDS)
    try:
        known.append(_Snapshot(ended.since[0], ended.commands[1], ended.now_ms))
        since = _looked_back_to(dispatch, known)
        last = dispatch.state.next_ledger_id
        LedgerStore(dispatch).trim({0: max(0, min(last - LEDGERS_KEPT, since.ledger_id))})
        if commands.exists():
            needed = min(since.commands, ended.since[1])
            LedgerStore(commands.open()).trim({0: max(0, needed - COMMANDS_KEPT)})
    except PulsarliteError as error:  # the next one does it again
        _log.warning("The system topics are trimmed later: %s", error)


class _Snapshot(NamedTuple):
    """After a batch of that time, all states were in the ledgers of `__dispatch` from this one on.

    `commands` is the next ledger of `__commands` then.
    """

    ledger_id: int
    commands: int
    now_ms: int


def _looked_back_to(dispatch: ManagedLedger, known: Sequence[_Snapshot]) -> _Snapshot:
    """From where on the brokers' states stay, for who wants to see what was.

    It is the last snapshot but one, or an earlier one that is older than the topic's retention
    time.
    """
    keep_ms = policies_now(dispatch).retention_time_ms
    old = [each for each in known[:-1] if keep_ms != INFINITE]
    old = [each for each in old if each.now_ms <= known[-1].now_ms - keep_ms]
    since = old[-1] if old else known[0]
    kept = [list(each) for each in known if each >= since]
    dispatch.change_settings(lambda settings: {**settings, SNAPSHOTS: kept})
    return since


def _fenced(root: Root) -> BrokerFencedError:
    return BrokerFencedError(
        f"Another broker has taken over {root.service_url}: this one is fenced and stops. One "
        "broker serves a root; stop the other first if this one is to go on."
    )
