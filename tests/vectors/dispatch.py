"""Checks of who is active, who is next, what is delayed, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pulsar_spark.broker.protocol.policies import MultiplierRedeliveryBackoff
from pulsar_spark.broker.selectors.failover_selector import FailoverSelector
from pulsar_spark.broker.selectors.shared_dispatch import SharedDispatch, max_entries_in_this_batch
from pulsar_spark.broker.subscriptions.delayed_messages import COLUMNS, DelayedMessages
from pulsar_spark.errors import ConsumerBusyError, ConsumerNotConnectedError, InvalidOptionError
from pulsar_spark.model.positions.position import Position
from tests.vectors.case import Case, run_all


def failover_cases(document: dict[str, Any]) -> Iterator[Case]:
    yield from run_all("failover", document.get("cases", []), _check_failover)
    yield from run_all("exclusive", document.get("exclusive", []), _check_exclusive)


def _check_failover(case: Case) -> None:
    selector = FailoverSelector(
        case.take("topic"),
        case.take("partition_index"),
        consistent_hashing=case.take("activeConsumerFailoverConsistentHashing"),
    )
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number}", record)
        op, consumer, before = step.take("op"), step.take("consumer"), selector.active
        if op == "add":
            selector = selector.add(consumer, step.take("name"), step.take("priority"))
        elif op == "remove":
            selector = _without(step, selector, consumer)
        else:
            step.problems.append("this op is not known")
        step.expect("active_after", selector.active)
        step.expect("changed", selector.active != before)
        step.compare(
            "read back", selector, FailoverSelector.from_json_value(selector.to_json_value())
        )
        selector.check()
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]


def _without(step: Case, selector: FailoverSelector, consumer: str) -> FailoverSelector:
    error = None
    try:
        selector = selector.remove(consumer)
    except ConsumerNotConnectedError as refusal:
        error = f"ServerMetadataException: {refusal.message}"
    step.compare("error", step.take("error", None), error)
    return selector


def _check_exclusive(case: Case) -> None:
    """The three situations that the section names, each played through."""
    selector = FailoverSelector("persistent://public/default/t", exclusive=True).add("c1", "c1")
    what = case.take("case")
    if what == "second Exclusive consumer while first alive":
        try:
            selector = selector.add("c2", "c2")
        except ConsumerBusyError as error:
            case.expect("error", f"ConsumerBusyException: {error.message}")
        case.expect("active", selector.active)
    elif what == "remove unknown consumer":
        try:
            selector.remove("c2")
        except ConsumerNotConnectedError as error:
            case.expect("error", f"ServerMetadataException: {error.message}")
    elif what == "canUnsubscribe single active":
        case.expect("value", selector.can_unsubscribe("c1"))
    else:
        case.problems.append("this situation is not known")


def check_shared_dispatch(case: Case) -> None:
    if "kind" in case.record:
        case.compare("kind", case.take("kind"), "max_entries_in_this_batch")
        limit, unacked = case.take("max_unacked_per_consumer"), case.take("unacked")
        permits = case.take("available_permits")
        if limit > 0:  # as the step counts a consumer's room
            permits = min(permits, max(limit - unacked, 0))
        found = max_entries_in_this_batch(
            case.take("remaining_messages"),
            case.take("avg_batch_size"),
            permits,
            case.take("dispatcherMaxRoundRobinBatchSize"),
        )
        case.expect("entries", found)
        return
    dispatch, available = SharedDispatch(), set()
    for text in case.take("consumers_in_subscribe_order"):
        consumer, _, level = text.rpartition(":")
        dispatch = dispatch.add(consumer, int(level))
        available.add(consumer)
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number}", record)
        op = step.take("op")
        if op == "next":
            dispatch, picks = dispatch.dispatch(np.ones(1, np.int64), dict.fromkeys(available, 1))
            step.expect("selected", picks[0].consumer if picks else None)
        elif op == "becomes_unavailable":
            available.discard(step.take("consumer"))
        elif op == "becomes_available":
            available.add(step.take("consumer"))
        else:
            step.problems.append("this op is not known")
        read = SharedDispatch.from_json_value(dispatch.to_json_value())
        step.compare("read back", dispatch, read)
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]


def check_backoff(case: Case) -> None:
    arguments: dict[str, Any] = {}
    if case.take("defaults", False) is not True:
        arguments = {
            "min_delay_ms": case.take("min_ms"),
            "max_delay_ms": case.take("max_ms"),
            "multiplier": case.take("multiplier"),
        }
    try:
        backoff = MultiplierRedeliveryBackoff(**arguments)
    except InvalidOptionError as error:
        refusal = f"IllegalArgumentException: {error.message}"
        case.compare("error", case.take("error", None), refusal)
        return
    case.expect("error", None)
    case.expect("next", {count: backoff.next(int(count)) for count in case.take("next")})


def check_delayed_delivery(case: Case) -> None:
    tracker = _Tracker(
        case.take("tick_ms"),
        0 if case.take("deliver_at_time_strict") else case.record["tick_ms"],
        case.take("fixed_delay_lookahead"),
    )
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number} {record.get('op')}", record)
        _delay(step, tracker)
        tracker.delayed.check()
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]


class _Tracker:
    """Pulsar's tracker on `DelayedMessages`, which say what waits, what comes and what is next.

    Pulsar rounds times down, where the broker rounds them up, and unless it is strict looks a tick
    ahead: so it hands in earlier times here, and later instants. Worked out by its rules is what
    no broker here has: a bound on what is taken at once, timers, and whether all that waits has one
    delay, so that reading on is of no use.
    """

    def __init__(self, tick_ms: int, ahead_ms: int, lookahead: int) -> None:
        self.tick_ms = tick_ms
        self.ahead_ms = ahead_ms
        self.lookahead = lookahead
        self.delayed = DelayedMessages()
        self.highest_ms = 0
        self.has_fixed_delay = True
        self.timer_ms: int | None = None

    @property
    def pending(self) -> int:
        return sum(1 for _ in self.delayed.messages.entries())

    @property
    def next_ms(self) -> int | None:
        return self.delayed.next_delivery_time_ms(self.tick_ms)

    def add(self, position: Position, deliver_at_ms: int, now_ms: int) -> bool:
        if deliver_at_ms <= now_ms + self.ahead_ms:
            self.has_fixed_delay = False
            return False
        self.has_fixed_delay &= deliver_at_ms >= self.highest_ms - self.tick_ms
        self.highest_ms = max(self.highest_ms, deliver_at_ms)
        bits = self.tick_ms.bit_length() - 1
        self._wait([position], deliver_at_ms >> bits << bits)
        return True

    def is_available(self, now_ms: int) -> bool:
        return self.next_ms is not None and self.next_ms <= now_ms + self.ahead_ms

    def poll(self, now_ms: int, most: int) -> list[Position]:
        """The earliest of those that are due."""
        taken: list[Position] = []
        while len(taken) < most and self.is_available(now_ms):
            due_ms = self.next_ms or 0
            self.delayed, due = self.delayed.scheduled_messages(due_ms, self.tick_ms)
            positions = [position for position, _ in due.entries()]
            self._wait(positions[most - len(taken) :], due_ms)
            taken += positions[: most - len(taken)]
        if not self.pending:
            self.highest_ms, self.has_fixed_delay = 0, True
        return sorted(taken)

    def pauses(self, now_ms: int) -> bool:
        is_full = 0 < self.lookahead <= self.pending
        return is_full and self.has_fixed_delay and not self.is_available(now_ms)

    def timers(self, now_ms: int) -> list[int]:
        """After a change, or a look that found nothing: the delay that a timer is started with."""
        due_ms, before = self.next_ms, self.timer_ms
        if due_ms is None or due_ms >= now_ms:
            self.timer_ms = due_ms
        if due_ms is None or due_ms == before or due_ms < now_ms:
            return []
        return [due_ms - now_ms]

    def _wait(self, positions: list[Position], until_ms: int) -> None:
        rows = [(*position, 0, 1, until_ms) for position in positions]
        self.delayed = self.delayed.add(np.array(rows, np.int64).reshape(-1, COLUMNS).T, until_ms)


def _delay(step: Case, tracker: _Tracker) -> None:
    op, now = step.take("op"), step.take("now")
    started: list[int] = []
    if op == "add":
        position = Position(step.take("ledger"), step.take("entry"))
        tracked = tracker.add(position, step.take("deliver_at"), now)
        step.expect("tracked", tracked)
        if tracked:
            started += tracker.timers(now)
    elif op in ("advance", "advance_and_poll"):
        available = tracker.is_available(now)
        step.expect("has_available", available)
        if not available:
            started += tracker.timers(now)
        if op == "advance_and_poll":
            step.expect("delivered", [[*each] for each in tracker.poll(now, step.take("max"))])
            started += tracker.timers(now)
    else:
        step.problems.append("this op is not known")
    step.expect("pending", tracker.pending)
    step.expect("pause_all_deliveries", tracker.pauses(now))
    step.expect("timers_scheduled_ms", started)
