"""Collects the effects of a step while it runs.

Invariants: lives for one step; items keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from pulsar_spark.errors import ServerError
from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.protocol.commands import Request, Subscribe
from pulsar_spark.protocol.ready import (
    Acknowledged,
    BacklogQuotaExceeded,
    EpochBegan,
    Grant,
    Letter,
    OpenGrant,
    Ready,
    Reply,
    Revoke,
)


@dataclass(slots=True)
class ReadyBuilder:
    """Lists with the names of `Ready`'s fields, and the instants at which to step again."""

    letters: list[Letter] = field(default_factory=list)
    epochs: list[EpochBegan] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    revokes: list[Revoke] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    open_grants: list[OpenGrant] = field(default_factory=list)
    backlog_quota: BacklogQuotaExceeded | None = None
    deleted_subscriptions: list[str] = field(default_factory=list)
    trim: tuple[int, ...] = ()
    next_due_ms: int | None = None
    welcomes: list[Subscribe] = field(default_factory=list)
    """Subscribes that were let in, to be answered once all commands are taken in."""

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
    ) -> None:
        """Answer a command, with what of a Reply it names itself."""
        self.replies.append(
            Reply(
                getattr(command, "consumer", ""),
                getattr(command, "subscription", ""),
                getattr(command, "incarnation", 0),
                getattr(command, "request_id", None),
                error,
                message,
                epoch,
                origin,
                newest,
            )
        )

    def confirm(self, command: Request, *, epoch: int = 0) -> None:
        """Answer that it was done, if somebody waits for that."""
        if command.request_id is not None:
            self.reply(command, epoch=epoch)

    def build(self) -> Ready:
        held = ((each.name, getattr(self, each.name)) for each in fields(Ready))
        made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in held}
        return Ready(**made)
