"""The hosted topics of a broker: the fold of its offsets, each of which is a difference.

Invariants: the fold of the offsets in `__dispatch`, from its first ledger on, is what the last one
ended with, however far it is trimmed: whatever a trim takes away was said again behind it. So it
costs nothing to keep up, and a batch's offset need not say what there is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any

from pulsar_spark.broker.hosting.broker_format import from_shards
from pulsar_spark.broker.subscriptions.broker_state import BrokerState
from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    OFFSET_RECORD,
    SHARD_PREFIX,
    BrokerOffset,
    Quarantined,
)
from pulsar_spark.connector.runtime.system_topics.system_topics import (
    DISPATCH,
    Record,
    StoredRecord,
    SystemTopic,
)
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.model.topic_name import TopicName, TopicPartition


class HostedTopics:
    """The topic partitions that have a broker, and what is known of each, after one batch."""

    def __init__(self) -> None:
        self.last_offset: BrokerOffset | None = None
        """The offset of the last batch; None before the first."""
        self.commits: dict[TopicPartition, int] = {}
        """The last commit that each has heard of."""
        self.topics: dict[str, dict[TopicPartition, None]] = {}
        self.namespaces: dict[str, dict[str, None]] = {}
        """The hosted topics of each namespace."""
        self.partitions: dict[str, int] = {}
        self.quarantined: dict[TopicPartition, Quarantined] = {}
        self.policies: dict[str, Any] = {}
        """The policies of namespaces, where there are any."""
        self._since: OrderedDict[TopicPartition, int] = OrderedDict()
        """The ledger of `__dispatch` from which on all of its state is there; the oldest first."""

    @property
    def batch(self) -> BrokerOffset:
        """The last batch; an empty one before the first."""
        return self.last_offset or BrokerOffset()

    def observe(self, stored: StoredRecord) -> None:
        """Take in the next batch's offset, from its record."""
        self.apply(BrokerOffset.from_json(stored.record.data), stored.ledger_id)

    def apply(self, offset: BrokerOffset, ledger_id: int = 0) -> None:
        """Take in the next batch's offset, and in which ledger it lies, where it doesn't say."""
        self.last_offset = offset
        at = ledger_id if offset.dispatched is None else offset.dispatched
        for topic_partition, part in offset.parts.items():
            if part.observed is not None:
                self._host(topic_partition, part.observed[1], at)
        for topic_partition, part in offset.parts.items():
            if part.is_gone:
                self._leave(topic_partition)
            if part.is_renewed and topic_partition in self._since:
                self._since[topic_partition] = at
                self._since.move_to_end(topic_partition)
            if part.quarantined is not None:
                self.quarantined[topic_partition] = part.quarantined
            elif part.again is not None:
                self.quarantined.pop(topic_partition, None)
        self.partitions |= offset.partitions
        self.policies |= offset.policies
        for name in offset.changed:
            if not self.policies[name]:
                del self.policies[name]

    def oldest(self, count: int, before: int) -> list[TopicPartition]:
        """The partitions, up to `count`, whose state has an entry before that ledger."""
        found = islice(self._since.items(), count)
        return [topic_partition for topic_partition, ledger_id in found if ledger_id < before]

    def since(self, here: int, but: Collection[TopicPartition]) -> int:
        """The first ledger of `__dispatch` that anybody's state needs, but theirs; else `here`."""
        return next(
            (at for topic_partition, at in self._since.items() if topic_partition not in but), here
        )

    def _host(self, topic_partition: TopicPartition, number: int, at: int) -> None:
        if topic_partition not in self.commits:
            self.topics.setdefault(topic_partition.topic, {})[topic_partition] = None
            namespace = str(TopicName.parse(topic_partition.topic).namespace)
            self.namespaces.setdefault(namespace, {})[topic_partition.topic] = None
            self._since[topic_partition] = at
        self.commits[topic_partition] = number

    def _leave(self, topic_partition: TopicPartition) -> None:
        if self.commits.pop(topic_partition, None) is None:
            return
        del self._since[topic_partition], self.topics[topic_partition.topic][topic_partition]
        self.quarantined.pop(topic_partition, None)
        if self.topics[topic_partition.topic]:
            return
        del self.topics[topic_partition.topic]
        self.partitions.pop(topic_partition.topic, None)
        namespace = str(TopicName.parse(topic_partition.topic).namespace)
        del self.namespaces[namespace][topic_partition.topic]
        if not self.namespaces[namespace]:
            del self.namespaces[namespace]
            self.policies.pop(namespace, None)


class FollowedTopics(HostedTopics):
    """The hosted topics of a root, kept up by repeated polls."""

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._dispatch, self._read = SystemTopic(root, DISPATCH), 0

    def follow(self) -> None:
        """Take in the batches since the last look."""
        stop = self._dispatch.refresh()
        if stop > self._read:
            for stored in read_offsets(self._dispatch, self._read, stop):
                self.observe(stored)
            self._read = stop


def read_offsets(dispatch: SystemTopic, first: int, stop: int) -> Iterator[StoredRecord]:
    """The records that have the offsets of these ledgers' batches."""
    yield from dispatch.read(first, stop, keep=lambda _, name: name == OFFSET_RECORD)


def hosted_topics(dispatch: SystemTopic, stop_ledger: int) -> HostedTopics:
    """The hosted topics after the last batch before that ledger."""
    topics = HostedTopics()
    for stored in read_offsets(dispatch, 0, stop_ledger):
        topics.observe(stored)
    return topics


def last_shards(
    dispatch: SystemTopic, stop_ledger: int
) -> tuple[HostedTopics, dict[TopicPartition, dict[str, bytes]]]:
    """(what was hosted after the last batch, each broker's shards then), from `__dispatch`."""
    topics = HostedTopics()
    brokers: dict[TopicPartition, dict[str, bytes]] = {}
    kept = (OFFSET_RECORD, SHARD_PREFIX)
    reported = dispatch.read(0, stop_ledger, keep=lambda _, name: name.startswith(kept))
    for stored in reported if stop_ledger else ():
        if stored.record.subscription == OFFSET_RECORD:
            topics.observe(stored)
        else:
            put_shard(brokers.setdefault(stored.record.topic_partition, {}), stored.record)
    return topics, {
        topic_partition: shards for topic_partition, shards in brokers.items() if shards
    }


def put_shard(shards: dict[str, bytes], record: Record) -> None:
    """Take in what a record says of a broker's shards: one is new, or gone."""
    key = record.subscription.removeprefix(SHARD_PREFIX)
    if record.data:
        shards[key] = record.data
    else:
        shards.pop(key, None)


def hosted_states(
    root: Root, requested: Callable[[TopicPartition], bool]
) -> dict[TopicPartition, BrokerState]:
    """The state of each broker as of its last step; without the columns of its ledgers."""
    dispatch = SystemTopic(root, DISPATCH)
    brokers = last_shards(dispatch, dispatch.refresh())[1]
    chosen = (
        (topic_partition, shards)
        for topic_partition, shards in sorted(brokers.items())
        if requested(topic_partition)
    )
    return {
        topic_partition: from_shards(shards, columns=False) for topic_partition, shards in chosen
    }
