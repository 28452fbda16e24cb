"""What the simulation found, each as small as it can be told."""

from __future__ import annotations

import pytest
from pyroaring import BitMap

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    CreateSubscription,
    InitialPosition,
    LedgersTrimmed,
    RedeliverUnacknowledgedMessages,
    Rejection,
    Seek,
    SetPolicies,
    Unsubscribe,
)
from pulsar_spark.broker.protocol.policies import KeySharedMode, KeySharedPolicy, TopicPolicies
from pulsar_spark.errors import ServerError
from pulsar_spark.model.positions.cursor import Cursor, serialized
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import (
    EXCLUSIVE,
    KEY_SHARED,
    SHARED,
    by_sink,
    entries,
    granted_to,
    is_quiet,
    ledger,
    report,
    run,
    subscribe,
)


def sticky(low: int, high: int) -> KeySharedPolicy:
    return KeySharedPolicy(KeySharedMode.STICKY, ranges=((low, high),))


def test_a_late_report_to_a_deleted_subscription_does_not_count_for_the_next_of_its_name() -> None:
    gone = report("a", entries(0, 0), request_id=7)
    state, _ = run([[ledger(0), subscribe("a")], [Unsubscribe("s", "a", 1)], [subscribe("b")]])
    state, ready = step(from_shards(to_shards(state)), [gone], 9)
    assert [reply.error for reply in ready.replies] == [ServerError.CONSUMER_NOT_FOUND]
    assert not state.subscriptions["s"].cursor.contains(Position(0, 0))


@pytest.mark.parametrize("command", [Unsubscribe("s", "a", 1), Unsubscribe("s", "b", 2)])
def test_an_unsubscribe_of_a_run_that_is_over_deletes_nothing(command: Unsubscribe) -> None:
    state, ready = run([[subscribe("a", incarnation=2)], [command]])
    assert [reply.error for reply in ready.replies] == [ServerError.CONSUMER_BUSY]
    state, ready = step(state, [CloseConsumer("s", "a", 2), command], 5)
    assert [reply.error for reply in ready.replies] == [ServerError.CONSUMER_BUSY]
    assert "s" in step(state, [], 6)[0].subscriptions


def test_an_admin_deletes_a_subscription_without_consumers() -> None:
    state, ready = run([[CreateSubscription("s")], [Unsubscribe("s")]])
    assert ready.deleted_subscriptions == ("s",)
    assert not state.subscriptions


def test_the_delivery_tick_of_the_policies_holds_from_the_first_message() -> None:
    late = ledger(0, [1], deliver_at_ms=[5_001])
    _, ready = run([[late, subscribe("a")]], TopicPolicies(delayed_delivery_tick_ms=1))
    assert ready.next_due_ms == 5_001


def test_a_release_behind_a_ledger_that_is_being_trimmed_is_announced() -> None:
    policies = TopicPolicies(retention_time_ms=1_000, retention_size_bytes=-1)
    added = [ledger(0), ledger(1, at_ms=500), ledger(2, at_ms=500)]
    state, _ = run([[*added, CreateSubscription("s", InitialPosition.LATEST)], []], policies)
    state, ready = step(state, [], 1_001)
    assert (ready.trim, ready.next_due_ms) == ((0,), 1_501)
    _, ready = step(state, [LedgersTrimmed((0,))], 1_501)
    assert ready.trim == (1,)


def test_a_release_at_retention_time_0_is_announced() -> None:
    policies = TopicPolicies(retention_time_ms=0, retention_size_bytes=1_000)
    create = CreateSubscription("s", InitialPosition.LATEST)
    state, ready = run([[ledger(0), ledger(1), create]], policies)
    assert (ready.trim, ready.next_due_ms) == ((), 1)
    assert step(state, [], 1)[1].trim == (0,)


def test_a_subscription_that_may_hold_one_message_goes_on() -> None:
    policies = TopicPolicies(max_unacked_messages_per_subscription=1)
    state, ready = run([[ledger(0, [1, 1]), subscribe("a")]], policies)
    assert granted_to(ready, "a") == entries(0, 0)
    _, ready = step(state, [report("a", entries(0, 0))], 5)
    assert granted_to(ready, "a") == entries(0, 1)


def test_a_nearly_full_key_shared_subscription_serves_whoever_has_messages() -> None:
    added = ledger(0, [1, 1, 1], sticky_key_hashes=[60_000] * 3)
    state, _ = run(
        [
            [added, subscribe("a", KEY_SHARED, key_shared_policy=sticky(0, 9))],
            [subscribe("b", KEY_SHARED, key_shared_policy=sticky(10, 65_535))],
        ]
    )
    limits = SetPolicies(TopicPolicies(max_unacked_messages_per_subscription=1))
    again = RedeliverUnacknowledgedMessages("s", "b", 1, 0, 1)
    _, ready = step(state, [limits, again], 5)
    assert granted_to(ready, "b") == entries(0, 0)


def test_the_rest_of_an_entry_that_was_cut_is_granted_in_the_same_step() -> None:
    added = ledger(0, [5], sticky_key_hashes=[60_000] * 3 + [1, 2])
    state, ready = run(
        [[added, subscribe("a", KEY_SHARED, key_shared_policy=sticky(0, 9))]],
        TopicPolicies(key_shared_look_ahead=3),
    )
    assert granted_to(ready, "a") == PositionSet.of_batch((0, 0), 5, 0b11000)
    assert is_quiet(step(state, [], 5)[1])


def test_a_seek_to_a_time_passes_over_no_message_of_a_batch() -> None:
    batch = ledger(0, [1, 2], publish_times_ms=[10, 15, 20])
    object.__setattr__(batch.ledger, "min_publish_time_ms", 10)
    object.__setattr__(batch.ledger, "max_publish_time_ms", 20)
    _, ready = run([[batch, subscribe("a")], [Seek("s", timestamp_ms=18)]])
    assert granted_to(ready, "a") == entries(0, 1)


def test_a_rejection_that_comes_late_leaves_partial_acknowledgements_alone() -> None:
    policies = TopicPolicies(batch_index_acknowledgment=False)
    first, second = (PositionSet.of_batch((0, 0), 2, bit) for bit in (0b01, 0b10))
    late = (Rejection(7, first, 0),)
    state, _ = run(
        [[ledger(0, [2]), subscribe("a")], [report("a", first)], [report("a", rejected=late)]],
        policies,
    )
    state, _ = step(state, [report("a", second, sequence=3)], 5)
    assert state.subscriptions["s"].cursor.contains(Position(0, 0))


def test_a_batch_that_comes_again_counts_as_held_whatever_was_acknowledged_of_it() -> None:
    policies = TopicPolicies(batch_index_acknowledgment=False)
    first = PositionSet.of_batch((0, 0), 2, 0b01)
    state, ready = run(
        [
            [ledger(0, [2, 1, 1]), subscribe("a", permits=1)],
            [report("a", first, permits=1), CloseConsumer("s", "a", 1), subscribe("b", permits=3)],
        ],
        policies,
    )
    assert granted_to(ready, "b") == entries(0, 0, 1)
    assert is_quiet(step(state, [], 5)[1])


def test_a_seek_back_keeps_the_ledgers_that_a_reader_had_passed() -> None:
    policies = TopicPolicies(retention_time_ms=100, retention_size_bytes=-1)
    passed = report("a", committed=Position(1, 0))
    state, _ = run(
        [[ledger(0), ledger(1), subscribe("a", EXCLUSIVE, durable=False)], [passed]], policies
    )
    state, _ = step(state, [Seek("s", EARLIEST)], 4)
    assert not step(state, [], 200)[1].trim


def test_shared_and_key_shared_read_on_in_one_step_whatever_was_cut() -> None:
    for kind in (SHARED, KEY_SHARED):
        state, ready = run([[ledger(0, [3, 3, 3]), subscribe("a", kind, permits=4)]])
        assert granted_to(ready, "a").count(state.ledgers) == 4
        assert is_quiet(step(state, [], 5)[1])


def test_equal_sets_are_written_the_same_however_they_came_about() -> None:
    plain, cut = BitMap([0, 1, 2]), BitMap(range(10))
    cut -= BitMap(range(3, 10))
    runs = BitMap.deserialize(BitMap(range(5)).serialize())
    runs.run_optimize()
    runs &= BitMap(range(3))
    assert {serialized(plain), serialized(cut), serialized(runs)} == {serialized(plain)}


def test_a_cumulative_acknowledgement_in_a_batch_counts_towards_the_whole_batch() -> None:
    policies = TopicPolicies(batch_index_acknowledgment=False)
    cumulative = by_sink(Cursor().acknowledge_cumulative(Position(0, 1), 0, 2))
    state, _ = run([[ledger(0, [1, 2]), subscribe("a", EXCLUSIVE)], [cumulative]], policies)
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, 0)
    rest = report("a", PositionSet.of_batch((0, 1), 2, 0b10))
    state, _ = step(state, [rest], 5)
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, 1)


def test_what_is_acknowledged_of_a_batch_stays_so_if_only_others_of_it_come_again() -> None:
    policies = TopicPolicies(batch_index_acknowledgment=False)
    first, second = (PositionSet.of_batch((0, 0), 2, bit) for bit in (0b01, 0b10))
    delayed = ledger(0, [2], deliver_at_ms=[6_000, 0])
    again = report("a", rejected=(Rejection(0, second, 0),))
    state, ready = run([[delayed, subscribe("a")], [again]], policies)
    assert [(each.attempt, each.messages) for each in ready.grants] == [(1, second)]
    state, ready = step(state, [], 7_000)
    assert [(each.attempt, each.messages) for each in ready.grants] == [(0, first)]
    state, _ = step(state, [report("a", first, sequence=2)], 7_001)
    once_more = report("a", first, sequence=3, rejected=(Rejection(1, second, 0),))
    state, ready = step(state, [once_more], 7_002)
    assert [(each.attempt, each.messages) for each in ready.grants] == [(2, second)]
    state, _ = step(state, [report("a", second, sequence=4)], 7_003)
    assert state.subscriptions["s"].cursor.contains(Position(0, 0))


def test_a_rejected_part_of_a_batch_leaves_what_its_consumer_may_be_about_to_deliver() -> None:
    """Seed 804550: with batch-index acknowledgement off, the whole entry went to another."""
    policies = TopicPolicies(batch_index_acknowledgment=False)
    one, rest = PositionSet.of_batch((1, 0), 3, 0b001), PositionSet.of_batch((1, 0), 3, 0b110)
    rejected = Rejection(0, one, 0)
    state, _ = run(
        [[ledger(1, [3]), subscribe("a")], [report("a", delivered={0: one}, rejected=(rejected,))]],
        policies,
    )
    assert state.subscriptions["s"].consumers["a"].pending[0] == rest
