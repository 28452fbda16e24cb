"""`spark.read`, driven as Spark drives it: from one position to another, planned once."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.spark.column_types import read_schema
from pulsar_spark.connector.spark.stream_reader import PulsarliteReader
from pulsar_spark.errors import DataLossError, InvalidOptionError
from pulsar_spark.options.option_values import time_text
from pulsar_spark.options.options import Scope
from pulsar_spark.testing import ManualClock
from tests.connector.topics import numbers, options_of, send, trim


def read(root: Path | str, **given: object) -> list[str]:
    options = options_of(root, Scope.BATCH_READ, {"topic": "t", **given})
    reader = PulsarliteReader(options, Root.of(options), read_schema(include_properties=False))
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    return [
        value.decode()
        for task in tasks
        for batch in reader.read(task)
        for value in batch.column("value").to_pylist()
    ]


def ids(**by_partition: str) -> str:
    return json.dumps({"t": {key.removeprefix("p"): text for key, text in by_partition.items()}})


def test_a_batch_is_all_there_is_by_default(root: Path) -> None:
    send(root, "t", numbers(0, 5))
    send(root, "t", numbers(5, 8))
    assert read(root) == numbers(0, 8)
    assert read(root, startingOffsets="earliest", endingOffsets="latest") == numbers(0, 8)
    assert read(root, startingOffsets="latest") == []


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("0:1:0:1", "0:2:0:0", ["4", "5", "6"]),
        ("0:0:0", "0:1:0", ["0", "1", "2", "3", "4", "5"]),
        ("0:2:0:2", "1:0:0:0", ["8", "9"]),
        ("1:0:0:1", "0:2:0", []),
        ("0:99:0", "99:0:0", ["9", "10", "11"]),
        ("earliest", "latest", numbers(0, 12)),
        ("0:2:0", "latest", numbers(6, 12)),
    ],
)
def test_both_ends_may_lie_inside_an_entry_and_are_themselves_read(
    root: Path, start: str, end: str, expected: list[str]
) -> None:
    send(root, "t", numbers(0, 9), batchingMaxMessages=3)
    send(root, "t", numbers(9, 12))
    assert read(root, startingOffsets=ids(p0=start), endingOffsets=ids(p0=end)) == expected


def test_a_start_may_be_left_out(root: Path) -> None:
    send(root, "t", numbers(0, 9), batchingMaxMessages=3)
    given = {"startingOffsets": ids(p0="0:1:0:1"), "startMessageIdInclusive": False}
    assert read(root, **given) == numbers(5, 9)


def test_partitions_without_an_id_are_read_to_their_end(root: Path) -> None:
    send(root, "t-partition-0", numbers(0, 4), numPartitions=2)
    send(root, "t-partition-1", numbers(4, 8))
    assert read(root, endingOffsets=ids(p0="0:0:0:1")) == ["0", "1", *numbers(4, 8)]


def test_times_begin_and_end_at_entries(place: Root, clock: ManualClock) -> None:
    root, begun_ms = place.service_url, clock.wall_ms()
    for number in range(4):
        send(root, "t", [f"{number}"])
        clock.advance(1000)
    assert read(root, startingTime=begun_ms + 1000) == ["1", "2", "3"]
    assert read(root, endingTime=begun_ms + 2000) == ["0", "1"]
    between = {"startingTime": begun_ms + 500}
    assert read(root, **between, endingTime=time_text(begun_ms + 2500)) == ["1", "2"]
    assert read(root, **between, endingOffsets=ids(p0="2:0:0")) == ["1", "2"]


def test_messages_of_one_instant_are_read_from_it_and_not_after_it(
    place: Root, clock: ManualClock
) -> None:
    root = place.service_url
    send(root, "t", numbers(0, 6), batchingMaxMessages=2)
    assert read(root, startingTime=clock.wall_ms()) == numbers(0, 6)
    assert read(root, startingTime=clock.wall_ms() + 1) == []


def test_an_id_that_was_trimmed_away_is_a_loss_in_a_batch_too(root: Path) -> None:
    for value in "abc":
        send(root, "t", [value])
    trim(root, "t", 2)
    assert read(root) == ["c"]
    with pytest.raises(DataLossError, match="up to 1:0 of"):
        read(root, startingOffsets=ids(p0="0:0:0"))
    assert read(root, startingOffsets=ids(p0="0:0:0"), failOnDataLoss=False) == ["c"]
    assert read(root, endingOffsets=ids(p0="0:0:0")) == []


def test_ending_before_anything_is_not_a_word_that_it_takes(root: Path) -> None:
    send(root, "t", ["a"])
    with pytest.raises(InvalidOptionError, match="it takes latest, or JSON"):
        read(root, endingOffsets="earliest")
    with pytest.raises(InvalidOptionError, match="'earliest' is no message id"):
        read(root, endingOffsets=ids(p0="earliest"))


def test_ids_of_what_is_not_read_are_refused_at_either_end(root: Path) -> None:
    send(root, "t", ["a"])
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidOptionError, match="t-partition-5, which is not read here"):
            read(root, **{name: ids(p5="0:0:5")})
