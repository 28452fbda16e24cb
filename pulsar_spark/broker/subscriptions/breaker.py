"""The breaker: where most messages of a subscription fail, delivery pauses, and tries one by one.

Invariants: it opens by what consumers say of messages alone (acknowledged, rejected, timed out),
never by who dies; while it is not closed no failure counts as an attempt, and only a trial is
granted; a trial that fails waits longer each time, one that succeeds is followed by one of twice
the size, and after the last by all; a message that failed in a trial goes into the next only if
there is no other, so that a poison message does not keep it open. Pulsar has nothing of the kind.

    closed --most of the latest outcomes are failures--> open
    open --the time of the next trial has come--> half-open
    half-open --most of the trial fails--> open, for twice as long
    half-open --a trial as large as the window does not--> closed
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from pulsar_spark.broker.protocol.policies import TopicPolicies
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.ledger_info import LedgerList
from pulsar_spark.model.positions.position_set import NOTHING, PositionSet

NEVER: Final = -1


class BreakerPhase(str, Enum):
    """True if messages are granted."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker of one subscription of a partition."""

    outcomes: tuple[tuple[int, int], ...] = ()
    """(successes, failures) of the latest reports, while it is closed; the newest is last."""
    opened_ms: int = NEVER
    failed_trials: int = 0
    """In a row."""
    next_trial_ms: int = 0
    """Until then nothing is granted."""
    tried_ms: int = 0
    """When the trial that is out was granted, or more to it."""
    size: int = 0
    """Messages of the next trial, or of the one that is out."""
    successes: int = 0
    failures: int = 0
    """The failures of the trial, so far."""
    trial: PositionSet = field(default_factory=PositionSet)
    """The messages that are granted and have no outcome yet."""
    tried: PositionSet = field(default_factory=PositionSet)
    """The messages that have failed in trials since it opened."""

    @property
    def is_closed(self) -> bool:
        return self.opened_ms == NEVER

    def phase(self, now_ms: int) -> BreakerPhase:
        if self.is_closed:
            return BreakerPhase.CLOSED
        is_on_trial = bool(self.trial) or now_ms >= self.next_trial_ms
        return BreakerPhase.HALF_OPEN if is_on_trial else BreakerPhase.OPEN

    def due_ms(self, delivered: PositionSet, policies: TopicPolicies) -> int | None:
        """When messages are granted again; None if they are now, as it is closed.

        A trial of which nothing is delivered gets more soon: it may be a part of a chunked message.
        One that is delivered gets more late: its consumer may wait for others to go with it.
        """
        if self.is_closed:
            return None
        if not self.trial:
            return self.next_trial_ms
        is_delivered = bool(self.trial.intersection(delivered))
        patience_ms = policies.breaker_max_delay_ms if is_delivered else policies.breaker_delay_ms
        return self.tried_ms + patience_ms

    # -- what is said of messages --------------------------------------------------------------

    def reported(
        self, successes: int, failures: int, consumers: int, policies: TopicPolicies, now_ms: int
    ) -> Breaker:
        """One report's outcomes, while it is closed.

        Looked at are the reports that have as many outcomes as the window, and two of each
        consumer at least: good and bad messages of a batch may be told one after the other.
        """
        if not successes and not failures:
            return self
        outcomes, window = (*self.outcomes, (successes, failures)), policies.breaker_window
        while len(outcomes) > 2 * consumers and _count(outcomes[1:]) >= window:
            outcomes = outcomes[1:]
        failed = sum(each for _, each in outcomes)
        if _count(outcomes) >= window and _is_most(failed, _count(outcomes), policies):
            wait_ms = policies.breaker_delay_ms
            return Breaker(opened_ms=now_ms, size=1, next_trial_ms=now_ms + wait_ms)
        return replace(self, outcomes=outcomes)

    def tries(self, messages: PositionSet, now_ms: int) -> Breaker:
        """These are granted as a trial, or with the one that is out."""
        return replace(self, trial=self.trial.union(messages), tried_ms=now_ms)

    def settled(self, succeeded: PositionSet, failed: PositionSet, ledgers: LedgerList) -> Breaker:
        """Outcomes of messages that are on trial."""
        return replace(
            self,
            successes=self.successes + succeeded.count(ledgers),
            failures=self.failures + failed.count(ledgers),
            trial=self.trial.difference(succeeded).difference(failed),
            tried=self.tried.union(failed),
        )

    def judged(self, ledgers: LedgerList, policies: TopicPolicies, now_ms: int) -> Breaker:
        """After outcomes, or when messages of the trial are held by nobody any more."""
        if self.is_closed:
            return self
        total = self.successes + self.failures + self.trial.count(ledgers)
        if _is_most(self.failures, total, policies):
            trials = self.failed_trials + 1
            wait_ms = policies.breaker_delay_ms << min(trials, 40)
            wait_ms = min(wait_ms, policies.breaker_max_delay_ms)
            return replace(
                self, failed_trials=trials, next_trial_ms=now_ms + wait_ms, size=1,
                successes=0, failures=0, trial=NOTHING,
            )  # fmt: skip
        if self.trial or not self.successes:
            return self
        if self.size >= policies.breaker_window:
            return Breaker()
        return replace(self, size=2 * self.size, next_trial_ms=now_ms, successes=0, failures=0)

    def held(self, messages: PositionSet) -> Breaker:
        """Only these are held by anybody; what else was on trial has no outcome."""
        return replace(self, trial=self.trial.intersection(messages))

    def not_acknowledged(self, cursor: Cursor) -> Breaker:
        """Without what the cursor holds."""
        trial, tried = (cursor.not_acknowledged(each) for each in (self.trial, self.tried))
        return replace(self, trial=trial, tried=tried)

    def check(self, held: PositionSet) -> None:
        """Raise AssertionError if an invariant is broken."""
        if self.is_closed:
            assert not self.trial, "on trial, and closed"
            assert not self.tried, "tried, and closed"
        assert not self.trial.difference(held), "on trial, and not held"


def _count(outcomes: tuple[tuple[int, int], ...]) -> int:
    return sum(map(sum, outcomes))


def _is_most(failures: int, outcomes: int, policies: TopicPolicies) -> bool:
    return failures * 100 > policies.breaker_threshold * outcomes
