"""The effects of a step: everything the host must do after it, and nothing else.

Invariants: the fields of `Ready` stand in the order in which the host must do them; a step that
is run again on the same state gives an equal `Ready`, so a host that does things once for each
step, however often it crashed in between, does them once. A consumer takes in all items of a step
together: with half of its grants it might deliver a key out of order. After etcd raft's `Ready`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsar_spark.errors import ServerError
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.position import Position
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.protocol.policies import BacklogQuotaPolicy


@dataclass(frozen=True, slots=True)
class Letter:
    """Messages to copy to another topic: dead letters, or retries with their deliver-at.

    `properties` are set on each copy; REAL_TOPIC, REAL_SUBSCRIPTION and ORIGIN_MESSAGE_ID only
    where the message does not have them yet (see `dead_letter.letter_properties`).
    """

    topic: str
    subscription: str
    messages: PositionSet
    properties: tuple[tuple[str, str], ...] = ()
    deliver_at_ms: int | None = None
    initial_subscription: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. With an error, nothing of that request was done."""

    consumer: str
    subscription: str = ""
    incarnation: int = 0
    request_id: int | None = None
    error: ServerError | None = None
    message: str = ""
    epoch: int = 0
    origin: Cursor | None = None
    """To a Subscribe: the cursor at which the epoch begins for this consumer."""
    newest: int = -1
    """With CONSUMER_REPLACED: the highest known incarnation of the consumer."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A seek: grants of earlier epochs are void, and reports of them are dropped."""

    subscription: str
    epoch: int
    origin: Cursor


@dataclass(frozen=True, slots=True)
class Revoke:
    """The consumer must give back undelivered messages, and say so in a report.

    `messages` None: its open grant and all else. Its next report carries `revision`.
    """

    subscription: str
    consumer: str
    incarnation: int
    epoch: int
    revision: int
    messages: PositionSet | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """The consumer may read these messages, at this attempt."""

    subscription: str
    consumer: str
    incarnation: int
    epoch: int
    attempt: int
    messages: PositionSet
    redelivery_count: int = 0
    again: bool = False
    """Whether it repeats a grant, in answer to a Subscribe."""


@dataclass(frozen=True, slots=True)
class OpenGrant:
    """The consumer may read everything that `after` does not hold, until it is revoked."""

    subscription: str
    consumer: str
    incarnation: int
    epoch: int
    attempt: int
    after: Cursor
    redelivery_counts: Mapping[int, PositionSet] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A subscription's mark-delete position moved: offsets may forget what lies below it."""

    subscription: str
    epoch: int
    mark_delete_position: Position


@dataclass(frozen=True, slots=True)
class BacklogQuotaExceeded:
    """Producers are to be refused, or a backlog was evicted; None in `Ready` if neither."""

    policy: BacklogQuotaPolicy
    used: int
    limit: int
    is_size: bool = True


@dataclass(frozen=True, slots=True)
class Ready:
    """The effects of a step, in this order; `next_due_ms` is the instant of the next step."""

    letters: tuple[Letter, ...] = ()
    epochs: tuple[EpochBegan, ...] = ()
    replies: tuple[Reply, ...] = ()
    revokes: tuple[Revoke, ...] = ()
    acknowledged: tuple[Acknowledged, ...] = ()
    grants: tuple[Grant, ...] = ()
    open_grants: tuple[OpenGrant, ...] = ()
    backlog_quota: BacklogQuotaExceeded | None = None
    deleted_subscriptions: tuple[str, ...] = ()
    trim: tuple[int, ...] = ()
    next_due_ms: int | None = None
