"""Offsets of the broker query, and leases: versions, damage."""

from __future__ import annotations

import pytest

from pulsar_spark.connector.runtime.system_topics.broker_offset import BrokerOffset
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from tests.golden.records import BROKER_OFFSET, LEASE


def test_an_offset_of_the_future_is_refused_and_a_damaged_one_says_what_to_do() -> None:
    with pytest.raises(FutureVersionError, match="has format version 2"):
        BrokerOffset.from_json_value({**BROKER_OFFSET.to_json_value(), "version": 2})
    with pytest.raises(CorruptFileError, match="Delete the broker's checkpoint folder"):
        BrokerOffset.from_json_value({"version": 1})


def test_a_lease_lies_where_its_consumer_is_named() -> None:
    assert LEASE.path == "_leases/a%2Fb~c~d~5"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"partitions": 3}'])
def test_what_is_no_lease_gives_nobody_up(data: bytes) -> None:
    assert Lease.from_json(data) is None
