"""The recent deliveries and acknowledgements of subscriptions, from the broker's states.

Invariants: a total is the broker's own count; a rate is the difference of two states' counts, and a
time that of the step that changed a count or cursor, so it is known as far back as `__dispatch`
goes. Follows the rates of Pulsar's `SubscriptionStatsImpl`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.broker.subscriptions.delivery_counts import DeliveryCounts
from pulsar_spark.broker.subscriptions.subscription import Subscription
from pulsar_spark.connector.inspect.views.dispatch_history import Step

RATE_OVER_MS: Final = 60_000
"""Over how long a rate is counted: Pulsar's `statsUpdateFrequencyInSecs`."""
_NO_COUNTS: Final = DeliveryCounts()


class RecentDeliveries:
    """The recent deliveries of one topic partition."""

    def __init__(self, steps: Sequence[Step], now_ms: int) -> None:
        """`steps` are in order; the last one is looked at, and has a state."""
        self._steps = [each for each in steps if each.shards]
        self._decoded: dict[int, BrokerState] = {}
        self._last = len(self._steps) - 1
        since = bisect_right(self._steps, now_ms - RATE_OVER_MS, key=lambda each: each.written_ms)
        self._first = max(since - 1, 0)

    @property
    def state(self) -> BrokerState:
        """The one that is looked at."""
        return self._state(self._last)

    def of(self, name: str) -> dict[str, Any]:
        """The counts, rates and times of a subscription of the last step, by Pulsar's names."""
        now, then = self._held(self._last, name), self._held(self._first, name)
        assert now is not None
        is_same = then is not None and then.counts.delivered <= now.counts.delivered
        lately = now.counts.since(then.counts if then is not None and is_same else _NO_COUNTS)
        over_s = RATE_OVER_MS / 1000
        return {
            "msgOutCounter": now.counts.delivered,
            "bytesOutCounter": now.counts.delivered_bytes,
            "totalMsgExpired": now.counts.expired,
            "msgRateOut": lately.delivered / over_s,
            "msgThroughputOut": lately.delivered_bytes / over_s,
            "messageAckRate": lately.acknowledged / over_s,
            "msgRateRedeliver": lately.redelivered / over_s,
            "msgRateExpired": lately.expired / over_s,
            "lastConsumedTimestamp": self._since(name, lambda held: held.counts.delivered),
            "lastAckedTimestamp": self._since(name, lambda held: held.counts.acknowledged),
            "lastExpireTimestamp": self._since(name, lambda held: held.counts.expired),
            "lastMarkDeleteAdvancedTimestamp": self._since(
                name, lambda held: (held.epoch, held.cursor.mark_delete_position)
            ),
        }

    def _since(self, name: str, what: Callable[[Subscription], Any]) -> int | None:
        """When that became what it is; None if it has been so as long as is known."""
        now = self._held(self._last, name)
        assert now is not None

        def is_as_now(place: int) -> bool:
            held = self._held(place, name)
            return held is not None and what(held) == what(now)

        place = bisect_left(range(self._last), True, key=is_as_now)
        if not place or self._held(place - 1, name) is None:
            return None
        return self._steps[place].written_ms

    def _held(self, place: int, name: str) -> Subscription | None:
        return self._state(place).subscriptions.get(name)

    def _state(self, place: int) -> BrokerState:
        if place not in self._decoded:
            self._decoded[place] = from_shards(self._steps[place].shards, columns=False)
        return self._decoded[place]
