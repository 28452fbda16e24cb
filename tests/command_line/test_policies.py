"""Policies of topics and namespaces on the command line, by pulsar-admin's names and flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark import Admin
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.command_line.command_line import main
from pulsar_spark.model.topic_name import TopicName
from pulsar_spark.options.topic_policies import POLICIES, switched_off

ORDERS = "persistent://public/default/orders"
PLACES = {"topics": "orders", "topicPolicies": "orders", "namespaces": "public/default"}
DEFAULT = "the default: nobody says otherwise"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    monkeypatch.setenv("PULSARLITE_SERVICE_URL", str(tmp_path))
    root = Root(str(tmp_path), {})
    root.create(TopicName.parse("orders"), 2)
    return root


@pytest.fixture
def say(root: Root, capsys: pytest.CaptureFixture[str]) -> PrintLine:
    return PrintLine(capsys)


class PrintLine:
    """Runs commands; the lines that they print behind the first, which names the place."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, group: str, *words: str) -> list[str]:
        assert main([group, *words]) == 0, self._capsys.readouterr().err
        return [line.strip() for line in self._capsys.readouterr().out.splitlines()[1:]]

    def json(self, group: str, *words: str) -> Any:
        assert main([group, *words, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def error(self, group: str, *words: str) -> str:
        assert main([group, *words]) == 1
        captured = self._capsys.readouterr()
        assert not captured.out
        return captured.err


@pytest.mark.parametrize("group", PLACES)
def test_retention_is_set_got_and_removed_as_pulsar_admin_does(say: PrintLine, group: str) -> None:
    place = PLACES[group]
    assert say(group, "set-retention", place, "-t", "3d", "--size", "10G") == [
        "retention_time: 3d", "retention_size: 10G",
    ]  # fmt: skip
    stored = {"retention_time": 259_200, "retention_size": 10 << 30}
    assert say.json(group, "get-retention", place) == stored
    assert say(group, "remove-retention", place) == [
        f"retention_time: 0 ({DEFAULT})", f"retention_size: 0 ({DEFAULT})",
    ]  # fmt: skip
    assert say.json(group, "get-retention", place) == {}
    assert say(group, "get-retention", place)[0] == "retention_time: nothing is said"


def test_get_applied_says_which_word_counts_and_whose_it_is(say: PrintLine) -> None:
    def applied() -> list[str]:
        return say("topics", "get-message-ttl", "orders", "--applied")

    assert applied() == [f"message_ttl: 0 ({DEFAULT})"]
    say("namespaces", "set-message-ttl", "public/default", "--messageTTL", "100m")
    of_namespace = "as namespace public/default says; the topic says nothing"
    assert applied() == [f"message_ttl: 100m ({of_namespace})"]
    say("topics", "set-message-ttl", "orders", "-t", "0")
    assert applied() == ["message_ttl: 0 (as the topic says)"]
    assert say.json("topics", "get-message-ttl", "orders", "-ap") == {
        "message_ttl": {"value": 0, "source": "topic"}
    }
    assert say("topics", "remove-message-ttl", "orders") == [f"message_ttl: 100m ({of_namespace})"]
    option = "; a query's option enableDeduplication comes before it"
    say("topics", "set-deduplication", "orders", "-e")
    lines = say("topics", "get-deduplication", "orders", "--applied")
    assert lines == [f"deduplication: on (as the topic says{option})"]


@pytest.mark.parametrize("group", PLACES)
def test_every_policy_has_its_three_commands_and_every_name_of_pulsar_admin(
    say: PrintLine, group: str
) -> None:
    place = PLACES[group]
    for policy in POLICIES:
        if policy.is_namespaces and group != "namespaces":
            continue
        for name in (policy.name, *policy.also):
            given: list[str] = []
            for each in policy.settings:
                if isinstance(each.default, bool):
                    given.append((switched_off(each) if each.default else each.flags)[-1])
                else:
                    held = each.unit.given(each.default) or 5
                    text = ",".join(held) if isinstance(held, list) else str(held)
                    given += [each.flags[-1], text]
            reported = say.json(group, f"set-{name}", place, *given)
            assert reported.keys() == {each.name for each in policy.settings}
            assert say.json(group, f"get-{name}", place) == reported
            applied = say.json(group, f"remove-{name}", place)
            assert {each["source"] for each in applied.values()} == {"default"}
    assert say.json(group, "policies", place) == {}


def test_all_policies_of_a_place_are_printed(say: PrintLine) -> None:
    say("namespaces", "set-max-consumers-per-topic", "public/default", "-c", "3")
    say("topics", "set-maxProducers", "orders", "-p", "4")
    assert say.json("topics", "policies", "orders") == {"max_producers": 4}
    assert say.json("namespaces", "policies", "public/default") == {"max_consumers": 3}
    lines = say("topics", "policies", "orders", "--applied")
    assert "max_producers: 4 (as the topic says)" in lines
    of_topics = [policy for policy in POLICIES if not policy.is_namespaces]
    assert len(lines) == sum(len(policy.settings) for policy in of_topics)


def test_a_backlog_quota_has_two_limits_and_one_policy(say: PrintLine) -> None:
    quota = ("topics", "set-backlog-quota", "orders", "-p", "producer_exception")
    say(*quota, "--limit", "10M", "-t", "destination_storage")
    say(*quota, "--limitTime", "3h", "-t", "message_age")
    say("topics", "remove-backlog-quota", "orders", "-t", "destination_storage")
    assert say.json("topics", "get-backlog-quotas", "orders") == {
        "backlog_quota_limit_time": 10_800, "backlog_quota_policy": "producer_exception",
    }  # fmt: skip
    assert "--type message_age needs --limitTime" in say.error(
        *quota, "-l", "1G", "-t", "message_age"
    )


def test_what_is_wrong_is_refused_with_what_would_be_right(root: Root, say: PrintLine) -> None:
    for words, right in (
        (["set-message-ttl", "orders", "-t", "5x"], "a time, such as 30s, 100m, 3h, 2d or 5w"),
        (["set-retention", "orders", "-t", "3d", "-s", "10X"], "a size, such as 4096, 10M"),
        (["set-retention", "orders", "-t", "3d", "-s", "0"], "0 for both or for neither"),
        (["set-max-producers", "orders", "-p", "many"], "a whole number, 0 to 2147483647"),
        (
            ["set-backlog-quota", "orders", "-p", "perhaps"],
            "producer_request_hold, producer_",
        ),
        (["set-schema-compatibility-strategy", "orders", "-c", "X"], "ALWAYS_INCOMPATIBLE"),
        (["set-delayed-delivery", "orders"], "set-delayed-delivery needs something to set"),
        (
            ["set-message-ttl", "ordres", "-t", "5"],
            f"Did you mean {ORDERS}",
        ),
    ):
        assert right in say.error("topics", *words)
    assert "[INVALID_TOPIC_NAME]" in say.error("namespaces", "policies", "public")
    with pytest.raises(SystemExit):
        main(["topics", "set-deduplication", "orders"])
    assert Admin(root.service_url).policies(ORDERS).get() == {}


def test_how_topics_are_made_is_said_of_namespaces(say: PrintLine) -> None:
    command = ("namespaces", "set-auto-topic-creation", "public/default", "--enable")
    say(*command, "--type", "partitioned", "-n", "4")
    assert say.json("namespaces", "get-auto-topic-creation", "public/default") == {
        "auto_topic_creation": True, "auto_topic_type": "partitioned", "auto_topic_partitions": 4,
    }  # fmt: skip
    assert "do not go together" in say.error(*command, "-t", "non-partitioned")
    with pytest.raises(SystemExit):
        main(["topics", "set-auto-topic-creation", "orders", "--enable"])
