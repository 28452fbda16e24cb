"""The source's planning, driven as Spark drives it: where it begins, its limits, its restarts."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark import stream_reader
from pulsar_spark.connector.spark.typed_values import read_values
from pulsar_spark.errors import (
    DataLossError,
    InvalidOptionError,
)
from pulsar_spark.options.option_values import time_text
from pulsar_spark.testing import ManualClock
from tests.connector.reading import Batch, Run
from tests.connector.topics import ledger_of, numbers, send, trim

FULL = "persistent://public/default/"

pytestmark = pytest.mark.usefixtures("impatient")


# -- where it begins -----------------------------------------------------------------------------


def test_a_new_query_begins_at_the_latest_by_default(root: Path) -> None:
    send(root, "t", ["before"])
    run = Run(root, topic="t")
    assert run.values() == []
    send(root, "t", ["after"])
    assert run.values() == ["after"]


def test_latest_is_pinned_at_once_by_an_empty_batch(root: Path) -> None:
    send(root, "t", ["before"])
    batch = Run(root, topic="t").next()
    assert batch is not None
    assert batch.messages == []
    send(root, "t", ["after"])
    # Killed before that batch was committed, and after: both go on from where «latest» was.
    assert Run(root, topic="t", start=batch.start).read(batch) == []
    assert Run(root, topic="t", start=batch.end).values() == ["after"]


def test_the_initial_offset_is_the_same_however_often_spark_asks(root: Path) -> None:
    send(root, "t", ["a"])
    first = Run(root, topic="t").offset
    send(root, "t", ["b"])
    assert json.dumps(Run(root, topic="t").offset) == json.dumps(first)


def test_earliest_begins_at_the_first_message_that_is_still_there(root: Path) -> None:
    for value in "abc":
        send(root, "t", [value])
    trim(root, "t", 1)
    assert Run(root, topic="t", startingOffsets="earliest").values() == ["b", "c"]


@pytest.mark.parametrize(
    ("given", "inclusive", "first"),
    [
        ("0:1:0:2", True, 5),
        ("0:1:0:2", False, 6),
        ("0:1:0:0", True, 3),
        ("0:1:0", True, 3),
        ("0:1:0", False, 6),
        ("0:1:-1", True, 3),
        ("0:0:0:0", True, 0),
        ("0:2:0:2", False, 9),
        ("1:0:0:1", True, 10),
        ("0:99:0:0", True, 9),
        ("-1:-1:-1", True, 0),
        ("latest", True, 12),
        ("earliest", True, 0),
    ],
)
def test_a_message_id_begins_in_the_middle_of_a_batch(
    root: Path, given: str, inclusive: bool, first: int
) -> None:
    send(root, "t", numbers(0, 9), batchingMaxMessages=3)
    send(root, "t", numbers(9, 12))
    options: dict[str, Any] = {
        "topic": "t",
        "startingOffsets": json.dumps({"t": {"0": given}}),
        "startMessageIdInclusive": inclusive,
    }
    assert Run(root, **options).values() == numbers(first, 12)


def test_partitions_without_an_id_begin_at_the_earliest(root: Path) -> None:
    send(root, "t-partition-0", ["a0", "a1"], numPartitions=2)
    send(root, "t-partition-1", ["b0", "b1"])
    run = Run(root, topic="t", startingOffsets='{"t": {"1": "1:0:1:1"}}')
    assert run.values() == ["a0", "a1", "b1"]


def test_an_id_of_a_ledger_that_another_partition_has_begins_behind_it(root: Path) -> None:
    send(root, "t-partition-0", ["a"], numPartitions=2)
    send(root, "t-partition-1", ["b"])
    send(root, "t-partition-0", ["c"])
    run = Run(root, topic="t-partition-0", startingOffsets='{"t": {"0": "1:0:0"}}')
    assert run.values() == ["c"]
    trim(root, "t", 1)
    run = Run(root, topic="t-partition-0", startingOffsets='{"t": {"0": "1:0:0"}}')
    assert run.values() == ["c"], "what was trimmed before the id is no loss"


def test_an_id_that_was_trimmed_away_is_a_loss(root: Path) -> None:
    for value in "abc":
        send(root, "t", [value])
    trim(root, "t", 2)
    start = '{"t": {"0": "0:0:0"}}'
    with pytest.raises(DataLossError, match=r"up to 1:0 of .*t-partition-0.*failOnDataLoss"):
        Run(root, topic="t", startingOffsets=start).values()
    assert Run(root, topic="t", startingOffsets=start, failOnDataLoss=False).values() == ["c"]


def test_ids_of_a_partition_that_is_not_read_are_refused(root: Path) -> None:
    send(root, "t", ["a"])
    with pytest.raises(InvalidOptionError, match=r"t-partition-7, which is not read here\. Read"):
        Run(root, topic="t", startingOffsets='{"t": {"7": "0:0:7"}}').values()


def test_a_time_begins_at_the_first_entry_published_at_it_or_later(
    place: Root, clock: ManualClock
) -> None:
    root, begun_ms = place.service_url, clock.wall_ms()
    for number in range(3):
        send(root, "t", [f"{number}-a", f"{number}-b"])
        clock.advance(1000)
    everything = [f"{number}-{letter}" for number in range(3) for letter in "ab"]
    for after_ms, first in ((-begun_ms, 0), (0, 0), (1, 2), (2000, 4), (2001, 6)):
        run = Run(root, topic="t", startingTime=begun_ms + after_ms)
        assert run.values() == everything[first:], after_ms
    run = Run(root, topic="t", startingTime=time_text(begun_ms + 1000))
    assert run.values() == everything[2:]
    trim(root, "t", 99)
    assert Run(root, topic="t", startingTime=5).values() == [], "all is trimmed, nothing is lost"


# -- how much ------------------------------------------------------------------------------------


def test_a_limit_of_messages_ends_inside_an_entry(root: Path) -> None:
    send(root, "t", numbers(0, 25), batchingMaxMessages=10)
    run = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=7)
    batches = run.all()
    assert [batch.values for batch in batches] == [
        numbers(first, min(first + 7, 25)) for first in range(0, 25, 7)
    ]
    assert "/10[" in json.dumps(batches[0].end), "the offset holds a part of an entry"
    ids = [(m["entry_id"], m["batch_index"]) for batch in batches for m in batch.messages]
    assert ids == [(number // 10, number % 10) for number in range(25)]


def test_a_limit_is_shared_by_the_partitions(root: Path) -> None:
    for partition, count in enumerate((3, 50, 50)):
        send(root, f"t-partition-{partition}", numbers(0, count), numPartitions=3)
    run = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=23)
    first = run.next()
    assert first is not None
    taken = [message["partition"] for message in first.messages]
    assert [taken.count(partition) for partition in range(3)] == [3, 10, 10]


def test_a_limit_of_bytes_goes_by_payload_and_lets_one_message_pass(root: Path) -> None:
    send(root, "t", ["x" * 100] * 30)
    run = Run(root, topic="t", startingOffsets="earliest", maxBytesPerTrigger=1000)
    assert [len(batch.messages) for batch in run.all()] == [10, 10, 10]
    run = Run(root, topic="t", startingOffsets="earliest", maxBytesPerTrigger=1)
    assert [len(batch.messages) for batch in run.all()] == [1] * 30


def test_the_minimum_waits_until_it_is_reached_or_the_delay_is_over(
    place: Root, clock: ManualClock
) -> None:
    root = place.service_url
    send(root, "t", ["a"])
    options: dict[str, Any] = {"topic": "t", "minMessagesPerTrigger": 3, "maxTriggerDelay": "60s"}
    run = Run(root, startingOffsets="earliest", **options)
    assert run.values() == []
    send(root, "t", ["b", "c"])
    assert run.values() == ["a", "b", "c"]
    send(root, "t", ["d"])
    assert run.values() == []
    clock.advance(59_000)
    assert run.values() == []
    clock.advance(1_000)
    assert run.values() == ["d"]
    send(root, "t", ["e"])
    hurried = Run(root, start=run.offset, available_now=True, **options)
    assert hurried.values() == ["e"], "AvailableNow does not wait"


def test_available_now_ends_at_what_was_there_at_its_start(root: Path) -> None:
    send(root, "t", numbers(0, 5))
    options: dict[str, Any] = {"startingOffsets": "earliest", "maxMessagesPerTrigger": 2}
    options["available_now"] = True
    run = Run(root, topicsPattern=".*", topicDiscoveryInterval=0, **options)
    first = run.next()
    assert first is not None
    send(root, "t", ["late"])
    send(root, "another", ["late too"])
    ledger_of(root, "t").grow(2)
    assert first.values + run.values() == numbers(0, 5)
    again = Run(root, topicsPattern=".*", start=run.offset, available_now=True)
    assert sorted(again.values()) == ["late", "late too"]


def test_an_idle_look_returns_the_very_offset_it_was_given(root: Path) -> None:
    send(root, "t", ["a"])
    run = Run(root, topic="t", startingOffsets="earliest")
    assert run.values() == ["a"]
    assert run.reader.latestOffset(run.offset, ReadAllAvailable()) is run.offset


# -- what it does not read -----------------------------------------------------------------------


def test_hidden_messages_are_not_seen(root: Path) -> None:
    columns = {"producer_name": ["p", "p"], "sequence_id": [0, 1]}
    send(root, "t", ["a", "b"], columns=columns, enableDeduplication=True)
    columns["sequence_id"] = [1, 2]
    send(root, "t", ["b again", "c"], columns=columns)
    assert ledger_of(root, "t").state.partition(0).hidden.since(0)
    assert Run(root, topic="t", startingOffsets="earliest").values() == ["a", "b", "c"]
    limited = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=1)
    assert limited.values() == ["a", "b", "c"]


def test_a_sink_that_drops_duplicates_sees_what_one_without_it_published(root: Path) -> None:
    def publish(value: str, number: int, *, dropping: bool) -> None:
        columns = {"producer_name": ["p"], "sequence_id": [number]}
        send(root, "t", [value], columns=columns, enableDeduplication=dropping)

    publish("a", 0, dropping=True)
    publish("b", 1, dropping=False)
    publish("b again", 1, dropping=True)
    publish("c", 2, dropping=True)
    assert Run(root, topic="t", startingOffsets="earliest").values() == ["a", "b", "c"]


def test_messages_trimmed_behind_a_stopped_query_are_a_loss(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(root, "t", ["a"])
    run = Run(root, topic="t", startingOffsets="earliest")
    assert run.values() == ["a"]
    for value in "bcd":
        send(root, "t", [value])
    trim(root, "t", 3)
    with pytest.raises(DataLossError) as caught:
        Run(root, topic="t", start=run.offset).next()
    said = str(caught.value)
    for part in ("after 0:0 up to 2:0", f"{FULL}t-partition-0", "failOnDataLoss", "checkpoint"):
        assert part in said
    onward = Run(root, topic="t", start=run.offset, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        assert onward.values() == ["d"]
    assert "trimmed away" in caplog.text
    assert "failOnDataLoss is false, so the query goes on from 3:-1" in caplog.text


def test_a_loss_that_is_borne_is_told_once_though_nothing_new_comes(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for value in "ab":
        send(root, "t", [value])
    start = Run(root, topic="t", startingOffsets='{"t": {"0": "0:0:0"}}', maxMessagesPerTrigger=1)
    assert start.next() is not None
    trim(root, "t", 99)
    run = Run(root, topic="t", start=start.offset, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        while run.planned() is not None:
            assert run.next() is not None
        reported = caplog.text.count("trimmed away")
        assert run.planned() is None
        assert caplog.text.count("trimmed away") == reported


def test_a_ledger_that_was_read_to_its_end_and_trimmed_is_no_loss(root: Path) -> None:
    send(root, "t", numbers(0, 20), batchingMaxMessages=10)
    run = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=7)
    assert run.values() == numbers(0, 20)
    trim(root, "t", 99)
    again = Run(root, topic="t", start=run.offset)
    assert again.values() == []
    send(root, "t", ["new"])
    assert again.values() == ["new"]


def test_a_batch_to_replay_that_was_trimmed_in_part_goes_on_with_the_rest(root: Path) -> None:
    send(root, "t", numbers(0, 10), batchingMaxMessages=10)
    send(root, "t", numbers(10, 20), batchingMaxMessages=10)
    run = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=5)
    run.next()
    planned = run.planned()
    assert planned is not None
    assert "/10[" not in json.dumps(planned.end)
    run.commit(planned)
    planned = run.planned()
    assert planned is not None
    assert "/10[" in json.dumps(planned.end)
    whole = Batch(run.offset, planned.end)
    trim(root, "t", 1)
    assert Run(root, topic="t", start=whole.start).read(whole), "the first ledger was read"
    early = Batch({"initial": True, "version": 1}, planned.end)
    with pytest.raises(DataLossError):
        Run(root, topic="t", start=early.start).read(early)
    lenient = Run(root, topic="t", start=early.start, failOnDataLoss=False)
    lenient.read(early)
    assert early.values == numbers(10, 15)


def test_a_part_of_an_entry_that_was_trimmed_before_its_replay_is_left_out(root: Path) -> None:
    send(root, "t", numbers(0, 10), batchingMaxMessages=10)
    run = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=5)
    planned = run.planned()
    assert planned is not None
    send(root, "t", ["new"])
    trim(root, "t", 1)
    lenient = Run(root, topic="t", start=planned.start, failOnDataLoss=False)
    assert lenient.read(planned) == []
    lenient.commit(planned)
    assert lenient.values() == ["new"]


# -- restarts ------------------------------------------------------------------------------------


def test_a_replayed_batch_has_the_same_messages_in_the_same_tasks(root: Path) -> None:
    for partition in range(3):
        send(root, f"t-partition-{partition}", numbers(0, 40), numPartitions=3)
    run = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=50)
    run.next()
    planned = run.planned()
    assert planned is not None
    first = run.read(planned)
    assert len(first) == 50
    send(root, "t-partition-1", ["later"])
    LedgerStore(ledger_of(root, "t")).merge_small_files()
    again = Run(root, topic="t", start=planned.start)
    assert again.read(Batch(planned.start, planned.end)) == first


def test_a_restart_goes_on_at_the_message(root: Path) -> None:
    send(root, "t", numbers(0, 30), batchingMaxMessages=7)
    seen: list[str] = []
    offset = None
    for _ in range(10):
        run = Run(
            root, topic="t", start=offset, startingOffsets="earliest", maxMessagesPerTrigger=4
        )
        batch = run.next()
        if batch is None:
            break
        seen += batch.values
        offset = run.offset
    assert seen == numbers(0, 30)


def test_files_merged_under_a_running_query_change_no_id(root: Path) -> None:
    for number in range(6):
        send(root, "t", numbers(number * 4, number * 4 + 4), batchingMaxMessages=3)
    ids = ("ledger_id", "entry_id", "partition", "batch_index", "value", "publish_time")
    expected = [
        tuple(message[name] for name in ids)
        for batch in Run(root, topic="t", startingOffsets="earliest").all()
        for message in batch.messages
    ]
    run = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=5)
    seen = []
    planned = run.planned()
    assert planned is not None
    # The files of this batch are merged and deleted between its planning and its reading.
    tasks = run.reader.partitions(planned.start, planned.end)
    keeper = LedgerStore(ledger_of(root, "t"), grace_ms=0)
    assert keeper.merge_small_files()
    assert keeper.sweep()
    for task in tasks:
        for each in read_values(task.value, run.schema, None):
            seen += each.to_pylist()
    run.commit(planned)
    seen += [message for batch in run.all() for message in batch.messages]
    assert [tuple(message[name] for name in ids) for message in seen] == expected


def test_the_querys_progress_tells_how_far_behind_it_is(root: Path) -> None:
    send(root, "t-partition-1", numbers(0, 5), numPartitions=2, batchingMaxMessages=2)
    run = Run(root, topic="t", startingOffsets="earliest", maxMessagesPerTrigger=1)
    while run.next() is None:
        pass
    report = run.reader.reportLatestOffset()
    assert report is not None
    first, second = (report["topics"][f"{FULL}t"][str(number)] for number in range(2))
    age = second.pop("oldestBacklogMessageAgeSeconds")
    assert 0 <= age < 3600
    assert first == {"backlog": 0, "last": "-1:-1", "oldestBacklogMessageAgeSeconds": None}
    assert second == {"backlog": 4, "last": "0:2"}


def test_a_waiting_look_ends_as_soon_as_there_is_news(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "LONGEST_WAIT_S", 30.0)
    send(root, "t", ["a"])
    run = Run(root, topic="t", startingOffsets="earliest")
    assert run.next() is not None
    late = threading.Timer(0.05, send, (root, "t", ["b"]))
    late.start()
    found = run.next()
    late.join()
    assert found is not None
    assert found.values == ["b"]
