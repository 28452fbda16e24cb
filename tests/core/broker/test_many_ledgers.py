"""A step's cost does not grow with the ledgers that stay behind it."""

from __future__ import annotations

import pytest

from pulsar_spark.broker.hosting import shards
from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    Command,
    CreateSubscription,
    InitialPosition,
    LedgerAdded,
    Report,
    SetPolicies,
    Subscribe,
    SubscriptionType,
)
from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.model.positions.cursor import Cursor, packed_ledger
from pulsar_spark.model.positions.ledger_info import (
    BatchSizes,
    LedgerColumn,
    LedgerInfo,
    LedgerList,
)
from pulsar_spark.model.positions.position_set import PositionSet

TOPIC = "persistent://public/default/t"
DAY_MS = 24 * 60 * 60 * 1000


def test_a_step_looks_at_no_more_ledgers_the_more_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    original = LedgerColumn.at

    def counted(column: LedgerColumn, index: int) -> LedgerInfo:
        looks.append(index)
        return original(column, index)

    monkeypatch.setattr(LedgerColumn, "at", counted)
    policies = SetPolicies(TopicPolicies(retention_time_ms=DAY_MS, retention_size_bytes=-1))
    state = step(BrokerState(TOPIC, 0), [policies, CreateSubscription("s")], 0)[0]
    costs = []
    for number in range(500):
        looks.clear()
        state = step(state, [added(number)], number)[0]
        costs.append(len(looks))
    assert max(costs[400:]) <= max(costs[10:20])


def test_an_acknowledgement_packs_the_ledger_that_it_is_about_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumers = [subscribe("a"), subscribe("b")]
    state = step(BrokerState(TOPIC, 0), [*consumers, *map(added, range(600))], 0)[0]
    second = PositionSet.of((number, 1) for number in range(600))
    state = step(state, [acknowledging("a", 1, second)], 1)[0]
    to_shards(state)
    packed: list[int] = []

    def counted(messages: PositionSet, ledger_id: int) -> bytes:
        packed.append(ledger_id)
        return packed_ledger(messages, ledger_id)

    monkeypatch.setattr(shards, "packed_ledger", counted)
    state = step(state, [acknowledging("a", 2, PositionSet.of([(300, 0)]))], 2)[0]
    written = to_shards(state)
    assert {*packed} <= {0, 300}, "and the one at the mark-delete position"
    packed.clear()
    assert to_shards(from_shards(written)) == written, "as if made anew"
    assert len({*packed}) > 500


def test_who_reports_each_message_gets_no_more_than_who_reports_many_at_once() -> None:
    names = ("each", "many", "others")
    ledger = LedgerInfo(0, 0, "f", 0, BatchSizes.of([1] * 500), 1, 0, 0)
    commands: list[Command] = [
        *(subscribe(name, permits=10) for name in names),
        LedgerAdded(ledger, 0),
    ]
    state, ready = step(BrokerState(TOPIC, 0), commands, 0)
    held = dict.fromkeys(names, PositionSet())
    granted = dict.fromkeys(names, 0)
    for number in range(1, 41):
        for grant in ready.grants:
            held[grant.consumer] = held[grant.consumer].union(grant.messages)
            granted[grant.consumer] += grant.messages.count(state.ledgers)
        reports = []
        for name in names if number % 10 == 0 else names[:1]:
            done = held[name].prefix(1 if name == "each" else 10, state.ledgers)
            held[name] = held[name].difference(done)
            reports.append(acknowledging(name, number, done))
        state, ready = step(state, reports, number)
    assert granted == dict.fromkeys(names, 10 + 39 // 10 * 10) | {"each": 10 + 39}


def subscribe(name: str, permits: int = 2_000) -> Subscribe:
    kind, begin = SubscriptionType.SHARED, InitialPosition.EARLIEST
    return Subscribe("s", name, 1, kind, initial_position=begin, permits=permits)


def acknowledging(name: str, sequence: int, messages: PositionSet) -> Report:
    return Report("s", name, 1, sequence=sequence, acknowledged=Cursor().acknowledge(messages))


def test_a_ledger_more_changes_no_list_that_was_there() -> None:
    first = LedgerList([added(0).ledger])
    one, other = first.with_next(added(1).ledger), first.with_next(added(2).ledger)
    third = one.with_next(added(3).ledger)
    ids = [[each.ledger_id for each in ledgers] for ledgers in (first, one, other, third)]
    assert ids == [[0], [0, 1], [0, 2], [0, 1, 3]]


def added(number: int) -> LedgerAdded:
    sizes = BatchSizes.of([1, 2])
    return LedgerAdded(LedgerInfo(number, 0, f"{number}", 0, sizes, 10, number, number), number)
