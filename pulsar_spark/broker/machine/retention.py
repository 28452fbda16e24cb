"""Trims, expiry, and the refusal of producers because of a backlog.

Invariants: a ledger goes only when every durable subscription has passed it, retention has
released it, no connected consumer's committed offset may need it for a replay, and, if the topic
was ever compacted, it is compacted: all as it stood before this step; a ledger of a non-persistent
topic goes when it is old enough, needed or not; the newest ledger stays; of a topic that a client
made, where nobody set a retention, what was acknowledged stays for seeks, within named bounds, in
place of Pulsar's ledgers, which stay until they have rolled over; nothing expires before its
time, nor behind a message that stays. Follows Pulsar's `ManagedLedgerImpl.internalTrimLedgers`,
`PersistentMessageExpiryMonitor` and `BacklogQuotaManager`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pulsar_spark.broker.protocol.policies import INFINITE, BacklogQuotaPolicy, TopicPolicies
from pulsar_spark.broker.protocol.ready import BacklogQuotaExceeded, Ready
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.topic_name import is_persistent

NON_PERSISTENT_KEPT_MS: Final = 60_000
"""Milliseconds for which a non-persistent topic has a message for connected consumers; longer if
its retention time is."""
KEPT_FOR_SEEKS_MS: Final = 600_000
"""Milliseconds for which a client's topic keeps acknowledged messages: Pulsar's
`managedLedgerMinLedgerRolloverTimeMinutes`."""
KEPT_FOR_SEEKS_BYTES: Final = 64 << 20
"""The most bytes that a partition keeps so, and ..."""
KEPT_FOR_SEEKS_LEDGERS: Final = 10_000
"""... the most ledgers: each costs the broker some memory, and the store a file."""
TRIM_EVERY_MS: Final = 60_000
"""The ledgers that a client's topic kept go at whole minutes, many at a time: the removal of one
costs the broker a look at all that stay."""


def ledgers_to_trim(state: BrokerState, now_ms: int) -> tuple[int, ...]:
    """The ledgers, oldest first. `state` is that before the step: this step's needs stay.

    Costs the ledgers that go.
    """
    passed, there = _passed_by_all(state), state.ledgers_that_stay()
    if passed is None or not there:
        return ()
    count, total = len(there), 0
    if state.policies.keep_acknowledged or state.policies.retention_size_bytes > 0:
        total = there.size_bytes
    is_full = count > KEPT_FOR_SEEKS_LEDGERS or total > KEPT_FOR_SEEKS_BYTES
    chosen: list[int] = []
    for ledger in there:
        if ledger is there[-1] or ledger.last > passed:
            break
        if not (state.policies.keep_acknowledged and state.is_persistent):
            is_released = _released(state, ledger, now_ms, total)
        elif is_full:  # to make some room
            is_full = count > 0.9 * KEPT_FOR_SEEKS_LEDGERS or total > 0.9 * KEPT_FOR_SEEKS_BYTES
            is_released = is_full
        else:
            is_released = _release_ms(state, ledger) <= now_ms
        if not is_released:
            break
        count, total = count - 1, total - ledger.size_bytes
        chosen.append(ledger.ledger_id)
    return tuple(chosen)


def next_release_ms(state: BrokerState, now_ms: int) -> int | None:
    """The instant at which time alone releases the next ledger; None if it needs more."""
    keep_ms = kept_ms(state.topic, state.policies)
    ledgers = state.ledgers_that_stay()
    if keep_ms == INFINITE or len(ledgers) < 2:
        return None
    ledger = ledgers[0]
    passed = _passed_by_all(state)
    if passed is None or ledger.last > passed:
        return None
    due_ms = _release_ms(state, ledger)
    return due_ms if due_ms > now_ms else None


def expire(state: BrokerState, subscription: Subscription, out: Ready) -> None:
    """Acknowledge messages older than the time to live, up to the first that is not."""
    ttl_ms = state.policies.message_ttl_ms
    if ttl_ms <= 0:
        return
    start = subscription.cursor.mark_delete_position
    position = start
    ledger = state.ledgers.first_at_or_after(max(start.ledger_id, 0))
    while ledger is not None:
        expired, due_ms = _expired_entries(state, ledger, ttl_ms)
        if expired:
            position = max(position, Position(ledger.ledger_id, expired - 1))
        if expired < ledger.entries:
            out.due_at(due_ms)
            break
        ledger = state.ledgers.first_after(ledger.ledger_id)
    if position > start:
        gone = subscription.acknowledge(Cursor(position), state.ledgers)
        subscription.counts = subscription.counts.plus(state.ledgers, expired=gone)


def check_backlog_quota(state: BrokerState, out: Ready) -> None:
    """Report that a quota is exceeded, or evict the excess."""
    policies = state.policies
    state.quota_exceeded = False
    durable = [each for each in state.subscriptions.values() if each.durable]
    if not durable or not len(state.ledgers):
        return
    slowest = min(durable, key=lambda each: each.cursor.mark_delete_position)
    policy, limit = policies.backlog_quota_policy, policies.backlog_quota_bytes
    if limit != INFINITE:
        used = backlog_bytes(state, slowest)
        if used >= limit:  # as Pulsar compares sizes, and not ages
            out.backlog_quota = BacklogQuotaExceeded(policy, used, limit)
    limit = policies.backlog_quota_time_ms
    oldest = None if limit == INFINITE else next(_unread_ledgers(state, slowest), None)
    if out.backlog_quota is None and oldest is not None:
        used = state.now_ms - oldest.min_publish_time_ms
        if used > limit:
            out.backlog_quota = BacklogQuotaExceeded(policy, used, limit, is_size=False)
        else:
            out.due_at(oldest.min_publish_time_ms + limit + 1)
    if out.backlog_quota is None:
        return
    state.quota_exceeded = policy is not BacklogQuotaPolicy.CONSUMER_BACKLOG_EVICTION
    if not state.quota_exceeded:
        for subscription in durable:
            _evict(state, subscription, out.backlog_quota)


def backlog_bytes(state: BrokerState, subscription: Subscription) -> int:
    """Payload bytes of unacknowledged messages; part of a ledger counts by its messages."""
    total = 0
    start = subscription.cursor.mark_delete_position
    for ledger in _unread_ledgers(state, subscription):
        done = start.entry_id + 1 if ledger.ledger_id == start.ledger_id else 0
        messages = ledger.messages - ledger.batch_sizes.first_message(done)
        total += ledger.size_bytes * messages // ledger.messages
    return total


def kept_ms(topic: str, policies: TopicPolicies) -> int:
    """Milliseconds for which a topic of that full name keeps a message, needed or not."""
    if is_persistent(topic) or policies.retention_time_ms == INFINITE:
        return policies.retention_time_ms
    return max(policies.retention_time_ms, NON_PERSISTENT_KEPT_MS)


def _passed_by_all(state: BrokerState) -> Position | None:
    """The position up to which nobody needs a message; None if nothing may go."""
    if not state.is_persistent:  # it waits for nobody
        return state.last_position
    durable = [each for each in state.subscriptions.values() if each.durable]
    if not durable and not state.was_subscribed:
        policies = state.policies
        unset = policies.retention_time_ms == 0 and policies.retention_size_bytes == 0
        # One that was made again is here for those who had subscribed to its namesake.
        if policies.keep_without_subscription or (state.incarnation and unset):
            return None
    passed = state.last_position
    if state.compaction.horizon is not None:  # ledgers that are not compacted yet stay
        passed = min(passed, state.compaction.horizon)
    for subscription in state.subscriptions.values():
        if subscription.durable:
            passed = min(passed, subscription.cursor.mark_delete_position)
        for consumer in subscription.consumers.values():
            passed = min(passed, consumer.committed)
    return None if passed == EARLIEST else passed


def _release_ms(state: BrokerState, ledger: LedgerInfo) -> int:
    """The instant at which time alone releases a ledger, where its time is not without limit."""
    since_ms = state.columns[ledger.ledger_id].published_at_ms
    if state.policies.keep_acknowledged and state.is_persistent:
        whole, _ = divmod(since_ms + KEPT_FOR_SEEKS_MS, TRIM_EVERY_MS)
        return (whole + 1) * TRIM_EVERY_MS
    return since_ms + kept_ms(state.topic, state.policies) + 1


def _released(state: BrokerState, ledger: LedgerInfo, now_ms: int, total_bytes: int) -> bool:
    """True if retention lets the ledger go: it is over its time, or the topic over its size."""
    by_time, by_size = kept_ms(state.topic, state.policies), state.policies.retention_size_bytes
    is_old = by_time != INFINITE and _release_ms(state, ledger) <= now_ms
    if not state.is_persistent:
        return is_old
    is_much = by_size == 0 or (by_size != INFINITE and total_bytes - ledger.size_bytes >= by_size)
    return is_old or is_much


def _expired_entries(state: BrokerState, ledger: LedgerInfo, ttl_ms: int) -> tuple[int, int | None]:
    """(the number of its entries that have expired, the instant at which the next does)."""
    if ledger.max_publish_time_ms + ttl_ms < state.now_ms:
        return ledger.entries, None
    times = state.columns[ledger.ledger_id].publish_times_ms
    if times is None:
        return 0, ledger.max_publish_time_ms + ttl_ms + 1
    over = np.asarray(times, np.int64) + ttl_ms < state.now_ms
    messages = int(np.argmin(over))  # the first that is not over; there is one
    sizes = ledger.batch_sizes.array()
    entries = int(np.searchsorted(np.cumsum(sizes), messages, "right"))
    first = ledger.batch_sizes.first_message(entries)
    last = first + int(sizes[entries])
    return entries, int(np.asarray(times)[first:last].max()) + ttl_ms + 1


def _unread_ledgers(state: BrokerState, subscription: Subscription) -> Iterator[LedgerInfo]:
    """The ledgers of the log that end behind the subscription's mark-delete position."""
    start = subscription.cursor.mark_delete_position
    ledger = state.ledgers.first_at_or_after(max(start.ledger_id, 0))
    while ledger is not None:
        if start < ledger.last and ledger.ledger_id not in state.compaction.trimmed:
            yield ledger
        ledger = state.ledgers.first_after(ledger.ledger_id)


def _evict(state: BrokerState, subscription: Subscription, exceeded: BacklogQuotaExceeded) -> None:
    for ledger in state.ledgers:
        if ledger.last <= subscription.cursor.mark_delete_position:
            continue
        if exceeded.is_size:
            if backlog_bytes(state, subscription) <= exceeded.limit * 0.9:  # to make some room
                return
        elif ledger.max_publish_time_ms + exceeded.limit >= state.now_ms:
            return
        subscription.acknowledge(Cursor(ledger.last), state.ledgers)
