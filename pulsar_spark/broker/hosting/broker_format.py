"""The broker's state as shards, and back.

Invariants: equal states give equal shards; a state steps alike before and after its way through
shards; each field of the state has the form that `_FORMS` names for its type; small values
stand in one shard a subscription, large sets and delayed messages in shards of their own, columns
that never change in shards that are written once.
The form is versioned by `shards`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from itertools import compress
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, get_args, get_type_hints
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.broker.hosting.shards import ShardReader, ShardWriter, packed_array
from pulsar_spark.broker.protocol import commands, policies
from pulsar_spark.broker.selectors.failover_selector import FailoverSelector
from pulsar_spark.broker.selectors.shared_dispatch import SharedDispatch
from pulsar_spark.broker.selectors.sticky_key_selector import (
    AutoSplitSelector,
    ConsistentHashingSelector,
    StickyKeySelector,
    StickyRangeSelector,
)
from pulsar_spark.broker.subscriptions.breaker import Breaker
from pulsar_spark.broker.subscriptions.broker_state import BrokerState, Compaction, LedgerColumns
from pulsar_spark.broker.subscriptions.consumer import Consumer
from pulsar_spark.broker.subscriptions.delayed_messages import (
    BATCH_INDEX,
    COLUMNS,
    ENTRY,
    LEDGER,
    DelayedGroup,
    DelayedMessages,
    Rows,
)
from pulsar_spark.broker.subscriptions.delivery_counts import DeliveryCounts
from pulsar_spark.broker.subscriptions.redelivery_tracker import RedeliveryTracker
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.errors import CorruptFileError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import BatchSizes, LedgerInfo, LedgerList
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_map import PositionMap
from pulsar_spark.model.positions.position_set import PositionSet

LEDGERS_A_BLOCK: Final = 256
_SELECTORS: Final[dict[str, Any]] = {
    "auto_split": AutoSplitSelector,
    "consistent_hashing": ConsistentHashingSelector,
    "sticky_range": StickyRangeSelector,
}
_COLUMNS: Final = ("sticky_key_hashes", "publish_times_ms")


def to_shards(state: BrokerState) -> dict[str, bytes]:
    """Key -> shard, each of at most `shards.MAX_SHARD_BYTES`."""
    writer = ShardWriter(state.shards)
    blocks = _write_ledgers(writer, state)
    hidden = writer.put_set("hidden", state.hidden)
    topic = {**_write(writer, "", state), "hidden": hidden, "blocks": blocks}
    writer.put_value("topic", topic)
    state.shards = writer.made
    return writer.shards


def from_shards(shards: Mapping[str, bytes], *, columns: bool = True) -> BrokerState:
    """Read `to_shards`. CorruptFileError, or FutureVersionError if a newer one wrote it.

    Without `columns` the ledgers lack their messages' hashes and times: to look at, not to step.
    """
    reader = ShardReader(shards)
    try:
        value = reader.value("topic")
        state: BrokerState = _read(BrokerState, reader, "", value)
        _read_ledgers(reader, state, value["blocks"], columns=columns)
        state.hide(reader.set("hidden", value["hidden"]))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise CorruptFileError(f"the broker's state is damaged: {error!r}") from error
    return state


# -- forms ---------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """The stored form of values of one type: as JSON, and large ones in shards under a key.

    None is null, whatever the type.
    """

    write: Callable[[ShardWriter, str, Any], Any]
    read: Callable[[ShardReader, str, Any], Any]


def _json(write: Callable[[Any], Any], read: Callable[[Any], Any]) -> _Form:
    """The form of values that need no shards."""
    return _Form(lambda _writer, _key, item: write(item), lambda _reader, _key, value: read(value))


def _dataclass(kind: type) -> _Form:
    """The form of a dataclass in a field, whose shards lie beside the field's."""
    return _Form(
        lambda writer, key, item: _write(writer, _folder(key), item),
        lambda reader, key, value: _read(kind, reader, _folder(key), value),
    )


def _write(writer: ShardWriter, folder: str, item: Any) -> dict[str, Any]:
    kind: type = type(item)
    value = {}
    for name, form in _forms_of(kind).items():
        held = getattr(item, name)
        value[name] = None if held is None else form.write(writer, folder + name, held)
    return value


def _read(kind: type, reader: ShardReader, folder: str, value: Mapping[str, Any]) -> Any:
    held = {}
    for name, form in _forms_of(kind).items():
        stored = value[name]
        held[name] = None if stored is None else form.read(reader, folder + name, stored)
    return kind(**held)


@cache
def _forms_of(kind: type) -> dict[str, _Form]:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind) if each.name not in _APART]
    return {name: _FORMS[_without_none(hints[name])] for name in names}


def _without_none(hint: Any) -> Any:
    if not isinstance(hint, UnionType):
        return hint
    (kind,) = set(get_args(hint)) - {NoneType}
    return kind


def _folder(key: str) -> str:
    return key[: key.rfind("/") + 1]


# -- sets and cursors ----------------------------------------------------------------------------


def _write_sets(writer: ShardWriter, key: str, sets: PositionMap) -> list[Any]:
    return [[number, writer.put_set(f"{key}/{number}", held)] for number, held in sets.items()]


def _read_sets(reader: ShardReader, key: str, value: list[Any]) -> PositionMap:
    return PositionMap({number: reader.set(f"{key}/{number}", each) for number, each in value})


def _write_cursor(writer: ShardWriter, key: str, cursor: Cursor) -> list[Any]:
    return [str(cursor.mark_delete_position), writer.put_set(key, cursor.individually_deleted)]


def _read_cursor(reader: ShardReader, key: str, value: list[Any]) -> Cursor:
    return Cursor(Position.parse(value[0]), reader.set(key, value[1]))


# -- ledgers -------------------------------------------------------------------------------------


def _write_ledgers(writer: ShardWriter, state: BrokerState) -> list[int]:
    """The numbers of the blocks in which the ledgers lie."""
    blocks: dict[int, list[Any]] = {}
    for ledger in state.ledgers:
        block = blocks.setdefault(ledger.ledger_id // LEDGERS_A_BLOCK, [])
        block += ledger, state.columns[ledger.ledger_id]
    made = [
        writer.put_made(key := f"ledgers/{block}", held, partial(_block, key, held))
        for block, held in blocks.items()
    ]
    writer.put_made("columns", made, partial(_columns, state))
    return sorted(blocks)


def _block(key: str, held: list[Any]) -> dict[str, bytes]:
    """The shards of some ledgers, each followed by its columns."""
    writer, values = ShardWriter(), []
    for ledger, columns in zip(held[::2], held[1::2], strict=True):
        values.append([*_ledger_value(ledger), columns.published_at_ms])
        for name in compress(_COLUMNS, _exists(columns)):
            if name not in columns.packed:
                columns.packed[name] = packed_array(getattr(columns, name))
            writer.put_bytes(f"columns/{ledger.ledger_id}/{name}", columns.packed[name])
    writer.put_value(key, values)
    return writer.shards


def _columns(state: BrokerState) -> dict[str, bytes]:
    """The shards that say which ledgers have which columns."""
    writer = ShardWriter()
    present = {str(each): _exists(columns) for each, columns in state.columns.items()}
    writer.put_value("columns", {each: there for each, there in present.items() if any(there)})
    return writer.shards


def _exists(columns: LedgerColumns) -> tuple[bool, bool]:
    return columns.sticky_key_hashes is not None, columns.publish_times_ms is not None


def _read_ledgers(
    reader: ShardReader, state: BrokerState, blocks: list[int], *, columns: bool
) -> None:
    present = reader.value("columns") if columns else {}
    ledgers = [each for block in blocks for each in reader.value(f"ledgers/{block}")]
    state.ledgers = LedgerList(_ledger(value) for *value, _ in ledgers)
    for ledger_id, *_, published_at_ms in ledgers:
        there = compress(_COLUMNS, present.get(str(ledger_id), ()))
        keys = {name: f"columns/{ledger_id}/{name}" for name in there}
        arrays: dict[str, Any] = {name: reader.array(key) for name, key in keys.items()}
        packed = {name: reader.packed(key) for name, key in keys.items()}
        state.columns[ledger_id] = LedgerColumns(published_at_ms, **arrays, packed=packed)


def _ledger_value(ledger: LedgerInfo) -> list[Any]:
    return [
        ledger.ledger_id, ledger.partition, ledger.file, ledger.first_row,
        ledger.batch_sizes.to_json(), ledger.size_bytes, ledger.min_publish_time_ms,
        ledger.max_publish_time_ms, ledger.max_deliver_at_ms,
    ]  # fmt: skip


def _ledger(value: list[Any]) -> LedgerInfo:
    ledger_id, partition, file, first_row, sizes, *rest = value
    return LedgerInfo(ledger_id, partition, file, first_row, BatchSizes.from_json(sizes), *rest)


# -- delayed messages ----------------------------------------------------------------------------


def _write_delayed(writer: ShardWriter, key: str, delayed: DelayedMessages) -> list[int]:
    """The groups' numbers. What comes due rewrites the groups that it lay in."""
    for number, group in delayed.groups.items():
        if group.packed is None:
            rows = group.rows[:, np.lexsort(group.rows[[BATCH_INDEX, ENTRY, LEDGER]])]
            group.packed = packed_array(_as_planes(rows))
        writer.put_bytes(f"{key}/{number}", group.packed)
    return sorted(delayed.groups)


def _read_delayed(reader: ShardReader, key: str, value: list[int]) -> DelayedMessages:
    groups = {}
    for number in value:
        groups[number] = DelayedGroup(_from_planes(reader.array(f"{key}/{number}"), COLUMNS))
        groups[number].packed = reader.packed(f"{key}/{number}")
    return DelayedMessages.of(groups)


def _as_planes(rows: Rows) -> NDArray[np.int64]:
    """The differences along each column, bytes of one order of magnitude together."""
    differences = np.ascontiguousarray(np.diff(rows, prepend=0, axis=1), "<i8")
    return np.frombuffer(differences.view(np.uint8).reshape(-1, 8).T.tobytes(), "<i8")


def _from_planes(planes: NDArray[Any], columns: int) -> Rows:
    data = np.frombuffer(planes.astype("<i8").tobytes(), np.uint8).reshape(8, -1)
    differences = np.ascontiguousarray(data.T).view("<i8").reshape(columns, -1)
    return np.cumsum(differences, axis=1, dtype=np.int64)


# -- subscriptions and consumers -----------------------------------------------------------------


def _write_subscriptions(
    writer: ShardWriter, _key: str, subscriptions: Mapping[str, Subscription]
) -> list[str]:
    for name, each in subscriptions.items():
        key = f"subscription/{quote(name, safe='')}"
        writer.put_value(key, _write(writer, f"{key}/", each))
    return list(subscriptions)


def _read_subscriptions(
    reader: ShardReader, _key: str, names: list[str]
) -> dict[str, Subscription]:
    keys = {name: f"subscription/{quote(name, safe='')}" for name in names}
    return {
        name: _read(Subscription, reader, f"{key}/", reader.value(key))
        for name, key in keys.items()
    }


def _write_consumers(
    writer: ShardWriter, key: str, consumers: Mapping[str, Consumer]
) -> list[dict[str, Any]]:
    return [_write(writer, _consumer_folder(key, name), each) for name, each in consumers.items()]


def _read_consumers(
    reader: ShardReader, key: str, values: list[dict[str, Any]]
) -> dict[str, Consumer]:
    return {
        each["name"]: _read(Consumer, reader, _consumer_folder(key, each["name"]), each)
        for each in values
    }


def _consumer_folder(key: str, name: str) -> str:
    return f"{_folder(key)}consumer/{quote(name, safe='')}/"


def _selector_value(selector: StickyKeySelector) -> list[Any]:
    kind = next(name for name, each in _SELECTORS.items() if isinstance(selector, each))
    return [kind, selector.to_json_value()]


# -- the table -----------------------------------------------------------------------------------

_APART: Final = {"ledgers", "columns", "fresh", "shards"}
"""Fields of `BrokerState` that lie together in blocks, one that is empty between two steps, and one
that is made of the others."""

_PLAIN: Final = _json(lambda item: item, lambda value: value)

_FORMS: Final[dict[Any, _Form]] = {
    bool: _PLAIN,
    int: _PLAIN,
    float: _PLAIN,
    str: _PLAIN,
    dict[str, int]: _json(lambda item: list(item.items()), dict),
    frozenset[int]: _json(sorted, frozenset),
    tuple[tuple[int, int], ...]: _json(list, lambda value: tuple(map(tuple, value))),
    Position: _json(list, lambda value: Position(*value)),
    PositionSet: _Form(
        lambda writer, key, item: writer.put_set(key, item),
        lambda reader, key, value: reader.set(key, value),
    ),
    PositionMap: _Form(_write_sets, _read_sets),
    Cursor: _Form(_write_cursor, _read_cursor),
    StickyKeySelector: _json(
        _selector_value, lambda value: _SELECTORS[value[0]].from_json_value(value[1])
    ),
    DelayedMessages: _Form(_write_delayed, _read_delayed),
    dict[str, Consumer]: _Form(_write_consumers, _read_consumers),
    dict[str, Subscription]: _Form(_write_subscriptions, _read_subscriptions),
    **{
        kind: _json(kind.to_json_value, kind.from_json_value)
        for kind in (FailoverSelector, SharedDispatch)
    },
    **{
        kind: _json(attrgetter("value"), kind)
        for kind in (
            commands.SubscriptionType, policies.KeySharedMode, policies.BacklogQuotaPolicy,
        )
    },
    **{
        kind: _dataclass(kind)
        for kind in (
            policies.TopicPolicies, policies.ConsumerOptions, policies.KeySharedPolicy,
            policies.DeadLetterPolicy, policies.MultiplierRedeliveryBackoff, Compaction,
            RedeliveryTracker, Breaker, DeliveryCounts,
        )
    },
}  # fmt: skip
"""The form of each type that a field has."""
