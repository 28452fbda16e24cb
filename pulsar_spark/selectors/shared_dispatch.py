"""The turns of a Shared subscription's consumers: who gets the next messages, and how many.

Invariants: immutable; consumers stand by priority level (the lowest first) and in order of
joining; of one level they take turns; a level gets messages only while no consumer of the levels
above has room. Permits may go below 0 by part of a batch, which evens out. Follows Pulsar's
`AbstractDispatcherMultipleConsumers.getNextConsumer` and
`PersistentDispatcherMultipleConsumers.getMaxEntriesInThisBatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


@dataclass(slots=True)
class Capacity:
    """A consumer's room. It shrinks as messages are given: it lives for one dispatch."""

    permits: int
    unacked_messages: int = 0
    max_unacked_messages: int = 0
    """0 for no limit."""

    @property
    def is_available(self) -> bool:
        limit = self.max_unacked_messages
        return self.permits > 0 and not (limit > 0 and self.unacked_messages >= limit)


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

    def next(self, is_available: Callable[[str], bool]) -> tuple[SharedDispatch, str | None]:
        """(the dispatch after it, the next consumer); None, without a change, if none has room."""
        if not self.consumers:
            return self, None
        turn = self.turn if self.turn < len(self.consumers) else 0
        place = self._next_place(turn, is_available)
        if place is None:
            return replace(self, turn=turn), None
        return replace(self, turn=place + 1), self.consumers[place].consumer

    def dispatch(
        self,
        batch_sizes: NDArray[np.integer[Any]],
        capacities: Mapping[str, Capacity],
        max_round_robin_batch_size: int = MAX_ROUND_ROBIN_BATCH_SIZE,
    ) -> tuple[SharedDispatch, list[Pick]]:
        """Deal entries, in order, until they are gone or nobody can take more.

        `batch_sizes`: the messages of each entry that are to be delivered, shape (n,).
        `capacities` by consumer: those not in it take nothing; the others are written to.
        """
        ends = np.concatenate(([0], np.cumsum(batch_sizes, dtype=np.int64)))
        total, first = len(batch_sizes), 0
        average = max(int(ends[-1]) // total, 1) if total else 1
        edges: list[int] = ends.tolist()

        def is_available(consumer: str) -> bool:
            held = capacities.get(consumer)
            return held is not None and held.is_available

        turn, picks = self.turn, []
        while first < total and self.consumers:
            place = self._next_place(turn if turn < len(self.consumers) else 0, is_available)
            if place is None:
                break
            consumer, turn = self.consumers[place].consumer, place + 1
            held = capacities[consumer]
            entries = max_entries_in_this_batch(
                edges[-1] - edges[first],
                held.max_unacked_messages,
                held.unacked_messages,
                average,
                held.permits,
                max_round_robin_batch_size,
            )
            stop = min(first + entries, total)
            messages = edges[stop] - edges[first]
            held.permits -= messages
            held.unacked_messages += messages
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

    def _next_place(self, turn: int, is_available: Callable[[str], bool]) -> int | None:
        """Levels above that of the turn from their first on; its own from the turn on; then below.

        Once the level of the turn is left for one above, that one begins at its first consumer.
        """
        level = self.consumers[turn].priority_level
        highest = level in (0, self.consumers[0].priority_level)
        if highest and is_available(self.consumers[turn].consumer):
            return turn
        above = [i for i, each in enumerate(self.consumers) if each.priority_level < level]
        same = [i for i, each in enumerate(self.consumers) if each.priority_level == level]
        below = list(range(len(above) + len(same), len(self.consumers)))
        # The level 0 is taken for the highest there is, as Pulsar takes it.
        higher = [] if highest else above
        start = turn - len(above)
        for place in (*higher, *same[start:], *same[:start], *below):
            if is_available(self.consumers[place].consumer):
                return place
        return None


def max_entries_in_this_batch(
    remaining_messages: int,
    max_unacked_messages: int,
    unacked_messages: int,
    avg_batch_size: int,
    available_permits: int,
    max_round_robin_batch_size: int = MAX_ROUND_ROBIN_BATCH_SIZE,
) -> int:
    """How many entries a consumer is given in its turn; one at least, whatever its permits."""
    messages = min(remaining_messages, available_permits)
    if max_unacked_messages > 0:
        messages = min(messages, max(max_unacked_messages - unacked_messages, 0))
    return max(min(max_round_robin_batch_size, -(-messages // avg_batch_size)), 1)


def _level(each: SharedConsumer) -> int:
    return each.priority_level
