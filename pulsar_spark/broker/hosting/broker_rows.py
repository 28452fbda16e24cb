"""The rows of a hosted broker, in and out: a batch's share of one topic partition.

Invariants: rows have their place (`phase`, `place`, `row`), since Spark promises no order within a
key, and the host sorts by it; a batch's rows carry one `now_ms`; columns of a ledger travel as the
bytes of their arrays, never as rows of their own. All hosts speak these rows: Spark's state store,
and the broker embedded in a process.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.broker.protocol import wire_format
from pulsar_spark.broker.protocol.commands import Command, Compacted, LedgerAdded
from pulsar_spark.log.compacted_ledgers import CompactedLedgers
from pulsar_spark.log.ledger_commit import ledger_from_json, ledger_to_json
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerInfo
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.records.stored_data import parse_json


class Phase(IntEnum):
    """The order in which rows are taken in."""

    RESTORED = 0
    LOG = 1
    CREATED = 2
    COMMANDS = 3
    LEASES = 4
    TICK = 5
    HAPPENED = 6
    """No input: where the batch has happened already, the state with which it ended."""


SHARD: Final = "shard"
LEDGER: Final = "ledger"
COMMAND: Final = "command"
COMPACTED: Final = "compacted"
TICK: Final = "tick"
SNAPSHOT: Final = "snapshot"
FAILED: Final = "failed"
QUARANTINED: Final = "quarantined"
DISPATCH: Final = "dispatch"
REPUBLICATION: Final = "republication"
TRIM: Final = "trim"
QUOTA: Final = "quota"
OFFSET: Final = "offset"


class InputRow(NamedTuple):
    """One row for the broker of (topic, partition). `text` is a shard's key, or an error."""

    topic: str
    partition: int
    phase: int
    place: int
    row: int
    kind: str
    now_ms: int
    text: str = ""
    data: bytes = b""
    sticky_key_hashes: bytes | None = None
    deliver_at_ms: bytes | None = None
    publish_times_ms: bytes | None = None


class OutputRow(NamedTuple):
    """One row of a step's effects. `text` is a subscription, or a shard's key.

    ASIDE: there was no step; its data say why. QUOTA: of a topic that has one; its data are null,
    or say that it is exceeded, as `[used, limit, is_size]`.
    """

    topic: str
    partition: int
    kind: str
    text: str = ""
    data: bytes = b""


OUTPUT_DDL: Final = "topic string, partition int, kind string, text string, data binary"


def ledger_data(ledger: LedgerInfo, hidden: Any) -> bytes:
    """`data` of a LEDGER row; `hidden` is the JSON of a commit's position set."""
    published_ms = ledger.max_publish_time_ms
    value = {"ledger": ledger_to_json(ledger), "published_at_ms": published_ms, "hidden": hidden}
    return json.dumps(value).encode()


def command_of(row: InputRow) -> Command:
    """The command that a LEDGER, COMPACTED or COMMAND row carries."""
    if row.kind == COMPACTED:
        return Compacted(CompactedLedgers.from_json_value(parse_json(row.data)))
    if row.kind != LEDGER:
        return cast("Command", wire_format.decode(row.data))
    value = parse_json(row.data)
    hidden = value["hidden"]
    return LedgerAdded(
        ledger_from_json(value["ledger"]),
        value["published_at_ms"],
        _array(row.sticky_key_hashes, np.int32),
        _array(row.deliver_at_ms, np.int64),
        _array(row.publish_times_ms, np.int64),
        PositionSet() if hidden is None else Cursor.from_json_value(hidden).individually_deleted,
    )


def _array(data: bytes | None, kind: type[Any]) -> NDArray[Any] | None:
    return None if data is None else np.frombuffer(data, kind)
