"""Which messages wait for their time, and which of them have come to it.

Invariants: immutable; messages wait in buckets of time, each a set of bitmaps, so that a hundred
thousand of them cost a few bits each, and a look at what is due touches the due buckets only;
under NEVER_EARLY nothing is due before its time. Messages come in order of bucket, then position.

Follows Pulsar's `InMemoryDelayedDeliveryTracker` and `AbstractDelayedDeliveryTracker`, whose two
modes both may be early (RELAXED by a tick, STRICT by the rest of a bucket). Pulsarlite delivers
NEVER_EARLY: there a bucket's time is that of its end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pulsar_spark.positions.position import Position
from pulsar_spark.positions.position_set import PositionSet

DEFAULT_TICK_MS: Final = 1000
"""Pulsar's `delayedDeliveryTickTimeMillis`."""


class Punctuality(str, Enum):
    """How a message's time is kept."""

    RELAXED = "relaxed"
    """Up to a tick early: Pulsar's default."""
    STRICT = "strict"
    """Pulsar's `isDelayedDeliveryDeliverAtTimeStrict`; early by a bucket's width at most."""
    NEVER_EARLY = "never_early"
    """Late by a bucket's width at most: Pulsarlite's."""


@dataclass(frozen=True, slots=True)
class DelayedDeliveryTracker:
    """The messages of one subscription on one topic partition that wait for their time.

    Buckets are as wide as the greatest power of two up to `tick_ms`. `fixed_delay_lookahead`: once
    so many wait, and all seem to have the same delay, what follows need not be read; 0 for never.
    """

    tick_ms: int = DEFAULT_TICK_MS
    punctuality: Punctuality = Punctuality.NEVER_EARLY
    fixed_delay_lookahead: int = 0
    buckets: Mapping[int, PositionSet] = field(default_factory=dict)
    """By the time at which they come due."""
    number_of_delayed_messages: int = 0
    """Entries that wait, whole or in part."""
    highest_delivery_time_ms: int = 0
    messages_have_fixed_delay: bool = True
    _times: tuple[int, ...] = ()
    """The buckets' times, ascending."""

    def add(
        self, position: Position, deliver_at_ms: int, now_ms: int
    ) -> tuple[DelayedDeliveryTracker, bool]:
        """Let a message wait; False if it is due, and does not."""
        return self.add_messages(PositionSet.of([position]), deliver_at_ms, now_ms)

    def add_messages(
        self, messages: PositionSet, deliver_at_ms: int, now_ms: int
    ) -> tuple[DelayedDeliveryTracker, bool]:
        """Let messages wait that all have one time; False if it has come."""
        if self._is_due(deliver_at_ms, now_ms):
            return replace(self, messages_have_fixed_delay=False), False
        time = self._bucket_time(deliver_at_ms)
        behind = deliver_at_ms < self.highest_delivery_time_ms - self.tick_ms
        return self._with({time: messages}, deliver_at_ms, fixed_delay=not behind), True

    def has_message_available(self, now_ms: int) -> bool:
        """Whether something has come due."""
        return bool(self._times) and self._times[0] <= self._cutoff(now_ms)

    @property
    def next_delivery_time_ms(self) -> int | None:
        """The time of the first bucket; None if nothing waits."""
        return self._times[0] if self._times else None

    def delivery_times_ms(self, deliver_at_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """When messages would come due that are to be delivered then."""
        bits = self._width_bits()
        if self.punctuality is Punctuality.NEVER_EARLY:
            deliver_at_ms = deliver_at_ms + ((1 << bits) - 1)
        return deliver_at_ms >> bits << bits

    def add_buckets(
        self, buckets: Mapping[int, PositionSet], highest_ms: int
    ) -> DelayedDeliveryTracker:
        """Let messages wait until these times, which are those of buckets."""
        return self._with(buckets, highest_ms, fixed_delay=True) if buckets else self

    def scheduled_messages(
        self, now_ms: int, max_messages: int | None = None
    ) -> tuple[DelayedDeliveryTracker, PositionSet]:
        """Take out what has come due, `max_messages` entries at most: (what still waits, those)."""
        due = self._times[: bisect_right(self._times, self._cutoff(now_ms))]
        left = self.number_of_delayed_messages if max_messages is None else max_messages
        buckets, taken = dict(self.buckets), []
        for time in due:
            if left <= 0:
                break
            bucket = buckets.pop(time)
            size = _size(bucket)
            if size > left:
                first = _first_entries(bucket, left)
                buckets[time] = bucket.difference(first)
                bucket, size = first, left
            taken.append(bucket)
            left -= size
        times = self._times[len(self.buckets) - len(buckets) :]
        count = self.number_of_delayed_messages - sum(map(_size, taken))
        return self._left_with(buckets, times, count), PositionSet.union_of(taken)

    def should_pause_all_deliveries(self, now_ms: int) -> bool:
        """Whether reading on is of no use, since all that follows has to wait as well."""
        return (
            self.fixed_delay_lookahead > 0
            and self.messages_have_fixed_delay
            and self.number_of_delayed_messages >= self.fixed_delay_lookahead
            and not self.has_message_available(now_ms)
        )

    def without(self, messages: PositionSet) -> DelayedDeliveryTracker:
        """Once they are acknowledged, expired or skipped: looks into every bucket."""
        kept = {time: held.difference(messages) for time, held in self.buckets.items()}
        kept = {time: held for time, held in kept.items() if held}
        if kept == self.buckets:
            return self
        return self._left_with(kept, tuple(sorted(kept)), sum(map(_size, kept.values())))

    def messages(self) -> PositionSet:
        """All that waits."""
        return PositionSet.union_of(self.buckets.values())

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert self._times == tuple(sorted(self.buckets)), "times out of order"
        assert all(self.buckets.values()), "an empty bucket"
        assert sum(map(_size, self.buckets.values())) == self.number_of_delayed_messages, "count"

    # -- inside ------------------------------------------------------------------------------

    def _is_due(self, deliver_at_ms: int, now_ms: int) -> bool:
        return deliver_at_ms < 0 or deliver_at_ms <= self._cutoff(now_ms)

    def _cutoff(self, now_ms: int) -> int:
        return now_ms + self.tick_ms if self.punctuality is Punctuality.RELAXED else now_ms

    def _width_bits(self) -> int:
        return max(self.tick_ms.bit_length() - 1, 0)

    def _bucket_time(self, deliver_at_ms: int) -> int:
        bits = self._width_bits()
        if self.punctuality is Punctuality.NEVER_EARLY:
            deliver_at_ms += (1 << bits) - 1
        return deliver_at_ms >> bits << bits

    def _with(
        self, changed: Mapping[int, PositionSet], highest_ms: int, *, fixed_delay: bool
    ) -> DelayedDeliveryTracker:
        """With more waiting in some buckets, whose delays are alike or are not."""
        buckets = dict(self.buckets)
        new, count = [], self.number_of_delayed_messages
        for time, held in changed.items():
            before = buckets.get(time)
            if before is None:
                new.append(time)
                buckets[time] = held
                count += _size(held)
            else:
                buckets[time] = before.union(held)
                count += _size(buckets[time]) - _size(before)
        times = self._times
        if len(new) == 1:
            place = bisect_left(times, new[0])
            times = (*times[:place], new[0], *times[place:])
        elif new:
            times = tuple(sorted([*times, *new]))
        return replace(
            self,
            buckets=buckets,
            _times=times,
            number_of_delayed_messages=count,
            highest_delivery_time_ms=max(self.highest_delivery_time_ms, highest_ms),
            messages_have_fixed_delay=self.messages_have_fixed_delay and fixed_delay,
        )

    def _left_with(
        self, buckets: Mapping[int, PositionSet], times: tuple[int, ...], count: int
    ) -> DelayedDeliveryTracker:
        """With less waiting; once nothing does, what is known of delays is forgotten."""
        return replace(
            self,
            buckets=buckets,
            _times=times,
            number_of_delayed_messages=count,
            highest_delivery_time_ms=self.highest_delivery_time_ms if times else 0,
            messages_have_fixed_delay=self.messages_have_fixed_delay if times else True,
        )


def _size(messages: PositionSet) -> int:
    return messages.whole_entry_count() + messages.partial_entry_count()


def _first_entries(messages: PositionSet, count: int) -> PositionSet:
    """The first entries of a set, in order, which has as many."""
    last, _ = next(islice(messages.entries(), count - 1, None))
    return messages.up_to(last)
