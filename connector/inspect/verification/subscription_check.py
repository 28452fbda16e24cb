"""The broker's states held against the logs: what each subscription has acknowledged, and lacks.

Invariants: the states are those after one batch, and the logs are read after them, so a log is as
far as the broker heard of it, or farther; what a trim or a compaction took away since is no
difference. A cursor is no summary but the set itself, so what it can contradict are the ledgers,
the other places of a message, and what it was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.inspect.verification.verified import (
    Check,
    Difference,
    SubscriptionAccount,
)
from pulsar_spark.connector.inspect.views.dispatch_history import DispatchHistory, RecordFilter
from pulsar_spark.connector.inspect.views.message_sets import delayed_of, unread
from pulsar_spark.connector.runtime.broker.broker_input import QUARANTINED_RECORD
from pulsar_spark.connector.runtime.system_topics.broker_offset import NO_COMMIT
from pulsar_spark.connector.runtime.system_topics.hosted_topics import HostedTopics, last_shards
from pulsar_spark.connector.runtime.system_topics.system_topics import DISPATCH, SystemTopic
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.errors import DAMAGE
from pulsar_spark.log.partition_state import PartitionState
from pulsar_spark.model.positions import batch_part
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position import EARLIEST
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition


@dataclass(frozen=True)
class BrokersView:
    """The brokers' states in `__dispatch` at one moment, or the errors of unreadable ones."""

    hosted: HostedTopics = field(default_factory=HostedTopics)
    states: Mapping[TopicPartition, BrokerState] = field(default_factory=dict)
    damaged: Mapping[TopicPartition, str] = field(default_factory=dict)
    failed: frozenset[TopicPartition] = frozenset()
    """Could not step in the last batch: how much of the log they know is not said."""

    def state(self, topic_partition: TopicPartition, log: ManagedLedger) -> BrokerState | None:
        """The state for this topic; None if it only knows a deleted one of that name."""
        state = self.states.get(topic_partition)
        return state if state and state.incarnation == log.state.incarnation else None

    def observed(self, topic_partition: TopicPartition) -> int | None:
        """The last commit that the partition's state knows of; None if that is not known."""
        return (
            None
            if topic_partition in self.failed
            else self.hosted.commits.get(topic_partition, NO_COMMIT)
        )


def brokers_view(root: Root) -> BrokersView:
    """As of now. CorruptFileError if `__dispatch` can't be read."""
    dispatch = SystemTopic(root, DISPATCH)
    if not (stop := dispatch.refresh()):
        return BrokersView()
    hosted, brokers = last_shards(dispatch, stop)
    if hosted.last_offset is None:
        return BrokersView()
    first = stop if hosted.last_offset.dispatched is None else hosted.last_offset.dispatched
    records = dispatch.read(first, stop, keep=lambda _, to: to == QUARANTINED_RECORD)
    failed = frozenset(each.record.topic_partition for each in records)
    states: dict[TopicPartition, BrokerState] = {}
    damaged: dict[TopicPartition, str] = {}
    for topic_partition, shards in brokers.items():
        try:
            if shards:
                states[topic_partition] = from_shards(shards, columns=False)
        except DAMAGE as error:  # noqa: PERF203 - each for itself
            damaged[topic_partition] = error.message
    return BrokersView(hosted, states, damaged, failed)


def check_broker(
    view: BrokersView, topic_partition: TopicPartition, log: ManagedLedger
) -> Iterator[Difference]:
    """True if what the broker knows of a partition is what the log says, and agrees with itself."""
    number = topic_partition.partition
    if (why := view.damaged.get(topic_partition)) is not None:
        yield Difference(Check.BROKER, why, number)
    if (state := view.state(topic_partition, log)) is None:
        return
    part, observed = log.state.partition(number), view.observed(topic_partition)
    if observed is not None and observed > log.state.number:
        text = (
            f"the broker knows commit {observed}, and the log ends with commit {log.state.number}"
        )
        yield Difference(Check.BROKER, text, number)
        return
    for ledger_id, text in _ledger_differences(state, part, log, observed):
        yield Difference(Check.BROKER, text, number, ledger_id=ledger_id)
    try:
        state.check()
    except (AssertionError, ValueError, LookupError) as error:
        yield Difference(Check.BROKER, f"the broker's state contradicts itself: {error}", number)
    for name, subscription in sorted(state.subscriptions.items()):
        for place, text in _cursor_differences(state, subscription, part):
            yield Difference(Check.CURSOR, text, number, name, place)


def check_accounts(
    view: BrokersView, topic_partition: TopicPartition, log: ManagedLedger
) -> tuple[list[SubscriptionAccount], list[Difference]]:
    """The account of each subscription whose cursor fits; those whose sums do not come out."""
    accounts, differences = [], []
    state, part = view.state(topic_partition, log), log.state.partition(topic_partition.partition)
    published = part.removed.messages + sum(each.messages for each in part.ledgers)
    for name, subscription in sorted(state.subscriptions.items()) if state is not None else ():
        if state is None or any(_cursor_differences(state, subscription, part)):
            continue
        account = _account(subscription, part)
        accounts.append(account)
        if account.acknowledged + account.backlog + account.removed != published:
            text = (
                f"{account.acknowledged:,} acknowledged + {account.backlog:,} backlog + "
                f"{account.removed:,} removed are not the {published:,} that were published"
            )
            differences.append(Difference(Check.CURSOR, text, topic_partition.partition, name))
    return accounts, differences


def _account(subscription: Subscription, part: PartitionState) -> SubscriptionAccount:
    """Counted from the cursor on both sides: what it has, and what it lacks, of what is there."""
    there = part.ledgers_left() if subscription.read_compacted else part.ledgers
    cursor = subscription.cursor
    acknowledged = PositionSet.between(there, EARLIEST, cursor.mark_delete_position)
    singly = cursor.individually_deleted
    singly = singly.of_ledgers(each for each in singly.ledger_ids if there.get(each) is not None)
    kept = sum(each.messages for each in there) - sum(each.messages for each in part.ledgers)
    return SubscriptionAccount(
        subscription.name,
        acknowledged.count(there) + singly.count(there),
        cursor.backlog(there),
        part.removed.messages - kept,
    )


def check_steps(root: Root, requested: RecordFilter) -> Iterator[tuple[TopicPartition, Difference]]:
    """The messages that a cursor lost from one batch of the broker to the next.

    Reads all that `__dispatch` keeps, and each of its states.
    """
    history = DispatchHistory(root)
    newest = history.batch(None)
    if newest is None:
        return
    known = history.base(requested)
    for batch, changed in history.steps(newest, requested):
        for topic_partition, state in changed.items():
            earlier = known.get(topic_partition)
            for name, subscription in sorted(state.subscriptions.items()):
                before = None if earlier is None else earlier.subscriptions.get(name)
                if earlier is None or before is None or before.epoch != subscription.epoch:
                    continue
                if earlier.incarnation != state.incarnation:
                    continue
                try:
                    lost = before.cursor.difference(subscription.cursor, earlier.ledgers)
                except ValueError as error:  # two sizes of one batch
                    yield (
                        topic_partition,
                        Difference(Check.CURSOR, str(error), topic_partition.partition, name),
                    )
                    continue
                there = [each for each in lost.ledger_ids if state.ledgers.get(each) is not None]
                if lost := lost.of_ledgers(there):
                    text = f"{lost} was acknowledged, and is not since batch {batch.number}"
                    yield (
                        topic_partition,
                        Difference(
                            Check.CURSOR, text, topic_partition.partition, name, lost.ledger_ids[0]
                        ),
                    )
            known[topic_partition] = state


# -- what the broker knows -------------------------------------------------------------------------


def _ledger_differences(
    state: BrokerState, part: PartitionState, log: ManagedLedger, observed: int | None
) -> Iterator[tuple[int, str]]:
    """(ledger, what is wrong) of ledgers that only one of them has, or that are not the same."""
    held = part.ledgers_left()
    for each in state.ledgers:
        mine = held.get(each.ledger_id)
        if mine is None:
            if each.ledger_id > part.trimmed_up_to.ledger_id:
                yield each.ledger_id, f"the broker knows ledger {each.ledger_id}, the log does not"
        elif _reported(mine) != _reported(each):
            yield each.ledger_id, f"the broker was told otherwise of ledger {each.ledger_id}"
    newer = _newer(log, observed)
    newest = state.ledgers[-1].ledger_id if len(state.ledgers) else -1
    for each in part.ledgers:
        is_known = each.ledger_id <= newest if newer is None else each.ledger_id not in newer
        if is_known and state.ledgers.get(each.ledger_id) is None:
            text = f"the broker does not know ledger {each.ledger_id}, which was published before"
            yield each.ledger_id, text


def _reported(ledger: LedgerInfo) -> object:
    """The values of a ledger for the broker, which no merge and no compaction changes."""
    return (
        ledger.partition, ledger.batch_sizes, ledger.min_publish_time_ms,
        ledger.max_publish_time_ms, ledger.max_deliver_at_ms,
    )  # fmt: skip


def _newer(log: ManagedLedger, observed: int | None) -> set[int] | None:
    """The ledgers of the commits that the broker has not heard; None if that is not known."""
    if observed is None:
        return None
    commits = log.commits(observed + 1, log.state.number)
    if commits is None:
        return None
    return {each.ledger_id for commit in commits for each in commit.ledgers}


# -- cursors ---------------------------------------------------------------------------------------


def _cursor_differences(
    state: BrokerState, subscription: Subscription, part: PartitionState
) -> Iterator[tuple[int | None, str]]:
    """(ledger, what is wrong) with what is acknowledged."""
    strays = [*_strays(state, subscription, part)]
    yield from strays or _misplaced(state, subscription)


def _strays(
    state: BrokerState, subscription: Subscription, part: PartitionState
) -> Iterator[tuple[int | None, str]]:
    """The messages that are acknowledged and were not published."""
    cursor, trimmed = subscription.cursor, part.trimmed_up_to.ledger_id
    position = cursor.mark_delete_position
    ledger = state.ledgers.get(position.ledger_id)
    if ledger is None and position.entry_id >= 0 and position.ledger_id > trimmed:
        yield position.ledger_id, f"its mark-delete position {position} is in no ledger"
    if ledger is not None and position.entry_id >= ledger.entries:
        text = f"its mark-delete position {position} is behind the {ledger.entries} entries"
        yield position.ledger_id, text
    deleted = cursor.individually_deleted
    for ledger_id in deleted.ledger_ids:
        if (ledger := state.ledgers.get(ledger_id)) is not None:
            if (why := _misfit(ledger, deleted)) is not None:
                yield ledger_id, f"it has acknowledged {why} of ledger {ledger_id}"
        elif ledger_id > trimmed:
            yield ledger_id, f"it has acknowledged messages of ledger {ledger_id}, which is none"


def _misfit(ledger: LedgerInfo, messages: PositionSet) -> str | None:
    """Entries or parts of entries that the ledger does not have."""
    whole = messages.whole_entries(ledger.ledger_id)
    parts = messages.partial_entries(ledger.ledger_id)
    last = max(whole.max() if whole else -1, max(parts, default=-1))
    if last >= ledger.entries:
        return f"entry {last}, behind the {ledger.entries} entries"
    for entry_id, part in parts.items():
        size, known = batch_part.batch_size(part), ledger.batch_sizes.size_of(entry_id)
        if size != known:
            return f"a part of entry {entry_id} as one of {size} messages, not {known},"
    return None


def _misplaced(state: BrokerState, subscription: Subscription) -> Iterator[tuple[int | None, str]]:
    """Messages that are in no place where the broker would find them again."""
    if subscription.cursor.advance(state.ledgers) != subscription.cursor:
        position = subscription.cursor.mark_delete_position
        yield position.ledger_id, f"its mark-delete position {position} is not as far as it goes"
    if not subscription.subscription_type.is_shared:
        return  # an open grant has whatever is in no other place
    rest = unread(state, subscription).up_to(subscription.read_position)
    places = (subscription.held, subscription.replay, subscription.waiting.messages)
    for place in (*places, delayed_of(state, subscription)):
        rest = rest.difference(place)
    if rest:
        text = f"{rest} was granted once, and is neither acknowledged nor held nor waiting"
        yield rest.ledger_ids[0], text
