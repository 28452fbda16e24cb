"""How often a message was granted, and how often somebody may have seen it before.

Invariants: attempts above `base_attempt` are kept for messages that were given back (those still
held have theirs with their holder); every other message was last granted at `base_attempt`, or
never, so the next attempt is above all that a message ever had; counts are for messages that are
not acknowledged. Follows Pulsar's `RedeliveryTracker`, which forgets its counts at every turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pulsar_spark.positions.cursor import Cursor
from pulsar_spark.positions.position_set import PositionSet
from pulsar_spark.subscriptions.due_messages import NOTHING, not_acknowledged

NEVER_GRANTED = -1


@dataclass(frozen=True, slots=True)
class RedeliveryTracker:
    """Attempt -> messages last granted at it; redelivery count (from 1) -> messages."""

    base_attempt: int = NEVER_GRANTED
    highest_attempt: int = NEVER_GRANTED
    attempts: Mapping[int, PositionSet] = field(default_factory=dict)
    counts: Mapping[int, PositionSet] = field(default_factory=dict)

    def open_grant(self) -> RedeliveryTracker:
        """An open grant takes the attempt above all used so far, its new `base_attempt`."""
        attempt = self.highest_attempt + 1
        return RedeliveryTracker(attempt, attempt, {}, self.counts)

    def begin_epoch(self) -> RedeliveryTracker:
        """Nothing is known of any message; attempts rise on, so that none comes a second time."""
        return RedeliveryTracker(self.highest_attempt, self.highest_attempt)

    def granted(self, attempt: int, messages: PositionSet) -> RedeliveryTracker:
        """These are held now, at that attempt: their holder remembers it."""
        return RedeliveryTracker(
            self.base_attempt,
            max(self.highest_attempt, attempt),
            _without(self.attempts, messages),
            self.counts,
        )

    def given_back(self, attempt: int, messages: PositionSet) -> RedeliveryTracker:
        """These are held no more; they were granted at that attempt."""
        if attempt <= self.base_attempt or not messages:
            return self
        attempts = dict(self.attempts)
        attempts[attempt] = attempts.get(attempt, NOTHING).union(messages)
        return RedeliveryTracker(self.base_attempt, self.highest_attempt, attempts, self.counts)

    def seen_again(self, messages: PositionSet) -> RedeliveryTracker:
        """These may have been delivered, and will be once more: their count rises."""
        if not messages:
            return self
        counts: dict[int, PositionSet] = {}
        rest = messages
        for count, held in self.counts.items():
            risen = held.intersection(messages)
            rest = rest.difference(risen) if risen else rest
            _put(counts, count + 1, risen)
            _put(counts, count, held.difference(messages) if risen else held)
        _put(counts, 1, rest)
        return RedeliveryTracker(self.base_attempt, self.highest_attempt, self.attempts, counts)

    def not_acknowledged(self, cursor: Cursor) -> RedeliveryTracker:
        """Without what the cursor holds."""
        if not self.attempts and not self.counts:
            return self
        return RedeliveryTracker(
            self.base_attempt,
            self.highest_attempt,
            _pruned(self.attempts, cursor),
            _pruned(self.counts, cursor),
        )

    def by_next_attempt(self, messages: PositionSet) -> Iterator[tuple[int, PositionSet]]:
        """(the attempt at which to grant them, messages), ascending."""
        return _parted(messages, self.attempts, self.base_attempt, add=1)

    def by_count(self, messages: PositionSet) -> Iterator[tuple[int, PositionSet]]:
        """(redelivery count, messages), ascending."""
        return _parted(messages, self.counts, 0, add=0)

    def count_of(self, messages: PositionSet, least: int) -> PositionSet:
        """Those of the messages whose redelivery count is at least that."""
        result = NOTHING
        for count, held in self.counts.items():
            if count >= least:
                result = result.union(held.intersection(messages))
        return messages if least <= 0 else result

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        for sets, least in ((self.attempts, self.base_attempt + 1), (self.counts, 1)):
            seen = NOTHING
            for number, held in sets.items():
                assert number >= least, f"{number} is below {least}"
                assert held, f"{number} without messages"
                assert not seen.intersection(held), "a message has two numbers"
                seen = seen.union(held)
        assert max(self.attempts, default=self.base_attempt) <= self.highest_attempt


def _parted(
    messages: PositionSet, parts: Mapping[int, PositionSet], default: int, *, add: int
) -> Iterator[tuple[int, PositionSet]]:
    if not parts:
        if messages:
            yield default + add, messages
        return
    found = [(number, messages.intersection(parts[number])) for number in sorted(parts)]
    rest = messages
    for _, part in found:
        if part:
            rest = rest.difference(part)
    for number, part in [(default, rest), *found]:
        if part:
            yield number + add, part


def _without(parts: Mapping[int, PositionSet], messages: PositionSet) -> dict[int, PositionSet]:
    left = {number: held.difference(messages) for number, held in parts.items()}
    return {number: held for number, held in left.items() if held}


def _pruned(parts: Mapping[int, PositionSet], cursor: Cursor) -> dict[int, PositionSet]:
    left = {number: not_acknowledged(held, cursor) for number, held in parts.items()}
    return {number: held for number, held in left.items() if held}


def _put(parts: dict[int, PositionSet], number: int, messages: PositionSet) -> None:
    if messages:
        parts[number] = parts.get(number, NOTHING).union(messages)
