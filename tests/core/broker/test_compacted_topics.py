"""The broker of a topic that was compacted: what it keeps, for whom, and what it lets go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.hosting.broker_rows import COMPACTED, InputRow, Phase, command_of
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.commands import (
    CloseConsumer,
    Command,
    Compacted,
    InitialPosition,
    LedgerAdded,
    LedgersTrimmed,
    Seek,
)
from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.errors import ServerError
from pulsar_spark.log.compacted_ledgers import CompactedLedgers
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.records.stored_record import canonical_json
from tests.core.broker_samples import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    entries,
    ledger,
    report,
    run,
    subscribe,
)

LEDGERS: list[LedgerAdded] = [ledger(0, (1, 1)), ledger(1, (2,)), ledger(2), ledger(3)]


def compacted(kept: PositionSet, horizon: int) -> Compacted:
    held = LedgerList(each.ledger for each in LEDGERS if each.ledger.ledger_id in kept.ledger_ids)
    last = LEDGERS[horizon].ledger
    return Compacted(CompactedLedgers(Position(horizon, last.entries - 1), held, kept))


KEPT = compacted(entries(0, 1).union(PositionSet.of_batch((1, 0), 2, 0b10)), 2)
TRIMMED = LedgersTrimmed((0, 1, 2))
READS = subscribe("a", EXCLUSIVE, read_compacted=True)


@pytest.mark.parametrize(
    "reported",
    [
        [[*LEDGERS], [KEPT], [TRIMMED]],
        [[*LEDGERS, KEPT, TRIMMED]],
        [[LEDGERS[3], KEPT]],  # it begins when they are trimmed
        [[LEDGERS[3], KEPT], [KEPT], [TRIMMED]],
    ],
)
def test_who_reads_compacted_begins_with_what_outlived_its_ledgers(
    reported: list[list[Command]],
) -> None:
    state, ready = run(
        [*reported, [READS, replace(subscribe("b", EXCLUSIVE), subscription="plain")]]
    )
    assert [each.ledger_id for each in state.ledgers] == [0, 1, 3]
    begins = {each.subscription: each.after.unread(state.ledgers) for each in ready.open_grants}
    assert begins["s"] == entries(0, 0, 1).union(entries(1, 0)).union(entries(3, 0))
    assert begins["plain"] == entries(3, 0)


def test_the_next_compaction_lets_go_of_what_it_no_longer_keeps() -> None:
    state, _ = run([[*LEDGERS, READS], [KEPT], [TRIMMED], [compacted(entries(1, 0), 3)]])
    assert [each.ledger_id for each in state.ledgers] == [1, 3]
    assert state.subscriptions["s"].cursor.unread(state.ledgers) == entries(1, 0).union(
        entries(3, 0)
    )


def test_single_messages_of_trimmed_ledgers_are_acknowledged() -> None:
    reported: list[list[Command]] = [[*LEDGERS], [KEPT, TRIMMED], [READS]]
    state, _ = run([*reported, [report("a", entries(0, 0).union(entries(1, 0)))]])
    assert state.subscriptions["s"].cursor.unread(state.ledgers) == entries(0, 1).union(
        entries(3, 0)
    )
    state, _ = step(state, [report("a", entries(0, 1), sequence=1)], 9)
    assert state.subscriptions["s"].cursor == Cursor(Position(1, 0))


def compacted_state() -> BrokerState:
    return run([LEDGERS, [KEPT], [READS], [LedgersTrimmed((0,))]])[0]


def test_the_state_survives_its_shards() -> None:
    state = compacted_state()
    assert state.compaction.trimmed == {0}
    again = from_shards(to_shards(state))
    assert (again.compaction, again.subscriptions["s"].read_compacted) == (state.compaction, True)
    assert to_shards(again) == to_shards(state)
    again, _ = step(again, [LedgersTrimmed((1, 2))], 60_000)
    assert [each.ledger_id for each in again.ledgers] == [0, 1, 3]


def test_a_row_carries_a_compaction() -> None:
    data = b'{"horizon": "2:0", "kept": %s, "ledgers": []}' % canonical_json(
        Cursor().to_json_value()
    )
    row = InputRow("t", 0, Phase.LOG, 1, 0, COMPACTED, 0, data=data)
    command = command_of(row)
    assert isinstance(command, Compacted)
    assert command.compacted.horizon == Position(2, 0)


def test_what_is_not_compacted_yet_is_not_trimmed() -> None:
    reported: list[list[Command]] = [[*LEDGERS, subscribe("a")], [compacted(entries(0, 1), 1)]]
    state, _ = run(reported)
    done = Cursor(Position(3, 0))
    last = report("a", acknowledged=done, committed=Position(3, 0))
    state, _ = step(state, [last], 9)
    state, ready = step(state, [], 10)
    assert ready.trim == (0, 1)
    state, ready = step(state, [LedgersTrimmed((0, 1))], 11)
    assert (ready.trim, ready.next_due_ms) == ((), None)
    _, ready = step(state, [compacted(entries(0, 1), 2)], 12)
    assert ready.next_due_ms == 12, "what it may drop now, it drops at once"


def test_what_outlived_its_ledgers_is_no_backlog_to_producers() -> None:
    policies = TopicPolicies(backlog_quota_time_ms=1_000, keep_without_subscription=True)
    state, _ = run([[ledger(3, at_ms=499_500), KEPT], [READS]], policies)
    state, ready = step(state, [], 500_000)
    assert ready.backlog_quota is None
    assert not state.quota_exceeded


def test_a_subscription_reads_what_its_first_consumer_says() -> None:
    reported: list[list[Command]] = [[*LEDGERS], [KEPT, TRIMMED], [READS]]
    state, _ = run(reported)
    state, ready = step(state, [subscribe("b", FAILOVER)], 5)
    assert ready.replies[0].error is ServerError.CONSUMER_BUSY
    state, ready = step(state, [CloseConsumer("s", "a", 1)], 6)
    state, ready = step(state, [subscribe("b", EXCLUSIVE)], 7)
    state.check()
    assert ready.open_grants[0].after.unread(state.ledgers) == entries(3, 0)


def test_a_failover_of_one_that_differs_is_refused() -> None:
    state, _ = run([LEDGERS, [subscribe("a", FAILOVER, read_compacted=True)]])
    _, ready = step(state, [subscribe("b", FAILOVER)], 5)
    assert ready.replies[0].error is ServerError.CONSUMER_BUSY
    assert "readCompacted" in ready.replies[0].message


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_where_several_share_it_is_not_allowed(kind: object) -> None:
    _, ready = run([LEDGERS, [subscribe("a", kind, read_compacted=True)]])  # type: ignore[arg-type]
    assert ready.replies[0].error is ServerError.NOT_ALLOWED_ERROR


def test_a_seek_finds_what_outlived_its_ledgers() -> None:
    latest = subscribe("a", EXCLUSIVE, read_compacted=True, initial_position=InitialPosition.LATEST)
    state, _ = run([LEDGERS, [KEPT, TRIMMED], [latest]])
    state, _ = step(state, [Seek("s", EARLIEST)], 5)
    assert state.subscriptions["s"].cursor.unread(state.ledgers).ledger_ids == [0, 1, 3]
    state, _ = step(state, [Seek("s", Position(0, 1))], 6)
    unread = state.subscriptions["s"].cursor.unread(state.ledgers)
    assert unread == entries(0, 1).union(entries(1, 0)).union(entries(3, 0))
