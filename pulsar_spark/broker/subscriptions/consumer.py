"""One consumer of a subscription: what it holds, what it may hold, what it was told to give back.

Invariants: what it holds by explicit grants is in `pending`, each message at one attempt; with an
open grant it holds besides all that its subscription has neither acknowledged nor given to
others; `delivered` is part of what it holds. Follows Pulsar's `Consumer` and its `pendingAcks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pulsar_spark.broker.protocol.policies import ConsumerOptions
from pulsar_spark.model.positions.position import EARLIEST, Position
from pulsar_spark.model.positions.position_map import PositionMap
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

NO_OPEN_GRANT: Final = -1
MAX_INSTANTS: Final = 1024
"""The greatest number of instants at which messages fall due; the two closest become the later."""


@dataclass(slots=True)
class Consumer:
    """A connected consumer. Changes within a step, which works on a copy."""

    name: str
    incarnation: int
    priority_level: int
    options: ConsumerOptions
    permits: int = 0
    committed: Position = EARLIEST
    """Below it no replayed micro-batch of its reads; EARLIEST until it says."""
    pending: PositionMap = field(default_factory=PositionMap)
    """Attempt -> what it was granted at it."""
    open_attempt: int = NO_OPEN_GRANT
    open_from: Position = EARLIEST
    """The mark-delete position when the open grant was made."""
    delivered: PositionSet = field(default_factory=PositionSet)
    rejected: PositionSet = field(default_factory=PositionSet)
    """Rejected messages that wait; they are due when a prefetching consumer goes."""
    reports_delivered: bool = True
    """True if what it was granted and has not named in a report, it has not delivered."""
    timeouts: PositionMap = field(default_factory=PositionMap)
    """Instant in milliseconds -> what is given back then; at most MAX_INSTANTS."""
    revision: int = 0
    """The revision of the latest Revoke sent to it; 0 for none."""
    obeyed: int = 0
    revoked: PositionSet = field(default_factory=PositionSet)
    """The messages of explicit grants that this Revoke asked back."""
    draining: PositionSet = field(default_factory=PositionSet)
    """The held messages of keys that belong to another consumer by now."""
    sequence: int = -1
    redeliver_sequence: int = -1
    is_blocked: bool = False
    """On unacknowledged messages: until it holds half of what it may."""

    @property
    def held(self) -> PositionSet:
        """All that it holds by explicit grants."""
        return self.pending.messages

    @property
    def has_open_grant(self) -> bool:
        return self.open_attempt != NO_OPEN_GRANT

    @property
    def is_revoking(self) -> bool:
        """True if an answer to a Revoke is awaited."""
        return self.obeyed < self.revision

    def give(self, attempt: int, messages: PositionSet) -> None:
        """It holds these too."""
        self.pending = self.pending.put(attempt, messages)

    def take_back(self, attempt: int, messages: PositionSet) -> PositionSet:
        """It holds those no more; what of them it did hold at that attempt."""
        taken = self.pending.get(attempt, NOTHING).intersection(messages)
        if taken:
            self.pending = self.pending.without(taken)
            self.forget(taken)
        return taken

    def forget(self, messages: PositionSet) -> None:
        """Nothing is known of these any more: they are with it no longer."""
        self.delivered = self.delivered.difference(messages)
        self.revoked = self.revoked.difference(messages)
        self.draining = self.draining.difference(messages)
        self.timeouts = self.timeouts.without(messages)

    def acknowledged(self, messages: PositionSet) -> None:
        """Drop these."""
        self.pending = self.pending.without(messages)
        self.rejected = self.rejected.difference(messages)
        self.forget(messages)

    def clear(self) -> None:
        """It holds nothing: a new epoch has begun."""
        self.pending = PositionMap()
        self.open_attempt = NO_OPEN_GRANT
        self.delivered = self.rejected = self.revoked = self.draining = NOTHING
        self.timeouts = PositionMap()
        self.obeyed = self.revision
        self.is_blocked = False

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.pending.check()
        seen = self.held
        if not self.has_open_grant:
            assert not self.delivered.difference(seen), "delivered, and not held"
            assert not self.timeouts.messages.difference(seen), "a timeout for what is not held"
        assert not self.revoked.difference(seen), "asked back, and not held"
        assert not self.draining.difference(seen), "draining, and not held"
        self.timeouts.check()
        assert len(self.timeouts) <= MAX_INSTANTS, "too many instants"
