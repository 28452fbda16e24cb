"""`pulsarlite perf produce` and `perf consume`: the lines that they print, and their numbers."""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

import pytest

from pulsar_spark import pulsar
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.connector.tools.message_commands.perf_command import Histogram, Measured
from tests.command_line.test_message_commands import RECORDED, PatientClock, clock, served

__all__ = ["clock", "served"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    status = main(["perf", *arguments])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def forms(lines: list[str]) -> list[str]:
    """The lines, each number replaced by the number of its decimals."""
    number = re.compile(r" *\b\d+(?:\.(\d+))?(?!pct|[\d.])")
    return [number.sub(lambda found: f" <{len(found[1] or '')}>", line) for line in lines]


PRODUCED, RECEIVED = (
    forms((RECORDED / "pulsar-perf.txt").read_text("utf-8").splitlines()[each : each + 4])
    for each in (0, 4)
)
"""A line of every ten seconds and those of the end, as pulsar-perf 4.0.8 printed them."""


def test_a_producer_prints_lines_as_pulsar_perf_does(
    clock: PatientClock, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, error = run(
        capsys, "produce", "t", "-r", "10", "-s", "100", "-time", "25", "--report-every", "10"
    )  # fmt: skip
    assert (status, error) == (0, "pulsarlite: Created 1 producers\n")
    assert forms(lines) == [PRODUCED[0], *PRODUCED]
    throughput = lines[-2]
    sent, rate = re.findall(r"--- ([\d.]+) (?:records|msg)", throughput)
    assert int(sent) == pytest.approx(250, abs=12)
    assert float(rate) == pytest.approx(10, abs=0.5)


def test_a_producer_ends_after_so_many_messages_in_all_topics(
    served: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-t", "2", "-n", "2", "-m", "100", "-r", "0", "-mk", "autoIncrement", "-np", "2"]
    status, lines, _ = run(capsys, "produce", "t", *arguments)
    assert status == 0
    assert lines[0].startswith("------------- DONE (reached the maximum number: 100 of production)")
    assert lines[1].startswith("Aggregated throughput stats --- 100 records sent --- ")
    names = ["persistent://public/default/t-0", "persistent://public/default/t-1"]
    assert [len(served.get_topic_partitions(name)) for name in names] == [2, 2]
    arguments = ["-ns", "2", "-m", "200", "-sp", "Earliest", "-st", "Shared", "-n", "2"]
    status, lines, _ = run(capsys, "consume", *names, "-t", "2", *arguments)
    assert (status, lines[0]) == (0, "------------------- DONE -----------------------")
    assert lines[1].startswith("Aggregated throughput stats --- 200 records received --- ")
    assert lines[1].endswith("  msg/s --- ack failed 0 msg")
    assert "mean: " in lines[2]


def test_batches_of_one_message_are_none(
    served: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "produce", "t", "-m", "3", "-r", "0", "-bm", "1")[0] == 0
    reader = served.create_reader("t", pulsar.MessageId.earliest)
    assert [reader.read_next(1000).message_id().batch_index() for _ in range(3)] == [-1] * 3


def test_a_consumer_prints_lines_as_pulsar_perf_does(
    served: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "produce", "t", "-m", "100", "-r", "0")
    status, lines, _ = run(
        capsys, "consume", "t", "-sp", "Earliest", "-time", "25", "-r", "10"
    )  # fmt: skip
    assert status == 0
    rate = re.compile(r"AckRate: \S+")  # a Java double, with whatever decimals
    expected = [RECEIVED[0], *RECEIVED]
    *shown, latency = forms(lines)
    assert [rate.sub("", each) for each in shown] == [rate.sub("", each) for each in expected]
    assert latency == PRODUCED[3].replace("<3>", "<0>").replace("mean: <0>", "mean: <3>")
    assert "100 records received" in lines[-2]


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_signal_ends_a_measurement_with_its_figures(
    clock: PatientClock, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    clock.at_sleep = lambda: os.kill(os.getpid(), signal.SIGINT)
    status, lines, error = run(capsys, command, "t", "-r", "1")
    clock.at_sleep = None
    assert status == 130
    assert lines[0].startswith("Aggregated throughput stats --- ")
    assert lines[1].startswith("Aggregated latency stats --- ")
    assert "interrupted" in error


def test_payloads_of_a_file_are_sent_and_formatted(
    served: pulsar.Client, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "payloads").write_text("a %i;b %i")
    arguments = ["-f", str(tmp_path / "payloads"), "-e", ";", "-fp", "-m", "20", "-r", "0"]
    assert run(capsys, "produce", "t", *arguments)[0] == 0
    reader = served.create_reader("t", pulsar.MessageId.earliest)
    found = [reader.read_next().data().decode() for _ in range(20)]
    assert [int(each.split()[1]) for each in found] == list(range(20))
    assert {each.split()[0] for each in found} == {"a", "b"}


def test_a_topic_with_another_number_of_partitions_is_refused(
    served: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "produce", "t", "-np", "2", "-m", "1")
    status, _, error = run(capsys, "produce", "t", "-np", "3", "-m", "1")
    assert status == 1
    assert "exists already, and has 2" in error


def test_several_exclusive_consumers_are_refused(
    clock: PatientClock, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = run(capsys, "consume", "t", "-n", "2")
    assert status == 1
    assert "Only one consumer is allowed when subscriptionType is Exclusive" in error


@pytest.mark.parametrize("seed", range(20))
def test_percentiles_are_those_of_the_sorted_values_to_four_digits(seed: int) -> None:
    chance = random.Random(seed)
    values = [int(chance.lognormvariate(8, 3)) for _ in range(chance.randrange(1, 500))]
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    print("seed", seed)
    assert histogram.max == pytest.approx(max(values), rel=1e-3)
    assert histogram.mean == pytest.approx(sum(values) / len(values), rel=1e-3)
    for percent in (50, 95, 99, 99.9):
        exact = sorted(values)[max(0, -int(-len(values) * percent // 100) - 1)]
        assert histogram.percentile(percent) == pytest.approx(exact, rel=1e-3)


def test_nothing_measured_is_shown_as_zeros() -> None:
    measured = Measured(ManualClock(), 1e-6)
    assert measured.interval(Measured.PRODUCED).startswith("Throughput produced:       0 msg --- ")
    throughput, _ = measured.received()
    assert throughput.startswith("Aggregated throughput stats --- 0 records received --- 0.000")
