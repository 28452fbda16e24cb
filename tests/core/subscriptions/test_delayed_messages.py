"""Delayed messages of a topic, against a plain dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.hosting.shards import changed
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import SetPolicies
from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.delayed_messages import (
    GROUP_BITS,
    MAX_GROUPS,
    DelayedMessages,
)
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import TOPIC, entries, ledger, run, subscribe

A_GROUP_MS = 1 << GROUP_BITS


def waiting_for(times: list[int], ledger_id: int = 0) -> DelayedMessages:
    return with_ledger(DelayedMessages(), ledger_id, np.array(times), 0)


def with_ledger(
    delayed: DelayedMessages, ledger_id: int, times: NDArray[np.int64], now_ms: int
) -> DelayedMessages:
    return delayed.add_ledger(ledger(ledger_id, [1] * len(times)).ledger, times, now_ms)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("tick_ms", "width"), [(1_000, 512), (100, 64), (1, 1), (0, 1)])
def test_every_message_comes_once_in_its_time_and_late_by_less_than_a_tick(
    seed: int, tick_ms: int, width: int
) -> None:
    lots = np.random.default_rng(seed)
    delayed, now_ms = DelayedMessages(), 0
    times: dict[tuple[int, int], int] = {}
    for ledger_id in range(4):
        new = lots.integers(0, 100 * A_GROUP_MS, 50) // lots.integers(1, 60)
        delayed = with_ledger(delayed, ledger_id, new, now_ms)
        times |= {(ledger_id, n): int(t) for n, t in enumerate(new) if t > now_ms}
        while times:
            delayed.check()
            assert len(delayed.groups) <= MAX_GROUPS + 2
            due_ms = delayed.next_delivery_time_ms(tick_ms)
            assert due_ms is not None
            if due_ms > now_ms and lots.integers(0, 4) == 0:
                break
            assert not delayed.scheduled_messages(due_ms - 1, tick_ms)[1]
            now_ms = max(now_ms, due_ms)
            delayed, due = delayed.scheduled_messages(now_ms, tick_ms)
            for position, _ in due.entries():
                assert 0 <= now_ms - times.pop(position) < width
    while (due_ms := delayed.next_delivery_time_ms(tick_ms)) is not None:
        delayed, due = delayed.scheduled_messages(due_ms, tick_ms)
        for position, _ in due.entries():
            assert times.pop(position) <= due_ms
    assert not times
    assert not delayed.messages


def test_messages_far_beyond_all_groups_share_the_last_and_come_in_their_time() -> None:
    years = [A_GROUP_MS * (MAX_GROUPS + n) for n in (1, 50, 5_000)]
    delayed = waiting_for(years)
    assert len(delayed.groups) == 1
    delayed, due = delayed.scheduled_messages(years[0] + 512, 1_000)
    assert due == entries(0, 0)
    assert delayed.messages == entries(0, 1, 2)
    assert len(delayed.groups) == 2, "the later one has a group of its own by now"
    delayed.check()


def test_what_is_trimmed_waits_no_more() -> None:
    delayed = waiting_for([600, 10 * A_GROUP_MS])
    delayed = with_ledger(delayed, 1, np.array([10 * A_GROUP_MS]), 0)
    assert delayed.without([7]) is delayed
    left = delayed.without([0, 7])
    left.check()
    assert left.messages == entries(1, 0)
    assert not left.without([1]).groups


def test_a_batch_of_which_a_part_waits_is_held_in_part() -> None:
    late = ledger(0, [1, 3], deliver_at_ms=[9_000, 0, 5_000, 9_000])
    state, _ = run([[late, subscribe("a")]])
    state = from_shards(to_shards(state))
    _, ready = step(state, [], 5_120)
    assert [grant.messages for grant in ready.grants] == [PositionSet.of_batch((0, 1), 3, 0b010)]


def test_many_delayed_messages_are_stored_by_group_and_a_tick_rewrites_the_first() -> None:
    lots = np.random.default_rng(7)
    times = np.concatenate(
        (lots.integers(1_000, A_GROUP_MS, 500), lots.integers(0, 86_400_000, 4_000))
    )
    late = ledger(0, [1] * len(times), deliver_at_ms=times)
    batch = ledger(1, [2], deliver_at_ms=[700, 10 * A_GROUP_MS])
    state, _ = step(BrokerState(TOPIC), [late, batch, subscribe("a", permits=10_000)], 1)
    before = to_shards(state)
    assert to_shards(from_shards(before)) == before
    due_ms = state.delayed.next_delivery_time_ms(1_000) or 0
    after, ready = step(state, [], due_ms)
    assert ready.grants
    assert step(from_shards(before), [], due_ms)[1] == ready
    written, _ = changed(before, to_shards(after))
    assert [key for key in written if key.startswith("delayed/")] == ["delayed/0#0"]


def test_groups_that_did_not_change_are_packed_once() -> None:
    times = np.arange(1, 11) * A_GROUP_MS
    state, _ = step(BrokerState(TOPIC), [ledger(0, [1] * 10, deliver_at_ms=times)], 1)
    shards = to_shards(state)
    for each in (state, from_shards(shards)):
        packed = {key: group.packed for key, group in each.delayed.groups.items()}
        assert None not in packed.values()
        later, _ = step(each, [ledger(1, deliver_at_ms=[5 * A_GROUP_MS])], 6)
        for key, group in later.delayed.groups.items():
            assert group.packed is (None if key == 5 else packed[key])
        written, _ = changed(shards, to_shards(later))
        assert [key for key in written if key.startswith("delayed/")] == ["delayed/5#0"]


def test_another_tick_counts_at_once() -> None:
    far_ms = 10 * A_GROUP_MS + 1
    late = ledger(0, [1], deliver_at_ms=[far_ms])
    state, _ = run([[late, subscribe("a")]])
    state, ready = step(state, [SetPolicies(TopicPolicies(delayed_delivery_tick_ms=1))], 5)
    assert ready.next_due_ms == far_ms
    assert step(from_shards(to_shards(state)), [], 6)[1].next_due_ms == far_ms
