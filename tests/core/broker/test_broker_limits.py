"""Limits and identities: whom they bind, and whom they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    Command,
    CreateSubscription,
    InitialPosition,
    LedgersTrimmed,
    ReconsumeLater,
    Rejection,
    Subscribe,
    SubscriptionType,
    Unsubscribe,
)
from pulsar_spark.broker.protocol.policies import (
    ConsumerOptions,
    DeadLetterPolicy,
    KeySharedMode,
    KeySharedPolicy,
    TopicPolicies,
)
from pulsar_spark.broker.protocol.ready import Ready
from pulsar_spark.broker.selectors.failover_selector import FailoverSelector
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.dead_letter import republication_properties
from pulsar_spark.broker.subscriptions.subscription import MAX_REMEMBERED_INCARNATIONS
from pulsar_spark.errors import InvalidOptionError, ServerError
from pulsar_spark.model.positions.message_id import MessageId
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    TOPIC,
    entries,
    granted_to,
    is_quiet,
    ledger,
    report,
    run,
    subscribe,
)


def errors(ready: Ready) -> list[ServerError | None]:
    return [reply.error for reply in ready.replies]


def granted(ready: Ready) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for grant in ready.grants:
        result.setdefault(grant.consumer, []).append(str(grant.messages))
    return result


# -- limits on unacknowledged messages -----------------------------------------------------------


def test_an_exclusive_consumer_is_not_limited_by_its_unacknowledged_messages() -> None:
    rejected = Rejection(0, PositionSet.of_range(1, 0, 9), 1)
    reported = report("a", delivered={0: PositionSet.of_range(1, 0, 9)}, rejected=(rejected,))
    batches: list[list[Command]] = [
        [ledger(1, [1] * 10), subscribe("a", EXCLUSIVE)],
        [reported],
        [],
    ]
    _, ready = run(batches, TopicPolicies(max_unacked_messages_per_consumer=3))
    assert granted(ready) == {"a": ["1:0-9"]}


def test_a_non_durable_subscription_is_not_limited_by_unacknowledged_messages() -> None:
    added = ledger(1, [1] * 10)
    limited = TopicPolicies(max_unacked_messages_per_consumer=3)
    _, ready = run([[added, subscribe("a", durable=False)]], limited)
    assert granted(ready) == {"a": ["1:0-9"]}
    _, ready = run([[added, subscribe("b")]], limited)
    assert granted(ready) == {"b": ["1:0-2"]}


def test_a_consumer_goes_on_at_half_of_its_unacknowledged_messages_and_not_above() -> None:
    limited = TopicPolicies(max_unacked_messages_per_consumer=4)
    batches: list[list[Command]] = [[ledger(1, [1] * 10), subscribe("a")]]
    batches.append([report("a", entries(1, 0))])
    _, ready = run(batches, limited)
    assert not ready.grants, "three of four"
    _, ready = run([*batches, [report("a", entries(1, 1), sequence=1)]], limited)
    assert granted(ready) == {"a": ["1:4-5"]}


def test_taking_the_limits_away_frees_the_subscription() -> None:
    limited = TopicPolicies(max_unacked_messages_per_subscription=4)
    state, _ = run([[ledger(1, [1] * 10), subscribe("a")]], limited)
    assert state.subscriptions["s"].is_blocked
    state.policies = TopicPolicies(max_unacked_messages_per_subscription=0)
    state, ready = step(state, [], 1)
    assert granted(ready) == {"a": ["1:4-9"]}
    assert not state.subscriptions["s"].is_blocked


@pytest.mark.parametrize("room", [1, 3, 5])
def test_a_nearly_full_key_shared_subscription_replays_no_more_than_there_is_room_for(
    room: int,
) -> None:
    limited = TopicPolicies(max_unacked_messages_per_subscription=20)
    hashes = list(range(100, 2_000_000, 100_000))
    state, _ = run([[ledger(1, [1] * 20, sticky_key_hashes=hashes), subscribe("a", KEY_SHARED)],
                    [subscribe("b", KEY_SHARED)]], limited)  # fmt: skip
    held = state.subscriptions["s"].consumers["a"].held
    assert held == PositionSet.of_range(1, 0, 19)
    back = Rejection(0, held)
    state, _ = step(state, [report("a", rejected=(back,), sequence=1)], 2)
    limited = TopicPolicies(max_unacked_messages_per_subscription=room)
    state.policies = limited
    state, ready = step(state, [], 70_000)
    assert sum(grant.messages.count(state.ledgers) for grant in ready.grants) in range(1, room + 1)


# -- who is who ----------------------------------------------------------------------------------


def test_a_run_that_is_over_cannot_unsubscribe_the_one_that_took_its_name() -> None:
    joined: list[list[Command]] = [
        [subscribe("a", EXCLUSIVE)],
        [subscribe("a", EXCLUSIVE, incarnation=2)],
    ]
    state, ready = run([*joined, [Unsubscribe("s", "a", 1)]])
    assert errors(ready) == [ServerError.CONSUMER_BUSY]
    assert "s" in state.subscriptions
    state, ready = run([*joined, [Unsubscribe("s", "a", 2)]])
    assert ready.deleted_subscriptions == ("s",)


def test_a_new_run_may_have_another_priority() -> None:
    batches: list[list[Command]] = [
        [subscribe("a", incarnation=1), subscribe("b", incarnation=1)],
        [subscribe("a", incarnation=2, priority_level=1)],
        [ledger(1, [1] * 4)],
    ]
    _, ready = run(batches)
    assert granted(ready) == {"b": ["1:0-3"]}
    failover: list[list[Command]] = [[subscribe(name, FAILOVER) for name in "ab"]]
    state, _ = run([*failover, [subscribe("a", FAILOVER, incarnation=2, priority_level=1)]])
    chosen = state.subscriptions["s"].failover
    assert chosen is not None
    assert chosen.active == "b"


def test_a_new_run_may_have_other_sticky_ranges_but_not_another_s() -> None:
    def sticky(name: str, low: int, high: int, incarnation: int = 1) -> Subscribe:
        policy = KeySharedPolicy(KeySharedMode.STICKY, ranges=((low, high),))
        return subscribe(name, KEY_SHARED, key_shared_policy=policy, incarnation=incarnation)

    both = [sticky("a", 0, 99), sticky("b", 100, 199)]
    state, _ = run([both, [ledger(1, [1, 1], sticky_key_hashes=[50, 150])]])
    before = to_shards(state)
    refused, ready = step(state, [sticky("a", 150, 299, 2)], state.now_ms)
    assert errors(ready) == [ServerError.CONSUMER_ASSIGN_ERROR]
    assert to_shards(refused) == before
    moved, _ = step(state, [sticky("a", 200, 299, 2)], state.now_ms)
    added = ledger(2, [1, 1], sticky_key_hashes=[50, 250])
    _, ready = step(moved, [added], 9)
    assert granted(ready) == {"a": ["2:1"]}


def test_an_admin_creates_a_subscription_though_there_are_as_many_consumers_as_may_be() -> None:
    batches: list[list[Command]] = [[subscribe("a")], [CreateSubscription("other", request_id=1)]]
    state, ready = run(batches, TopicPolicies(max_consumers_per_topic=1))
    assert errors(ready) == [None]
    assert "other" in state.subscriptions
    _, ready = run(batches, TopicPolicies(max_subscriptions_per_topic=1))
    assert errors(ready) == [ServerError.NOT_ALLOWED_ERROR]
    _, ready = run([[CreateSubscription("pulsar.dedup", InitialPosition.LATEST, 1)]])
    assert errors(ready) == [ServerError.NAMING_ERROR]


def test_the_runs_of_a_thousand_consumers_that_left_are_remembered_and_no_more() -> None:
    state = BrokerState(TOPIC)
    for number in range(MAX_REMEMBERED_INCARNATIONS + 1):
        name = f"c{number}"
        state, _ = step(state, [subscribe(name), CloseConsumer("s", name, 1)], number)
    assert len(state.subscriptions["s"].incarnations) == MAX_REMEMBERED_INCARNATIONS
    _, ready = step(state, [subscribe("c0"), subscribe("c1")], state.now_ms)
    replies = {reply.consumer: reply.error for reply in ready.replies}
    assert replies == {"c0": None, "c1": ServerError.CONSUMER_REPLACED}


# -- letters and delays --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, -1])
def test_a_message_is_redelivered_once_at_least_before_it_is_a_dead_letter(count: int) -> None:
    with pytest.raises(InvalidOptionError, match="MaxRedeliverCount must be > 0"):
        DeadLetterPolicy(count)


def test_what_a_consumer_says_of_a_letter_replaces_where_it_came_from() -> None:
    said = (("REAL_TOPIC", "mine"), ("RECONSUMETIMES", "77"), ("why", "busy"))
    again = ReconsumeLater(0, entries(1, 0), -5, properties=said)
    options = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(2, retry_letter_topic="r"))
    reported = report("a", reconsume_later=(again,))
    _, ready = run([[ledger(1), subscribe("a", options=options)], [reported]])
    (letter,) = ready.republications
    brought = {"REAL_TOPIC": "first", "REAL_SUBSCRIPTION": "first", "why": "first"}
    properties = republication_properties(letter, MessageId(1, 0), brought)
    assert properties == {
        "REAL_TOPIC": "mine",
        "REAL_SUBSCRIPTION": "first",
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "0",
        "ORIGIN_MESSAGE_ID": "1:0:-1",
        "ORIGIN_MESSAGE_IDY_TIME": "1:0:-1",
        "why": "busy",
    }
    assert letter.deliver_at_ms == 1


@pytest.mark.parametrize("tick_ms", [1, 100, 1_000])
def test_a_topic_s_own_tick_is_kept_with_and_without_a_restart(tick_ms: int) -> None:
    policies = TopicPolicies(delayed_delivery_tick_ms=tick_ms)
    first = ledger(1, [1], deliver_at_ms=[5_001])
    state, ready = run([[subscribe("a")], [first]], policies)
    width = 1 << (tick_ms.bit_length() - 1)
    due = -(-5_001 // width) * width
    assert ready.next_due_ms == due
    second = ledger(2, [1], deliver_at_ms=[5_001])
    for each in (state, from_shards(to_shards(state))):
        _, ready = step(each, [second], 2)
        assert ready.next_due_ms == due


@pytest.mark.parametrize(("is_strict", "due_ms"), [(True, 5_120), (False, 4_120)])
def test_a_delayed_message_comes_before_its_time_only_where_that_is_allowed(
    is_strict: bool, due_ms: int
) -> None:
    policies = TopicPolicies(delayed_delivery_strict=is_strict)
    first = ledger(1, [1], deliver_at_ms=[5_120])
    state, ready = run([[subscribe("a")], [first]], policies)
    assert ready.next_due_ms == due_ms
    state, ready = step(state, [], due_ms - 1)
    assert not ready.grants
    _, ready = step(state, [], due_ms)
    assert granted_to(ready, "a").count(state.ledgers) == 1


# -- reading and dealing -------------------------------------------------------------------------


def test_the_last_entry_of_a_turn_is_cut_to_what_its_consumer_may_hold() -> None:
    state, ready = run(
        [[subscribe("a", permits=4), subscribe("b", permits=3)], [ledger(0, [3, 1, 3])]]
    )
    counts = {name: granted_to(ready, name).count(state.ledgers) for name in ("a", "b")}
    assert counts == {"a": 4, "b": 3}
    assert not granted_to(ready, "a").intersection(granted_to(ready, "b"))


def test_entries_of_many_sizes_are_dealt_and_the_last_one_is_cut() -> None:
    sizes = [3, 1, 7, 2, 5, 4, 1, 6] * 10
    added = [ledger(1, sizes), ledger(2, [50, 50])]
    state, ready = run([[subscribe("a", permits=37), subscribe("b", permits=61)], added])
    held = {name: each.held for name, each in state.subscriptions["s"].consumers.items()}
    assert {name: each.count(state.ledgers) for name, each in held.items()} == {"a": 37, "b": 61}
    assert not held["a"].intersection(held["b"])
    assert ready.grants
    state, _ = step(state, [report("a", permits=500), report("b", permits=500)], 5)
    held = {name: each.held for name, each in state.subscriptions["s"].consumers.items()}
    assert held["a"].union(held["b"]).count(state.ledgers) == sum(sizes) + 100


def test_key_shared_deals_parts_of_batches_that_were_passed_over() -> None:
    hashes = np.arange(12) * 7_654_321
    batches: list[list[Command]] = [
        [subscribe("a", KEY_SHARED, permits=2), subscribe("b", KEY_SHARED, permits=2)],
        [ledger(1, [6, 1, 5], sticky_key_hashes=hashes)],
        [report("a", permits=12), report("b", permits=12)],
    ]
    state, _ = run(batches)
    held = [each.held for each in state.subscriptions["s"].consumers.values()]
    assert held[0].union(held[1]) == PositionSet.of_range(1, 0, 2)
    assert not held[0].intersection(held[1])


def test_a_subscription_begins_though_the_topic_has_no_message() -> None:
    state, ready = step(BrokerState(TOPIC), [subscribe("a", SHARED)], 0)
    assert state.last_position == EARLIEST
    assert ready.replies[0].error is None


def test_a_negative_acknowledgement_waits_a_tenth_of_a_second_at_least() -> None:
    options = ConsumerOptions(negative_ack_redelivery_delay_ms=0)
    state, _ = run([[ledger(0, [1]), subscribe("a", options=options)]])
    state, ready = step(state, [report("a", rejected=(Rejection(0, entries(0, 0)),))], 1_000)
    assert not [each for each in ready.grants if each.messages]
    assert ready.next_due_ms == 1_100
    _, ready = step(state, [], 1_100)
    assert [each.messages for each in ready.grants] == [entries(0, 0)]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_consumer_that_gives_a_message_back_is_unblocked_at_once(kind: SubscriptionType) -> None:
    """Above half of what it may hold, and nobody else is there: or it never came again."""
    policies = TopicPolicies(max_unacked_messages_per_consumer=4)
    state, _ = run([[ledger(0, [1] * 8), subscribe("a", kind)]], policies)
    rejection = Rejection(0, entries(0, 0), delay_ms=0)
    state, ready = step(state, [report("a", rejected=(rejection,))], 5)
    assert granted(ready) == {"a": ["0:0"]}
    state, ready = step(state, [report("a", entries(0, 1), sequence=1)], 6)
    assert granted(ready) == {}, "full again, it waits for half of them"


def test_consistent_hashing_chooses_the_active_consumer_by_the_name_of_the_partition() -> None:
    """Or one consumer would be active on all partitions, where a host names topic and number."""
    policies = TopicPolicies(failover_consistent_hashing=True)
    names = [f"c{number}" for number in range(5)]
    active = []
    for partition in range(8):
        full, selector = f"{TOPIC}-partition-{partition}", FailoverSelector(TOPIC)
        selector = replace(selector, topic=full, partition_index=partition, consistent_hashing=True)
        for name in names:
            selector = selector.add(name, name)
        for topic in (TOPIC, full):
            joining = [subscribe(name, FAILOVER) for name in names]
            state, _ = step(BrokerState(topic, partition, policies), joining, 0)
            assert state.subscriptions["s"].active == selector.active
        active.append(selector.active)
    assert len(set(active)) > 1


def test_what_is_trimmed_under_a_key_shared_consumer_does_not_hinder_who_joins_or_leaves() -> None:
    """The messages it held are gone, and nobody looks for their keys."""
    held: list[Command] = [ledger(0), ledger(1), subscribe("a", KEY_SHARED)]
    for joins in (subscribe("b", KEY_SHARED), CloseConsumer("s", "a", 1)):
        state, _ = run([held])
        state, _ = step(state, [LedgersTrimmed((0,)), joins], 5)
        assert not any(each.held.up_to(Position(0, 9)) for each in _consumers(state))
        assert is_quiet(step(state, [], 6)[1])


def _consumers(state: BrokerState) -> list[Consumer]:
    return list(state.subscriptions["s"].consumers.values())


def test_without_a_retry_letter_topic_to_consume_later_is_to_deliver_again_later() -> None:
    options = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1))
    later = report("a", reconsume_later=(ReconsumeLater(0, entries(0, 0), 30),))
    state, ready = run([[ledger(0, [1]), subscribe("a", options=options)], [later]])
    assert not ready.republications
    due_ms = state.now_ms + 30
    assert ready.next_due_ms == due_ms
    assert not granted_to(step(state, [], due_ms - 1)[1], "a")
    state, ready = step(state, [], due_ms)
    assert granted_to(ready, "a") == entries(0, 0)
    again = report("a", sequence=2, reconsume_later=(ReconsumeLater(1, entries(0, 0), 30),))
    (letter,) = step(state, [again], state.now_ms)[1].republications
    assert letter.topic.endswith("-s-DLQ")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (DeadLetterPolicy(1, "dead-partition-3"), "is one partition"),
        (DeadLetterPolicy(1, "dead", "retry-partition-0"), "is one partition"),
        (DeadLetterPolicy(1, "x" * 300), "choose a shorter one"),
        (DeadLetterPolicy(1, "__letters"), "is a system topic"),
    ],
)
def test_who_names_a_letter_topic_that_nobody_can_write_is_refused(
    policy: DeadLetterPolicy, text: str
) -> None:
    requested = subscribe("a", options=ConsumerOptions(dead_letter_policy=policy), request_id=1)
    _, ready = run([[requested]])
    assert [each.error for each in ready.replies] == [ServerError.NAMING_ERROR]
    assert text in ready.replies[0].message
