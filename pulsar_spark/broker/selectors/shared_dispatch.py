"""The turns of a Shared subscription's consumers: who gets the next messages, and how many.

Invariants: immutable; consumers stand by priority level (the lowest first) and in order of
joining; of one level they take turns; a level gets messages only while no consumer of the levels
above has room. Permits may go below 0 by part of a batch, which evens out. Follows Pulsar's
`AbstractDispatcherMultipleConsumers.getNextConsumer` and
`PersistentDispatcherMultipleConsumers.getMaxEntriesInThisBatch`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_ROUND_ROBIN_BATCH_SIZE: Final = 20
"""Pulsar's `dispatcherMaxRoundRobinBatchSize`, in entries."""


class SharedConsumer(NamedTuple):
    """A connected consumer."""

    consumer: str
    priority_level: int = 0


class Pick(NamedTuple):
    """Entries from `first` up to, not including, `stop` go to a consumer."""

    consumer: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class SharedDispatch:
    """The consumers and whose turn it is."""

    consumers: tuple[SharedConsumer, ...] = ()
    turn: int = 0
    """The place in `consumers` after the last one that was given messages."""

    def add(self, consumer: str, priority_level: int = 0) -> SharedDispatch:
        """The same with one consumer more, the last of its level. ValueError if its id is taken."""
        if any(each.consumer == consumer for each in self.consumers):
            raise ValueError(f"consumer {consumer!r} is there already: ids must differ")
        joined = (*self.consumers, SharedConsumer(consumer, priority_level))
        return replace(self, consumers=tuple(sorted(joined, key=_level)))

    def remove(self, consumer: str) -> SharedDispatch:
        """The same without a consumer; unchanged if it is not there."""
        left = tuple(each for each in self.consumers if each.consumer != consumer)
        return self if len(left) == len(self.consumers) else replace(self, consumers=left)

    def dispatch(
        self,
        batch_sizes: NDArray[np.integer[Any]],
        permits: dict[str, int],
        max_round_robin_batch_size: int = MAX_ROUND_ROBIN_BATCH_SIZE,
    ) -> tuple[SharedDispatch, list[Pick]]:
        """Deal entries, in order, until they are gone or nobody can take more.

        `batch_sizes`: the messages of each entry that are to be delivered, shape (n,).
        `permits`: how many messages each consumer may be given; what it is given goes off them.
        """
        edges: list[int] = [0, *np.cumsum(batch_sizes, dtype=np.int64).tolist()]
        total, first = len(batch_sizes), 0
        average = max(edges[-1] // total, 1) if total else 1
        turn, picks = self.turn, []
        while first < total:
            place = self._next_place(turn, permits)
            if place is None:
                break
            consumer, turn = self.consumers[place].consumer, place + 1
            left = edges[-1] - edges[first]
            entries = max_entries_in_this_batch(
                left, average, permits[consumer], max_round_robin_batch_size
            )
            stop = min(first + entries, total)
            permits[consumer] -= edges[stop] - edges[first]
            picks.append(Pick(consumer, first, stop))
            first = stop
        return replace(self, turn=turn), picks

    def to_json_value(self) -> dict[str, Any]:
        return {"consumers": [list(each) for each in self.consumers], "turn": self.turn}

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> SharedDispatch:
        consumers = tuple(SharedConsumer(*each) for each in value["consumers"])
        return SharedDispatch(consumers, value["turn"])

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert list(self.consumers) == sorted(self.consumers, key=_level), "out of order"
        assert self.turn >= 0, "a turn before the first"

    def _next_place(self, turn: int, permits: Mapping[str, int]) -> int | None:
        """Levels above that of the turn from their first on; its own from the turn on; then below.

        Once the level of the turn is left for one above, that one begins at its first consumer.
        """
        if not self.consumers:
            return None
        turn = turn if turn < len(self.consumers) else 0
        level = self.consumers[turn].priority_level
        # The level 0 is taken for the highest there is, as Pulsar takes it.
        highest = level in (0, self.consumers[0].priority_level)
        if highest and permits.get(self.consumers[turn].consumer, 0) > 0:
            return turn
        levels = [each.priority_level for each in self.consumers]
        first, stop = bisect_left(levels, level), bisect_right(levels, level)
        above = range(0 if highest else first)
        order = (*above, *range(turn, stop), *range(first, turn), *range(stop, len(levels)))
        free = (i for i in order if permits.get(self.consumers[i].consumer, 0) > 0)
        return next(free, None)


def max_entries_in_this_batch(
    remaining_messages: int,
    avg_batch_size: int,
    available_permits: int,
    max_round_robin_batch_size: int = MAX_ROUND_ROBIN_BATCH_SIZE,
) -> int:
    """The number of entries of a consumer in its turn; at least one."""
    messages = min(remaining_messages, available_permits)
    return max(min(max_round_robin_batch_size, -(-messages // avg_batch_size)), 1)


def _level(each: SharedConsumer) -> int:
    return each.priority_level
