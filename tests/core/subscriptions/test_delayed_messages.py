"""Delayed messages of a topic, near and far, against a plain dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from pulsar_spark.broker.step import step
from pulsar_spark.hosting.broker_format import from_shards, to_shards
from pulsar_spark.hosting.shards import changed
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.protocol.commands import SetPolicies
from pulsar_spark.protocol.policies import TopicPolicies
from pulsar_spark.subscriptions.broker_state import BrokerState
from pulsar_spark.subscriptions.delayed_messages import GROUP_BITS, MAX_GROUPS, DelayedMessages
from tests.core.broker_samples import TOPIC, entries, ledger, run, subscribe

A_GROUP_MS = 1 << GROUP_BITS


def waiting_for(times: list[int], ledger_id: int = 0, now_ms: int = 0) -> DelayedMessages:
    return DelayedMessages().add_many(
        ledger_id, np.arange(len(times)), np.array(times, np.int64), now_ms
    )


@pytest.mark.parametrize("seed", range(10))
def test_every_message_comes_once_in_its_time_and_late_by_a_bucket_at_most(seed: int) -> None:
    lots = np.random.default_rng(seed)
    delayed, now_ms = DelayedMessages(), 0
    times: dict[tuple[int, int], int] = {}
    for ledger_id in range(4):
        new = lots.integers(0, 100 * A_GROUP_MS, 50) // lots.integers(1, 60)
        delayed = delayed.add_many(ledger_id, np.arange(50), new, now_ms)
        times |= {(ledger_id, n): int(t) for n, t in enumerate(new) if t > now_ms}
        while times:
            delayed.check()
            due_ms = delayed.next_delivery_time_ms
            assert due_ms is not None
            if due_ms > now_ms and lots.integers(0, 4) == 0:
                break
            assert not delayed.has_message_available(due_ms - 1)
            now_ms = max(now_ms, due_ms)
            delayed, due = delayed.scheduled_messages(now_ms)
            for position, _ in due.entries():
                assert 0 <= now_ms - times.pop(position) <= 512
    while delayed:
        now_ms = delayed.next_delivery_time_ms or 0
        delayed, due = delayed.scheduled_messages(now_ms)
        for position, _ in due.entries():
            assert times.pop(position) <= now_ms
    assert not times
    assert delayed.next_delivery_time_ms is None


def test_messages_far_beyond_all_groups_share_the_last_and_come_in_their_time() -> None:
    years = [A_GROUP_MS * (MAX_GROUPS + n) for n in (1, 50, 5_000)]
    delayed = waiting_for(years)
    assert len(delayed.far) == 1
    now_ms = years[0] + 512
    delayed, due = delayed.scheduled_messages(now_ms)
    assert due == entries(0, 0)
    assert delayed.messages() == entries(0, 1, 2)
    delayed.check()


def test_what_is_trimmed_waits_no_more_near_or_far() -> None:
    delayed = waiting_for([600, 10 * A_GROUP_MS])
    delayed = delayed.add_many(1, np.array([0]), np.array([10 * A_GROUP_MS]), 0)
    assert delayed.without(PositionSet.of_range(7, 0, 3)) is delayed
    left = delayed.without(PositionSet.of_range(0, 0, 1))
    left.check()
    assert left.messages() == entries(1, 0)
    assert not left.without(entries(1, 0)).far


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
    due_ms = state.delayed.next_delivery_time_ms or 0
    after, ready = step(state, [], due_ms)
    assert ready.grants
    assert step(from_shards(before), [], due_ms)[1] == ready
    written, _ = changed(before, to_shards(after))
    assert not any(key.startswith("delayed/far") for key in written)


def test_what_reading_costs_grows_with_the_instants_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = np.arange(1, 1_001) * 1_000
    late = ledger(0, [1] * len(times), deliver_at_ms=times)
    state, _ = step(BrokerState(TOPIC), [late], 1)
    shards = to_shards(state)
    looks = []
    original = PositionSet.difference

    def difference(self: PositionSet, other: PositionSet) -> PositionSet:
        looks.append(self)
        return original(self, other)

    monkeypatch.setattr(PositionSet, "difference", difference)
    again = from_shards(shards)
    assert len(looks) <= len(times)
    assert again.delayed == state.delayed


def test_another_tick_counts_for_what_has_not_come_near() -> None:
    far_ms = 10 * A_GROUP_MS + 1
    late = ledger(0, [1], deliver_at_ms=[far_ms])
    state, _ = run([[late, subscribe("a")]])
    state, ready = step(state, [SetPolicies(TopicPolicies(delayed_delivery_tick_ms=1))], 5)
    assert ready.next_due_ms == far_ms
    assert step(from_shards(to_shards(state)), [], 6)[1].next_due_ms == far_ms
