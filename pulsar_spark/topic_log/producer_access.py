"""Which producers may publish to a topic: access modes, who waits, and the topic's epochs.

Invariants: immutable; at most one producer owns the topic, and then it is the only one; waiting
producers are promoted in order of coming; the topic epoch grows with each new grant to an exclusive
producer and never shrinks, so one that comes back with an older epoch knows that it was replaced.
Follows Pulsar's `AbstractTopic.incrementTopicEpochIfNeeded` and `handleProducerRemoved`, and
differs in two places: a producer that waits behind Shared ones is promoted when the last of them
leaves (there it waits for ever), and a fencing producer whose epoch is too old fences nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile
from typing import Any, NamedTuple

from pulsar_spark.errors import ProducerBusyError, ProducerFencedError


class ProducerAccessMode(str, Enum):
    """How a producer wants to share its topic."""

    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"
    EXCLUSIVE_WITH_FENCING = "ExclusiveWithFencing"
    WAIT_FOR_EXCLUSIVE = "WaitForExclusive"


class ConnectedProducer(NamedTuple):
    """A producer that may publish."""

    name: str
    access_mode: ProducerAccessMode
    epoch: int = 0
    """The producer's own epoch: it grows when it connects again."""
    topic_epoch: int | None = None
    """The topic's epoch when this producer was granted it; None if Shared."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of a producer's coming or going."""

    topic: TopicProducers
    granted: tuple[ConnectedProducer, ...] = ()
    """Producers that may publish from now on; the others wait."""
    fenced: tuple[str, ...] = ()
    """Producers that may not publish any more, or wait no longer: `Fenced out`."""


@dataclass(frozen=True, slots=True)
class TopicProducers:
    """The producers of one topic."""

    producers: Mapping[str, ConnectedProducer] = field(default_factory=dict)
    """Name -> producer."""
    waiting: tuple[ConnectedProducer, ...] = ()
    topic_epoch: int | None = None
    exclusive_producer: str | None = None

    def add(
        self,
        name: str,
        access_mode: ProducerAccessMode = ProducerAccessMode.SHARED,
        *,
        epoch: int = 0,
        topic_epoch: int | None = None,
    ) -> Admission:
        """Let a producer in, or let it wait. `topic_epoch` is its earlier grant's, if it had one.

        ProducerBusyError if it must wait or its name is taken (unless it is the same producer with
        a higher `epoch`, which replaces the old one); ProducerFencedError if it may not.
        """
        producer = ConnectedProducer(name, access_mode, epoch, topic_epoch)
        if name in self.producers or any(each.name == name for each in self.waiting):
            return self._replaced(producer)
        if access_mode is ProducerAccessMode.SHARED:
            if self.exclusive_producer is not None or self.waiting:
                raise ProducerBusyError(self._owner_text())
            shared = producer._replace(topic_epoch=None)
            topic = replace(self, producers={**self.producers, name: shared})
            return Admission(topic, (shared,))
        if access_mode is ProducerAccessMode.EXCLUSIVE:
            if self.exclusive_producer is not None or self.waiting:
                raise ProducerFencedError(self._owner_text())
            if self.producers:
                raise ProducerFencedError("Topic has existing shared producers")
        elif access_mode is ProducerAccessMode.WAIT_FOR_EXCLUSIVE and self.producers:
            return Admission(replace(self, waiting=(*self.waiting, producer)))
        fenced = (*self.producers, *(each.name for each in self.waiting))
        return replace(self._granted(producer), fenced=fenced)

    def remove(self, name: str) -> Admission:
        """A producer leaves, or waits no longer; the next in line is let in, if there is room."""
        if name not in self.producers:
            waiting = tuple(each for each in self.waiting if each.name != name)
            return Admission(replace(self, waiting=waiting))
        left = {k: v for k, v in self.producers.items() if k != name}
        topic = replace(
            self,
            producers=left,
            exclusive_producer=None if name == self.exclusive_producer else self.exclusive_producer,
        )
        if left:
            return Admission(topic)
        stale = list(takewhile(self._is_stale, self.waiting))
        fenced, rest = tuple(each.name for each in stale), self.waiting[len(stale) :]
        if not rest:
            return Admission(replace(topic, waiting=()), (), fenced)
        return replace(self._granted(rest[0], waiting=rest[1:]), fenced=fenced)

    def may_publish(self, name: str, topic_epoch: int | None) -> bool:
        """Whether a producer that was granted at an epoch (None if Shared) still may publish."""
        held = self.producers.get(name)
        return held is not None and held.topic_epoch == topic_epoch

    def to_json_value(self) -> dict[str, Any]:
        return {
            "producers": [_json(each) for each in self.producers.values()],
            "waiting": [_json(each) for each in self.waiting],
            "topic_epoch": self.topic_epoch,
            "exclusive_producer": self.exclusive_producer,
        }

    @staticmethod
    def from_json_value(value: Mapping[str, Any]) -> TopicProducers:
        producers = [_producer(each) for each in value["producers"]]
        return TopicProducers(
            {each.name: each for each in producers},
            tuple(_producer(each) for each in value["waiting"]),
            value["topic_epoch"],
            value["exclusive_producer"],
        )

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        owner = self.exclusive_producer
        assert owner is None or list(self.producers) == [owner], "an owner who is not alone"
        assert self.producers or not self.waiting, "somebody waits for nothing"
        names = [*self.producers, *(each.name for each in self.waiting)]
        assert len(set(names)) == len(names), "a name twice"

    def _granted(
        self, producer: ConnectedProducer, waiting: tuple[ConnectedProducer, ...] = ()
    ) -> Admission:
        """The topic is the producer's alone: at the epoch it has already, or at the next one."""
        current = -1 if self.topic_epoch is None else self.topic_epoch
        wanted = current + 1 if producer.topic_epoch is None else producer.topic_epoch
        if self._is_stale(producer):
            raise ProducerFencedError(
                f"Topic epoch has already moved. Current epoch: {current}, Producer epoch: {wanted}"
            )
        owner = producer._replace(topic_epoch=wanted)
        topic = TopicProducers({owner.name: owner}, waiting, wanted, owner.name)
        return Admission(topic, (owner,))

    def _is_stale(self, producer: ConnectedProducer) -> bool:
        """Whether the topic was granted to another since it was granted to this producer."""
        epoch, current = producer.topic_epoch, self.topic_epoch
        return epoch is not None and current is not None and epoch < current

    def _replaced(self, producer: ConnectedProducer) -> Admission:
        """The same producer, connected again, takes the old one's place."""
        waiting = {each.name: each for each in self.waiting}
        held = self.producers.get(producer.name) or waiting[producer.name]
        if producer.epoch <= held.epoch or producer.access_mode is not held.access_mode:
            raise ProducerBusyError(
                f"Producer with name '{producer.name}' is already connected to topic"
            )
        again = producer._replace(topic_epoch=held.topic_epoch)
        if producer.name in waiting:
            waiting[producer.name] = again
            return Admission(replace(self, waiting=tuple(waiting.values())))
        topic = replace(self, producers={**self.producers, producer.name: again})
        return Admission(topic, (again,))

    def _owner_text(self) -> str:
        return f"Topic has an existing exclusive producer: {self.exclusive_producer}"


def _json(producer: ConnectedProducer) -> list[Any]:
    return [producer.name, producer.access_mode.value, producer.epoch, producer.topic_epoch]


def _producer(value: list[Any]) -> ConnectedProducer:
    name, access_mode, epoch, topic_epoch = value
    return ConnectedProducer(name, ProducerAccessMode(access_mode), epoch, topic_epoch)
