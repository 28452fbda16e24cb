"""Applications and producers that publish no more are forgotten, when a commit says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.connector.runtime.topics.ledger_store import INACTIVE_AGE_MS, LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.storage.service_url import open_store
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.publication import AlreadyCommitted
from tests.connector.topic_log.stores import (
    FOLDER,
    Clock,
    messages,
    publish,
    values_of,
    with_clock,
    write,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def topic(tmp_path: Path, clock: Clock) -> ManagedLedger:
    store = with_clock(open_store(str(tmp_path)), clock)
    return ManagedLedger.create(store, FOLDER, 1, {"deduplication": True})


def other(topic: ManagedLedger, clock: Clock) -> ManagedLedger:
    ledger = ManagedLedger.open_anew(topic.store, FOLDER)
    ledger.clock = clock.wall_ms
    return ledger


def send(topic: ManagedLedger, value: str, number: int, producer: str = "p", **how: Any) -> Any:
    return topic.append(write(topic, {0: messages([value], producer, number)}), **how)


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_an_application_that_was_away_is_forgotten_and_not_before(
    topic: ManagedLedger, clock: Clock, *, from_snapshot: bool
) -> None:
    for number in range(50):
        publish(topic, f"old {number}", application=(f"query-{number}", 3))
    if from_snapshot:
        topic.write_snapshot()
        topic = other(topic, clock)
    clock.now_ms += INACTIVE_AGE_MS
    publish(topic, "new", application=("busy", 0))
    assert LedgerStore(topic).forget_inactive() is None
    assert isinstance(publish(topic, "old", application=("query-0", 3)), AlreadyCommitted)
    clock.now_ms += 1
    publish(topic, "newer", application=("query-1", 4))
    assert LedgerStore(topic).forget_inactive() is not None
    assert LedgerStore(topic).forget_inactive() is None
    for state in (topic.state, other(topic, clock).state):
        assert state.applications == {"busy": 0, "query-1": 4}
        assert state.last_active.applications.keys() == state.applications.keys()
    assert isinstance(publish(topic, "again", application=("query-0", 3)), Commit)


def test_a_producer_is_remembered_as_long_as_the_topic_has_a_message_of_it(
    topic: ManagedLedger, clock: Clock
) -> None:
    send(topic, "a", 5)
    clock.now_ms += INACTIVE_AGE_MS + 1
    send(topic, "b", 1, producer="q")
    keeper = LedgerStore(topic)
    assert keeper.forget_inactive() is None
    assert isinstance(send(topic, "a", 5), AlreadyCommitted)
    keeper.trim({0: 1})
    assert isinstance(send(topic, "a", 4), AlreadyCommitted), "by the highest id"
    commit = keeper.forget_inactive()
    assert commit is not None
    assert commit.inactive_producers == ("p",)
    for state in (topic.state, other(topic, clock).state):
        assert state.sequence_ids == {0: {"q": 1}}
        assert state.partition(0).sequences.floors == {}
    assert isinstance(send(topic, "a", 5), Commit)
    assert isinstance(send(topic, "b", 1, producer="q"), AlreadyCommitted)
    assert values_of(topic) == ["b", "a"]


@pytest.mark.parametrize("whose", ["keeper", "one writer"])
def test_one_clock_that_is_wrong_makes_nobody_forgotten(
    topic: ManagedLedger, clock: Clock, whose: str
) -> None:
    if whose == "one writer":
        behind = other(topic, Clock(clock.now_ms - 2 * INACTIVE_AGE_MS))
        publish(topic, "0", application=("first", 0))
        publish(behind, "a", application=("query", 3))
        ahead = other(topic, Clock(clock.now_ms + 2 * INACTIVE_AGE_MS))
        publish(ahead, "b", application=("other", 3))
        topic.refresh()
        assert LedgerStore(topic).forget_inactive() is None
    else:
        publish(topic, "a", application=("query", 3))
        clock.now_ms += 2 * INACTIVE_AGE_MS
        assert LedgerStore(topic).forget_inactive() is None
    assert isinstance(publish(topic, "a", application=("query", 3)), AlreadyCommitted)
