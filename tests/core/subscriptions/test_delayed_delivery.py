"""Messages that wait for their time: none is lost, and none is early."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.positions.position import Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.subscriptions.delayed_delivery import DelayedDeliveryTracker, Punctuality
from tests.core.partition import repeatable

ticks = st.sampled_from([1, 2, 100, 1000])
modes = st.sampled_from(list(Punctuality))
times = st.integers(-5, 4000)
messages = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), times), max_size=20)


def positions(held: PositionSet) -> list[Position]:
    return [position for position, _ in held.entries()]


def filled(
    tracker: DelayedDeliveryTracker, added: Sequence[tuple[int, int, int]], now_ms: int
) -> tuple[DelayedDeliveryTracker, dict[Position, int]]:
    """Each entry once, and the times of those that wait."""
    waiting: dict[Position, int] = {}
    for ledger_id, entry_id, deliver_at in added:
        position = Position(ledger_id, entry_id)
        if position not in waiting:
            tracker, waits = tracker.add(position, deliver_at, now_ms)
            if waits:
                waiting[position] = deliver_at
        tracker.check()
    return tracker, waiting


@repeatable
@given(messages, ticks, modes, st.lists(st.integers(0, 1500), max_size=6), st.integers(1, 9))
def test_every_message_comes_once_no_earlier_than_its_mode_allows_and_not_much_later(
    added: Sequence[tuple[int, int, int]],
    tick: int,
    mode: Punctuality,
    pauses: Sequence[int],
    most: int,
) -> None:
    tracker, waiting = filled(DelayedDeliveryTracker(tick, mode), added, 0)
    early = {Punctuality.RELAXED: 2 * tick, Punctuality.STRICT: tick, Punctuality.NEVER_EARLY: 0}
    now = 0
    for pause in [*pauses, 10_000]:
        now += pause
        due = tracker.next_delivery_time_ms
        reach = now + (tick if mode is Punctuality.RELAXED else 0)
        assert tracker.has_message_available(now) == (due is not None and due <= reach)
        while tracker.has_message_available(now):
            tracker, taken = tracker.scheduled_messages(now, most)
            tracker.check()
            assert 0 < len(positions(taken)) <= most
            for position in positions(taken):
                assert now >= waiting.pop(position) - early[mode]
        assert all(deliver_at > now - tick for deliver_at in waiting.values())
    assert not waiting
    assert tracker.scheduled_messages(now) == (DelayedDeliveryTracker(tick, mode), PositionSet())


@repeatable
@given(messages, st.sets(st.tuples(st.integers(1, 3), st.integers(0, 30))))
def test_what_is_acknowledged_waits_no_more(
    added: Sequence[tuple[int, int, int]], gone: set[tuple[int, int]]
) -> None:
    tracker, waiting = filled(DelayedDeliveryTracker(100), added, 0)
    left = tracker.without(PositionSet.of(gone))
    left.check()
    assert positions(left.messages()) == sorted(set(waiting) - gone)
    assert (left == tracker) == (not gone & set(waiting))


def test_a_strict_broker_of_pulsar_is_early_by_the_rest_of_a_bucket_and_this_one_never() -> None:
    """Design, section 9, point 9."""
    early = {}
    for mode in (Punctuality.STRICT, Punctuality.NEVER_EARLY):
        tracker, _ = DelayedDeliveryTracker(1000, mode).add(Position(1, 0), 1_000_500, 0)
        assert tracker.next_delivery_time_ms is not None
        early[mode] = 1_000_500 - tracker.next_delivery_time_ms
    assert early[Punctuality.STRICT] > 0
    assert early[Punctuality.NEVER_EARLY] <= 0


def test_reading_pauses_while_all_that_waits_seems_to_have_one_delay() -> None:
    tracker = DelayedDeliveryTracker(fixed_delay_lookahead=2)
    for entry_id in range(2):
        assert not tracker.should_pause_all_deliveries(0)
        tracker, _ = tracker.add(Position(1, entry_id), 5000 + entry_id, 0)
    assert tracker.should_pause_all_deliveries(0)
    assert not tracker.should_pause_all_deliveries(6000), "something is due"
    other, _ = tracker.add(Position(1, 9), 2000, 0)
    assert not other.should_pause_all_deliveries(0), "a delay that is not the others'"
    due, _ = tracker.add(Position(1, 9), 0, 0)
    assert not due.should_pause_all_deliveries(0), "one without delay"


@pytest.mark.parametrize("tick", [0, 1])
def test_without_a_tick_every_millisecond_has_its_bucket(tick: int) -> None:
    tracker, _ = DelayedDeliveryTracker(tick).add(Position(1, 0), 1001, 0)
    assert tracker.next_delivery_time_ms == 1001
