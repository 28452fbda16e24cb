"""A slice of a day: files stay bounded, and no micro-batch does more than those before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_spark.connector.runtime.broker import broker_sink, broker_source
from pulsar_spark.connector.runtime.housekeeping.housekeeper import FILES_TO_MERGE
from pulsar_spark.connector.runtime.topics import managed_ledger
from tests.connector.topics import ledger_of
from tests.day.day import TOPIC, Day

HOURS, EACH = 6, 5


@pytest.mark.slow
def test_a_day_s_files_stay_bounded_and_no_micro_batch_does_more_than_the_first(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed_ledger, "SNAPSHOT_EVERY", 16)
    monkeypatch.setattr(broker_source, "SNAPSHOT_EVERY", 30)
    monkeypatch.setattr(broker_sink, "LEDGERS_KEPT", 15)
    monkeypatch.setattr(broker_sink, "COMMANDS_KEPT", 50)
    with Day(
        root, publications=EACH * HOURS, hours=HOURS, compaction_threshold="1K", message_ttl="30m"
    ) as day:
        hours = list(day.run())
        assert not any(day.lost().values())
        state = ledger_of(root, TOPIC).state
    files = [hour.files.total() for hour in hours]
    assert max(files[4:]) <= 1.2 * max(files[1:4]), files
    for folder in ("orders/data", "orders/_log", "__commands/data", "__dispatch/data"):
        counts = [hour.files[folder] for hour in hours]
        assert max(counts[4:]) <= 2 * FILES_TO_MERGE, (folder, counts)
    calls = [hour.calls for hour in hours]
    assert max(calls[4:]) <= 1.2 * max(calls[1:4]), calls
    most = [max(hour.batch_calls) for hour in hours]
    assert max(most[4:]) <= 1.2 * max(most[:4]), most
    for partition in range(state.partitions):  # the broker has compacted, trimmed and expired
        part = state.partition(partition)
        assert part.compacted is not None
        assert part.messages < 4 * EACH * 5
    assert len(day.received["reports"]) < day.number
