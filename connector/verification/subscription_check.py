"""The broker's states held against the logs: what each subscription has acknowledged, and lacks.

Invariants: the states are those after one batch, and the logs are read after them, so a log is as
far as the broker heard of it, or farther; what a trim or a compaction took away since is no
difference. A cursor is no summary but the set itself, so what it can contradict are the ledgers,
the other places of a message, and what it was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pulsar_spark.connector.broker.broker_input import ASIDE_RECORD
from pulsar_spark.connector.system.broker_offset import NO_COMMIT
from pulsar_spark.connector.system.hosted_topics import HostedTopics, last_shards
from pulsar_spark.connector.system.system_topics import DISPATCH, SystemTopic
from pulsar_spark.connector.topic_log.managed_ledger import ManagedLedger
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.connector.verification.verified import Check, Difference, SubscriptionAccount
from pulsar_spark.connector.views.dispatch_history import DispatchHistory, Wanted
from pulsar_spark.connector.views.message_sets import delayed_of, unread
from pulsar_spark.errors import DAMAGE
from pulsar_spark.hosting.broker_format import from_shards
from pulsar_spark.positions import batch_part
from pulsar_spark.positions.ledger_info import LedgerInfo
from pulsar_spark.positions.position import EARLIEST
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.subscriptions.broker_state import BrokerState
from pulsar_spark.subscriptions.subscription import Subscription
from pulsar_spark.topic_log.partition_state import PartitionState
from pulsar_spark.topic_name import TopicPartition


@dataclass(frozen=True)
class BrokersView:
    """What `__dispatch` said at one moment: each broker's state, or why it can't be read."""

    hosted: HostedTopics = field(default_factory=HostedTopics)
    states: Mapping[TopicPartition, BrokerState] = field(default_factory=dict)
    damaged: Mapping[TopicPartition, str] = field(default_factory=dict)
    failed: frozenset[TopicPartition] = frozenset()
    """Could not step in the last batch: how much of the log they know is not said."""

    def state(self, about: TopicPartition, log: ManagedLedger) -> BrokerState | None:
        """What it knows of this topic; None if it only knows one of that name that was deleted."""
        state = self.states.get(about)
        return state if state and state.incarnation == log.state.incarnation else None

    def heard(self, about: TopicPartition) -> int | None:
        """The last commit that the partition's state knows of; None if that is not known."""
        return None if about in self.failed else self.hosted.commits.get(about, NO_COMMIT)


def brokers_view(root: Root) -> BrokersView:
    """As of now. CorruptFileError if `__dispatch` can't be read."""
    dispatch = SystemTopic(root, DISPATCH)
    if not (stop := dispatch.refresh()):
        return BrokersView()
    hosted, brokers = last_shards(dispatch, stop)
    if hosted.said is None:
        return BrokersView()
    first = stop if hosted.said.dispatched is None else hosted.said.dispatched
    said = dispatch.read(first, stop, keep=lambda _, to: to == ASIDE_RECORD)
    failed = frozenset(each.record.about for each in said)
    states: dict[TopicPartition, BrokerState] = {}
    damaged: dict[TopicPartition, str] = {}
    for about, shards in brokers.items():
        try:
            if shards:
                states[about] = from_shards(shards, columns=False)
        except DAMAGE as error:  # noqa: PERF203 - each for itself
            damaged[about] = error.message
    return BrokersView(hosted, states, damaged, failed)


def check_broker(
    view: BrokersView, about: TopicPartition, log: ManagedLedger
) -> Iterator[Difference]:
    """Whether what the broker knows of a partition is what the log says, and agrees with itself."""
    number = about.partition
    if (why := view.damaged.get(about)) is not None:
        yield Difference(Check.BROKER, why, number)
    if (state := view.state(about, log)) is None:
        return
    part, heard = log.state.partition(number), view.heard(about)
    if heard is not None and heard > log.state.number:
        text = f"the broker knows commit {heard}, and the log ends with commit {log.state.number}"
        yield Difference(Check.BROKER, text, number)
        return
    for ledger_id, text in _ledger_differences(state, part, log, heard):
        yield Difference(Check.BROKER, text, number, ledger_id=ledger_id)
    try:
        state.check()
    except (AssertionError, ValueError, LookupError) as error:
        yield Difference(Check.BROKER, f"the broker's state contradicts itself: {error}", number)
    for name, subscription in sorted(state.subscriptions.items()):
        for place, text in _cursor_differences(state, subscription, part):
            yield Difference(Check.CURSOR, text, number, name, place)


def check_accounts(
    view: BrokersView, about: TopicPartition, log: ManagedLedger
) -> tuple[list[SubscriptionAccount], list[Difference]]:
    """The account of each subscription whose cursor fits; those whose sums do not come out."""
    accounts, differences = [], []
    state, part = view.state(about, log), log.state.partition(about.partition)
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
            differences.append(Difference(Check.CURSOR, text, about.partition, name))
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


def check_steps(root: Root, wanted: Wanted) -> Iterator[tuple[TopicPartition, Difference]]:
    """What a cursor has lost from one batch of the broker to the next, as far as they are known.

    Reads all that `__dispatch` keeps, and each of its states.
    """
    history = DispatchHistory(root)
    newest = history.batch(None)
    if newest is None:
        return
    known = history.base(wanted)
    for batch, changed in history.steps(newest, wanted):
        for about, state in changed.items():
            earlier = known.get(about)
            for name, subscription in sorted(state.subscriptions.items()):
                before = None if earlier is None else earlier.subscriptions.get(name)
                if earlier is None or before is None or before.epoch != subscription.epoch:
                    continue
                if earlier.incarnation != state.incarnation:
                    continue
                try:
                    lost = before.cursor.difference(subscription.cursor, earlier.ledgers)
                except ValueError as error:  # two sizes of one batch
                    yield about, Difference(Check.CURSOR, str(error), about.partition, name)
                    continue
                there = [each for each in lost.ledger_ids if state.ledgers.get(each) is not None]
                if lost := lost.of_ledgers(there):
                    text = f"{lost} was acknowledged, and is not since batch {batch.number}"
                    yield (
                        about,
                        Difference(Check.CURSOR, text, about.partition, name, lost.ledger_ids[0]),
                    )
            known[about] = state


# -- what the broker knows -------------------------------------------------------------------------


def _ledger_differences(
    state: BrokerState, part: PartitionState, log: ManagedLedger, heard: int | None
) -> Iterator[tuple[int, str]]:
    """(ledger, what is wrong) of ledgers that only one of them has, or that are not the same."""
    held = part.ledgers_left()
    for each in state.ledgers:
        mine = held.get(each.ledger_id)
        if mine is None:
            if each.ledger_id > part.trimmed_up_to.ledger_id:
                yield each.ledger_id, f"the broker knows ledger {each.ledger_id}, the log does not"
        elif _told(mine) != _told(each):
            yield each.ledger_id, f"the broker was told otherwise of ledger {each.ledger_id}"
    newer = _newer(log, heard)
    newest = state.ledgers[-1].ledger_id if len(state.ledgers) else -1
    for each in part.ledgers:
        is_known = each.ledger_id <= newest if newer is None else each.ledger_id not in newer
        if is_known and state.ledgers.get(each.ledger_id) is None:
            text = f"the broker does not know ledger {each.ledger_id}, which was published before"
            yield each.ledger_id, text


def _told(ledger: LedgerInfo) -> object:
    """What the log tells the broker, and no merge and no compaction changes."""
    return (
        ledger.partition, ledger.batch_sizes, ledger.min_publish_time_ms,
        ledger.max_publish_time_ms, ledger.max_deliver_at_ms,
    )  # fmt: skip


def _newer(log: ManagedLedger, heard: int | None) -> set[int] | None:
    """The ledgers of the commits that the broker has not heard; None if that is not known."""
    if heard is None:
        return None
    commits = log.commits(heard + 1, log.state.number)
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
    """What is acknowledged and was not published."""
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
