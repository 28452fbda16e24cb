"""`pulsarlite subscriptions`, with a broker that runs without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_spark.broker.protocol.commands import Report, Subscribe, SubscriptionType
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.system_topics import subscription_admin
from pulsar_spark.connector.runtime.system_topics.system_topics import COMMANDS, Record, SystemTopic
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.model.positions.cursor import Cursor
from pulsar_spark.model.positions.position_set import PositionSet
from pulsar_spark.model.topic_name import TopicPartition
from tests.connector.topics import send

ABOUT = TopicPartition("persistent://public/default/t", 0)


@pytest.fixture
def place(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    """A topic of three messages, and a broker at work."""
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    send(root, "t", "abc", batchingEnabled=False)
    loop = EmbeddedBroker(Root(str(root), {}), "_broker/checkpoint")
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.01):
            loop.until_quiet()

    thread = threading.Thread(target=serve)
    thread.start()
    yield loop.root
    stop.set()
    thread.join()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(["subscriptions", *arguments])
    captured = capsys.readouterr()
    assert status == (1 if captured.err else 0)
    return captured.err or captured.out


def test_a_subscription_is_made_looked_at_moved_and_deleted(
    place: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no subscription that a broker knows of" in said(capsys, "list", "t")
    assert "Created s on" in said(capsys, "create", "t", "s")
    assert "was there already, and stays" in said(capsys, "create", "t", "s", "--latest")
    reported = json.loads(said(capsys, "create", "t", "other", "--json"))
    assert reported == {"topic": ABOUT.topic, "subscription": "other"}
    found = json.loads(said(capsys, "list", "t", "--json"))
    assert [(each["subscription"], each["backlog"]) for each in found] == [("other", 3), ("s", 3)]
    assert json.loads(said(capsys, "delete", "t", "other", "--json")) == reported
    row = said(capsys, "list", "t").splitlines()[1].split()
    assert row[:5] == ["s", "0", "Exclusive", "0:-1", "3"]
    assert "goes on from 0:1:0" in said(capsys, "seek", "t", "s", "--to", "0:1:0")
    assert said(capsys, "list", "t").splitlines()[1].split()[3:5] == ["0:0", "2"]
    assert "goes on from latest" in said(capsys, "seek", "t", "s", "--to", "latest")
    assert said(capsys, "list", "t").splitlines()[1].split()[4] == "0"
    said(capsys, "seek", "t", "s", "--to-time", "2020-01-01")
    assert said(capsys, "list", "t").splitlines()[1].split()[4] == "3"
    assert "Deleted s" in said(capsys, "delete", "t", "s")
    assert "no subscription" in said(capsys, "list", "t")


def test_a_list_shows_who_is_connected_and_holds_what(
    place: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = SystemTopic(place, COMMANDS)
    commands.append([Record.of(ABOUT, "s", Subscribe("s", "c", 1, SubscriptionType.SHARED,
                                                     permits=10))])  # fmt: skip
    said(capsys, "seek", "t", "s", "--to", "earliest")
    done = Report("s", "c", 1, epoch=1, acknowledged=Cursor().acknowledge(PositionSet.of([(0, 1)])))
    commands.append([Record.of(ABOUT, "s", done)])
    said(capsys, "create", "t", "another", "--latest")
    assert "c (2 unacked)" in said(capsys, "list", "t")
    assert "Unconnected or shared consumer" in said(capsys, "delete", "t", "s")
    assert "Deleted s" in said(capsys, "delete", "t", "s", "--force")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("seek", "t", "unknown", "--to", "earliest"), "unknown: SubscriptionNotFound"),
        (("seek", "t", "s", "--to", "nowhere"), "it takes earliest, latest, or a message id"),
        (("seek", "t", "s", "--to", "0:0:7"), "names no partition of"),
        (("list", "tt"), "Did you mean persistent://public/default/t?"),
        (("create", "t", " "), "[INVALID_TOPIC_NAME]"),
    ],
)
def test_what_can_t_be_done_is_one_clear_line(
    place: Root, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], error: str
) -> None:
    assert place.service_url
    text = said(capsys, *arguments)
    assert error in text
    assert text.count("\n") == 1


def test_who_waits_for_a_broker_is_told_before_the_time_is_up(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription_admin, "ANSWER_WITHIN_S", 0.01)
    monkeypatch.setattr(subscription_admin, "WARN_AFTER_S", 0.0)
    send(root, "t", "a")
    said(capsys, "create", "t", "s", "--service-url", str(root))
    assert [each.message.partition(" for ")[0] for each in caplog.records] == [
        "Waiting 0.01 s at most"
    ]


def test_without_a_broker_it_says_how_to_start_one(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_admin, "ANSWER_WITHIN_S", 0.0)
    send(root, "t", "a")
    text = said(capsys, "create", "t", "s", "--service-url", str(root))
    assert "pulsarlite standalone --service-url" in text
