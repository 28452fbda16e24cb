"""Producers, their runs and leases, as a topic's log keeps them."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pulsar_spark.errors import ProducerBusyError, ProducerFencedError
from pulsar_spark.log.producer_registry import (
    FENCED_PRODUCERS,
    FENCED_RUNS,
    ProducerAccessMode,
    ProducerClaim,
    ProducerRegistry,
)

SHARED, EXCLUSIVE = ProducerAccessMode.SHARED, ProducerAccessMode.EXCLUSIVE
FENCING, WAITING = (
    ProducerAccessMode.EXCLUSIVE_WITH_FENCING,
    ProducerAccessMode.WAIT_FOR_EXCLUSIVE,
)
LEASE_MS = 1000


def claim(name: str, mode: ProducerAccessMode, run: int = 1) -> ProducerClaim:
    return ProducerClaim(name, mode, f"{name}-{run}", LEASE_MS)


def check_registry(registry: ProducerRegistry) -> None:
    """Raise AssertionError if an invariant is broken."""
    assert registry.owner is None or len(registry.producers) == 1, "an owner who is not alone"
    assert registry.producers or not registry.waiting, "somebody waits for nothing"
    present = (*registry.producers, *registry.waiting)
    assert len(registry.present) == len(present), "a name twice"
    assert not {each.incarnation for each in present} & {run.incarnation for run in registry.fenced}
    counts = Counter(run.name for run in registry.fenced)
    assert all(count <= FENCED_RUNS for count in counts.values())
    assert len(counts) <= FENCED_PRODUCERS


def let_in(*claims: ProducerClaim, now_ms: int = 0) -> ProducerRegistry:
    registry = ProducerRegistry()
    for each in claims:
        registry, _ = registry.claim(each, now_ms)
        check_registry(registry)
    return registry


A, B = claim("a", EXCLUSIVE), claim("b", EXCLUSIVE)


def test_one_exclusive_producer_keeps_all_others_out() -> None:
    registry = let_in(A)
    assert registry.may_publish(A)
    with pytest.raises(ProducerFencedError, match="existing exclusive producer: a"):
        registry.claim(B, 1)
    with pytest.raises(ProducerBusyError, match="existing exclusive producer: a"):
        registry.claim(claim("c", SHARED), 1)
    with pytest.raises(ProducerBusyError, match="existing exclusive producer: a"):
        registry.check(None, 1)


def test_a_shared_producer_keeps_an_exclusive_one_out() -> None:
    with pytest.raises(ProducerFencedError, match="existing shared producers"):
        let_in(claim("s", SHARED), A)


def test_a_fencing_producer_ends_all_others_and_they_stay_out() -> None:
    shared = claim("s", SHARED)
    registry = let_in(shared, claim("f", FENCING), claim("g", FENCING))
    assert registry.owner == "g"
    for fenced in (shared, claim("f", FENCING)):
        with pytest.raises(ProducerFencedError, match="Fenced out"):
            registry.check(fenced, 1)
        with pytest.raises(ProducerFencedError, match="Fenced out"):
            registry.claim(fenced, 1)
    again, granted = registry.claim(claim("f", FENCING, run=2), 1)
    assert granted
    assert again.topic_epoch == 2


def test_a_restarted_query_takes_the_place_of_its_older_run() -> None:
    registry, granted = let_in(A).claim(claim("a", EXCLUSIVE, run=2), 1)
    assert granted
    assert registry.topic_epoch == 0, "the same grant goes on"
    with pytest.raises(ProducerFencedError):
        registry.check(A, 2)
    with pytest.raises(ProducerFencedError):
        registry.claim(A, 2)


def test_a_restarted_query_may_change_its_access_mode() -> None:
    registry, granted = let_in(claim("a", SHARED)).claim(claim("a", EXCLUSIVE, run=2), 1)
    assert (granted, registry.owner) == (True, "a")


def test_who_waits_is_next_when_the_owner_leaves() -> None:
    waiting = claim("w", WAITING)
    registry = let_in(A, waiting)
    assert not registry.may_publish(waiting)
    with pytest.raises(ProducerFencedError):
        registry.check(waiting, 1)
    left = registry.leave(A)
    assert left.may_publish(waiting)
    assert left.leave(A) == left
    assert left.claim(waiting, 1)[1]


def test_shared_producers_share() -> None:
    shared = [claim(name, SHARED) for name in "ab"]
    registry = let_in(*shared)
    assert all(registry.may_publish(each) for each in shared)
    assert (registry.owner, registry.topic_epoch) == (None, None)
    assert [each.name for each in registry.leave(shared[0]).producers] == ["b"]


def test_who_waits_is_let_in_in_order_of_coming_and_each_grant_has_its_epoch() -> None:
    waiting = [claim(name, WAITING) for name in "wv"]
    registry = let_in(A, *waiting)
    with pytest.raises(ProducerBusyError):
        registry.claim(claim("s", SHARED), 1)
    for epoch, each in enumerate(waiting, 1):
        registry = registry.leave(A if epoch == 1 else waiting[0])
        assert (registry.owner, registry.topic_epoch) == (each.name, epoch)
        assert not registry.may_publish(A)
    assert registry.leave(waiting[1]) == ProducerRegistry(topic_epoch=2)


def test_who_waits_behind_shared_producers_is_let_in_when_the_last_of_them_leaves() -> None:
    shared, waiting = [claim(name, SHARED) for name in "ab"], claim("w", WAITING)
    registry = let_in(*shared, waiting)
    with pytest.raises(ProducerFencedError):
        registry.claim(claim("x", EXCLUSIVE), 1)
    with pytest.raises(ProducerBusyError):
        registry.check(None, 1)
    registry = registry.leave(shared[0])
    assert not registry.may_publish(waiting)
    assert registry.leave(shared[1]).may_publish(waiting)


def test_who_waits_may_give_up_and_a_newer_run_of_it_keeps_its_place() -> None:
    waiting = [claim(name, WAITING) for name in "wv"]
    assert let_in(A, waiting[0]).leave(waiting[0]) == let_in(A)
    again = claim("w", WAITING, run=2)
    registry, granted = let_in(A, *waiting).claim(again, 1)
    assert not granted
    assert registry.leave(A).may_publish(again)


def test_fencing_closes_those_who_wait_too() -> None:
    waiting = claim("w", WAITING)
    registry = let_in(A, waiting, claim("f", FENCING))
    assert [run.name for run in registry.fenced] == ["a", "w"]
    with pytest.raises(ProducerFencedError, match="Fenced out: w"):
        registry.claim(waiting, 1)


def test_a_lapsed_lease_makes_room_and_its_holder_stays_out() -> None:
    registry, granted = let_in(A).claim(B, LEASE_MS)
    assert granted
    with pytest.raises(ProducerFencedError):
        registry.check(A, LEASE_MS)


def test_who_commits_without_a_claim_ends_a_lapsed_owner() -> None:
    registry = let_in(A).check(None, LEASE_MS)
    assert (A.name, A.incarnation) in registry.fenced
    with pytest.raises(ProducerBusyError):
        let_in(A).check(None, LEASE_MS - 1)


def test_a_lapsed_lease_alone_fences_nobody() -> None:
    registry, granted = let_in(A).claim(A, 5 * LEASE_MS)
    assert granted
    assert registry.producers[0].lapses_ms == 6 * LEASE_MS
    assert registry.check(A, 100 * LEASE_MS) == registry


def test_a_lease_is_renewed_when_half_of_it_is_over() -> None:
    registry = let_in(A)
    assert registry.claim(A, LEASE_MS // 2 - 1)[0] == registry
    assert registry.claim(A, LEASE_MS // 2)[0].producers[0].lapses_ms == LEASE_MS * 3 // 2


def test_only_so_many_fenced_runs_of_a_producer_are_remembered() -> None:
    registry = let_in(*(claim("a", EXCLUSIVE, run) for run in range(FENCED_RUNS + 9)))
    assert len(registry.fenced) == FENCED_RUNS
    assert registry.fenced[-1] == ("a", f"a-{FENCED_RUNS + 7}")


def test_a_fenced_run_is_not_forgotten_for_all_the_runs_of_others() -> None:
    old = claim("old", EXCLUSIVE)
    registry = let_in(old, *(claim("new", FENCING, run) for run in range(3 * FENCED_RUNS)))
    registry = ProducerRegistry.from_json_value(registry.to_json_value())
    for mode in (EXCLUSIVE, FENCING):
        with pytest.raises(ProducerFencedError, match="Fenced out: old"):
            registry.claim(replace(old, access_mode=mode), 1)


class Producers(RuleBasedStateMachine):
    """Producers of all modes come, publish, sleep and leave; commits are what `check` lets pass."""

    names = st.sampled_from("abc")
    modes = st.sampled_from(list(ProducerAccessMode))

    def __init__(self) -> None:
        super().__init__()
        self.registry = ProducerRegistry()
        self.now_ms = 0
        self.runs = dict.fromkeys("abc", 0)
        self.claims: dict[str, ProducerClaim] = {}
        self.ended: set[str] = set()
        self.topic_epoch = -1

    @rule(name=names, mode=modes)
    def start(self, name: str, mode: ProducerAccessMode) -> None:
        self.runs[name] += 1
        self.claims[name] = claim(name, mode, self.runs[name])
        self.go_on(name)

    @rule(name=names)
    def go_on(self, name: str) -> None:
        if name in self.claims:
            with suppress(ProducerBusyError, ProducerFencedError):
                self.registry, _ = self.registry.claim(self.claims[name], self.now_ms)

    @rule(name=names, run=st.integers(1, 5), mode=modes)
    def an_old_run_wakes_up(self, name: str, run: int, mode: ProducerAccessMode) -> None:
        """It never publishes once another run of it, or a fencing producer, has the topic."""
        old = claim(name, mode, run)
        present = self.registry.present.get(name)
        current = present is not None and present.incarnation == old.incarnation
        if not current:
            with pytest.raises(ProducerFencedError):
                self.registry.check(old, self.now_ms)

    @rule(name=names)
    def leave(self, name: str) -> None:
        if name in self.claims:
            self.registry = self.registry.leave(self.claims[name])

    @rule(passed_ms=st.integers(1, 2 * LEASE_MS))
    def sleep(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule()
    def somebody_without_a_claim_commits(self) -> None:
        try:
            self.registry = self.registry.check(None, self.now_ms)
        except ProducerBusyError:
            return
        assert self.registry.owner is None

    @invariant()
    def one_owner_is_alone_and_the_json_is_the_registry(self) -> None:
        check_registry(self.registry)
        value = self.registry.to_json_value()
        assert ProducerRegistry.from_json_value(value) == self.registry

    @invariant()
    def the_topic_epoch_never_falls(self) -> None:
        epoch = -1 if self.registry.topic_epoch is None else self.registry.topic_epoch
        assert epoch >= self.topic_epoch
        self.topic_epoch = epoch


TestProducers = Producers.TestCase
