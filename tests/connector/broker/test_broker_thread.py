"""`standalone(embedded=True)`: the broker as a thread, without Spark and Java."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pulsar_spark.connector.runtime.broker.broker_sink import claim_term
from pulsar_spark.connector.runtime.broker.embedded_broker import CHECKPOINT, EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.storage.local_store import LocalStore
from pulsar_spark.connector.tools.command_line.standalone_command import watch
from pulsar_spark.errors import (
    BrokerBusyError,
    BrokerFencedError,
    InvalidOptionError,
    StorageUnavailableError,
)
from pulsar_spark.state.broker_query import Broker, standalone
from tests.connector.reading import Run
from tests.connector.topics import send
from tests.waiting import eventually


def consumer(root: Path) -> Run:
    return Run(
        root, topic="t", subscriptionName="s", subscriptionType="Shared",
        subscriptionInitialPosition="Earliest",
    )  # fmt: skip


def receives(run: Run, expected: list[str], broker: Broker | None = None) -> None:
    """Until it had these, and not one more."""
    had: list[str] = []

    def reached() -> bool:
        assert broker is None or not broker.await_termination(0)
        had.extend(run.values())
        return len(had) >= len(expected)

    eventually(reached, 60, f"{expected} are received")
    assert had == expected


def served(root: Path) -> Broker:
    return standalone(None, str(root), embedded=True)


@pytest.mark.usefixtures("impatient")
def test_a_thread_serves_is_stopped_and_the_next_goes_on_where_it_was(root: Path) -> None:
    send(root, "t", "a")
    with served(root) as broker:
        run = consumer(root)
        receives(run, ["a"], broker)
        with pytest.raises(BrokerBusyError, match=f"process {os.getpid()}"):
            served(root)
        eventually(lambda: broker.status()["topics"] == ["persistent://public/default/t"])
        assert broker.status()["batch_id"] >= 0
        assert broker.term == 1
    status = broker.status()
    assert (status["is_active"], status["restarts"], status["error"]) == (False, 0, None)
    send(root, "t", "b")
    with served(root) as broker:
        receives(run, ["b"], broker)
        assert broker.term == 2


@pytest.mark.usefixtures("impatient")
def test_who_has_served_since_from_elsewhere_is_followed_from_what_it_said(root: Path) -> None:
    send(root, "t", "a")
    run = consumer(root)
    with served(root) as broker:
        receives(run, ["a"], broker)
    send(root, "t", "b")
    with EmbeddedBroker(Root(str(root), {})) as another:  # without that checkpoint
        another.until_quiet()
        receives(run, ["b"])
        another.until_quiet()
    send(root, "t", "c")
    with served(root) as broker:
        receives(run, ["c"])
        assert broker.status()["restarts"] == 1


@pytest.mark.usefixtures("impatient")
def test_a_thread_whose_term_is_over_ends_and_its_heir_goes_on(root: Path) -> None:
    send(root, "t", "a")
    run = consumer(root)
    with served(root) as broker:
        receives(run, ["a"], broker)
        place = Root(str(root), {})
        term = claim_term(place)
        send(root, "t", "b")
        with pytest.raises(BrokerFencedError):
            broker.await_termination(60)
        assert (root / CHECKPOINT).exists()
    heir = EmbeddedBroker(place, CHECKPOINT, term=term)
    heir.until_quiet()
    receives(run, ["b"])


def test_without_a_session_and_without_embedded_it_is_said_what_to_give(root: Path) -> None:
    with pytest.raises(InvalidOptionError, match="embedded=True"):
        standalone(None, str(root))
    with pytest.raises(InvalidOptionError, match="leave checkpoint and state_partitions out"):
        standalone(None, str(root), embedded=True, checkpoint="elsewhere")


@pytest.mark.usefixtures("impatient")
def test_the_command_serves_without_java_until_it_is_told_to_stop(root: Path) -> None:
    send(root, "t", "a")
    command = [sys.executable, "-m", "pulsar_spark", "standalone", "--embedded"]
    without_java = {**os.environ, "PATH": "", "JAVA_HOME": ""}
    with subprocess.Popen(
        [*command, "--service-url", str(root)], env=without_java, text=True, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert "runs (process" in process.stdout.readline()
            receives(consumer(root), ["a"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_store_that_is_away_for_some_time_does_not_end_the_command(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, away = LocalStore.get, threading.Event()

    def get(store: LocalStore, path: str) -> bytes | None:
        if away.is_set():
            raise StorageUnavailableError("The service did not answer.")
        return real(store, path)

    monkeypatch.setattr(LocalStore, "get", get)
    lines: list[str] = []
    ended: list[BaseException | None] = []
    with served(root) as broker:
        stop = threading.Event()

        def run() -> None:
            try:
                watch(broker, stop, lines.append, every_s=0.01)
                ended.append(None)
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                ended.append(error)

        watching = threading.Thread(target=run)
        watching.start()
        away.set()
        eventually(lambda: ended or (broker.restart_error is not None and lines), 60)
        away.clear()
        eventually(lambda: broker.restarts, 60)
        eventually(lambda: broker.status()["is_active"], 60)
        stop.set()
        watching.join()
    assert ended == [None]
    assert sum("can't be read for now" in each for each in lines) == 1
