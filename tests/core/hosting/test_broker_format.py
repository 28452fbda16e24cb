"""The broker's state as shards: small, stable, versioned, and written only where it changed."""

from __future__ import annotations

import struct
from urllib.parse import unquote

import numpy as np
import pytest
from pyroaring import BitMap

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.hosting.shards import MAX_SHARD_BYTES, changed
from pulsar_spark.broker.machine.step import step
from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.errors import CorruptFileError, FutureVersionError
from pulsar_spark.model.positions.position_set import PositionSet
from tests.core.broker_samples import (
    KEY_SHARED,
    SHARED,
    TOPIC,
    entries,
    everything,
    ledger,
    report,
    subscribe,
)
from tests.golden import RECORDS


def golden() -> dict[str, bytes]:
    return {unquote(path.name): path.read_bytes() for path in (RECORDS / "broker").iterdir()}


def test_a_state_comes_back_as_it_was() -> None:
    shards = to_shards(everything())
    again = from_shards(shards)
    again.check()
    assert to_shards(again) == shards


def test_the_golden_state_goes_on() -> None:
    state = from_shards(golden())
    state.check()
    _, ready = step(state, [ledger(4, [1, 1])], 60_000)
    assert {grant.subscription for grant in ready.grants} >= {"s"}


def test_a_state_of_a_future_version_is_refused() -> None:
    shards = golden()
    shards["topic#0"] = shards["topic#0"][:4] + struct.pack("<H", 2) + shards["topic#0"][6:]
    with pytest.raises(FutureVersionError, match="has format version 2"):
        from_shards(shards)


@pytest.mark.parametrize("key", sorted(golden()))
def test_a_damaged_shard_is_named(key: str) -> None:
    shards = golden()
    shards[key] = shards[key][:-1] + bytes([shards[key][-1] ^ 1])
    with pytest.raises(
        CorruptFileError, match=key.split("#", maxsplit=1)[0].split("@", maxsplit=1)[0]
    ):
        from_shards(shards)


def test_a_missing_shard_is_named() -> None:
    shards = golden()
    del shards["ledgers/0#0"]
    with pytest.raises(CorruptFileError, match="ledgers/0#0 is damaged: it is missing"):
        from_shards(shards)


def test_bytes_that_are_no_shard_are_refused() -> None:
    with pytest.raises(CorruptFileError, match="PLBS"):
        from_shards({"topic#0": b"something else"})


def test_a_million_holes_take_less_than_300_kilobytes_and_a_change_writes_one_part() -> None:
    lots = np.random.default_rng(7)
    holes = PositionSet({0: BitMap(lots.permutation(2_000_000)[:1_000_000].astype(np.uint32))})
    state = BrokerState(TOPIC)
    state, _ = step(state, [ledger(0, [1] * 1), ledger(1, [1])], 0)
    big = ledger(2, [])
    object.__setattr__(big.ledger, "batch_sizes", type(big.ledger.batch_sizes)(((1, 2_000_000),)))
    holes = PositionSet({2: holes.whole_entries(0)})
    state, _ = step(state, [big, subscribe("a"), report("a", holes)], 1)
    before = to_shards(state)
    assert sum(map(len, before.values())) < 300_000
    assert max(map(len, before.values())) <= MAX_SHARD_BYTES
    missing = next(i for i in range(1_500_000, 2_000_000) if i not in holes.whole_entries(2))
    state, _ = step(state, [report("a", entries(2, missing), sequence=9)], 2)
    written, deleted = changed(before, to_shards(state))
    assert not deleted
    parts = [key for key in written if "cursor@" in key]
    assert len(parts) == 1
    assert sum(map(len, written.values())) < 80_000
    assert to_shards(from_shards(to_shards(state))) == to_shards(state)


def test_any_number_of_holes_survives_a_reopening() -> None:
    odd = entries(0, *range(1, 50_000, 2))
    state, _ = step(BrokerState(TOPIC), [ledger(0, [1] * 50_000), subscribe("a", permits=0)], 0)
    state, _ = step(state, [report("a", odd)], 1)
    again = from_shards(to_shards(state))
    again.check()
    cursor = again.subscriptions["s"].cursor
    assert cursor.individually_deleted == odd
    left = cursor.not_acknowledged(entries(0, *range(50_000)))
    assert left == entries(0, *range(0, 50_000, 2)), "the others, and they alone, come again"


def test_acknowledged_batch_indexes_survive_a_reopening() -> None:
    some = PositionSet.of_batch((0, 1), 10, 0b0000010001)
    state, _ = step(BrokerState(TOPIC), [ledger(0, [10] * 2), subscribe("a", permits=0)], 0)
    state, _ = step(state, [report("a", some)], 1)
    again = from_shards(to_shards(state))
    again.check()
    assert again.subscriptions["s"].cursor.individually_deleted == some


def test_many_parts_of_batches_are_cut_too() -> None:
    sizes = [40] * 20_000
    state, _ = step(BrokerState(TOPIC), [ledger(0, sizes), subscribe("a", permits=0)], 0)
    parts = {entry_id: 1 << 40 | (entry_id * 7_919 & 0xFFFFFFFF) + 1 for entry_id in range(20_000)}
    state, _ = step(state, [report("a", PositionSet(parts={0: parts}))], 1)
    shards = to_shards(state)
    assert max(map(len, shards.values())) <= MAX_SHARD_BYTES
    assert from_shards(shards).subscriptions["s"].cursor == state.subscriptions["s"].cursor


def test_columns_are_written_once() -> None:
    lots = np.random.default_rng(7)
    hashes = lots.integers(0, 2**31, 60_000)
    state, _ = step(
        BrokerState(TOPIC, -1, TopicPolicies()),
        [ledger(0, [1] * 60_000, sticky_key_hashes=hashes), subscribe("a", KEY_SHARED, permits=9)],
        0,
    )
    before = to_shards(state)
    assert sum(key.startswith("columns/0/") for key in before) > 1
    state, _ = step(state, [report("a", entries(0, 0))], 1)
    written, _ = changed(before, to_shards(state))
    assert not any(key.startswith("columns") for key in written)
    kept = from_shards(before).columns[0].sticky_key_hashes
    assert kept is not None
    assert np.array_equal(kept, hashes)


def test_a_step_leaves_the_state_that_it_was_given_as_it_was() -> None:
    state, _ = step(BrokerState(TOPIC), [ledger(0, [1] * 5), subscribe("a", SHARED)], 0)
    before = to_shards(state)
    step(state, [report("a", entries(0, 1, 2)), ledger(1, [1]), subscribe("b", SHARED)], 1)
    assert to_shards(state) == before
