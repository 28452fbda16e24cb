"""The tutorial, done as it stands there, by somebody in an empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pulsar_spark
from tests.architecture.sources import REPOSITORY
from tests.waiting import eventually

PAGE = (REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent
PATIENCE_S = 120.0


class Reader:
    """Somebody who copies the files, and types the commands into terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = [text for kind, text in BLOCKS if kind == "python"]
        self.outputs = [text.splitlines() for kind, text in BLOCKS if kind == "text"]
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PULSARLITE_SERVICE_URL": "shop",
        }

    def copies(self, name: str) -> None:
        """The next program of the page, which is to be that file."""
        text = self.programs.pop(0)
        assert text.startswith(f"# {name}\n")
        (self.folder / name).write_text(text)

    def edits(self, name: str, before: str, after: str) -> None:
        text = (self.folder / name).read_text()
        assert before in text
        (self.folder / name).write_text(text.replace(before, after))

    def types(self, command: str) -> str:
        """What it prints; that nothing else is printed is part of it."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, shell=True, capture_output=True,
            text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    @contextmanager
    def runs(self, command: str, log: str = "log") -> Iterator[Path]:
        """A terminal, left with Ctrl-C; its output."""
        path, beside = self.folder / log, self.folder / f"{log}.errors"
        with path.open("w") as output, beside.open("w") as errors:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"], cwd=self.folder, env=self.environment,
                stdout=output, stderr=errors,
            )  # fmt: skip
            try:
                yield path
                assert process.poll() is None
                assert beside.read_text() == "" or "spark" in command
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(PATIENCE_S)

    def shows(self, log: Path, *lines: str) -> None:
        eventually(lambda: log.read_text().splitlines() == list(lines), PATIENCE_S)


@pytest.mark.slow
@pytest.mark.spark
def test_the_tutorial_goes_as_it_says(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.copies("worker.py")
    reader.copies("publish.py")
    with reader.runs("python worker.py") as log:
        eventually((tmp_path / "shop/_leases").exists, PATIENCE_S)
        reader.types('python publish.py "2 apples" "3 pears"')
        reader.shows(log, *reader.outputs.pop(0))
    reader.types('python publish.py "1 melon"')
    with reader.runs("python worker.py") as log:
        reader.shows(log, "billed 1 melon")

    reader.copies("worker.py")
    with reader.runs("python worker.py") as log:
        reader.types('python publish.py "x plums" "4 plums"')
        reader.shows(log, *reader.outputs.pop(0))
        eventually(lambda: "-DLQ" in reader.types("pulsarlite topics list"), PATIENCE_S)
        assert "x plums" in reader.types("pulsarlite topics peek orders-billing-DLQ")
        with reader.runs("pulsarlite dashboard --port 0", "dashboard") as dashboard:
            eventually(lambda: "http://127.0.0.1:" in dashboard.read_text(), PATIENCE_S)

    mended = reader.programs.pop(0).splitlines()
    reader.edits("worker.py", '    print("billed", int(count), fruit, flush=True)', mended[2])
    with reader.runs("python worker.py") as log:
        eventually(lambda: consumers(tmp_path) == 1, PATIENCE_S)
        (answer,) = reader.outputs.pop(0)
        assert reader.types("pulsarlite topics redrive orders-billing-DLQ") == f"{answer}\n"
        reader.shows(log, "billed 1 plums")

    reader.edits("worker.py", 'pulsar.Client("shop", broker="embedded")', 'pulsar.Client("shop")')
    reader.copies("spark_worker.py")
    orders = [f"{number} cherries" for number in range(10)]
    with reader.runs("pulsarlite standalone --embedded", "broker"):
        with (
            reader.runs("python worker.py", "1") as one,
            reader.runs("python worker.py", "2") as two,
        ):
            eventually(lambda: consumers(tmp_path) == 2, PATIENCE_S)
            reader.types(f"python publish.py {' '.join(map(repr, orders))}")
            billed = [f"billed {each}" for each in orders]
            eventually(lambda: sorted(lines(one, two)) == billed, PATIENCE_S)
        with reader.runs("python spark_worker.py"):
            eventually(lambda: consumers(tmp_path) == 1, PATIENCE_S)
            reader.types('python publish.py "5 apples" "y figs"')
            eventually(lambda: "figs" in dead_letters(tmp_path), PATIENCE_S)
    assert "ValueError" in dead_letters(tmp_path)
    assert "spark_worker.py" in dead_letters(tmp_path)
    assert not reader.programs
    assert not reader.outputs


def lines(*logs: Path) -> list[str]:
    return [line for log in logs for line in log.read_text().splitlines()]


def consumers(folder: Path) -> int:
    found = pulsar_spark.Admin(str(folder / "shop")).subscriptions.stats("orders")
    return sum(len(each.consumers) for each in found)


def dead_letters(folder: Path) -> str:
    found = pulsar_spark.dataset(str(folder / "shop"), view="dead-letters")
    return str(found.to_table(["value", "error"]).to_pylist())
