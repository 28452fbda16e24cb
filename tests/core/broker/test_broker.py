"""The broker's step, command by command: what it does, what it refuses, and what it bears."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_spark.broker.dispatchers.dispatcher_single_active import TRANSITIONS, Event, Role, moved
from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    Command,
    CreateSubscription,
    InitialPosition,
    LeaseLapsed,
    ReconsumeLater,
    RedeliverUnacknowledgedMessages,
    Rejection,
    Report,
    Seek,
    SetPolicies,
    Subscribe,
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
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.errors import ServerError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import EARLIEST, LATEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    TOPIC,
    by_sink,
    entries,
    is_quiet,
    ledger,
    report,
    run,
    subscribe,
)
from tests.core.partition import messages_of

WRONG_SIZE = PositionSet.of_batch((0, 0), 3, 1)
"""Of an entry that has another number of messages."""


def errors(ready: Ready) -> list[ServerError | None]:
    return [reply.error for reply in ready.replies]


# -- the step ----------------------------------------------------------------------------------


def test_time_never_goes_back() -> None:
    state, _ = step(BrokerState(TOPIC), [], 100)
    state, _ = step(state, [], 50)
    assert state.now_ms == 100


def test_what_is_no_command_is_an_error_that_names_it() -> None:
    with pytest.raises(TypeError, match="str is no command"):
        step(BrokerState(TOPIC), ["nonsense"], 0)  # type: ignore[list-item]


def test_a_step_in_which_nothing_happens_is_quiet() -> None:
    _, ready = run([[ledger(0), subscribe("a", EXCLUSIVE)], []])
    assert is_quiet(ready)
    assert ready.next_due_ms is None


def test_a_ledger_that_is_known_is_not_added_again() -> None:
    state, _ = run([[ledger(0), ledger(1)], [ledger(0), ledger(1), ledger(2)]])
    assert [each.ledger_id for each in state.ledgers] == [0, 1, 2]


def test_roles_that_are_not_in_the_table_are_errors_that_name_role_and_event() -> None:
    assert moved(Role.STANDBY, Event.ELECTED) is Role.ACTIVE
    with pytest.raises(ValueError, match="gone can't be elected"):
        moved(Role.GONE, Event.ELECTED)
    assert {role for role, _ in TRANSITIONS} == {Role.STANDBY, Role.ACTIVE, Role.REVOKING}


# -- subscribing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policies", "before", "command", "error"),
    [
        ({"max_subscriptions_per_topic": 1}, [], Subscribe("t", "b"), "NotAllowedError"),
        ({"max_consumers_per_topic": 1}, [], subscribe("b"), "ConsumerBusy"),
        ({"subscription_types_enabled": "Failover"}, [], Subscribe("t", "b"), "NotAllowedError"),
        ({"max_consumers_per_subscription": 1}, [], subscribe("b"), "ConsumerBusy"),
        ({}, [], subscribe("a", incarnation=0), "ConsumerReplaced"),
        ({}, [CloseConsumer("s", "a", 1)], subscribe("a"), "ConsumerReplaced"),
        ({}, [], subscribe("b", KEY_SHARED), "ConsumerBusy"),
        ({}, [], subscribe("b", durable=False), "NotAllowedError"),
    ],
)
def test_a_consumer_is_refused(
    policies: dict[str, int], before: list[Any], command: Subscribe, error: str
) -> None:
    first = [subscribe("a")]
    state, ready = run([first, before, [command]], TopicPolicies(**policies))  # type: ignore[arg-type]
    assert [each.value for each in errors(ready) if each] == [error]
    assert "b" not in {name for held in state.subscriptions.values() for name in held.consumers}


def test_a_subscription_that_was_created_by_an_admin_waits_for_its_first_consumer() -> None:
    create = CreateSubscription("s", InitialPosition.EARLIEST, request_id=1)
    state, ready = run([[ledger(0, [1, 1])], [create, create]])
    assert errors(ready) == [None, None]
    _, ready = step(state, [subscribe("a", KEY_SHARED)], 5)
    assert ready.grants[0].messages == entries(0, 0, 1)
    _, ready = run([[CreateSubscription("pulsar.dedup")]])
    assert errors(ready) == [ServerError.NAMING_ERROR]


def test_sticky_ranges_that_overlap_are_refused_and_leave_no_subscription() -> None:
    bad = KeySharedPolicy(KeySharedMode.STICKY, ranges=((0, 10), (5, 20)))
    state, ready = run([[subscribe("a", KEY_SHARED, key_shared_policy=bad)]])
    assert errors(ready) == [ServerError.CONSUMER_ASSIGN_ERROR]
    assert not state.subscriptions


@pytest.mark.parametrize(
    ("start", "inclusive", "first"),
    [
        ((Position(0, 0), 1), False, (0, 0, 2)),
        ((Position(0, 0), 2), False, (0, 1, 0)),
        ((Position(0, 0), 1), True, (0, 0, 1)),
        ((Position(0, 1), -1), False, (2, 0, 0)),
        ((Position(2, 0), -1), True, (2, 0, 0)),
        ((EARLIEST, -1), False, (0, 0, 0)),
        ((LATEST, -1), False, None),
        ((Position(2, 0), -1), False, None),
    ],
)
def test_a_start_message_id_says_where_a_subscription_begins(
    start: tuple[Position, int], inclusive: bool, first: tuple[int, int, int] | None
) -> None:
    command = subscribe("a", start_message_id=start, start_message_id_inclusive=inclusive)
    keep = TopicPolicies(retention_time_ms=-1, retention_size_bytes=-1)
    state, ready = run([[ledger(0, [3, 1]), ledger(2, [1])], [command]], keep)
    rows = [row for grant in ready.grants for row in messages_of(grant.messages, state.ledgers)]
    assert (min(rows) if rows else None) == first


def test_a_non_durable_subscription_goes_with_its_last_consumer() -> None:
    state, ready = run(
        [[subscribe("a", durable=False)], [CloseConsumer("s", "a", 1, request_id=4)]]
    )
    assert not state.subscriptions
    assert ready.deleted_subscriptions == ("s",)
    assert ready.replies[0].request_id == 4


def test_a_newer_run_without_checkpoint_is_granted_everything_again() -> None:
    state, _ = run([[ledger(0, [1, 1]), subscribe("a")]])
    state, ready = step(state, [subscribe("a", incarnation=2)], 5)
    assert [(g.attempt, g.redelivery_count, g.messages) for g in ready.grants] == [
        (1, 0, entries(0, 0, 1))
    ], "nothing was reported, so nothing was delivered"
    state, ready = step(state, [subscribe("a", incarnation=3, resumes=True)], 6)
    assert [(g.attempt, g.again) for g in ready.grants] == [(1, True)]


def test_a_doubled_subscribe_says_again_what_the_consumer_holds() -> None:
    state, _ = run([[ledger(0, [1, 1]), subscribe("a")]])
    _, ready = step(state, [subscribe("a")], 5)
    assert [(g.attempt, g.messages, g.again) for g in ready.grants] == [(0, entries(0, 0, 1), True)]


def test_who_resumes_while_it_is_asked_to_give_back_is_asked_again() -> None:
    state, _ = run(
        [[ledger(0), subscribe("b", FAILOVER, priority_level=1)], [subscribe("a", FAILOVER)]]
    )
    again = subscribe("b", FAILOVER, priority_level=1, incarnation=2, resumes=True)
    _, ready = step(state, [again], 5)
    assert [(r.consumer, r.incarnation, r.revision) for r in ready.revokes] == [("b", 2, 1)]
    assert not ready.open_grants


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Unsubscribe("t"), ServerError.SUBSCRIPTION_NOT_FOUND),
        (Unsubscribe("s", "b"), ServerError.CONSUMER_BUSY),
        (Seek("t", EARLIEST), ServerError.SUBSCRIPTION_NOT_FOUND),
        (Seek("s"), ServerError.NOT_ALLOWED_ERROR),
        (Report("t", epoch=None), ServerError.SUBSCRIPTION_NOT_FOUND),
        (by_sink(Cursor(Position(0, 0))), ServerError.NOT_ALLOWED_ERROR),
        (
            Report("s", epoch=None, acknowledged_attempts={0: Cursor(Position(0, 0))}),
            ServerError.NOT_ALLOWED_ERROR,
        ),
        (by_sink(Cursor().acknowledge(entries(0, 7))), ServerError.INVALID_CURSOR_POSITION),
        (by_sink(Cursor().acknowledge(entries(8, 0))), ServerError.INVALID_CURSOR_POSITION),
        (
            by_sink(Cursor().acknowledge(WRONG_SIZE)),
            ServerError.INVALID_CURSOR_POSITION,
        ),
        (Report("s", epoch=3, request_id=1), ServerError.EPOCH_IS_OVER),
        (report("a", epoch=2, request_id=1), ServerError.EPOCH_IS_OVER),
        (report("a", incarnation=0), ServerError.CONSUMER_REPLACED),
        (report("nobody"), ServerError.CONSUMER_NOT_FOUND),
        (report("a", WRONG_SIZE), ServerError.INVALID_CURSOR_POSITION),
        (report("a", delivered={0: WRONG_SIZE}), ServerError.INVALID_CURSOR_POSITION),
        (report("a", rejected=(Rejection(0, WRONG_SIZE),)), ServerError.INVALID_CURSOR_POSITION),
        (
            by_sink(Cursor(), rejected=(Rejection(None, WRONG_SIZE),)),
            ServerError.INVALID_CURSOR_POSITION,
        ),
        (
            report("a", reconsume_later=(ReconsumeLater(0, WRONG_SIZE),)),
            ServerError.INVALID_CURSOR_POSITION,
        ),
        (
            report("a", acknowledged_attempts={0: Cursor().acknowledge(WRONG_SIZE)}),
            ServerError.INVALID_CURSOR_POSITION,
        ),
    ],
)
def test_a_request_is_refused(command: Any, error: ServerError) -> None:
    state, _ = run([[ledger(0, [1, 1]), subscribe("a")]])
    after, ready = step(state, [command], 5)
    assert errors(ready) == [error]
    assert to_shards(after) == to_shards(step(state, [], 5)[0]), "and changes nothing"
    assert after.subscriptions["s"].cursor == state.subscriptions["s"].cursor


def test_a_report_for_no_subscription_and_one_of_an_older_epoch_change_nothing() -> None:
    state, ready = run([[ledger(0), subscribe("a")], [Seek("s", EARLIEST)], [report("a", epoch=0)]])
    assert not ready.replies
    state, ready = step(state, [Seek("s", LATEST), report("a", epoch=0)], 9)
    assert state.subscriptions["s"].epoch == 2
    _, ready = run([[report("a")]])
    assert errors(ready) == [ServerError.SUBSCRIPTION_NOT_FOUND]


def test_the_only_consumer_unsubscribes() -> None:
    command = Unsubscribe("s", "a", 1, request_id=3)
    state, ready = run([[subscribe("a")], [command]])
    assert not state.subscriptions
    assert [reply.request_id for reply in ready.replies] == [3]


# -- acknowledging -------------------------------------------------------------------------------


def test_what_is_acknowledged_before_the_log_tells_of_it_counts_once_it_does() -> None:
    early = report("a", entries(3, 0, 1))
    state, _ = run([[ledger(0), subscribe("a", EXCLUSIVE)], [early]])
    assert state.subscriptions["s"].pending_acknowledgments is not None
    state, _ = step(state, [report("a", entries(3, 1), sequence=2)], 4)
    state, _ = step(state, [ledger(3, [1, 1, 1])], 5)
    subscription = state.subscriptions["s"]
    assert subscription.pending_acknowledgments is None
    assert subscription.cursor.individually_deleted == entries(3, 0, 1)


def test_what_could_never_be_right_is_forgotten_when_the_log_tells_of_it() -> None:
    early = report("a", PositionSet.of_batch((3, 0), 3, 1))
    state, _ = run([[ledger(0), subscribe("a", EXCLUSIVE)], [early]])
    assert state.subscriptions["s"].pending_acknowledgments is not None
    state, _ = step(state, [ledger(3, [1, 1, 1])], 5)
    assert state.subscriptions["s"].pending_acknowledgments is None
    assert not state.subscriptions["s"].cursor.individually_deleted


def test_messages_asked_for_again_by_a_wrong_batch_size_are_refused() -> None:
    half = report("a", PositionSet.of_batch((0, 0), 2, 1), delivered={0: entries(0, 0)})
    state, _ = run([[ledger(0, [2, 1]), subscribe("a")], [half]])
    request = RedeliverUnacknowledgedMessages("s", "a", 1, 0, 1, {0: WRONG_SIZE})
    after, ready = step(state, [request], 5)
    assert errors(ready) == [ServerError.INVALID_CURSOR_POSITION]
    assert not after.subscriptions["s"].replay


def test_a_sink_acknowledges_and_rejects_for_whoever_holds_the_messages() -> None:
    state, _ = run([[ledger(0, [1] * 4), subscribe("a", permits=2), subscribe("b", permits=2)]])
    acked = Cursor().acknowledge(entries(0, 0))
    sink = report("", None, incarnation=0, acknowledged=acked, request_id=8,
                  rejected=(Rejection(0, entries(0, 1, 2), 100),))  # fmt: skip
    state, ready = step(state, [sink], 5)
    assert [reply.request_id for reply in ready.replies] == [8]
    assert state.subscriptions["s"].waiting.messages == entries(0, 1, 2)


def test_what_was_trimmed_is_acknowledged_without_effect() -> None:
    state, _ = run([[ledger(3), ledger(5), subscribe("a")]])
    trimmed = entries(1, 0).union(PositionSet.of_batch((2, 0), 2, 0b01))
    after, ready = step(state, [by_sink(Cursor().acknowledge(trimmed))], 5)
    assert not ready.replies
    assert after.subscriptions["s"].cursor == state.subscriptions["s"].cursor


@pytest.mark.parametrize("tell", [by_sink, partial(report, "a", None)])
def test_what_lies_behind_the_end_of_an_earlier_ledger_never_was_and_changes_nothing(
    tell: Callable[..., Report],
) -> None:
    state, _ = run([[ledger(0, [1, 1]), ledger(3, [1]), subscribe("a", EXCLUSIVE)]])
    never = Cursor().acknowledge(entries(0, 2, 9).union(PositionSet.of_batch((0, 5), 3, 1)))
    after, ready = step(state, [tell(acknowledged=never)], 5)
    assert not ready.replies
    subscription = after.subscriptions["s"]
    assert (subscription.cursor, subscription.pending_acknowledgments) == (
        state.subscriptions["s"].cursor,
        None,
    )
    after, ready = step(after, [tell(acknowledged=Cursor(Position(0, 7)), sequence=2)], 6)
    assert not ready.replies
    assert after.subscriptions["s"].cursor == Cursor(Position(0, 1))


def test_a_sink_acknowledges_all_before_an_entry_that_does_not_exist_yet() -> None:
    state, _ = run([[ledger(0, [2, 2]), subscribe("a", EXCLUSIVE)]])
    up_to = Cursor().acknowledge_cumulative(Position(0, 2), 0, 2)
    state, ready = step(state, [by_sink(up_to, request_id=7)], 5)
    assert [reply.request_id for reply in ready.replies if reply.error is None] == [7]
    subscription = state.subscriptions["s"]
    assert (subscription.cursor, subscription.pending_acknowledgments) == (
        Cursor(Position(0, 1)),
        None,
    )


@pytest.mark.parametrize("place", [Position(0, 0), Position(7, -1), Position(7, 3)])
def test_nothing_can_be_acknowledged_before_anything_was_published(place: Position) -> None:
    state, _ = run([[subscribe("a", EXCLUSIVE)]])
    one = Cursor().acknowledge(entries(7, 0))
    after, ready = step(state, [by_sink(Cursor(place)), by_sink(one)], 5)
    assert errors(ready) == [ServerError.INVALID_CURSOR_POSITION] * 2
    subscription = after.subscriptions["s"]
    assert (subscription.cursor, subscription.pending_acknowledgments) == (
        state.subscriptions["s"].cursor,
        None,
    )


def test_a_cumulative_acknowledgement_below_the_mark_delete_is_refused() -> None:
    state, _ = run(
        [[ledger(0, [1, 4, 1]), subscribe("a", EXCLUSIVE)], [by_sink(Cursor(Position(0, 1)))]]
    )
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, 1)
    for bad in (Position(0, 0), Position(0, 3)):
        _, ready = step(state, [by_sink(Cursor(bad))], 5)
        assert errors(ready) == [ServerError.INVALID_CURSOR_POSITION]
    _, ready = step(state, [by_sink(Cursor(Position(0, 2)), request_id=6)], 5)
    assert [reply.request_id for reply in ready.replies] == [6]


def test_without_batch_index_acknowledgement_a_cumulative_one_stops_before_the_batch() -> None:
    policies = TopicPolicies(batch_index_acknowledgment=False)
    command = by_sink(Cursor().acknowledge_cumulative(Position(0, 1), 1, 4))
    state, _ = run([[ledger(0, [1, 4]), subscribe("a", EXCLUSIVE)], [command]], policies)
    assert state.subscriptions["s"].cursor == Cursor(Position(0, 0))


def test_without_batch_index_acknowledgement_a_rejected_batch_comes_again_whole() -> None:
    policies = TopicPolicies(batch_index_acknowledgment=False)
    part = PositionSet.of_batch((0, 0), 4, 0b0011)
    state, _ = run([[ledger(0, [4]), subscribe("a", EXCLUSIVE)], [report("a", part)]], policies)
    assert state.subscriptions["s"].partial_acks == part
    rejected = (Rejection(0, PositionSet.of_batch((0, 0), 4, 0b0100), 0),)
    _, ready = step(state, [report("a", rejected=rejected)], 5)
    assert [(g.attempt, g.messages) for g in ready.grants] == [(1, entries(0, 0))]


def test_an_ack_timeout_of_an_exclusive_consumer_brings_back_what_was_delivered() -> None:
    options = ConsumerOptions(ack_timeout_ms=1_000)
    state, _ = run(
        [
            [ledger(0, [1] * 3), subscribe("a", EXCLUSIVE, options=options)],
            [report("a", delivered={0: entries(0, 0, 1)})],
        ]
    )
    state, ready = step(state, [], 1_000)
    assert not ready.grants
    assert ready.next_due_ms == 1_001
    _, ready = step(state, [], 1_001)
    assert [(g.attempt, g.redelivery_count, g.messages) for g in ready.grants] == [
        (1, 1, entries(0, 0, 1))
    ]


# -- a sink ----------------------------------------------------------------------------------------


def test_a_sink_that_names_no_attempt_rejects_what_is_held_at_any_attempt_by_anybody() -> None:
    options = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1))
    one: list[Command] = [ledger(0, [1] * 3), subscribe("a", permits=2, options=options),
           subscribe("b", options=options)]  # fmt: skip
    state, ready = run([one, [report("a", rejected=(Rejection(0, entries(0, 0), 0),))]])
    assert [(each.attempt, each.messages) for each in ready.grants] == [(1, entries(0, 0))]
    why = (("ERROR", "no"),)
    sink = Report("s", epoch=None, rejected=(Rejection(None, entries(0, 0, 1, 2), 0, why),))
    state, ready = step(state, [sink], 5)
    assert [(each.messages, each.properties[0]) for each in ready.republications] == [
        (entries(0, 0), why[0])
    ]
    again = [each for each in ready.grants if each.messages]
    assert {each.attempt for each in again} == {1}
    assert again[0].messages.union(again[-1].messages) == entries(0, 1, 2)
    state.check()


def test_what_a_sink_sends_to_be_reconsumed_later_leaves_every_attempt() -> None:
    options = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(5, retry_letter_topic="r"))
    state, _ = run([[ledger(0, [1] * 3), subscribe("a", EXCLUSIVE, options=options)]])
    state, _ = step(state, [report("a", rejected=(Rejection(0, entries(0, 1), 0),))], 5)
    sink = Report("s", epoch=None, reconsume_later=(ReconsumeLater(None, entries(0, 0, 1), 9),))
    state, ready = step(state, [sink, sink], 6)
    assert [(each.messages, each.deliver_at_ms) for each in ready.republications] == [
        (entries(0, 0, 1), 15)
    ]
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, 1)
    state.check()


def test_a_consumers_report_of_another_epoch_does_nothing_and_a_sinks_has_none() -> None:
    state, _ = run([[ledger(0, [1] * 2), subscribe("a")], [Seek("s", EARLIEST)]])
    state, _ = step(state, [report("a", entries(0, 0))], 5)
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, -1)
    sink = Report("s", epoch=None, acknowledged=Cursor().acknowledge(entries(0, 0)))
    state, _ = step(state, [sink, sink], 6)
    assert state.subscriptions["s"].cursor.mark_delete_position == Position(0, 0)


# -- giving back ---------------------------------------------------------------------------------


def test_an_exclusive_consumer_that_never_says_what_it_delivered_may_have_read_its_permits() -> (
    None
):
    state, _ = run([[ledger(0, [1] * 5), subscribe("a", EXCLUSIVE)], [report("a", permits=2)]])
    state, _ = step(state, [LeaseLapsed("s", "a", 1)], 5)
    assert state.subscriptions["s"].tracker.counts == {1: entries(0, 0, 1)}
    state, ready = step(state, [subscribe("b", EXCLUSIVE), report("b", permits=0)], 6)
    assert ready.open_grants[0].redelivery_counts == {1: entries(0, 0, 1)}
    state, _ = step(state, [LeaseLapsed("s", "b", 1)], 7)
    assert state.subscriptions["s"].tracker.counts == {1: entries(0, 2, 3, 4), 2: entries(0, 0, 1)}


def test_messages_named_by_attempt_are_redelivered_and_a_doubled_request_is_not() -> None:
    state, _ = run([[ledger(0, [1] * 3), subscribe("a")]])
    command = RedeliverUnacknowledgedMessages(
        "s", "a", 1, 0, 1, {0: entries(0, 1), 4: entries(0, 2)}
    )
    state, ready = step(state, [command, command], 5)
    assert [(g.attempt, g.messages) for g in ready.grants] == [(1, entries(0, 1))]
    _, ready = step(state, [RedeliverUnacknowledgedMessages("s", "a", 1, 0, 2, {})], 6)
    assert is_quiet(ready), "an empty list is no request for everything (#6960)"
    _, ready = step(state, [RedeliverUnacknowledgedMessages("s", "x")], 6)
    assert is_quiet(ready)


def test_reconsuming_without_a_retry_policy_is_an_ordinary_redelivery() -> None:
    state, _ = run([[ledger(0, [1, 1]), subscribe("a")]])
    requests = (ReconsumeLater(0, entries(0, 0), 500), ReconsumeLater(3, entries(0, 1)))
    state, ready = step(state, [report("a", reconsume_later=requests)], 5)
    assert not ready.republications
    assert ready.next_due_ms == 505


def test_messages_of_a_consumer_with_a_dead_letter_policy_stay_if_they_were_not_delivered() -> None:
    options = ConsumerOptions(dead_letter_policy=DeadLetterPolicy(1))
    commands: list[Command] = [ledger(0, [1, 1]), subscribe("a", options=options)]
    state, _ = run([commands, [report("a", delivered={})]])
    for number in range(4):
        name = f"a{number}"
        state, ready = step(
            state,
            [
                LeaseLapsed("s", f"a{number - 1}" if number else "a", 1),
                subscribe(name, options=options),
                report(name, delivered={}),
            ],
            5 + number,
        )
        assert not ready.republications
        assert {grant.redelivery_count for grant in ready.grants} == {0}


def test_a_consumer_asked_back_while_it_holds_explicit_grants_keeps_what_it_delivered() -> None:
    rejected = (Rejection(0, entries(0, 0, 1), 0),)
    state, _ = run(
        [
            [ledger(0, [1] * 4), subscribe("b", FAILOVER, priority_level=1)],
            [report("b", rejected=rejected, delivered={0: entries(0, 0, 1)})],
            [subscribe("a", FAILOVER)],
        ]
    )  # fmt: skip
    final = report("b", sequence=3, revision=1, delivered={1: entries(0, 0)})
    state, ready = step(state, [final], 9)
    assert state.subscriptions["s"].consumers["b"].held == entries(0, 0)
    (opened,) = ready.open_grants
    assert not opened.after.contains(Position(0, 1))
    assert opened.redelivery_counts == {1: entries(0, 1)}


def test_what_a_reader_sought_back_to_is_not_trimmed_from_under_it() -> None:
    reader = subscribe("a", durable=False, initial_position=InitialPosition.LATEST)
    keep = TopicPolicies(retention_time_ms=-1, retention_size_bytes=-1)
    state, _ = run([[ledger(0), ledger(1)], [reader]], keep)
    state, _ = step(state, [Seek("s", EARLIEST), SetPolicies(TopicPolicies())], 5)
    _, ready = step(state, [], 6)
    assert ready.trim == ()


def test_a_newer_run_asks_for_another_priority_and_other_ranges() -> None:
    def sticky(consumer: str, incarnation: int, low: int, high: int) -> Subscribe:
        policy = KeySharedPolicy(KeySharedMode.STICKY, ranges=((low, high),))
        return subscribe(consumer, KEY_SHARED, incarnation=incarnation, key_shared_policy=policy)

    state, _ = run([[sticky("a", 1, 0, 9), sticky("b", 1, 10, 19)]])
    state, ready = step(state, [sticky("a", 2, 5, 10)], 5)
    assert errors(ready) == [ServerError.CONSUMER_ASSIGN_ERROR]
    state, ready = step(state, [sticky("a", 3, 20, 65_535)], 6)
    selector = state.subscriptions["s"].selector
    assert selector is not None
    assert [(*selector.consumers, None)[selector.owners[slot]] for slot in (5, 10, 30)] == [
        None, "b", "a",
    ]  # fmt: skip

    state, _ = run([[subscribe("a", FAILOVER), subscribe("b", FAILOVER, priority_level=1)]])
    later = subscribe("a", FAILOVER, incarnation=2, priority_level=2, resumes=True)
    state, ready = step(state, [later], 5)
    assert [revoke.consumer for revoke in ready.revokes] == ["a"]
    assert state.subscriptions["s"].consumers["a"].priority_level == 2


def test_what_was_said_of_a_deleted_subscription_does_not_count_for_a_new_one() -> None:
    late = report("a", entries(0, 0), acknowledged=Cursor().acknowledge(entries(0, 1)))
    state, _ = run([[ledger(0, [1, 1]), subscribe("a")], [Unsubscribe("s", "a", 1)]])
    state, ready = step(from_shards(to_shards(state)), [subscribe("b")], 5)
    assert [reply.epoch for reply in ready.replies] == [1]
    state, ready = step(state, [late], 6)
    assert state.subscriptions["s"].cursor.individually_deleted == PositionSet()
    assert errors(ready) == [ServerError.CONSUMER_NOT_FOUND]


def test_a_rejection_that_is_said_again_forgets_no_indexes_that_were_acknowledged_since() -> None:
    off = TopicPolicies(batch_index_acknowledgment=False)
    state, _ = run([[ledger(0, [3]), subscribe("a")]], off)
    first = PositionSet.of_batch(Position(0, 0), 3, 0b001)
    again: dict[str, Any] = {"delivered": {0: entries(0, 0)}, "rejected": (Rejection(0, first, 0),)}
    state, ready = step(state, [report("a", sequence=1, **again)], 5)
    assert [(g.attempt, g.messages) for g in ready.grants] == [(1, entries(0, 0))]
    two = PositionSet.of_batch(Position(0, 0), 3, 0b011)
    state, ready = step(state, [report("a", two, sequence=2, **again)], 6)
    assert state.subscriptions["s"].partial_acks == two
    assert not ready.grants


def test_a_seek_beyond_the_last_entry_passes_over_nothing_that_is_published_later() -> None:
    state, _ = run([[ledger(0, [1, 1]), subscribe("a")], [Seek("s", Position(99, 5))]])
    assert state.subscriptions["s"].cursor == Cursor(Position(0, 1))
