"""A slice of the simulation, and the proof that it can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pulsar_spark.model.topic_name import TopicName, TopicPartition
from tests.simulation import world
from tests.simulation.__main__ import main
from tests.simulation.cluster_mutants import CLUSTER_MUTANTS
from tests.simulation.lots import Lots, ViolationError
from tests.simulation.mutants import MUTANTS, WHERE
from tests.simulation.place import Place
from tests.simulation.schedule import is_cluster, run_schedule
from tests.simulation.setting import Setting, drawn_setting
from tests.simulation.world import Shape, run_world
from tests.torture.place import SharedClock

SCHEDULES = 2_000
A_BLOCK = 100


@pytest.mark.parametrize("first", range(0, SCHEDULES, A_BLOCK))
def test_every_promise_is_kept_in_two_thousand_schedules(first: int) -> None:
    for seed in range(first, first + A_BLOCK):
        try:
            run_schedule(seed)
        except Exception as error:  # noqa: BLE001, PERF203 - the seed is what counts, whatever it is
            pytest.fail(f"{error!r}; replay it with: python -m tests.simulation --seed {seed}")


def test_letters_of_a_repeated_batch_are_published_once() -> None:
    place, topic_partition = Place(SharedClock(0)), TopicName.parse("t-s-DLQ")
    letter = (TopicPartition("t", 0), 0, 0, 0)
    for number in (7, 7, 8):
        place.open(topic_partition).append(
            [letter], application=("broker", number), is_brokers=True
        )
    assert place.republications == [letter, letter]


def test_a_non_durable_consumer_finishes_batches_that_it_had_begun_in_an_earlier_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without acknowledgement by batch index, a rare end of a schedule: each of these is such."""

    def drawn(lots: Lots) -> Setting:
        setting = drawn_setting(lots)
        policies = replace(setting.policies, batch_index_acknowledgment=False, breaker_threshold=0)
        options = replace(setting.consumer_options, ack_timeout_ms=0)
        return replace(
            setting, durable=False, alone=True, manual=False, policies=policies,
            consumer_options=options,
        )  # fmt: skip

    monkeypatch.setattr(world, "drawn_setting", drawn)
    for seed in range(510, 540):
        run_world(seed, Shape(events=90))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_broker_is_caught(
    mutant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    where = WHERE.get(mutant)
    for seed in range(2_000):
        if where is not None and not where(drawn_setting(Lots(seed))):
            continue
        try:
            run_world(seed, Shape(events=150 if where is None else 300))
        except (ViolationError, AssertionError):
            return
    pytest.fail(f"nobody noticed that the broker {mutant.__name__.replace('_', ' ')}")


@pytest.mark.parametrize("mutant", CLUSTER_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_host_is_caught(
    mutant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for seed in filter(is_cluster, range(SCHEDULES)):
        try:
            run_schedule(seed)
        except ViolationError:  # noqa: PERF203 - as above
            return
    pytest.fail(f"nobody noticed that it {mutant.__name__.replace('_', ' ')}")


@pytest.mark.parametrize("seed", [7, 9])
def test_a_schedule_is_the_same_each_time(seed: int) -> None:
    once, again = run_schedule(seed), run_schedule(seed)
    assert once.dispatch
    assert once.dispatch == again.dispatch


def test_the_command_replays_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    assert "1 schedules from seed 3, 0 failures" in capsys.readouterr().out


def test_a_failure_prints_its_seed_and_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(seed: int) -> None:
        if seed == 5:
            raise ViolationError("lost: everything")

    monkeypatch.setattr("tests.simulation.__main__.run_schedule", broken)
    assert main(["--schedules", "500", "--processes", "1"]) == 1
    printed = capsys.readouterr().out
    assert "schedule 5: Traceback" in printed
    assert "ViolationError: lost: everything" in printed
    assert "python -m tests.simulation --seed 5" in printed
