"""The active one of a subscription's consumers (Exclusive, Failover).

Invariants: immutable; consumers stand by priority level (the lowest first), then, unless the first
come is active, by name in UTF-16 order as Java compares them, then in order of joining; only those
of the lowest level can become active; there is an active one as long as there is any. Follows
Pulsar's `AbstractDispatcherSingleActiveConsumer`, but for
FIRST_COME: for a topic without partitions Pulsar's documentation promises that the first to connect
is active, and its hash ring (the index -1) lets a newcomer take over from a consumer at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from pulsar_spark.errors import ConsumerBusyError, ConsumerNotConnectedError
from pulsar_spark.log.producing.hashing import murmur3_32_hash

RING_POINTS: Final = 100
"""Points of each consumer on the ring (Pulsar's CONSUMER_CONSISTENT_HASH_REPLICAS)."""

FIRST_COME: Final = -2
"""The partition index where the consumer that joined first is active, whatever its name is."""


class FailoverConsumer(NamedTuple):
    """A connected consumer; ids differ, names need not."""

    consumer: str
    name: str
    priority_level: int = 0


@dataclass(frozen=True)
class FailoverSelector:
    """The consumers of one subscription on one topic partition."""

    topic: str
    """The full name, with `-partition-N` if it is one."""
    partition_index: int = -1
    """-1 for a topic without partitions in which Pulsar's ring chooses; or FIRST_COME."""
    consistent_hashing: bool = False
    """Pulsar's `activeConsumerFailoverConsistentHashing`; with index -1 it is always so."""
    exclusive: bool = False
    consumers: tuple[FailoverConsumer, ...] = ()

    @cached_property
    def active(self) -> str | None:
        """The active consumer; None if there is none at all."""
        if not self.consumers:
            return None
        level = self.consumers[0].priority_level
        best = [each for each in self.consumers if each.priority_level == level]
        if self.partition_index == FIRST_COME:
            return best[0].consumer
        if self.partition_index >= 0 and not self.consistent_hashing:
            return best[self.partition_index % len(best)].consumer
        return _on_ring(best, self.topic).consumer

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
        return replace(self, consumers=tuple(sorted(joined, key=self._order)))

    def remove(self, consumer: str) -> FailoverSelector:
        """The selector without a consumer. ConsumerNotConnectedError if it is not there."""
        left = tuple(each for each in self.consumers if each.consumer != consumer)
        if len(left) == len(self.consumers):
            raise ConsumerNotConnectedError("Consumer was not connected")
        return replace(self, consumers=left)

    def can_unsubscribe(self, consumer: str) -> bool:
        """True if it is the only consumer, and the active one."""
        return len(self.consumers) == 1 and consumer == self.active

    def to_json_value(self) -> dict[str, Any]:
        """The state in values that are plain, or become so in JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> FailoverSelector:
        consumers = tuple(FailoverConsumer(*each) for each in value["consumers"])
        return FailoverSelector(**{**value, "consumers": consumers})

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert list(self.consumers) == sorted(self.consumers, key=self._order), "out of order"
        assert not self.exclusive or len(self.consumers) <= 1, "an Exclusive subscription shared"

    def _order(self, each: FailoverConsumer) -> tuple[int, bytes]:
        is_named = self.partition_index != FIRST_COME
        name = each.name.encode("utf-16-be", "surrogatepass") if is_named else b""
        return each.priority_level, name


def _on_ring(consumers: Iterable[FailoverConsumer], topic: str) -> FailoverConsumer:
    """The consumer of the next point at or above the topic's hash; of equal points the last."""
    ring = {
        murmur3_32_hash(f"{each.name}{point}"): each
        for each in consumers
        for point in range(RING_POINTS)
    }
    place = murmur3_32_hash(topic)
    return ring[min((point for point in ring if point >= place), default=min(ring))]
