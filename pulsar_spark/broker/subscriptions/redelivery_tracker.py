"""The number of grants of a message, and of its possible earlier deliveries.

Invariants: attempts above `base_attempt` are kept for messages that were given back (those still
held have theirs with their holder); every other message was last granted at `base_attempt`, or
never, so the next attempt is above all that a message ever had; counts are for messages that are
not acknowledged. Follows Pulsar's `RedeliveryTracker`, which forgets its counts at every turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pulsar_spark.model.positions.position_map import PositionMap
from pulsar_spark.model.positions.position_set import PositionSet

NEVER_GRANTED = -1


@dataclass(frozen=True, slots=True)
class RedeliveryTracker:
    """Attempt -> messages last granted at it; redelivery count (from 1) -> messages."""

    base_attempt: int = NEVER_GRANTED
    highest_attempt: int = NEVER_GRANTED
    attempts: PositionMap = field(default_factory=PositionMap)
    counts: PositionMap = field(default_factory=PositionMap)

    def open_grant(self) -> RedeliveryTracker:
        """An open grant takes the attempt above all used so far, its new `base_attempt`."""
        attempt = self.highest_attempt + 1
        return RedeliveryTracker(attempt, attempt, counts=self.counts)

    def begin_epoch(self) -> RedeliveryTracker:
        """Nothing is known of any message; attempts rise on, so that none comes a second time."""
        return RedeliveryTracker(self.highest_attempt, self.highest_attempt)

    def granted(self, attempt: int, messages: PositionSet) -> RedeliveryTracker:
        """These are held now, at that attempt: their holder remembers it."""
        highest = max(self.highest_attempt, attempt)
        return replace(self, highest_attempt=highest, attempts=self.attempts.without(messages))

    def given_back(self, attempt: int, messages: PositionSet, *, seen: bool) -> RedeliveryTracker:
        """These, granted at that attempt, are held no more; what may be `seen` counts once more."""
        above = attempt > self.base_attempt
        attempts = self.attempts.put(attempt, messages) if above else self.attempts
        counts = self.counts.raised(messages) if seen else self.counts
        return replace(self, attempts=attempts, counts=counts)

    def without(self, messages: PositionSet) -> RedeliveryTracker:
        """Nothing is known of these any more."""
        attempts, counts = (each.without(messages) for each in (self.attempts, self.counts))
        return replace(self, attempts=attempts, counts=counts)

    def by_next_attempt(self, messages: PositionSet) -> Iterator[tuple[int, PositionSet]]:
        """(the attempt at which to grant them, messages), ascending."""
        for attempt, part in self.attempts.parts(messages, self.base_attempt):
            yield attempt + 1, part

    def by_count(self, messages: PositionSet) -> Iterator[tuple[int, PositionSet]]:
        """(redelivery count, messages), ascending."""
        return self.counts.parts(messages, 0)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        for numbers, least in ((self.attempts, self.base_attempt + 1), (self.counts, 1)):
            numbers.check()
            assert min(numbers, default=least) >= least, f"{min(numbers)} is below {least}"
        assert max(self.attempts, default=self.base_attempt) <= self.highest_attempt
