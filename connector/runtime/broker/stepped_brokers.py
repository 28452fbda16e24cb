"""The brokers' last reports: when each is due, what is durable, which consumers are connected.

Invariants: what is asked at each look (the earliest that is due, the leases to watch) costs nothing
however many topic partitions are hosted; whoever said nothing since is known by what it said last.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from pulsar_spark.broker.protocol.ready import Stepped
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.model.topic_name import TopicPartition

OUTDATED: Final = 100
"""So many instants that no longer hold may stand in the queue, beside as many as hold."""


class SteppedBrokers:
    """The last `Stepped` of each topic partition."""

    def __init__(self) -> None:
        self.durable: dict[TopicPartition, tuple[str, ...]] = {}
        """The durable subscriptions; of whoever is not here nothing was heard."""
        self.leases: dict[str, dict[TopicPartition, Lease]] = {}
        """Lease -> where its consumer is subscribed."""
        self._consumers: dict[TopicPartition, tuple[tuple[str, str, int], ...]] = {}
        self._due: dict[TopicPartition, int] = {}
        self._queue: list[tuple[int, TopicPartition]] = []
        """Instants in `_due`, the earliest first, and some that were there once."""

    def observe(self, topic_partition: TopicPartition, step: Stepped) -> None:
        self.due_at(topic_partition, step.next_due_ms)
        self.durable[topic_partition] = step.durable
        before = self._consumers.get(topic_partition, ())
        if step.consumers == before:
            return
        self._consumers[topic_partition] = step.consumers
        for each in before:
            path = Lease(*each).path
            self.leases[path].pop(topic_partition, None)
            if not self.leases[path]:
                del self.leases[path]
        for each in step.consumers:
            lease = Lease(*each)
            self.leases.setdefault(lease.path, {})[topic_partition] = lease

    def due_at(self, topic_partition: TopicPartition, at_ms: int | None) -> None:
        """Step it then; None is never."""
        self._due.pop(topic_partition, None)
        if at_ms is not None:
            self._due[topic_partition] = at_ms
            heappush(self._queue, (at_ms, topic_partition))
        if len(self._queue) > 2 * len(self._due) + OUTDATED:
            self._queue = [(at_ms, topic_partition) for topic_partition, at_ms in self._due.items()]
            heapify(self._queue)

    def first_due_ms(self) -> int | None:
        """The earliest instant at which one is due."""
        while self._queue and self._due.get(self._queue[0][1]) != self._queue[0][0]:
            heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def take_due(self, now_ms: int) -> set[TopicPartition]:
        """The partitions that are due; they are due again when their next step reports it."""
        taken: set[TopicPartition] = set()
        while (first_ms := self.first_due_ms()) is not None and first_ms <= now_ms:
            _, topic_partition = heappop(self._queue)
            del self._due[topic_partition]
            taken.add(topic_partition)
        return taken
