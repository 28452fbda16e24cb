"""Bars of long work: on a terminal and nowhere else, and gone when the work is done."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_spark.connector.runtime.housekeeping.compaction import compact
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.tools.command_line import noun
from pulsar_spark.connector.tools.command_line.command_line import main
from tests.connector.topics import ledger_of, send

LONG = ["compact", "tidy"]
DOING = {"compact": "compacting partition 0", "tidy": "merging small files"}


@pytest.fixture
def orders(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A topic of three small files."""
    monkeypatch.setattr(noun, "SHORT_SECONDS", 0)
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    for number in range(3):
        send(root, "orders", ["a", "b"], columns={"key": [f"k{number}", "z"]})
    return root


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Standard error is a terminal; what it was sent, once it is closed."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    sent: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 1 << 16):
                sent.append(data)
        except OSError:  # the other side was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(its, "w", encoding="utf-8") as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", file)
            yield sent
    finally:
        reader.join()
        os.close(ours)


@pytest.mark.parametrize("command", LONG)
def test_long_work_has_a_bar_on_a_terminal_which_is_gone_in_the_end(
    command: str,
    orders: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with terminal(monkeypatch) as sent:
        assert main(["topics", command, "orders"]) == 0
    shown = b"".join(sent).decode()
    assert DOING[command] in shown
    assert "\n" not in shown
    assert not shown.rsplit("\r", 2)[-2].strip(), "the line is blank when the work is done"
    assert DOING[command] not in capsys.readouterr().out


@pytest.mark.parametrize("command", LONG)
def test_in_a_pipe_or_a_log_there_is_no_bar(
    command: str, orders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topics", command, "orders"]) == 0
    assert capsys.readouterr().err == ""


def test_the_work_that_was_announced_is_the_work_that_is_done(orders: Path) -> None:
    announced: list[tuple[str, int]] = []
    done: list[int] = []

    def progress(doing: str, total: int) -> Callable[[int], object]:
        announced.append((doing, total))
        return done.append

    ledger = ledger_of(orders, "orders")
    compact(ledger, progress=progress)
    assert (announced, sum(done)) == ([("compacting partition 0", 12)], 12), "two passes over 6"
    announced.clear()
    done.clear()
    LedgerStore(ledger).merge_small_files(progress=progress)
    assert (announced, sum(done)) == ([("merging small files", 6)], 6)


def test_work_of_a_moment_has_no_bar(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noun, "SHORT_SECONDS", 3600)
    with terminal(monkeypatch) as sent:
        assert main(["topics", "compact", "orders"]) == 0
    assert sent == []
