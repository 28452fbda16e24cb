"""A step on a topic that the log says was deleted, or made again."""

from __future__ import annotations

import pytest

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    CreateSubscription,
    Seek,
    SkipMessages,
    TopicDeleted,
    TopicMade,
    Unsubscribe,
)
from pulsar_spark.broker.subscriptions.broker_state import DELETED, BrokerState
from pulsar_spark.errors import ServerError
from pulsar_spark.model.positions.position import EARLIEST, Position
from tests.core.broker_samples import TOPIC, ledger, report, subscribe


def with_consumer() -> BrokerState:
    state, _ = step(BrokerState(TOPIC, 0), [ledger(0, [1] * 6), subscribe("c")], 1_000)
    return state


def test_the_consumers_of_a_deleted_topic_are_told_and_nothing_is_left() -> None:
    state, ready = step(with_consumer(), [ledger(1, [1]), TopicDeleted()], 2_000)
    assert state.incarnation == DELETED
    assert not state.subscriptions
    assert not len(state.ledgers), "also not what came in the same step"
    assert ready.deleted_subscriptions == ("s",)
    (reply,) = ready.replies
    assert (reply.consumer, reply.error) == ("c", ServerError.TOPIC_NOT_FOUND)
    assert ready.trim == ()
    assert ready.next_due_ms is None
    state.check()


@pytest.mark.parametrize(
    "command",
    [subscribe("late"), report("c"), CreateSubscription("s", request_id=1), Seek("s", EARLIEST)],
)
def test_whatever_is_said_of_a_deleted_topic_is_refused(command: Command) -> None:
    state, ready = step(with_consumer(), [TopicDeleted(), command], 2_000)
    assert ready.replies[-1].error is ServerError.TOPIC_NOT_FOUND
    assert not state.subscriptions


@pytest.mark.parametrize(
    "command",
    [
        subscribe("late"),
        CreateSubscription("s", topic_incarnation=0),
        Seek("s", EARLIEST, topic_incarnation=0),
        Unsubscribe("s", topic_incarnation=0),
        SkipMessages("s", topic_incarnation=0),
    ],
)
def test_what_is_meant_for_the_old_topic_does_not_reach_the_new_one(command: Command) -> None:
    new: list[Command] = [TopicMade(17), ledger(9, [1] * 3)]
    new.append(CreateSubscription("s", topic_incarnation=17))
    state, ready = step(with_consumer(), [*new, command], 2_000)
    assert ready.replies[-1].error is ServerError.TOPIC_NOT_FOUND
    assert state.subscriptions["s"].cursor.backlog(state.ledgers) == 3
    assert not state.subscriptions["s"].consumers
    state.check()


def test_a_topic_that_was_made_again_is_known_by_its_number_and_told_once() -> None:
    state, _ = step(with_consumer(), [TopicMade(17), ledger(9, [1, 1])], 2_000)
    assert [each.ledger_id for each in state.ledgers] == [9]
    again = from_shards(to_shards(state))
    assert again.incarnation == 17
    after, _ = step(again, [TopicMade(17)], 3_000)
    assert [each.ledger_id for each in after.ledgers] == [9]


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        (SkipMessages("s", count=2), [2, 3, 4, 5]),
        (SkipMessages("s", count=100), []),
        (SkipMessages("s", position=Position(0, 2)), [3, 4, 5]),
        (SkipMessages("s", position=Position(0, 99)), []),
        (SkipMessages("s", before_ms=0), [0, 1, 2, 3, 4, 5]),
        (SkipMessages("s", before_ms=10**15), []),
        (SkipMessages("s"), []),
    ],
)
def test_the_oldest_messages_are_skipped(skip: SkipMessages, left: list[int]) -> None:
    state, ready = step(with_consumer(), [skip], 2_000)
    unread = state.subscriptions["s"].cursor.unread(state.ledgers)
    assert [position.entry_id for position, _ in unread.entries()] == left
    assert not any(reply.error for reply in ready.replies)
    state.check()
