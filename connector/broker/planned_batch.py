"""The broker's next batch, as its source gathers it: a difference to what is hosted.

Invariants: it names what happened and nothing else, but for a few partitions that come along to be
written anew, those of which nothing whole was said for the longest time; a partition that is set
aside is moved no further, and what it has not taken in stays known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pulsar_spark.connector.system.broker_offset import (
    NO_COMMIT,
    Aside,
    BrokerOffset,
    PartitionBatch,
)
from pulsar_spark.connector.system.hosted_topics import HostedTopics
from pulsar_spark.connector.system.lease import Lease
from pulsar_spark.topic_name import TopicName, TopicPartition

_NOTHING: Final = PartitionBatch()


class PlannedBatch:
    """A batch that `offset` names once all has been said."""

    def __init__(self, known: HostedTopics, dispatched: int) -> None:
        self._known, self._dispatched = known, dispatched
        self._parts: dict[TopicPartition, PartitionBatch] = {}
        self.new: dict[str, dict[TopicPartition, None]] = {}
        """The partitions that were not hosted before, by topic."""
        self.spoken_of: set[TopicPartition] = set()
        self._resting = {*known.aside}
        """Those that stay aside."""
        self.partitions: dict[str, int] = {}
        self.lapsed: tuple[Lease, ...] = ()
        self._changed: dict[str, Mapping[str, Any]] = {}

    def part(self, about: TopicPartition) -> PartitionBatch:
        """What it has for that one, so far."""
        return self._parts.get(about, _NOTHING)

    def host(self, about: TopicPartition) -> None:
        if not self._is_hosted(about):
            self.new.setdefault(about.topic, {})[about] = None
            self._stay(about)

    def number(self, about: TopicPartition) -> int:
        """The last commit that it has heard of."""
        heard = self.part(about).heard
        return self._known.commits.get(about, NO_COMMIT) if heard is None else heard[0]

    def awake(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions that are hosted and not set aside."""
        abouts = {**self._known.topics.get(topic, {}), **self.new.get(topic, {})}
        return [*self.hosted_of(abouts)]

    def hosted_of(self, abouts: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """Those of them that are hosted and not set aside."""
        for about in abouts:
            is_out = self.is_aside(about) or self.part(about).is_gone
            if self._is_hosted(about) and not is_out:
                yield about

    def is_aside(self, about: TopicPartition) -> bool:
        return about in self._resting or self.part(about).aside is not None

    def try_again(self, about: TopicPartition) -> None:
        """It is aside no longer: it steps with all that was kept for it."""
        self._resting.discard(about)
        self._stay(about)
        held = self._known.aside[about]
        self._say(about, again=held, created=held.created, is_due=True)

    def set_aside(self, about: TopicPartition, number: int, held: Aside) -> None:
        """Keep what it has not taken in: all behind that commit, and what `held` says."""
        if not self._is_hosted(about):
            self.host(about)
            self._say(about, is_renewed=True)  # its topic is deleted, but what is left may be old
        heard = number, number
        self._say(about, heard=heard, aside=held, again=None, created=(), is_due=False)

    def leave(self, topic: str) -> None:
        """The topic is deleted."""
        for about in {**self._known.topics.get(topic, {}), **self.new.pop(topic, {})}:
            self._resting.discard(about)
            self._parts[about] = PartitionBatch(is_gone=True)

    def create(self, about: TopicPartition, subscriptions: tuple[str, ...]) -> None:
        """Host a new partition, with these."""
        self.host(about)
        self._say(about, created=subscriptions)

    def move(self, logs: Mapping[str, int]) -> None:
        """To the last commits of these topics."""
        for topic, last in logs.items():
            for about in self.awake(topic):
                if last > (before := self.number(about)):
                    self._say(about, heard=(before, last))

    def tell(self, namespace: str, said: Mapping[str, Any]) -> None:
        """All topics of the namespace are to hear what it says now."""
        self._changed[namespace] = said
        for topic in self._known.namespaces.get(namespace, ()):
            for about in self.awake(topic):
                self._stay(about)

    def step(self, due: Iterable[TopicPartition]) -> None:
        """These are due, of those that are not aside."""
        for about in self.hosted_of(due):
            self._say(about, is_due=True)

    def namespaces(self) -> set[str]:
        """Those of the topics that hear something."""
        topics = {about.topic for about, part in self._parts.items() if part.heard is not None}
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
        for about in known.oldest(count, self._dispatched - every):
            if not self.part(about).is_gone:
                self._stay(about)
                self._say(about, is_renewed=True)
                if about in self._resting:
                    self._say(about, aside=known.aside[about])
                if (partitions := known.partitions.get(about.topic)) is not None:
                    self.partitions.setdefault(about.topic, partitions)

    def offset(
        self, commands: tuple[int, int], now_ms: int, growing: tuple[str, ...]
    ) -> BrokerOffset:
        known = self._known
        policies = {name: known.policies.get(name, {}) for name in self.namespaces()}
        policies = {name: said for name, said in policies.items() if said} | self._changed
        for about in self.spoken_of & self._resting:
            self._say(about, is_kept=True)
        said_again = {about.topic for about, part in self._parts.items() if part.is_renewed}
        partitions = {
            topic: count
            for topic, count in self.partitions.items()
            if topic in said_again or known.partitions.get(topic) != count
        }
        held = [known.aside[about] for about in self._resting]
        held += [part.aside for part in self._parts.values() if part.aside]
        anew = {about for about, part in self._parts.items() if part.is_renewed or part.is_gone}
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

    def _is_hosted(self, about: TopicPartition) -> bool:
        return about in self._known.commits or self.part(about).heard is not None

    def _stay(self, about: TopicPartition) -> None:
        """It is of the batch, and hears of no commit unless one is said."""
        if self.part(about).heard is None:
            self._say(about, heard=(self.number(about),) * 2)

    def _say(self, about: TopicPartition, **said: Any) -> None:
        self._parts[about] = replace(self.part(about), **said)
