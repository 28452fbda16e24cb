"""The rows of one batch of the broker query, read from `__commands`, topics' logs and leases.

Invariants: rows follow from the batch's offset and from files that don't change; a command about a
topic partition goes to that key alone; a key with nothing to do has no row; every key that is
touched or due has rows, all with the batch's `now_ms`; a topic that can't be read stops no other. A
ledger's columns for the broker (sticky key hashes, times) are read here, in the task, and never its
payloads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from pulsar_spark.broker.hosting import broker_rows
from pulsar_spark.broker.hosting.broker_rows import InputRow, Phase
from pulsar_spark.broker.hosting.hosted_broker import OFFSET_KEY, described
from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.broker.protocol.commands import (
    Command,
    CreateSubscription,
    InitialPosition,
    LeaseLapsed,
    LedgersTrimmed,
    LogIdentified,
    SetPolicies,
    TopicDeleted,
    TopicMade,
)
from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    NO_COMMIT,
    BrokerOffset,
    PartitionBatch,
)
from pulsar_spark.connector.runtime.system_topics.hosted_topics import last_shards
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    COMMANDS,
    DISPATCH,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.ledger_columns import columns_of
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.data_files.ledger_file import LedgerFileReader
from pulsar_spark.errors import TopicNotFoundError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.topic_name import TopicName, TopicPartition
from pulsar_spark.options.topic_policies import hosted_policies

QUARANTINED_RECORD = "\x00aside"
"""The record of `__dispatch` that says why a topic partition was set aside in that batch."""

INPUT_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("phase", pa.int32()),
        ("place", pa.int64()), ("row", pa.int32()), ("kind", pa.string()),
        ("now_ms", pa.int64()), ("text", pa.string()), ("data", pa.binary()),
        ("sticky_key_hashes", pa.binary()), ("deliver_at_ms", pa.binary()),
        ("publish_times_ms", pa.binary()),
    ]
)  # fmt: skip
FETCHED: Final = 16
"""The number of a commit's ledgers whose files are requested together over a network."""

_log = logging.getLogger(__name__)


class BatchInput:
    """The input of the batch that an offset names. Pickles."""

    def __init__(self, root: Root, end: BrokerOffset, *, is_repeated: bool = False) -> None:
        self._root, self._end, self._is_repeated = root, end, is_repeated

    def batches(self) -> Iterator[pa.RecordBatch]:
        for row in self.rows():
            yield pa.RecordBatch.from_pylist([row._asdict()], INPUT_SCHEMA)

    def rows(self) -> Iterator[InputRow]:
        """The rows, in no particular order: each says where it stands."""
        rows = self._untimed()
        if self._is_repeated:
            rows = self._with_what_happened([*rows])
        return (row._replace(now_ms=self._end.now_ms) for row in rows)

    def _untimed(self) -> Iterator[InputRow]:
        end = self._end
        offset = TopicPartition(OFFSET_KEY, 0)
        yield _row(offset, Phase.TICK, 0, 0, broker_rows.OFFSET, data=end.to_json())
        ticked = (
            (topic_partition, part) for topic_partition, part in end.parts.items() if part.is_ticked
        )
        quarantined = {
            topic_partition for topic_partition, part in ticked if part.again or part.quarantined
        }
        if end.restored is not None:
            yield from self._restored(end.restored)
        elif end.dispatched and quarantined:
            # The store may hold a step of theirs that did not count, for want of its letters.
            yield from self._restored(end.dispatched, quarantined)
        for topic_partition, part in end.parts.items():
            yield from self._part(topic_partition, part)
        yield from self._commands()
        yield from self._lapsed()

    def _with_what_happened(self, rows: list[InputRow]) -> Iterator[InputRow]:
        """If the batch has happened, what its brokers knew then: now they may come to other ends.

        A log may be out of reach that was read then, or a topic deleted. The empty key says that it
        has happened, also where no shard is left.
        """
        yield from rows
        dispatch = SystemTopic(self._root, DISPATCH)
        hosted, brokers = last_shards(dispatch, dispatch.refresh())
        if hosted.last_offset != self._end:
            return
        for topic_partition in dict.fromkeys(
            TopicPartition(row.topic, row.partition) for row in rows if row.topic != OFFSET_KEY
        ):
            shards = {"": b"", **brokers.get(topic_partition, {})}
            for row, (key, data) in enumerate(shards.items()):
                yield _row(
                    topic_partition, Phase.HAPPENED, 0, row, broker_rows.SHARD, text=key, data=data
                )

    def _part(self, topic_partition: TopicPartition, part: PartitionBatch) -> Iterator[InputRow]:
        if part.is_gone:
            yield _command(topic_partition, Phase.LOG, 0, 0, TopicDeleted())
        if part.observed is not None:
            namespace = str(TopicName.parse(topic_partition.topic).namespace)
            namespace_policies = self._end.policies.get(namespace, {})
            changed = namespace in self._end.changed and part.quarantined is None
            is_reported = part.again is not None or changed
            if part.has_activity or is_reported:
                yield from _log_rows(
                    self._root,
                    topic_partition,
                    *part.observed,
                    namespace_policies,
                    is_reported=is_reported,
                )
        for row, name in enumerate(part.created):
            command = CreateSubscription(name, InitialPosition.EARLIEST)
            yield _command(topic_partition, Phase.CREATED, 0, row, command)
        if part.is_ticked:
            is_whole = part.is_renewed or part.again is not None
            kind = broker_rows.SNAPSHOT if is_whole else broker_rows.TICK
            yield _row(topic_partition, Phase.TICK, 0, 0, kind)
            if part.quarantined is not None:  # its shards are written, no more
                error = part.quarantined.error
                yield _row(topic_partition, Phase.TICK, 0, 1, broker_rows.FAILED, text=error)

    def _commands(self) -> Iterator[InputRow]:
        """The new commands, and those that were kept for partitions no longer set aside."""
        end = self._end
        first_new, stop = end.commands
        since = end.kept_since(end.parts)
        first = min([first_new, *since.values()])
        if first >= stop:
            return
        commands = SystemTopic(self._root, COMMANDS)
        commands.refresh(looks=not commands.knows(stop))
        resting = {a for a, part in end.parts.items() if part.quarantined or part.is_kept}
        for stored in commands.read(
            first, stop, keep=lambda topic_partition, _: topic_partition not in resting
        ):
            topic_partition, place = stored.record.topic_partition, (stored.ledger_id, stored.row)
            if stored.ledger_id >= since.get(topic_partition, first_new):
                data = stored.record.data
                yield _row(topic_partition, Phase.COMMANDS, *place, broker_rows.COMMAND, data=data)

    def _restored(
        self, stop_ledger: int, only: AbstractSet[TopicPartition] | None = None
    ) -> Iterator[InputRow]:
        dispatch = SystemTopic(self._root, DISPATCH)
        dispatch.refresh()
        brokers = last_shards(dispatch, stop_ledger)[1]
        for topic_partition in brokers if only is None else brokers.keys() & only:
            for row, (key, data) in enumerate(brokers[topic_partition].items()):
                yield _row(
                    topic_partition, Phase.RESTORED, 0, row, broker_rows.SHARD, text=key, data=data
                )

    def _lapsed(self) -> Iterator[InputRow]:
        for place, lease in enumerate(self._end.lapsed):
            command = LeaseLapsed(lease.subscription, lease.consumer, lease.incarnation)
            for row, topic_partition in enumerate(lease.partitions):
                yield _command(topic_partition, Phase.LEASES, place, row, command)


def _row(
    topic_partition: TopicPartition, phase: Phase, place: int, row: int, kind: str, **contents: Any
) -> InputRow:
    return InputRow(*topic_partition, phase, place, row, kind, 0, **contents)


def _command(
    topic_partition: TopicPartition, phase: Phase, place: int, row: int, command: Command
) -> InputRow:
    data = wire_format.encode(command)
    return _row(topic_partition, phase, place, row, broker_rows.COMMAND, data=data)


# -- the log -------------------------------------------------------------------------------------


def _log_rows(
    root: Root, topic_partition: TopicPartition, before: int, last: int,
    namespace_policies: Mapping[str, Any], *,
    is_reported: bool,
) -> list[InputRow]:  # fmt: skip
    """A topic's commits after `before` up to `last`; or one row that says why it can't be read.

    With `is_reported` the broker receives the namespace's policies in any case.
    """
    try:
        return list(
            _rows_reported(
                root, topic_partition, before, last, namespace_policies, is_reported=is_reported
            )
        )
    except TopicNotFoundError:
        return []
    except Exception as error:  # noqa: BLE001 - whatever it is, the other topics go on
        _log.exception("The log of %s can't be read", topic_partition.topic)
        return [_row(topic_partition, Phase.LOG, 0, 0, broker_rows.FAILED, text=described(error))]


def _rows_reported(
    root: Root, topic_partition: TopicPartition, before: int, last: int,
    namespace_policies: Mapping[str, Any], *,
    is_reported: bool,
) -> Iterator[InputRow]:  # fmt: skip
    name = TopicName.parse(topic_partition.topic)
    known = root.known(name)
    ledger = known if known is not None and known.state.number >= last else root.open(name)
    made = ledger.state.incarnation
    if before < made <= last:  # nothing that it heard is of this topic
        yield _command(topic_partition, Phase.LOG, 0, 0, TopicMade(made))
        before = NO_COMMIT
    if ledger.state.made_by:
        yield _command(topic_partition, Phase.LOG, 0, 1, LogIdentified(ledger.state.made_by))
    commits = ledger.commits(before + 1, last) if before >= 0 else None
    if commits is None:  # some are gone, or none was ever heard
        commits = [_whole_state(ledger, topic_partition.partition, last, observed=before >= 0)]
    with ledger.reader(holds_small=True) as reader:
        reader.fetch(each for commit in commits for each in commit.ledgers[:FETCHED])
        for each in commits:
            yield from _commit_rows(ledger, topic_partition, each, namespace_policies, reader)
    if is_reported and last >= 0:
        policies = hosted_policies(_settings_at(ledger, last), namespace_policies)
        yield _command(topic_partition, Phase.LOG, last + 1, 0, SetPolicies(policies))


def _whole_state(ledger: ManagedLedger, partition: int, last: int, *, observed: bool) -> Commit:
    """All that the commits up to `last` say of the partition: the broker leaves out what it knows.

    Later ledgers are left out: a repeated batch must not decide on more than it did. A broker that
    has `observed` of ledgers before is told of all that are gone: nobody remembers which commit
    trimmed what.
    """
    state = ledger.state
    whole = Commit(last, "", 0, settings=state.settings)
    if partition >= state.partitions:
        return whole
    there = state.ledgers(partition)  # first: another thread may add to them
    since = ledger.commits(last + 1, state.number) or ()
    newer = {each.ledger_id for commit in since for each in commit.ledgers}
    ledgers = tuple(each for each in there if each.ledger_id not in newer)
    hidden = state.partition(partition).hidden.of(each.ledger_id for each in ledgers)
    compacted = state.partition(partition).compacted
    if compacted is not None and newer:
        compacted = compacted.before(min(newer), there)
    ended = state.partition(partition).trimmed_up_to.ledger_id + 1 if observed else 0
    return replace(
        whole,
        ledgers=ledgers,
        hidden={partition: Cursor(individually_deleted=hidden).to_json_value()} if hidden else {},
        compacted={} if compacted is None else {partition: compacted.to_json_value()},
        trimmed={partition: tuple(each for each in range(ended) if there.get(each) is None)},
    )


def _settings_at(ledger: ManagedLedger, number: int) -> Mapping[str, Any]:
    """The topic's settings after that commit; the latest, if the log remembers no older ones."""
    later = ledger.commits(number + 1, ledger.state.number) or ()
    if any(each.settings is not None for each in later):
        for earlier in range(number, -1, -1):
            if (found := ledger.commits(earlier, earlier)) is None:
                break
            if found[0].settings is not None:
                return found[0].settings
    return ledger.state.settings


def _commit_rows(
    ledger: ManagedLedger, topic_partition: TopicPartition, commit: Commit,
    namespace_policies: Mapping[str, Any],
    reader: LedgerFileReader,
) -> Iterator[InputRow]:  # fmt: skip
    """The rows of a commit for one partition; hidden messages come with the last of its ledgers."""
    place = Phase.LOG, commit.number
    if commit.settings is not None:
        yield _command(
            topic_partition,
            *place,
            0,
            SetPolicies(hosted_policies(commit.settings, namespace_policies)),
        )
    ledgers = [each for each in commit.ledgers if each.partition == topic_partition.partition]
    count = len(ledgers)
    for row, info in enumerate(ledgers, 1):
        columns = columns_of(ledger, info, reader)
        hidden = commit.hidden.get(topic_partition.partition) if row == count else None
        yield _row(
            topic_partition, *place, row, broker_rows.LEDGER,
            data=broker_rows.ledger_data(info, hidden),
            sticky_key_hashes=columns.get("sticky_key_hash"),
            deliver_at_ms=columns.get("deliver_at"),
            publish_times_ms=columns.get("publish_time"),
        )  # fmt: skip
    if (compacted := commit.compacted.get(topic_partition.partition)) is not None:
        data = json.dumps(compacted).encode()
        yield _row(topic_partition, *place, count + 1, broker_rows.COMPACTED, data=data)
    if trimmed := commit.trimmed.get(topic_partition.partition):
        yield _command(topic_partition, *place, count + 2, LedgersTrimmed(trimmed))
