"""Offsets of the broker query, and leases: golden files, versions, damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulsar_spark.connector.broker_offset import BrokerOffset
from pulsar_spark.connector.lease import Lease
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.stream_offset import TopicPartition

GOLDEN = Path(__file__).parent.parent / "golden"
FLIGHTS = "persistent://public/default/flights"
OFFSET = BrokerOffset(
    7,
    {TopicPartition(FLIGHTS, 1): 12, TopicPartition(FLIGHTS, 0): -1},
    1_700_000_000_000,
    (TopicPartition(FLIGHTS, 1),),
    ("_leases/s~c~5",),
    snapshot=True,
    restored=3,
)
LEASE = Lease("a/b", "c~d", 5, 30_000, (TopicPartition(FLIGHTS, 0), TopicPartition(FLIGHTS, 1)))


def test_an_offset_that_was_written_once_is_still_read() -> None:
    text = (GOLDEN / "broker-offset-v1.json").read_text()
    assert BrokerOffset.from_json_value(json.loads(text)) == OFFSET
    assert json.dumps(OFFSET.to_json_value(), indent=1, sort_keys=True) + "\n" == text


def test_an_offset_in_dispatch_that_was_written_once_is_still_read() -> None:
    assert BrokerOffset.from_json(json.dumps(OFFSET.to_json_value()).encode()) == OFFSET
    data = (GOLDEN / "broker-offset-record-v2.json").read_bytes()
    assert BrokerOffset.from_json(data) == OFFSET
    assert OFFSET.to_json() == data


def test_an_offset_of_the_future_is_refused_and_a_damaged_one_says_what_to_do() -> None:
    with pytest.raises(FutureVersionError, match="has format version 2"):
        BrokerOffset.from_json_value({**OFFSET.to_json_value(), "version": 2})
    with pytest.raises(CorruptFileError, match="Delete the broker's checkpoint folder"):
        BrokerOffset.from_json_value({"version": 1})


def test_a_lease_that_was_written_once_is_still_read() -> None:
    old, new = ((GOLDEN / f"lease-v{version}.json").read_bytes() for version in (1, 2))
    assert Lease.from_json(old) == Lease.from_json(new) == LEASE
    assert LEASE.to_json() == new
    assert LEASE.path == "_leases/a%2Fb~c~d~5"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"partitions": 3}'])
def test_what_is_no_lease_gives_nobody_up(data: bytes) -> None:
    assert Lease.from_json(data) is None
