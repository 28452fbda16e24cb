"""A topic's producers, as its log keeps them: the runs behind them, and their leases.

A commit is checked against the state that it follows, so a producer that was fenced out can't
commit, however late it comes. Invariants: immutable; a run (`incarnation`) that was fenced or
replaced never publishes again; a lease decides only when another may have the topic, never
whether its holder may publish; a producer without a claim has no record.

Puts `TopicProducers` where Pulsar has a broker that sees its producers' connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pulsar_spark.errors import ProducerBusyError, ProducerFencedError
from pulsar_spark.topic_log.producer_access import Admission, ProducerAccessMode, TopicProducers

FENCED_RUNS: Final = 100
"""The fenced runs of one producer that are remembered; the oldest are forgotten."""
FENCED_PRODUCERS: Final = 1000
"""The producers whose fenced runs are remembered."""
DEFAULT_LEASE_MS: Final = 5 * 60_000


@dataclass(frozen=True, slots=True)
class ProducerClaim:
    """A producer that wants to publish. Pickles.

    `name` is the query's id, the same after a restart; `incarnation` is that of one run.
    """

    name: str
    access_mode: ProducerAccessMode
    incarnation: str
    lease_ms: int = DEFAULT_LEASE_MS


class FencedRun(NamedTuple):
    """One run of a producer; without a name where the log is of an older version."""

    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ProducerRegistry:
    """The producers that claimed the topic in an access mode."""

    topic: TopicProducers = field(default_factory=TopicProducers)
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """Name -> run, of producers that publish or wait."""
    lapses_ms: Mapping[str, int] = field(default_factory=dict)
    fenced: tuple[FencedRun, ...] = ()
    """Runs that may not publish any more, the latest last."""

    def claim(self, claim: ProducerClaim, now_ms: int) -> tuple[ProducerRegistry, bool]:
        """Let a producer in, or let it go on: (the registry then, whether it may publish).

        If it may not, it waits. ProducerFencedError if it was fenced out, or may not have the
        topic; ProducerBusyError if others exclude it for now.
        """
        held = self.incarnations.get(claim.name)
        goes_on = held == claim.incarnation
        registry = self.without_lapsed(now_ms, but=claim.name if goes_on else None)
        if any(run.incarnation == claim.incarnation for run in registry.fenced):
            raise ProducerFencedError(f"Fenced out: {claim.name}")
        if not goes_on:
            registry = _added(registry, claim)
        return _renewed(registry, claim, now_ms), registry.may_publish(claim)

    def check(self, claim: ProducerClaim | None, now_ms: int) -> ProducerRegistry:
        """The registry behind a commit of that producer, or (None) of one without a claim.

        ProducerFencedError or ProducerBusyError if it may not publish.
        """
        if claim is None:
            registry = self.without_lapsed(now_ms)
            owner = registry.topic.exclusive_producer
            if owner is not None or registry.topic.waiting:
                raise ProducerBusyError(f"Topic has an existing exclusive producer: {owner}")
            return registry
        if not self.may_publish(claim):
            raise ProducerFencedError(f"Fenced out: {claim.name}")
        return self

    def may_publish(self, claim: ProducerClaim) -> bool:
        """Whether this run of the producer is connected, and does not wait."""
        held = self.incarnations.get(claim.name)
        return held == claim.incarnation and claim.name in self.topic.producers

    def leave(self, claim: ProducerClaim) -> ProducerRegistry:
        """Take the producer out; the one that waits longest gets its place."""
        if self.incarnations.get(claim.name) != claim.incarnation:
            return self
        return _after(self, self.topic.remove(claim.name), (claim.name,), fence=False)

    def without_lapsed(self, now_ms: int, but: str | None = None) -> ProducerRegistry:
        """Take out producers whose lease is over, and fence out their runs."""
        registry = self
        for name, lapse_ms in sorted(self.lapses_ms.items(), key=lambda each: each[1]):
            if lapse_ms <= now_ms and name != but and name in registry.incarnations:
                registry = _after(registry, registry.topic.remove(name), (name,), fence=True)
        return registry

    def to_json_value(self) -> dict[str, Any]:
        return {
            "topic": self.topic.to_json_value(),
            "incarnations": dict(self.incarnations),
            "lapses_ms": dict(self.lapses_ms),
            "fenced": [run.incarnation for run in self.fenced],
            "fenced_names": self._fenced_names,
        }

    @staticmethod
    def from_json_value(value: Mapping[str, Any] | None) -> ProducerRegistry:
        """The registry from JSON; None: nobody ever made a claim."""
        if value is None:
            return ProducerRegistry()
        fenced = value["fenced"]
        names = value.get("fenced_names", [""] * len(fenced))
        return ProducerRegistry(
            TopicProducers.from_json_value(value["topic"]),
            dict(value["incarnations"]),
            dict(value["lapses_ms"]),
            tuple(map(FencedRun._make, zip(names, fenced, strict=True))),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self.topic.check()
        known = {*self.topic.producers, *(each.name for each in self.topic.waiting)}
        assert known == set(self.incarnations) == set(self.lapses_ms)
        assert not set(self.incarnations.values()) & {run.incarnation for run in self.fenced}
        assert all(count <= FENCED_RUNS for count in Counter(self._fenced_names).values())
        assert len(set(self._fenced_names)) <= FENCED_PRODUCERS

    @property
    def _fenced_names(self) -> list[str]:
        return [run.name for run in self.fenced]


def _added(known: ProducerRegistry, claim: ProducerClaim) -> ProducerRegistry:
    registry = known
    epoch = 0
    if claim.name in registry.incarnations:  # another run of the same query
        waiting = {each.name: each for each in registry.topic.waiting}
        old = registry.topic.producers.get(claim.name) or waiting[claim.name]
        if old.access_mode is claim.access_mode:
            epoch = old.epoch + 1
            registry = _fencing(registry, claim.name)
        else:
            gone = registry.topic.remove(claim.name)
            registry = _after(registry, gone, (claim.name,), fence=True)
    admission = registry.topic.add(claim.name, claim.access_mode, epoch=epoch)
    registry = _after(registry, admission, (), fence=True)
    run = {claim.name: claim.incarnation}
    return replace(registry, incarnations={**registry.incarnations, **run})


def _after(
    registry: ProducerRegistry, admission: Admission, gone: tuple[str, ...], *, fence: bool
) -> ProducerRegistry:
    """The registry after an admission; runs of those gone are fenced out, if `fence`."""
    fenced = set(admission.fenced)
    left = fenced | set(gone)
    names = [name for name in (*gone, *admission.fenced) if fence or name in fenced]
    fencing = _fencing(registry, *names)
    return replace(
        fencing,
        topic=admission.topic,
        incarnations={k: v for k, v in registry.incarnations.items() if k not in left},
        lapses_ms={k: v for k, v in registry.lapses_ms.items() if k not in left},
    )


def _fencing(registry: ProducerRegistry, *names: str) -> ProducerRegistry:
    """The registry with the present runs of these producers fenced out.

    Each producer forgets its own oldest runs, so that no other can make it forget one.
    """
    runs = [FencedRun(n, registry.incarnations[n]) for n in names if n in registry.incarnations]
    kept: list[FencedRun] = []
    counts: Counter[str] = Counter()
    for run in reversed((*registry.fenced, *runs)):
        if run.name in counts or len(counts) < FENCED_PRODUCERS:
            counts[run.name] += 1
            if counts[run.name] <= FENCED_RUNS:
                kept.append(run)
    return replace(registry, fenced=tuple(reversed(kept)))


def _renewed(registry: ProducerRegistry, claim: ProducerClaim, now_ms: int) -> ProducerRegistry:
    """The registry with a new lease, once half of the old one is over: most commits keep it."""
    known = registry.lapses_ms.get(claim.name)
    if known is not None and known - now_ms > claim.lease_ms // 2:
        return registry
    lapses_ms = {**registry.lapses_ms, claim.name: now_ms + claim.lease_ms}
    return replace(registry, lapses_ms=lapses_ms)
