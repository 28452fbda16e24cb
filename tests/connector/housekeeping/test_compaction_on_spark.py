"""Consumers with `readCompacted` on real Spark; the broker runs in a thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from pulsar_spark import Admin
from pulsar_spark.connector.runtime.housekeeping.compaction import backlog_bytes, compact
from pulsar_spark.connector.runtime.housekeeping.housekeeper import Housekeeper
from pulsar_spark.connector.runtime.topics.topics import Root
from tests.connector.housekeeping.test_compaction import put
from tests.connector.housekeeping.test_housekeeper import compacted, everything
from tests.connector.plain_broker import PlainBroker
from tests.connector.spark_query import SparkQuery
from tests.connector.topics import ledger_of, trim

if TYPE_CHECKING:
    from tests.connector.conftest import MakeQuery


@pytest.fixture
def broker(root: Path, tmp_path: Path) -> Iterator[PlainBroker]:
    with PlainBroker(root, "_broker/broker") as running:
        yield running


def consumer(query: MakeQuery, checkpoint: str = "checkpoint", **given: object) -> SparkQuery:
    options: dict[str, object] = {
        "topic": "t", "subscriptionName": "s", "subscriptionInitialPosition": "Earliest",
        "subscriptionType": "Failover", "readCompacted": "true",
    }  # fmt: skip
    return query(checkpoint, **(options | given))


def test_a_new_subscription_begins_with_what_compaction_kept_of_trimmed_ledgers(
    broker: PlainBroker, query: MakeQuery, root: Path
) -> None:
    put(root, "a=a1", "b=b1", "c=c1", batchingMaxMessages=2)
    put(root, "a=a2", "c=")
    compact(ledger_of(root, "t"))
    trim(root, "t", 99)
    put(root, "b=b2", "a=a3")
    first = consumer(query, maxMessagesPerTrigger=1)
    assert first.values() == ["b1", "a2", "b2", "a3"]
    ids = [(row.ledger_id, row.entry_id) for rows in first.batches.values() for row in rows]
    assert ids[:2] == [(0, 0), (1, 0)], "they are what they always were"
    put(root, "a=a4", "b=b3", "b=b4")
    compact(ledger_of(root, "t"))
    assert consumer(query, "another").values() == ["a4", "b4"], "the subscription goes on"


def test_a_micro_batch_is_repeated_though_the_topic_was_compacted_since(
    broker: PlainBroker, query: MakeQuery, root: Path
) -> None:
    put(root, *(f"k{number % 4}={number}" for number in range(8)), batchingMaxMessages=3)
    compact(ledger_of(root, "t"))
    put(root, "k0=8", "k1=9")
    reader = consumer(query, maxMessagesPerTrigger=3)
    reader.fails_at = last = 1
    with pytest.raises(StreamingQueryException, match="as it was told to"):
        reader.run()
    seen, reader.fails_at = reader.batches[last], -1
    assert [row.value.decode() for row in seen] == ["4", "5", "6"]
    put(root, "k0=10", "k2=11")
    compact(ledger_of(root, "t"))
    reader.run()
    assert reader.batches[last] == seen, "the same rows, columns and order"
    later = [rows for number, rows in sorted(reader.batches.items()) if number > last]
    values = [row.value.decode() for rows in later for row in rows]
    assert values == ["7", "9", "10", "11"], "and 8 was removed before it was planned"


def test_a_shared_subscription_is_refused_when_the_frame_is_made(
    query: MakeQuery, root: Path
) -> None:
    put(root, "a=1")
    with pytest.raises(AnalysisException, match="readCompacted needs subscriptionType"):
        consumer(query, subscriptionType="Shared").frame()


@pytest.mark.slow
def test_a_broker_that_is_killed_while_it_compacts_has_changed_nothing_and_the_next_finishes(
    root: Path,
) -> None:
    put(root, *(f"k{number % 4}={number}" for number in range(100)), "k0=")
    Admin(str(root)).policies("t").set(compaction_threshold=10)
    before, number = everything(str(root)), ledger_of(root, "t").state.number
    folder = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.connector.housekeeping.killed_broker_on_spark"]
    broker = subprocess.Popen(
        [*command, str(root)], cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert broker.wait(120) == -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):  # Java, if it lives on
            os.killpg(broker.pid, signal.SIGKILL)
    state = ledger_of(root, "t").state
    assert (state.number, everything(str(root))) == (number, before)
    assert len([*(root / "persistent/public/default/t/data").iterdir()]) == 2, "begun, not named"
    Housekeeper(Root(str(root), {})).run_once()
    state = ledger_of(root, "t").state
    assert backlog_bytes(state, 0) == 0
    assert compacted(str(root)) == ["k1=97", "k2=98", "k3=99"]
    assert everything(str(root)) == before
