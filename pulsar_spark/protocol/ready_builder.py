"""Collects the effects of a step while it runs.

Invariants: lives for one step; items keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pulsar_spark.protocol.commands import Subscribe
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

    def build(self) -> Ready:
        return Ready(
            tuple(self.letters),
            tuple(self.epochs),
            tuple(self.replies),
            tuple(self.revokes),
            tuple(self.acknowledged),
            tuple(self.grants),
            tuple(self.open_grants),
            self.backlog_quota,
            tuple(self.deleted_subscriptions),
            self.trim,
            self.next_due_ms,
        )
