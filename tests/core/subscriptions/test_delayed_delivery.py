"""Messages that wait for their time: none is lost, and none is early."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.positions.position import Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.subscriptions.delayed_delivery import (
    DelayedDeliveryTimer,
    DelayedDeliveryTracker,
    Punctuality,
)
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
@given(messages, ticks, modes, st.integers(0, 2000))
def test_many_at_once_are_the_same_as_one_after_the_other(
    added: Sequence[tuple[int, int, int]], tick: int, mode: Punctuality, now: int
) -> None:
    added = [(1, number, deliver_at) for number, (_, _, deliver_at) in enumerate(added)]
    tracker = DelayedDeliveryTracker(tick, mode, 3, highest_delivery_time_ms=1500)
    one, waiting = filled(tracker, added, now)
    entries = np.array([entry for _, entry, _ in added], np.int64)
    many, mask = tracker.add_many(1, entries, np.array([t for *_, t in added], np.int64), now)
    assert many == one
    assert mask.tolist() == [Position(1, entry) in waiting for entry in entries.tolist()]


@repeatable
@given(messages, ticks, modes)
def test_what_waits_survives_being_written_down(
    added: Sequence[tuple[int, int, int]], tick: int, mode: Punctuality
) -> None:
    tracker, waiting = filled(DelayedDeliveryTracker(tick, mode), added, 0)
    tracker, _ = tracker.add_messages(PositionSet.of_batch((2, 77), 5, 0b101), 3000, 0)
    value = json.loads(json.dumps(tracker.to_json_value()))
    read = DelayedDeliveryTracker(tick, mode).from_json_value(value)
    read.check()
    assert read == tracker
    assert positions(read.messages()) == sorted({*waiting, Position(2, 77)})


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
    assert tracker.clear() == DelayedDeliveryTracker(100)


def test_a_strict_broker_of_pulsar_is_early_by_the_rest_of_a_bucket_and_this_one_never() -> None:
    """Design, section 9, point 9."""
    early = {}
    for mode in (Punctuality.STRICT, Punctuality.NEVER_EARLY):
        tracker, _ = DelayedDeliveryTracker(1000, mode).add(Position(1, 0), 1_000_500, 0)
        assert tracker.next_delivery_time_ms is not None
        early[mode] = 1_000_500 - tracker.next_delivery_time_ms
    assert early[Punctuality.STRICT] > 0
    assert early[Punctuality.NEVER_EARLY] <= 0


def test_a_hundred_thousand_messages_of_one_delay_cost_bits_and_no_scan() -> None:
    entries = np.arange(100_000)
    tracker, _ = DelayedDeliveryTracker().add_many(3, entries, 3_600_000 + entries * 5, 0)
    assert len(tracker.buckets) < 1000
    assert len(json.dumps(tracker.to_json_value())) < 10_000
    assert not tracker.has_message_available(3_599_999)
    _, taken = tracker.scheduled_messages(3_605_000)
    assert taken.whole_entry_count() == 999, "those up to 3,604,992, the end of a bucket"


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


def test_a_timer_runs_at_the_next_time_but_no_more_than_once_a_tick() -> None:
    timer, delay = DelayedDeliveryTimer().update(5000, 1000, 100)
    assert delay == 4000
    assert timer.update(5000, 2000, 100) == (timer, None), "it is set already"
    timer = timer.run(5000)
    timer, delay = timer.update(5010, 5000, 100)
    assert delay == 100
    assert timer.update(4000, 5000, 100) == (timer, None), "what is due needs no timer"
    timer, delay = timer.update(None, 5000, 100)
    assert (timer, delay) == (DelayedDeliveryTimer(None, 5000), None)
