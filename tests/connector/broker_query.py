"""The broker's query as Spark runs it, without a JVM: its states are in Spark's stores.

Invariants: a batch's states count once Spark has committed the batch itself, behind the sink; until
then it is repeated, by each query that begins, on the states before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pulsar_spark.broker.hosting.hosted_broker import HostedBroker
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics.broker_offset import BrokerOffset
from pulsar_spark.connector.runtime.topics.topics import Root


@dataclass
class QueryCheckpoint:
    """What Spark keeps of the query."""

    query_id: str
    batch_id: int = -1
    """The last batch that Spark has committed, ..."""
    offset: BrokerOffset = field(default_factory=BrokerOffset)
    """... its end, ..."""
    brokers: Mapping[tuple[str, int], HostedBroker] = field(default_factory=dict)
    """... and the states behind it."""
    under_way: BrokerOffset | None = None
    """The end of the batch that Spark has planned and not committed."""


class BrokerQuery(EmbeddedBroker):
    """Hosts the same source, steps and sink."""

    def __init__(
        self, root: Root, kept: QueryCheckpoint, before_commit: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(root)
        self._kept, self._before_commit = kept, before_commit
        self._id, self._batch_id, self.offset = kept.query_id, kept.batch_id, kept.offset
        self.brokers = {
            topic_partition: HostedBroker(each.shards)
            for topic_partition, each in kept.brokers.items()
        }
        self._under_way = kept.under_way

    def run_once(self) -> bool:
        did = super().run_once()
        if did:
            self._commit()
        return did

    def _commit(self) -> None:
        """Spark's own, which may fail, as each change of a store."""
        self._before_commit()
        self.root.store.replace(f"_query/{self._id}", lambda _: str(self._batch_id).encode())
        self._kept.batch_id, self._kept.offset = self._batch_id, self.offset
        self._kept.brokers, self._kept.under_way = dict(self.brokers), None

    def _plan(self, number: int, end: BrokerOffset) -> None:
        assert number == self._kept.batch_id + 1
        self._kept.under_way = end

    def _run(self, number: int, end: BrokerOffset) -> None:
        again = BrokerOffset.from_json(end.to_json())  # Spark gives back what it has written
        assert again == end, "its source would take each batch for a repeated one"
        super()._run(number, again)
