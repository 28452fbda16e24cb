"""What a broker hosts: all that its offsets say together, each of which is a difference.

Invariants: the fold of the offsets in `__dispatch`, from its first ledger on, is what the last one
ended with, however far it is trimmed: whatever a trim takes away was said again behind it. So it
costs nothing to keep up, and a batch's offset need not say what there is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from pulsar_spark.connector.system.broker_offset import (
    NO_COMMIT,
    OFFSET_RECORD,
    SHARD_PREFIX,
    Aside,
    BrokerOffset,
    PartitionBatch,
)
from pulsar_spark.connector.system.system_topics import (
    DISPATCH,
    Record,
    StoredRecord,
    SystemTopic,
)
from pulsar_spark.connector.topic_log.topics import Root
from pulsar_spark.hosting.broker_format import from_shards
from pulsar_spark.subscriptions.broker_state import BrokerState
from pulsar_spark.topic_name import TopicName, TopicPartition


class HostedTopics:
    """The topic partitions that have a broker, and what is known of each, after one batch."""

    def __init__(self) -> None:
        self.said: BrokerOffset | None = None
        """The last offset, as it was written, ..."""
        self.batch = BrokerOffset()
        """... and as a difference, whichever version it is of."""
        self.commits: dict[TopicPartition, int] = {}
        """The last commit that each has heard of."""
        self.topics: dict[str, dict[TopicPartition, None]] = {}
        self.namespaces: dict[str, dict[str, None]] = {}
        """The hosted topics of each namespace."""
        self.partitions: dict[str, int] = {}
        self.aside: dict[TopicPartition, Aside] = {}
        self.policies: dict[str, Any] = {}
        """What namespaces say, where they say anything."""
        self._since: OrderedDict[TopicPartition, int] = OrderedDict()
        """The ledger of `__dispatch` from which on all of its state is there; the oldest first."""

    def hear(self, stored: StoredRecord) -> None:
        """Take in the next batch's offset, from its record."""
        self.apply(BrokerOffset.from_json(stored.record.data), stored.ledger_id)

    def apply(self, offset: BrokerOffset, ledger_id: int = 0) -> None:
        """Take in the next batch's offset, and in which ledger it lies, where it doesn't say."""
        self.said = offset
        self.batch = offset = self.difference(offset)
        at = ledger_id if offset.dispatched is None else offset.dispatched
        for about, part in offset.parts.items():
            if part.heard is not None:
                self._host(about, part.heard[1], at)
        for about, part in offset.parts.items():
            if part.is_gone:
                self._leave(about)
            if part.is_renewed and about in self._since:
                self._since[about] = at
                self._since.move_to_end(about)
            if part.aside is not None:
                self.aside[about] = part.aside
            elif part.again is not None:
                self.aside.pop(about, None)
        self.partitions |= offset.partitions
        self.policies |= offset.policies
        for name in offset.changed:
            if not self.policies[name]:
                del self.policies[name]

    def difference(self, offset: BrokerOffset) -> BrokerOffset:
        """The batch that leads from here to an offset that is whole; any other is one already."""
        if not offset.is_whole:
            return offset
        parts = {about: PartitionBatch(is_gone=True) for about in self.commits}
        for about, part in offset.parts.items():
            parts[about] = replace(
                part,
                heard=part.heard and (self.commits.get(about, NO_COMMIT), part.heard[1]),
                again=self.aside.get(about) if part.aside is None else None,
                is_kept=part.aside is not None and about in self.aside,
            )
        changed = {
            name
            for name in self.policies.keys() | offset.policies.keys()
            if self.policies.get(name, {}) != offset.policies.get(name, {})
        }
        return replace(
            offset,
            commands=(self.batch.commands[1], offset.commands[1]),
            parts=parts,
            policies={name: offset.policies.get(name, {}) for name in {*offset.policies, *changed}},
            changed=tuple(sorted(changed)),
            is_whole=False,
        )

    def oldest(self, count: int, before: int) -> list[TopicPartition]:
        """Those, at most so many, of whose state something was written last before that ledger."""
        found = islice(self._since.items(), count)
        return [about for about, ledger_id in found if ledger_id < before]

    def since(self, here: int, but: Collection[TopicPartition]) -> int:
        """The first ledger of `__dispatch` that anybody's state needs, but theirs; else `here`."""
        return next((at for about, at in self._since.items() if about not in but), here)

    def _host(self, about: TopicPartition, number: int, at: int) -> None:
        if about not in self.commits:
            self.topics.setdefault(about.topic, {})[about] = None
            namespace = str(TopicName.parse(about.topic).namespace)
            self.namespaces.setdefault(namespace, {})[about.topic] = None
            self._since[about] = at
        self.commits[about] = number

    def _leave(self, about: TopicPartition) -> None:
        if self.commits.pop(about, None) is None:
            return
        del self._since[about], self.topics[about.topic][about]
        self.aside.pop(about, None)
        if self.topics[about.topic]:
            return
        del self.topics[about.topic]
        self.partitions.pop(about.topic, None)
        namespace = str(TopicName.parse(about.topic).namespace)
        del self.namespaces[namespace][about.topic]
        if not self.namespaces[namespace]:
            del self.namespaces[namespace]
            self.policies.pop(namespace, None)


class FollowedTopics(HostedTopics):
    """What a root's broker hosts, for who looks again and again."""

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._dispatch, self._read = SystemTopic(root, DISPATCH), 0

    def follow(self) -> None:
        """Take in the batches since the last look."""
        stop = self._dispatch.refresh()
        if stop > self._read:
            for stored in read_offsets(self._dispatch, self._read, stop):
                self.hear(stored)
            self._read = stop


def read_offsets(dispatch: SystemTopic, first: int, stop: int) -> Iterator[StoredRecord]:
    """The records that have the offsets of these ledgers' batches."""
    yield from dispatch.read(first, stop, keep=lambda _, name: name == OFFSET_RECORD)


def hosted_topics(dispatch: SystemTopic, stop_ledger: int) -> HostedTopics:
    """What was hosted after the last batch before that ledger."""
    topics = HostedTopics()
    for stored in read_offsets(dispatch, 0, stop_ledger):
        topics.hear(stored)
    return topics


def last_shards(
    dispatch: SystemTopic, stop_ledger: int
) -> tuple[HostedTopics, dict[TopicPartition, dict[str, bytes]]]:
    """(what was hosted after the last batch, each broker's shards then), from `__dispatch`."""
    topics = HostedTopics()
    brokers: dict[TopicPartition, dict[str, bytes]] = {}
    kept = (OFFSET_RECORD, SHARD_PREFIX)
    told = dispatch.read(0, stop_ledger, keep=lambda _, name: name.startswith(kept))
    for stored in told if stop_ledger else ():
        if stored.record.subscription == OFFSET_RECORD:
            topics.hear(stored)
        else:
            put_shard(brokers.setdefault(stored.record.about, {}), stored.record)
    return topics, {about: shards for about, shards in brokers.items() if shards}


def put_shard(shards: dict[str, bytes], record: Record) -> None:
    """Take in what a record says of a broker's shards: one is new, or gone."""
    key = record.subscription.removeprefix(SHARD_PREFIX)
    if record.data:
        shards[key] = record.data
    else:
        shards.pop(key, None)


def hosted_states(
    root: Root, wanted: Callable[[TopicPartition], bool]
) -> dict[TopicPartition, BrokerState]:
    """What each broker knows, as of its last step; without the columns of its ledgers."""
    dispatch = SystemTopic(root, DISPATCH)
    brokers = last_shards(dispatch, dispatch.refresh())[1]
    chosen = ((about, shards) for about, shards in sorted(brokers.items()) if wanted(about))
    return {about: from_shards(shards, columns=False) for about, shards in chosen}
