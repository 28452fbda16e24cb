"""A consumer of one topic partition: what it hears, plans and reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.broker.protocol.commands import Report, Subscribe, SubscriptionType
from pulsar_spark.broker.protocol.ready import (
    Acknowledged,
    EpochBegan,
    Grant,
    OpenGrant,
    Reply,
    Revoke,
)
from pulsar_spark.consumer.partition_consumer import PartitionConsumer
from pulsar_spark.consumer.stream_offset import PartitionOffset
from pulsar_spark.errors import ServerError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.partition import LEDGERS, MESSAGES, Message, listed, made, message_sets, repeatable

BEGIN = Cursor(Position(1, -1))
FIRST, SECOND, THIRD, FOURTH = (made([message]) for message in MESSAGES[:4])
Messages = frozenset[Message]


def subscribe(incarnation: int = 1) -> Subscribe:
    return Subscribe("s", "c", incarnation, SubscriptionType.SHARED, permits=100, request_id=1)


def consumer(*, automatic: bool = True, epoch: int = 0) -> PartitionConsumer:
    made_ = PartitionConsumer(subscribe(), automatic)
    made_.observe(Reply("c", "s", 1, 1, epoch=epoch, origin=BEGIN))
    return made_


def grant(messages: PositionSet, attempt: int = 0, count: int = 0, **given: Any) -> Grant:
    return Grant("s", "c", given.pop("incarnation", 1), given.pop("epoch", 0), attempt, messages,
                 count)  # fmt: skip


def open_grant(after: Cursor = BEGIN, attempt: int = 0, **given: Any) -> OpenGrant:
    return OpenGrant("s", "c", 1, 0, attempt, after, **given)


def planned(
    each: PartitionConsumer, start: PartitionOffset | None = None, most: int | None = None
) -> PartitionOffset | None:
    """The next offset behind a committed one."""
    each.forget_planned(start)
    offered = each.offered(start, LEDGERS)
    taken = offered.waiting.take(most)
    return each.plan(start, offered.by_attempt(taken), LEDGERS) if taken else None


def batch(
    each: PartitionConsumer, start: PartitionOffset | None = None, most: int | None = None
) -> tuple[PartitionOffset, list[Message]]:
    end = planned(each, start, most)
    assert end is not None, "nothing to plan"
    again = PartitionOffset.from_json_value(end.to_json_value())
    return again, listed(again.batch_since(start, LEDGERS))


def report(
    each: PartitionConsumer, committed: PartitionOffset | None, plan: PartitionOffset | None = None
) -> Report:
    return each.report(committed, plan, LEDGERS, 100)


# -- hearing -------------------------------------------------------------------------------------


def test_nothing_is_offered_before_it_is_let_in() -> None:
    each = PartitionConsumer(subscribe())
    each.observe(grant(FIRST))
    assert planned(each) is None


def test_what_is_said_to_others_or_to_an_earlier_run_is_left_out() -> None:
    each = consumer()
    each.observe(Grant("s", "other", 1, 0, 0, FIRST))
    each.observe(grant(SECOND, incarnation=0))
    each.observe(grant(THIRD, epoch=1))
    assert planned(each) is None


def test_a_grant_is_planned_once() -> None:
    each = consumer()
    each.observe(grant(FIRST.union(SECOND)))
    end, found = batch(each)
    assert found == list(MESSAGES[:2])
    assert planned(each, end) is None
    each.observe(grant(SECOND.union(THIRD)))
    assert batch(each, end)[1] == [MESSAGES[2]]


def test_a_revoke_takes_back_what_was_not_planned() -> None:
    each = consumer()
    each.observe(grant(FIRST.union(SECOND)))
    end, _ = batch(each, most=1)
    each.observe(Revoke("s", "c", 1, 0, 7, SECOND))
    assert planned(each, end) is None
    reported = report(each, end)
    assert reported.revision == 7
    assert reported.delivered == {0: FIRST}


def test_a_revoke_of_everything_ends_an_open_grant() -> None:
    each = consumer()
    each.observe(open_grant())
    each.observe(Revoke("s", "c", 1, 0, 1))
    assert planned(each) is None


def test_a_message_granted_anew_is_no_longer_held_at_the_lower_attempt() -> None:
    each = consumer(automatic=False)
    each.observe(grant(FIRST.union(SECOND)))
    each.observe(grant(FIRST, attempt=1))
    end, found = batch(each)
    assert found == list(MESSAGES[:2])
    assert {a: listed(p) for a, p in end.attempts_since(None, LEDGERS).items()} == {
        0: [MESSAGES[1]], 1: [MESSAGES[0]]
    }  # fmt: skip
    assert planned(each, end) is None


def test_a_refusal_takes_everything_and_a_new_subscribe_gives_it_again() -> None:
    each = consumer()
    each.observe(grant(FIRST))
    each.observe(Reply("c", "s", 1, None, ServerError.CONSUMER_REPLACED, "its lease lapsed"))
    assert not each.connected
    assert each.refusal is not None
    each.subscribe_again(subscribe(2))
    each.observe(Reply("c", "s", 2, 2, origin=BEGIN))
    each.observe(grant(SECOND, incarnation=2))
    assert batch(each)[1] == [MESSAGES[1]]


def test_a_report_of_an_epoch_that_is_over_does_not_end_the_consumer() -> None:
    each = consumer()
    each.observe(EpochBegan("s", 1, BEGIN))
    each.observe(Reply("c", "s", 1, 9, ServerError.EPOCH_IS_OVER))
    assert each.connected
    assert each.answered == 9


def test_a_newer_run_under_its_name_is_noticed() -> None:
    each = consumer()
    each.observe(Reply("c", "s", 2, 1, origin=BEGIN))
    assert each.refusal is not None
    assert each.refusal.error is ServerError.CONSUMER_REPLACED


# -- planning ------------------------------------------------------------------------------------


def test_an_open_grant_offers_all_but_what_is_after_it_excepted() -> None:
    each = consumer()
    each.observe(open_grant(BEGIN.acknowledge(SECOND)))
    assert batch(each)[1] == [m for m in MESSAGES if m != MESSAGES[1]]


def test_a_message_that_was_rejected_comes_again_alone_with_its_count() -> None:
    each = consumer(automatic=False)
    each.observe(open_grant())
    end, _ = batch(each, most=3)
    each.observe(grant(SECOND, attempt=1, count=1))
    end, found = batch(each, end, most=1)
    assert found == [MESSAGES[1]]
    assert {count: listed(part) for count, part in end.redelivery_counts.items()} == {
        1: [MESSAGES[1]]
    }
    end, found = batch(each, end, most=2)
    assert found == list(MESSAGES[3:5])
    assert end.redelivery_counts == {}


def test_counts_of_an_open_grant_are_those_of_its_messages() -> None:
    each = consumer()
    each.observe(open_grant(redelivery_counts={3: SECOND}))
    end, _ = batch(each, most=2)
    assert {count: listed(part) for count, part in end.redelivery_counts.items()} == {
        3: [MESSAGES[1]]
    }


def test_what_it_has_committed_is_done_whatever_the_broker_says_if_acknowledging_is_automatic(
) -> None:  # fmt: skip
    for automatic, again in ((True, None), (False, [MESSAGES[0]])):
        each = consumer(automatic=automatic)
        each.observe(grant(FIRST))
        end, _ = batch(each)
        each.observe(grant(FIRST, attempt=1, count=1))
        assert (batch(each, end)[1] if again else planned(each, end)) == again


def test_what_lies_at_or_below_the_floor_is_forgotten() -> None:
    each = consumer()
    each.observe(grant(made(MESSAGES[:6])))
    start, _ = batch(each, most=4)
    place = Position(*MESSAGES[3][:2])
    each.observe(Acknowledged("s", 0, place))
    end, _ = batch(each, start)
    assert end.floor == place
    assert end.origin.mark_delete_position >= place
    assert all(c.mark_delete_position >= place for c in end.attempts.values())


def test_an_attempt_of_which_nothing_lies_above_the_floor_is_dropped() -> None:
    each = consumer(automatic=False)
    each.observe(grant(FIRST))
    start, _ = batch(each)
    last = Position(*MESSAGES[0][:2])
    each.observe(Acknowledged("s", 0, last))
    each.observe(grant(made([m for m in MESSAGES if m[:2] > last][:1]), attempt=5))
    end, _ = batch(each, start)
    assert list(end.attempts) == [5]


def test_a_seek_begins_anew_and_reports_nothing_of_before() -> None:
    each = consumer()
    each.observe(grant(FIRST.union(SECOND)))
    start, _ = batch(each)
    each.observe(EpochBegan("s", 1, BEGIN))
    assert planned(each, start) is None, "grants of the old epoch are void"
    reported = report(each, start)
    assert (reported.epoch, reported.delivered) == (1, {})
    assert reported.acknowledged == BEGIN
    each.observe(grant(FIRST, epoch=1))
    assert batch(each, start)[1] == [MESSAGES[0]]


def test_what_is_hidden_is_never_planned() -> None:
    each = consumer()
    each.observe(open_grant())
    offered = each.offered(None, LEDGERS, hidden=FIRST)
    assert listed(offered.waiting.take(1)) == [MESSAGES[1]]


def test_lost_messages_are_acknowledged_once_they_are_given_up() -> None:
    each = consumer(automatic=False)
    each.observe(open_grant())
    lost = Position(*MESSAGES[2][:2])
    assert each.offered(None, LEDGERS).begins_before(lost)
    each.give_up(lost)
    assert not each.offered(None, LEDGERS).begins_before(lost)
    assert report(each, None).acknowledged.mark_delete_position == lost


# -- reporting -----------------------------------------------------------------------------------


def test_a_report_says_what_is_delivered_before_and_acknowledged_after_its_commit() -> None:
    each = consumer()
    each.observe(grant(FIRST.union(SECOND)))
    end, _ = batch(each)
    before, after = report(each, None, end), report(each, end)
    assert before.delivered == {0: FIRST.union(SECOND)}
    assert before.acknowledged == BEGIN
    assert all(after.acknowledged.contains(Position(*m[:2]), m[2]) for m in MESSAGES[:2])
    assert after.sequence > before.sequence


def test_manual_acknowledgement_acknowledges_nothing_by_itself() -> None:
    each = consumer(automatic=False)
    each.observe(grant(FIRST))
    end, _ = batch(each)
    assert report(each, end).acknowledged == Cursor()


# -- its laws ------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), message_sets),
        st.tuples(st.just("plan"), st.integers(1, 8)),
        st.tuples(st.just("floor"), st.sampled_from(sorted({m[:2] for m in MESSAGES}))),
    ),
    max_size=12,
)


@repeatable
@given(steps, st.booleans())
def test_each_grant_is_planned_once_in_order_unless_the_floor_passed_it(
    events: list[tuple[str, Any]], automatic: bool
) -> None:
    """Against plain sets; attempts rise as the broker's do."""
    each, start = consumer(automatic=automatic), None
    attempts: dict[Message, int] = {}
    waiting: set[Message] = set()
    seen: list[tuple[Message, int]] = []
    floor: tuple[int, int] = EARLIEST
    for what, value in events:
        if what == "grant":
            fresh = {m for m in value if m[:2] > floor and m not in waiting}
            if automatic:
                fresh -= {m for m, _ in seen}
            for attempt in sorted({attempts.get(m, -1) + 1 for m in fresh}):
                part = [m for m in fresh if attempts.get(m, -1) + 1 == attempt]
                each.observe(grant(made(part), attempt=attempt, count=attempt))
            attempts |= {m: attempts.get(m, -1) + 1 for m in fresh}
            waiting |= fresh
        elif what == "floor" and value > floor:
            floor = value
            each.observe(Acknowledged("s", 0, Position(*value)))
            waiting = {m for m in waiting if m[:2] > floor}
        elif what == "plan":
            end = planned(each, start, value)
            expected = sorted(waiting)[:value]
            assert (end is None) == (not expected)
            if end is not None:
                assert listed(end.batch_since(start, LEDGERS)) == expected
                parts = end.attempts_since(start, LEDGERS)
                assert {m: a for a, p in parts.items() for m in listed(p)} == {
                    m: attempts[m] for m in expected
                }
                counts = {m: n for n, p in end.redelivery_counts.items() for m in listed(p)}
                assert counts == {m: attempts[m] for m in expected if attempts[m]}
                seen += [(m, attempts[m]) for m in expected]
                waiting -= set(expected)
                start = end
    assert len(seen) == len(set(seen))


def test_millions_of_messages_are_planned_in_milliseconds() -> None:
    ledgers = LedgerList(
        LedgerInfo(n, 0, "", 0, BatchSizes(((1000, 1000),)), 10**8, 0, 0) for n in range(1, 6)
    )
    whole = PositionSet.between(ledgers, EARLIEST, Position(5, 999))
    single = LedgerList([LedgerInfo(1, 0, "", 0, BatchSizes(((1, 10**6),)), 10**8, 0, 0)])
    scattered = PositionSet.of((1, n) for n in range(0, 10**6, 2))
    cases: list[tuple[LedgerList, Callable[[PartitionConsumer], None]]] = [
        (ledgers, lambda each: each.observe(grant(whole))),
        (ledgers, lambda each: each.observe(open_grant(Cursor()))),
        (single, lambda each: each.observe(grant(scattered))),
    ]
    for log, reported in cases:
        each = consumer()
        reported(each)
        times: list[float] = []
        end = None
        while len(times) < 5:
            begun = time.perf_counter()
            each.forget_planned(None)
            offered = each.offered(None, log)
            end = each.plan(None, offered.by_attempt(offered.waiting.take(400_000)), log)
            each.report(None, end, log, 100)
            times.append(time.perf_counter() - begun)
        assert end is not None
        assert end.batch_since(None, log).count(log) == 400_000
        assert min(times) < 0.1, "set algebra, and nothing for each message"
