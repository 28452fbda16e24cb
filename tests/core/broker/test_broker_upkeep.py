"""The broker's step: producers, retention, expiry, quota, seeks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_spark.broker.dispatchers.dispatcher_sticky_key import look_ahead_of
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    CreateSubscription,
    InitialPosition,
    LedgersTrimmed,
    RedeliverUnacknowledgedMessages,
    Seek,
    SetPolicies,
)
from pulsar_spark.broker.protocol.policies import INFINITE, BacklogQuotaPolicy, TopicPolicies
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.errors import ServerError
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import (
    EXCLUSIVE,
    KEY_SHARED,
    entries,
    granted_to,
    ledger,
    report,
    run,
    subscribe,
)


def errors(ready: Ready) -> list[ServerError | None]:
    return [reply.error for reply in ready.replies]


# -- retention, expiry, quota --------------------------------------------------------------------


def test_a_ledger_stays_while_a_connected_consumer_may_replay_it() -> None:
    keep = report("a", entries(0, 0), committed=Position(-1, -1))
    state, ready = run([[ledger(0), ledger(1), subscribe("a")], [keep], []])
    assert not ready.trim
    state, ready = step(state, [report("a", sequence=3, committed=Position(0, 0))], 9)
    assert not ready.trim, "on account of the state before the step"
    assert ready.next_due_ms == 9
    state, ready = step(state, [], 9)
    assert ready.trim == (0,)
    state, ready = step(state, [], 10)
    assert not ready.trim, "asked for once"
    state, _ = step(state, [LedgersTrimmed((0,)), LedgersTrimmed((77,))], 11)
    assert [each.ledger_id for each in state.ledgers] == [1]
    assert not state.trimming


def test_a_reader_whose_position_is_trimmed_is_moved_on() -> None:
    hidden = entries(0, 0)
    state, _ = run(
        [
            [ledger(0, [1, 1], hidden=hidden), ledger(1)],
            [subscribe("a", EXCLUSIVE, durable=False), report("a", committed=LATEST)],
            [],
            [LedgersTrimmed((0,))],
        ]
    )
    assert state.subscriptions["s"].cursor.backlog(state.ledgers) == 1
    assert not state.hidden


def test_a_commit_that_hides_costs_nothing_of_what_was_hidden_before() -> None:
    state, _ = run([[ledger(0, [1, 1], hidden=entries(0, 0))], [ledger(1, hidden=entries(1, 0))]])
    assert state.hidden == entries(0, 0).union(entries(1, 0))
    after, _ = step(state, [ledger(2, hidden=entries(2, 0))], 20)
    assert all(after.columns[each] is state.columns[each] for each in state.columns)
    assert after.hidden.difference(state.hidden) == entries(2, 0)


def test_retention_keeps_what_everybody_has_passed_for_its_time() -> None:
    policies = TopicPolicies(retention_time_ms=1_000, retention_size_bytes=1_000)
    state, ready = run(
        [[ledger(0), ledger(1), CreateSubscription("s", InitialPosition.LATEST)], []], policies
    )
    assert not ready.trim
    assert ready.next_due_ms == 1_001
    _, ready = step(state, [], 1_001)
    assert ready.trim == (0,)


def test_retention_by_size_lets_the_oldest_go_first() -> None:
    policies = TopicPolicies(retention_time_ms=-1, retention_size_bytes=25)
    _, ready = run([[ledger(n) for n in range(5)], []], policies)
    assert ready.trim == (0, 1)


def test_messages_expire_entry_by_entry_where_their_times_are_known() -> None:
    policies = TopicPolicies(message_ttl_ms=100)
    added = ledger(0, [1, 2, 1], at_ms=40, publish_times_ms=[0, 10, 20, 40])
    state, _ = run([[added, CreateSubscription("s")]], policies)
    state, ready = step(state, [], 101)
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, 0)
    assert ready.next_due_ms == 121
    state, ready = step(state, [], 121)
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, 1)
    state, _ = step(state, [], 141)
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, 2)


@pytest.mark.parametrize("policy", list(BacklogQuotaPolicy))
def test_a_backlog_older_than_its_quota_is_told_of_or_evicted(
    policy: BacklogQuotaPolicy,
) -> None:
    policies = TopicPolicies(backlog_quota_time_ms=100, backlog_quota_policy=policy)
    state, ready = run([[ledger(0), ledger(1, at_ms=60), CreateSubscription("s")]], policies)
    assert ready.backlog_quota is None
    assert ready.next_due_ms == 101
    state, ready = step(state, [], 101)
    assert ready.backlog_quota is not None
    assert not ready.backlog_quota.is_size
    evicted = policy is BacklogQuotaPolicy.CONSUMER_BACKLOG_EVICTION
    mark_delete = state.subscriptions["s"].cursor.mark_delete_position
    assert (mark_delete == Position(0, 0)) is evicted


@pytest.mark.parametrize(
    "quota",
    [TopicPolicies(backlog_quota_bytes=40), TopicPolicies(backlog_quota_time_ms=1)],
)
def test_the_backlogs_of_all_subscriptions_are_evicted_in_one_step(quota: TopicPolicies) -> None:
    """Not that of the slowest alone: nothing may come that would bring another step."""
    policies = replace(
        quota,
        backlog_quota_policy=BacklogQuotaPolicy.CONSUMER_BACKLOG_EVICTION,
        retention_time_ms=INFINITE,
        retention_size_bytes=INFINITE,
    )
    ledgers = [ledger(ledger_id) for ledger_id in range(8)]
    both = [CreateSubscription("s1"), CreateSubscription("s2")]
    state, _ = run([both, [], [], ledgers], policies)
    one, other = (each.cursor.mark_delete_position for each in state.subscriptions.values())
    assert one == other > Position(0, 0)


def test_a_backlog_as_large_as_its_quota_exceeds_it() -> None:
    for limit, exceeded in ((9, True), (10, True), (11, False)):
        policies = TopicPolicies(backlog_quota_bytes=limit)
        state, ready = run([[CreateSubscription("s"), ledger(0)]], policies)
        assert (state.quota_exceeded, ready.backlog_quota is not None) == (exceeded, exceeded)


def test_a_consumed_backlog_exceeds_no_quota() -> None:
    policies = TopicPolicies(backlog_quota_time_ms=100, backlog_quota_bytes=5)
    state, _ = run([[ledger(0), CreateSubscription("s", InitialPosition.LATEST)]], policies)
    _, ready = step(state, [], 500)
    assert ready.backlog_quota is None


def test_policies_change_while_the_broker_runs() -> None:
    state, _ = run([[SetPolicies(TopicPolicies(message_ttl_ms=5))]])
    assert state.policies.message_ttl_ms == 5


# -- seek ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timestamp_ms", "first"),
    [(0, (0, 0)), (10, (0, 0)), (11, (0, 1)), (25, (2, 0)), (100, (2, 0)), (101, None)],
)
def test_a_seek_to_a_time_begins_behind_the_newest_message_before_it(
    timestamp_ms: int, first: tuple[int, int] | None
) -> None:
    early = ledger(0, [1, 2], at_ms=0, publish_times_ms=[10, 15, 20])
    object.__setattr__(early.ledger, "min_publish_time_ms", 10)
    object.__setattr__(early.ledger, "max_publish_time_ms", 20)
    seek = Seek("s", timestamp_ms=timestamp_ms, request_id=2)
    _state, ready = run([[early, ledger(2, at_ms=100), subscribe("a")], [seek]])
    rows = [position for grant in ready.grants for position, _ in grant.messages.entries()]
    assert (min(rows) if rows else None) == first
    assert [reply.request_id for reply in ready.replies] == [2]


def test_a_seek_into_a_ledger_without_times_gives_all_of_it() -> None:
    unknown = ledger(0, [1] * 4)
    object.__setattr__(unknown.ledger, "max_publish_time_ms", 50)
    _, ready = run([[unknown, subscribe("a")], [Seek("s", timestamp_ms=25)]])
    assert ready.grants[0].messages == entries(0, 0, 1, 2, 3)


def test_a_seek_of_an_empty_topic_waits_for_its_first_message() -> None:
    state, ready = run([[subscribe("a")], [Seek("s", LATEST)]])
    assert [each.epoch for each in ready.epochs] == [1]
    _, ready = step(state, [ledger(0)], 5)
    assert ready.grants[0].epoch == 1


def test_no_delayed_message_waits_where_delayed_delivery_is_off() -> None:
    late = ledger(0, [1, 2], deliver_at_ms=[9_000, 0, 9_000])
    _, ready = run([[late, subscribe("a")]], TopicPolicies(delayed_delivery=False))
    assert ready.grants[0].messages == entries(0, 0, 1)
    state, ready = run([[late, subscribe("a")]])
    assert ready.grants[0].messages == PositionSet.of_batch((0, 1), 2, 0b01)
    assert state.delayed.messages == entries(0, 0).union(PositionSet.of_batch((0, 1), 2, 0b10))


def test_keyless_messages_spread_over_the_consumers() -> None:
    _, ready = run([[subscribe("a", KEY_SHARED), subscribe("b", KEY_SHARED), ledger(0, [1] * 50)]])
    assert {grant.consumer for grant in ready.grants} == {"a", "b"}


def test_a_subscription_that_is_full_is_granted_nothing_and_no_more_than_fits() -> None:
    policies = TopicPolicies(max_unacked_messages_per_subscription=4)
    state, ready = run([[ledger(0, [1] * 9), subscribe("a", KEY_SHARED)]], policies)
    assert sum(grant.messages.count(state.ledgers) for grant in ready.grants) == 4
    back = RedeliverUnacknowledgedMessages("s", "a", 1, 0, 1)
    state, ready = step(state, [back, subscribe("b", KEY_SHARED)], 5)
    assert sum(grant.messages.count(state.ledgers) for grant in ready.grants) <= 4


def test_a_seek_back_keeps_what_is_granted_from_being_trimmed() -> None:
    """Of a non-durable subscription, for which only its consumers speak."""
    newest = subscribe("c", durable=False, initial_position=InitialPosition.LATEST)
    state, _ = run([[ledger(0), newest]])
    state, ready = step(state, [ledger(1), Seek("s", EARLIEST)], 1)
    assert [str(grant.messages) for grant in ready.grants] == ["0:0 1:0"]
    for now_ms in range(2, 5):
        state, ready = step(state, [], now_ms)
        assert ready.trim == ()


def test_a_look_ahead_of_zero_is_no_limit() -> None:
    """With one of them off the other counts; with both, what may be unacknowledged."""
    for each, together, expected in ((5, 0, 15), (0, 7, 7), (5, 7, 7), (0, 0, 60)):
        policies = TopicPolicies(
            key_shared_look_ahead_per_consumer=each,
            key_shared_look_ahead=together,
            max_unacked_messages_per_consumer=20,
        )
        assert look_ahead_of(policies, 3) == expected
        _, ready = run([[ledger(0, [1] * 4), subscribe("a", KEY_SHARED)]], policies)
        assert granted_to(ready, "a") == entries(0, *range(4))
    policies = TopicPolicies(
        max_unacked_messages_per_consumer=0,
        max_unacked_messages_per_subscription=0,
        key_shared_look_ahead_per_consumer=0,
        key_shared_look_ahead=0,
    )
    _, ready = run([[ledger(0, [1] * 4), subscribe("a", KEY_SHARED)]], policies)
    assert granted_to(ready, "a") == entries(0, *range(4))
