"""A slice of a day: files stay bounded, and no micro-batch does more than those before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_spark.connector.broker import broker_sink, broker_source
from pulsar_spark.connector.housekeeping.housekeeper import FILES_TO_MERGE
from tests.connector.topics import ledger_of
from tests.day.day import TOPIC, Day

HOURS, EACH = 8, 5


def test_a_day_s_files_stay_bounded_and_no_micro_batch_does_more_than_the_first(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_source, "SNAPSHOT_EVERY", 30)
    monkeypatch.setattr(broker_sink, "LEDGERS_KEPT", 15)
    monkeypatch.setattr(broker_sink, "COMMANDS_KEPT", 50)
    with Day(root, publications=EACH * HOURS, hours=HOURS, compaction_threshold="3K") as day:
        hours = list(day.run())
        assert not any(day.lost().values())
        state = ledger_of(root, TOPIC).state
    files = [hour.files.total() for hour in hours]
    assert max(files[5:]) <= 1.2 * max(files[2:5]), files
    for folder in ("orders/data", "orders/_log", "__commands/data", "__dispatch/data"):
        counts = [hour.files[folder] for hour in hours]
        assert max(counts[5:]) <= 2 * FILES_TO_MERGE, (folder, counts)
    calls = [hour.calls for hour in hours]
    assert max(calls[1:]) <= 1.2 * calls[0], calls
    most = [max(hour.batch_calls) for hour in hours]
    assert max(most[5:]) <= 1.2 * max(most[:5]), most
    for partition in range(state.partitions):  # the broker has compacted, trimmed and expired
        part = state.partition(partition)
        assert part.compacted is not None
        assert part.messages < 4 * EACH * 5
    assert len(day.received["reports"]) < day.number
