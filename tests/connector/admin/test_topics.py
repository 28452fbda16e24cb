"""What an administrator does with topics and subscriptions, in Python and on the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pulsar_spark
from pulsar_spark import pulsar
from pulsar_spark.connector.runtime.broker.embedded_broker import EmbeddedBroker
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.admin.admin import Admin
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.errors import (
    BrokerRefusedError,
    InvalidOptionError,
    InvalidTopicNameError,
    MessageNotFoundError,
    TopicInUseError,
    TopicTerminatedError,
)
from tests.connector.reading import Run
from tests.connector.topics import ledger_of, send
from tests.waiting import eventually


@pytest.fixture
def admin(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    """A topic of ten messages, one an entry, and a broker at work."""
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    send(root, "t", "0123456789", batchingEnabled=False)
    loop = EmbeddedBroker(Root(str(root), {}), "_broker/checkpoint")
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.01):
            loop.until_quiet()

    thread = threading.Thread(target=serve)
    thread.start()
    yield Admin(str(root))
    stop.set()
    thread.join()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(["topics", *arguments])
    captured = capsys.readouterr()
    assert status == (1 if captured.err else 0)
    return captured.err or captured.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


def backlog(admin: Admin, name: str = "s") -> int:
    return sum(each.backlog for each in admin.subscriptions.stats("t") if each.name == name)


def next_of(admin: Admin, name: str = "s") -> bytes | None:
    found = admin.topics.peek("t", name)
    return found[0].value if found else None


def test_a_terminated_topic_takes_no_messages_and_is_read_to_its_end(
    admin: Admin, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = pulsar_spark.Client(str(root))
    producer = client.create_producer("t")
    assert answer(capsys, "terminate", "t")["lastMessageIds"] == {"0": "0:9:0"}
    with pytest.raises(pulsar.TopicTerminated, match="takes no messages any more"):
        producer.send(b"late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("t")
    with pytest.raises(TopicTerminatedError):
        send(root, "t", "late")
    assert admin.topics.terminate("t")[0].entry_id == 9, "again, and nothing changes"
    batch = Run(root, topic="t", startingOffsets="earliest", available_now=True).next()
    assert batch is not None
    assert len(batch.values) == 10
    admin.topics.delete("t", force=True)
    send(root, "t", "x")


def test_who_receives_hears_of_the_end_of_a_terminated_topic(admin: Admin, root: Path) -> None:
    client = pulsar_spark.Client(str(root))
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    earliest = pulsar.InitialPosition.Earliest
    consumer = client.subscribe("t", "s", initial_position=earliest)
    messages = [consumer.receive(10_000) for _ in range(10)]
    assert not reader.has_reached_end_of_topic()
    admin.topics.terminate("t")
    assert not reader.has_reached_end_of_topic()
    assert [reader.read_next(5_000).data() for _ in range(10)][-1] == b"9"
    assert reader.has_reached_end_of_topic()
    assert not consumer.has_reached_end_of_topic(), "it has not acknowledged them"
    for each in messages:
        consumer.acknowledge(each)
    eventually(consumer.has_reached_end_of_topic)
    client.close()


def test_a_truncated_topic_is_empty_and_its_ids_go_on(
    admin: Admin, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.subscriptions.create("t", "s", "earliest")
    with pytest.raises(TopicInUseError, match=r"Subscriptions s of .*--force"):
        admin.topics.truncate("t")
    assert answer(capsys, "truncate", "t", "--force")["messages"] == 10
    assert ledger_of(root, "t").state.partition(0).messages == 0
    assert str(admin.topics.last_message_id("t")[0]) == "0:9:0"
    send(root, "t", "a")
    admin.subscriptions.skip("t", "s", 1)
    assert backlog(admin) == 0


def test_what_a_subscription_has_not_acknowledged_is_trimmed_by_force_alone(
    admin: Admin, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(root, "t", "ab")
    Admin(str(root)).policies("t").set(retention_time=-1, retention_size=-1)
    admin.subscriptions.create("t", "s", "earliest")
    trim = ("trim", "t", "--before", "1")
    refused = said(capsys, *trim)
    assert "[TOPIC_IN_USE] Subscriptions s of persistent://public/default/t" in refused
    assert "--force" in refused
    admin.subscriptions.skip("t", "s", 10)
    assert answer(capsys, *trim)["messages"] == 10, "they were acknowledged"
    assert answer(capsys, "trim", "t", "--before", "2", "--force")["messages"] == 2


def test_the_backlogs_of_a_namespace_are_cleared_by_force_alone(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.subscriptions.create("t", "s", "earliest")
    with pytest.raises(TopicInUseError, match="such as by s on persistent://public/default/t"):
        admin.namespaces.clear_backlog("public/default")
    assert main(["namespaces", "clear-backlog", "public/default", "-force"]) == 0
    assert (backlog(admin), main(["namespaces", "clear-backlog", "public/default"])) == (0, 0)
    capsys.readouterr()


def test_the_oldest_messages_are_skipped(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    admin.subscriptions.create("t", "s", "earliest")
    said(capsys, "skip", "t", "-s", "s", "-n", "3")
    assert (next_of(admin), backlog(admin)) == (b"3", 7)
    said(capsys, "skip", "t", "-s", "s", "-n", "100")
    assert (next_of(admin), backlog(admin)) == (None, 0)


def test_a_backlog_is_cleared_and_a_reset_brings_it_back(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.subscriptions.create("t", "s", "earliest")
    said(capsys, "clear-backlog", "t", "-s", "s")
    assert backlog(admin) == 0
    said(capsys, "reset-cursor", "t", "-s", "s", "-m", "earliest")
    assert backlog(admin) == 10


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-m", "0:4:0"], b"4"),
        (["-m", "0:4"], b"4"),
        (["-m", "0:4", "--exclude-reset-position"], b"5"),
        (["-m", "latest"], None),
        (["-m", "earliest"], b"0"),
        (["-t", "1h"], b"0"),
        (["-t", "0s"], None),
    ],
)
def test_a_cursor_is_reset_to_the_message_of_the_id_or_behind_it(
    admin: Admin, capsys: pytest.CaptureFixture[str], flags: list[str], expected: bytes | None
) -> None:
    admin.subscriptions.create("t", "s", "latest")
    said(capsys, "reset-cursor", "t", "-s", "s", *flags)
    assert next_of(admin) == expected


def test_what_is_older_expires_and_what_is_as_old_stays(admin: Admin, root: Path) -> None:
    (first,) = admin.topics.get_message_by_id("t", "0:0:0")
    published_ms = int(first.publish_time.timestamp() * 1000)
    admin.subscriptions.create("t", "s", "earliest")
    admin.subscriptions.create("t", "other", "earliest")
    age_ms = Root(str(root), {}).clock.wall_ms() - published_ms
    admin.subscriptions.expire("t", "s", older_than_ms=age_ms + 60_000)
    assert backlog(admin) == 10
    admin.subscriptions.expire("t", "s", message_id="0:3")
    assert (backlog(admin), next_of(admin)) == (6, b"4"), "the message of the id expires too"
    assert admin.subscriptions.expire("t", older_than_ms=0) == ["other", "s"]
    assert (backlog(admin), backlog(admin, "other")) == (0, 0)


def test_subscriptions_are_made_named_and_deleted(
    admin: Admin, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "create-subscription", "t", "-s", "a")
    said(capsys, "create-subscription", "t", "-s", "b", "-m", "earliest")
    said(capsys, "create-subscription", "t", "-s", "c", "-m", "0:7:0")
    assert answer(capsys, "subscriptions", "t") == ["a", "b", "c"]
    assert [backlog(admin, each) for each in "abc"] == [0, 10, 3]
    client = pulsar_spark.Client(str(root))
    consumer = client.subscribe("t", "b")
    assert consumer.receive(10_000).data() == b"0"
    assert "Unconnected or shared consumer" in said(capsys, "unsubscribe", "t", "-s", "b")
    said(capsys, "unsubscribe", "t", "-s", "a")
    assert admin.subscriptions.list("t") == ["b", "c"]
    client.close()
    said(capsys, "unsubscribe", "t", "-s", "b", "--force")
    assert admin.subscriptions.list("t") == ["c"]
    with pytest.raises(BrokerRefusedError, match="SubscriptionNotFound"):
        admin.subscriptions.delete("t", "b")


@pytest.mark.parametrize("name", ["\ud800", " "])
def test_a_subscription_that_nobody_can_have_is_refused_by_every_command(
    admin: Admin, name: str
) -> None:
    of = admin.subscriptions
    for ask in (of.create, of.delete, of.clear_backlog, partial(of.skip, count=1)):
        with pytest.raises(InvalidTopicNameError, match="ubscription name"):
            ask("t", name)


def test_messages_are_looked_at_one_by_one(
    admin: Admin, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin.topics.examine("t").value == b"9"
    assert admin.topics.examine("t", "latest", 3).value == b"7"
    assert answer(capsys, "examine-messages", "t", "-i", "earliest", "-m", "2")["value"] == "1"
    with pytest.raises(MessageNotFoundError):
        admin.topics.examine("t", "earliest", 11)
    with pytest.raises(InvalidOptionError, match="from 1 on"):
        admin.topics.examine("t", "earliest", 0)
    assert answer(capsys, "get-message-by-id", "t", "-l", "0", "-e", "5")[0]["value"] == "5"
    with pytest.raises(MessageNotFoundError, match="has no message 0:10:0"):
        admin.topics.get_message_by_id("t", "0:10:0")
    assert answer(capsys, "last-message-id", "t")["lastMessageIds"] == {"0": "0:9:0"}
    assert said(capsys, "get-backlog-size", "t", "-m", "0:3") == "6\n"
    assert (
        answer(capsys, "get-backlog-size", "t", "-m", "0:9:0"),
        admin.topics.backlog_size("t", "7:0"),
    ) == (0, 0)
    admin.subscriptions.create("t", "s", "earliest")
    admin.subscriptions.skip("t", "s", 8)
    found = answer(capsys, "peek-messages", "t", "-s", "s", "-n", "5")
    assert [each["value"] for each in found] == ["8", "9"]
    assert backlog(admin) == 2, "nothing was acknowledged"
    admin.topics.create("many", 2)
    with pytest.raises(InvalidOptionError, match="name one, such as"):
        admin.topics.examine("many")


def test_a_message_of_a_time_that_python_has_not_is_looked_at_too(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(root))
    last = pa.array([(1 << 63) - 1], pa.timestamp("us", "UTC"))
    send(root, "future", ["a"], columns={"event_time": last})
    found = answer(capsys, "peek", "future")
    assert (found["value"], found["event_time"]) == ("a", "294247-01-10T04:00:54.775Z")
    assert "event_time 294247-01-10T04:00:54.775Z" in said(capsys, "peek", "future")


def test_a_batch_is_examined_message_by_message(admin: Admin, root: Path) -> None:
    send(root, "batched", "abc")
    assert [admin.topics.examine("batched", "earliest", n).value for n in (1, 2, 3)] == [
        b"a", b"b", b"c",
    ]  # fmt: skip
    found = admin.topics.get_message_by_id("batched", "0:0")
    assert [each.value for each in found] == [b"a", b"b", b"c"]
    assert [each.value for each in admin.topics.get_message_by_id("batched", "0:0:0:1")] == [b"b"]
    assert str(admin.topics.last_message_id("batched")[0]) == "0:0:0:2"


def test_what_is_asked_for_a_deleted_topic_does_not_reach_the_new_one(
    admin: Admin, root: Path
) -> None:
    admin.subscriptions.create("t", "s", "earliest")
    admin.topics.delete("t", force=True)
    send(root, "t", "xyz", batchingEnabled=False)
    assert admin.subscriptions.list("t") == []
    with pytest.raises(BrokerRefusedError, match="SubscriptionNotFound"):
        admin.subscriptions.clear_backlog("t", "s")
    admin.subscriptions.create("t", "s", "earliest")
    assert backlog(admin) == 3


def test_a_topic_is_made_grown_and_listed_as_json(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(capsys, "create", "o", "-p", "2")["partitions"] == 2
    assert answer(capsys, "update", "o", "-p", "3")["before"] == 2
    assert answer(capsys, "get-partitioned-topic-metadata", "o") == {"partitions": 3}
    assert "partitions are only ever added" in said(capsys, "update", "o", "-p", "1")
    assert answer(capsys, "delete", "o")["files"] == 0
    assert "was deleted" in said(capsys, "delete", "o")
