"""The acknowledgements by consumer and time: batch by batch, as far as the system topics have it.

Invariants: what a batch acknowledged is the difference of a subscription's cursors, so what was
refused or came twice is not in it; it goes to the first report among the batch's commands that has
it, and to the broker itself where none has; duplicates, which nobody was given, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pulsar_spark.broker.protocol.commands import Report
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.inspect.views.dispatch_history import Batch, DispatchHistory
from pulsar_spark.connector.inspect.views.message_sets import Group, MessageSet
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition


class SentReport(NamedTuple):
    """A report, and when it was sent, by its sender's clock."""

    report: Report
    sent_ms: int

    def has_of(self, messages: PositionSet) -> PositionSet:
        """The messages of these that it acknowledges."""
        cursors: list[Cursor] = [
            self.report.acknowledged, *self.report.acknowledged_attempts.values(),
        ]  # fmt: skip
        rest = messages
        for cursor in cursors:
            rest = cursor.not_acknowledged(rest)
        return messages.difference(rest)


Reports = dict[tuple[TopicPartition, str], list[SentReport]]
"""The reports by topic partition and subscription, in the order of the commands."""


def acknowledgements(
    root: Root,
    history: DispatchHistory,
    up_to: Batch | None,
    requested: Callable[[TopicPartition], bool],
) -> Iterator[MessageSet]:
    """In groups of (subscription, by, consumer, reported, acknowledged, batch).

    As far as `__dispatch` goes back, up to that batch; each epoch of a subscription for itself.
    """
    if up_to is None:
        return
    commands = SystemTopic(root, COMMANDS)
    commands.refresh()
    known = {
        topic_partition: state.subscriptions
        for topic_partition, state in history.base(requested).items()
    }
    groups: dict[tuple[TopicPartition, str, int], list[tuple[Group, PositionSet]]] = {}
    ledgers: dict[TopicPartition, dict[int, LedgerInfo]] = {}
    for batch, changed in history.steps(up_to, requested):
        reports = _reports(commands, batch, changed)
        for topic_partition, state in changed.items():
            ledgers.setdefault(topic_partition, {}).update(
                (each.ledger_id, each) for each in state.ledgers
            )
            earlier = known.get(topic_partition, {})
            for name, subscription in state.subscriptions.items():
                new = _activity(state, subscription, earlier.get(name))
                mine = groups.setdefault((topic_partition, name, subscription.epoch), [])
                mine += _attributed(new, name, reports.get((topic_partition, name), ()), batch)
            known[topic_partition] = state.subscriptions
    for (topic_partition, _, _), mine in groups.items():
        yield MessageSet(topic_partition, mine, ledgers[topic_partition])


def _activity(
    state: BrokerState, subscription: Subscription, before: Subscription | None
) -> PositionSet:
    """The newly acknowledged messages; after a seek, those since its start."""
    same = before is not None and before.epoch == subscription.epoch
    since = before.cursor if before is not None and same else subscription.origin
    return subscription.cursor.difference(since, state.ledgers).difference(state.hidden)


def _reports(commands: SystemTopic, batch: Batch, changed: Iterable[TopicPartition]) -> Reports:
    """The reports that the batch took in: of one that was set aside, from then on."""
    new, stop = batch.offset.commands
    since = dict.fromkeys(changed, new) | batch.offset.kept_since(changed)
    found: Reports = {}
    first = min(since.values(), default=0)
    if first >= stop:
        return found
    for stored in commands.read(
        first, stop, keep=lambda topic_partition, _: topic_partition in since
    ):
        topic_partition = stored.record.topic_partition
        if stored.ledger_id < since[topic_partition]:
            continue
        try:
            item = stored.record.item()
        except CorruptFileError:  # the broker left it out as well
            continue
        if isinstance(item, Report):
            sent = SentReport(item, stored.publish_time_ms)
            found.setdefault((topic_partition, item.subscription), []).append(sent)
    return found


def _attributed(
    messages: PositionSet, name: str, reports: Iterable[SentReport], batch: Batch
) -> Iterator[tuple[Group, PositionSet]]:
    when = (batch.offset.now_ms, batch.number)
    for sent in reports:
        if not messages:
            return
        if mine := sent.has_of(messages):
            consumer = sent.report.consumer
            by = ("consumer", consumer) if consumer else ("sink", None)
            yield (name, *by, sent.sent_ms, *when), mine
            messages = messages.difference(mine)
    if messages:
        yield (name, "broker", None, None, *when), messages
