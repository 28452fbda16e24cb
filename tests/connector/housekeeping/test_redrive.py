"""Dead letters that go back: which, where to, in which order, and once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import Admin, pulsar
from pulsar_spark.connector.runtime.housekeeping.redrive import DeadLetterFilter, Redrive
from pulsar_spark.connector.storage.clock import ManualClock
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.errors import InvalidOptionError, InvalidTxnStatusError, TopicNotFoundError
from pulsar_spark.log.ledger_log import TERMINATED
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.pulsar.schema import StringSchema
from tests.connector.client.clients import EARLIEST, REPOSITORY, all_of, received, shared, subscribe
from tests.connector.client.conftest import client, url

__all__ = ["client", "url"]
DLQ = "t-s-DLQ"
TOPIC = "persistent://public/default/t"


def to_dead_letter(client: pulsar.Client, *values: str, **said: Any) -> None:
    """Publish these, and have them buried by subscription s, each with the error that it says."""
    subscribe(client, name="all").close()  # keeps them to be looked at
    producer = client.create_producer("t")
    for value in values:
        producer.send(value.encode(), **said)
    producer.close()
    rejected(client, "t")


def rejected(client: pulsar.Client, topic: str, name: str = "s", **said: Any) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, **said)
    how: dict[str, Any] = {"dead_letter_policy": policy, "negative_ack_redelivery_delay_ms": 1000}
    consumer = shared(client, topic=topic, name=name, **how)
    for _ in range(2):
        for message in all_of(consumer, 5000):
            consumer.negative_acknowledge(message, error=message.data().decode())
    all_of(consumer, 2000)
    consumer.close()


def redrive(url: str, topic: str = DLQ, **said: Any) -> Any:
    return Admin(url).topics.redrive(topic, **said)


def reader(client: pulsar.Client, topic: str = "t") -> list[pulsar.Message]:
    return all_of(subscribe(client, topic=topic, name="all"))


def observed(client: pulsar.Client) -> None:
    """Let the broker take in what was said."""
    clock = client.root.clock
    assert isinstance(clock, ManualClock)
    clock.advance(1000)


def test_a_redrive_of_a_topic_without_dead_letters_leaves_no_subscription(
    url: str, client: pulsar.Client
) -> None:
    subscribe(client, name="all")
    client.create_producer("t").send(b"a")
    assert redrive(url, "t").dead_letters == 0
    assert [each.name for each in client.topic_stats("t").subscriptions] == ["all"]


def test_letters_go_back_as_they_were_and_only_once(url: str, client: pulsar.Client) -> None:
    said: dict[str, Any] = {"partition_key": "k", "ordering_key": "o", "event_timestamp": 5,
            "properties": {"traceparent": "00-1-2-01", "own": "1"}}  # fmt: skip
    to_dead_letter(client, "a", "b", **said)
    looked = redrive(url, dry_run=True)
    assert (looked.dead_letters, looked.redriven, looked.left) == (2, {TOPIC: 2}, {})
    done = redrive(url)
    assert (done.dead_letters, done.redriven, done.left) == (2, {TOPIC: 2}, {})
    found = reader(client)
    assert [each.data() for each in found] == [b"a", b"b"] * 2
    first, again = found[0], found[2]
    for what in ("partition_key", "ordering_key", "event_timestamp", "properties"):
        assert getattr(first, what)() == getattr(again, what)(), what
    assert redrive(url).dead_letters == 0
    observed(client)
    assert redrive(url, dry_run=True).dead_letters == 0
    consumer = shared(client)
    assert [(each.data(), each.redelivery_count()) for each in all_of(consumer)] == [
        (b"a", 0), (b"b", 0),
    ]  # fmt: skip


def test_only_letters_that_match_go_back(url: str, client: pulsar.Client) -> None:
    for number in range(4):
        to_dead_letter(
            client, f"error {number}", partition_key=f"k{number}", properties={"n": str(number)}
        )
    other = datetime.fromtimestamp(client.root.clock.wall_ms() / 1000, timezone.utc)
    matching: list[tuple[dict[str, Any], int]] = [
        ({"error": "error 2"}, 1), ({"error": "nothing"}, 0), ({"key": "k1"}, 1),
        ({"properties": {"n": "3"}}, 1), ({"properties": {"n": "3"}, "key": "k1"}, 0),
        ({"reason": "rejected"}, 4), ({"reason": "ack timeout"}, 0), ({"origin_topic": "t"}, 4),
        ({"origin_topic": "other"}, 0), ({"dead_lettered_by": "s"}, 4),
        ({"dead_lettered_by": "x"}, 0),
        ({"message_ids": ["0:0:0", "2:0:0:0"]}, 2), ({"since": other}, 0), ({"until": other}, 4),
    ]  # fmt: skip
    for requested, count in matching:
        assert redrive(url, dry_run=True, **requested).dead_letters == count, requested
    assert redrive(url, key="k1").redriven == {TOPIC: 1}
    observed(client)
    assert redrive(url, dry_run=True).dead_letters == 3
    assert redrive(url).redriven == {TOPIC: 3}
    assert [each.data()[-1:] for each in reader(client)][4:] == [b"1", b"0", b"2", b"3"]


def test_what_can_not_be_wanted_is_refused(url: str, client: pulsar.Client) -> None:
    to_dead_letter(client, "a")
    with pytest.raises(InvalidOptionError, match="No reason 'reject': there is rejected, ack"):
        redrive(url, reason="reject")
    with pytest.raises(InvalidOptionError, match="no time zone"):
        redrive(url, since=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(TopicNotFoundError):
        redrive(url, "no-such-topic")
    with pytest.raises(TopicNotFoundError):
        redrive(url, to="no-such-topic")


def test_a_key_goes_back_in_its_order_over_partitions_and_parts(
    url: str, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.root.open_or_create(TopicName.parse("t"), 3)
    producer = client.create_producer("t")
    for number in range(30):
        producer.send(str(number).encode(), partition_key=f"k{number % 5}")
    subscribe(client, name="all").close()
    policy = pulsar.ConsumerDeadLetterPolicy(1)
    how: dict[str, Any] = {"dead_letter_policy": policy, "negative_ack_redelivery_delay_ms": 1000}
    consumer = shared(client, **how)
    for _ in range(2):
        for message in reversed(all_of(consumer, 5000)):  # a letter and an error each
            consumer.negative_acknowledge(message, error=message.data().decode())
    all_of(consumer, 2000)
    monkeypatch.setattr(
        "pulsar_spark.connector.runtime.housekeeping.redrive.DEAD_LETTERS_A_TRANSACTION", 7
    )
    assert redrive(url).redriven == {TOPIC: 30}
    found = reader(client)
    assert len(found) == 60
    for key in range(5):
        mine = [each for each in found if each.partition_key() == f"k{key}"]
        assert len({each.topic_name() for each in mine}) == 1
        numbers = [int(each.data()) for each in mine]
        assert numbers == [*range(key, 30, 5)] * 2


def test_letters_of_several_topics_and_subscriptions_go_each_to_its_own(
    url: str, client: pulsar.Client
) -> None:
    for topic, name in (("a", "x"), ("b", "x"), ("a", "y")):
        client.create_producer(topic).send(f"{topic}{name}".encode())
        rejected(client, topic, name, dead_letter_topic="dead")
    full = "persistent://public/default/{}".format
    assert redrive(url, "dead", dry_run=True).redriven == {full("a"): 3, full("b"): 1}
    assert redrive(url, "dead", dead_lettered_by="y").redriven == {full("a"): 2}
    assert redrive(url, "dead", origin_topic="b", to="a").redriven == {full("a"): 1}
    assert redrive(url, "dead").redriven == {full("a"): 1}


def test_what_is_no_letter_stays(url: str, client: pulsar.Client) -> None:
    to_dead_letter(client, "a")
    client.create_producer(DLQ).send(b"x")
    assert redrive(url).dead_letters == 1
    assert received(client.subscribe(DLQ, "redrive", initial_position=EARLIEST)) == [b"x"]


def test_letters_whose_topic_refuses_them_stay_and_say_why(url: str, client: pulsar.Client) -> None:
    to_dead_letter(client, "a")
    client.create_producer("t", schema=StringSchema()).send("x")
    Admin(url).policies("t").set(schema_validation_enforced=True)
    done = redrive(url)
    assert done.redriven == {}
    ((why, count),) = done.left.items()
    assert count == 1
    assert "takes no messages without one" in why
    client.create_producer("elsewhere")
    assert redrive(url, to="elsewhere").redriven == {"persistent://public/default/elsewhere": 1}


def test_letters_whose_topic_is_gone_stay_or_go_elsewhere(url: str, client: pulsar.Client) -> None:
    to_dead_letter(client, "a")
    producer = client.create_producer(DLQ)
    origin = {"REAL_TOPIC": "persistent://public/default/gone", "ORIGIN_MESSAGE_ID": "no id"}
    producer.send(b"x", properties=origin)
    done = redrive(url)
    assert done.redriven == {TOPIC: 1}
    ((why, count),) = done.left.items()
    assert count == 1
    assert "gone" in why
    assert redrive(url, to="t").redriven == {TOPIC: 1}
    assert [each.data() for each in reader(client)] == [b"a", b"a", b"x"]


def test_a_newer_redrive_stops_an_older_one(url: str, client: pulsar.Client) -> None:
    to_dead_letter(client, "a")
    root = client.root
    slow = Redrive(root, TopicName.parse(DLQ), DeadLetterFilter())

    def overtaken(_doing: str, _total: int) -> Any:
        assert redrive(url).redriven == {TOPIC: 1}
        return lambda _done: None

    with pytest.raises(InvalidTxnStatusError, match="taken over"):
        slow.run(overtaken)
    assert [each.data() for each in reader(client)] == [b"a", b"a"]


@pytest.mark.slow
def test_a_redrive_that_is_killed_anywhere_sends_each_letter_once(tmp_path: Path) -> None:
    every = 8
    first = random.randrange(every)
    command = [sys.executable, "-m", "tests.connector.killed_redrive"]
    print(f"again: python -m tests.connector.killed_redrive FOLDER {every} {first}")
    done = subprocess.run(
        [*command, str(tmp_path), str(every), str(first)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_command_says_what_went_where_and_what_stayed(
    url: str, client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    to_dead_letter(client, "a", "b", partition_key="k", properties={"x": "1"})
    gone = {"REAL_TOPIC": "persistent://public/default/gone", "ORIGIN_MESSAGE_ID": "0:0:0"}
    client.create_producer(DLQ).send(b"c", properties=gone)

    def said(*arguments: str) -> tuple[int, str]:
        status = main(["topics", "redrive", DLQ, "--service-url", url, *arguments])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    status, text = said("--dry-run", "--origin-topic", "t", "--property", "x=1", "--key", "k")
    assert (status, text) == (0, f"2 would go to {TOPIC}\n")
    status, text = said("--error", "a", "--id", "0:0:0", "--id", "0:1:0", "--json")
    assert json.loads(text) == {
        "topic": f"{TOPIC}-s-DLQ", "subscription": "redrive", "dry_run": False, "dead_letters": 1,
        "redriven": {TOPIC: 1}, "left": {},
    }  # fmt: skip
    status, text = said()
    assert status == 1
    assert text.splitlines()[0] == f"1 went to {TOPIC}"
    assert text.splitlines()[1].startswith("1 stayed: ")
    assert said("--key", "k") == (
        0, f"{TOPIC}-s-DLQ has no letter that redrive has yet to send back.\n",
    )  # fmt: skip
    assert "takes NAME=VALUE" in said("--property", "x")[1]
    assert "takes a message id" in said("--id", "x")[1]
    assert "does not exist" in said("--to", "nowhere")[1]


def test_whoever_is_given_the_letters_has_them(url: str, client: pulsar.Client) -> None:
    to_dead_letter(client, "a")
    consumer = shared(client, topic=DLQ, name="redrive")
    with pytest.raises(InvalidOptionError, match="has consumers"):
        redrive(url)
    consumer.close()
    assert redrive(url).redriven == {TOPIC: 1}


def test_letters_whose_topic_was_terminated_stay(url: str, client: pulsar.Client) -> None:
    to_dead_letter(client, "a")
    settings = {TERMINATED: True}
    client.root.open(TopicName.parse("t")).change_settings(lambda held: {**held, **settings})
    done = redrive(url)
    assert done.redriven == {}
    ((why, count),) = done.left.items()
    assert (count, "was terminated" in why) == (1, True)
