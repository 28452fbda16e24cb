"""Delayed messages as shards, and back; and sets by number, such as instant or attempt.

Invariants: few buckets stand readable in the topic's value; many are packed, a shard for each
group of time, so that what comes due rewrites the first one only. Packed are the columns of
(ledger, entry, time), sorted and as differences, bytes of one order of magnitude together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pulsar_spark.hosting.shards import ShardReader, ShardWriter
from pulsar_spark.positions.position_map import PositionMap
from pulsar_spark.positions.position_set import NOTHING, PositionSet
from pulsar_spark.subscriptions.delayed_delivery import DelayedDeliveryTracker
from pulsar_spark.subscriptions.delayed_messages import DelayedMessages, FarMessages

READABLE_BUCKETS: Final = 64


def sets_value(writer: ShardWriter, key: str, sets: Mapping[int, PositionSet]) -> list[Any]:
    return [[number, writer.put_set(f"{key}/{number}", sets[number])] for number in sorted(sets)]


def sets_from(reader: ShardReader, key: str, value: list[Any]) -> PositionMap:
    return PositionMap({number: reader.set(f"{key}/{number}", each) for number, each in value})


def delayed_value(writer: ShardWriter, delayed: DelayedMessages) -> dict[str, Any]:
    """Its part of the topic's value; what is not there is not written."""
    near = delayed.near
    value: dict[str, Any] = {
        "delayed_highest_ms": near.highest_delivery_time_ms,
        "delayed_fixed": near.messages_have_fixed_delay,
    }
    buckets = near.buckets
    if len(buckets) > READABLE_BUCKETS:
        _put(writer, "delayed/near", _rows_of(buckets))
        value["delayed_near"] = True
        parts = {time: _parts_of(held) for time, held in buckets.items()}
        buckets = {time: held for time, held in parts.items() if held}
    value["delayed"] = sets_value(writer, "delayed", buckets)
    for group, held in delayed.far.items():
        _put(writer, f"delayed/far/{group}", held)
    return value | ({"delayed_far": sorted(delayed.far)} if delayed.far else {})


def delayed_from(reader: ShardReader, value: Mapping[str, Any]) -> DelayedMessages:
    """Read `delayed_value`."""
    buckets = dict(sets_from(reader, "delayed", value["delayed"]))
    if "delayed_near" in value:
        for time, held in _get(reader, "delayed/near").by_time():
            buckets[time] = buckets.get(time, NOTHING).union(held)
    near = DelayedDeliveryTracker(
        value["policies"]["delayed_delivery_tick_ms"],
        buckets=buckets,
        number_of_delayed_messages=sum(
            each.whole_entry_count() + each.partial_entry_count() for each in buckets.values()
        ),
        highest_delivery_time_ms=value["delayed_highest_ms"],
        messages_have_fixed_delay=value["delayed_fixed"],
        _times=tuple(sorted(buckets)),
    )
    far = {group: _get(reader, f"delayed/far/{group}") for group in value.get("delayed_far", ())}
    return DelayedMessages.of(near, far)


# -- inside --------------------------------------------------------------------------------------


def _put(writer: ShardWriter, key: str, held: FarMessages) -> None:
    order = np.lexsort((held.entry_ids, held.ledger_ids))
    rows = np.diff(np.stack(held)[:, order], prepend=0, axis=1)
    data = np.ascontiguousarray(rows, "<i8").view(np.uint8).reshape(-1, 8)
    writer.put_array(key, np.frombuffer(data.T.tobytes(), "<i8"))


def _get(reader: ShardReader, key: str) -> FarMessages:
    data = np.frombuffer(reader.array(key).astype("<i8").tobytes(), np.uint8)
    rows = np.ascontiguousarray(data.reshape(8, -1).T).view("<i8").reshape(3, -1)
    return FarMessages(*np.cumsum(rows.astype(np.int64), axis=1))


def _rows_of(buckets: Mapping[int, PositionSet]) -> FarMessages:
    """The whole entries of all buckets, with the time of their bucket."""
    rows: list[tuple[int, int, int]] = []
    for time, held in buckets.items():
        for ledger_id in held.ledger_ids:
            rows += [(ledger_id, entry_id, time) for entry_id in held.whole_entries(ledger_id)]
    return FarMessages(*np.array(rows, np.int64).reshape(-1, 3).T)


def _parts_of(held: PositionSet) -> PositionSet:
    return PositionSet(parts={each: held.partial_entries(each) for each in held.ledger_ids})
