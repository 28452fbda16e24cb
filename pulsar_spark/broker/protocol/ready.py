"""The effects of a step: everything the host must do after it, and nothing else.

Invariants: the fields of `Ready` stand in the order in which the host must do them; a step that
is run again on the same state gives an equal `Ready`, so a host that does things once for each
step, however often it crashed in between, does them once. A consumer takes in all items of a step
together: with half of its grants it might deliver a key out of order. After etcd raft's `Ready`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_spark.broker.protocol.commands import Request, Subscribe
from pulsar_spark.broker.protocol.policies import BacklogQuotaPolicy
from pulsar_spark.errors import ServerError
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position import Position
from pulsar_spark.model.positions.position_set import PositionSet

_WHO: Final[dict[str, Any]] = {
    "consumer": "", "subscription": "", "incarnation": 0, "request_id": None
}  # fmt: skip
"""Fields of a Reply that are those of its command, and what stands there if it lacks them."""


@dataclass(frozen=True, slots=True)
class Republication:
    """Messages to copy to another topic: dead letters, or retries with their deliver-at.

    `properties` are set on each copy; REAL_TOPIC, REAL_SUBSCRIPTION and ORIGIN_MESSAGE_ID only
    where the message does not have them yet (see `dead_letter.republication_properties`).
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
    first_attempt: int = 0
    """To a Subscribe: the lowest attempt of the epoch."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A seek: grants of earlier epochs are void, and reports of them are dropped.

    All attempts below the first are of earlier epochs.
    """

    subscription: str
    epoch: int
    origin: Cursor
    first_attempt: int = 0


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
    """True if it repeats a grant, in answer to a Subscribe."""
    suspects: PositionSet = field(default_factory=PositionSet)
    """The suspects of these: one may have killed a consumer before its delivery was reported."""


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
    suspects: PositionSet = field(default_factory=PositionSet)


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


class RefusedError(Exception):
    """A command is refused: it is answered with this error, and changes nothing."""

    def __init__(self, error: ServerError, message: str, newest: int = -1) -> None:
        super().__init__(error, message, newest)
        self.error, self.message, self.newest = error, message, newest


@dataclass(slots=True)
class Ready:
    """The effects of a step, in this order; `next_due_ms` is the instant of the next step.

    Filled while the step runs, and never changed afterwards.
    """

    republications: list[Republication] = field(default_factory=list)
    epochs: list[EpochBegan] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    revokes: list[Revoke] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    open_grants: list[OpenGrant] = field(default_factory=list)
    backlog_quota: BacklogQuotaExceeded | None = None
    deleted_subscriptions: tuple[str, ...] = ()
    trim: tuple[int, ...] = ()
    next_due_ms: int | None = None
    welcomes: list[Subscribe] = field(default_factory=list, compare=False)
    """Subscribes that this step let in, answered once all commands are taken in."""

    def due_at(self, instant_ms: int | None) -> None:
        """Note that the host is to step again at that instant."""
        if instant_ms is not None and (self.next_due_ms is None or instant_ms < self.next_due_ms):
            self.next_due_ms = instant_ms

    def reply(
        self,
        command: object,
        error: ServerError | None = None,
        message: str = "",
        *,
        epoch: int = 0,
        origin: Cursor | None = None,
        newest: int = -1,
        first_attempt: int = 0,
    ) -> None:
        """Answer a command, with what of a Reply it names itself."""
        who = {name: getattr(command, name, absent) for name, absent in _WHO.items()}
        self.replies.append(
            Reply(
                **who, error=error, message=message, epoch=epoch, origin=origin, newest=newest,
                first_attempt=first_attempt,
            )
        )  # fmt: skip

    def confirm(self, command: Request, *, epoch: int = 0) -> None:
        """Answer that it was done, if somebody waits for that."""
        if command.request_id is not None:
            self.reply(command, epoch=epoch)


@dataclass(frozen=True, slots=True)
class Stepped:
    """The broker's place on a topic partition, behind all other records of a step.

    `last_position` is the last entry of the log that it knows; `next_due_ms` the latest instant
    of its next step; `backlogs` are messages before `last_position`, by subscription, and those in
    `durable` stay without a consumer. `consumers` are all that are subscribed, each as
    (subscription, name, incarnation).
    """

    now_ms: int
    last_position: Position
    next_due_ms: int | None = None
    backlogs: tuple[tuple[str, int], ...] = ()
    durable: tuple[str, ...] = ()
    consumers: tuple[tuple[str, str, int], ...] = ()


def reported(ready: Ready) -> Iterator[tuple[str, Any]]:
    """(subscription, or "" for all, item): the records for consumers, in the order of reading.

    Connections that ended come first: the consumer may have subscribed again behind that. Revokes
    stand before grants. A Subscribe is answered before its grants, since the answer names
    the epoch that they belong to; every other request behind all its effects, so a consumer that
    has read its answer has read them too. The host does the rest, and ends with a `Stepped`.
    """
    ended = [each for each in ready.replies if each.error and each.request_id is None]
    answers = [each for each in ready.replies if not each.error or each.request_id is not None]
    items: list[Any] = [
        *ended,
        *ready.epochs,
        *(reply for reply in answers if reply.origin is not None),
        *ready.revokes,
        *ready.acknowledged,
        *ready.grants,
        *ready.open_grants,
        *(reply for reply in answers if reply.origin is None),
    ]
    yield from ((item.subscription, item) for item in items)
    if ready.backlog_quota is not None:
        yield "", ready.backlog_quota
