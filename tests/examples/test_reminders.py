"""The example `reminders`: thirty days pass on a moved clock; and it runs as a process."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from examples.reminders import reminders
from pulsar_spark import pulsar
from pulsar_spark.testing import Place
from tests.architecture.sources import REPOSITORY


def test_reminders_come_when_they_are_due_and_cancelled_ones_never(pulsarlite: Place) -> None:
    client, start = pulsarlite.client, pulsarlite.now()
    consumer = reminders.subscribe(client)
    cart = reminders.remind(client, "your cart", timedelta(days=2))
    reminders.remind(client, "your voucher ends", timedelta(days=30))
    soon = reminders.remind(client, "it begins", timedelta(hours=1))
    pulsarlite.clock.advance(days=1, seconds=-120)
    sent: list[tuple[str, timedelta]] = []
    down = [True]

    def send(text: str) -> None:
        if down:
            down.clear()
            raise OSError("the mail server does not answer")
        sent.append((text, pulsarlite.now() - start))

    reminders.run(consumer, send, timeout_millis=120_000)
    reminders.cancel(client, cart)
    reminders.cancel(client, cart)
    reminders.cancel(client, soon)
    pulsarlite.clock.advance(days=28, hours=23, minutes=55)
    reminders.run(consumer, send, timeout_millis=600_000)
    assert [text for text, _ in sent] == ["it begins", "your voucher ends"]
    assert sent[1][1] < timedelta(days=30, seconds=2)
    assert pulsarlite.backlog(reminders.TOPIC, reminders.SUBSCRIPTION) == 0


@pytest.mark.slow
def test_the_program_reminds_and_cancels(tmp_path: Path) -> None:
    program = REPOSITORY / "examples" / "reminders" / "reminders.py"

    def run(*arguments: str) -> str:
        command = [sys.executable, str(program), "--service-url", str(tmp_path), *arguments]
        ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
        return ended.stdout.strip()

    with pulsar.Client(str(tmp_path), broker="embedded") as client:
        reminders.subscribe(client).close()
        first = run("remind", "first", "--seconds", "4")
        run("remind", "second", "--seconds", "4")
        run("cancel", first)
        consumer = reminders.subscribe(client)
        assert consumer.receive(60_000).data() == b"second"
