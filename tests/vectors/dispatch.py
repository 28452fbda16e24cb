"""Checks of who is active, who is next, what is delayed, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pulsar_spark.errors import ConsumerBusyError, ConsumerNotConnectedError, InvalidOptionError
from pulsar_spark.positions.position import Position
from pulsar_spark.protocol.redelivery_backoff import MultiplierRedeliveryBackoff
from pulsar_spark.selectors.failover_selector import FailoverSelector
from pulsar_spark.selectors.shared_dispatch import SharedDispatch, max_entries_in_this_batch
from pulsar_spark.subscriptions.delayed_delivery import DelayedDeliveryTracker, Punctuality
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
        found = max_entries_in_this_batch(
            case.take("remaining_messages"),
            case.take("max_unacked_per_consumer"),
            case.take("unacked"),
            case.take("avg_batch_size"),
            case.take("available_permits"),
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
            dispatch, selected = dispatch.next(available.__contains__)
            step.expect("selected", selected)
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
    strict = case.take("deliver_at_time_strict")
    tracker = DelayedDeliveryTracker(
        case.take("tick_ms"),
        Punctuality.STRICT if strict else Punctuality.RELAXED,
        case.take("fixed_delay_lookahead"),
    )
    timer = _Timer()
    for number, record in enumerate(case.take("steps")):
        step = Case(f"step {number} {record.get('op')}", record)
        tracker = _delay(step, tracker, timer)
        tracker.check()
        case.problems += [f"{step.name}: {text}" for text in step.close().problems]


class _Timer:
    """Pulsar's, which a broker without timers has none of: its steps say when the next is due."""

    def __init__(self) -> None:
        self.target_ms: int | None = None

    def set(self, due_ms: int | None, now_ms: int) -> list[int]:
        """After a change, or a look that found nothing: the delay that a timer is started with."""
        if due_ms is None:
            self.target_ms = None
        if due_ms is None or due_ms == self.target_ms or due_ms < now_ms:
            return []
        self.target_ms = due_ms
        return [due_ms - now_ms]


def _delay(step: Case, tracker: DelayedDeliveryTracker, timer: _Timer) -> DelayedDeliveryTracker:
    op, now = step.take("op"), step.take("now")
    started: list[int] = []

    def update() -> None:
        started.extend(timer.set(tracker.next_delivery_time_ms, now))

    if op == "add":
        position = Position(step.take("ledger"), step.take("entry"))
        tracker, tracked = tracker.add(position, step.take("deliver_at"), now)
        step.expect("tracked", tracked)
        if tracked:
            update()
    elif op in ("advance", "advance_and_poll"):
        available = tracker.has_message_available(now)
        step.expect("has_available", available)
        if not available:
            update()
        if op == "advance_and_poll":
            tracker, delivered = tracker.scheduled_messages(now, step.take("max"))
            step.expect("delivered", [[*position] for position, _ in delivered.entries()])
            update()
    else:
        step.problems.append("this op is not known")
    step.expect("pending", tracker.number_of_delayed_messages)
    step.expect("pause_all_deliveries", tracker.should_pause_all_deliveries(now))
    step.expect("timers_scheduled_ms", started)
    return tracker
