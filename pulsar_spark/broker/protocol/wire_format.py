"""Commands and the broker's answers, as the bytes in the system topics.

Invariants: every written value is read back equal; each has a version and a checksum, and a newer
version is refused; message sets travel as serialised cursors, never as rows for each message.
JSON outside, so that a stranger can read it; stands for Pulsar's `PulsarApi.proto`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from pulsar_spark import errors
from pulsar_spark.broker.protocol import commands, policies, ready
from pulsar_spark.broker.protocol.policies import MultiplierRedeliveryBackoff
from pulsar_spark.broker.protocol.ready import Stepped
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.records.stored_record import StoredFormat

WIRE_FORMAT: Final = StoredFormat(
    "A message of a system topic",
    checked=True,
    remedy="Restore the topic's files from a copy.",
)

_CLASSES: Final[dict[str, type]] = {
    each.__name__: each
    for each in (
        commands.Subscribe, commands.CreateSubscription, commands.CloseConsumer,
        commands.LeaseLapsed, commands.Unsubscribe, commands.Seek, commands.Rejection,
        commands.ReconsumeLater, commands.Report, commands.RedeliverUnacknowledgedMessages,
        commands.SetPolicies, commands.LedgersTrimmed, commands.TopicDeleted, commands.TopicMade,
        commands.LogIdentified, commands.SkipMessages,
        policies.KeySharedPolicy, policies.DeadLetterPolicy, policies.ConsumerOptions,
        policies.TopicPolicies, MultiplierRedeliveryBackoff,
        ready.Republication, ready.Reply, ready.EpochBegan, ready.Revoke, ready.Grant,
        ready.OpenGrant,
        ready.Acknowledged, ready.BacklogQuotaExceeded, Stepped,
    )
}  # fmt: skip
_ENUMS: Final[dict[str, type[Enum]]] = {
    each.__name__: each
    for each in (
        commands.SubscriptionType, commands.InitialPosition, policies.BacklogQuotaPolicy,
        policies.KeySharedMode, errors.ServerError,
    )
}  # fmt: skip


def encode(item: Any) -> bytes:
    """The bytes of a command, or of an item of `Ready`. TypeError for anything else."""
    if type(item).__name__ not in _CLASSES:
        raise TypeError(f"{type(item).__name__} does not travel in a system topic")
    return WIRE_FORMAT.encode(_value(item))


def decode(data: bytes) -> Any:
    """Read `encode`. CorruptFileError, or FutureVersionError if a newer one wrote it."""
    value = WIRE_FORMAT.decode(data)
    try:
        return _item(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WIRE_FORMAT.damaged("", repr(error)) from error


def _value(item: Any) -> Any:
    """The JSON value; without a form in JSON, an object with one key that begins with `$`."""
    if item is None or type(item) in (bool, int, float, str):
        return item
    if isinstance(item, Position):
        return {"$position": str(item)}
    if isinstance(item, PositionSet):
        messages = Cursor(individually_deleted=item).to_bytes()
        return {"$messages": base64.b64encode(messages).decode()}
    if isinstance(item, Cursor):
        return {"$cursor": base64.b64encode(item.to_bytes()).decode()}
    if isinstance(item, Enum):
        return {"$enum": [type(item).__name__, item.value]}
    if isinstance(item, Mapping):
        return {"$map": [[_value(key), _value(each)] for key, each in item.items()]}
    if isinstance(item, tuple | list | frozenset):
        return [_value(each) for each in item]
    if is_dataclass(item) and type(item).__name__ in _CLASSES:
        held = {each.name: getattr(item, each.name) for each in fields(item)}
        return {"$": type(item).__name__, **{name: _value(each) for name, each in held.items()}}
    raise TypeError(f"{type(item).__name__} does not travel in a system topic")


def _item(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_item(each) for each in value)
    if not isinstance(value, dict):
        return value
    if "$" in value:
        held = {name: _item(each) for name, each in value.items() if name != "$"}
        return _CLASSES[value["$"]](**held)
    (kind, inner), *rest = value.items()
    if rest:
        raise ValueError(f"an object of {sorted(value)}")
    if kind == "$position":
        return Position.parse(inner)
    if kind in ("$messages", "$cursor"):
        cursor = Cursor.from_bytes(base64.b64decode(inner, validate=True))
        return cursor if kind == "$cursor" else cursor.individually_deleted
    if kind == "$enum":
        return _ENUMS[inner[0]](inner[1])
    if kind == "$map":
        return {_item(key): _item(each) for key, each in inner}
    raise ValueError(f"an object of {kind}")
