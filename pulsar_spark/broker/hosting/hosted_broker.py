"""One topic partition's broker, hosted: rows in, shards to store and rows to act on out.

Invariants: the stored shards are all that the next batch needs; they are written to `__dispatch`
too, so a host that lost its store is restored from there to the letter; of a deleted topic no shard
is left; the same state and rows give the same result, so a batch may be repeated; a step that
fails, or whose input could not be read, leaves the state as it was, and affects no other topic;
behind a batch that had happened the state is the one that was said then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final

from pulsar_spark.broker.hosting import broker_rows
from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.hosting.broker_rows import InputRow, OutputRow, Phase
from pulsar_spark.broker.hosting.shards import changed
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.broker.protocol.commands import Command
from pulsar_spark.broker.protocol.policies import BacklogQuotaPolicy
from pulsar_spark.broker.protocol.ready import Ready, Stepped, reported
from pulsar_spark.broker.subscriptions.broker_state import DELETED, BrokerState
from pulsar_spark.errors import CorruptFileError, PulsarliteError
from pulsar_spark.model.topic_name import TopicPartition

OFFSET_KEY: Final = ""
"""The topic of the row that carries a batch's offset through; it has no broker."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostedBroker:
    """A broker between two batches: its shards, and the state in them, if it is decoded."""

    shards: Mapping[str, bytes] = field(default_factory=dict)
    state: BrokerState | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch's result for a broker: what to store, to delete, and to do."""

    broker: HostedBroker
    written: Mapping[str, bytes]
    deleted: list[str]
    rows: list[OutputRow]


def run(broker: HostedBroker, rows: Iterable[InputRow]) -> Batch:
    """Take in a batch's rows of one topic partition, in their order, and step once.

    A broker that can't step is set aside: its shards stay, and a row says why. Rows that restore it
    count for more than what the store has, and those of a batch that has happened for more than
    what it comes to now.
    """
    ordered = sorted(rows, key=attrgetter("phase", "place", "row"))
    first = ordered[0]
    held = broker.shards
    restored = {row.text: row.data for row in ordered if row.phase == Phase.RESTORED}
    if restored:
        broker = HostedBroker(restored)
    effect = partial(OutputRow, first.topic, first.partition)
    try:
        state, ready = _step(broker, ordered)
        exists = state.incarnation != DELETED
        after = HostedBroker(to_shards(state), state) if exists else HostedBroker()
        out = [effect(*each) for each in _effects(TopicPartition(*first[:2]), ready)]
        if state.policies.has_backlog_quota:
            out.append(effect(broker_rows.QUOTA, "", _quota(ready)))
        last = effect(broker_rows.DISPATCH, "", wire_format.encode(_stepped(state, ready)))
    except Exception as error:  # noqa: BLE001 - the brokers of all other topics go on
        _log.exception("Topic partition %s of %s is set aside", first.partition, first.topic)
        after, out = HostedBroker(broker.shards), []
        last = effect(broker_rows.QUARANTINED, "", described(error).encode())
    happened = [row for row in ordered if row.phase == Phase.HAPPENED]
    if happened:
        after = HostedBroker({row.text: row.data for row in happened if row.text})
    written, deleted = changed(held, after.shards)
    whole = any(row.kind == broker_rows.SNAPSHOT for row in ordered)
    out += [
        effect(broker_rows.SHARD, key, data)
        for key, data in sorted((after.shards if whole else written).items())
    ]
    gone = sorted({*held, *restored}.difference(after.shards))
    out += [effect(broker_rows.SHARD, key) for key in gone]
    return Batch(after, written, deleted, [*out, last])


def described(error: Exception) -> str:
    """The error in one line of at most 300 characters, for a row."""
    known = isinstance(error, (PulsarliteError, _InputFailedError))
    text = str(error) if known else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


class _InputFailedError(Exception):
    """Input of a broker could not be read."""


def _step(broker: HostedBroker, rows: list[InputRow]) -> tuple[BrokerState, Ready]:
    failed = next((row.text for row in rows if row.kind == broker_rows.FAILED), None)
    if failed is not None:
        raise _InputFailedError(failed)
    before = broker.state
    if before is None:
        fresh = BrokerState(rows[0].topic, rows[0].partition)
        before = from_shards(broker.shards) if broker.shards else fresh
    after, ready = step(before, list(_commands(rows)), rows[0].now_ms)
    _log_breakers(before, after)
    return after, ready


def _log_breakers(before: BrokerState, after: BrokerState) -> None:
    topic_partition = TopicPartition(after.topic, after.partition)
    for name, each in after.subscriptions.items():
        was = before.subscriptions.get(name)
        if was is not None and was.breaker.is_closed != each.breaker.is_closed:
            _log.warning(
                "The breaker of subscription %s on %s %s", name, topic_partition,
                "has closed: its consumers get messages again" if each.breaker.is_closed else
                "opens: most messages fail, so delivery pauses, and tries one at a time",
            )  # fmt: skip


def _commands(rows: Iterable[InputRow]) -> Iterator[Command]:
    for row in rows:
        if row.kind in (broker_rows.LEDGER, broker_rows.COMPACTED, broker_rows.COMMAND):
            try:
                yield broker_rows.command_of(row)
            except CorruptFileError as error:  # one bad command stops no other
                _log.error("Left out at %s:%s of __commands: %s", row.place, row.row, error)


def _effects(topic_partition: TopicPartition, ready: Ready) -> Iterator[tuple[str, str, bytes]]:
    """(kind, text, data) of each row."""
    for republication in ready.republications:
        yield broker_rows.REPUBLICATION, "", wire_format.encode(republication)
    for reply in ready.replies:
        if reply.error is not None and not reply.consumer:
            _log.warning(
                "Refused on %s, subscription %s, what a sink or an admin wanted: %s: %s",
                topic_partition, reply.subscription, reply.error.value, reply.message,
            )  # fmt: skip
    for subscription, item in reported(ready):
        yield broker_rows.DISPATCH, subscription, wire_format.encode(item)
    if ready.trim:
        yield broker_rows.TRIM, "", json.dumps(list(ready.trim)).encode()


def _quota(ready: Ready) -> bytes:
    """Why producers are to be kept out; null if they are not."""
    quota = ready.backlog_quota
    if quota is None or quota.policy is BacklogQuotaPolicy.CONSUMER_BACKLOG_EVICTION:
        return b"null"
    return json.dumps([quota.used, quota.limit, quota.is_size]).encode()


def _stepped(state: BrokerState, ready: Ready) -> Stepped:
    subscriptions = state.subscriptions.values()
    backlogs = tuple((each.name, each.cursor.backlog(state.ledgers)) for each in subscriptions)
    durable = tuple(each.name for each in subscriptions if each.durable)
    consumers = tuple(
        (each.name, consumer.name, consumer.incarnation)
        for each in subscriptions
        for consumer in each.consumers.values()
    )
    return Stepped(
        state.now_ms, state.last_position, ready.next_due_ms, backlogs, durable, consumers
    )
