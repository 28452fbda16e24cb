"""A step's cost does not grow with the ledgers that stay behind it."""

from __future__ import annotations

import pytest

from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import CreateSubscription, LedgerAdded, SetPolicies
from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.model.positions.ledger_info import (
    BatchSizes,
    LedgerColumn,
    LedgerInfo,
    LedgerList,
)

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


def test_a_ledger_more_changes_no_list_that_was_there() -> None:
    first = LedgerList([added(0).ledger])
    one, other = first.with_next(added(1).ledger), first.with_next(added(2).ledger)
    third = one.with_next(added(3).ledger)
    ids = [[each.ledger_id for each in ledgers] for ledgers in (first, one, other, third)]
    assert ids == [[0], [0, 1], [0, 2], [0, 1, 3]]


def added(number: int) -> LedgerAdded:
    sizes = BatchSizes.of([1, 2])
    return LedgerAdded(LedgerInfo(number, 0, f"{number}", 0, sizes, 10, number, number), number)
