"""What subscriptions delivered and acknowledged lately, from the broker's states step by step.

Invariants: nothing is counted while messages go: a rate is the difference of two states, a time
that of the step that changed a cursor, so it is known as far back as `__dispatch` goes; a message
that comes again was delivered once. Follows the rates of Pulsar's `SubscriptionStatsImpl`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

from pulsar_spark.connector.views.dispatch_history import Step
from pulsar_spark.connector.views.message_sets import size_of
from pulsar_spark.hosting.broker_format import from_shards
from pulsar_spark.positions.ledger_info import LedgerInfo, LedgerList
from pulsar_spark.positions.position_set import NOTHING, PositionSet
from pulsar_spark.subscriptions.broker_state import BrokerState
from pulsar_spark.subscriptions.subscription import Subscription

RATE_OVER_MS: Final = 60_000
"""Over how long a rate is counted: Pulsar's `statsUpdateFrequencyInSecs`."""
DECODED: Final = 60
"""So many steps of that time are looked at, at most: a ledger that came and went between two of
them is in no rate."""


class RecentDeliveries:
    """Of one topic partition."""

    def __init__(self, steps: Sequence[Step], now_ms: int) -> None:
        """`steps` are in order; the last one is looked at, and has a state."""
        self._steps = [each for each in steps if each.shards]
        self._now_ms = now_ms
        self._decoded: dict[int, BrokerState] = {}
        self._known: LedgerList | None = None
        self._last = len(self._steps) - 1
        since = bisect_right(self._steps, now_ms - RATE_OVER_MS, key=lambda each: each.written_ms)
        self._first = max(since - 1, 0)

    @property
    def state(self) -> BrokerState:
        """The one that is looked at."""
        return self._state(self._last)

    def of(self, name: str) -> dict[str, Any]:
        """The rates and times of a subscription that the last step has, by Pulsar's names."""
        return {
            **self._rates(name),
            "lastAckedTimestamp": self._since(name, lambda held: held.cursor),
            "lastMarkDeleteAdvancedTimestamp": self._since(
                name, lambda held: held.cursor.mark_delete_position
            ),
            "lastConsumedTimestamp": self._since(name, lambda held: (held.cursor, _out(held))),
        }

    def _rates(self, name: str) -> dict[str, float]:
        now, then = self._held(self._last, name), self._held(self._first, name)
        assert now is not None
        if then is None or then.epoch != now.epoch:
            began, was_out = now.origin, NOTHING
        else:
            began, was_out = then.cursor, _out(then)
        ledgers, over_s = self._ledgers, RATE_OVER_MS / 1000
        there = [each.ledger_id for each in ledgers]
        hidden = self.state.hidden
        acknowledged = now.cursor.difference(began, ledgers).difference(hidden).of_ledgers(there)
        out = acknowledged.union(_out(now).of_ledgers(there)).difference(was_out)
        return {
            "messageAckRate": acknowledged.count(ledgers) / over_s,
            "msgRateOut": out.count(ledgers) / over_s,
            "msgThroughputOut": size_of(out, ledgers) / over_s,
        }

    @property
    def _ledgers(self) -> LedgerList:
        """Those that were there within the time of a rate, those that are gone by now included."""
        if self._known is None:
            found: dict[int, LedgerInfo] = {}
            count = self._last - self._first
            every = -(-count // DECODED) or 1
            for place in (*range(self._first, self._last, every), self._last):
                found.update((each.ledger_id, each) for each in self._state(place).ledgers)
            self._known = LedgerList(found[ledger_id] for ledger_id in sorted(found))
        return self._known

    def _since(self, name: str, what: Callable[[Subscription], Any]) -> int | None:
        """When that became what it is; None if it has been so as long as is known."""
        now = self._held(self._last, name)
        assert now is not None

        def is_as_now(place: int) -> bool:
            held = self._held(place, name)
            return held is not None and held.epoch == now.epoch and what(held) == what(now)

        place = bisect_left(range(self._last), True, key=is_as_now)
        before = self._held(place - 1, name) if place else None
        if before is None or before.epoch != now.epoch:
            return None
        return self._steps[place].written_ms

    def _held(self, place: int, name: str) -> Subscription | None:
        return self._state(place).subscriptions.get(name)

    def _state(self, place: int) -> BrokerState:
        if place not in self._decoded:
            self._decoded[place] = from_shards(self._steps[place].shards, columns=False)
        return self._decoded[place]


def _out(held: Subscription) -> PositionSet:
    """What was delivered, as far as is known, and is not acknowledged."""
    return PositionSet.union_of([held.held, held.delivered, held.replay, held.waiting.messages])
