"""Offsets of the broker query, and leases: golden files, versions, damage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_spark.connector.system.broker_offset import Aside, BrokerOffset, PartitionBatch
from pulsar_spark.connector.system.lease import Lease
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.topic_name import TopicPartition

GOLDEN = Path(__file__).parents[2] / "golden"
FLIGHTS = "persistent://public/default/flights"
BOTH = (TopicPartition(FLIGHTS, 0), TopicPartition(FLIGHTS, 1))
NEW = TopicPartition(FLIGHTS, 2)
PARTS_V1 = {
    BOTH[0]: PartitionBatch((-1, -1), is_renewed=True),
    BOTH[1]: PartitionBatch((12, 12), is_due=True, is_renewed=True),
}
OFFSET_V1 = BrokerOffset(
    (7, 7), PARTS_V1, 1_700_000_000_000, ("_leases/s~c~5",), restored=3, is_whole=True
)
PARTS_V2 = {
    BOTH[0]: replace(PARTS_V1[BOTH[0]], aside=Aside(6, "why", ("s",))),
    BOTH[1]: replace(PARTS_V1[BOTH[1]], aside=Aside(7, "so")),
    NEW: PartitionBatch(created=("s", "r")),
}
OFFSET_V2 = replace(
    OFFSET_V1,
    parts=PARTS_V2,
    lapsed=(Lease("s", "c", 5, partitions=BOTH),),
    dispatched=4,
    partitions={FLIGHTS: 3},
    since=(4, 6),
)
OFFSET_V3 = replace(OFFSET_V2, policies={"public/default": {"policies": {"message_ttl_ms": 5}}})
OFFSET = replace(
    OFFSET_V3,
    commands=(5, 7),
    parts={
        **PARTS_V2,
        BOTH[1]: replace(
            PARTS_V2[BOTH[1]], heard=(10, 12), aside=None, again=PARTS_V2[BOTH[1]].aside
        ),
        TopicPartition(FLIGHTS, 4): PartitionBatch(is_kept=True),
        TopicPartition("persistent://public/default/gone", 0): PartitionBatch(is_gone=True),
    },
    changed=("public/default",),
    growing=(FLIGHTS,),
    is_whole=False,
)
LEASE = Lease("a/b", "c~d", 5, 60_000)


def test_an_offset_that_was_written_once_is_still_read() -> None:
    first = json.loads((GOLDEN / "broker-offset-v1.json").read_text())
    assert BrokerOffset.from_json_value(first) == OFFSET_V1
    second = json.loads((GOLDEN / "broker-offset-v2.json").read_text())
    assert BrokerOffset.from_json_value(second) == OFFSET_V2
    third = json.loads((GOLDEN / "broker-offset-v3.json").read_text())
    assert BrokerOffset.from_json_value(third) == OFFSET_V3
    text = (GOLDEN / "broker-offset-v4.json").read_text()
    assert BrokerOffset.from_json_value(json.loads(text)) == OFFSET
    assert json.dumps(OFFSET.to_json_value(), indent=1, sort_keys=True) + "\n" == text


def test_an_offset_in_dispatch_that_was_written_once_is_still_read() -> None:
    first = (GOLDEN / "broker-offset-v1.json").read_bytes()
    assert BrokerOffset.from_json(first) == OFFSET_V1
    second = (GOLDEN / "broker-offset-record-v2.json").read_bytes()
    assert BrokerOffset.from_json(second) == OFFSET_V2
    third = (GOLDEN / "broker-offset-record-v3.json").read_bytes()
    assert BrokerOffset.from_json(third) == OFFSET_V3
    data = (GOLDEN / "broker-offset-record-v4.json").read_bytes()
    assert BrokerOffset.from_json(data) == OFFSET
    assert OFFSET.to_json() == data


def test_an_offset_of_the_future_is_refused_and_a_damaged_one_says_what_to_do() -> None:
    with pytest.raises(FutureVersionError, match="has format version 5"):
        BrokerOffset.from_json_value({**OFFSET.to_json_value(), "version": 5})
    with pytest.raises(CorruptFileError, match="Delete the broker's checkpoint folder"):
        BrokerOffset.from_json_value({"version": 1})


def test_a_lease_that_was_written_once_is_still_read() -> None:
    first = (GOLDEN / "lease-v1.json").read_bytes()
    assert Lease.from_json(first) == replace(LEASE, lease_ms=30_000, partitions=BOTH)
    data = (GOLDEN / "lease-v2.json").read_bytes()
    assert Lease.from_json(data) == LEASE
    assert LEASE.to_json() == data
    assert LEASE.path == "_leases/a%2Fb~c~d~5"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"partitions": 3}'])
def test_what_is_no_lease_gives_nobody_up(data: bytes) -> None:
    assert Lease.from_json(data) is None
