"""The golden records that lie in no topic's folder, as values, and how each is written and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from pulsar_spark.broker.hosting.broker_format import from_shards, to_shards
from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.runtime.broker.broker_heartbeat import HEARTBEAT_FORMAT
from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    BrokerOffset,
    PartitionBatch,
    Quarantined,
)
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.consumer.stream_offset import PartitionOffset, StreamOffset
from pulsar_spark.consumer.suspect_messages import SuspectGroup, SuspectMessages
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from tests.core.broker.test_compacted_topics import compacted_state
from tests.core.broker_samples import everything
from tests.core.planning.test_stream_offset import (
    golden_consumer_offset,
    golden_made_again,
    golden_offset,
)
from tests.core.positions.test_cursor import some_cursor
from tests.core.protocol.test_wire_format import ITEMS

FLIGHTS: Final = "persistent://public/default/flights"
BOTH: Final = (TopicPartition(FLIGHTS, 0), TopicPartition(FLIGHTS, 1))
BROKER_OFFSET: Final = BrokerOffset(
    commands=(5, 7),
    parts={
        BOTH[0]: PartitionBatch(
            (-1, -1), is_renewed=True, quarantined=Quarantined(6, "why", ("s",))
        ),
        BOTH[1]: PartitionBatch((10, 12), is_due=True, is_renewed=True, again=Quarantined(7, "so")),
        TopicPartition(FLIGHTS, 2): PartitionBatch(created=("s", "r")),
        TopicPartition(FLIGHTS, 4): PartitionBatch(is_kept=True),
        TopicPartition("persistent://public/default/gone", 0): PartitionBatch(is_gone=True),
    },
    now_ms=1_700_000_000_000,
    lapsed=(Lease("s", "c", 5, partitions=BOTH),),
    restored=3,
    dispatched=4,
    partitions={FLIGHTS: 3},
    policies={"public/default": {"policies": {"message_ttl_ms": 5}}},
    changed=("public/default",),
    growing=(FLIGHTS,),
    since=(4, 6),
)
LEASE: Final = Lease("a/b", "c~d", 5, 60_000)
HEARTBEAT: Final = {"holds_ms": 10_000, "host": "machine", "id": "7" * 32, "process": 7}
SOME: Final = PositionSet.of([(1, 2), (1, 4)]).union(PositionSet.of_batch((5, 0), 10, 0b1010))
SUSPECTS: Final = SuspectMessages(
    SuspectGroup(4, {(BOTH[0], 0): SOME, (BOTH[0], 3): PositionSet.of([(9, 9)])}),
    (SuspectGroup(5, {(BOTH[0], 1): PositionSet.of([(2, 2)])}),),
    {BOTH[0]: PositionSet.of([(7, 7)])},
    6,
)


class GoldenRecord(NamedTuple):
    """A value, the bytes that it is stored as, and the value of such bytes."""

    value: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def _as_json(write: Callable[[Any], Any], read: Callable[[Any], Any], value: Any) -> GoldenRecord:
    """A value of which only the JSON is ours: Spark stores it, or another record has it."""
    return GoldenRecord(
        value, lambda item: json.dumps(write(item)).encode(), lambda data: read(json.loads(data))
    )


def _stream_offset(value: StreamOffset) -> GoldenRecord:
    return _as_json(StreamOffset.to_json_value, StreamOffset.from_json_value, value)


RECORDS_BY_NAME: Final[Mapping[str, GoldenRecord]] = {
    "broker-offset.json": GoldenRecord(BROKER_OFFSET, BrokerOffset.to_json, BrokerOffset.from_json),
    "broker-offset-in-spark.json": _as_json(
        BrokerOffset.to_json_value, BrokerOffset.from_json_value, BROKER_OFFSET
    ),
    "cursor.bin": GoldenRecord(some_cursor, Cursor.to_bytes, Cursor.from_bytes),
    "cursor.json": _as_json(Cursor.to_json_value, Cursor.from_json_value, some_cursor),
    "heartbeat.json": GoldenRecord(HEARTBEAT, HEARTBEAT_FORMAT.encode, HEARTBEAT_FORMAT.decode),
    "lease.json": GoldenRecord(LEASE, Lease.to_json, Lease.from_json),
    "offset.json": _stream_offset(golden_offset()),
    "offset-consumer.json": _stream_offset(golden_consumer_offset()),
    "offset-initial.json": _stream_offset(StreamOffset(None)),
    "offset-made-again.json": _stream_offset(golden_made_again()),
    "withheld.json": GoldenRecord(SUSPECTS, SuspectMessages.to_json, SuspectMessages.from_json),
    "wire.jsonl": GoldenRecord(
        [*ITEMS],
        lambda items: b"".join(wire_format.encode(each) + b"\n" for each in items),
        lambda data: [wire_format.decode(line) for line in data.splitlines()],
    ),
}
"""The records, by their files below `v1/records`."""

STATES: Final[Mapping[str, Callable[[], BrokerState]]] = {
    "broker": everything, "broker-compacted": compacted_state,
}  # fmt: skip
"""The states of brokers, by their folders there: each has a file for each shard."""


def shard_files(state: BrokerState) -> dict[str, bytes]:
    """The shards of a broker's state, by the names of their files."""
    return {quote(key, safe=""): data for key, data in to_shards(state).items()}


def state_of(files: Mapping[str, bytes]) -> BrokerState:
    """The state whose shards these files are."""
    return from_shards({unquote(name): data for name, data in files.items()})


def later_offset(whole: StreamOffset) -> StreamOffset:
    """A consumer's next offset: of another run, with one more topic, which was made again."""
    again = TopicPartition("persistent://public/default/made-again", 0)
    planned = PartitionOffset.beginning(Cursor(Position(2, 7)))
    return replace(
        whole.with_changes({again: planned}), incarnation=1_795_000_001, incarnations={again[0]: 3}
    )
