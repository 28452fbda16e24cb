"""A topic's producers, as its log keeps them: who may publish, who waits, and their leases.

A commit is checked against the state that it follows, so a producer that was fenced out can't
commit, however late it comes. Invariants: immutable; at most one producer owns the topic, and then
it is the only one; who waits is let in in order of coming; the topic epoch grows with each grant to
an exclusive producer; a run (`incarnation`) that was fenced or replaced never publishes again; a
lease decides only when another may have the topic, never whether its holder may publish; so does
the end of the process that a producer names; a producer without a claim has no record.

Follows Pulsar's `AbstractTopic.incrementTopicEpochIfNeeded` and `handleProducerRemoved`, but for a
producer that waits behind Shared ones: here it is let in when the last of them leaves (there it
waits for ever).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from pulsar_spark.errors import ProducerBusyError, ProducerFencedError

FENCED_RUNS: Final = 100
"""The fenced runs of one producer that are remembered; the oldest are forgotten."""
FENCED_PRODUCERS: Final = 1000
"""The producers whose fenced runs are remembered."""
DEFAULT_LEASE_MS: Final = 5 * 60_000


class ProducerAccessMode(str, Enum):
    """The access mode of a producer: the way in which it shares its topic."""

    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"
    EXCLUSIVE_WITH_FENCING = "ExclusiveWithFencing"
    WAIT_FOR_EXCLUSIVE = "WaitForExclusive"


@dataclass(frozen=True, slots=True)
class ProducerClaim:
    """A producer that wants to publish. Pickles.

    `name` is the query's id, the same after a restart; `incarnation` is that of one run.
    """

    name: str
    access_mode: ProducerAccessMode
    incarnation: str
    lease_ms: int = DEFAULT_LEASE_MS
    is_requested: bool = True
    """True if an option asks for it. Otherwise it is made only where producers are counted."""
    process: str = ""
    """The process that the producer ends with; empty if another may take it up."""
    replaces: bool = True
    """True if it takes the place of an earlier run of its name; or else that one's presence
    excludes it."""


class Producer(NamedTuple):
    """The present run of a producer that publishes or waits."""

    name: str
    access_mode: ProducerAccessMode
    incarnation: str
    lapses_ms: int = 0
    epoch: int = 0
    """The number of runs before it that it took the place of."""
    topic_epoch: int | None = None
    """The topic's epoch when it was granted the topic; None if it shares it, or waits."""
    process: str = ""
    """The process that this run ends with; empty if another may take it up."""


class FencedRun(NamedTuple):
    """One run of a producer."""

    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ProducerRegistry:
    """The producers that claimed the topic in an access mode."""

    producers: tuple[Producer, ...] = ()
    """The producers that may publish."""
    waiting: tuple[Producer, ...] = ()
    topic_epoch: int | None = None
    fenced: tuple[FencedRun, ...] = ()
    """Runs that may not publish any more, the latest last."""

    @property
    def owner(self) -> str | None:
        """The producer that has the topic for itself."""
        return next((each.name for each in self.producers if each.topic_epoch is not None), None)

    @property
    def present(self) -> dict[str, Producer]:
        """The producers that publish or wait, by name."""
        return {each.name: each for each in (*self.producers, *self.waiting)}

    def claim(
        self, claim: ProducerClaim, now_ms: int, most: int = 0
    ) -> tuple[ProducerRegistry, bool]:
        """Let a producer in, or let it go on: (the registry then, whether it may publish).

        If it may not, it waits. A new one is refused where there are `most`, unless that is 0.
        ProducerFencedError if it was fenced out, or may not have the topic; ProducerBusyError if
        others exclude it for now.
        """
        held = self.present.get(claim.name)
        goes_on = held is not None and held.incarnation == claim.incarnation
        registry = self.without_lapsed(now_ms, but=claim.name if goes_on else None)
        if any(run.incarnation == claim.incarnation for run in registry.fenced):
            raise ProducerFencedError(f"Fenced out: {claim.name}")
        if not goes_on:
            there = registry.present
            fences = claim.access_mode is ProducerAccessMode.EXCLUSIVE_WITH_FENCING
            if claim.name in there and not claim.replaces:
                raise ProducerBusyError(
                    f"Producer with name '{claim.name}' is already connected to topic"
                )
            if most and len(there) >= most and claim.name not in there and not fences:
                raise ProducerBusyError(
                    f"Topic reached max producers limit: its policy max_producers allows {most}"
                )
            registry = _let_in(registry, claim)
        return _renewed(registry, claim, now_ms), registry.may_publish(claim)

    def check(self, claim: ProducerClaim | None, now_ms: int) -> ProducerRegistry:
        """The registry behind a commit of that producer, or (None) of one without a claim.

        ProducerFencedError or ProducerBusyError if it may not publish.
        """
        if claim is None:
            registry = self.without_lapsed(now_ms)
            if registry.owner is not None or registry.waiting:
                raise ProducerBusyError(_owner_text(registry))
            return registry
        if not self.may_publish(claim):
            raise ProducerFencedError(f"Fenced out: {claim.name}")
        return self

    def may_publish(self, claim: ProducerClaim) -> bool:
        """True if this run of the producer is connected, and does not wait."""
        run = (claim.name, claim.incarnation)
        return any(run == (each.name, each.incarnation) for each in self.producers)

    def leave(self, claim: ProducerClaim) -> ProducerRegistry:
        """Take the producer out; the one that waits longest gets its place."""
        held = self.present.get(claim.name)
        return _without(self, held) if held and held.incarnation == claim.incarnation else self

    def without_lapsed(self, now_ms: int, but: str | None = None) -> ProducerRegistry:
        """Take out producers whose lease is over, and fence out their runs.

        One that shares the topic may come again: it never had anything to itself.
        """
        lapsed = (each for each in self.present.values() if each.lapses_ms <= now_ms)
        return self._without_all(each for each in lapsed if each.name != but)

    def without_ended(self, processes: Collection[str]) -> ProducerRegistry:
        """Take out the producers that ended with one of these processes, as if they had lapsed."""
        return self._without_all(
            each for each in self.present.values() if each.process in processes
        )

    def _without_all(self, gone: Iterable[Producer]) -> ProducerRegistry:
        registry = self
        for held in sorted(gone, key=lambda each: each.lapses_ms):
            if held.access_mode is not ProducerAccessMode.SHARED:
                registry = _fencing(registry, held)
            registry = _without(registry, registry.present[held.name])
        return registry

    def to_json_value(self) -> dict[str, Any]:
        present = self.present.values()
        return {
            "topic": {
                "producers": [_to_json(each) for each in self.producers],
                "waiting": [_to_json(each) for each in self.waiting],
                "topic_epoch": self.topic_epoch,
                "exclusive_producer": self.owner,
            },
            "incarnations": {each.name: each.incarnation for each in present},
            "lapses_ms": {each.name: each.lapses_ms for each in present},
            "processes": {each.name: each.process for each in present if each.process},
            "fenced": [run.incarnation for run in self.fenced],
            "fenced_names": [run.name for run in self.fenced],
        }

    @staticmethod
    def from_json_value(value: Mapping[str, Any] | None) -> ProducerRegistry:
        """The registry from JSON; None: nobody ever made a claim."""
        if value is None:
            return ProducerRegistry()

        def read(kept: list[Any]) -> Producer:
            name, mode, epoch, topic_epoch = kept
            run, lapses_ms = value["incarnations"][name], value["lapses_ms"][name]
            process = processes.get(name, "")
            held = ProducerAccessMode(mode), run, lapses_ms, epoch, topic_epoch, process
            return Producer(name, *held)

        topic, fenced, processes = value["topic"], value["fenced"], value.get("processes", {})
        return ProducerRegistry(
            tuple(map(read, topic["producers"])),
            tuple(map(read, topic["waiting"])),
            topic["topic_epoch"],
            tuple(map(FencedRun._make, zip(value["fenced_names"], fenced, strict=True))),
        )


def _let_in(registry: ProducerRegistry, claim: ProducerClaim) -> ProducerRegistry:
    """The registry with a run that is new to it: it publishes, or waits."""
    new = Producer(claim.name, claim.access_mode, claim.incarnation, process=claim.process)
    old = registry.present.get(new.name)
    if old is not None:  # an earlier run of the same query
        fencing = _fencing(registry, old)
        if old.access_mode is not new.access_mode:
            return _let_in(_without(fencing, old), claim)
        again = old._replace(incarnation=new.incarnation, epoch=old.epoch + 1, process=new.process)
        return _with(fencing, again)
    if new.access_mode is ProducerAccessMode.SHARED:
        if registry.owner is not None or registry.waiting:
            raise ProducerBusyError(_owner_text(registry))
        return replace(registry, producers=(*registry.producers, new))
    if new.access_mode is ProducerAccessMode.EXCLUSIVE:
        if registry.owner is not None or registry.waiting:
            raise ProducerFencedError(_owner_text(registry))
        if registry.producers:
            raise ProducerFencedError("Topic has existing shared producers")
    elif new.access_mode is ProducerAccessMode.WAIT_FOR_EXCLUSIVE and registry.producers:
        return replace(registry, waiting=(*registry.waiting, new))
    return _granted(_fencing(registry, *registry.producers, *registry.waiting), new, ())


def _granted(
    registry: ProducerRegistry, producer: Producer, waiting: tuple[Producer, ...]
) -> ProducerRegistry:
    """The topic is the producer's alone, at the next epoch."""
    epoch = 0 if registry.topic_epoch is None else registry.topic_epoch + 1
    owner = producer._replace(topic_epoch=epoch)
    return replace(registry, producers=(owner,), waiting=waiting, topic_epoch=epoch)


def _with(registry: ProducerRegistry, changed: Producer) -> ProducerRegistry:
    """The registry with another record of a producer, in the same place."""
    by_name = {**registry.present, changed.name: changed}
    return replace(
        registry,
        producers=tuple(by_name[each.name] for each in registry.producers),
        waiting=tuple(by_name[each.name] for each in registry.waiting),
    )


def _without(registry: ProducerRegistry, gone: Producer) -> ProducerRegistry:
    """The registry without a producer; the next in line is let in, if there is room."""
    producers = tuple(each for each in registry.producers if each != gone)
    waiting = tuple(each for each in registry.waiting if each != gone)
    if producers or not waiting:
        return replace(registry, producers=producers, waiting=waiting)
    return _granted(registry, waiting[0], waiting[1:])


def _fencing(registry: ProducerRegistry, *ended: Producer) -> ProducerRegistry:
    """The registry with these runs fenced out.

    Each producer forgets its own oldest runs, so that no other can make it forget one.
    """
    kept: list[FencedRun] = []
    counts: Counter[str] = Counter()
    runs = (FencedRun(each.name, each.incarnation) for each in ended)
    for run in reversed((*registry.fenced, *runs)):
        if run.name in counts or len(counts) < FENCED_PRODUCERS:
            counts[run.name] += 1
            if counts[run.name] <= FENCED_RUNS:
                kept.append(run)
    return replace(registry, fenced=tuple(reversed(kept)))


def _renewed(registry: ProducerRegistry, claim: ProducerClaim, now_ms: int) -> ProducerRegistry:
    """The registry with a new lease, once half of the old one is over: most commits keep it."""
    held = registry.present[claim.name]
    if held.lapses_ms - now_ms > claim.lease_ms // 2:
        return registry
    return _with(registry, held._replace(lapses_ms=now_ms + claim.lease_ms))


def _owner_text(registry: ProducerRegistry) -> str:
    return f"Topic has an existing exclusive producer: {registry.owner}"


def _to_json(producer: Producer) -> list[Any]:
    return [producer.name, producer.access_mode.value, producer.epoch, producer.topic_epoch]
