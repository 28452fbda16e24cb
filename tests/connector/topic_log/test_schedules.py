"""The whole protocol of the log, by random schedules on a store that fails in every way."""

from __future__ import annotations

import pytest

from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from tests.connector.topic_log import schedules
from tests.connector.topic_log.faulty_store import Disk, FaultyStore
from tests.connector.topic_log.stores import FOLDER, Clock, publish, values_of

SEEDS = 40


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_schedule_loses_doubles_or_breaks_anything(first: int) -> None:
    """More of them: python -m tests.connector.topic_log.schedules --seeds 0-10000."""
    for seed in range(first, first + 10):
        schedules.run(seed)


def test_a_tidy_that_slept_for_longer_than_every_grace_period_merges_nothing() -> None:
    """Its merged file was given up as an orphan, deleted and forgotten before it committed."""
    clock = Clock()
    disk = Disk(clock)
    ledger = ManagedLedger.create(FaultyStore(disk), FOLDER, 1)
    for value in "abc":
        publish(ledger, value)

    store = FaultyStore(disk)
    asleep = LedgerStore(ManagedLedger.open_anew(store, FOLDER))
    awake = LedgerStore(ledger, grace_ms=1_000)

    def sleep() -> None:
        if len([path for path in disk.files if "/data/" in path]) == 4:
            store.meanwhile = None
            clock.now_ms += 100_000
            assert awake.reclaim_orphans(older_than_ms=5_000) is not None
            clock.now_ms += 1_000
            assert len(awake.sweep()) == 1
            assert ledger.state.tombstones == {}

    store.meanwhile = sleep
    assert asleep.merge_small_files() == []
    assert clock.now_ms > 1_000_100_000, "it slept"
    assert values_of(ManagedLedger.open_anew(store, FOLDER)) == ["a", "b", "c"]
    assert len(asleep.merge_small_files()) == 1, "the next one merges"
