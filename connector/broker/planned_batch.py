"""The broker's next batch, as its source gathers it: a difference to what is hosted.

Invariants: it names what happened and nothing else, but for a few partitions that come along to be
written anew, those of which nothing whole was said for the longest time; a partition that is set
aside is moved no further, and what it has not taken in stays known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pulsar_spark.connector.system.broker_offset import NO_COMMIT, Aside, BrokerOffset
from pulsar_spark.connector.system.hosted_topics import HostedTopics
from pulsar_spark.connector.system.lease import Lease
from pulsar_spark.topic_name import TopicName, TopicPartition


class PlannedBatch:
    """A batch that `offset` names once all has been said."""

    def __init__(self, known: HostedTopics, dispatched: int) -> None:
        self._known, self._dispatched = known, dispatched
        self._moved: dict[TopicPartition, tuple[int, int]] = {}
        self.new: dict[str, dict[TopicPartition, None]] = {}
        """The partitions that were not hosted before, by topic."""
        self.spoken_of: set[TopicPartition] = set()
        self.resting = {*known.aside}
        """Those that stay aside."""
        self.aside: dict[TopicPartition, Aside] = {}
        self.again: dict[TopicPartition, Aside] = {}
        self.gone: set[TopicPartition] = set()
        self.partitions: dict[str, int] = {}
        self.created: dict[TopicPartition, tuple[str, ...]] = {}
        self.due: set[TopicPartition] = set()
        self.lapsed: tuple[Lease, ...] = ()
        self._changed: dict[str, Mapping[str, Any]] = {}
        self._renewed: set[TopicPartition] = set()

    def host(self, about: TopicPartition) -> None:
        if about not in self._known.commits and about not in self._moved:
            self.new.setdefault(about.topic, {})[about] = None
            self._moved[about] = NO_COMMIT, NO_COMMIT

    def number(self, about: TopicPartition) -> int:
        """The last commit that it has heard of."""
        if about in self.aside:
            return self._moved[about][1]
        return self._known.commits.get(about, NO_COMMIT)

    def awake(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions that are hosted and not set aside."""
        abouts = {**self._known.topics.get(topic, {}), **self.new.get(topic, {})}
        return [*self.hosted_of(abouts)]

    def hosted_of(self, abouts: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """Those of them that are hosted and not set aside."""
        out = (self.resting, self.aside, self.gone)
        for about in abouts:
            is_hosted = about in self._known.commits or about in self._moved
            if is_hosted and not any(about in each for each in out):
                yield about

    def set_aside(self, about: TopicPartition, number: int, held: Aside) -> None:
        """Keep what it has not taken in: all behind that commit, and what `held` says."""
        if about not in self._known.commits and about not in self._moved:
            self.host(about)
            self._renewed.add(about)  # its topic is deleted, but what is left of it may be old
        self.aside[about] = held
        self._moved[about] = number, number

    def leave(self, topic: str) -> None:
        """The topic is deleted."""
        for about in {**self._known.topics.get(topic, {}), **self.new.pop(topic, {})}:
            self._moved.pop(about, None)
            self.aside.pop(about, None)
            self.resting.discard(about)
            self._renewed.discard(about)
            self.gone.add(about)

    def move(self, logs: Mapping[str, int]) -> None:
        """To the last commits of these topics."""
        for topic, last in logs.items():
            for about in self.awake(topic):
                before = self.number(about)
                if last > before:
                    self._moved[about] = before, last
        for about in self.again:
            self._moved.setdefault(about, (self.number(about),) * 2)

    def tell(self, namespace: str, said: Mapping[str, Any]) -> None:
        """All topics of the namespace are to hear what it says now."""
        self._changed[namespace] = said
        for topic in self._known.namespaces.get(namespace, ()):
            for about in self.awake(topic):
                self._moved.setdefault(about, (self.number(about),) * 2)

    def namespaces(self) -> set[str]:
        """Those of the topics that it concerns."""
        topics = {about.topic for about in self._moved}
        return {str(TopicName.parse(topic).namespace) for topic in topics}

    @property
    def is_empty(self) -> bool:
        known = self._known.partitions
        grown = any(known.get(topic) != count for topic, count in self.partitions.items())
        return not (
            grown or self._moved or self.aside or self.again or self.gone or self.due
            or self.lapsed or self._changed
        )  # fmt: skip

    def renew(self, every: int) -> None:
        """Take along a few of whom nothing was said anew for so many ledgers."""
        known = self._known
        count = max(1, 2 * len(known.commits) // every)
        for about in known.oldest(count, self._dispatched - every):
            if about not in self.gone:
                self._renewed.add(about)
                self._moved.setdefault(about, (self.number(about),) * 2)
                if about in self.resting:
                    self.aside[about] = known.aside[about]
                if (partitions := known.partitions.get(about.topic)) is not None:
                    self.partitions.setdefault(about.topic, partitions)

    def offset(
        self, commands: tuple[int, int], now_ms: int, growing: tuple[str, ...]
    ) -> BrokerOffset:
        known = self._known
        policies = {name: known.policies.get(name, {}) for name in self.namespaces()}
        policies = {name: said for name, said in policies.items() if said} | self._changed
        said_again = {about.topic for about in self._renewed}
        partitions = {
            topic: count
            for topic, count in self.partitions.items()
            if topic in said_again or known.partitions.get(topic) != count
        }
        left = {**known.aside, **self.aside}
        held = [left[each].commands for each in left.keys() - self.again.keys() - self.gone]
        since = known.since(self._dispatched, {*self._renewed, *self.gone})
        return BrokerOffset(
            commands=commands,
            hosted=self._moved,
            now_ms=now_ms,
            due=tuple(sorted(self.due)),
            lapsed=self.lapsed,
            dispatched=self._dispatched,
            partitions=partitions,
            created=self.created,
            aside=self.aside,
            again=self.again,
            kept=tuple(sorted(self.spoken_of & self.resting)),
            gone=tuple(sorted(self.gone)),
            policies=policies,
            changed=tuple(sorted(self._changed)),
            growing=growing,
            renewed=tuple(sorted(self._renewed)),
            since=(since, min([commands[1], *held])),
        )
