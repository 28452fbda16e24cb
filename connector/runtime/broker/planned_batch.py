"""The broker's next batch, as its source gathers it: a difference to what is hosted.

Invariants: it names what happened and nothing else, but for a few partitions that come along to be
written anew, those of which nothing whole was said for the longest time; a partition that is set
aside is moved no further, and what it has not taken in stays known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pulsar_spark.connector.runtime.system_topics.broker_offset import (
    NO_COMMIT,
    BrokerOffset,
    PartitionBatch,
    Quarantined,
)
from pulsar_spark.connector.runtime.system_topics.hosted_topics import HostedTopics
from pulsar_spark.connector.runtime.system_topics.lease import Lease
from pulsar_spark.model.topic_name import TopicName, TopicPartition

_NOTHING: Final = PartitionBatch()


class PlannedBatch:
    """A batch that `offset` names once all has been said."""

    def __init__(self, known: HostedTopics, dispatched: int) -> None:
        self._known, self._dispatched = known, dispatched
        self._parts: dict[TopicPartition, PartitionBatch] = {}
        self.new: dict[str, dict[TopicPartition, None]] = {}
        """The partitions that were not hosted before, by topic."""
        self.referenced: set[TopicPartition] = set()
        self._idle = {*known.quarantined}
        """The partitions that stay quarantined."""
        self.partitions: dict[str, int] = {}
        self.lapsed: tuple[Lease, ...] = ()
        self._changed: dict[str, Mapping[str, Any]] = {}

    def part(self, topic_partition: TopicPartition) -> PartitionBatch:
        """The batch's part for that partition, so far."""
        return self._parts.get(topic_partition, _NOTHING)

    def host(self, topic_partition: TopicPartition) -> None:
        if not self._is_hosted(topic_partition):
            self.new.setdefault(topic_partition.topic, {})[topic_partition] = None
            self._stay(topic_partition)

    def number(self, topic_partition: TopicPartition) -> int:
        """The last commit that it has heard of."""
        observed = self.part(topic_partition).observed
        return (
            self._known.commits.get(topic_partition, NO_COMMIT) if observed is None else observed[0]
        )

    def awake(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions that are hosted and not set aside."""
        abouts = {**self._known.topics.get(topic, {}), **self.new.get(topic, {})}
        return [*self.hosted_of(abouts)]

    def hosted_of(self, abouts: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """The partitions of these that are hosted and not quarantined."""
        for topic_partition in abouts:
            is_out = self.is_quarantined(topic_partition) or self.part(topic_partition).is_gone
            if self._is_hosted(topic_partition) and not is_out:
                yield topic_partition

    def is_quarantined(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._idle or self.part(topic_partition).quarantined is not None

    def try_again(self, topic_partition: TopicPartition) -> None:
        """It is aside no longer: it steps with all that was kept for it."""
        self._idle.discard(topic_partition)
        self._stay(topic_partition)
        held = self._known.quarantined[topic_partition]
        self._change(topic_partition, again=held, created=held.created, is_due=True)

    def quarantine(self, topic_partition: TopicPartition, number: int, held: Quarantined) -> None:
        """Keep what it has not taken in: all behind that commit, and what `held` says."""
        if not self._is_hosted(topic_partition):
            self.host(topic_partition)
            self._change(
                topic_partition, is_renewed=True
            )  # its topic is deleted, but what is left may be old
        observed = number, number
        self._change(
            topic_partition,
            observed=observed,
            quarantined=held,
            again=None,
            created=(),
            is_due=False,
        )

    def leave(self, topic: str) -> None:
        """The topic is deleted."""
        for topic_partition in {**self._known.topics.get(topic, {}), **self.new.pop(topic, {})}:
            self._idle.discard(topic_partition)
            self._parts[topic_partition] = PartitionBatch(is_gone=True)

    def create(self, topic_partition: TopicPartition, subscriptions: tuple[str, ...]) -> None:
        """Host a new partition, with these."""
        self.host(topic_partition)
        self._change(topic_partition, created=subscriptions)

    def move(self, logs: Mapping[str, int]) -> None:
        """To the last commits of these topics."""
        for topic, last in logs.items():
            for topic_partition in self.awake(topic):
                if last > (before := self.number(topic_partition)):
                    self._change(topic_partition, observed=(before, last))

    def tell(self, namespace: str, changes: Mapping[str, Any]) -> None:
        """All topics of the namespace are to hear what it says now."""
        self._changed[namespace] = changes
        for topic in self._known.namespaces.get(namespace, ()):
            for topic_partition in self.awake(topic):
                self._stay(topic_partition)

    def step(self, due: Iterable[TopicPartition]) -> None:
        """These are due, of those that are not aside."""
        for topic_partition in self.hosted_of(due):
            self._change(topic_partition, is_due=True)

    def namespaces(self) -> set[str]:
        """The namespaces of the topics that get input."""
        topics = {
            topic_partition.topic
            for topic_partition, part in self._parts.items()
            if part.observed is not None
        }
        return {str(TopicName.parse(topic).namespace) for topic in topics}

    @property
    def is_empty(self) -> bool:
        known = self._known.partitions
        grown = any(known.get(topic) != count for topic, count in self.partitions.items())
        return not (grown or self._parts or self.lapsed or self._changed)

    def renew(self, every: int) -> None:
        """Take along a few of whom nothing was said anew for so many ledgers."""
        known = self._known
        count = max(1, 2 * len(known.commits) // every)
        for topic_partition in known.oldest(count, self._dispatched - every):
            if not self.part(topic_partition).is_gone:
                self._stay(topic_partition)
                self._change(topic_partition, is_renewed=True)
                if topic_partition in self._idle:
                    self._change(topic_partition, quarantined=known.quarantined[topic_partition])
                if (partitions := known.partitions.get(topic_partition.topic)) is not None:
                    self.partitions.setdefault(topic_partition.topic, partitions)

    def offset(
        self, commands: tuple[int, int], now_ms: int, growing: tuple[str, ...]
    ) -> BrokerOffset:
        known = self._known
        policies = {name: known.policies.get(name, {}) for name in self.namespaces()}
        policies = {name: changes for name, changes in policies.items() if changes} | self._changed
        for topic_partition in self.referenced & self._idle:
            self._change(topic_partition, is_kept=True)
        written_again = {
            topic_partition.topic
            for topic_partition, part in self._parts.items()
            if part.is_renewed
        }
        partitions = {
            topic: count
            for topic, count in self.partitions.items()
            if topic in written_again or known.partitions.get(topic) != count
        }
        held = [known.quarantined[topic_partition] for topic_partition in self._idle]
        held += [part.quarantined for part in self._parts.values() if part.quarantined]
        anew = {
            topic_partition
            for topic_partition, part in self._parts.items()
            if part.is_renewed or part.is_gone
        }
        first = known.since(self._dispatched, anew)
        return BrokerOffset(
            commands=commands,
            parts=self._parts,
            now_ms=now_ms,
            lapsed=self.lapsed,
            dispatched=self._dispatched,
            partitions=partitions,
            policies=policies,
            changed=tuple(sorted(self._changed)),
            growing=growing,
            since=(first, min([commands[1], *(each.commands for each in held)])),
        )

    def _is_hosted(self, topic_partition: TopicPartition) -> bool:
        return (
            topic_partition in self._known.commits
            or self.part(topic_partition).observed is not None
        )

    def _stay(self, topic_partition: TopicPartition) -> None:
        """It is of the batch, and hears of no commit unless one is said."""
        if self.part(topic_partition).observed is None:
            self._change(topic_partition, observed=(self.number(topic_partition),) * 2)

    def _change(self, topic_partition: TopicPartition, **changes: Any) -> None:
        self._parts[topic_partition] = replace(self.part(topic_partition), **changes)
