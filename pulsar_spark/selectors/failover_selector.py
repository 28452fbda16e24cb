"""The active one of a subscription's consumers (Exclusive, Failover).

Invariants: immutable; consumers stand by priority level (the lowest first), then by name in UTF-16
order as Java compares them, then in order of joining; only those of the lowest level can become
active; there is an active one as long as there is any. Follows Pulsar's
`AbstractDispatcherSingleActiveConsumer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pulsar_spark.errors import ConsumerBusyError, ConsumerNotConnectedError
from pulsar_spark.producing.hashing import murmur3_32_hash

RING_POINTS: Final = 100
"""Points of each consumer on the ring (Pulsar's CONSUMER_CONSISTENT_HASH_REPLICAS)."""


class FailoverConsumer(NamedTuple):
    """A connected consumer; ids differ, names need not."""

    consumer: str
    name: str
    priority_level: int = 0


@dataclass(frozen=True, slots=True)
class FailoverSelector:
    """The consumers of one subscription on one topic partition."""

    topic: str
    """The full name, with `-partition-N` if it is one."""
    partition_index: int = -1
    """-1 for a topic without partitions."""
    consistent_hashing: bool = False
    """Pulsar's `activeConsumerFailoverConsistentHashing`; without partitions it is always so."""
    exclusive: bool = False
    consumers: tuple[FailoverConsumer, ...] = ()
    active: str | None = None

    def add(self, consumer: str, name: str, priority_level: int = 0) -> FailoverSelector:
        """The selector with one consumer more, who may be active at once.

        ConsumerBusyError if the subscription is Exclusive and has one; ValueError if the id is
        there already.
        """
        if self.exclusive and self.consumers:
            raise ConsumerBusyError("Exclusive consumer is already connected")
        if any(each.consumer == consumer for each in self.consumers):
            raise ValueError(f"consumer {consumer!r} is there already: ids must differ")
        joined = (*self.consumers, FailoverConsumer(consumer, name, priority_level))
        return self._pick(sorted(joined, key=_order))

    def remove(self, consumer: str) -> FailoverSelector:
        """The selector without a consumer. ConsumerNotConnectedError if it is not there."""
        left = [each for each in self.consumers if each.consumer != consumer]
        if len(left) == len(self.consumers):
            raise ConsumerNotConnectedError("Consumer was not connected")
        return self._pick(left)

    def can_unsubscribe(self, consumer: str) -> bool:
        """Whether it is the only consumer, and the active one."""
        return len(self.consumers) == 1 and consumer == self.active

    def to_json_value(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition_index": self.partition_index,
            "consistent_hashing": self.consistent_hashing,
            "exclusive": self.exclusive,
            "consumers": [list(each) for each in self.consumers],
        }

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> FailoverSelector:
        consumers = [FailoverConsumer(*each) for each in value["consumers"]]
        empty = FailoverSelector(**{**value, "consumers": ()})
        return replace(empty, consumers=tuple(consumers), active=empty.active_of(consumers))

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert list(self.consumers) == sorted(self.consumers, key=_order), "out of order"
        assert (self.active is None) == (not self.consumers), "nobody is active, or one who left"
        assert not self.exclusive or len(self.consumers) <= 1, "an Exclusive subscription shared"

    def _pick(self, consumers: Sequence[FailoverConsumer]) -> FailoverSelector:
        return replace(self, consumers=tuple(consumers), active=self.active_of(consumers))

    def active_of(self, consumers: Sequence[FailoverConsumer]) -> str | None:
        """The active one of these, given in order; None of nobody."""
        if not consumers:
            return None
        level = consumers[0].priority_level
        best = [each for each in consumers if each.priority_level == level]
        if self.partition_index >= 0 and not self.consistent_hashing:
            return best[self.partition_index % len(best)].consumer
        return _on_ring(best, self.topic).consumer


def _order(each: FailoverConsumer) -> tuple[int, bytes]:
    return each.priority_level, each.name.encode("utf-16-be", "surrogatepass")


def _on_ring(consumers: Iterable[FailoverConsumer], topic: str) -> FailoverConsumer:
    """The consumer of the next point at or above the topic's hash; of equal points the last."""
    ring = {
        murmur3_32_hash(f"{each.name}{point}"): each
        for each in consumers
        for point in range(RING_POINTS)
    }
    place = murmur3_32_hash(topic)
    return ring[min((point for point in ring if point >= place), default=min(ring))]
